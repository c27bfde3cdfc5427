"""Each receipt to every exporter, and nobody waits for anybody."""

import threading
import time

import pytest
from builders import many, receipt
from structlog.testing import capture_logs

from exporters import dispatch
from exporters.dispatch import QUEUE, Dispatcher
from exporters.redaction import Prompt

BOUND = 10


class Collector:
    """An exporter that keeps what it gets, once it may."""

    def __init__(self):
        self.taken, self.reopened, self.closed = [], 0, False
        self.may = threading.Event()
        self.may.set()
        self.tried = threading.Semaphore(0)
        self.failure = None

    def export(self, receipt):
        """Keep one, or fail."""
        self.tried.release()
        assert self.may.wait(BOUND)
        if self.failure is not None:
            raise self.failure
        self.taken.append(receipt)

    def reopen(self):
        """Count it."""
        self.reopened += 1

    def close(self):
        """Remember it."""
        self.closed = True


@pytest.fixture
def dispatcher():
    """Closed in the end, and with it its threads."""
    dispatcher = Dispatcher()
    dispatcher.start()
    yield dispatcher
    dispatcher.close(0)


@pytest.fixture
def join(dispatcher):
    """Joins an exporter; every one may export in the end."""
    joined = []

    def join(name, **more):
        joined.append(Collector())
        dispatcher.add(name, joined[-1], **more)
        return joined[-1]

    yield join
    for exporter in joined:
        exporter.may.set()


def until(condition):
    """Wait for it, with a bound."""
    end = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def pids(exporter):
    """The programs of the receipts it took."""
    return [r.program.pid for r in exporter.taken]


def test_everybody_gets_every_receipt_in_order(dispatcher, join):
    """Whether it has a queue or not."""
    first, second = join("first"), join("second", queued=False)
    for pid in range(100):
        dispatcher.export(receipt(pid))
    dispatcher.close()
    assert pids(first) == pids(second) == list(range(100))
    assert first.closed
    assert second.closed


def test_what_comes_before_the_start_waits_for_it(dispatcher):
    """Threads are started when privileges are given up; or never, where something else fails."""
    early = Dispatcher()
    one, two = Collector(), Collector()
    early.add("one", one)
    early.export(receipt(1))
    assert one.taken == []
    early.start()
    early.close()
    assert pids(one) == [1]
    never = Dispatcher()
    never.add("two", two)
    never.close()
    assert two.closed


def test_one_that_is_stuck_delays_nobody(dispatcher, join):
    """Neither the others nor whoever exports; it gets all of them when it goes on."""
    stuck, other = join("stuck"), join("other")
    stuck.may.clear()
    for pid in range(50):
        dispatcher.export(receipt(pid))
    until(lambda: len(other.taken) == 50)
    assert stuck.taken == []
    assert dispatcher.tallies()["stuck"].waiting == 50
    stuck.may.set()
    until(lambda: len(stuck.taken) == 50)
    assert pids(stuck) == list(range(50))


def test_a_burst_of_two_thousand_is_nobodys_loss(dispatcher, join):
    """An exporter that has stopped for a while keeps all of them."""
    stuck, other = join("stuck"), join("other")
    stuck.may.clear()
    burst = many(2000)
    for one in burst:
        dispatcher.export(one)
    stuck.may.set()
    dispatcher.close()
    assert pids(stuck) == pids(other) == list(range(2000))
    assert {t.lost for t in dispatcher.tallies().values()} == {0}


def test_one_that_fails_tries_again_until_it_succeeds(dispatcher, join):
    """Nothing is lost and nothing comes twice; the log has it once."""
    failing = join("failing")
    with capture_logs() as logs:
        failing.failure = OSError(28, "No space left on device")
        for pid in range(10):
            dispatcher.export(receipt(pid))
        for _ in range(3):
            assert failing.tried.acquire(timeout=BOUND)
        failing.failure = None
        until(lambda: len(failing.taken) == 10)
    assert pids(failing) == list(range(10))
    tally = dispatcher.tallies()["failing"]
    assert tally.errors >= 2
    assert (tally.exported, tally.lost, tally.waiting) == (10, 0, 0)
    told = [log for log in logs if log["event"] == "export_failed"]
    assert [log["exporter"] for log in told] == ["failing"]
    assert "No space left" in told[0]["error"]


def test_memory_is_bounded_and_the_rest_is_counted(dispatcher, join, monkeypatch):
    """The first stay, in order."""
    monkeypatch.setattr(dispatch, "QUEUE", 100)
    stuck = join("stuck")
    stuck.may.clear()
    with capture_logs() as logs:
        for pid in range(150):
            dispatcher.export(receipt(pid))
    tally = dispatcher.tallies()["stuck"]
    assert (tally.waiting, tally.lost) == (100, 50)
    assert [log["lost"] for log in logs if log["event"] == "queue_full"] == [1, 2, 4, 8, 16, 32]
    stuck.may.set()
    until(lambda: len(stuck.taken) == 100)
    assert pids(stuck) == list(range(100))
    assert QUEUE >= 2000


@pytest.mark.parametrize("queued", [True, False])
def test_one_that_raises_loses_that_one_receipt(dispatcher, join, queued):
    """It is in the log instead, redacted; what comes after is not lost."""
    failing, other = join("failing", queued=queued), join("other")
    failing.failure = KeyError("a fault of its own")
    with capture_logs() as logs:
        dispatcher.export(receipt(1, b"password: hunter2 "))
        until(lambda: dispatcher.tallies()["failing"].lost == 1)
        failing.failure = None
        dispatcher.export(receipt(2))
        until(lambda: failing.taken)
    dispatcher.close()
    assert pids(failing) == [2]
    assert pids(other) == [1, 2]
    (log,) = [log for log in logs if log["event"] == "not_exported"]
    assert "a fault of its own" in log["error"]
    assert "[redacted]" in log["receipt"]
    assert "hunter2" not in log["receipt"]


def test_at_the_end_what_is_waiting_is_written(dispatcher, join):
    """And what cannot be is in the log, one by one."""
    slow, failing = join("slow"), join("failing")
    failing.failure = OSError(28, "No space left on device")
    with capture_logs() as logs:
        for pid in range(3):
            dispatcher.export(receipt(pid))
        dispatcher.close()
    assert pids(slow) == [0, 1, 2]
    assert dispatcher.tallies()["failing"].lost == 3
    assert sum(log["event"] == "not_exported" for log in logs) == 3


def test_the_end_does_not_wait_for_one_that_is_stuck(dispatcher, join):
    """But so long as it was told to."""
    stuck = join("stuck")
    stuck.may.clear()
    dispatcher.export(receipt(1))
    assert stuck.tried.acquire(timeout=BOUND)
    began = time.monotonic()
    dispatcher.close(0.05)
    assert time.monotonic() - began < BOUND / 2
    assert dispatcher.tallies()["stuck"].lost == 1


def test_a_storm_of_reopening_loses_nothing(dispatcher, join):
    """Each exporter does it between two receipts, at least once after the last word."""
    one = join("one")
    for pid in range(500):
        dispatcher.reopen()
        dispatcher.export(receipt(pid))
    until(lambda: len(one.taken) == 500)
    before = one.reopened
    assert before >= 1
    dispatcher.reopen()
    until(lambda: one.reopened > before)
    assert pids(one) == list(range(500))


def test_one_that_cannot_reopen_goes_on_with_the_old(dispatcher, join):
    """The log and a count tell it."""
    one = join("one")

    def refuse():
        raise OSError(30, "Read-only file system")

    one.reopen = refuse
    with capture_logs() as logs:
        dispatcher.reopen()
        dispatcher.export(receipt(1))
        until(lambda: one.taken)
    assert [log["event"] for log in logs] == ["not_reopened"]
    assert dispatcher.tallies()["one"].errors == 1


def test_whoever_reads_us_no_more_ends_the_watcher():
    """As `watch | head -1` should."""
    gone = threading.Event()
    dispatcher = Dispatcher(gone.set)
    dispatcher.start()
    pipe = Collector()
    pipe.failure = BrokenPipeError()
    dispatcher.add("stdout", pipe)
    dispatcher.export(receipt(1))
    assert gone.wait(BOUND)
    with capture_logs() as logs:
        dispatcher.close()
    assert logs == [], "nobody is told what nobody wants to read"


def test_each_gets_as_much_of_the_question_as_it_may(dispatcher, join):
    """And another share from the moment it is changed."""
    full, masked, none = join("full"), join("masked", prompt=Prompt.REDACTED), join("none")
    dispatcher.show("none", Prompt.OFF)
    dispatcher.show("nobody", Prompt.OFF)
    dispatcher.export(receipt(1, b"token=abcdefgh Go on? "))
    dispatcher.close()
    assert [e.taken[0].prompt.text for e in (full, masked, none)] == [
        "token=abcdefgh Go on?",
        "token=[redacted] Go on?",
        "",
    ]
    assert [e.taken[0].prompt.redacted for e in (full, masked, none)] == [False, True, True]
