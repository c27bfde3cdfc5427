"""The runner: which trials there are, what they need, and all of them side by side."""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from receipt_trace.errors import UnobservableError
from receipt_trace.litmus import stage
from receipt_trace.litmus.catalogue import WIRINGS, Case, Catalogue
from receipt_trace.litmus.harness import PROBE, command_line
from receipt_trace.litmus.services import Services
from receipt_trace.litmus.stage import NotSetUpError, Stage
from receipt_trace.litmus.trial import (
    Record,
    Trial,
    below_stand_in,
    read_receipts,
    through_run,
)

THROUGH: Final = ("run", "watch")
PARALLEL: Final = 8
_UP_S: Final = 30
# The stand-in is known as an agent from its start, as agents are, so its calls are tracked from theirs.
_AGENTS: Final = """\
[agent.litmus]
harness.module = ["receipt_trace.litmus.standin"]
tool = { env = { AI_AGENT = "litmus" }, shell = true, session = true }
"""


@dataclass(frozen=True)
class Plan:
    """What is to be run. ``harness``: through this command line instead of through the product;
    ``attach`` and ``capture`` are those of ``--source bpf``.
    """

    cases: tuple[Case, ...]
    through: tuple[str, ...] = THROUGH
    wirings: tuple[str, ...] = WIRINGS
    source: str = "auto"
    attach: str = "snapshot"
    capture: str = "waits"
    harness: str = ""
    parallel: int = PARALLEL
    install: bool = False

    @property
    def observing(self) -> tuple[str, ...]:
        """The same, as options of ``run`` and ``watch``."""
        return ("--source", self.source, "--attach", self.attach, "--capture", self.capture)

    def trials(self) -> Iterator[tuple[Case, str, str]]:
        """(case, wiring, way): a waiting command also with its input closed, a control where it says."""
        if self.harness:
            for case in (PROBE, *self.cases):
                if case.asks:
                    yield case, "harness", "harness"
            return
        for case in self.cases:
            for through in self.through:
                # What a closed input does to a command is the same, whoever looks on: one does.
                closed = case.asks and through == self.through[-1]
                own = (*case.wirings, "null") if closed else case.wirings
                for wiring in WIRINGS:
                    if wiring in own and wiring in self.wirings:
                        yield case, wiring, through


class Runner:
    """Runs a plan; each record is handed over as soon as it is there."""

    def __init__(self, catalogue: Catalogue, plan: Plan) -> None:
        self._catalogue, self._plan = catalogue, plan
        self._token = uuid.uuid4().hex
        self._locks: dict[str, threading.Lock] = {}
        self._absent: dict[str, tuple[str, ...]] = {}

    def run(self, take: Callable[[Record], None], tell: Callable[[str], None]) -> None:
        """Run all trials. ``tell`` gets what a person should know meanwhile."""
        plan = self._plan
        if plan.install:
            stage.install(plan.cases, tell)
        self._absent = stage.absent(plan.cases)
        root = Path(tempfile.mkdtemp(prefix="receipt-trace-litmus-")).resolve()
        root.chmod(0o755)
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, root, ignore_errors=True)
            stack.callback(stage.sweep, self._token)
            services = stack.enter_context(Services(root))
            scene = Stage(root, self._token, services)
            watcher = None
            if "watch" in plan.through and not plan.harness:
                watcher = stack.enter_context(Watcher(root, plan.observing))
            trials = list(plan.trials())
            pool = stack.enter_context(ThreadPoolExecutor(plan.parallel))
            running = [pool.submit(self._trial, scene, watcher, *trial) for trial in trials]
            try:
                for done in as_completed(running):
                    take(done.result())
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _trial(
        self, scene: Stage, watcher: "Watcher | None", case: Case, wiring: str, through: str
    ) -> Record:
        record = Record(case.id, case.asks, wiring, through, self._plan.source)
        lacking = self._absent.get(case.family, ())
        absent = [package for package in case.packages if package in lacking]
        if absent:
            record.state, record.reason = "absent", f"not installed: {' '.join(absent)}"
            return record
        with self._locks.setdefault(case.lock, threading.Lock()) if case.lock else _NO_LOCK:
            try:
                place = scene.place(case, self._catalogue.family(case.family))
            except NotSetUpError as error:
                record.state, record.reason = "failed", str(error)
                return record
            receipts: Callable[[], list[dict[str, Any]]] = list
            path = place.work.parent / "receipts"
            if through == "run":
                command = through_run(case, wiring, path, self._plan.observing)
                receipts = lambda: read_receipts(path)  # noqa: E731
            elif through == "watch":
                assert watcher is not None
                command = below_stand_in(case, wiring)
                trial: Trial
                receipts = lambda: watcher.receipts(trial.start, trial.pids)  # noqa: E731
            else:
                command = command_line(self._plan.harness, case, place.work)
            trial = Trial(case, place, record, command, receipts)
            trial.run()
            shutil.rmtree(place.work.parent, ignore_errors=True)
        return record


_NO_LOCK: Final = contextlib.nullcontext()


class Watcher:
    """``receipt-trace watch`` beside the trials, and its receipts by tree and by agent."""

    def __init__(self, folder: Path, observing: Sequence[str]) -> None:
        self._path = folder / "watch.jsonl"
        self._log = folder / "watch.log"
        config = folder / "watch.toml"
        config.write_text(_AGENTS)
        self._read = 0
        self._about: dict[int, list[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "receipt_trace", "watch", *observing,
                    "--config", str(config), "--receipts", str(self._path), "--socket", "off",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Self:
        deadline = time.monotonic() + _UP_S
        while "watching" not in self._log.read_text(errors="replace"):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise UnobservableError(
                    f"`receipt-trace watch` did not come up: {self._log.read_text()[-500:]}\n"
                    "try: receipt-trace doctor"
                )
            time.sleep(0.05)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def receipts(self, since: float, pids: Collection[int]) -> list[dict[str, Any]]:
        """The receipts about trees whose root or agent is one of these processes, since a time."""
        with self._lock:
            with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
                file.seek(self._read)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._read += len(line)
                    receipt = json.loads(line)
                    agent = receipt["agent"]["pid"] if receipt["agent"] else None
                    for pid in {receipt["tree"]["root_pid"], agent}:
                        self._about.setdefault(pid, []).append(receipt)
            found = {r["id"]: r for pid in pids for r in self._about.get(pid, ())}
            recent = (r for r in found.values() if r["monotonic_ns"] > since * 1e9)
            return sorted(recent, key=lambda r: int(r["monotonic_ns"]))


def write_record(record: Record) -> str:
    """A record as one line of the results file."""
    return json.dumps(asdict(record), ensure_ascii=True, sort_keys=True)
