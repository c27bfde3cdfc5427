"""The BPF source over a kernel that a test plays: marks, pictures, quiet time, who waits."""

import os
import struct

import pytest
from builders import START, waiter
from hypothesis import given
from hypothesis import strategies as st
from test_look import (
    EPOLL_OPS,
    FIFO,
    PIPES,
    READ,
    SOCKET,
    WRITE,
    file_record,
    member,
    process_record,
    pts,
    thread_record,
    tty_record,
    waits_at,
)

from receipt_trace.kernel.loader import Kernel, Said
from receipt_trace.kernel.records import LAYOUTS, Kind, NowRecord, TextRecord, ThreadRecord
from receipt_trace.observation import Activity, Ending, FileKind, ProcessId
from receipt_trace.sources.bpf import Bpf
from receipt_trace.trees import Tree, Trees

MS = 1_000_000
HARNESS, ROOT, CHILD, OTHER, STRANGER = 5, 10, 20, 30, 77
BEHIND = 1_000 * MS  # the scheduler's clock is that much behind ours
NARROW, WORKER, RUNS = 1, 2, 4
INTERRUPTIBLE, UNINTERRUPTIBLE, ZOMBIE = 1, 2, 32
READ_CALL, POLL, RECVMSG, PSELECT, NARROW_READ, NARROW_PSELECT = 0, 7, 47, 270, 3, 308
TABLE = 0x5555


class Played:
    """What the kernel would say: only of marked processes in a snapshot, of anybody in a look."""

    parse = Kernel.parse

    def __init__(self):
        self.calls = self.text = False
        self.kinds, self.pipes = {EPOLL_OPS: FileKind.EPOLL}, PIPES
        self.threads, self.processes, self.files, self.queues = {}, {}, [], []
        self.polled, self.printed, self.wrote = [], [], {}
        self.started = {}
        self.marked, self.ever_marked, self.looked, self.asked_said = {}, [], 0, set()
        self.now, self.late = 10_000 * MS, 0

    def snapshot(self):
        """Every thread of the marked, and what time it is by both clocks."""
        layout = LAYOUTS[ThreadRecord]
        told = [
            layout.pack(*t._replace(root=self.marked[t.tgid]))
            for t in self.threads.values()
            if t.tgid in self.marked
        ]
        arrived = self.now - self.late - BEHIND
        return NowRecord(Kind.NOW, LAYOUTS[NowRecord].size, 0, self.now, arrived), b"".join(told)

    def look(self, pids):
        """Who they are, what they hold, who waits there."""
        self.looked += 1
        pids = set(pids)
        files = [f for f in self.files if f.tgid in pids]
        objects = {f.object for f in files}
        return (
            [p for p in self.processes.values() if p.tgid in pids],
            files,
            [w for w in self.queues if w.object in objects],
        )

    def members(self, polls, sets):
        """What the threads in polls wait for."""
        return [m for m in self.polled if m.tid in polls or m.tid in sets]

    def texts(self, pid):
        """The terminals of a process."""
        return [t for t in self.printed if t.tgid == pid]

    def said(self, inode, filesystem):
        """The latest that was written to an output."""
        self.asked_said.add((inode, filesystem))
        return self.wrote.get(inode)

    def given(self, pid):
        """The file it was started with."""
        return self.started.get(pid, 0), 1

    def mark(self, pid, root):
        """Track it."""
        self.marked[pid] = root
        self.ever_marked.append(pid)

    def unmark(self, pid):
        """Track it no longer."""
        self.marked.pop(pid, None)


class Host:
    """A harness with one tool call, a kernel, and the source that asks it."""

    def __init__(self, proc):
        self.proc, self.kernel = proc, Played()
        self.source = Bpf(self.kernel, proc.root)
        self.tree = Tree(ProcessId(ROOT, START), parent=HARNESS, recognised=True)
        self.add(HARNESS, 1)
        self.add(ROOT, HARNESS)

    def add(self, pid, ppid, **more):
        """A process with one thread, that sleeps, on terminal 1."""
        self.proc.add(pid, ppid)
        values = {"parent": ppid, "terminal": pts(1), "group": ROOT, "foreground": ROOT} | more
        self.kernel.processes[pid] = process_record(pid, **values)
        return self.thread(pid, number=230)

    def thread(self, pid, **more):
        """Say what the first thread of a process does."""
        self.kernel.threads[pid] = thread_record(pid, pid, **more)
        return self.kernel.threads[pid]

    def holds(self, *files):
        """Descriptors of whoever they say."""
        self.kernel.files += files

    def reads(self, pid, file, number=READ_CALL, **more):
        """A thread is blocked in a read of a descriptor, and its queue says so."""
        thread = self.thread(pid, number=number, arg0=file.fd, **more)
        self.holds(file)
        self.kernel.queues = [
            *(w for w in self.kernel.queues if w.object != file.object),
            waits_at(file, thread.task),
        ]
        return thread

    def sample(self, ms=100, tree=None, **more):
        """One look, that much later."""
        self.kernel.now += ms * MS
        return self.source.sample(tree or self.tree, self.kernel.now, **more)

    def settle(self):
        """The first samples of a tree look closer."""
        return [self.sample() for _ in range(4)][-1]

    @property
    def moved(self):
        """Whether the tree is worth a sample, 100 ms later."""
        self.kernel.now += 100 * MS
        return self.source.moved(self.tree, self.kernel.now)


@pytest.fixture
def host(proc):
    """A root that sleeps."""
    return Host(proc)


def keys(sample):
    """Who waits for what."""
    return [(w.key.pid, w.key.input) for w in sample.waiters]


TTY = tty_record(0, tgid=ROOT)
ASKS = [(ROOT, "pts:1")]

# -- marks -----------------------------------------------------------------------------------


def test_marks_follow_the_members(host):
    """Who comes is marked with the root, who is no more in the tree is let go."""
    trees = Trees()
    trees.add(host.tree)
    host.sample()
    assert host.kernel.marked == {ROOT: ROOT}
    host.add(CHILD, ROOT)
    trees.fork(ROOT, CHILD, ProcessId(CHILD, START))
    host.sample()
    assert host.kernel.marked == {ROOT: ROOT, CHILD: ROOT}
    trees.exit(CHILD, 0)
    host.sample()
    assert host.kernel.marked == {ROOT: ROOT}


@pytest.mark.parametrize("first", ["old", "new"])
def test_a_member_that_leaves_to_another_tree_stays_marked(host, first):
    """For that one, whichever of the two is looked at first."""
    trees = Trees()
    trees.add(host.tree)
    host.add(CHILD, ROOT)
    trees.fork(ROOT, CHILD, ProcessId(CHILD, START))
    host.sample()
    trees.leave(CHILD)
    tree = trees.add(Tree(ProcessId(CHILD, START), parent=ROOT))
    for which in (host.tree, tree)[:: 1 if first == "old" else -1]:
        host.sample(tree=which)
    assert host.kernel.marked == {ROOT: ROOT, CHILD: CHILD}
    host.source.forget(host.tree)
    assert host.kernel.marked == {CHILD: CHILD}
    host.source.forget(tree)
    assert host.kernel.marked == {}


def test_a_stray_is_let_go_after_a_while(host):
    """The kernel marks what a member forks; if no tree ever claims it, it costs for nothing."""
    host.settle()
    host.add(CHILD, ROOT)
    host.kernel.marked[CHILD] = ROOT
    host.sample()
    assert CHILD in host.kernel.marked  # its event may be on the way
    for turn in range(50):
        host.thread(ROOT, runs=turn)
        host.sample()
    assert host.kernel.marked == {ROOT: ROOT}


def test_what_is_started_meanwhile_is_tracked_from_the_start(host):
    """By the mark of who starts it, and only as long as that takes."""
    with host.source.expecting():
        assert os.getpid() in host.kernel.marked
    assert host.kernel.marked == {}


# -- pictures --------------------------------------------------------------------------------


def test_who_reads_a_terminal_waits(host):
    """With the evidence of the kernel."""
    host.reads(ROOT, TTY)
    (found,) = host.sample().waiters
    assert found.key == (ROOT, START, ROOT, "pts:1")
    assert (found.comm, found.syscall, found.fd) == ("prog", "read", 0)
    assert (found.target, found.wait_set) == ("/dev/pts/1", ("0=/dev/pts/1",))
    assert (found.grade, found.wiring, found.timeout) == ("kernel", "tty", None)


def test_nothing_is_looked_at_twice_while_nothing_runs(host):
    """The wait stays; a fresh look is one all the same."""
    host.reads(ROOT, TTY)
    host.settle()
    before = host.kernel.looked
    assert keys(host.sample()) == ASKS
    assert host.kernel.looked == before
    assert keys(host.sample(fresh=True)) == ASKS
    assert host.kernel.looked > before
    host.reads(ROOT, TTY, runs=1)
    before = host.kernel.looked
    assert keys(host.sample()) == ASKS
    assert host.kernel.looked > before


def test_a_tree_moves_when_something_in_it_ran_came_or_left(host):
    """And is not sampled otherwise."""
    host.settle()
    assert not host.moved
    host.thread(ROOT, runs=1)
    assert host.moved
    assert host.moved  # until it is sampled
    host.sample()
    assert not host.moved
    host.add(CHILD, ROOT)
    host.tree.members[CHILD] = ProcessId(CHILD, START)
    assert host.moved
    host.sample()
    assert not host.moved
    del host.kernel.threads[CHILD]  # it is gone, and nobody has told
    assert host.moved


def test_another_tree_does_not_move_it(host):
    """Though one snapshot tells of both."""
    host.settle()
    host.add(OTHER, 1)
    other = Tree(ProcessId(OTHER, START))
    host.sample(tree=other)
    host.sample()
    host.thread(OTHER, runs=1)
    assert not host.moved


def test_a_number_used_again_is_somebody_else(host):
    """Born later: it is not looked at in place of who had the number."""
    host.reads(ROOT, TTY)
    host.settle()
    host.reads(ROOT, TTY, start=6_000_000_000)
    assert keys(host.sample()) == []


# -- quiet time ------------------------------------------------------------------------------


def test_it_is_still_since_its_thread_left_the_processor(host):
    """When it came there, by our clock, and as long as its CPU time has grown."""
    host.reads(ROOT, TTY, cpu=50 * MS, arrived=1 * MS)
    host.settle()
    arrived = host.kernel.now + 20 * MS
    host.reads(ROOT, TTY, cpu=53 * MS, arrived=arrived - BEHIND)
    assert host.sample().still == arrived + 3 * MS
    assert host.sample().still == arrived + 3 * MS


def test_who_waits_for_a_processor_is_not_still(host):
    """On a busy host he does so for long, and nothing about him changes meanwhile."""
    host.add(CHILD, ROOT)
    host.tree.members[CHILD] = ProcessId(CHILD, START)
    host.thread(CHILD, number=230, arrived=1 * MS, flags=RUNS, state=0)
    host.reads(ROOT, TTY, arrived=1 * MS)
    for _ in range(3):
        assert host.sample().still == host.kernel.now


def test_where_the_kernel_does_not_tell_it_is_still_since_it_was_seen(host):
    """CONFIG_SCHED_INFO may be off."""
    host.reads(ROOT, TTY, arrived=0)
    seen = host.sample().still
    assert seen == host.kernel.now
    assert host.sample().still == seen


def test_until_a_member_left_the_tree_was_not_still(host):
    """It ran until then."""
    host.add(CHILD, ROOT)
    host.tree.members[CHILD] = ProcessId(CHILD, START)
    host.thread(CHILD, arrived=1 * MS)
    host.thread(ROOT, arrived=1 * MS)
    for _ in range(3):
        still = host.sample().still
    assert still < host.kernel.now
    del host.tree.members[CHILD]
    gone = host.sample().still
    assert gone == host.kernel.now
    assert host.sample().still == gone


TENTHS = MS // 10


@given(
    bursts=st.lists(st.tuples(st.integers(1, 900), st.integers(1, 900)), min_size=1, max_size=12),
    looks=st.lists(
        st.tuples(st.integers(1, 1500), st.integers(0, 50), st.integers(0, 40)),
        min_size=1, max_size=12,
    ),
    before=st.integers(0, 10_000),
)  # fmt: skip
def test_quiet_never_begins_before_it_can_have(bursts, looks, before):
    """Whenever one looks: at a thread that sleeps and runs, whose CPU time is told late while it
    runs, by a clock that is known only to a jitter.
    """
    kernel = Played()
    source = Bpf(kernel)
    kernel.marked = {ROOT: ROOT}
    runs, at = [], 2_000 * MS
    for sleeps, busy in bursts:
        runs.append((at + sleeps * TENTHS, at + (sleeps + busy) * TENTHS))
        at = runs[-1][1]
    kernel.now = 2_000 * MS
    for later, jitter, lag in looks:
        kernel.now += later * TENTHS
        kernel.late = jitter * TENTHS
        begun = [run for run in runs if run[0] <= kernel.now]
        cpu = before * TENTHS + sum(end - start for start, end in begun)
        arrived = begun[-1][0] - BEHIND if begun else 0
        running = bool(begun) and kernel.now < begun[-1][1]
        if running:
            cpu -= begun[-1][1] - kernel.now + min(lag * TENTHS, kernel.now - begun[-1][0])
        kernel.threads[ROOT] = thread_record(
            ROOT, ROOT, cpu=cpu, arrived=arrived, runs=len(begun), flags=RUNS * running,
            state=0 if running else INTERRUPTIBLE,
        )  # fmt: skip
        source._snapshot(kernel.now)
        stopped = source.stopped[ROOT]
        assert stopped <= kernel.now
        if begun and not running:
            assert stopped >= begun[-1][1]


# -- who waits, and who does not -------------------------------------------------------------


def test_who_is_not_named_by_the_queue_does_not_wait(host):
    """Saved registers alone may be those of a call that is over."""
    host.reads(ROOT, TTY)
    host.kernel.queues = [waits_at(TTY, thread_record(99).task)]
    sample = host.sample()
    assert sample.waiters == ()
    assert sample.blind == 0


@pytest.mark.parametrize(("same", "want"), [(True, [(ROOT, "pipe:[70]")]), (False, [])])
def test_an_input_that_was_moved_at_once_is_still_what_it_was_given(host, same, want):
    """Nobody has looked before, but the kernel noted what it was started with."""
    moved = file_record(19, FIFO, mode=READ, tgid=ROOT, inode=70)
    host.holds(file_record(7, FIFO, mode=WRITE, tgid=HARNESS, inode=70))
    host.kernel.started[ROOT] = moved.file if same else 0x9999
    host.reads(ROOT, moved)
    assert keys(host.sample()) == want


def test_who_has_left_the_call_before_its_input_was_asked_is_between_two_calls(host):
    """A snapshot and the look at the queues are two moments: a loop may have moved on meanwhile."""
    host.reads(ROOT, TTY)
    host.settle()
    host.reads(ROOT, TTY, runs=1)
    queues, host.kernel.queues = host.kernel.queues, []
    between = host.sample()
    assert (between.waiters, between.closed) == ((), frozenset())
    assert between.running == {(ROOT, START, ROOT)}
    host.kernel.queues = queues
    again = host.sample(fresh=True)
    assert (keys(again), again.running) == (ASKS, frozenset())


@pytest.mark.parametrize(
    ("looks", "marks"),
    [
        # (bytes its thread has read, how far the terminal was read)
        ([(302, 7), (604, 7), (607, 10), (700, 10)], [0, 0, 0, 1, 1]),
        ([(302, 0), (604, 0), (607, 0)], [0, 0, 0, 1]),
        ([(7, 0), (14, 0)], [0, 1, 2]),
        ([(8, 0), (24, 0)], [0, 0, 0]),
    ],
    ids=["of /proc", "of /proc, never read", "answers, flushed after each", "wake-ups"],
)
def test_what_was_taken_is_told_by_the_input_itself(host, looks, marks):
    """A program that looks into /proc every second beside its question has taken nothing of it."""
    found = []
    for runs, (consumed, place) in enumerate([(0, looks[0][1]), *looks]):
        tty = tty_record(0, tgid=ROOT, input=place)
        pipe = file_record(6, FIFO, mode=READ | WRITE, tgid=ROOT, inode=76)
        host.kernel.files[:] = [tty, pipe]
        thread = host.thread(ROOT, number=POLL, arg0=1, arg1=2, arg2=0xFFFF_FFFF, runs=runs,
                             consumed=consumed)  # fmt: skip
        host.kernel.queues = [waits_at(tty, TABLE, thread.task)]
        host.kernel.polled = [member(tty, tid=ROOT), member(pipe, tid=ROOT)]
        found.append(host.sample().waiters[0].consumed)
    assert found == marks


def test_how_a_waiter_ended_that_was_last_seen_on_its_way(host, proc):
    """Killed, he runs for a moment; then he is gone, and only now is it known how."""
    host.reads(ROOT, TTY)
    host.settle()
    host.thread(ROOT, runs=1, flags=RUNS)
    going = host.sample()
    assert (going.answered, going.closed, going.ended) == (frozenset(), frozenset(), {})
    del host.kernel.threads[ROOT]
    proc.add(ROOT, HARNESS, state="Z", exit_code=9)
    assert host.sample().ended == {ProcessId(ROOT, START): Ending(9)}


@pytest.mark.parametrize(("consumed", "how"), [(5, "answered"), (0, "closed")])
def test_what_became_of_a_waiter_that_was_on_a_processor_is_asked_again(host, consumed, how):
    """It had taken nothing yet when it was seen there."""
    host.reads(ROOT, TTY)
    host.settle()
    host.thread(ROOT, runs=1, flags=RUNS)
    assert host.sample().running == {(ROOT, START, ROOT)}
    host.thread(ROOT, number=230, runs=2, consumed=consumed)
    host.kernel.files[:] = [tty_record(0, tgid=ROOT, input=consumed)]
    sample = host.sample()
    assert {"answered": sample.answered, "closed": sample.closed}[how] == {"pts:1"}
    assert host.sample().answered | host.sample().closed == frozenset()


def test_who_sleeps_where_nothing_wakes_him_waits_for_a_disk(host):
    """Not for anybody."""
    host.reads(ROOT, TTY, state=UNINTERRUPTIBLE)
    assert host.sample().waiters == ()
    host.reads(ROOT, TTY, state=INTERRUPTIBLE)
    assert keys(host.sample()) == ASKS


@pytest.mark.parametrize(
    ("flags", "number", "want"),
    [(NARROW, NARROW_READ, "read"), (NARROW, READ_CALL, None), (0, NARROW_READ, None)],
    ids=["32-bit read", "32-bit restart", "64-bit close"],
)
def test_a_32_bit_program_has_numbers_of_its_own(host, flags, number, want):
    """The same number is another call there."""
    host.reads(ROOT, TTY, number, flags=flags)
    assert [w.syscall for w in host.sample().waiters] == ([] if want is None else [want])


def test_who_works_for_the_kernel_is_no_thread_of_the_program(host):
    """An io_uring worker has the registers of whoever made it."""
    worker = thread_record(ROOT + 1, ROOT, number=READ_CALL, flags=WORKER)
    host.reads(ROOT, TTY)
    host.kernel.queues = [waits_at(TTY, worker.task)]
    host.kernel.threads |= {ROOT: thread_record(ROOT, ROOT, number=230), ROOT + 1: worker}
    assert host.sample().waiters == ()
    view = host.source._trees[host.tree.root].views[ROOT]
    assert [(t.tid, t.activity) for t in view.threads] == [(ROOT, Activity.ACTIVE)]


def test_a_program_goes_on_without_its_first_thread(host):
    """That is a zombie until the last one ends; the others do what they do."""
    other = thread_record(ROOT + 1, ROOT, number=READ_CALL)
    host.reads(ROOT, TTY, state=ZOMBIE)
    host.kernel.queues = [waits_at(TTY, other.task)]
    host.kernel.threads[ROOT + 1] = other
    assert [w.key.tid for w in host.sample().waiters] == [ROOT + 1]


def polls(host, number, **more):
    """The root polls its terminal."""
    thread = host.thread(ROOT, number=number, **{"arg0": 1, "arg1": 1} | more)
    host.holds(TTY)
    host.kernel.queues = [waits_at(TTY, TABLE, thread.task)]
    host.kernel.polled = [member(TTY, tid=ROOT)]


@pytest.mark.parametrize(
    ("number", "more", "want"),
    [
        (POLL, {"arg2": 0xFFFF_FFFF}, None),
        (POLL, {"arg2": 1500}, 1.5),
        (PSELECT, {}, None),
        (PSELECT, {"arg4": 16}, 7.5),
        (PSELECT, {"arg4": 4096}, 3.0),
        (NARROW_PSELECT, {"arg4": 16, "flags": NARROW}, 3.0),
    ],
    ids=["none", "in a register", "null", "in memory", "not readable", "of another width"],
)
def test_the_time_out_of_a_poll_is_told(host, number, more, want):
    """One that is not known is taken for the longest that delays belief."""
    memory = struct.pack("=qq", 7, 500_000_000)
    (host.proc.root / str(ROOT) / "mem").write_bytes(bytes(16) + memory)
    polls(host, number, **more)
    (found,) = host.sample().waiters
    assert (found.timeout, found.wait_set) == (want, ("0=/dev/pts/1",))


def piped(host, slots):
    """A root that nobody saw begin reads its pipe and has written into another."""
    host.tree.recognised = False
    stdin = file_record(0, FIFO, mode=READ, tgid=ROOT, inode=70, output=slots)
    host.holds(
        file_record(1, FIFO, mode=WRITE, tgid=ROOT, inode=71),
        file_record(7, FIFO, mode=WRITE, tgid=HARNESS, inode=70),
    )
    host.reads(ROOT, stdin, written=100)
    return keys(host.sample())


def test_a_pipe_into_which_nothing_was_ever_written_has_fed_nobody(host):
    """So who reads it is no server between two requests."""
    assert piped(host, 0) == [(ROOT, "pipe:[70]")]


def test_a_server_that_has_answered_its_first_request_waits_for_nobody(host):
    """Something had come through the pipe before anybody looked."""
    assert piped(host, 1 << 32) == []


# -- helpers ---------------------------------------------------------------------------------


def test_a_helper_outside_is_named_by_the_terminal_itself(host):
    """Its queue tells who waits; the mark is only for the look, and only for who is there."""
    socket = file_record(3, SOCKET, family=1, tgid=ROOT)
    host.reads(ROOT, socket, RECVMSG)
    host.holds(TTY)
    host.add(STRANGER, 1)
    reader = host.reads(STRANGER, tty_record(5, tgid=STRANGER, object=TTY.object))
    host.kernel.queues += [
        waits_at(TTY, reader.task, waiter=STRANGER),
        waits_at(TTY, 0x99, waiter=4242, poller=ROOT),
    ]
    sample = host.sample()
    assert keys(sample) == [(STRANGER, "pts:1")]
    assert sample.still is None
    assert sorted(host.kernel.ever_marked) == [ROOT, STRANGER]
    assert host.kernel.marked == {ROOT: ROOT}


# -- what was printed ------------------------------------------------------------------------

SIZE = 4096
ICANON, ECHO = 0o2, 0o10


def printed(said, fd=0, modes=ICANON | ECHO, **more):
    """What the line discipline of a terminal has kept of everything that was printed on it."""
    kept = bytearray(SIZE)
    for place, byte in enumerate(said):
        kept[place % SIZE] = byte
    values = {
        "kind": Kind.TEXT, "size": LAYOUTS[TextRecord].size, "tgid": ROOT, "fd": fd, "modes": modes, "object": 1,
        "head": len(said), "rows": 50, "columns": 132, "has": 1, "text": bytes(kept),
    }  # fmt: skip
    return TextRecord(**values | more)


LONG = bytes(n % 251 for n in range(SIZE * 2 + 77))


@pytest.mark.parametrize("length", [1, 100, SIZE - 1, SIZE, SIZE + 1, len(LONG)])
def test_the_text_of_a_terminal_is_in_order(host, length):
    """However often its ring went round: the last that was printed, oldest first."""
    host.kernel.printed = [printed(LONG[:length])]
    seen = host.source.seen(host.tree, waiter(ROOT))
    assert seen.output == LONG[:length][-SIZE:]
    assert (seen.source, seen.terminal) == ("ldisc", True)
    assert (seen.columns, seen.lines) == (132, 50)


@pytest.mark.parametrize(
    ("modes", "want"), [(ICANON | ECHO, (True, True)), (ICANON, (True, False)), (0, (False, False))]
)
def test_the_modes_of_the_terminal_are_told(host, modes, want):
    """Of that one which the waiter reads."""
    host.kernel.printed = [printed(b"other", fd=5, modes=~modes & 0o12), printed(b"", modes=modes)]
    seen = host.source.seen(host.tree, waiter(ROOT))
    assert (seen.canonical, seen.echo, seen.output) == (*want, None)


def test_where_nothing_stands_the_terminal_it_prints_on_is_looked_at(host):
    """A program that is given a terminal of its own to read, and asks on another one."""
    host.kernel.printed = [
        printed(b"wrong", fd=5), printed(b"sure? ", fd=2, modes=0), printed(b""),
    ]  # fmt: skip
    seen = host.source.seen(host.tree, waiter(ROOT))
    assert (seen.output, seen.canonical, seen.echo) == (b"sure? ", True, True)


def test_a_terminal_that_has_no_text_tells_none(host):
    """What lies there is nothing that was printed."""
    host.kernel.printed = [printed(b"Password:", has=0)]
    assert host.source.seen(host.tree, waiter(ROOT)).output is None


@pytest.mark.parametrize("said", [b"\x1b[?1049hmenu", b"\x1b[?1049h\x1b[?1049ldone"])
def test_the_alternate_screen_is_known(host, said):
    """By the last that switched it."""
    host.kernel.printed = [printed(said)]
    assert host.source.seen(host.tree, waiter(ROOT)).alternate is said.endswith(b"menu")


@pytest.mark.parametrize(
    ("file", "piped", "shown", "want"),
    [
        (b"", b"", b"Password: ", "ldisc"),  # its results go into a file
        (b"3 rows\n", b"", b"Password: ", "ldisc"),
        (b"3 rows\n", b"sure? ", b"done\n", "syscall"),
        (b"sure? ", b"", b"$ agent", "output"),  # the harness draws on the terminal
        (b"sure? [y/N]\n", b"", b"", "output"),
        (b"a\n", b"b\n", b"c\n", "output"),
        (b"", b"b\n", b"c\n", "syscall"),
        (b"", b"", b"\x1b[?1049hmenu\n", "ldisc"),
        (b"", b"", b"", None),
    ],
)
def test_the_question_stands_where_a_line_is_unfinished(host, tmp_path, file, piped, shown, want):
    """Whichever of its outputs that is."""
    (tmp_path / "out").write_bytes(file)
    host.proc.hold(ROOT, {1: str(tmp_path / "out")})
    (host.proc.root / str(ROOT) / "io").write_text("wchar: 5\n")
    host.kernel.text = True
    host.kernel.printed = [printed(shown)]
    host.holds(file_record(2, FIFO, mode=WRITE, tgid=ROOT, inode=72))
    host.kernel.wrote = {72: Said(1, 6, 6, ROOT, piped)} if piped else {}
    seen = host.source.seen(host.tree, waiter(ROOT))
    assert (seen.source if seen.output else None) == want
    assert (seen.columns, seen.lines) == (132, 50)


def test_what_is_typed_is_never_asked_for(host):
    """Only what the tree writes: not the input, though it is a pipe like the others."""
    host.kernel.text = True
    host.holds(
        file_record(0, FIFO, mode=READ, tgid=ROOT, inode=70),
        file_record(1, FIFO, mode=WRITE, tgid=ROOT, inode=71),
        file_record(2, FIFO, mode=WRITE, tgid=ROOT, inode=72),
        file_record(3, FIFO, mode=READ, tgid=ROOT, inode=73),
    )
    host.kernel.wrote = {
        70: Said(1, 6, 6, HARNESS, b"secret"),
        71: Said(3, 6, 6, ROOT, b"asks: "),
        72: Said(2, 6, 6, ROOT, b"first "),
    }
    seen = host.source.seen(host.tree, waiter(ROOT, key="pipe:[70]", wiring="pipe"))
    assert (seen.output, seen.source) == (b"first asks: ", "syscall")
    assert host.kernel.asked_said == {(71, PIPES), (72, PIPES)}
