"""Receipts for local subscribers: JSON Lines over a unix socket.

Everybody may connect; the kernel says who it is (SO_PEERCRED, unix(7)), and he gets
the receipts of his own processes. Root gets all. Nobody is waited for.
"""

import contextlib
import os
import socket
import struct
from pathlib import Path
from typing import Final

from receipt_trace.errors import UsageError
from receipt_trace.receipt import Receipt

_BACKLOG: Final = 256 * 1024  # bytes kept for a subscriber who does not read; then he is let go
_SUBSCRIBERS: Final = 64


def default_path() -> str | None:
    """Where a watcher of this user listens; ``None``: nowhere, unless he is told."""
    if os.geteuid() == 0:
        return "/run/receipt-trace/stream.sock"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return None if not runtime else str(Path(runtime) / "receipt-trace.sock")


class StreamExporter:
    """Listens at a path. Raises UsageError when somebody else does, or it cannot be made."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._subscribers: list[_Subscriber] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._bind()
        except OSError as error:
            self._socket.close()
            raise UsageError(
                f"the socket {path!r} cannot be made: {error.strerror or error}; give another "
                f"--socket PATH, or --socket off"
            ) from None
        self._socket.setblocking(False)

    def _bind(self) -> None:
        Path(self._path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if Path(self._path).is_socket():
            with socket.socket(socket.AF_UNIX) as probe:
                try:
                    probe.connect(self._path)
                except ConnectionRefusedError:
                    os.unlink(self._path)  # left by a watcher that was killed
                else:
                    raise OSError(0, "another watcher listens there")
        self._socket.bind(self._path)
        os.chmod(self._path, 0o666)  # noqa: S103  (the kernel tells us who connects)
        self._socket.listen(16)

    def fileno(self) -> int:
        """Readable when somebody wants to subscribe."""
        return self._socket.fileno()

    def accept(self) -> None:
        """Let those in who wait, when those who have left have made room."""
        for subscriber in [s for s in self._subscribers if s.has_left()]:
            subscriber.close()
            self._subscribers.remove(subscriber)
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = self._socket.accept()
                if len(self._subscribers) >= _SUBSCRIBERS:
                    connection.close()
                    continue
                self._subscribers.append(_Subscriber(connection))

    def export(self, receipt: Receipt) -> None:
        """Send a receipt to whoever may see it."""
        line = receipt.to_json().encode() + b"\n"
        for subscriber in list(self._subscribers):
            may_see = subscriber.uid in (0, receipt.tree.uid)
            if not subscriber.send(line if may_see else b""):
                subscriber.close()
                self._subscribers.remove(subscriber)

    def close(self) -> None:
        """Stop listening and remove the socket."""
        for subscriber in self._subscribers:
            subscriber.close()
        self._socket.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)


class _Subscriber:
    """One connection, and what it has not read yet."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._pending = b""
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.uid = struct.unpack("3i", raw)[1]

    def send(self, line: bytes) -> bool:
        """Send as much as goes; False when he is gone, or too far behind."""
        self._pending += line
        try:
            while self._pending:
                self._pending = self._pending[
                    self._connection.send(self._pending, socket.MSG_NOSIGNAL) :
                ]
        except BlockingIOError:
            return len(self._pending) <= _BACKLOG
        except OSError:
            return False
        return True

    def has_left(self) -> bool:
        """Whether he has hung up."""
        try:
            return self._connection.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """End the connection."""
        self._connection.close()
