"""Loopback servers that cases talk to; started when the first case wants one.

| service | what it does | variables |
| --- | --- | --- |
| ``http`` | ``/slow``: a byte each half second; ``/auth``: wants a password, and refuses it; else a short page | ``HTTP_PORT`` |
| ``silent`` | takes connections and says nothing, on TCP and on a unix socket | ``SILENT_PORT``, ``SILENT_SOCKET`` |
| ``talk`` | greets with ``login: `` and echoes | ``TALK_PORT`` |
| ``ftp`` | greets as an FTP server that wants a name and a password | ``FTP_PORT`` |
| ``ssh`` | an OpenSSH server with a host key of its own | ``SSH_PORT`` |
"""

import contextlib
import http.server
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from receipt_trace.errors import UsageError

_UP_S: Final = 10


class Services:
    """The servers of one run; leaving ends them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._running: dict[str, Mapping[str, str]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def __call__(self, names: Iterable[str]) -> dict[str, str]:
        """Start what is not running yet; returns the variables that say where they are."""
        found: dict[str, str] = {}
        for name in names:
            with self._lock:
                if name not in self._running:
                    starter = _STARTERS.get(name)
                    if starter is None:
                        raise UsageError(
                            f"{name!r} is no service; expected one of {', '.join(_STARTERS)}"
                        )
                    self._running[name] = starter(self._stack, self._folder)
            found.update(self._running[name])
        return found


def _serve(stack: contextlib.ExitStack, server: socketserver.BaseServer) -> None:
    threading.Thread(target=server.serve_forever, args=(0.2,), daemon=True).start()
    stack.callback(server.server_close)
    stack.callback(server.shutdown)


class _Tcp(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def handle_error(self, _request: Any, _address: Any) -> None:
        """A client that was ended is no news."""


class _Pages(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Serve a page."""
        if "/slow" in self.path:
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(b"x")
                    self.wfile.flush()
                    time.sleep(0.5)
        if "/auth" in self.path:
            self._say(401, b"", {"WWW-Authenticate": 'Basic realm="litmus"'})
        else:
            self._say(200, b"fine\n", {})

    do_POST = do_PUT = do_PROPFIND = do_OPTIONS = do_GET  # noqa: N815  (names of http.server)

    def _say(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: Any) -> None:
        """Say nothing."""


def _http(stack: contextlib.ExitStack, _folder: Path) -> Mapping[str, str]:
    server = _Tcp(("127.0.0.1", 0), _Pages)
    _serve(stack, server)
    return {"HTTP_PORT": str(server.server_address[1])}


def _silent(stack: contextlib.ExitStack, folder: Path) -> Mapping[str, str]:
    network = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=512))
    local = stack.enter_context(socket.socket(socket.AF_UNIX))
    path = folder / "silent"
    local.bind(str(path))
    local.listen(512)
    path.chmod(0o777)
    return {"SILENT_PORT": str(network.getsockname()[1]), "SILENT_SOCKET": str(path)}


class _Talk(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        """Greet, then echo."""
        with contextlib.suppress(OSError):
            self.wfile.write(b"login: ")
            while data := self.request.recv(4096):
                self.wfile.write(data)


def _talk(stack: contextlib.ExitStack, _folder: Path) -> Mapping[str, str]:
    server = _Tcp(("127.0.0.1", 0), _Talk)
    _serve(stack, server)
    return {"TALK_PORT": str(server.server_address[1])}


class _Ftp(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        """Want a name, then a password, and refuse it."""
        answers = {
            b"USER": b"331 Password please\r\n",
            b"PASS": b"530 No\r\n",
            b"QUIT": b"221 Bye\r\n",
        }
        with contextlib.suppress(OSError):
            self.wfile.write(b"220 litmus\r\n")
            for line in self.rfile:
                self.wfile.write(answers.get(line[:4].upper(), b"502 Not here\r\n"))


def _ftp(stack: contextlib.ExitStack, _folder: Path) -> Mapping[str, str]:
    server = _Tcp(("127.0.0.1", 0), _Ftp)
    _serve(stack, server)
    return {"FTP_PORT": str(server.server_address[1])}


def _ssh(stack: contextlib.ExitStack, folder: Path) -> Mapping[str, str]:
    """An OpenSSH server. Its privilege separation wants /run/sshd, which goes again if we made it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    key = folder / "host_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    own = Path("/run/sshd")
    if not own.exists():
        own.mkdir(mode=0o755)
        stack.callback(own.rmdir)
    options = (
        f"Port={port}", "ListenAddress=127.0.0.1", f"HostKey={key}", "PidFile=none", "UsePAM=no",
        "PasswordAuthentication=yes", "KbdInteractiveAuthentication=no",
    )  # fmt: skip
    words = [word for option in options for word in ("-o", option)]
    server = subprocess.Popen(
        ["/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    stack.callback(server.wait)
    stack.callback(server.kill)
    deadline = time.monotonic() + _UP_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return {"SSH_PORT": str(port)}
        time.sleep(0.05)
    raise UsageError(f"sshd did not come up on port {port} (status {server.poll()}): sshd -T")


_STARTERS: Final[Mapping[str, Callable[[contextlib.ExitStack, Path], Mapping[str, str]]]] = {
    "http": _http,
    "silent": _silent,
    "talk": _talk,
    "ftp": _ftp,
    "ssh": _ssh,
}
SERVICES: Final = tuple(_STARTERS)
