"""receipt-trace: sees from the kernel that a command waits for input nobody gives.

The names below are the public API; they are loaded when they are used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from receipt_trace.errors import ReceiptTraceError
    from receipt_trace.receipt import Receipt, schema
    from receipt_trace.wrapper import Result, Run, run

__version__ = "0.1.0"

__all__ = ["Receipt", "ReceiptTraceError", "Result", "Run", "__version__", "run", "schema"]

_HOME = {
    "ReceiptTraceError": "receipt_trace.errors",
    "Receipt": "receipt_trace.receipt",
    "schema": "receipt_trace.receipt",
    "Result": "receipt_trace.wrapper",
    "Run": "receipt_trace.wrapper",
    "run": "receipt_trace.wrapper",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
