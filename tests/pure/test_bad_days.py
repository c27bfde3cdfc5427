"""Bad days that no real machine gives on demand: a burst of receipts, and a clock that steps."""

import contextlib
import json
import socket

import pytest
from builders import NS, PERIOD, context, many, resolved, sample, waiter

from exporters.dispatch import Dispatcher
from exporters.jsonl import JsonLinesFile
from exporters.metrics import MetricsExporter
from exporters.page import LATEST, PageExporter
from exporters.stream import StreamExporter
from receipt_trace.constants import SAMPLE_PERIOD_NS
from receipt_trace.health import Health, SourceHealth
from receipt_trace.observation import ProcessId
from receipt_trace.receipt import Host
from receipt_trace.tracer import Tracer
from receipt_trace.trees import Tree

HEALTH = Health(SourceHealth("procfs"), "connector", 0, 0, 0, 0, 0, 0, 0)
BURST = 2000


@pytest.fixture
def everything(tmp_path):
    """A dispatcher with a file, a socket, metrics and a page, as `watch` has them."""
    dispatcher = Dispatcher()
    dispatcher.start()
    stream = StreamExporter(str(tmp_path / "sock"))
    metrics = MetricsExporter(lambda: HEALTH, dispatcher.tallies)
    page = PageExporter("host", lambda: HEALTH, dispatcher.tallies, list)
    dispatcher.add("receipts", JsonLinesFile(str(tmp_path / "receipts")))
    dispatcher.add("socket", stream, queued=False)
    dispatcher.add("metrics", metrics, queued=False)
    dispatcher.add("page", page, queued=False)
    yield dispatcher, stream, metrics, page
    dispatcher.close()


def test_two_thousand_receipts_at_once_reach_everybody_who_reads(everything, tmp_path):
    """Fifty subscribers, ten of whom never read; who comes late with reading has missed nothing."""
    dispatcher, stream, metrics, page = everything
    connections = []
    for _ in range(50):
        connections.append(socket.socket(socket.AF_UNIX))
        connections[-1].connect(str(tmp_path / "sock"))
        connections[-1].setblocking(False)
    stream.serve()
    assert stream.subscribers == 50
    burst = []
    for wait in many(BURST // 2):
        burst += [wait, resolved(wait)]
    for one in burst:
        dispatcher.export(one)
    assert stream.subscribers == 50, "nobody is let go for it"
    whole = b"".join(one.to_json().encode() + b"\n" for one in burst)
    heard = {connection: bytearray() for connection in connections[10:]}
    while any(len(data) < len(whole) for data in heard.values()):
        stream.serve()
        for connection, data in heard.items():
            with contextlib.suppress(BlockingIOError):
                data.extend(connection.recv(1 << 20))
    assert [data == whole for data in heard.values()] == [True] * 40
    dispatcher.close()
    assert (tmp_path / "receipts").read_bytes() == whole
    assert {name: t.lost for name, t in dispatcher.tallies().items()} == dict.fromkeys(
        ("receipts", "socket", "metrics", "page"), 0
    )
    assert b"receipt_trace_detection_seconds_count 1000.0" in metrics.page()[0]
    assert page.render().count(b"asks[") == LATEST
    for connection in connections:
        connection.close()


class Script:
    """A source that shows what it is told."""

    name = "procfs"
    attach = None
    period = SAMPLE_PERIOD_NS

    def __init__(self, samples):
        self._samples = iter(samples)

    def sample(self, tree, now, **_):
        """The next one."""
        return next(self._samples)

    def moved(self, tree, now):
        """Always."""
        return True

    def ends(self, tree):
        """None."""
        return []

    def forget(self, tree):
        """Nothing is kept."""


@pytest.mark.parametrize("step", [-86400, 86400])
def test_a_clock_that_steps_by_a_day_changes_no_duration(step):
    """In the middle of a wait: only the words of the time follow it."""
    wall = 1_700_000_000 * NS
    moments = [0, 5, 11, 300]
    samples = [sample(at, waiter()) for at in moments[:3]]
    samples.append(sample(moments[3], answered=[waiter().key]))
    tree, receipts = Tree(ProcessId(10, 500)), []
    tracer = Tracer(
        Script(samples), Host("host", "boot"), receipts.append,
        lambda *_: context(b"Go on? ", wall=wall), lambda: wall,
    )  # fmt: skip
    metrics = MetricsExporter(lambda: HEALTH, dict, lambda: 290 * PERIOD)
    tracer.follow(tree)
    for at in moments:
        if at == moments[3]:
            wall += step * NS
            metrics.export(receipts[0])
            assert b"receipt_trace_oldest_wait_seconds 29.0" in metrics.page()[0]
        tracer.step(tree, at * PERIOD)
    first, second = receipts
    assert (first.event, second.event) == ("wait", "resolved")
    assert second.resolution.waited_s == 30.0
    assert first.wait == second.wait
    assert first.id != second.id
    assert second.monotonic_ns - first.monotonic_ns == (300 - 11) * PERIOD
    assert abs(int(second.time[8:10]) - int(first.time[8:10])) == 1, "the words follow the clock"
    json.loads(second.to_json())
    metrics.export(second)
    page = metrics.page()[0]
    assert b'receipt_trace_wait_seconds_sum{agent="none",resolution="answered"} 30.0' in page
