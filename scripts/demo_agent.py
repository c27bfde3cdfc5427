"""A stand-in agent: runs commands the way real ones do. Some ask; it answers none.

Writes one JSON line about what it has started. When its input ends, it ends everything,
and writes another line: when it last heard of each command. ``demo.py`` starts it.
"""

import contextlib
import fcntl
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from receipt_trace import terminal

_REQUEST: Final = b'{"method": "ping"}\n'
_REQUESTS_S: Final = (0.5, 1.0, 1.5, 2.0, 5.0)  # greetings; then it idles, as servers do

_SERVER: Final = "import sys\nfor line in sys.stdin: print('pong', flush=True)"
_BUILD: Final = "echo compiling; sleep 6; echo built"


@dataclass(frozen=True, slots=True)
class Call:
    """One command; ``label`` marks it, ``wiring`` names a way of starting it below."""

    label: str
    argv: tuple[str, ...]
    wiring: str
    asks: bool
    text: str  # how it is told to people


def _calls() -> list[Call]:
    """What is run. Programs that are not installed everywhere have a stand-in too."""
    python = sys.executable
    deploy = "input('Deploy to production? ')"
    password = (
        ("openssl", "genrsa", "-aes256", "-out", "key.pem", "2048")
        if shutil.which("openssl")
        else (python, "-c", "import getpass; getpass.getpass()")
    )
    screen = next(filter(shutil.which, ("vim", "vi", "nano", "less", "more")), None)
    calls = [
        Call("confirm", ("rm", "-i", "notes"), "socket", True, "rm -i notes"),
        Call("deploy", (python, "-c", deploy), "file", True, f'python3 -c "{deploy}"'),
        Call("overwrite", ("cp", "-i", "notes", "copy"), "tty", True, "cp -i notes copy"),
        Call("password", password, "tty", True, " ".join(password[:3]).replace(python, "python3")),
        Call("build", ("sh", "-c", _BUILD), "file", False, f"sh -c '{_BUILD}'"),
        Call("stdio-server", (python, "-c", _SERVER), "pipes", False, "a server on its input"),
        Call("shell", ("bash", "--norc", "-i"), "tty", False, "bash -i, idle at its prompt"),
        Call("web-server", (python, "-m", "http.server", "--bind", "127.0.0.1", "0"), "file", False,
             "python3 -m http.server"),
    ]  # fmt: skip
    if screen is not None:
        calls.insert(4, Call("editor", (screen, "notes"), "tty", True, f"{screen} notes"))
    return calls


@dataclass(slots=True)
class _Running:
    """A started command, and our ends of its wiring."""

    call: Call
    process: "subprocess.Popen[bytes]"
    started: int
    output: int | None = None  # what we read, if it does not write to a file
    heard: int = 0  # when output came last
    keep: list[object] = field(default_factory=list)  # open as long as we live

    @property
    def file(self) -> Path:
        """Where its output goes, if not to us."""
        return Path(f"{self.call.label}.out")

    def last_heard(self) -> int:
        """When its last output came, as CLOCK_MONOTONIC in nanoseconds; 0: never."""
        if self.output is not None or not self.file.stat().st_size:
            return self.heard
        return time.monotonic_ns() - (time.time_ns() - self.file.stat().st_mtime_ns)


def _start(call: Call) -> _Running:
    wire: dict[str, Callable[[Call], _Running]] = {
        "tty": _on_terminal, "file": _to_file, "socket": _on_socket, "pipes": _on_pipes,
    }  # fmt: skip
    return wire[call.wiring](call)


def _popen(
    call: Call, stdin: int, output: int, prepare: Callable[[], object] | None = None
) -> "subprocess.Popen[bytes]":
    """Start it in a session of its own, with the mark that makes it a tool call."""
    environment = {
        **os.environ,
        "RECEIPT_TRACE": call.label,
        "HOME": os.getcwd(),  # nobody's own configuration decides what is shown
        "TERM": "xterm",
    }
    return subprocess.Popen(
        call.argv,
        stdin=stdin,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
        preexec_fn=prepare,  # noqa: PLW1509  (we have one thread)
    )


def _on_terminal(call: Call) -> _Running:
    """A terminal of its own, which we hold the other side of."""
    master, slave = os.openpty()
    terminal.resize(master, 80, 24)
    started = time.monotonic_ns()
    process = _popen(call, slave, slave, lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
    os.close(slave)
    return _Running(call, process, started, master)


def _to_file(call: Call) -> _Running:
    """An open pipe for input, a regular file for output."""
    with Path(f"{call.label}.out").open("wb") as output:
        started = time.monotonic_ns()
        return _Running(call, _popen(call, subprocess.PIPE, output.fileno()), started)


def _on_socket(call: Call) -> _Running:
    """One end of a pair of sockets for input, as Node.js does, a regular file for output."""
    ours, theirs = socket.socketpair()
    with theirs, Path(f"{call.label}.out").open("wb") as output:
        started = time.monotonic_ns()
        process = _popen(call, theirs.fileno(), output.fileno())
    return _Running(call, process, started, keep=[ours])


def _on_pipes(call: Call) -> _Running:
    """A server that is spoken to through pipes both ways."""
    started = time.monotonic_ns()
    process = _popen(call, subprocess.PIPE, subprocess.PIPE)
    assert process.stdout is not None
    return _Running(call, process, started, process.stdout.fileno())


def _serve(running: list[_Running]) -> None:
    """Take output as it comes and keep the server fed, until our input ends."""
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    for one in running:
        if one.output is not None:
            selector.register(one.output, selectors.EVENT_READ, one)
    servers = [one.process.stdin for one in running if one.call.wiring == "pipes"]
    due = [time.monotonic() + seconds for seconds in _REQUESTS_S]
    while True:
        if due and time.monotonic() >= due[0]:
            del due[0]
            for stdin in servers:
                assert stdin is not None
                stdin.write(_REQUEST)
                stdin.flush()
        for key, _ in selector.select(max(0.0, due[0] - time.monotonic()) if due else None):
            try:
                data = os.read(key.fd, 65536)
            except OSError:  # EIO: everybody has left that terminal
                data = b""
            if key.fd == 0 and not data:
                return
            if not data:
                selector.unregister(key.fd)
            elif key.data is not None:
                key.data.heard = time.monotonic_ns()


def _end(running: list[_Running]) -> None:
    for one in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait()


def _say(value: object) -> None:
    with contextlib.suppress(BrokenPipeError):  # whoever started us may have gone first
        print(json.dumps(value), flush=True)


def main() -> None:
    """Start everything, wait until told to stop, end everything."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    running: list[_Running] = []
    with tempfile.TemporaryDirectory(prefix="receipt-trace-demo-") as folder:
        os.chdir(folder)
        for name in ("notes", "copy"):
            Path(name).write_text("not to be lost\n")
        try:
            for call in _calls():
                running.append(_start(call))  # noqa: PERF401  (all so far must be ended)
            _say([
                {"label": c.label, "asks": c.asks, "wiring": c.wiring, "text": c.text,
                 "pid": one.process.pid, "started": one.started}
                for one in running for c in [one.call]
            ])  # fmt: skip
            with contextlib.suppress(BrokenPipeError):  # the server is no more
                _serve(running)
            _say({one.call.label: one.last_heard() for one in running})
        finally:
            _end(running)


if __name__ == "__main__":
    main()
