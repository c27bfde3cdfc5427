"""What is typed is never read: a secret is typed into every kind of prompt, and then looked for.

All programs are watched by every attach mode at both capture levels at once, and some run below
``run``. Each asks twice, so that something is told after the secret was typed.
"""

import base64
import contextlib
import json
import os
import shutil
import socket
import subprocess
import threading
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from .support import (
    BOUND,
    PRIVATE_TRACEFS,
    RECEIPT_TRACE,
    Terminal,
    Watcher,
    briefly,
    descendants,
    environment,
    eventually,
    kill,
    need,
    receipts_in,
    started,
    waits,
    write,
)

pytestmark = pytest.mark.kernel

MODES: Final = {
    f"{attach} {capture}": ("--attach", attach, "--capture", capture)
    for attach in ("snapshot", "syscalls")
    for capture in ("waits", "text")
}
KEYS: Final = b"%s\r"


@dataclass(frozen=True, eq=False)
class Prompt:
    """Something that takes a secret twice.

    ``wiring`` is what it reads: ``tty``, ``pipe`` or ``socket``. ``shown``: who puts on the screen
    what is typed: nobody, the ``kernel`` (echo) or the ``program``.
    """

    name: str
    command: str
    shown: str = "nobody"
    wiring: str = "tty"
    keys: bytes = KEYS
    needs: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


ASKS_TWICE: Final = 'python3 -c \'input("name? "); input("again? ")\''

PROMPTS: Final = (
    # nobody shows what is typed
    Prompt("password", "python3 -c 'from getpass import getpass; getpass(); getpass()'"),
    Prompt("read -s", "read -s -p 'Token: ' a; read -s -p 'Again: ' b"),
    Prompt("openssl", "openssl genrsa -aes256 -out k 512", needs=("openssl",)),
    Prompt("raw keys", "python3 s.py",
           files={"s.py": "import os, tty\ntty.setraw(0)\n"
                          "for n in range(2):\n"
                          "    os.write(1, b'press keys: ')\n"
                          "    while os.read(0, 1) != b'\\r': pass\n"}),
    Prompt("pipe", ASKS_TWICE, wiring="pipe", keys=b"%s\n"),
    Prompt("socket", ASKS_TWICE, wiring="socket", keys=b"%s\n"),
    Prompt("a terminal in a terminal",
           "script -qec \"bash -c 'read -s -p Token: a; read -s -p Again: b'\" /dev/null",
           needs=("script",)),
    # the kernel does
    Prompt("line", ASKS_TWICE, shown="kernel"),
    Prompt("a line of bash", "printf 'name? '; read a; printf 'again? '; read b", shown="kernel"),
    # the program does
    Prompt("readline of bash", "read -e -p 'name? ' a; read -e -p 'again? ' b", shown="program"),
    Prompt("readline of python",
           "python3 -c 'import readline; input(\"name? \"); input(\"again? \")'", shown="program"),
    Prompt("editor", "vim -u NONE f", shown="program", keys=b"i%s\x1b", needs=("vim",),
           files={"f": "hello\n"}),
    Prompt("pager", "less f", shown="program", keys=b"/%s\r", needs=("less",),
           files={"f": "".join(f"line {n}\n" for n in range(200))}),
)  # fmt: skip


class Service:
    """A watcher with everything that it can write, and a subscriber of its socket."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.trace, address = directory / "trace", directory / "socket"
        self.watcher = Watcher(
            directory, "--source", "bpf", *options, "-v",
            "--record", str(self.trace), "--socket", str(address), before=PRIVATE_TRACEFS,
        )  # fmt: skip
        self._heard = directory / "heard"
        with self._heard.open("wb") as sink:
            self.tail = subprocess.Popen(
                [RECEIPT_TRACE, "tail", "--json", "--socket", str(address)],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environment(directory),
            )  # fmt: skip

    def receipts(self, label: str) -> list[dict[str, Any]]:
        """What it has told of a program."""
        return [r for r in self.watcher.receipts() if r["tree"]["label"] == label]

    def told(self, label: str) -> list[dict[str, Any]]:
        """The waits of a program."""
        return waits(self.receipts(label))

    def written(self, *, shown: bool) -> dict[str, bytes]:
        """Everything it wrote, by where; what a trace holds encoded is decoded.

        Without what was on a screen, if something ``shown`` there is looked for.
        """
        eventually(
            lambda: self._heard.read_bytes().count(b"\n") >= len(self.watcher.receipts()),
            "the stream has all receipts",
        )
        trace = [json.loads(line) for line in self.trace.read_bytes().splitlines()]
        screens = [
            base64.b64decode(record["context"].pop("output"))
            for record in trace
            if "context" in record
        ]
        written = {"log": self.watcher.log, "trace": json.dumps(trace).encode()}
        for name, path in (("receipts", self.watcher.file), ("stream", self._heard)):
            receipts = [json.loads(line) for line in path.read_bytes().splitlines()]
            screens += [receipt["prompt"].pop("text").encode() for receipt in receipts]
            written[name] = json.dumps(receipts).encode()
        return written if shown else written | {"screens": b"\n".join(screens)}

    def remembers(self, *secrets: bytes) -> list[bytes]:
        """Those of some secrets that its memory holds."""
        found = set()
        pid = self.watcher.process.pid
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            for line in maps:
                area, modes, *_ = line.split()
                if not modes.startswith("rw"):
                    continue
                first, last = (int(end, 16) for end in area.split("-"))
                with contextlib.suppress(OSError):
                    memory.seek(first)
                    data = memory.read(last - first)
                    found.update(secret for secret in secrets if secret in data)
        return sorted(found)

    def close(self) -> None:
        """End both."""
        self.tail.kill()
        self.tail.wait(BOUND)
        self.watcher.process.kill()
        self.watcher.process.wait(BOUND)


class Typist:
    """Types a secret of its own into every program."""

    def __init__(self, services: Mapping[str, Service]) -> None:
        self.services = services
        self.secrets: dict[Prompt, bytes] = {}
        self._pool = ThreadPoolExecutor(len(PROMPTS))
        self._done: dict[Prompt, Future[None]] = {}

    def add(self, prompt: Prompt, directory: Path) -> None:
        """Begin with one."""
        self.secrets[prompt] = uuid.uuid4().hex.encode()
        self._done[prompt] = self._pool.submit(self._type, prompt, directory)

    def wait(self, prompt: Prompt) -> bytes:
        """Until everything was told of it; returns the secret."""
        self._done[prompt].result()
        return self.secrets[prompt]

    def close(self) -> None:
        """Wait for what runs."""
        self._pool.shutdown()

    def _type(self, prompt: Prompt, directory: Path) -> None:
        write(directory, prompt.files)
        label = f"types {prompt.name}"
        ours, theirs = _ends(prompt.wiring)
        argv = ["bash", "-c", prompt.command]
        with (directory / "said").open("wb") as said:
            child = subprocess.Popen(
                ["setsid", "--ctty", *argv] if prompt.wiring == "tty" else argv, cwd=directory,
                stdin=theirs, stdout=theirs if prompt.wiring == "tty" else said,
                stderr=subprocess.STDOUT, env=environment(directory, RECEIPT_TRACE=label),
            )  # fmt: skip
        os.close(theirs)
        stop = threading.Event()
        reader = threading.Thread(target=_drain, args=(ours, stop))
        if prompt.wiring == "tty":
            os.set_blocking(ours, False)
            reader.start()
        try:
            for count in (1, 2):
                eventually(
                    lambda count=count: all(
                        len(s.told(label)) >= count for s in self.services.values()
                    ),
                    lambda count=count: (
                        f"wait {count} of {label}: "
                        + repr({n: briefly(s.receipts(label)) for n, s in self.services.items()})
                    ),
                )
                if count == 1:
                    os.write(ours, prompt.keys % self.secrets[prompt])
        finally:
            for pid in (*descendants(child.pid), child.pid):
                kill(pid)
            child.wait(BOUND)
            stop.set()
            if prompt.wiring == "tty":
                reader.join()
            os.close(ours)


def _ends(wiring: str) -> tuple[int, int]:
    """Our end and the program's of what it reads."""
    if wiring == "tty":
        return os.openpty()
    if wiring == "socket":
        ours, theirs = socket.socketpair()
        return ours.detach(), theirs.detach()
    theirs_end, ours_end = os.pipe()
    return ours_end, theirs_end


def _drain(fd: int, stop: threading.Event) -> None:
    """Be the screen."""
    while not stop.wait(0.05):
        with contextlib.suppress(OSError):
            os.read(fd, 65536)


@pytest.fixture(scope="module")
def typist(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Typist]:
    """Four watchers, and all programs that were selected."""
    need("unshare", "setsid")
    with contextlib.ExitStack() as stack:
        services = {}
        for name, options in MODES.items():
            services[name] = Service(tmp_path_factory.mktemp("watch"), *options)
            stack.callback(services[name].close)
        typing = Typist(services)
        stack.callback(typing.close)
        for prompt in PROMPTS:
            if all(map(shutil.which, prompt.needs)):
                typing.add(prompt, tmp_path_factory.mktemp("typed"))
        yield typing


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda p: p.name)
def test_what_is_typed_is_in_nothing_that_is_written(prompt: Prompt, typist: Typist) -> None:
    """Not in receipts, logs and recorded traces, nor in what the socket streams.

    What the kernel's echo or the program itself puts on the screen is part of the screen: it may
    stand above the next question, and is nowhere else.
    """
    need(*prompt.needs)
    secret = typist.wait(prompt)
    found = [
        (name, where)
        for name, service in typist.services.items()
        for where, data in service.written(shown=prompt.shown != "nobody").items()
        if secret in data
    ]
    told = {n: briefly(s.receipts(f"types {prompt.name}")) for n, s in typist.services.items()}
    assert found == [], told


def test_a_watcher_does_not_even_remember_what_nobody_was_shown(typist: Typist) -> None:
    """The secrets that were on no screen are not in its memory."""
    hidden = [typist.wait(p) for p in PROMPTS if p.shown == "nobody" and p in typist.secrets]
    remembered = {name: s.remembers(*hidden) for name, s in typist.services.items()}
    assert remembered == {key: [] for key in MODES}


def test_memory_is_really_searched(typist: Typist) -> None:
    """What a watcher surely has in its memory is found there."""
    for service in typist.services.values():
        path = str(service.trace).encode()
        assert service.remembers(path) == [path]


@pytest.mark.parametrize(("attach", "capture"), [("snapshot", "waits"), ("syscalls", "text")])
def test_run_writes_nothing_of_what_it_passes_on(attach: str, capture: str, tmp_path: Path) -> None:
    """A secret typed at the caller's terminal goes to the command, and nowhere else."""
    need("unshare", "setsid")
    secret = uuid.uuid4().hex.encode()
    path = tmp_path / "receipts"
    options = ("--source", "bpf", "--attach", attach, "--capture", capture)
    command = "read -s -p 'Token: ' a; read -s -p 'Again: ' b; echo ${#a}"
    with Terminal(
        tmp_path, *PRIVATE_TRACEFS, RECEIPT_TRACE, "run", "--wiring", "tty", *options,
        "--receipts", str(path), "--", "bash", "-c", command,
    ) as terminal:  # fmt: skip
        for count in (1, 2):
            eventually(
                lambda count=count: (terminal.read(), len(waits(receipts_in(path))) >= count)[1],
                lambda count=count: f"wait {count}: {briefly(receipts_in(path))}",
            )
            terminal.type(secret + b"\r")
        assert terminal.end() == 0
        assert b"%d" % len(secret) in terminal.output
        assert secret not in terminal.output
    assert secret not in path.read_bytes()


def test_run_writes_nothing_of_what_comes_over_a_pipe(tmp_path: Path) -> None:
    """The same where its input is a pipe."""
    need("unshare")
    secret = uuid.uuid4().hex.encode()
    options = ("--source", "bpf", "--attach", "syscalls", "--capture", "text", "--wiring", "pipe")
    with started(
        tmp_path, "bash", "-c", ASKS_TWICE, options=options, before=PRIVATE_TRACEFS,
        stdin=subprocess.PIPE,
    ) as command:  # fmt: skip
        assert command.process.stdin is not None
        command.wait()
        command.process.stdin.write(secret + b"\n")
        command.process.stdin.flush()
        command.wait(2)
        assert secret not in json.dumps(command.receipts).encode()
        assert secret not in command.output
