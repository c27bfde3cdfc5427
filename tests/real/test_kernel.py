"""Our programs in the real kernel: what they see of processes that do known things, and what they
leave behind.

Every test marks processes of its own; what else happens on the host is in no picture.
"""

import contextlib
import ctypes
import errno
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from receipt_trace.errors import UnobservableError
from receipt_trace.kernel import loader, syscall
from receipt_trace.kernel.loader import Kernel
from receipt_trace.kernel.records import EventRecord, Kind, ThreadRecord
from receipt_trace.observation import (
    Activity,
    Exec,
    Exit,
    FileKind,
    Process,
    ProcessId,
    Resync,
    Sample,
)
from receipt_trace.sources import proc
from receipt_trace.sources.bpf import Bpf
from receipt_trace.sources.events import KernelEvents
from receipt_trace.sources.look import Books
from receipt_trace.trees import Tree

from .support import (
    descendants,
    environment,
    eventually,
    gone,
    kill,
    missing,
    need,
    started,
    state,
)

pytestmark = pytest.mark.kernel

PROC: Final = Path("/proc")
RECVFROM: Final = 45
RING_BYTES: Final = 1 << 16
FORKS: Final = 3000
CHURN_S: Final = 3.0
GET_FD_BY_ID: Final = {"prog_id": 13, "map_id": 14, "link_id": 30}  # enum bpf_cmd


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    """Our programs, loaded once."""
    if os.geteuid() != 0:
        missing("only root may load programs into the kernel", "run the tests as root")
    try:
        found = Kernel()
    except UnobservableError as error:
        missing(f"BPF cannot be used: {error}", "receipt-trace doctor says what is wanted")
    yield found
    found.close()


@contextlib.contextmanager
def running(*argv: str, **more: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of ours, and whatever it has started, until the end of a test."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE} | more
    process = subprocess.Popen(argv, env=environment(Path("/")), bufsize=0, **pipes)
    try:
        yield process
    finally:
        for pid in (*descendants(process.pid), process.pid):
            kill(pid)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def script(text: str, **more: Any) -> Any:
    """The same, of a Python program that knows nothing but the standard library."""
    return running(sys.executable, "-S", "-E", "-c", text, **more)


def line(process: "subprocess.Popen[bytes]") -> bytes:
    """The next line it prints."""
    assert process.stdout is not None
    return process.stdout.readline()


def go(process: "subprocess.Popen[bytes]") -> None:
    """It waits for this before it begins."""
    assert process.stdin is not None
    process.stdin.write(b"\n")


@dataclass
class Sight:
    """The source, and trees that are looked at with it."""

    source: Bpf
    trees: list[Tree]

    def sample(self) -> list[Sample]:
        """A fresh look at each."""
        return [self.source.sample(t, time.monotonic_ns(), fresh=True) for t in self.trees]

    def picture(self) -> Process:
        """The root of the first, calls decoded."""
        self.sample()
        pids = [self.trees[0].root.pid]
        self.source.looks.update(self.source._look_at(pids))
        return self.source._trees[self.trees[0].root].views[pids[0]].picture()


@contextlib.contextmanager
def watching(kernel: Kernel, *pids: int) -> Iterator[Sight]:
    """Each process is the root of a tree, until the end of a test."""
    roots = [ProcessId(pid, proc.stat(PROC, pid).start) for pid in pids]
    trees = [Tree(root, parent=os.getpid(), recognised=True) for root in roots]
    sight = Sight(Bpf(kernel), trees)
    try:
        yield sight
    finally:
        for tree in trees:
            sight.source.forget(tree)


# -- what is seen of ourselves -----------------------------------------------------------


def test_the_saved_registers_are_found_again(kernel: Kernel) -> None:
    """At the same place, and only there; and calibration leaves nobody marked."""
    before = kernel.regs
    kernel._calibrate()
    assert kernel.regs == before
    assert os.getpid() not in kernel.marked()


def test_all_six_arguments_of_a_call_are_read(kernel: Kernel) -> None:
    """Of another process, as it gave them."""
    text = (
        "import ctypes, socket\n"
        "a, b = socket.socketpair()\n"
        "print(a.fileno(), flush=True)\n"
        "args = map(ctypes.c_long, (a.fileno(), 0x1000, 4243, 2, 0x2000, 0x3000))\n"
        f"ctypes.CDLL(None).syscall(ctypes.c_long({RECVFROM}), *args)\n"
    )
    with script(text) as process:
        want = (RECVFROM, (int(line(process)), 0x1000, 4243, 2, 0x2000, 0x3000))
        kernel.mark(process.pid, 1)

        def seen() -> bool:
            records = kernel.parse(kernel.snapshot()[1])
            return [(r.number, r.args) for r in records if isinstance(r, ThreadRecord)] == [want]

        eventually(seen, "the call is seen with its arguments")
        kernel.unmark(process.pid)


def test_our_own_descriptors_are_told_as_they_are(kernel: Kernel, tmp_path: Path) -> None:
    """Of each kind, compared with what fstat(2) and we ourselves know."""
    libc = ctypes.CDLL(None)
    with contextlib.ExitStack() as stack:

        def own(fd: int) -> int:
            stack.callback(os.close, fd)
            return fd

        def inode(fd: int) -> int:
            return os.fstat(fd).st_ino

        master, slave = map(own, os.openpty())
        reader, writer = map(own, os.pipe())
        os.mkfifo(tmp_path / "fifo")
        fifo = own(os.open(tmp_path / "fifo", os.O_RDWR))
        left, right = socket.socketpair()
        alone = socket.socket(socket.AF_UNIX)
        tcp = socket.socket()
        epoll = stack.enter_context(select.epoll())
        for one in (left, right, alone, tcp):
            stack.enter_context(one)
        number = os.ttyname(slave).rpartition("/")[2]
        status = os.fstat(fifo)
        want = {
            slave: (FileKind.TTY, f"pts:{number}", f"/dev/pts/{number}", None),
            master: (FileKind.PTMX, f"pts:{number}", "/dev/ptmx", None),
            own(os.open("/dev/null", os.O_RDONLY)): (FileKind.NULL, None, "/dev/null", None),
            reader: (FileKind.PIPE, f"pipe:[{inode(reader)}]", None, None),
            writer: (FileKind.PIPE, f"pipe:[{inode(reader)}]", None, None),
            fifo: (FileKind.PIPE, f"fifo:{status.st_dev}:{status.st_ino}", str(tmp_path / "fifo"), None),
            left.fileno(): (FileKind.UNIX, f"socket:[{inode(left.fileno())}]", None,
                            f"socket:[{inode(right.fileno())}]"),
            alone.fileno(): (FileKind.UNIX, f"socket:[{inode(alone.fileno())}]", None, None),
            tcp.fileno(): (FileKind.OUTSIDE, f"socket:[{inode(tcp.fileno())}]", None, None),
            epoll.fileno(): (FileKind.EPOLL, None, None, None),
            own(os.eventfd(0)): (FileKind.EVENT, None, None, None),
            own(libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC)): (FileKind.EVENT, None, None, None),
            own(libc.signalfd(-1, bytes(128), os.O_CLOEXEC)): (FileKind.EVENT, None, None, None),
            own(libc.inotify_init1(os.O_CLOEXEC)): (FileKind.OUTSIDE, None, None, None),
            own(os.pidfd_open(os.getppid())): (FileKind.PIDFD, str(os.getppid()), None, None),
            own(os.open("/proc/self/exe", os.O_RDONLY)): (FileKind.FILE, None, None, None),
            own(os.open("/", os.O_RDONLY)): (FileKind.FILE, None, None, None),
        }  # fmt: skip
        _, files, _ = kernel.look((os.getpid(),))
        books = Books(PROC, kernel.kinds, kernel.pipes)
        found = {f.fd: books.descriptor(f) for f in files}
        assert set(want) <= set(found)
        for fd, (kind, key, target, peer) in want.items():
            seen = found[fd]
            assert (seen.kind, seen.peer) == (kind, peer), seen
            assert key in (None, seen.key), seen
            assert target in (None, seen.target), seen
        assert (found[reader].readable, found[reader].writable) == (True, False)
        assert (found[writer].readable, found[writer].writable) == (False, True)


# -- who waits ---------------------------------------------------------------------------

WAYS: Final = r"""
import json, os, select, socket, sys, threading, time
keep, told, ready = [], [], threading.Semaphore(0)
def tty():
    return os.openpty()[1]
def pipe():
    return os.pipe()[0]
def unix():
    keep.extend(socket.socketpair()); return keep[-1].fileno()
def read(fd):
    os.read(fd, 1)
def poll(fd):
    p = select.poll(); p.register(fd, select.POLLIN); p.poll()
def choose(fd):
    select.select([fd], [], [])
def epoll(fd):
    p = select.epoll(); p.register(fd, select.EPOLLIN); p.poll()
def registered(fd):
    p = select.epoll(); p.register(fd, select.EPOLLIN); keep.append(p); time.sleep(1000)
def nothing(fd):
    time.sleep(1000)
def thread(way, fd):
    told.append((threading.get_native_id(), way.__name__, fd)); ready.release(); way(fd)
ways = [(way, make()) for way in (read, poll, choose, epoll, registered, nothing)
        for make in (tty, pipe, unix)]
for one in ways:
    threading.Thread(target=thread, args=one, daemon=True).start()
for _ in ways:
    ready.acquire()
print(json.dumps(told), flush=True)
sys.stdin.read()
"""
CALLS: Final = {
    "read": {"read"}, "poll": {"poll"}, "choose": {"select", "pselect6"},
    "epoll": {"epoll_wait", "epoll_pwait"},
}  # fmt: skip


def test_the_wait_queues_name_who_waits_and_nobody_else(kernel: Kernel) -> None:
    """On terminals, pipes and sockets, by read, poll, select and epoll; not who sleeps, and not who
    has put it into a set that he does not wait for.
    """
    with script(WAYS) as process, watching(kernel, process.pid) as sight:
        told = {tid: (way, fd) for tid, way, fd in json.loads(line(process))}
        want = {tid: fd if way in CALLS else None for tid, (way, fd) in told.items()}
        want[process.pid] = 0
        found: dict[int, Any] = {}

        def seen() -> bool:
            for thread in sight.picture().threads:
                fds = thread.call.fds if thread.call is not None else (None,)
                found[thread.tid] = fds[0] if fds is not None and len(fds) == 1 else fds
            return found == want

        eventually(seen, lambda: f"everybody is seen waiting: {found}, expected {want}")
        picture = sight.picture()
        for thread in picture.threads:
            way, _ = told.get(thread.tid, ("read", 0))
            if way in CALLS:
                assert thread.call is not None
                assert thread.call.name in CALLS[way]
            else:
                assert thread.activity is Activity.ACTIVE
        records = sight.source.threads[process.pid]
        idle = {records[tid].task for tid, (way, _) in told.items() if way not in CALLS}
        queues = sight.source.looks[process.pid].queues.values()
        named = {address for queue in queues for w in queue for address in (w.private, w.behind)}
        assert len(idle) == 6
        assert not idle & named


HOSTILE: Final = b"a)\x1b]0;x\x07\xff\n"


def test_a_hostile_name_is_text(kernel: Kernel) -> None:
    """Whatever a program calls itself, the rest of it is told right."""
    text = (
        "import sys\n"
        f"open('/proc/self/comm', 'wb', 0).write({HOSTILE!r})\n"
        "print(flush=True); sys.stdin.read()\n"
    )
    with script(text) as process, watching(kernel, process.pid) as sight:
        line(process)
        picture = sight.picture()
        assert picture.comm == "a)\x1b]0;x\x07\\xff\n"
        assert (picture.ppid, picture.group) == (os.getpid(), os.getpgrp())
        assert picture.session == os.getsid(0)


# -- marks -------------------------------------------------------------------------------

BORN: Final = {
    "double fork and a session of its own": (
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        print(os.getpid(), flush=True); time.sleep(1000)\n"
        "    os._exit(0)\n"
        "os.wait(); time.sleep(1000)\n"
    ),
    "vfork": (
        "import subprocess\n"
        "print(subprocess.Popen(['sleep', '1000']).pid, flush=True); time.sleep(1000)\n"
    ),
    "a thread forks": (
        "import threading\n"
        "def fork():\n"
        "    if os.fork() == 0:\n"
        "        print(os.getpid(), flush=True); time.sleep(1000)\n"
        "thread = threading.Thread(target=fork); thread.start(); time.sleep(1000)\n"
    ),
}


@pytest.mark.parametrize("how", BORN)
def test_who_is_born_in_a_tree_is_marked(kernel: Kernel, how: str) -> None:
    """However it comes to be, and whoever its parent is then."""
    with script(f"import os, sys, time\nsys.stdin.readline()\n{BORN[how]}") as process:
        kernel.mark(process.pid, 4711)
        go(process)
        born = int(line(process))
        try:
            assert {process.pid, born} <= set(kernel.marked())
            kernel.unmark(process.pid)
            snapshot = list(kernel.parse(kernel.snapshot()[1]))
            told = {(r.tgid, r.root) for r in snapshot if isinstance(r, ThreadRecord)}
            assert (born, 4711) in told
        finally:
            kill(born)
        eventually(lambda: born not in kernel.marked(), "its mark ends with it")


def test_exec_by_another_thread_keeps_the_mark(kernel: Kernel) -> None:
    """The thread takes the number of the first one; it is told under that."""
    text = (
        "import os, sys, threading, time\n"
        "sys.stdin.readline()\n"
        "args = ('sleep', ['sleep', '1000'])\n"
        "threading.Thread(target=os.execvp, args=args).start(); time.sleep(1000)\n"
    )
    events = KernelEvents(kernel, lambda _: None)
    with script(text) as process, watching(kernel, process.pid) as sight:
        sight.sample()
        events.read()
        go(process)
        told: list[Any] = []

        def became() -> list[tuple[str, ...]]:
            told.extend(events.read())
            return [e.began.argv for e in told if isinstance(e, Exec) and e.pid == process.pid]

        eventually(lambda: ("sleep", "1000") in became(), "exec is told")
        assert process.pid in kernel.marked()
        eventually(lambda: sight.picture().comm == "sleep", "it is another program")
        assert [t.tid for t in sight.picture().threads] == [process.pid]
        assert Exit(process.pid, 0) not in told


def test_a_process_ends_with_its_last_thread(kernel: Kernel) -> None:
    """Not with its first: that is a zombie while another one works."""
    text = (
        "import ctypes, sys, threading\n"
        "leave = ctypes.CDLL(None).syscall\n"  # exit(2) ends a thread, not the process
        "def work():\n"
        "    sys.stdin.readline(); leave(60, 0)\n"
        "threading.Thread(target=work).start(); leave(60, 0)\n"
    )
    events = KernelEvents(kernel, lambda _: None)
    with script(text) as process:
        kernel.mark(process.pid, 1)
        eventually(lambda: state(process.pid) == "Z", "its first thread has ended")
        assert process.pid in kernel.marked()
        assert not any(isinstance(e, Exit) and e.pid == process.pid for e in events.read())
        go(process)
        assert process.wait(30) == 0
        assert process.pid not in kernel.marked()
        assert Exit(process.pid, 0) in events.read()


ACTOR: Final = r"""
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void storm(int count)
{
	char c;
	int stay = 0;

	if (read(0, &c, 1) != 1)
		exit(1);
	for (int n = 0; n < count; n++) {
		if (fork() == 0) {
			if (n % 500 == 0) {
				fork();
				pause();
			}
			_exit(0);
		}
		stay += n % 500 == 0;
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
	printf("%d\n", 2 * stay);
	fflush(stdout);
	pause();
}

static void churn(const char *name)
{
	for (int n = 0;; n++) {
		struct pollfd one = { open(name, O_RDWR | O_NOCTTY), POLLIN, 0 };

		if (one.fd < 0)
			exit(1);
		poll(&one, 1, n % 3);
		close(one.fd);
	}
}

static void *shared(int ring, size_t bytes, off_t at)
{
	return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, at);
}

static int uring(int flags)
{
	struct io_uring_params p = {0};
	static char buffer[8];
	int ring = syscall(SYS_io_uring_setup, 2, &p);

	if (ring < 0)
		return 77;
	char *sq = shared(ring, p.sq_off.array + p.sq_entries * 4, IORING_OFF_SQ_RING);
	struct io_uring_sqe *sqe = shared(ring, p.sq_entries * sizeof(*sqe), IORING_OFF_SQES);

	sqe->opcode = IORING_OP_READ;
	sqe->flags = flags;
	sqe->addr = (uintptr_t)buffer;
	sqe->len = sizeof(buffer);
	sqe->off = -1;
	((uint32_t *)(sq + p.sq_off.array))[0] = 0;
	__atomic_store_n((uint32_t *)(sq + p.sq_off.tail), 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
		return 1;
	return buffer[0] != 'y';
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	if (!strcmp(argv[1], "storm"))
		storm(atoi(argv[2]));
	else if (!strcmp(argv[1], "churn"))
		churn(argv[2]);
	else
		return uring(atoi(argv[2]));
}
"""


@pytest.fixture(scope="module")
def actor(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small program that does what is too fast or too rare for Python."""
    need("gcc")
    folder = tmp_path_factory.mktemp("actor")
    (folder / "actor.c").write_text(ACTOR)
    subprocess.run(["gcc", "-O1", "-o", folder / "actor", folder / "actor.c"], check=True)
    return str(folder / "actor")


def test_marks_are_exact_after_a_storm_and_losses_are_counted(
    kernel: Kernel, actor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands are born and end, into a ring that holds a part of that and that nobody empties."""
    built = kernel.objects
    small = (*built.maps["events"][:3], RING_BYTES, *built.maps["events"][4:])
    objects = built._replace(maps=built.maps | {"events": small})
    monkeypatch.setattr(loader, "get_objects", lambda: objects)
    with contextlib.closing(Kernel()) as own, running(actor, "storm", str(FORKS)) as process:
        own.mark(process.pid, 1)
        go(process)
        stay = int(line(process))
        living = {process.pid}

        def settled() -> bool:
            below = [pid for pid in descendants(process.pid) if not gone(pid)]
            living.update(below)
            return len(below) == stay

        eventually(settled, "those that stay are there")
        eventually(lambda: set(own.marked()) == living, lambda: f"{own.marked()}, not {living}")
        lost, marks, calls = own.losses()
        assert lost > 0
        assert (marks, calls) == (0, 0)
        told = [r for raw in own.ring.read(1 << 20) for r in own.parse(raw)]
        forks = [r for r in told if isinstance(r, EventRecord) and r.kind == Kind.FORK]
        assert 0 < len([r for r in forks if r.parent == process.pid]) < FORKS
        assert len(told) + own.losses()[0] >= 2 * FORKS
        assert Resync() in KernelEvents(own, lambda _: None).read()


def test_what_changes_while_it_is_looked_at_names_nobody_else(kernel: Kernel, actor: str) -> None:
    """A walk takes no locks: two processes open, poll and close one terminal all the time, and
    whoever is told to wait there is one of the two.
    """
    master, slave = os.openpty()
    name = os.ttyname(slave)
    try:
        with (
            running(actor, "churn", name) as one,
            running(actor, "churn", name) as other,
            watching(kernel, one.pid, other.pid) as sight,
        ):
            ours = {one.pid, other.pid}
            looks, waited = 0, set()
            until = time.monotonic() + CHURN_S
            while time.monotonic() < until:
                for sample in sight.sample():
                    waited |= {(w.key.pid, w.target) for w in sample.waiters}
                looks += 1
            assert (one.poll(), other.poll()) == (None, None)
            assert looks >= 10
            assert waited <= {(pid, name) for pid in ours}
    finally:
        os.close(master)
        os.close(slave)


# -- programs of other kinds -------------------------------------------------------------


@contextlib.contextmanager
def on_terminal(*argv: str) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """A program whose input is a terminal of ours, and the side where one types."""
    master, slave = os.openpty()
    try:
        with running(*argv, stdin=slave) as process:
            yield process, master
    finally:
        os.close(master)
        os.close(slave)


NARROW: Final = """
.globl _start
_start:
	mov $3, %eax        # read(0, stack, 1)
	xor %ebx, %ebx
	mov %esp, %ecx
	mov $1, %edx
	int $0x80
	mov $1, %eax        # exit(0)
	xor %ebx, %ebx
	int $0x80
"""


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A 32-bit program that reads one byte; it needs no library."""
    need("gcc")
    folder = tmp_path_factory.mktemp("narrow")
    (folder / "narrow.S").write_text(NARROW)
    program = folder / "narrow"
    subprocess.run(
        ["gcc", "-m32", "-nostdlib", "-static", "-o", program, folder / "narrow.S"], check=True
    )
    try:
        subprocess.run([program], stdin=subprocess.DEVNULL, check=True)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        missing("this kernel runs no 32-bit programs", "CONFIG_IA32_EMULATION")
    return str(program)


def test_a_32_bit_program_is_seen_reading(kernel: Kernel, narrow: str) -> None:
    """Its numbers are others, and its arguments are in other registers."""
    with (
        on_terminal(narrow) as (process, master),
        watching(kernel, process.pid) as sight,
    ):
        found = eventually(lambda: sight.sample()[0].waiters, "it is seen waiting")
        assert [(w.key.pid, w.syscall, w.fd, w.grade) for w in found] == [
            (process.pid, "read", 0, "kernel")
        ]
        os.write(master, b"y\n")
        assert process.wait(30) == 0


def test_a_32_bit_program_gives_a_receipt(kernel: Kernel, narrow: str, tmp_path: Path) -> None:
    """Like any other."""
    with started(tmp_path, narrow, options=("--source", "bpf", "--wiring", "tty")) as command:
        receipt = command.wait()
    assert receipt["program"]["name"] == "narrow"
    evidence = receipt["evidence"]
    assert (evidence["syscall"], evidence["grade"]) == ("read", "kernel")
    assert receipt["input"]["wiring"] == "tty"


@pytest.mark.parametrize(("flags", "call"), [(0, "polled"), (16, "a worker reads")])
def test_who_reads_through_io_uring_is_never_told(
    kernel: Kernel, actor: str, flags: int, call: str
) -> None:
    """Nobody can know for what it waits: the program itself, and a worker that reads for it."""
    with (
        on_terminal(actor, "uring", str(flags)) as (process, master),
        watching(kernel, process.pid) as sight,
    ):

        def submitted() -> bool:
            if process.poll() == 77:
                missing("this kernel has no io_uring", "sysctl kernel.io_uring_disabled=0")
            workers = len(os.listdir(f"/proc/{process.pid}/task")) > 1
            call = Path(f"/proc/{process.pid}/syscall").read_bytes()
            return call.startswith(b"426 ") and workers == bool(flags)

        eventually(submitted, "it waits in io_uring_enter(2)")
        for _ in range(5):
            assert [s.waiters for s in sight.sample()] == [()]
        assert [t.tid for t in sight.picture().threads] == [process.pid]
        os.write(master, b"y\n")
        assert process.wait(30) == 0  # it did read the terminal


# -- what is left ------------------------------------------------------------------------


def identities(pid: int) -> set[tuple[str, int]]:
    """The programs, maps and links that a process holds, by the numbers the kernel gave them."""
    found = set()
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):
            raw = info.read_bytes()
            for kind in GET_FD_BY_ID:
                number = proc.field(raw, kind)
                if number is not None:
                    found.add((kind, number))
    return found


def exists(kind: str, number: int) -> bool:
    """Whether the kernel still has one of them."""
    try:
        os.close(syscall.bpf(GET_FD_BY_ID[kind], struct.pack("=I", number)))
    except OSError as error:
        if error.errno == errno.ENOENT:
            return False
        raise
    return True


def test_nothing_is_left_of_one_that_is_killed(kernel: Kernel) -> None:
    """Not a program, not a map, not a hook: they live by its descriptors alone."""
    text = (
        "import os, sys\n"
        "from receipt_trace.kernel.loader import Kernel\n"
        "kernel = Kernel(); kernel.mark(os.getpid(), 1)\n"
        "print(flush=True); sys.stdin.read()\n"
    )
    with running(sys.executable, "-c", text) as process:
        line(process)
        held = identities(process.pid)
        assert {kind for kind, _ in held} == set(GET_FD_BY_ID)
        assert all(exists(*one) for one in held)
        process.kill()
        process.wait()
    left: list[tuple[str, int]] = []

    def nothing() -> bool:
        left[:] = [one for one in held if exists(*one)]
        return not left

    eventually(nothing, lambda: f"everything is gone but {left}")


def test_opening_and_closing_leaves_nothing_open(kernel: Kernel, descriptors: None) -> None:
    """Exactly the same descriptors as before, each time; also where something refuses."""

    def refuse(*_: Any) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    before = sorted(os.listdir("/proc/self/fd"))
    Kernel().close()
    assert sorted(os.listdir("/proc/self/fd")) == before
    for name in ("attach_raw_tracepoint", "attach_iterator", "open_iterator", "map_ring"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(syscall, name, refuse)
            with pytest.raises(UnobservableError, match=r"bpf\(2\) is refused"):
                Kernel()
        assert sorted(os.listdir("/proc/self/fd")) == before, name
