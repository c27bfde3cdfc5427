"""The loop of the service over a /proc of our own, without events of the kernel."""

import os
import time

import pytest
from builders import START

from receipt_trace import watch as module
from receipt_trace.agents import load_registry
from receipt_trace.observation import Fork, ProcessId
from receipt_trace.receipt import Host
from receipt_trace.sources.choice import Choice
from receipt_trace.sources.procfs import Procfs
from receipt_trace.watch import Watch

BOUND = 10


class Events:
    """Events of the kernel, as a test tells them."""

    def __init__(self):
        self.reader, self.writer = os.pipe()
        self.told = []

    def execs(self, _pid):
        """Not counted."""
        return 0

    def fileno(self):
        """Readable when there are some."""
        return self.reader

    def read(self):
        """Those that came."""
        told, self.told = self.told, []
        if told:
            os.read(self.reader, 1)
        return told

    def tell(self, event):
        """One more."""
        self.told.append(event)
        os.write(self.writer, b".")

    def close(self):
        """As the loop does at its end."""
        os.close(self.reader)
        os.close(self.writer)


@pytest.fixture
def make(proc):
    """Makes a watcher, with events or where the kernel refuses them."""

    def make(registry=None, events=None):
        choice = Choice(Procfs(proc.root, "x86_64", dict), events)
        return Watch(
            registry or load_registry(),
            Host("host", "boot"),
            lambda receipt: None,
            root=proc.root,
            everybody=registry is not None,
            choice=choice,
        )

    return make


def shell(proc, pid=10):
    """A shell of an agent that lives on."""
    proc.add(pid, 1, ("bash", "-i"), {"ROO_ACTIVE": "true"})
    proc.hold(pid, {0: "/dev/pts/3"})


def bounded(condition):
    """A `done` that fails rather than going on for ever."""
    end = time.monotonic() + BOUND

    def done():
        assert time.monotonic() < end
        return condition()

    return done


# -- the loop --------------------------------------------------------------------------------------


def test_a_callback_is_called_when_its_descriptor_can_be_read(make):
    """Each its own, and the loop goes on."""
    reader, writer = os.pipe()
    other, silent = os.pipe()
    called = []

    def callback():
        called.append(os.read(reader, 1))
        if called == [b"1"]:
            os.write(writer, b"2")

    os.write(writer, b"1")
    never = {other: lambda: called.append("never")}
    make().run(bounded(lambda: len(called) == 2), {reader: callback, **never})
    assert called == [b"1", b"2"]
    for fd in (reader, writer, other, silent):
        os.close(fd)


def test_a_callback_can_stop_the_loop(make):
    """As a key does, or a signal by way of its descriptor."""
    reader, writer = os.pipe()
    watch = make()
    os.write(writer, b"q")
    watch.run(bounded(lambda: False), {reader: watch.stop})
    os.close(reader)
    os.close(writer)


def test_done_is_asked_at_every_tick(make):
    """Also when nothing happens."""
    events, asked = Events(), []

    def done():
        asked.append(time.monotonic_ns())
        return len(asked) == 5

    make(events=events).run(bounded(done), tick=20_000_000)
    assert (asked[-1] - asked[1]) / 1e9 >= 3 * 0.02


def test_the_end_lets_go_of_every_tree(make, proc):
    """And of the kernel's events."""
    proc.add(10, 1, ("make",))
    events = Events()
    watch = make(events=events)
    tree = watch.discovery.name_root(10)
    watch.stop()
    watch.run()
    assert list(watch.trees) == []
    assert watch.waits(tree) == ()
    with pytest.raises(OSError):
        os.fstat(events.reader)


def test_a_busy_host_does_not_make_it_look_away(make, proc, monkeypatch):
    """What a look costs is processor time: it waits for its turn on a processor without cost."""
    proc.add(10, 1, ("make",))
    events = Events()
    watch = make(events=events)
    tree = watch.discovery.name_root(10)
    step = watch._tracer.step

    def slow(*arguments, **more):
        time.sleep(0.05)
        return step(*arguments, **more)

    monkeypatch.setattr(watch._tracer, "step", slow)
    for _ in range(2):  # the first long look never counts
        watch._due.clear()
        watch.turn(time.monotonic_ns())
    ahead = watch._due[tree.root] - time.monotonic_ns()
    assert ahead <= module.SAMPLE_PERIOD_NS
    watch.stop()
    watch.run()


# -- without events --------------------------------------------------------------------------------


def test_children_of_a_shell_are_looked_for_where_no_events_come(make, proc):
    """At every turn, for a command may be short; the known are not told again."""
    shell(proc)
    watch = make(load_registry())
    watch.turn(0)
    assert list(watch.discovery.shells) == [10]
    for pid in (11, 12):
        proc.add(pid, 10, ("make",), group=pid)
    proc.add(13, 11, ("cc",))
    watch.turn(1)
    members = sorted(pid for tree in watch.trees for pid in tree.members)
    assert members == [11, 12, 13]
    watch.turn(2)
    assert sum(tree.born for tree in watch.trees) == 3


def test_children_of_a_named_agent_are_looked_for_where_no_events_come(make, proc):
    """Each is a tool call."""
    proc.add(5, 1, ("house-bot",))
    watch = make()
    watch.discovery.name_agent(5)
    watch.turn(0)
    proc.add(10, 5, ("make",))
    watch.turn(1)
    assert [tree.root for tree in watch.trees] == [ProcessId(10, START)]


def test_children_are_told_by_the_kernel_where_it_does(make, proc):
    """Nobody looks for them."""
    shell(proc)
    events = Events()
    watch = make(load_registry(), events)
    watch.turn(0)
    proc.add(11, 10, ("make",))
    watch.turn(1)
    assert list(watch.trees) == []
    events.tell(Fork(10, 11))
    watch.turn(2)
    assert [tree.root.pid for tree in watch.trees] == [11]
    events.close()


def test_a_shell_without_commands_is_looked_at_as_often_as_a_tree(make, proc):
    """Or its next command would be seen too late."""
    shell(proc)
    watch = make(load_registry())
    watch.turn(0)
    assert watch._wake_at(0) == module.SAMPLE_PERIOD_NS
    proc.remove(10)
    watch.turn(2 * module._SWEEP_NS)
    assert watch._wake_at(2 * module._SWEEP_NS) == 3 * module._SWEEP_NS
