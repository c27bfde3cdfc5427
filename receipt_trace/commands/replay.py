"""``receipt-trace replay``: the rule over a recorded trace."""

import argparse
import sys

from exporters import Exporter
from exporters.jsonl import JsonLinesExporter
from exporters.text import TextExporter
from receipt_trace.errors import UsageError
from receipt_trace.recording import replay


def main(options: argparse.Namespace) -> int:
    """Write the receipts of a trace to stdout."""
    exporter: Exporter = TextExporter(1, prefix="") if options.text else JsonLinesExporter(1)
    try:
        with open(
            0 if options.file == "-" else options.file, encoding="utf-8", errors="replace"
        ) as file:
            for receipt in replay(file, "<stdin>" if options.file == "-" else options.file):
                exporter.export(receipt)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(
            f"{options.file!r} cannot be read: {error.strerror}; expected what "
            f"`receipt-trace watch --record FILE` wrote"
        ) from None
    sys.stdout.flush()
    return 0
