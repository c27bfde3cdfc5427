"""What the tests of this ring share: programs they need, bounded waiting, running things.

Every process started here carries a mark in its environment, so that what is left
over can be told from everything else on the host, and only that is ever ended.
"""

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import jsonschema
import pytest

import receipt_trace

T = TypeVar("T")

RECEIPT_TRACE = os.path.join(os.path.dirname(sys.executable), "receipt-trace")
IN_CI = os.environ.get("CI", "").lower() not in {"", "0", "false"}
MARK = "RING_OF_TESTS"
TOKEN = uuid.uuid4().hex
BOUND = 30.0
"""Seconds after which something that has to happen did not: generous, the machine may be busy."""

_SCHEMA = jsonschema.Draft202012Validator(
    receipt_trace.schema(), format_checker=jsonschema.FormatChecker()
)


# -- what a test needs -----------------------------------------------------------------


def missing(reason: str, remedy: str) -> None:
    """Skip with reason and remedy; in CI the machine should have it, so fail."""
    if IN_CI:
        pytest.fail(f"{reason}, although this machine should pass: {remedy}")
    pytest.skip(f"{reason}; {remedy}")


def need(*programs: str) -> None:
    """Every one of these programs has to be there."""
    for program in programs:
        if shutil.which(program) is None:
            missing(f"{program} is not installed", f"install the package that has {program}")


def eventually(
    condition: Callable[[], T], what: str | Callable[[], str], seconds: float = BOUND
) -> T:
    """Wait for a condition, with a bound; returns what it gave.

    ``what`` says what was waited for, and how far it came if it is a function.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {seconds:g} s: {said}")
        time.sleep(0.02)


def never(condition: Callable[[], Any], what: str, seconds: float) -> None:
    """Keep looking for some time; the condition must not come true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert not condition(), what
        time.sleep(0.05)


# -- environment and files -------------------------------------------------------------


def environment(home: Path, **extra: str) -> dict[str, str]:
    """A bare environment: nothing of the caller, and our mark."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TERM": "xterm-256color",
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "npm_config_update_notifier": "false",
        "npm_config_offline": "true",
        MARK: TOKEN,
        **extra,
    }


def write(directory: Path, files: Mapping[str, str]) -> None:
    """Write the files of a case."""
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


# -- receipts --------------------------------------------------------------------------


def parse(data: bytes | str) -> list[dict[str, Any]]:
    """Receipts from JSON Lines, each checked against the published schema.

    An unfinished last line (somebody is writing it now) is left out.
    """
    raw = data.encode() if isinstance(data, str) else data
    receipts = []
    for line in raw.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        assert line.isascii(), line
        assert line[:-1].decode().isprintable(), line
        receipt = json.loads(line)
        _SCHEMA.validate(receipt)
        receipts.append(receipt)
    return receipts


def receipts_in(path: Path) -> list[dict[str, Any]]:
    """Receipts of a file; none if it is not there yet."""
    return parse(path.read_bytes()) if path.exists() else []


def waits(receipts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records that say that somebody waits."""
    return [r for r in receipts if r["event"] == "wait"]


def resolutions(receipts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records that say how a wait ended."""
    return [r for r in receipts if r["event"] == "resolved"]


def how(receipts: Sequence[dict[str, Any]]) -> list[str]:
    """How the waits ended, in order."""
    return [r["resolution"]["how"] for r in resolutions(receipts)]


def briefly(receipts: Sequence[dict[str, Any]]) -> str:
    """Receipts as a failed test should show them."""
    return "; ".join(
        f"{r['event']} {r['program']['name']}[{r['program']['pid']}] {r['input']['kind']} "
        f"{r['evidence']['syscall']}({', '.join(r['evidence']['wait_set'])}) "
        f"grade={r['evidence']['grade']} «{r['prompt']['text'][-80:]}» {r['resolution'] or ''}"
        for r in receipts
    )


# -- processes -------------------------------------------------------------------------


def stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name: state, ppid, pgrp, session …; empty if gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()
    except OSError:
        return []


def state(pid: int) -> str:
    """State of a process, ``""`` when it is gone."""
    return (stat(pid) or [""])[0]


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    return state(pid) in {"", "Z", "X"}


def descendants(pid: int) -> list[int]:
    """Everybody below a process, nearest first."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := stat(int(name))):
            children.setdefault(int(fields[1]), []).append(int(name))
    found = list(children.get(pid, []))
    for child in found:
        found += children.get(child, [])
    return found


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal a process of ours, if it still lives."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def end(process: "subprocess.Popen[Any]") -> None:
    """End what a wrapper of ours runs, then the wrapper, and reap it."""
    deadline = time.monotonic() + BOUND
    while process.poll() is None and time.monotonic() < deadline:
        below = [pid for pid in descendants(process.pid) if not gone(pid)]
        for pid in below:
            kill(pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
        if not below:
            process.kill()
    process.kill()
    process.wait(BOUND)


def leftovers() -> dict[int, str]:
    """Processes with our mark that still run, this one aside."""
    mark = f"{MARK}={TOKEN}".encode()
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            marks = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            if mark in marks and not gone(int(name)):
                line = Path(f"/proc/{name}/cmdline").read_bytes()
                found[int(name)] = line.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


# -- receipt-trace itself --------------------------------------------------------------


class Ran(subprocess.CompletedProcess[bytes]):
    """A finished ``receipt-trace run`` with its receipts."""

    receipts: list[dict[str, Any]]


def run(
    directory: Path,
    *argv: str | bytes,
    options: Sequence[str] = (),
    stdin: int | None = subprocess.DEVNULL,
    input: bytes | None = None,  # noqa: A002  (as in subprocess.run)
    env: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
    **more: Any,
) -> Ran:
    """``receipt-trace run OPTIONS -- ARGV``, to its end; receipts go to a file beside it."""
    path = directory / f"receipts-{uuid.uuid4().hex[:8]}"
    words = [*before, RECEIPT_TRACE, "run", "--receipts", str(path), *options, "--", *argv]
    done = subprocess.run(
        words,
        cwd=directory,
        env={**environment(directory), **(env or {})},
        capture_output=True,
        timeout=2 * BOUND,
        check=False,
        **({"input": input} if input is not None else {"stdin": stdin}),
        **more,
    )
    ran = Ran(done.args, done.returncode, done.stdout, done.stderr)
    ran.receipts = receipts_in(path)
    return ran


@contextlib.contextmanager
def started(
    directory: Path,
    *argv: str | bytes,
    options: Sequence[str] = (),
    before: Sequence[str] = (),
    **more: Any,
) -> Iterator["Started"]:
    """``receipt-trace run`` in the background; leaving ends it and what is below it."""
    path = directory / f"receipts-{uuid.uuid4().hex[:8]}"
    words = [*before, RECEIPT_TRACE, "run", "--receipts", str(path), *options, "--", *argv]
    more.setdefault("stdin", subprocess.DEVNULL)
    more.setdefault("env", environment(directory))
    log = directory / f"output-{uuid.uuid4().hex[:8]}"
    with log.open("wb") as sink:
        more.setdefault("stdout", sink)
        more.setdefault("stderr", sink)
        process = subprocess.Popen(words, cwd=directory, **more)
    command = Started(process, path, log)
    try:
        yield command
    finally:
        end(process)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError as error:
        return str(error.strerror)


class Started:
    """A running ``receipt-trace run``."""

    def __init__(self, process: "subprocess.Popen[bytes]", receipts: Path, log: Path) -> None:
        self.process, self._receipts, self._log = process, receipts, log

    @property
    def receipts(self) -> list[dict[str, Any]]:
        """The receipts so far."""
        return receipts_in(self._receipts)

    @property
    def output(self) -> bytes:
        """Everything it has printed so far, both streams."""
        return self._log.read_bytes()

    @property
    def command(self) -> int:
        """Process number of the command."""
        return eventually(lambda: descendants(self.process.pid), "the command was started")[0]

    def wait(self, count: int = 1) -> dict[str, Any]:
        """The receipt of the wait with that number, when it is there."""
        deadline = time.monotonic() + BOUND
        while len(waits(self.receipts)) < count:
            assert self.process.poll() is None, f"it has ended, {self}"
            assert time.monotonic() < deadline, f"no receipt {count} within {BOUND:g} s, {self}"
            time.sleep(0.02)
        return waits(self.receipts)[count - 1]

    def __str__(self) -> str:
        below = "; ".join(
            f"{pid} {state(pid)} {_text(f'/proc/{pid}/comm')}: {_text(f'/proc/{pid}/syscall')}"
            for pid in [self.process.pid, *descendants(self.process.pid)]
        )
        return (
            f"status {self.process.poll()}, receipts: {briefly(self.receipts)}, "
            f"output {self.output[-300:]!r}, processes: {below}"
        )

    def end(self) -> int:
        """Wait for its own end; returns the exit status."""
        try:
            return self.process.wait(BOUND)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it goes on, {self}") from None


class Terminal:
    """A terminal of the test's own with a program on it, as a person would sit there.

    Setting the controlling terminal is setsid(1)'s work, so that no code of ours runs
    between fork and exec.
    """

    def __init__(
        self,
        directory: Path,
        *argv: str,
        columns: int = 80,
        lines: int = 24,
        env: Mapping[str, str] | None = None,
    ) -> None:
        need("setsid")
        self._master, self.slave = os.openpty()
        os.set_blocking(self._master, False)
        self.resize(columns, lines)
        self.before = termios.tcgetattr(self.slave)
        self.output = b""
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *argv],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            cwd=directory,
            env=environment(directory) if env is None else dict(env),
        )

    @property
    def modes(self) -> list[Any]:
        """The terminal's modes now."""
        return termios.tcgetattr(self.slave)

    @property
    def raw(self) -> bool:
        """Whether keys go through as they are."""
        return not self.modes[3] & termios.ICANON

    def resize(self, columns: int, lines: int) -> None:
        """Another size; the foreground gets SIGWINCH from the kernel."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._master, keys)

    def read(self) -> bytes:
        """Everything that was on the screen so far."""
        while select.select([self._master], [], [], 0)[0]:
            try:
                self.output += os.read(self._master, 65536)
            except OSError:
                break
        return self.output

    def shows(self, text: bytes, seconds: float = BOUND) -> None:
        """Wait until a text was printed."""
        eventually(
            lambda: text in self.read(),
            lambda: f"the screen shows {text!r}: {self.output[-400:]!r}",
            seconds,
        )

    def end(self, seconds: float = BOUND) -> int:
        """Wait for the program's own end, reading the screen meanwhile."""
        eventually(
            lambda: (self.read(), self.process.poll() is not None)[1],
            lambda: f"the program on the terminal ends; it shows {self.output[-400:]!r}",
            seconds,
        )
        self.read()
        return self.process.returncode

    def close(self) -> None:
        """End what runs there and give the terminal back."""
        end(self.process)
        os.close(self._master)
        os.close(self.slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


# -- the service -----------------------------------------------------------------------

PRIVATE_TRACEFS: Final = (
    "unshare", "--mount", "--propagation", "private", "sh", "-c",
    'mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing; exec "$@"',
    "sh",
)  # fmt: skip
"""Before a command: it sees a tracefs, whether or not the host has one mounted."""


class Watcher:
    """A running ``receipt-trace watch``, ready to see."""

    def __init__(
        self, directory: Path, *options: str, ready: bool = True, before: Sequence[str] = ()
    ) -> None:
        self.file = directory / "watched"
        self._log = directory / f"watch-{uuid.uuid4().hex[:8]}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*before, RECEIPT_TRACE, "watch", "--receipts", str(self.file), *options],
                cwd=directory,
                env=environment(directory),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if ready:
            eventually(
                lambda: b'"watching"' in self.log, lambda: f"the watcher is ready: {self.log!r}"
            )

    @property
    def log(self) -> bytes:
        """What it has said so far."""
        return self._log.read_bytes()

    def receipts(self, root: int | None = None) -> list[dict[str, Any]]:
        """Its receipts so far, of one tree or all."""
        return [r for r in receipts_in(self.file) if root is None or r["tree"]["root_pid"] == root]

    def wait(self, root: int, count: int = 1, seconds: float = BOUND) -> dict[str, Any]:
        """The receipt of the wait with that number in a tree, when it is there."""
        eventually(
            lambda: len(waits(self.receipts(root))) >= count or self.process.poll() is not None,
            lambda: f"receipt {count} of {root}: {briefly(self.receipts())}; {self.log!r}",
            seconds,
        )
        found = waits(self.receipts(root))
        assert len(found) >= count, f"the watcher has ended: {self.log!r}"
        return found[count - 1]

    def resolved(self, root: int) -> dict[str, Any]:
        """How the first wait of a tree ended, when it has."""
        return eventually(
            lambda: resolutions(self.receipts(root)),
            lambda: f"the wait of tree {root} is resolved: {briefly(self.receipts(root))}",
        )[0]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it; returns its exit status."""
        kill(self.process.pid, number)
        return self.process.wait(BOUND)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait(BOUND)


# -- many commands at once -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Trial:
    """One command under one wiring, to be observed for a while.

    ``feed`` is written to its input, which then stays open.
    """

    name: str
    command: str
    wiring: str
    files: Mapping[str, str] = field(default_factory=dict)
    setup: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    feed: bytes | None = None


@dataclass(frozen=True)
class Seen:
    """What came of a trial. ``status`` is ``None`` if it still ran when it was ended."""

    receipts: list[dict[str, Any]]
    output: bytes
    status: int | None

    def __str__(self) -> str:
        return f"{briefly(self.receipts)}\nstatus {self.status}, output {self.output[-500:]!r}"


def observe(
    trial: Trial, directory: Path, enough: Callable[["Started"], bool], env: Mapping[str, str]
) -> Seen:
    """Run a trial until enough was seen or it ended, then end it."""
    write(directory, trial.files)
    env = environment(directory, **env, **trial.env)
    if trial.setup:
        subprocess.run(
            ["bash", "-ec", trial.setup],
            cwd=directory,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=BOUND,
            check=True,
        )
    with started(
        directory,
        *("bash", "-c", trial.command),
        options=("--wiring", trial.wiring),
        env=env,
        stdin=subprocess.DEVNULL if trial.feed is None else subprocess.PIPE,
    ) as command:
        if trial.feed is not None:
            assert command.process.stdin is not None
            command.process.stdin.write(trial.feed)
            command.process.stdin.flush()
        deadline = time.monotonic() + BOUND
        while command.process.poll() is None and not enough(command):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        status = command.process.poll()
    return Seen(command.receipts, command.output, status)


class Batch:
    """Trials side by side: most of their time is waiting. Each test then reads its own result."""

    def __init__(self, parallel: int = 16, env: Mapping[str, str] | None = None) -> None:
        self._env = dict(env or {})
        self._pool = ThreadPoolExecutor(parallel)
        self._futures: dict[Trial, Future[Seen]] = {}

    def add(self, trial: Trial, directory: Path, enough: Callable[[], Callable[..., bool]]) -> None:
        """Put a trial in the queue."""
        self._futures[trial] = self._pool.submit(observe, trial, directory, enough(), self._env)

    def __getitem__(self, trial: Trial) -> Seen:
        return self._futures[trial].result()

    def close(self) -> None:
        """Wait for what runs; forget what does not yet."""
        self._pool.shutdown(cancel_futures=True)
