"""``receipt-trace run``: the caller's terminal and signals, around :class:`receipt_trace.wrapper.Run`."""

import argparse
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from receipt_trace import terminal
from receipt_trace.errors import UsageError
from receipt_trace.output import write_all
from receipt_trace.wiring import Wiring
from receipt_trace.wrapper import Run

if TYPE_CHECKING:
    from exporters import Exporter
    from receipt_trace.receipt import Receipt

_HANDED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)


def main(options: argparse.Namespace) -> int:
    """Run the command of the options; returns its exit status."""
    argv = options.argv[1:] if options.argv[:1] == ["--"] else options.argv
    if not argv:
        raise UsageError(
            "no command was given; expected: receipt-trace run -- COMMAND [ARG…]\n"
            "try: receipt-trace run --help"
        )
    _open_standard()
    wiring = Wiring(options.wiring or ("tty" if os.isatty(0) else "pipe"))
    receipts = _Receipts(options, argv)
    caller = _Caller(wiring)
    with receipts, caller:
        command = Run(
            argv,
            wiring=wiring,
            on_wait=options.on_wait,
            timeout=options.timeout,
            stdin=caller.stdin,
            sink=write_all,
            size=caller.size(),
            source=options.source or "auto",
            attach=options.attach,
            capture=options.capture,
            adopt=True,
            label=options.label,
        )
        with command:
            caller.attach(command)
            for receipt in command:
                receipts.take(receipt, raw=caller.raw, unfinished=command.output.unterminated)
        caller.restore()
        receipts.finish(command.survivors, command.problems)
        return command.returncode


def _open_standard() -> None:
    """See that descriptors 0 to 2 are open: a pipe of ours must not become somebody's stdin."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number there is: this one


class _Receipts:
    """Where the receipts of this run go; opened before the command is started."""

    def __init__(self, options: argparse.Namespace, argv: list[str]) -> None:
        self._options, self._argv = options, argv
        self._exporter: Exporter | None = None
        self._later: list[Receipt] = []
        self._told: set[tuple[int, str]] = set()
        if options.receipts is not None:
            from exporters.jsonl import open_receipts  # noqa: PLC0415

            self._exporter = open_receipts(options.receipts)
        self._json = options.json or options.receipts is not None

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        if self._exporter is not None:
            self._exporter.close()

    def take(self, receipt: "Receipt", *, raw: bool, unfinished: bool) -> None:
        """Write a receipt, or keep it until the command has left the screen we would scribble on.

        ``raw``: a person's terminal is in raw mode. ``unfinished``: the command has left a
        line on it unfinished, as questions do.
        """
        newline = "\r\n" if raw else "\n"
        if self._json:
            self._export(receipt)
        elif raw and receipt.input.kind == "screen":
            self._later.append(receipt)
        elif self._is_news(receipt, raw):
            self._say(
                receipt,
                newline,
                newline if unfinished and receipt.event == "wait" and os.isatty(2) else "",
            )

    def _is_news(self, receipt: "Receipt", raw: bool) -> bool:
        """With a person at the keys, one line per program is enough: he sees the rest himself."""
        if not raw or receipt.input.kind != "key":
            return True
        key = (receipt.program.pid, receipt.event)
        new = key not in self._told
        self._told.add(key)
        return new

    def _export(self, receipt: "Receipt") -> None:
        if self._exporter is None:
            from exporters.jsonl import JsonLinesExporter  # noqa: PLC0415

            self._exporter = JsonLinesExporter(2)
        try:
            self._exporter.export(receipt)
        except OSError as error:  # the command goes on; the receipt must not be lost
            from exporters.jsonl import JsonLinesExporter  # noqa: PLC0415

            with contextlib.suppress(OSError):
                print(
                    f"receipt-trace: receipts cannot be written any more "
                    f"({error.strerror}); they follow here",
                    file=sys.stderr,
                )
                self._exporter = JsonLinesExporter(2)
                self._exporter.export(receipt)

    def _say(self, receipt: "Receipt", newline: str = "\n", before: str = "") -> None:
        from exporters.text import TextExporter  # noqa: PLC0415

        with contextlib.suppress(OSError):
            TextExporter(2, f"{before}receipt-trace: ", newline).export(receipt)

    def finish(self, survivors: tuple[int, ...], problems: list[str]) -> None:
        """The command is gone: say what was kept back, who could not be ended, what went wrong."""
        for receipt in self._later:
            if receipt.event == "wait":
                self._say(receipt)
        if survivors:
            numbers = " ".join(map(str, survivors))
            problems = [*problems, f"could not end {numbers}; look at them: ps -p {numbers}"]
        for problem in problems:
            print(f"receipt-trace: {problem}", file=sys.stderr)


class _Caller:
    """The caller's side: his terminal (raw while the command has one of its own) and his signals."""

    def __init__(self, wiring: Wiring) -> None:
        interactive = os.isatty(0)
        self._terminal = 0 if interactive and wiring is Wiring.TTY else None
        self._forward = not interactive or wiring is Wiring.TTY
        self._saved: list[Any] | None = None
        self._command: Run | None = None
        self._wakeup: tuple[int, int] | None = None
        self.raw = False

    @property
    def stdin(self) -> int | None:
        """What is passed on to the command; a terminal in the background is not ours to read."""
        if not self._forward:
            return None
        return None if self._terminal is not None and not self._in_foreground() else 0

    def size(self) -> tuple[int, int]:
        """Columns and lines of the caller's terminal, wherever he has one."""
        for fd in (0, 1, 2):
            found = terminal.size(fd)
            if found is not None:
                return found
        return 80, 24

    def __enter__(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        self._wakeup = (reader, writer)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (*_HANDED_ON, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays nohup
                signal.signal(number, _noticed)

    def __exit__(self, *exc: object) -> None:
        self.restore()
        signal.set_wakeup_fd(-1)
        for fd in self._wakeup or ():
            os.close(fd)

    def attach(self, command: Run) -> None:
        """From now on signals are handed on to this command."""
        self._command = command
        assert self._wakeup is not None
        command.watch(self._wakeup[0], self._signalled)
        command.on_tick = self._follow_modes
        self._make_raw()

    def restore(self) -> None:
        """Give the terminal back as it was."""
        if self._saved is not None and self._terminal is not None:
            with contextlib.suppress(termios.error), _no_ttou():
                termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._saved)
        self.raw = False

    def _in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(0) == os.getpgrp()
        except OSError:
            return False

    def _make_raw(self) -> None:
        if self._terminal is None or not self._in_foreground():
            return
        if self._saved is None:
            self._saved = termios.tcgetattr(self._terminal)
        tty.setraw(self._terminal, termios.TCSADRAIN)
        self.raw = True
        self._follow_modes()

    def _follow_modes(self) -> None:
        """While the command lets signal keys work, the suspend key works on us: only we can
        stop together with it. All other keys go to the command's own terminal.
        """
        if not self.raw or self._terminal is None or self._command is None:
            return
        master = self._command.master
        modes = terminal.modes(master) if master is not None else None
        if modes is None or self._saved is None:
            return
        wanted = termios.tcgetattr(self._terminal)
        flags = wanted[3] | termios.ISIG if modes.signals else wanted[3] & ~termios.ISIG
        if flags == wanted[3]:
            return
        wanted[3] = flags
        for index in (termios.VINTR, termios.VQUIT):
            wanted[6][index] = b"\0"
        wanted[6][termios.VSUSP] = self._saved[6][termios.VSUSP]
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._terminal, termios.TCSANOW, wanted)

    def _signalled(self) -> None:
        assert self._command is not None
        assert self._wakeup is not None
        with contextlib.suppress(BlockingIOError):
            for number in os.read(self._wakeup[0], 512):
                self._hand_on(self._command, number)

    def _hand_on(self, command: Run, number: int) -> None:
        if number == signal.SIGWINCH:
            command.resize(*self.size())
        elif number == signal.SIGTSTP:
            self._suspend(command)
        elif number == signal.SIGCONT:
            command.signal_members(signal.SIGCONT)
            self._make_raw()
        elif number in (signal.SIGINT, signal.SIGQUIT):
            command.signal_foreground(number)
        elif number in _HANDED_ON:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(command.pid, number)

    def _suspend(self, command: Run) -> None:
        """Stop together: a session of its own ignores SIGTSTP, so the command is stopped outright."""
        command.signal_members(signal.SIGSTOP)
        self.restore()
        os.kill(os.getpid(), signal.SIGSTOP)


def _noticed(_number: int, _frame: object) -> None:
    """The number has gone through the wake-up descriptor; the loop does the rest."""


@contextlib.contextmanager
def _no_ttou() -> Iterator[None]:
    """Restore a terminal also from the background."""
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTTOU, before)
