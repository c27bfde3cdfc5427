"""The HTTP port: metrics, health and the status page. GET and HEAD, and nothing else.

A client is given little: 8 KiB and five seconds for its request, one request a connection,
sixteen connections at a time. On loopback the Host header has to name loopback, too, so that
no page on the web can read ours through a name that points here.
"""

import contextlib
import http.server
import io
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from typing import Any, Final

from receipt_trace.errors import UsageError

_HEAD: Final = 8192  # bytes of request line and headers
_PATIENCE_S: Final = 5.0  # for them, and for each write of ours
_CONNECTIONS: Final = 16

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a path gives."""

    body: bytes
    kind: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


Route = Callable[[Message], Answer]
"""Answers a request, of which it gets the headers."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    family: socket.AddressFamily
    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this host can come there."""
        return ipaddress.ip_address(self.host).is_loopback


def parse_address(text: str) -> Address:
    """``127.0.0.1:9737``, ``[::1]:9737`` or ``localhost:9737``. Raises UsageError."""
    host, _, port = text.rpartition(":")
    expected = "expected ADDRESS:PORT, such as 127.0.0.1:9737 or [::1]:9737, or off"
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{text!r} is nowhere to listen; {expected}")
    bare = host[1:-1] if host[0] == "[" and host[-1] == "]" else host
    try:
        family, _, _, _, where = socket.getaddrinfo(bare, int(port), type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise UsageError(f"{bare!r} is no address of this host; {expected}") from None
    return Address(family, str(where[0]), int(port))


class Server:
    """Serves routes, from :meth:`start` until it is closed. Raises UsageError when the address cannot be had."""

    def __init__(self, address: Address, routes: Mapping[str, Route]) -> None:
        try:
            self._server = _Server(address, routes)
        except OSError as error:
            raise UsageError(
                f"{address.host} port {address.port} cannot be listened on: {error.strerror}; "
                f"give another --metrics ADDRESS:PORT, or --metrics off"
            ) from None
        self.port: int = self._server.server_address[1]
        host = f"[{address.host}]" if ":" in address.host else address.host
        self.url = f"http://{host}:{self.port}/"
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="http", daemon=True)

    def start(self) -> None:
        """Begin to answer; who came before has waited."""
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        if self._thread.ident is not None:
            self._server.socket.shutdown(socket.SHUT_RDWR)  # which wakes the thread
            self._thread.join()
        self._server.server_close()

    def _serve(self) -> None:
        while not self._closed:
            self._server.handle_request()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: Address, routes: Mapping[str, Route]) -> None:
        self.address_family = address.family
        self.loopback, self.routes = address.loopback, routes
        self._room = threading.BoundedSemaphore(_CONNECTIONS)
        super().__init__((address.host, address.port), _Handler)

    def server_bind(self) -> None:
        """As the base class, without asking the name service who we are."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own, if there is room for one more."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """As the base class, and make room."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no error of ours."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    timeout = _PATIENCE_S

    def setup(self) -> None:
        """Read the head of the request, with bounds on its size and on the time it takes."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(io.BytesIO(self._head()))

    def _head(self) -> bytes:
        head, deadline = b"", time.monotonic() + _PATIENCE_S
        while b"\r\n\r\n" not in head and b"\n\n" not in head:
            left = deadline - time.monotonic()
            if left <= 0 or len(head) > _HEAD:
                return b""  # no request: the connection is closed
            self.connection.settimeout(left)
            try:
                part = self.connection.recv(4096)
            except OSError:
                return b""
            if not part:
                return b""
            head += part
        self.connection.settimeout(_PATIENCE_S)
        return head

    def parse_request(self) -> bool:
        """Only what we answer."""
        if not super().parse_request():
            return False
        if self.command not in {"GET", "HEAD"}:
            self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)
            return False
        if self.server.loopback and not _is_loopback(self.headers.get("Host", "localhost")):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            return False
        return True

    def do_GET(self) -> None:
        """Answer."""
        route = self.server.routes.get(self.path.partition("?")[0])
        if route is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        answer = route(self.headers)
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command == "GET":
            with contextlib.suppress(OSError):
                self.wfile.write(answer.body)

    do_HEAD = do_GET  # noqa: N815  (the base class calls it so)

    def send_error(
        self, code: int, _message: str | None = None, _explain: str | None = None
    ) -> None:
        """An error, in our words only: what was asked is not repeated."""
        self.close_connection = True
        body = f"{code} {HTTPStatus(code).phrase}\n".encode()
        self.send_response(code)
        if code == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(OSError):
                self.wfile.write(body)

    def end_headers(self) -> None:
        """With those that every answer has."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def version_string(self) -> str:
        """Who answers."""
        return "receipt-trace"

    def log_message(self, *_: Any) -> None:
        """Not logged: a scrape is no event, and what is asked is hostile."""


def _is_loopback(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    name = name.strip("[]")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
