"""The procfs source over a /proc of our own: what is asleep there, and what a sample says."""

import os
import struct

import pytest
from builders import START, FakeProc

from receipt_trace.observation import Ending, ProcessId, WaiterKey
from receipt_trace.sources.procfs import Procfs
from receipt_trace.trees import Tree

READ = "0 0x{fd:x} 0x7f0000000000 0x1000 0x0 0x0 0x0 0x7ffd00000000 0x7f1100000000"
POLL = "7 0x{at:x} 0x{n:x} 0x{timeout:x} 0x0 0x0 0x0 0x7ffd00000000 0x7f1100000000"
SLEEP = "230 0x0 0x0 0x7ffd00000000 0x0 0x0 0x0 0x7ffd00000000 0x7f1100000000"
WAIT4 = "61 0xffffffffffffffff 0x0 0x0 0x0 0x0 0x0 0x7ffd00000000 0x7f1100000000"
RESTART = "219 0x{at:x} 0x{n:x} 0x0 0x0 0x0 0x0 0x7ffd00000000 0x7f1100000000"
HARNESS, ROOT = 5, 10


class Host:
    """A /proc and a source that looks at it."""

    def __init__(self, proc):
        self.proc = proc
        self.source = Procfs(proc.root, "x86_64", dict)
        self.tree = Tree(ProcessId(ROOT, START), parent=HARNESS, recognised=True)
        self.now = 0
        proc.add(HARNESS, 1, ("harness",))
        self.proc.hold(HARNESS, {7: "pipe:[70]"})

    def add(self, pid, ppid, call, fds, **more):
        """A process with one thread in a call."""
        self.proc.add(pid, ppid, **more)
        self.proc.hold(pid, fds)
        self.thread(pid, pid, call)
        (self.proc.root / str(pid) / "io").write_text("rchar: 0\nwchar: 0\n")
        (self.proc.root / str(pid) / "status").write_text(
            "SigIgn:\t0000000000000000\nSigCgt:\t0000000000000000\n"
        )
        if pid not in self.tree.members:
            self.tree.members[pid] = ProcessId(pid, more.get("start", START))

    def thread(self, pid, tid, call, runs=1, read=0):
        """Say what a thread does, how often it ran, and how much it has read."""
        directory = self.proc.root / str(pid) / "task" / str(tid)
        directory.mkdir(exist_ok=True)
        (directory / "syscall").write_text(call + "\n")
        (directory / "schedstat").write_text(f"1000 0 {runs}\n")
        (directory / "io").write_text(f"rchar: {read}\nwchar: 0\n")

    def sample(self, **more):
        """One look."""
        self.now += 100
        return self.source.sample(self.tree, self.now, **more)


@pytest.fixture
def host(proc):
    """A harness that holds the other end of pipe 70, and a source."""
    host = Host(proc)
    yield host
    host.source.forget(host.tree)


def asking(host, **more):
    """The root reads the pipe that the harness gave it."""
    host.add(ROOT, HARNESS, READ.format(fd=0), {0: "pipe:[70]"}, argv=("rm",), **more)


def keys(sample):
    """Who waits for what."""
    return [(w.key.pid, w.key.input) for w in sample.waiters]


# -- who waits -----------------------------------------------------------------------------------


def test_a_reader_of_the_harness_pipe_is_seen(host):
    """With its name, its call and its wait set."""
    asking(host)
    sample = host.sample()
    (found,) = sample.waiters
    assert found.key == WaiterKey(ROOT, START, ROOT, "pipe:[70]")
    assert (found.comm, found.syscall, found.wait_set) == ("rm", "read", ("0=pipe:[70]",))
    assert (found.consumed, found.grade) == (0, "syscall")
    assert (sample.time, sample.alive, sample.suspected, sample.blind) == (100, True, 0, 0)


def test_a_pipe_that_no_ancestor_holds_is_not_the_harness_input(host):
    """Somebody else may write to it."""
    host.proc.hold(HARNESS, {})
    asking(host)
    assert host.sample().waiters == ()


def test_an_input_that_is_at_its_end_from_the_start_is_waited_for_by_no_tool_call(host):
    """A hook that its agent has not given its input yet looks the same."""
    host.tree.ended_input = True
    asking(host)
    assert host.sample().waiters == ()


def test_what_the_root_was_given_is_known_though_it_is_gone_when_somebody_waits(host):
    """It is noted in the first samples."""
    host.add(ROOT, HARNESS, WAIT4, {0: "pipe:[70]"}, argv=("sh",))
    host.add(ROOT + 1, ROOT, SLEEP, {0: "pipe:[70]"})
    assert host.sample().waiters == ()
    host.proc.remove(ROOT)
    del host.tree.members[ROOT]
    host.add(ROOT + 1, 1, READ.format(fd=0), {0: "pipe:[70]"}, argv=("rm",))
    host.thread(ROOT + 1, ROOT + 1, READ.format(fd=0), runs=2)
    assert keys(host.sample()) == [(ROOT + 1, "pipe:[70]")]


def test_a_harness_further_up_holds_it_too(host):
    """A wrapper stands between it and the call."""
    host.proc.add(HARNESS + 1, HARNESS, ("wrapper",))
    host.proc.hold(HARNESS + 1, {0: "/dev/null"})
    host.tree.parent = HARNESS + 1
    asking(host)
    assert keys(host.sample()) == [(ROOT, "pipe:[70]")]


def test_a_sleeping_program_is_no_waiter(host):
    """It is in another call."""
    host.add(ROOT, HARNESS, SLEEP, {0: "pipe:[70]"})
    assert host.sample().waiters == ()


def test_a_poll_set_is_read_from_memory(host):
    """What is not wanted for reading does not count."""
    host.add(
        ROOT, HARNESS, POLL.format(at=64, n=2, timeout=500),
        {0: "pipe:[70]", 3: "anon_inode:[eventfd]", 4: "socket:[9]"},
    )  # fmt: skip
    entries = struct.pack("=ihhihh", 0, 1, 0, 3, 1, 0)
    (host.proc.root / str(ROOT) / "mem").write_bytes(bytes(64) + entries)
    (found,) = host.sample().waiters
    assert (found.syscall, found.timeout) == ("poll", 0.5)
    assert found.wait_set == ("0=pipe:[70]", "3=anon_inode:[eventfd]")


def test_a_poll_set_that_cannot_be_read_is_unknown(host):
    """There is less memory than the set is long."""
    host.add(ROOT, HARNESS, POLL.format(at=64, n=2, timeout=500), {0: "pipe:[70]"})
    (host.proc.root / str(ROOT) / "mem").write_bytes(bytes(64) + struct.pack("=ihh", 0, 1, 0))
    assert host.sample().waiters == ()


def test_a_poll_that_was_interrupted_goes_on_under_another_number(host):
    """After SIGSTOP and SIGCONT it is restart_syscall, with the same set."""
    host.add(ROOT, HARNESS, POLL.format(at=64, n=1, timeout=0xFFFFFFFF), {0: "pipe:[70]"})
    (host.proc.root / str(ROOT) / "mem").write_bytes(bytes(64) + struct.pack("=ihh", 0, 1, 0))
    assert len(host.sample().waiters) == 1
    host.thread(ROOT, ROOT, RESTART.format(at=64, n=1), runs=2)
    assert len(host.sample().waiters) == 1
    host.thread(ROOT, ROOT, RESTART.format(at=72, n=1), runs=3)
    assert host.sample().waiters == ()


def test_a_connection_beside_the_input_is_suspected(host):
    """And no waiter."""
    host.add(
        ROOT, HARNESS, POLL.format(at=0, n=2, timeout=0xFFFFFFFF), {0: "pipe:[70]", 3: "socket:[9]"}
    )
    entries = struct.pack("=ihhihh", 0, 1, 0, 3, 1, 0)
    (host.proc.root / str(ROOT) / "mem").write_bytes(entries)
    sample = host.sample()
    assert (sample.waiters, sample.suspected) == ((), 1)


def test_a_32_bit_program_is_unknown(host, tmp_path):
    """Its numbers mean other calls."""
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF\x01" + bytes(60))
    asking(host, exe=str(program))
    assert host.sample().waiters == ()


def test_another_machine_has_other_numbers(proc):
    """One whose numbers are not known shows nothing."""
    host = Host(proc)
    asking(host)
    host.source = Procfs(proc.root, "pdp11", dict)
    assert host.source.usable is False
    assert host.sample().waiters == ()
    host.source.forget(host.tree)


def test_a_child_that_asks_is_named(host):
    """Its parent waits for it."""
    host.add(ROOT, HARNESS, WAIT4, {0: "pipe:[70]"}, argv=("sh",))
    host.add(11, ROOT, READ.format(fd=0), {0: "pipe:[70]"}, argv=("rm",))
    assert keys(host.sample()) == [(11, "pipe:[70]")]


# -- what is remembered --------------------------------------------------------------------------


def test_a_thread_that_has_not_run_is_still_in_its_call(host):
    """Its run counter says so; nothing else is read."""
    asking(host)
    host.sample()
    (host.proc.root / str(ROOT) / "task" / str(ROOT) / "syscall").write_text("nonsense\n")
    assert keys(host.sample()) == [(ROOT, "pipe:[70]")]


def test_a_thread_that_has_run_is_looked_at_again(host):
    """It is somewhere else now."""
    asking(host)
    host.sample()
    host.thread(ROOT, ROOT, SLEEP, runs=2)
    assert host.sample().waiters == ()


def test_a_kernel_without_run_counters_is_looked_at_every_time(host):
    """CONFIG_SCHED_INFO may be missing."""
    asking(host)
    (host.proc.root / str(ROOT) / "task" / str(ROOT) / "schedstat").unlink()
    assert len(host.sample().waiters) == 1
    host.proc.root.joinpath(str(ROOT), "task", str(ROOT), "syscall").write_text(SLEEP)
    assert host.sample().waiters == ()


def test_a_thread_on_a_processor_is_told(host):
    """It may be on its way back into the same call."""
    asking(host)
    host.sample()
    host.thread(ROOT, ROOT, "running", runs=2)
    sample = host.sample()
    assert sample.waiters == ()
    assert sample.running == {(ROOT, START, ROOT)}


def test_taken_input_moves_the_mark(host):
    """Running alone does not."""
    host.add(ROOT, HARNESS, WAIT4, {0: "pipe:[70]"})
    host.add(11, ROOT, READ.format(fd=0), {0: "pipe:[70]"})
    marks = [host.sample().waiters[0].consumed]
    for runs, read in ((2, 0), (3, 0), (4, 10), (5, 10), (6, 11)):
        host.thread(11, 11, READ.format(fd=0), runs, read)
        marks.append(host.sample().waiters[0].consumed)
    assert marks == [0, 0, 0, 1, 1, 2]


def test_a_root_that_has_taken_input_is_fed(host):
    """A server between two requests: it waits for the next one, and asks nothing."""
    asking(host)
    assert len(host.sample().waiters) == 1
    host.thread(ROOT, ROOT, READ.format(fd=0), runs=2, read=5)
    host.sample()
    host.thread(ROOT, ROOT, READ.format(fd=0), runs=3, read=5)
    assert host.sample().waiters == ()


def test_input_that_comes_through_us_is_counted_by_us(host):
    """What was read otherwise, a library or a file, is none."""
    asking(host)
    marks = [host.sample(given=0).waiters[0].consumed]
    for runs, read, given in ((2, 99, 0), (3, 99, 5), (4, 120, 5)):
        host.thread(ROOT, ROOT, READ.format(fd=0), runs, read)
        marks.append(host.sample(given=given).waiters[0].consumed)
    assert marks == [0, 0, 1, 1]


def test_a_waiter_that_left_with_input_was_answered(host):
    """It read something; it does something else now."""
    asking(host)
    host.sample()
    host.thread(ROOT, ROOT, SLEEP, runs=2, read=5)
    sample = host.sample()
    assert (sample.answered, sample.closed) == ({"pipe:[70]"}, frozenset())


def test_a_waiter_that_left_without_input_was_closed(host):
    """It read the end of it."""
    asking(host)
    host.sample()
    host.thread(ROOT, ROOT, SLEEP, runs=2)
    sample = host.sample()
    assert (sample.answered, sample.closed) == (frozenset(), {"pipe:[70]"})


# -- the tree as a whole -------------------------------------------------------------------------


def test_cpu_time_is_that_of_the_whole_tree(host):
    """Of all its processes, and of the children they have waited for."""
    asking(host)
    host.add(11, ROOT, SLEEP, {})
    before = host.sample().cpu_ticks
    host.proc.add(ROOT, HARNESS, ("rm",), utime=3, cstime=4)
    host.proc.add(11, ROOT, stime=2)
    for pid in (ROOT, 11):
        host.thread(pid, pid, SLEEP, runs=2)
    assert host.sample().cpu_ticks - before == 9


def test_what_the_caller_saw_pass_is_the_output(host):
    """His own mark is better than ours."""
    asking(host)
    assert host.sample(output=42).output == 42


def test_a_process_that_is_gone_has_ended(host):
    """It is no member any more, and nobody has told how it ended."""
    asking(host)
    host.sample()
    host.proc.remove(ROOT)
    del host.tree.members[ROOT]
    sample = host.sample()
    assert sample.waiters == ()
    assert sample.ended == {ProcessId(ROOT, START): Ending(None)}


def test_a_zombie_tells_how_it_ended(host):
    """Its wait status is in its stat."""
    asking(host)
    host.sample()
    host.proc.add(ROOT, HARNESS, ("rm",), state="Z", exit_code=256)
    host.thread(ROOT, ROOT, "0 0x0", runs=2)
    assert host.sample().ended == {ProcessId(ROOT, START): Ending(256)}


def test_a_number_used_again_is_not_the_member(host):
    """Its start time is another."""
    asking(host)
    host.tree.members[ROOT] = ProcessId(ROOT, START - 1)
    assert host.sample().waiters == ()
    assert host.source.processes(host.tree) == {}


def test_a_member_of_unknown_identity_is_looked_up(host):
    """From now on it is known."""
    asking(host)
    host.tree.members[ROOT] = None
    assert len(host.sample().waiters) == 1
    assert host.tree.members[ROOT] == ProcessId(ROOT, START)


def test_a_tree_without_members_is_over(host):
    """There is nothing to see."""
    asking(host)
    host.tree.members.clear()
    sample = host.sample()
    assert (sample.alive, sample.waiters) == (False, ())


def test_nothing_is_kept_open_for_a_tree_that_is_forgotten(tmp_path):
    """Two files for each thread were."""
    host = Host(FakeProc(tmp_path / "proc"))
    asking(host)
    before = len(os.listdir("/proc/self/fd"))
    host.sample()
    assert len(os.listdir("/proc/self/fd")) > before
    host.source.forget(host.tree)
    assert len(os.listdir("/proc/self/fd")) == before
