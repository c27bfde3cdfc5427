"""One trial: one case, in one wiring, through one way of observing it.

Everything is measured from outside the product: output with its times from our end of
the wrapper's stdout, the oracle's looks, and the receipts as a user gets them.
"""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from receipt_trace.litmus import oracle
from receipt_trace.litmus.catalogue import Case
from receipt_trace.litmus.stage import Place

LOOK_S: Final = 0.05
"""Time between two looks of the oracle; the error of a latency is below it."""

GIVE_UP_S: Final = 15.0
"""A wait that the oracle sees for so long without a receipt is a missed one; a receipt that comes
late, because the machine is busy, is one all the same, and its latency tells."""

AFTER_S: Final = 1.3
"""How long a trial is watched after its receipt: a second one for the same wait would come."""

REACT_S: Final = 5.0
"""Within this a command goes on after an answer."""

CONTROL_S: Final = 5.0
"""How long a control is watched once it has begun."""

CLOSED_S: Final = 12.0
"""How long a command with a closed input may take, after which it is said to hang."""

LAST_S: Final = 1.0
"""How long after its end a command may be told of that asked nobody."""

_EOF: Final = "\x04"
_LAPSE_S: Final = 0.5
_BEGIN_S: Final = 0.005
_BURST_S: Final = 0.02
_LINES: Final = 400
_KEPT: Final = 1 << 18
_ESCAPES: Final = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()*+][0-9A-Za-z]|\x1b[ -~]|[\x00-\x08\x0b-\x1f\x7f]"
)
_FULL_SCREEN: Final = re.compile(rb"\x1b\[\?(?:1049|1047|47)([hl])")
_PLACED: Final = re.compile(rb"\x1b\[\d+(?:;\d+)?[Hd]|\x1b\[[23]?J")


@dataclass
class Record:
    """What came of a trial, as it is written to the results file.

    Times are seconds since the start of the trial, ``latency`` is seconds from the moment
    at which the thread was blocked to the receipt.
    """

    case: str
    asks: bool
    wiring: str
    through: str
    source: str
    state: str = "ran"  # or: absent (packages are missing), failed (set-up), with the reason
    reason: str = ""
    begun: float | None = None  # the command itself was there
    lines: list[tuple[float, str, str]] = field(default_factory=list)
    """Time of each chunk of output, the last line with text, and the unfinished one."""
    tail: str = ""
    answered: float | None = None
    ended: float | None = None
    status: int | None = None
    lasted: float = 0.0
    load: float = 0.0  # load average of the machine, at the end
    stdin: str = ""
    terminal: str = ""
    waits: bool = False  # the oracle: somebody is blocked on the input
    readers: list[dict[str, Any]] = field(default_factory=list)
    kind: str = ""  # by the terminal's modes, as the oracle sees them
    since: float | None = None
    woke: bool | None = None  # the answer was taken
    went_on: bool | None = None  # and the command went on
    done: bool | None = None  # the asked-for action has happened
    receipts: list[dict[str, Any]] = field(default_factory=list)
    latency: float | None = None
    resolved: str = ""
    probe: str = ""  # what a harness gives
    eof: int = 0  # receipts that say: read end-of-file and went on


class Trial:
    """Runs one case. ``command`` starts it; ``receipts`` says what was reported so far."""

    def __init__(
        self,
        case: Case,
        place: Place,
        record: Record,
        command: Sequence[str],
        receipts: Callable[[], list[dict[str, Any]]],
    ) -> None:
        self._case, self._place, self._record = case, place, record
        self._receipts = receipts
        self.start = time.monotonic()
        self._process = subprocess.Popen(
            [*place.prefix, *command],
            cwd=place.work,
            env=dict(place.env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._given: oracle.Wiring | None = None
        self._known: dict[int, str] = {}
        self._output = b""
        self._total = 0
        self._next_look = 0.0
        self._look = oracle.Look()
        self._absent: dict[tuple[int, int], float] = {}  # last long absence of each thread
        self._seen: dict[tuple[int, int], float] = {}
        self._looked = 0.0
        self._captured = False
        self._waits = False
        self._since: float | None = None

    @property
    def pids(self) -> list[int]:
        """The wrapper, and every process that was seen below it."""
        return [self._process.pid, *self._known]

    # -- the course of it ------------------------------------------------------------------

    def run(self) -> None:
        """Observe it to its end, fill the record, and end what is left."""
        try:
            if self._case.asks and self._record.wiring not in ("null", "harness"):
                self._run_question()
            elif self._case.asks:
                self._until(self._is_settled, max(CLOSED_S, self._case.patience / 2))
                if self._waits:  # see it through
                    self._until(self._is_settled, GIVE_UP_S)
            else:
                self._run_control()
            self._conclude()
        finally:
            self._clean_up()

    def _run_question(self) -> None:
        self._until(self._is_settled, self._case.patience)
        if self._waits:  # it began late: see it through
            self._until(self._is_settled, GIVE_UP_S)
        self._capture()
        if self._record.ended is not None or not self._record.waits:
            return
        before = [(r, oracle.switches(r)) for r in self._look.readers]
        total = self._total
        self._record.answered = round(self._now(), 3)
        self._write(self._case.answer)
        echoed = 0  # of a terminal that shows what is typed, that is no answer of the program
        if self._record.kind in ("line", "key", "screen"):
            echoed = len(self._case.answer) + 2 * self._case.answer.count("\n") + 8

        def reacted() -> bool:
            self._record.woke = any(oracle.switches(r) != count for r, count in before)
            self._record.went_on = self._record.woke and (
                self._record.ended is not None or self._total > total + echoed or self._is_done()
            )
            return bool(self._record.went_on)

        self._until(reacted, REACT_S)
        self._until(lambda: self._record.ended is not None, 0.3)

    def _run_control(self) -> None:
        if self._case.feed:
            self._write(self._case.feed)
        self._until(lambda: self._record.begun is not None, 10.0)
        self._until(lambda: False, CONTROL_S)

    def _is_settled(self) -> bool:
        """A receipt came and was looked at long enough, or the wait has lasted without one."""
        waits = [r for r in self._receipts() if r["event"] == "wait"]
        now = self._now()
        if waits:
            came: float = waits[0]["monotonic_ns"] / 1e9 - self.start
            return now - came > AFTER_S
        return self._since is not None and now - self._since > GIVE_UP_S

    # -- one step --------------------------------------------------------------------------

    def _until(self, enough: Callable[[], bool], seconds: float) -> None:
        """Read, look, ask again; to the end of the command, of the time, or until it is enough."""
        deadline = self._now() + seconds
        while self._record.ended is None and self._now() < deadline:
            self._read(LOOK_S / 2 if self._given is not None else _BEGIN_S)
            if self._now() >= self._next_look:
                self._look_again()
                if enough():
                    return
        enough()

    def _now(self) -> float:
        return time.monotonic() - self.start

    def _read(self, seconds: float) -> None:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        ready, _, _ = select.select([fd], [], [], seconds)
        if ready:
            data = os.read(fd, 1 << 16)
            if data:
                self._take(data)
                return
        code = self._process.poll()
        if code is not None:
            while select.select([fd], [], [], 0)[0] and (data := os.read(fd, 1 << 16)):
                self._take(data)
            self._record.ended = self._now()
            self._record.status = code
        elif ready:  # it has closed its output and lives on
            time.sleep(seconds)

    def _take(self, data: bytes) -> None:
        self._output = (self._output + data)[-_KEPT:]
        self._total += len(data)
        now = round(self._now(), 3)
        text = visible(self._output[-4000:])
        unfinished = text.rpartition("\n")[2]
        last = text.rstrip().rpartition("\n")[2]
        lines = self._record.lines
        if lines and now - lines[-1][0] < _BURST_S:
            lines.pop()
        lines.append((now, last[-200:], unfinished[-200:]))
        del lines[:-_LINES]

    def _look_again(self) -> None:
        record = self._record
        if self._given is None:
            before = self._now()
            self._given = oracle.first(self._process.pid)
            if self._given is None:  # who is not there yet is not blocked
                self._looked = before
                self._next_look = self._now() + _BEGIN_S
                return
            record.begun = round(self._now(), 3)
            record.stdin, record.terminal = self._given.stdin, self._given.terminal
        if record.wiring == "harness":  # who knows what is between: what the innermost has counts
            pids = oracle.below(self._process.pid)
            self._given = (oracle.wiring(pids[-1]) if pids else None) or self._given
            record.stdin, record.terminal = self._given.stdin, self._given.terminal
        look = oracle.look(self._process.pid, self._given)
        now = self._now()
        for pid in look.pids:
            self._known.setdefault(pid, _started(pid))
        present = {(r.pid, r.tid) for r in look.readers}
        for key in present - set(self._seen):
            self._absent[key], self._seen[key] = self._looked, now
        for key in list(self._seen):
            if key in present:
                self._seen[key] = now
            elif now - self._seen[key] > _LAPSE_S:
                del self._seen[key]
        self._waits = bool(self._seen)  # one on its way back into the same call still is one
        if look.readers or not self._waits:
            self._look = look
        if not self._seen:
            self._since = None
        else:
            last = record.lines[-1][0] if record.lines else 0.0
            self._since = max(last, min(self._absent[key] for key in self._seen))
        self._looked, self._next_look = now, now + LOOK_S

    def _write(self, text: str) -> None:
        """Type a text. An end-of-file at its end (^D) is the end of the input where that is a pipe."""
        stream = self._process.stdin
        assert stream is not None
        ends = text.endswith(_EOF) and self._record.wiring == "pipe"
        with contextlib.suppress(BrokenPipeError):
            stream.write(text.removesuffix(_EOF).encode() if ends else text.encode())
            stream.flush()
            if ends:
                stream.close()

    def _is_done(self) -> bool:
        return bool(self._case.after) and self._place.shell(self._case.after, 20)[0] == 0

    def _capture(self) -> None:
        """Note what the oracle sees now: after it, an answer may change everything."""
        record = self._record
        self._captured = True
        record.waits = self._waits and record.ended is None
        record.since = self._since
        record.readers = [asdict(reader) for reader in self._look.readers] if record.waits else []
        record.tail = visible(self._output[-6000:])[-2000:]
        record.kind = self._kind() if record.waits else ""
        for receipt in self._receipts():
            begun = self._absent.get((receipt["program"]["pid"], receipt["program"]["tid"]))
            if receipt["event"] != "wait" or begun is None:
                continue
            at = receipt["monotonic_ns"] / 1e9 - self.start
            printed = max((line[0] for line in record.lines if line[0] <= at), default=0.0)
            record.latency = round(at - max(begun, printed), 3)
            return

    # -- the end ---------------------------------------------------------------------------

    def _conclude(self) -> None:
        record = self._record
        if not self._captured:
            self._capture()
        record.lasted = round(self._now(), 3)
        record.load = os.getloadavg()[0]
        if self._case.after and self._case.asks:
            record.done = self._is_done()
        with contextlib.suppress(OSError):
            record.probe = (self._place.work / "probe").read_text(errors="replace")
        receipts = self._receipts()
        deadline = time.monotonic() + LAST_S
        while self._may_be_told() and not receipts and time.monotonic() < deadline:
            time.sleep(LOOK_S)
            receipts = self._receipts()
        record.receipts = [_brief(r) for r in receipts if r["event"] == "wait"]
        for receipt in record.receipts:
            receipt["at"] = round(receipt.pop("monotonic_ns") / 1e9 - self.start, 3)
        record.eof = sum(r["event"] == "eof" for r in receipts)
        record.resolved = ", ".join(
            r["resolution"]["how"] for r in receipts if r["event"] == "resolved"
        )

    def _may_be_told(self) -> bool:
        """Whether a receipt may come at its end: of a question that met a closed input, or of a
        control that is taken for one.
        """
        record = self._record
        closed = record.wiring == "null" and not record.waits if self._case.asks else True
        return record.through == "watch" and record.ended is not None and closed

    def _kind(self) -> str:
        """The kind of input by the terminal of the innermost reader, if it has one."""
        readers = self._look.readers[::-1]  # the innermost last, so first now
        for reader in sorted(readers, key=lambda r: r.where != "inner"):
            if reader.where == "wrong end":
                return "dead"
            path = reader.link if reader.link != "/dev/tty" else self._record.terminal
            if not path.startswith("/dev/pts/"):
                return "stream"
            modes = oracle.modes(path)
            if modes is None:
                return ""
            canonical, echo = modes
            if canonical:
                return "line" if echo else "secret"
            switched = _FULL_SCREEN.findall(self._output)
            full = switched[-1] == b"h" if switched else len(_PLACED.findall(self._output)) > 8
            return "screen" if full else "key"
        return ""

    def _clean_up(self) -> None:
        """End every process that was seen below the wrapper, and the wrapper."""
        for _ in range(20):
            pids = [p for p in oracle.below(self._process.pid) if not _is_gone(p)]
            known = [p for p, start in self._known.items() if start and _started(p) == start]
            left = [p for p in {*pids, *known} if not _is_gone(p)]
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left and self._process.poll() is not None:
                break
            if not left:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.1)
                self._process.kill()
            time.sleep(0.02)
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def visible(data: bytes) -> str:
    """Output without control sequences, as plain text."""
    text = _ESCAPES.sub(b"", data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))
    return text.decode("utf-8", "replace")


def _brief(receipt: dict[str, Any]) -> dict[str, Any]:
    """What is judged of a receipt."""
    return {
        "monotonic_ns": receipt["monotonic_ns"],
        "program": receipt["program"]["name"],
        "pid": receipt["program"]["pid"],
        "tid": receipt["program"]["tid"],
        "relays": receipt["program"]["relays"],
        "kind": receipt["input"]["kind"],
        "input": receipt["input"]["wiring"],
        "prompt": receipt["prompt"]["text"],
        "prompt_source": receipt["prompt"]["source"],
        "grade": receipt["evidence"]["grade"],
        "syscall": receipt["evidence"]["syscall"],
        "wait_set": receipt["evidence"]["wait_set"],
        "source": receipt["evidence"]["source"],
    }


def read_receipts(path: Path) -> list[dict[str, Any]]:
    """Receipts of a file so far; an unfinished last line is left out."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def through_run(case: Case, wiring: str, receipts: Path, observing: Sequence[str]) -> list[str]:
    """The command line that runs a case through ``receipt-trace run``."""
    return [
        sys.executable, "-m", "receipt_trace", "run", "--wiring", wiring, *observing,
        "--receipts", str(receipts), "--", "bash", "-c", case.command,
    ]  # fmt: skip


def below_stand_in(case: Case, wiring: str) -> list[str]:
    """The command line that runs a case below a stand-in agent: as a tool call, or, where it is
    spoken to over a pipe, as an agent runs its servers.
    """
    role = "server" if case.feed and wiring == "pipe" else "call"
    return [sys.executable, "-m", "receipt_trace.litmus.standin", role, wiring, case.command]


def _started(pid: int) -> str:
    stat = oracle.fields(pid)
    return stat[19] if stat else ""


def _is_gone(pid: int) -> bool:
    stat = oracle.fields(pid)
    return not stat or stat[0] in "ZX"
