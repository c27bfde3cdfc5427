"""``python -m receipt_trace`` is the command line."""

from receipt_trace.cli import entry

entry()
