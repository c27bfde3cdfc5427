"""Three sources watch the same commands at the same time and have to agree.

One watcher sees through ``/proc``, one through BPF snapshots, one through BPF at the system calls
themselves; every command is started once, marked, and all three tell of it.
"""

import contextlib
import os
import selectors
import shutil
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from receipt_trace.wiring import Wiring, spawn

from . import test_controls, test_waits
from .support import (
    BOUND,
    PRIVATE_TRACEFS,
    Trial,
    Watcher,
    briefly,
    descendants,
    environment,
    eventually,
    kill,
    need,
    waits,
    write,
)

pytestmark = pytest.mark.kernel

SOURCES: Final = {
    "procfs": ("--source", "procfs"),
    "snapshot": ("--source", "bpf"),
    "syscalls": ("--source", "bpf", "--attach", "syscalls", "--capture", "text"),
}
_ALONE: Final = {  # told by all three, but not always in a crowd
    "standard input moved elsewhere at once",  # in the moment before anybody looked
}
PARALLEL: Final = 16
LONGER_S: Final = 1.5  # a command is watched after the last of the three has told of it
CONTROL_S: Final = 4.0  # and a control as long as this, from when it is there


def _every_third(found: Iterator[Any]) -> list[Any]:
    """A third of the commands of another module, under both wirings; that one runs them all.

    But those that are fed over a pipe: whether they were before anybody looked is hidden from /proc.
    """
    trials = [(p, p.values[-1]) for p in found if p.values[0].name not in _ALONE]
    return [p for p, t in trials if t.wiring == "tty" or (t.wiring == "pipe" and t.feed is None)][
        ::3
    ]


WAITS: Final = _every_third(test_waits._trials())
CONTROLS: Final = _every_third(test_controls._trials())


class Pen:
    """Where the commands run: terminals and pipes that somebody reads and nobody writes."""

    def __init__(self, watchers: dict[str, Watcher]) -> None:
        self._watchers = watchers
        self._pool = ThreadPoolExecutor(PARALLEL)
        self._runs: dict[str, Future[dict[str, list[dict[str, Any]]]]] = {}

    def add(self, trial: Trial, directory: Path, *, asks: bool, env: dict[str, str]) -> None:
        """Put a command in the queue."""
        self._runs[_label(trial)] = self._pool.submit(self._run, trial, directory, asks, env)

    def __getitem__(self, trial: Trial) -> dict[str, list[dict[str, Any]]]:
        """What each source told of a command."""
        return self._runs[_label(trial)].result()

    def close(self) -> None:
        """Wait for what runs; forget what does not yet."""
        self._pool.shutdown(cancel_futures=True)

    def told(self, label: str) -> dict[str, list[dict[str, Any]]]:
        """The receipts of every source that carry a label."""
        return {
            name: [r for r in watcher.receipts() if r["tree"]["label"] == label]
            for name, watcher in self._watchers.items()
        }

    def _run(
        self, trial: Trial, directory: Path, asks: bool, env: dict[str, str]
    ) -> dict[str, list[dict[str, Any]]]:
        write(directory, trial.files)
        label = _label(trial)
        env = environment(directory, **env, **trial.env)
        if trial.setup:
            subprocess.run(
                ["bash", "-ec", trial.setup], cwd=directory, env=env, stdin=subprocess.DEVNULL,
                capture_output=True, timeout=BOUND, check=True,
            )  # fmt: skip
        # A file takes the output of a pipe's reader: what it says is then seen by all three.
        text = trial.command if trial.wiring == "tty" else f"exec >said 2>&1; {trial.command}"
        child = spawn(
            ["bash", "-c", text], Wiring(trial.wiring), cwd=str(directory),
            env=env | {"RECEIPT_TRACE": label},
        )  # fmt: skip
        stop = threading.Event()
        drain = threading.Thread(target=_drain, args=(dict(child.outputs), stop))
        drain.start()
        try:
            if trial.feed is not None and child.input is not None:
                os.write(child.input, trial.feed)
            if asks:
                with contextlib.suppress(AssertionError):  # the test says who did not tell
                    eventually(lambda: all(map(waits, self.told(label).values())), label)
                child_gone(child.process, LONGER_S)
            else:
                child_gone(child.process, CONTROL_S)
            return self.told(label)
        finally:
            for pid in (*descendants(child.pid), child.pid):
                kill(pid)
            child.process.wait(BOUND)
            stop.set()
            drain.join()
            child.close()


def child_gone(process: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Until it has ended, for that long."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def _drain(outputs: dict[int, int], stop: threading.Event) -> None:
    with selectors.DefaultSelector() as selector:
        for fd in outputs:
            selector.register(fd, selectors.EVENT_READ)
        while not stop.is_set():
            for key, _ in selector.select(0.1):
                try:
                    data = os.read(key.fd, 65536)
                except OSError:
                    data = b""
                if not data:
                    selector.unregister(key.fd)


def _label(trial: Trial) -> str:
    return f"{trial.name} - {trial.wiring}"


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The silent servers that some controls talk to."""
    yield from test_controls.silent.__wrapped__(tmp_path_factory)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def pen(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    silent: dict[str, str],
) -> Iterator[Pen]:
    """Three watchers, and all commands that were selected before their eyes."""
    need("unshare")
    with contextlib.ExitStack() as stack:
        watchers = {
            name: stack.enter_context(
                Watcher(
                    tmp_path_factory.mktemp(name), *options, "--socket", "off",
                    before=PRIVATE_TRACEFS,
                )
            )
            for name, options in SOURCES.items()
        }  # fmt: skip
        running = Pen(watchers)
        stack.callback(running.close)
        for item in request.session.items:
            if not isinstance(item, pytest.Function) or item.module is not request.module:
                continue
            case, trial = item.callspec.params["case"], item.callspec.params["trial"]
            if all(map(shutil.which, case.needs)):
                running.add(
                    trial, tmp_path_factory.mktemp("s"), asks="want" in item.callspec.params,
                    env=silent,
                )  # fmt: skip
        yield running


def _essence(receipt: dict[str, Any]) -> dict[str, Any]:
    """What sources have to agree on. Numbers of a wait set's members may differ: dup(2)."""
    return {
        "program": receipt["program"] | {"argv": None},
        "kind": receipt["input"]["kind"],
        "wiring": receipt["input"]["wiring"],
        "target": receipt["input"]["target"],
        "person": receipt["input"]["person"],
        "tree": receipt["tree"]["root_pid"],
    }


@pytest.mark.parametrize(("case", "want", "trial"), WAITS)
def test_all_sources_give_the_same_receipt(
    case: test_waits.Ask, want: test_waits.Want, trial: Trial, pen: Pen
) -> None:
    """One of each; the same program asks for the same kind of input at the same place."""
    need(*case.needs)
    told = pen[trial]
    found = {name: waits(receipts) for name, receipts in told.items()}
    summary = {name: briefly(receipts) for name, receipts in told.items()}
    assert {name: len(receipts) for name, receipts in found.items()} == dict.fromkeys(SOURCES, 1), (
        summary
    )
    essences = {name: _essence(receipts[0]) for name, receipts in found.items()}
    assert essences["snapshot"] == essences["syscalls"], summary
    seen, procfs = essences["snapshot"], essences["procfs"]
    if want.kind in ("line", "secret", "stream"):  # a screen's text is hidden from /proc
        assert seen == procfs, summary
    assert seen["kind"] == want.kind, summary
    grades = {name: receipts[0]["evidence"]["grade"] for name, receipts in found.items()}
    assert grades == {"procfs": "syscall", "snapshot": "kernel", "syscalls": "kernel"}
    for name in ("snapshot", "syscalls"):
        assert want.question in found[name][0]["prompt"]["text"], summary


@pytest.mark.parametrize(("case", "trial"), CONTROLS)
def test_no_source_reports_what_does_not_ask(
    case: test_controls.Control, trial: Trial, pen: Pen
) -> None:
    """Not one of the three."""
    need(*case.needs)
    told = pen[trial]
    assert told == {name: [] for name in SOURCES}, {n: briefly(r) for n, r in told.items()}
