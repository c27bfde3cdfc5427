"""Every error a person can meet, with the exit code that belongs to it.

A message says what was seen, what was expected and what to do next. Only
:func:`receipt_trace.cli.main` prints one and turns it into an exit code.
"""

from typing import ClassVar


class ReceiptTraceError(Exception):
    """Base of all of them; by itself: a fault of our own (70, ``EX_SOFTWARE``)."""

    exit_code: ClassVar[int] = 70


class UsageError(ReceiptTraceError):
    """A flag, an argument or a configuration value that cannot be used (64)."""

    exit_code = 64


class UnobservableError(ReceiptTraceError):
    """Nothing could be observed (69, ``EX_UNAVAILABLE``)."""

    exit_code = 69


class PermissionDeniedError(ReceiptTraceError):
    """The host refuses what was asked for (77, ``EX_NOPERM``)."""

    exit_code = 77


class CommandNotFoundError(ReceiptTraceError):
    """The command to run does not exist (127, as a shell says it)."""

    exit_code = 127


class CommandNotExecutableError(ReceiptTraceError):
    """The command to run exists and cannot be executed (126, as a shell says it)."""

    exit_code = 126


EXIT_WAIT = 75
"""Exit code of ``run --on-wait interrupt`` when a wait ended the command (``EX_TEMPFAIL``)."""

EXIT_TIMEOUT = 124
"""Exit code of ``run --timeout`` when the time was up, as timeout(1) has it."""


def exit_status(status: int) -> int:
    """A wait status (wait(2)) as a shell tells it: the exit code, or 128 plus the signal."""
    signal = status & 0x7F
    return 128 + signal if signal else status >> 8 & 0xFF
