"""Measure what receipt-trace costs and how soon it reports.

Everything is measured in one run on this host, several times, and told as medians
and as ratios to a plain command: compare ratios between hosts, never the times.
Nothing is asserted. What else runs on the host is measured too: let it be idle.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

_PROGRAM: Final = str(Path(sys.prefix, "bin/receipt-trace"))
_BYTES: Final = 1_000_000_000
_TREES: Final = 20
_WAITERS: Final = 4  # programs that ask at the same time, under each wiring

# It asks again and again, never at the same phase of the sampler, and notes the moment before.
_ASKER: Final = """
import os, random, sys, time
with open(sys.argv[1], "w") as noted:
    for _ in range(int(sys.argv[2])):
        time.sleep(0.2 + random.random() / 5)
        os.write(1, b"Proceed? ")
        print(time.monotonic_ns(), file=noted, flush=True)
        os.read(0, 100)
"""
_IMPORT: Final = """
import time; began = time.perf_counter(); import receipt_trace.cli
print(time.perf_counter() - began)
"""
_QUIET_TREE: Final = "sleep 999 & sleep 999 & sleep 999 & wait"
_ASKING_TREE: Final = "sleep 999 & sleep 999 & cat; true"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. ``baseline`` is in the same unit as ``value``."""

    what: str
    value: float
    unit: str
    runs: int
    baseline: float | None = None
    against: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times the baseline."""
        return self.value / self.baseline if self.baseline else None


# -- (a), (e) starting -------------------------------------------------------------------


def start_up(quick: bool) -> Iterator[Row]:
    """What the wrapper adds to the shortest command there is."""
    runs = 7 if quick else 21
    plain, wrapped = [], []
    for _ in range(runs):
        plain.append(_timed("sh", "-c", "true"))
        wrapped.append(_timed(_PROGRAM, "run", "--", "true"))
    yield _milliseconds("run -- true", wrapped, plain, "sh -c true")
    imports = [float(subprocess.check_output([sys.executable, "-c", _IMPORT])) for _ in range(runs)]
    interpreter = [_timed(sys.executable, "-c", "pass") for _ in range(runs)]
    yield _milliseconds("import receipt_trace.cli", imports, interpreter, "python -c pass")


def _timed(*argv: str) -> float:
    began = time.perf_counter()
    subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def _milliseconds(what: str, values: list[float], baseline: list[float], against: str) -> Row:
    median = statistics.median
    return Row(what, median(values) * 1e3, "ms", len(values), median(baseline) * 1e3, against)


# -- (b) the delay of a report -----------------------------------------------------------


def delays(quick: bool) -> Iterator[Row]:
    """From the moment a program blocks until its receipt has arrived here."""
    rounds = 3 if quick else 8
    for wiring in ("tty", "pipe"):
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(_WAITERS) as pool:
            notes = [Path(folder, str(number)) for number in range(_WAITERS)]
            found = [
                d for some in pool.map(partial(_answered, wiring, rounds), notes) for d in some
            ]
        found.sort()
        runs, p95 = len(found), found[int(len(found) * 0.95)]
        yield Row(
            f"delay, {wiring}: median", statistics.median(found), "s", runs, 1.0, "quiet time"
        )
        yield Row(f"delay, {wiring}: p95", p95, "s", runs, 1.0, "quiet time")


def _answered(wiring: str, rounds: int, noted: Path) -> list[float]:
    """One asking program, answered whenever its receipt comes; returns the delays."""
    reader, writer = os.pipe()
    command = subprocess.Popen(
        [_PROGRAM, "run", "--wiring", wiring, "--receipts", f"fd:{writer}",
         "--", sys.executable, "-c", _ASKER, noted, str(rounds)],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=(writer,), bufsize=0,
    )  # fmt: skip
    os.close(writer)
    assert command.stdin is not None
    arrivals = []
    with command, os.fdopen(reader) as receipts:
        for line in receipts:
            now = time.monotonic_ns()
            if json.loads(line)["event"] == "wait":
                arrivals.append(now)
                command.stdin.write(b"y\n")
    asked = map(int, noted.read_text().split())
    return [(arrival - moment) / 1e9 for arrival, moment in zip(arrivals, asked, strict=True)]


# -- (c) the cost of watching ------------------------------------------------------------


def sampling(quick: bool) -> Iterator[Row]:
    """CPU and memory of the watcher, with trees to watch and with none."""
    seconds = 4 if quick else 12
    core = _busy(1 if quick else 3)
    with _watcher() as (pid, _):
        time.sleep(2)
        idle = _share(pid, seconds)
        idle_memory = _memory(pid, "VmRSS")
    with _trees(), _watcher() as (pid, receipts):
        _await(lambda: receipts.exists() and _waits(receipts) >= _TREES // 2)
        share = _share(pid, seconds)
        memory = _memory(pid, "VmRSS")
    core = statistics.mean((core, _busy(1 if quick else 3)))
    against = "what a busy loop gets = 100 %"
    yield Row(
        f"watch, {_TREES} trees of 4, half ask: CPU", share / core * 100, "%", 1, 100, against
    )
    yield Row("watch, nothing to watch: CPU", idle / core * 100, "%", 1, 100, against)
    yield Row(
        f"watch, {_TREES} trees of 4: memory", memory, "MB", 1, idle_memory, "nothing to watch"
    )


@contextlib.contextmanager
def _watcher() -> Iterator[tuple[int, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        receipts = Path(folder, "receipts.jsonl")
        with subprocess.Popen(
            [_PROGRAM, "watch", "--config", os.devnull, "--socket", "off", "--receipts", receipts],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                _await(receipts.exists)
                yield process.pid, receipts
            finally:
                process.terminate()


@contextlib.contextmanager
def _trees() -> Iterator[None]:
    """Twenty marked tool calls of four processes each; every other one reads a pipe of ours."""
    trees = [
        subprocess.Popen(
            ["bash", "-c", _ASKING_TREE if number % 2 else _QUIET_TREE],
            stdin=subprocess.PIPE,
            env={**os.environ, "RECEIPT_TRACE": f"bench-{number}"},
            start_new_session=True,
        )
        for number in range(_TREES)
    ]
    try:
        yield
    finally:
        for tree in trees:
            os.killpg(tree.pid, signal.SIGKILL)
            tree.communicate()


def _waits(receipts: Path) -> int:
    return receipts.read_text().count('"event":"wait"')


def _await(condition: Callable[[], bool], seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"watch was not ready after {seconds} s; try: receipt-trace doctor")
        time.sleep(0.05)


def _busy(seconds: float) -> float:
    """How much of a core a process gets that wants all of it."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        share = _share(process.pid, seconds)
        process.kill()
    return share


def _share(pid: int, seconds: float) -> float:
    """CPU seconds a second."""
    began, before = time.monotonic(), _cpu(pid)
    time.sleep(seconds)
    return (_cpu(pid) - before) / (time.monotonic() - began)


def _cpu(pid: int) -> float:
    """CPU seconds of all its threads (proc(5): schedstat is per thread, in nanoseconds)."""
    return sum(
        int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")
    ) / 1e9  # fmt: skip


def _memory(pid: int, field: str) -> float:
    """MB, from /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise ProcessLookupError(pid)


# -- (d) passing output on ---------------------------------------------------------------


def throughput(quick: bool) -> Iterator[Row]:
    """Output through the wrapper against output through cat, and what the wrapper keeps of it."""
    size = _BYTES // 5 if quick else _BYTES
    source = f"head -c {size} /dev/zero"
    plain, wrapped = [], []
    for _ in range(3):
        plain.append(size / _timed("sh", "-c", f"{source} | cat") / 1e6)
        wrapped.append(size / _timed(_PROGRAM, "run", "--", *source.split()) / 1e6)
    what = f"run -- head -c {size // 1_000_000}M"
    median = statistics.median
    yield Row(f"{what}: throughput", median(wrapped), "MB/s", 3, median(plain), "head | cat")
    empty = _peak("true")
    yield Row(f"{what}: peak memory", _peak(source), "MB", 1, empty, "run -- true")


def _peak(command: str) -> float:
    """Peak resident memory of the wrapper; the command lives a second longer, to be looked at."""
    with subprocess.Popen(
        [_PROGRAM, "run", "--", "sh", "-c", f"{command}; sleep 1"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    ) as process:
        peak = 0.0
        while process.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, but is not reaped
                peak = max(peak, _memory(process.pid, "VmHWM"))
            time.sleep(0.02)
    return peak


# -- all of it ---------------------------------------------------------------------------

_PARTS: Final = (start_up, delays, sampling, throughput)


def main() -> int:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has its byte code
    _timed(_PROGRAM, "run", "--", "true")
    rows = []
    for part in _PARTS:
        print(f"bench: {part.__name__.replace('_', ' ')} …", file=sys.stderr, flush=True)
        rows += list(part(options.quick))
    if options.json:
        measured: list[dict[str, Any]] = [{**asdict(row), "ratio": row.ratio} for row in rows]
        print(json.dumps({"kernel": os.uname().release, "cpus": os.cpu_count(), "rows": measured}))
    else:
        _table(rows)
    return 0


def _table(rows: list[Row]) -> None:
    width = max(len(row.what) for row in rows)
    print(f"{'':<{width}}  {'value':>13}  {'baseline':>13}  {'ratio':>6}  {'runs':>4}  against")
    for row in rows:
        print(
            f"{row.what:<{width}}  {_number(row.value, row.unit)}  "
            f"{_number(row.baseline, row.unit)}  {_times(row.ratio)}  {row.runs:>4}  {row.against}"
        )
    start = rows[0]
    print(f"\nstarting: {start.value - (start.baseline or 0):.0f} ms more than the plain command")


def _number(value: float | None, unit: str) -> str:
    return f"{'':>13}" if value is None else f"{value:>8.{0 if value >= 100 else 2}f} {unit:<4}"


def _times(ratio: float | None) -> str:
    return f"{'':>6}" if ratio is None else f"{ratio:>6.{1 if ratio >= 10 else 3}f}"


if __name__ == "__main__":
    sys.exit(main())
