"""Receipts for local subscribers: JSON Lines over a unix socket.

Everybody may connect; the kernel says who it is (SO_PEERCRED, unix(7)), and he gets
the receipts of his own processes. Root gets all. Nobody is waited for: what a subscriber has
not read yet is sent when he reads, and the lines that wait are shared by all of them.
"""

import contextlib
import os
import select
import socket
import struct
from collections import deque
from pathlib import Path
from typing import Final

from receipt_trace.errors import UsageError
from receipt_trace.receipt import Receipt

_BACKLOG: Final = (
    8 * 1024 * 1024
)  # bytes kept for a subscriber who does not read; then he is let go
_SUBSCRIBERS: Final = 64

HOST_PATH: Final = "/run/receipt-trace/stream.sock"
"""Where a watcher of root listens, and a service of the host."""


def default_path() -> str | None:
    """Where a watcher of this user listens; ``None``: nowhere, unless he is told."""
    if os.geteuid() == 0:
        return HOST_PATH
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return None if not runtime else str(Path(runtime) / "receipt-trace.sock")


class StreamExporter:
    """Listens at a path, or on a socket that a service manager made. Raises UsageError when
    somebody else listens there, or it cannot be made.

    :meth:`fileno` is readable when there is something to do, and :meth:`serve` does it.
    """

    def __init__(self, path: str, given: socket.socket | None = None) -> None:
        self._path, self._given = path, given is not None
        self._subscribers: dict[int, _Subscriber] = {}
        self._socket = given or socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if given is None:
            try:
                self._bind()
            except OSError as error:
                self._socket.close()
                raise UsageError(
                    f"the socket {path!r} cannot be made: {error.strerror or error}; give another "
                    f"--socket PATH, or --socket off"
                ) from None
        self._socket.setblocking(False)
        self._poll = select.epoll()
        self._poll.register(self._socket, select.EPOLLIN)

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
        self._socket.listen(64)

    def fileno(self) -> int:
        """Readable when somebody wants to subscribe, reads on, or has left."""
        return self._poll.fileno()

    @property
    def subscribers(self) -> int:
        """How many there are."""
        return len(self._subscribers)

    def serve(self) -> None:
        """Let in who waits, send on to who reads, forget who has left."""
        waiting = False
        for fd, events in self._poll.poll(0):
            if fd == self._socket.fileno():
                waiting = True  # until those who left have made room
                continue
            subscriber = self._subscribers[fd]
            if events & (select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP):
                self._let_go(subscriber)
            else:
                self._send(subscriber)
        if waiting:
            self._accept()

    def export(self, receipt: Receipt) -> None:
        """Send a receipt to whoever may see it."""
        line = receipt.to_json().encode() + b"\n"
        for subscriber in list(self._subscribers.values()):
            if subscriber.uid in (0, receipt.tree.uid):
                subscriber.add(line)
                self._send(subscriber)

    def reopen(self) -> None:
        """Nothing: the socket stays."""

    def close(self) -> None:
        """Stop listening and remove the socket, if we made it."""
        for subscriber in self._subscribers.values():
            subscriber.close()
        self._poll.close()
        self._socket.close()
        if not self._given:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = self._socket.accept()
                if len(self._subscribers) >= _SUBSCRIBERS:
                    connection.close()
                    continue
                subscriber = _Subscriber(connection)
                self._subscribers[connection.fileno()] = subscriber
                self._poll.register(connection, select.EPOLLRDHUP)

    def _send(self, subscriber: "_Subscriber") -> None:
        if not subscriber.send():
            self._let_go(subscriber)
            return
        wanted = select.EPOLLRDHUP | (select.EPOLLOUT if subscriber.waiting else 0)
        self._poll.modify(subscriber.fileno(), wanted)

    def _let_go(self, subscriber: "_Subscriber") -> None:
        del self._subscribers[subscriber.fileno()]
        subscriber.close()  # which also takes it out of the poll set


class _Subscriber:
    """One connection, and what it has not read yet."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._lines: deque[bytes] = deque()
        self._sent = 0  # of the first line
        self.waiting = 0
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.uid = struct.unpack("3i", raw)[1]

    def fileno(self) -> int:
        """Of the connection."""
        return self._connection.fileno()

    def add(self, line: bytes) -> None:
        """One more line for him."""
        self._lines.append(line)
        self.waiting += len(line)

    def send(self) -> bool:
        """Send as much as goes; False when he is gone, or too far behind."""
        try:
            while self._lines:
                rest = memoryview(self._lines[0])[self._sent :]
                sent = self._connection.send(rest, socket.MSG_NOSIGNAL)
                self.waiting -= sent
                self._sent += sent
                if sent == len(rest):
                    self._lines.popleft()
                    self._sent = 0
        except BlockingIOError:
            return self.waiting <= _BACKLOG
        except OSError:
            return False
        return True

    def close(self) -> None:
        """End the connection."""
        self._connection.close()
