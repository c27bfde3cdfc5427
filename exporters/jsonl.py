"""Receipts as JSON Lines: one object a line, ASCII, appended."""

import contextlib
import fcntl
import os
from pathlib import Path

from receipt_trace.errors import UsageError
from receipt_trace.output import write_all
from receipt_trace.receipt import Receipt


class JsonLinesExporter:
    """Writes receipts to an open descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def export(self, receipt: Receipt) -> None:
        """Write one line, in one write where the kernel takes it whole."""
        write_all(self._fd, receipt.to_json().encode() + b"\n")

    def reopen(self) -> None:
        """Nothing: the descriptor is the caller's."""

    def close(self) -> None:
        """Nothing: the descriptor is the caller's."""


class JsonLinesFile:
    """Writes receipts to a file of its own. Raises OSError when that cannot be opened.

    A line is in the file whole, or the file says so by a line end: what was written of it is taken
    back where the disk was full, and a line torn by a crash is ended before the next.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = _open(path)
        self._torn = _is_torn(self._fd, path)

    def export(self, receipt: Receipt) -> None:
        """Write one line, in one write where the kernel takes it whole."""
        line = b"\n" * self._torn + receipt.to_json().encode() + b"\n"
        before = os.fstat(self._fd).st_size
        try:
            write_all(self._fd, line)
        except OSError:
            self._take_back(before, len(line))
            raise
        self._torn = False

    def reopen(self) -> None:
        """Open the path again, after somebody (logrotate) has moved the file away."""
        fd = _open(self._path)
        os.close(self._fd)
        self._fd, self._torn = fd, _is_torn(fd, self._path)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _take_back(self, before: int, length: int) -> None:
        with contextlib.suppress(OSError):
            written = os.fstat(self._fd).st_size - before
            if 0 < written < length:  # else somebody else writes there, too
                self._torn = True
                os.ftruncate(self._fd, before)
                self._torn = _is_torn(self._fd, self._path)


def open_receipts(target: str) -> JsonLinesExporter | JsonLinesFile:
    """Open where ``--receipts`` points: a path (appended to), ``-`` (stdout) or ``fd:N``.

    Raises UsageError when it cannot be written, before anything else has happened.
    """
    if target == "-":
        return JsonLinesExporter(1)
    if target.startswith("fd:"):
        return _descriptor(target)
    try:
        return JsonLinesFile(target)
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


def _open(path: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    fd = os.open(path, flags, 0o600)
    os.set_blocking(fd, True)
    return fd


def _is_torn(fd: int, path: str) -> bool:
    """Whether a file ends within a line."""
    try:
        size = os.fstat(fd).st_size
        if not size:
            return False
        with open(path, "rb") as file:
            file.seek(size - 1)
            return file.read(1) != b"\n"
    except OSError:  # it may not be read: then nothing is known of it
        return False


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
