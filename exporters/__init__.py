"""Where receipts go. The core never imports this package; the command line connects the two."""

from typing import Protocol

from receipt_trace.receipt import Receipt


class Exporter(Protocol):
    """Takes receipts one by one, from one thread."""

    def export(self, receipt: Receipt) -> None:
        """Take one receipt. Raises OSError when it could not be written, and can be again."""

    def reopen(self) -> None:
        """Open again what may have been moved away. Raises OSError, and goes on with the old."""

    def close(self) -> None:
        """Let go of what is open."""
