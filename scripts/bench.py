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
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

_PROGRAM: Final = str(Path(sys.prefix, "bin/receipt-trace"))
_BYTES: Final = 1_000_000_000
_TREES: Final = 20
_IDLE_TREES: Final = 100
_WAITERS: Final = 4  # programs that ask at the same time, under each wiring
_CALLS: Final = 10_000
_STORM_S: Final = 10

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
_PROBE: Final = Path(__file__).with_name("bench_probe.c")
_SCRIPT: Final = Path(__file__).with_name("bench_script.py")
# tracefs may not be mounted, and is not to be because of us: it is seen here alone.
_PRIVATE_TRACEFS: Final = (
    "unshare", "--mount", "--propagation", "private", "sh", "-c",
    'mountpoint -q /sys/kernel/tracing || mount -t tracefs tracefs /sys/kernel/tracing; exec "$@"',
    "sh",
)  # fmt: skip
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
    rounds = 3 if quick else 25
    for source, wiring in ((s, w) for s in _sources() for w in ("tty", "pipe")):
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(_WAITERS) as pool:
            notes = [Path(folder, str(number)) for number in range(_WAITERS)]
            asked = pool.map(partial(_answered, source, wiring, rounds), notes)
            found = sorted(d for some in asked for d in some)
        for name, at in (("median", 0.5), ("p95", 0.95), ("p99", 0.99)):
            value = found[min(int(len(found) * at), len(found) - 1)]
            what = f"delay, {source}, {wiring}: {name}"
            yield Row(what, value, "s", len(found), 1.0, "quiet time")


def _sources() -> tuple[str, ...]:
    """What can be measured here."""
    tried = subprocess.run(
        [_PROGRAM, "run", "--source", "bpf", "--", "true"], capture_output=True, check=False
    )
    if tried.returncode:
        print(f"bench: {tried.stderr.decode(errors='replace').strip()}", file=sys.stderr)
        return ("procfs",)
    return ("procfs", "bpf")


def _answered(source: str, wiring: str, rounds: int, noted: Path) -> list[float]:
    """One asking program, answered whenever its receipt comes; returns the delays."""
    reader, writer = os.pipe()
    command = subprocess.Popen(
        [_PROGRAM, "run", "--source", source, "--wiring", wiring, "--receipts", f"fd:{writer}",
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
    found = []
    for source in _sources():
        with _watcher("--source", source) as (pid, _):
            time.sleep(2)
            found.append((f"watch, {source}, nothing to watch: CPU", _share(pid, seconds), pid))
            empty = _memory(pid, "VmRSS")
        with _trees(), _watcher("--source", source) as (pid, receipts):
            _await(partial(_has_waits, receipts, _TREES // 2))
            what = f"watch, {source}, {_TREES} trees of 4, half ask: CPU"
            found.append((what, _share(pid, seconds), pid))
        with _trees(_IDLE_TREES, asking=False), _watcher("--source", source) as (pid, _):
            time.sleep(3)
            what = f"watch, {source}, {_IDLE_TREES} idle trees of 4: CPU"
            found.append((what, _share(pid, seconds), pid))
            memory = _memory(pid, "VmRSS")
        what = f"watch, {source}, {_IDLE_TREES} idle trees of 4: memory"
        yield Row(what, memory, "MB", 1, empty, "nothing to watch")
    core = statistics.mean((core, _busy(1 if quick else 3)))
    for what, share, _ in found:
        yield Row(what, share / core * 100, "%", 1, 100, "what a busy loop gets = 100 %")


def growth(quick: bool) -> Iterator[Row]:
    """Memory and descriptors of the watcher after many tool calls."""
    calls = _CALLS // 10 if quick else _CALLS
    for source in _sources():
        with _watcher("--source", source) as (pid, _):
            _mark_calls(200)
            before, files = _memory(pid, "VmRSS"), len(os.listdir(f"/proc/{pid}/fd"))
            _mark_calls(calls)
            time.sleep(2)
            after, now = _memory(pid, "VmRSS"), len(os.listdir(f"/proc/{pid}/fd"))
        yield Row(
            f"watch, {source}, after {calls} calls: memory", after, "MB", 1, before, "after 200"
        )
        yield Row(
            f"watch, {source}, after {calls} calls: descriptors", now, "", 1, files, "after 200"
        )


def _mark_calls(count: int) -> None:
    """So many marked tool calls, one after the other."""
    text = f"for ((n = 0; n < {count}; n++)); do RECEIPT_TRACE=call-$n /bin/true; done"
    subprocess.run(["bash", "-c", text], check=True)


def storm(quick: bool) -> Iterator[Row]:
    """A tracked tree forks as fast as it can, and then asks: how soon that is told, what was
    lost, and how many processes it is said to have when one is left.
    """
    seconds = 3 if quick else _STORM_S
    for source in _sources():
        address = f"127.0.0.1:{_free_port()}"
        with (
            _probe_program() as probe,
            _watcher("--source", source, "--metrics", address) as (_, receipts),
            subprocess.Popen(
                [probe, "storm", str(seconds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env={**os.environ, "RECEIPT_TRACE": "storm"},
            ) as tree,
        ):  # fmt: skip
            assert tree.stdout is not None
            forks, end = map(int, tree.stdout.readline().split())
            try:
                _await(partial(_has_waits, receipts, 1), 60)
                delay = (time.monotonic_ns() - end) / 1e9
                told = _metrics(address)
            finally:
                tree.kill()
        rate = forks / seconds
        yield Row(f"storm, {source}: processes a second", rate, "/s", 1)
        yield Row(f"storm, {source}: delay of a question after it", delay, "s", 1, 1, "quiet time")
        yield Row(f"storm, {source}: events lost, and counted", told["events_lost_total"], "", 1)
        left = told["processes"]
        yield Row(f"storm, {source}: processes it is said to have", left, "", 1, 1, "what is left")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _metrics(address: str) -> dict[str, float]:
    """The sum of each metric over its labels, without the prefix of our names."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found: dict[str, float] = {}
    for line in lines:
        name, _, value = line.partition(" # ")[0].rpartition(" ")
        name = name.partition("{")[0].removeprefix("receipt_trace_")
        if name and not line.startswith("#"):
            found[name] = found.get(name, 0) + float(value)
    return found


def starting(quick: bool) -> Iterator[Row]:
    """From the start of the watcher to its first look, with and without kept programs."""
    if "bpf" not in _sources():
        return
    for kept in (False, True):
        found = []
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(1 + (2 if quick else 4) * kept):
                if not kept:
                    os.environ["CACHE_DIRECTORY"] = folder
                began = time.monotonic()
                with _watcher("--source", "bpf"):
                    found.append(time.monotonic() - began)
                os.environ.pop("CACHE_DIRECTORY", None)
        what = "kept programs" if kept else "nothing kept"
        yield Row(
            f"watch --source bpf, {what}: ready after", statistics.median(found), "s", len(found)
        )


@contextlib.contextmanager
def _watcher(*options: str, before: tuple[str, ...] = ()) -> Iterator[tuple[int, Path]]:
    with tempfile.TemporaryDirectory() as folder:
        receipts, log = Path(folder, "receipts.jsonl"), Path(folder, "log")
        with (
            log.open("wb") as sink,
            subprocess.Popen(
                [
                    *before,
                    _PROGRAM,
                    "watch",
                    "--config",
                    os.devnull,
                    "--socket",
                    "off",
                    "--receipts",
                    receipts,
                    *options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=sink,
            ) as process,
        ):
            try:
                _await(partial(_is_ready, log), 60)
                yield process.pid, receipts
            finally:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20)
                process.kill()


@contextlib.contextmanager
def _trees(count: int = _TREES, *, asking: bool = True) -> Iterator[None]:
    """Marked tool calls of four processes each; every other one reads a pipe of ours."""
    trees = [
        subprocess.Popen(
            ["bash", "-c", _ASKING_TREE if asking and number % 2 else _QUIET_TREE],
            stdin=subprocess.PIPE,
            env={**os.environ, "RECEIPT_TRACE": f"bench-{number}"},
            start_new_session=True,
        )
        for number in range(count)
    ]
    try:
        yield
    finally:
        for tree in trees:
            os.killpg(tree.pid, signal.SIGKILL)
            tree.communicate()


def _has_waits(receipts: Path, count: int) -> bool:
    return receipts.exists() and receipts.read_text().count('"event":"wait"') >= count


def _is_ready(log: Path) -> bool:
    return b'"watching"' in log.read_bytes()


def _await(condition: Callable[[], bool], seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(
                f"nothing came of `watch` within {seconds} s; try: receipt-trace doctor"
            )
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


# -- what everybody else pays ------------------------------------------------------------


def overhead(quick: bool) -> Iterator[Row]:
    """What a process that nobody tracks pays, beside no tracer, by what else runs."""
    if "bpf" not in _sources():
        return
    with _probe_program() as probe:
        observers: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
            "no tracer": contextlib.nullcontext,
            "snapshot, 50 trees": partial(_with_trees, ()),
            "syscalls, 50 trees": partial(_with_trees, ("--attach", "syscalls")),
            "text, 50 trees": partial(_with_trees, ("--capture", "text")),
            "a bcc script on the same calls": _script,
        }
        found: dict[str, list[tuple[float, ...]]] = {name: [] for name in observers}
        for _ in range(2 if quick else 5):
            for name, observer in observers.items():
                with observer():
                    found[name].append(_probe(probe, 400))
        found["strace -f on the process itself"] = [
            _probe(probe, 4, "strace", "-f", "-o", "/dev/null")
        ]
    for place, what in enumerate(("getppid", "read of 1 byte", "ping-pong over pipes")):
        base = min(times[place] for times in found["no tracer"])
        for name, runs in found.items():
            if name != "no tracer":
                best = min(times[place] for times in runs)
                yield Row(f"{what}, {name}", best, "ns", len(runs), base, "no tracer")


@contextlib.contextmanager
def _probe_program() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder, "probe")
        subprocess.run(["gcc", "-O2", "-o", probe, _PROBE], check=True)
        yield probe


def _probe(probe: Path, loops: int, *before: str) -> tuple[float, ...]:
    """The shortest times of its three loops, in ns; they repeat to a few of these."""
    words = [*before, str(probe), "loops", str(loops)]
    out = subprocess.check_output(words, stdin=subprocess.DEVNULL)
    return tuple(map(float, out.split()))


@contextlib.contextmanager
def _with_trees(options: tuple[str, ...]) -> Iterator[None]:
    with _trees(50), _watcher("--source", "bpf", *options, before=_PRIVATE_TRACEFS):
        time.sleep(2)
        yield


@contextlib.contextmanager
def _script() -> Iterator[None]:
    """What one would write with bcc: a counter on the begin of each call, by process."""
    with subprocess.Popen(
        [*_PRIVATE_TRACEFS, "/usr/bin/python3", _SCRIPT], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        if process.stdout.readline() != b"attached\n":
            raise RuntimeError(f"{_SCRIPT} could not attach; try it by hand")
        try:
            yield
        finally:
            process.terminate()


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

_PARTS: Final[dict[str, Callable[[bool], Iterator[Row]]]] = {
    part.__name__: part
    for part in (start_up, starting, delays, sampling, growth, storm, overhead, throughput)
}


def main() -> int:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "part", nargs="*", metavar="PART", choices=[[], *_PARTS],
        help=f"only these of {', '.join(_PARTS)} (default: all)",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has its byte code
    _timed(_PROGRAM, "run", "--", "true")
    rows = []
    for name in options.part or _PARTS:
        print(f"bench: {name.replace('_', ' ')} …", file=sys.stderr, flush=True)
        found = list(_PARTS[name](options.quick))
        rows += found
        if found and not options.json:
            _table(found)
    if options.json:
        measured: list[dict[str, Any]] = [{**asdict(row), "ratio": row.ratio} for row in rows]
        print(json.dumps({"kernel": os.uname().release, "cpus": os.cpu_count(), "rows": measured}))
    return 0


def _table(rows: list[Row]) -> None:
    width = max(len(row.what) for row in rows)
    width = max(width, 62)
    print(f"{'':<{width}}  {'value':>13}  {'baseline':>13}  {'ratio':>6}  {'runs':>4}  against")
    for row in rows:
        print(
            f"{row.what:<{width}}  {_number(row.value, row.unit)}  "
            f"{_number(row.baseline, row.unit)}  {_times(row.ratio)}  {row.runs:>4}  {row.against}"
        )


def _number(value: float | None, unit: str) -> str:
    return f"{'':>13}" if value is None else f"{value:>8.{0 if value >= 100 else 2}f} {unit:<4}"


def _times(ratio: float | None) -> str:
    return f"{'':>6}" if ratio is None else f"{ratio:>6.{1 if ratio >= 10 else 3}f}"


if __name__ == "__main__":
    sys.exit(main())
