"""``receipt-trace tail``: the receipts of a running watcher."""

import argparse
import json
import socket
import sys
from pathlib import Path

from exporters.stream import HOST_PATH, default_path
from exporters.text import describe
from receipt_trace.errors import UnobservableError, UsageError
from receipt_trace.receipt import from_dict


def main(options: argparse.Namespace) -> int:
    """Follow until the watcher ends (69)."""
    path = options.socket or _place()
    if path is None:
        raise UsageError("XDG_RUNTIME_DIR is not set; give the watcher's socket with --socket PATH")
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
        except OSError as error:
            raise UnobservableError(
                f"no watcher listens at {path!r} ({error.strerror or error}); start one: "
                f"receipt-trace watch"
            ) from None
        with connection.makefile("r", encoding="ascii", errors="replace") as lines:
            for line in lines:
                if not line.endswith("\n"):  # the last one, cut when the watcher was killed
                    break
                if options.json:
                    sys.stdout.write(line)
                else:
                    receipt = from_dict(json.loads(line))
                    print(receipt.time[11:19], describe(receipt))
                sys.stdout.flush()
    raise UnobservableError(f"the watcher at {path!r} has ended")


def _place() -> str | None:
    """Where a watcher of this user listens, or if there is none, that of the host."""
    own = default_path()
    if (own is None or not Path(own).is_socket()) and Path(HOST_PATH).is_socket():
        return HOST_PATH
    return own
