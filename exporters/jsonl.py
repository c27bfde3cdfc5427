"""Receipts as JSON Lines: one object a line, ASCII, appended."""

import fcntl
import os
from pathlib import Path

from receipt_trace.errors import UsageError
from receipt_trace.output import write_all
from receipt_trace.receipt import Receipt


class JsonLinesExporter:
    """Writes receipts to an open descriptor."""

    def __init__(self, fd: int, *, ours: bool = False) -> None:
        self._fd, self._ours = fd, ours

    def export(self, receipt: Receipt) -> None:
        """Write one line, in one write where the kernel takes it whole."""
        write_all(self._fd, receipt.to_json().encode() + b"\n")

    def close(self) -> None:
        """Close the file if we opened it."""
        if self._ours:
            os.close(self._fd)


def open_receipts(target: str) -> JsonLinesExporter:
    """Open where ``--receipts`` points: a path (appended to), ``-`` (stdout) or ``fd:N``.

    Raises UsageError when it cannot be written, before anything else has happened.
    """
    if target == "-":
        return JsonLinesExporter(1)
    if target.startswith("fd:"):
        return _descriptor(target)
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(target, flags, 0o600)
    except OSError as error:
        parent = Path(target).parent
        hint = (
            f"make it first: mkdir -p {str(parent)!r}"
            if not parent.is_dir()
            else "give a file you may write to, - for stdout, or fd:N"
        )
        raise UsageError(
            f"receipts cannot be written to {target!r}: {error.strerror}; {hint}"
        ) from None
    os.set_blocking(fd, True)
    return JsonLinesExporter(fd, ours=True)


def _descriptor(target: str) -> JsonLinesExporter:
    number = target.removeprefix("fd:")
    try:
        fd = int(number)
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise UsageError(f"--receipts {target}: descriptor {fd} is open for reading only")
    except (OSError, ValueError, OverflowError):
        raise UsageError(
            f"--receipts {target}: no open descriptor {number!r}; "
            f"expected one the caller opened, such as: receipt-trace run --receipts fd:3 … 3>receipts"
        ) from None
    return JsonLinesExporter(fd)
