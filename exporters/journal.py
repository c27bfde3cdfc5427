"""Receipts for the systemd journal, with fields to search for, by its native protocol.

``journalctl RECEIPT_PROGRAM=rm``. The protocol: one datagram an entry, ``NAME=value`` a line; a
value with a line end in it as the name, a line end, its length in 64 bits, and itself
(https://systemd.io/JOURNAL_NATIVE_PROTOCOL/).
"""

import socket
import struct
from collections.abc import Iterator
from typing import Final

from exporters.text import describe
from receipt_trace.receipt import Receipt

SOCKET: Final = "/run/systemd/journal/socket"
MESSAGE_ID: Final = "f9de85d8b4444d5c9a676f6b79686c61"
"""Of the entries of this exporter; ours alone (``journalctl MESSAGE_ID=…``)."""

_NOTICE: Final = "5"  # sd-daemon(3): normal but significant; a wait
_INFO: Final = "6"
_PATIENCE_S: Final = 2.0  # journald may be busy; then it is tried again


class JournalExporter:
    """Sends one entry a receipt. Raises OSError when nobody listens there."""

    def __init__(self, path: str = SOCKET) -> None:
        self._path = path
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            probe.connect(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(_PATIENCE_S)

    def export(self, receipt: Receipt) -> None:
        """Send one entry."""
        self._socket.sendto(encode(receipt), self._path)  # by name: journald may start again

    def reopen(self) -> None:
        """Nothing: there is no file."""

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def encode(receipt: Receipt) -> bytes:
    """The entry of a receipt."""
    return b"".join(_field(name, value) for name, value in fields(receipt) if value)


def fields(receipt: Receipt) -> Iterator[tuple[str, str]]:
    """The fields of an entry, some of them empty: names and values."""
    agent, tree, resolution = receipt.agent, receipt.tree, receipt.resolution
    yield "MESSAGE", describe(receipt)
    yield "MESSAGE_ID", MESSAGE_ID
    yield "PRIORITY", _INFO if receipt.event == "resolved" else _NOTICE
    yield "SYSLOG_IDENTIFIER", "receipt-trace"
    yield "RECEIPT_ID", receipt.id
    yield "RECEIPT_WAIT", receipt.wait
    yield "RECEIPT_EVENT", receipt.event
    yield "RECEIPT_AGENT", "" if agent is None else agent.name
    yield "RECEIPT_SESSION", "" if agent is None else agent.session or ""
    yield "RECEIPT_LABEL", tree.label or ""
    yield "RECEIPT_ROOT_PID", str(tree.root_pid)
    yield "RECEIPT_UID", "" if tree.uid is None else str(tree.uid)
    yield "RECEIPT_CONTAINER", tree.container_id or ""
    yield "RECEIPT_PROGRAM", receipt.program.name
    yield "RECEIPT_PID", str(receipt.program.pid)
    yield "RECEIPT_KIND", receipt.input.kind
    yield "RECEIPT_WIRING", receipt.input.wiring
    yield "RECEIPT_PROMPT", receipt.prompt.text
    yield "RECEIPT_RESOLUTION", "" if resolution is None else resolution.how
    yield "RECEIPT_WAITED_SECONDS", "" if resolution is None else f"{resolution.waited_s:.3f}"
    yield "RECEIPT_JSON", receipt.to_json()


def _field(name: str, value: str) -> bytes:
    raw = value.encode("utf-8", "replace")
    if b"\n" in raw:
        return name.encode() + b"\n" + struct.pack("<Q", len(raw)) + raw + b"\n"
    return name.encode() + b"=" + raw + b"\n"
