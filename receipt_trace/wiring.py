"""Starting a command with an input that stays open: a terminal, a pipe, or nothing.

Every wiring gives the command a session of its own, so that it has exactly the
terminal it was given. What it prints comes to us, byte for byte.
"""

import ctypes
import fcntl
import os
import signal
import subprocess
import termios
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from receipt_trace import terminal
from receipt_trace.errors import CommandNotExecutableError, CommandNotFoundError, UsageError

_PR_SET_PDEATHSIG: Final = 1  # include/uapi/linux/prctl.h
_PR_SET_CHILD_SUBREAPER: Final = 36


class Wiring(StrEnum):
    """What the command's standard input is."""

    TTY = "tty"  # a terminal of its own; output goes there too
    PIPE = "pipe"  # a pipe that stays open
    NULL = "null"  # closed: /dev/null


class Child:
    """A started command and our ends of its wiring.

    ``outputs`` maps a descriptor we read to the stream it belongs to (1 or 2).
    ``input`` is what we may write its input to; ``master`` our side of its terminal.
    ``key`` and ``target`` name its input as a source does.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", ends: "_Ends") -> None:
        self.process = process
        self.outputs = ends.outputs
        self.input = ends.input
        self.master = ends.master
        self.key = ends.key
        self.target = ends.target

    @property
    def pid(self) -> int:
        """Process number of the command."""
        return self.process.pid

    def close_input(self) -> None:
        """No more input: the command reads the end of it (a terminal goes on)."""
        if self.input is not None and self.input != self.master:
            os.close(self.input)
        self.input = None

    def close(self) -> None:
        """Close all our ends; a command with a terminal is hung up on (SIGHUP)."""
        self.close_input()
        for fd in self.outputs:
            os.close(fd)
        self.outputs.clear()
        self.master = None


def spawn(
    argv: Sequence[str],
    wiring: Wiring,
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    size: tuple[int, int] = (80, 24),
    dies_with_us: bool = False,
) -> Child:
    """Start a command.

    ``size`` is (columns, lines) of a terminal. ``dies_with_us``: it gets SIGHUP when the
    thread that started it ends, as if a terminal window were closed.

    Raises CommandNotFoundError, CommandNotExecutableError, or UsageError for arguments
    or a directory that cannot be used.
    """
    if not argv or not argv[0]:
        raise UsageError("no command was given; expected: receipt-trace run -- COMMAND [ARG…]")
    if any("\0" in argument for argument in argv):
        raise UsageError(
            "an argument of the command holds a NUL byte, which no program can be given"
        )
    if cwd is not None and not os.path.isdir(cwd):
        raise UsageError(f"{cwd!r} is not a directory; the command was not started")
    ends = _Ends()
    setup = _Setup(wiring is Wiring.TTY, dies_with_us)
    try:
        stdin, stdout, stderr = ends.open(wiring, size)
        process = subprocess.Popen(  # noqa: S603  (running a command is what we are for)
            list(argv),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            env=None if env is None else dict(env),
            start_new_session=True,
            preexec_fn=setup if setup.needed else None,  # noqa: PLW1509  (see _Setup)
        )
    except OSError as error:
        ends.close(ends.ours)
        raise _start_error(argv[0], error) from None
    finally:
        ends.close(ends.theirs)
    return Child(process, ends)


class _Ends:
    """Both ends of a wiring. Whatever was opened is in ``ours`` or ``theirs``, also on failure."""

    def __init__(self) -> None:
        self.ours: list[int] = []
        self.theirs: list[int] = []
        self.outputs: dict[int, int] = {}
        self.input: int | None = None
        self.master: int | None = None
        self.key = self.target = os.devnull

    def open(self, wiring: Wiring, size: tuple[int, int]) -> tuple[int, int, int]:
        """Open them; returns the command's stdin, stdout and stderr."""
        if wiring is Wiring.TTY:
            return self._open_terminal(size)
        streams = []
        for stream in (1, 2):
            reader, writer = self._pipe(*os.pipe())
            self.outputs[reader] = stream
            streams.append(writer)
        if wiring is Wiring.NULL:
            stdin = os.open(os.devnull, os.O_RDONLY)
            self.theirs.append(stdin)
        else:
            stdin, writer = os.pipe()
            self.input, _ = self._pipe(writer, stdin)
            self.key = self.target = f"pipe:[{os.fstat(stdin).st_ino}]"
        return stdin, streams[0], streams[1]

    def _pipe(self, our: int, their: int) -> tuple[int, int]:
        self.ours.append(our)
        self.theirs.append(their)
        os.set_blocking(our, False)
        return our, their

    def _open_terminal(self, size: tuple[int, int]) -> tuple[int, int, int]:
        master, slave = self._pipe(*os.openpty())
        terminal.resize(master, *size)
        self.outputs[master] = 1
        self.input = self.master = master
        self.target = os.ttyname(slave)
        self.key = f"pts:{self.target.rpartition('/')[2]}"
        return slave, slave, slave

    def close(self, ends: list[int]) -> None:
        """Close one side."""
        for fd in ends:
            os.close(fd)


class _Setup:
    """What the child does to itself before it becomes the command: two system calls, made
    ready beforehand, so that a fork of a host application with threads can take no lock.
    """

    def __init__(self, terminal_wanted: bool, dies_with_us: bool) -> None:
        self.needed = terminal_wanted or dies_with_us
        self._terminal, self._dies = terminal_wanted, dies_with_us
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl if dies_with_us else None

    def __call__(self) -> None:
        if self._terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if self._prctl is not None:
            self._prctl(_PR_SET_PDEATHSIG, signal.SIGHUP, 0, 0, 0)


def adopt_orphans() -> None:
    """Make this process the parent of every orphan below it, so that none leaves the tree."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _start_error(name: str, error: OSError) -> Exception:
    if isinstance(error, FileNotFoundError):
        return CommandNotFoundError(
            f"{name!r}: command not found; give a path, or look at PATH ({os.environ.get('PATH', '')})"
        )
    if isinstance(error, PermissionError) or error.errno in (8, 21):  # ENOEXEC, EISDIR
        return CommandNotExecutableError(
            f"{name!r} cannot be executed ({error.strerror}); expected a program or a script "
            f"that begins with #! and is executable: ls -l {name!r}"
        )
    return UsageError(f"{name!r} could not be started: {error.strerror}")
