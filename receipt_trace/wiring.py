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
from dataclasses import dataclass
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


@dataclass(slots=True)
class Child:
    """A started command and our ends of its wiring.

    ``outputs`` maps a descriptor we read to the stream it belongs to (1 or 2).
    ``input`` is what we may write its input to; ``master`` our side of its terminal.
    ``key`` and ``target`` name its input as a source does.
    """

    process: "subprocess.Popen[bytes]"
    outputs: dict[int, int]
    input: int | None
    master: int | None
    key: str
    target: str

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
    ours: list[int] = []
    theirs: list[int] = []
    try:
        child_ends, outputs, input_fd, master, key, target = _open(wiring, size, ours, theirs)
        setup = _Setup(wiring is Wiring.TTY, dies_with_us)
        process = subprocess.Popen(  # noqa: S603  (running a command is what we are for)
            list(argv),
            stdin=child_ends[0],
            stdout=child_ends[1],
            stderr=child_ends[2],
            cwd=cwd,
            env=None if env is None else dict(env),
            start_new_session=True,
            preexec_fn=setup if setup.needed else None,  # noqa: PLW1509  (see _Setup)
        )
    except OSError as error:
        for fd in ours:
            os.close(fd)
        raise _start_error(argv[0], error) from None
    finally:
        for fd in theirs:
            os.close(fd)
    return Child(process, outputs, input_fd, master, key, target)


def _open(
    wiring: Wiring, size: tuple[int, int], ours: list[int], theirs: list[int]
) -> tuple[tuple[int, int, int], dict[int, int], int | None, int | None, str, str]:
    """Both ends of a wiring; whatever was opened is in ``ours`` or ``theirs`` even on failure."""
    if wiring is Wiring.TTY:
        master, slave = os.openpty()
        ours.append(master)
        theirs.append(slave)
        terminal.resize(master, *size)
        os.set_blocking(master, False)
        name = os.ttyname(slave)
        key = f"pts:{name.rpartition('/')[2]}"
        return (slave, slave, slave), {master: 1}, master, master, key, name
    outputs = {}
    ends = []
    for stream in (1, 2):
        reader, writer = os.pipe()
        ours.append(reader)
        theirs.append(writer)
        os.set_blocking(reader, False)
        outputs[reader] = stream
        ends.append(writer)
    if wiring is Wiring.NULL:
        null = os.open(os.devnull, os.O_RDONLY)
        theirs.append(null)
        return (null, ends[0], ends[1]), outputs, None, None, os.devnull, os.devnull
    stdin, feed = os.pipe()
    theirs.append(stdin)
    ours.append(feed)
    os.set_blocking(feed, False)
    key = f"pipe:[{os.fstat(stdin).st_ino}]"
    return (stdin, ends[0], ends[1]), outputs, feed, None, key, key


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
