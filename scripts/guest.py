"""What `scripts/kernels` runs inside a booted kernel: our programs against what is known.

Every check starts programs that wait, or only look as if they did, asks the kernel about
them through the loaded programs, and compares with /proc or with what the check itself did.

    python3 guest.py RESULTS SET [PREFIX]

One line of JSON for each check goes to the file RESULTS; SET names the checks to run, and
PREFIX stands before their names.
"""

import contextlib
import ctypes
import fcntl
import functools
import json
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn, Self, TypeVar
from unittest import mock

from receipt_trace.kernel import objects
from receipt_trace.kernel.loader import Kernel
from receipt_trace.kernel.records import (
    MEMBERS_GO_ON,
    EofRecord,
    EventRecord,
    FileRecord,
    Kind,
    MemberRecord,
    ProgramRecord,
    Record,
    ThreadFlag,
    ThreadRecord,
)

T = TypeVar("T")
R = TypeVar("R", EofRecord, ProgramRecord)

_BOUND_S: Final = 30.0  # an emulated processor is slow, and the machine below it busy
_CHECK_S: Final = 600
_BUILD_S: Final = 500.0  # two seconds on a processor, a minute here, more where others work
_CANARY: Final = b"typed and never to be read"
_MAP_32BIT: Final = 0x40
_EXIT: Final = 60  # of one thread; x86-64
_NO_ANSWER: Final = 99

_libc = ctypes.CDLL(None, use_errno=True)


# -- programs that wait -----------------------------------------------------------------


class Child:
    """A process of our own that runs a function, once it is marked; ended with the check.

    ``ready`` is to be called by the function just before it blocks.
    """

    def __init__(self, kernel: Kernel, body: Callable[[], object]) -> None:
        self.kernel = kernel
        gate, opener = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.read(gate, 1)
            os.close(gate)
            os.close(opener)
            _become(body)
        kernel.mark(self.pid, self.pid)
        os.write(opener, b"x")
        os.close(gate)
        os.close(opener)

    def asleep(self) -> bool:
        """Whether it has said that it is ready, and sleeps."""
        name, _, rest = (
            Path(f"/proc/{self.pid}/stat").read_text().partition(" (")[2].rpartition(")")
        )
        return name == "ready" and rest.split()[0] in {"S", "T", "Z"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self.kernel.unmark(self.pid)


def _become(body: Callable[[], object]) -> NoReturn:
    try:
        body()
    except BaseException:  # noqa: BLE001  (a child never returns into the checks)
        traceback.print_exc()
        os._exit(_NO_ANSWER)
    os._exit(0)


def ready() -> None:
    """Tell the parent, by our name, that we block next."""
    Path("/proc/self/comm").write_text("ready")


def eventually(condition: Callable[[], T | None], what: str) -> T:
    """Wait for a condition, with a bound; returns what it gave."""
    deadline = time.monotonic() + _BOUND_S
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {_BOUND_S:g} s: {what}")
        time.sleep(0.02)
    return value


@contextlib.contextmanager
def opened(kind: str) -> Iterator[tuple[int, int]]:
    """(the end that is read, the other) of a fresh ``pty``, ``pipe`` or ``socket``."""
    if kind == "pty":
        other, end = os.openpty()
    elif kind == "pipe":
        end, other = os.pipe()
    else:
        one, two = socket.socketpair()
        end, other = one.detach(), two.detach()
    try:
        yield end, other
    finally:
        os.close(end)
        os.close(other)


def on(end: int, body: Callable[[], object]) -> Callable[[], None]:
    """The function, with this for its standard input; a terminal becomes its controlling one."""

    def run() -> None:
        os.setsid()
        if os.isatty(end):
            fcntl.ioctl(end, termios.TIOCSCTTY, 0)
        os.dup2(end, 0)
        ready()
        body()

    return run


def read() -> None:
    """A plain read."""
    os.read(0, 100)


def use_select() -> None:
    """A select without a time-out."""
    select.select([0], [], [])


def poll(events: int = select.POLLIN) -> None:
    """A poll without a time-out."""
    poller = select.poll()
    poller.register(0, events)
    poller.poll()


def epoll(*more: int) -> None:
    """A wait for an epoll set."""
    chosen = select.epoll()
    for fd in (0, *more):
        chosen.register(fd, select.EPOLLIN)
    chosen.poll()


def sleep() -> None:
    """A sleep: no wait for input."""
    time.sleep(600)


def lock() -> None:
    """A lock that nobody gives back."""
    held = threading.Lock()
    held.acquire()
    held.acquire()


def sleep_with_epoll() -> None:
    """An epoll set that nobody waits for."""
    chosen = select.epoll()
    chosen.register(0, select.EPOLLIN)
    time.sleep(600)


def narrow_read() -> None:
    """A read of one byte by int 0x80, as a 32-bit program calls: eax, ebx, ecx, edx."""
    page = mmap.mmap(
        -1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_32BIT,
        mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC,
    )  # fmt: skip
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    page.write(
        b"\x53\xb8\x03\x00\x00\x00\x31\xdb"  # push rbx; mov eax, 3; xor ebx, ebx
         b"\xb9" + (address + 1024).to_bytes(4, "little")  # mov ecx, buffer
        + b"\xba\x01\x00\x00\x00\xcd\x80\x5b\xc3"  # mov edx, 1; int 0x80; pop rbx; ret
    )  # fmt: skip
    ctypes.CFUNCTYPE(ctypes.c_int)(address)()


# -- what the kernel tells -----------------------------------------------------------------


def threads(kernel: Kernel, pid: int) -> list[ThreadRecord]:
    """A snapshot's records of a process."""
    _, raw = kernel.snapshot()
    return [r for r in kernel.parse(raw) if isinstance(r, ThreadRecord) and r.tgid == pid]


def waiting(kernel: Kernel, pid: int) -> dict[int, str]:
    """Descriptor to how a thread of the process waits for it, by the wait queues alone."""
    tasks = {thread.task for thread in threads(kernel, pid)}
    _, files, waiters = kernel.look([pid])
    watched = {w.object for w in waiters if w.private in tasks}
    found = {}
    for waiter in waiters:
        if waiter.private in tasks:
            how = "itself"
        elif waiter.behind in tasks:
            how = "poll"
        elif waiter.behind in watched:
            how = "epoll"
        else:
            continue
        found.update({file.fd: how for file in files if file.object == waiter.object})
    return found


def events(kernel: Kernel) -> list[Record]:
    """What the ring holds."""
    return [record for raw in kernel.ring.read(100_000) for record in kernel.parse(raw)]


class Seen:
    """Events of the ring, kept as they come."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        events(kernel)
        self._found: list[Record] = []

    def event(self, kind: Kind, pid: int) -> EventRecord | None:
        """The first event of this kind about a process."""
        self._found += events(self._kernel)
        for record in self._found:
            if isinstance(record, EventRecord) and (record.kind, record.tgid) == (kind, pid):
                return record
        return None

    def end(self, pid: int) -> EofRecord | None:
        """The first end of an input of a process."""
        return self._first(EofRecord, pid)

    def program(self, pid: int) -> ProgramRecord | None:
        """What the root of a tree first became."""
        return self._first(ProgramRecord, pid)

    def _first(self, kind: type[R], pid: int) -> R | None:
        self._found += events(self._kernel)
        return next((r for r in self._found if isinstance(r, kind) and r.tgid == pid), None)


def equal(seen: object, expected: object, what: str) -> None:
    """Both are the same, or the check has failed."""
    assert seen == expected, f"{what}: the kernel tells {seen!r}; expected {expected!r}"


# -- checks: a snapshot ----------------------------------------------------------------------


def saved_registers(kernel: Kernel) -> str:
    """Number and arguments of blocked calls are those that /proc tells."""
    numbers = []
    for body in (read, use_select, poll, epoll, sleep, signal.pause, lock):
        with opened("pty") as (end, _), Child(kernel, on(end, body)) as child:
            eventually(child.asleep, f"{body} blocks")
            told = Path(f"/proc/{child.pid}/syscall").read_text().split()
            expected = (int(told[0]), *(int(word, 16) for word in told[1:7]))
            (thread,) = threads(kernel, child.pid)
            equal((thread.number, *thread.args), expected, "a blocked call")
            assert not thread.flags & ThreadFlag.RUNS, "a sleeper is said to run"
            numbers.append(thread.number)
    return (
        f"at {kernel.regs} ({16384 - 168 - kernel.regs} above); calls {' '.join(map(str, numbers))}"
    )


def narrow_call(kernel: Kernel) -> str:
    """A 32-bit call, with other numbers and registers, is told from one of 64 bits."""
    with opened("pipe") as (end, _), Child(kernel, on(end, narrow_read)) as child:
        eventually(child.asleep, "the program blocks")
        (thread,) = threads(kernel, child.pid)
        if thread.state & 0x30:
            return "this kernel takes no 32-bit calls"
        assert thread.flags & ThreadFlag.NARROW, "it is not told apart"
        equal((thread.number, thread.arg0, thread.arg2), (3, 0, 1), "read, as 32 bits count it")
        equal(waiting(kernel, child.pid).get(0), "itself", "descriptor 0 is waited for")
    return ""


def wait_queue(kind: str, body: Callable[[], object], how: str | None) -> Callable[[Kernel], str]:
    """A check: who waits for an object of this kind, and how; ``None``: nobody."""

    def check(kernel: Kernel) -> str:
        with opened(kind) as (end, _), Child(kernel, on(end, body)) as child:
            eventually(child.asleep, "the program blocks")
            found = waiting(kernel, child.pid)
            equal(found.get(0), how, "descriptor 0 is waited for")
            equal(found.get(end), how, "the same, by its other number")
        return ""

    return check


def poll_set(kernel: Kernel) -> str:
    """Every file of a large poll is told, and that there are more than are told."""
    told = []
    for count in (5, 30, 100):
        with contextlib.ExitStack() as stack:
            ends = [stack.enter_context(opened("pipe"))[0] for _ in range(count)]
            poller = select.poll()
            for end in ends:
                poller.register(end, select.POLLIN)
            child = stack.enter_context(Child(kernel, on(ends[0], poller.poll)))
            eventually(child.asleep, "the program blocks")
            (thread,) = threads(kernel, child.pid)
            _, files, waiters = kernel.look([child.pid])
            table = {w.private for w in waiters if w.behind == thread.task}
            equal(len(table), 1, "tables of one poll")
            members = kernel.members({child.pid: table.pop()}, {})
            expected = {file.file for file in files if file.fd in ends}
            seen = {m.file for m in members if m.fd != MEMBERS_GO_ON}
            more = any(m.fd == MEMBERS_GO_ON for m in members)
            assert seen <= expected, "files are told that are not polled"
            equal(seen == expected, not more, "all were told")
            assert count > 70 or not more, f"of {count} only {len(seen)} are told"
            assert all(m.events & select.POLLIN for m in members if m.fd != MEMBERS_GO_ON), members
            told.append(f"{len(seen)}/{count}")
    return " ".join(told)


def epoll_set(kernel: Kernel) -> str:
    """Every descriptor in an epoll set is told, by number."""
    told = []
    for count in (3, 40, 100):
        with contextlib.ExitStack() as stack:
            ends = [stack.enter_context(opened("pipe"))[0] for _ in range(count)]
            body = lambda ends=ends: epoll(*ends)  # noqa: E731
            child = stack.enter_context(Child(kernel, on(ends[0], body)))
            eventually(child.asleep, "the program blocks")
            _, files, _ = kernel.look([child.pid])
            (chosen,) = [file.object for file in files if file.operations == kernel.epoll]
            members = kernel.members({}, {child.pid: chosen})
            seen = {m.fd for m in members if m.fd != MEMBERS_GO_ON}
            more = any(m.fd == MEMBERS_GO_ON for m in members)
            assert seen <= {0, *ends}, "descriptors are told that are not in the set"
            equal(seen == {0, *ends}, not more, "all were told")
            assert count > 60 or not more, f"of {count} only {len(seen)} are told"
            told.append(f"{len(seen)}/{count + 1}")
    return " ".join(told)


def processes(kernel: Kernel) -> str:
    """Who a process is: groups, terminal, user, signals."""

    def body() -> None:
        os.setuid(1234)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.pause()

    with opened("pty") as (end, _), Child(kernel, on(end, body)) as child:
        eventually(child.asleep, "the program blocks")
        told = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        status = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{child.pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        eventually(lambda: kernel.look([child.pid])[0][0].uid == 1234, "its user is seen")
        (process,) = kernel.look([child.pid])[0]
        number = os.fstat(end).st_rdev
        device = os.major(number) << 20 | os.minor(number)
        seen = (
            process.parent,
            process.group,
            process.session,
            process.foreground,
            process.terminal,
        )
        equal(
            seen, (*map(int, (told[1], told[2], told[3], told[5])), device), "groups and terminal"
        )
        equal(process.ignored, int(status["SigIgn"], 16), "ignored signals")
        equal(process.caught, int(status["SigCgt"], 16), "caught signals")
        equal(process.comm.split(b"\0")[0], b"ready", "its name")
        ticks = process.start * os.sysconf("SC_CLK_TCK") // 10**9
        equal(ticks, int(told[19]), "its start")
    return ""


def threads_states(kernel: Kernel) -> str:
    """Who runs, is stopped, has ended; processor time and bytes read."""

    def busy() -> None:
        data = os.open("/dev/zero", os.O_RDONLY)
        while True:
            os.read(data, 1000)

    with Child(kernel, busy) as child:
        eventually(lambda: threads(kernel, child.pid), "it is seen")
        (before,) = threads(kernel, child.pid)
        eventually(lambda: threads(kernel, child.pid)[0].cpu > before.cpu + 50_000_000, "it works")
        (after,) = threads(kernel, child.pid)
        assert after.flags & ThreadFlag.RUNS, "a thread that works is not said to run"
        assert after.consumed > before.consumed, "what it reads is not counted"
        os.kill(child.pid, signal.SIGSTOP)
        eventually(lambda: threads(kernel, child.pid)[0].state & 4, "it is seen as stopped")
        os.kill(child.pid, signal.SIGKILL)
        eventually(
            lambda: not (now := threads(kernel, child.pid)) or now[0].state & 0x30,
            "it is seen as ended",
        )
    return ""


def files(kernel: Kernel) -> str:
    """Kinds of descriptors, other ends, and how far outputs have come."""
    with contextlib.ExitStack() as stack:
        slave, master = stack.enter_context(opened("pty"))
        reader, writer = stack.enter_context(opened("pipe"))
        left, right = stack.enter_context(opened("socket"))
        null = os.open(os.devnull, os.O_RDONLY)
        stack.callback(os.close, null)
        wanted = (slave, master, reader, writer, left, right, null)

        def look() -> dict[int, FileRecord]:
            return {file.fd: file for file in kernel.look([os.getpid()])[1]}

        seen = look()
        for fd in wanted:
            status = os.fstat(fd)
            equal((seen[fd].inode, seen[fd].type), (status.st_ino, status.st_mode), f"file {fd}")
            if fd in {slave, null}:
                device = os.major(status.st_rdev) << 20 | os.minor(status.st_rdev)
                equal(seen[fd].device, device, f"device {fd}")
        equal([seen[fd].mode for fd in (reader, writer, left)], [1, 2, 3], "ways they may be used")
        equal(seen[left].peer, os.fstat(right).st_ino, "the other end of a socket")
        equal(seen[master].terminal, seen[slave].terminal, "the terminal of a master")
        equal(seen[reader].writers, 1, "writers of a pipe")
        outputs = [seen[reader].output]
        for _ in range(3):
            os.write(writer, b"same size")
            outputs.append(look()[reader].output)
            os.read(reader, 4)
            equal(look()[reader].output, outputs[-1], "a read is no output")
        equal(len(set(outputs)), 4, "every write moves the mark")
        before = look()[slave].output
        os.write(slave, b"12345")
        eventually(lambda: look()[slave].output == before + 5, "what is printed is counted")
    return ""


# -- checks: lifecycle ---------------------------------------------------------------------------


def lifecycle(kernel: Kernel) -> str:
    """Fork, exec and exit are told with status, and marks follow them."""
    seen = Seen(kernel)
    with opened("pipe") as (end, other):

        def body() -> None:
            inner = os.fork()
            os.write(other, inner.to_bytes(4, "little")) if inner else _inner()
            if inner:
                os.waitpid(inner, 0)
                os._exit(5)

        def _inner() -> None:
            os.execv("/bin/sh", ["sh", "-c", "sleep 0.2; exit 7"])  # noqa: S606

        with Child(kernel, body) as child:
            inner = int.from_bytes(os.read(end, 4), "little")
            fork = eventually(lambda: seen.event(Kind.FORK, inner), "the fork is told")
            equal(fork.parent, child.pid, "the parent")
            eventually(lambda: seen.event(Kind.EXEC, inner), "the exec is told")
            exit_ = eventually(lambda: seen.event(Kind.EXIT, inner), "the exit is told")
            equal((exit_.status, exit_.start), (7 << 8, fork.start), "its status and start")
            last = eventually(lambda: seen.event(Kind.EXIT, child.pid), "the other exit is told")
            equal(last.status, 5 << 8, "its status")
            equal(kernel.marked(), [], "marks of who has ended")
    equal(kernel.losses(), (0, 0, 0), "losses")
    return ""


def marks_follow(kernel: Kernel) -> str:
    """A child that lives carries its parent's mark, whatever becomes of the parent."""
    with opened("pipe") as (end, other):

        def body() -> None:
            if not os.fork():
                os.setsid()
                if not os.fork():
                    os.write(other, os.getpid().to_bytes(4, "little"))
                    os.dup2(end, 0)
                    os.close(other)
                    ready()
                    signal.pause()
                os._exit(0)
            os.wait()

        with Child(kernel, body) as child:
            orphan = int.from_bytes(os.read(end, 4), "little")
            try:
                eventually(lambda: kernel.marked() == [orphan], "only the orphan is left")
                (thread,) = threads(kernel, orphan)
                equal(thread.root, child.pid, "the root of its mark")
            finally:
                os.kill(orphan, signal.SIGKILL)
            eventually(lambda: not kernel.marked(), "its mark goes with it")
    return ""


def thread_exec(kernel: Kernel) -> str:
    """A program that another thread than the first replaces keeps its mark."""
    seen = Seen(kernel)

    def body() -> None:
        time.sleep(0.1)
        argv = ["sleep", "600"]
        worker = threading.Thread(target=os.execve, args=("/bin/sleep", argv, {"LAST": "1"}))
        worker.start()
        worker.join()

    with Child(kernel, body) as child:
        told = eventually(lambda: seen.program(child.pid), "the exec is told")
        arguments = told.arguments[: told.argument_bytes]
        equal((told.parent, arguments), (os.getpid(), b"sleep\x00600\x00"), "the root")
        environment = told.environment[: told.environment_bytes]
        equal(environment, b"LAST=1\x00", "its environment")
        equal(kernel.marked(), [child.pid], "marks")
        equal(seen.event(Kind.EXIT, child.pid), None, "an exit")
        equal([t.tid for t in threads(kernel, child.pid)], [child.pid], "its threads")
    return ""


def leader_first(kernel: Kernel) -> str:
    """A process whose first thread has ended lives until its last thread does."""
    seen = Seen(kernel)

    def body() -> None:
        threading.Thread(target=signal.pause, daemon=True).start()
        time.sleep(0.1)
        _libc.syscall(_EXIT, 0)

    with Child(kernel, body) as child:
        eventually(
            lambda: any(t.tid == child.pid and t.state & 0x20 for t in threads(kernel, child.pid)),
            "the first thread has ended",
        )
        equal(len(threads(kernel, child.pid)), 2, "its threads")
        equal(seen.event(Kind.EXIT, child.pid), None, "an exit")
        equal(kernel.marked(), [child.pid], "marks")
        os.kill(child.pid, signal.SIGKILL)
        told = eventually(lambda: seen.event(Kind.EXIT, child.pid), "the exit is told")
        equal(told.status, signal.SIGKILL, "its status")
    return ""


# -- checks: text ----------------------------------------------------------------------------


def terminal_text(kernel: Kernel) -> str:
    """A terminal's modes and last output are told, and what is typed is not."""

    def body() -> None:
        modes = termios.tcgetattr(0)
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(0, termios.TCSANOW, modes)
        os.write(0, b"Password: ")
        ready()
        time.sleep(600)

    with opened("pty") as (end, master), Child(kernel, on(end, body)) as child:
        eventually(lambda: os.read(master, 100), "it asks")
        os.write(master, _CANARY)
        eventually(child.asleep, "it waits")
        found = [text for text in kernel.texts(child.pid) if text.fd == 0]
        equal(len(found), 1, "terminals on descriptor 0")
        (text,) = found
        equal(text.has, 1, "text is told")
        equal(text.text[: text.head], b"Password: ", "what was printed")
        equal(
            (text.modes & termios.ECHO, text.modes & termios.ICANON), (0, termios.ICANON), "modes"
        )
        told = repr((kernel.texts(child.pid), kernel.look([child.pid]))).encode()
        assert _CANARY not in told + kernel.snapshot()[1], "what was typed is told"
    return ""


def told_calls(kernel: Kernel) -> str:
    """Attach mode `syscalls`: a call tells itself, with its set and its time-out in ms."""
    long_select = lambda: select.select([0], [], [], 300)  # noqa: E731
    for number, body, timeout in ((0, read, -1), (None, poll, -1), (None, long_select, 300_000)):
        seen = Seen(kernel)
        with opened("pipe") as (end, _), Child(kernel, on(end, body)) as child:
            eventually(child.asleep, "the program blocks")
            told = eventually(lambda: seen.event(Kind.CALL, child.pid), "the call tells itself")  # noqa: B023
            found = list(kernel.parse(kernel.snapshot()[1]))
            (thread,) = [record for record in found if isinstance(record, ThreadRecord)]
            equal((thread.fresh, thread.timeout_ms), (1, timeout), "how long it waits")
            equal(told.parent, child.pid, "its tree")
            assert number is None or thread.number == number, thread
            equal([r.fd for r in found if isinstance(r, MemberRecord)], [0], "its set")
    equal(kernel.losses(), (0, 0, 0), "losses")
    return ""


def said(kernel: Kernel) -> str:
    """Capture level `text`: the last output to a pipe, and the end of an input."""
    seen = Seen(kernel)
    with contextlib.ExitStack() as stack:
        end, other = stack.enter_context(opened("pipe"))
        _, right = stack.enter_context(opened("socket"))

        def body() -> None:
            os.dup2(other, 1)  # only who has said something himself asked anything
            os.write(other, b"x" * 3000 + b"\n")
            os.writev(other, [b"Really", b"sure? "])
            socket.socket(fileno=right).sendmsg([b"Which one? "])
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.read(0, 100)
            signal.pause()

        child = stack.enter_context(Child(kernel, body))
        told = eventually(lambda: seen.end(child.pid), "the end of its input is told")
        equal((told.fd, told.device, told.took), (0, 1 << 20 | 3, 0), "which input")
        outputs = {file.fd: file for file in kernel.look([os.getpid()])[1]}
        found = kernel.said(outputs[end].inode, outputs[end].filesystem)
        assert found is not None, "what it wrote into the pipe is not told"
        equal(found.text[-13:], b"\nReallysure? ", "the last output to the pipe")
        equal((found.tgid, found.total), (child.pid, 3001 + 12), "who wrote how much")
        found = kernel.said(outputs[right].inode, outputs[right].filesystem)
        assert found is not None, "what it wrote into the socket is not told"
        equal(found.text, b"Which one? ", "the last output to the socket")
    return ""


# -- checks: receipts --------------------------------------------------------------------------

_RECEIPT_TRACE: Final = (sys.executable, "-m", "receipt_trace")
_GETPASS: Final = "import getpass; getpass.getpass('Password: ')"
_SELECT: Final = (
    "import select, sys; print('Continue? ', end='', flush=True); select.select([0], [], [])"
)
_CASES: Final[dict[str, tuple[str, tuple[str, str] | None, tuple[str, ...]]]] = {
    "a shell's question, terminal": (
        "tty", ("line", "Proceed?"), ("bash", "-c", "read -p 'Proceed? ' x"),
    ),
    "a question above its reader, terminal": (
        "tty", ("line", "Really?"), ("sh", "-c", "sleep 600 & printf 'Really? '; cat; true"),
    ),
    "a secret, terminal": ("tty", ("secret", "Password:"), (sys.executable, "-c", _GETPASS)),
    "a select, terminal": ("tty", ("line", "Continue?"), (sys.executable, "-c", _SELECT)),
    "a select, pipe": ("pipe", ("stream", "Continue?"), (sys.executable, "-c", _SELECT)),
    "a shell's question, pipe": (
        "pipe", ("stream", "Name?"), ("sh", "-c", "printf 'Name? '; read x"),
    ),
    "none: a sleep, terminal": ("tty", None, ("sh", "-c", "printf 'Wait... '; sleep 4")),
    "none: a pipe of its own": ("pipe", None, ("sh", "-c", "(sleep 4; echo x) | cat")),
}  # fmt: skip
"""What: wiring, kind and question of the receipt that is due (or none), and the command."""


def offered() -> list[str]:
    """The sources that `receipt-trace run` can be told to use."""
    said = subprocess.run(
        [*_RECEIPT_TRACE, "run", "--help"], capture_output=True, check=True
    ).stdout
    choice = said.decode().partition("--source {")[2].partition("}")[0]
    return [source for source in choice.replace(" ", "").split(",") if source and source != "auto"]


def receipt(source: str, case: str) -> str:
    """A command that asks gets its receipt, from end to end, and another none."""
    wiring, due, command = _CASES[case]
    status, lines = run(source, wiring, command)
    waits = [line for line in lines if line["event"] == "wait"]
    seen = [(wait["input"]["kind"], wait["prompt"]["text"]) for wait in waits]
    equal(seen, [due] if due else [], "receipts")
    equal(status, 75 if due else 0, "the exit status")
    grades = {wait["evidence"]["grade"] for wait in waits}
    assert grades <= {"kernel" if source == "bpf" else "syscall"}, grades
    return ""


def run(source: str, wiring: str, command: tuple[str, ...]) -> tuple[int, list[dict[str, Any]]]:
    """(exit status, receipts) of a command under observation, ended when it waits."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "receipts")
        done = subprocess.run(
            [*_RECEIPT_TRACE, "run", "--source", source, "--wiring", wiring, "--on-wait",
             "interrupt", "--receipts", str(path), "--", *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=_CHECK_S, check=False,
        )  # fmt: skip
        lines = path.read_text().splitlines() if path.exists() else []
    return done.returncode, [json.loads(line) for line in lines]


# -- all of it ----------------------------------------------------------------------------------

_SNAPSHOT: Final[dict[str, Callable[[Kernel], str]]] = {
    "saved registers": saved_registers,
    "waits: read of a pty": wait_queue("pty", read, "itself"),
    "waits: read of a pipe": wait_queue("pipe", read, "itself"),
    "waits: read of a socket": wait_queue("socket", read, "itself"),
    "waits: select of a pty": wait_queue("pty", use_select, "poll"),
    "waits: poll of a pty": wait_queue("pty", poll, "poll"),
    "waits: poll of a pipe": wait_queue("pipe", poll, "poll"),
    "waits: poll of a socket": wait_queue("socket", poll, "poll"),
    "waits: epoll of a pty": wait_queue("pty", epoll, "epoll"),
    "waits: epoll of a pipe": wait_queue("pipe", epoll, "epoll"),
    "waits: epoll of a socket": wait_queue("socket", epoll, "epoll"),
    "waits not: sleep beside a pty": wait_queue("pty", sleep, None),
    "waits not: epoll set left alone": wait_queue("pty", sleep_with_epoll, None),
    "a 32-bit call": narrow_call,
    "files of a poll": poll_set,
    "files of an epoll set": epoll_set,
    "who a process is": processes,
    "what threads do": threads_states,
    "what is open": files,
    "fork, exec, exit": lifecycle,
    "marks outlive parents": marks_follow,
    "exec by another thread": thread_exec,
    "first thread ends first": leader_first,
    "text on a terminal": terminal_text,
}
_TOLD: Final[dict[str, Callable[[Kernel], str]]] = {
    "calls tell themselves": told_calls,
    "output and ends of inputs": said,
}
_FEW: Final = {
    name: _SNAPSHOT[name]
    for name in ("saved registers", "waits: read of a pty", "waits: poll of a pipe",
                 "waits: epoll of a socket", "waits not: sleep beside a pty", "fork, exec, exit",
                 "text on a terminal")
}  # fmt: skip


class Results:
    """Lines of JSON, each written as it is known; ``prefix`` stands before every name."""

    def __init__(self, path: str, prefix: str) -> None:
        self._file = open(path, "a", encoding="ascii", buffering=1)  # noqa: SIM115
        self._prefix = prefix

    def run(self, name: str, check: Callable[[], str]) -> None:
        """Run one check and write how it went."""
        print(f"== {self._prefix}{name}", flush=True)
        began = time.monotonic()
        signal.alarm(_CHECK_S)
        try:
            ok, detail = True, check()
        except Exception as error:  # noqa: BLE001  (whatever it is, it is the result)
            traceback.print_exc()
            ok, detail = False, f"{type(error).__name__}: {error}"
        signal.alarm(0)
        seconds = round(time.monotonic() - began, 1)
        line = {"check": self._prefix + name, "ok": ok, "detail": detail, "seconds": seconds}
        print(json.dumps(line), file=self._file)

    def load(self, checks: dict[str, Callable[[Kernel], str]], name: str, **options: bool) -> None:
        """Load the programs, and run checks with them."""
        kernels: list[Kernel] = []

        def load() -> str:
            kernels.append(Kernel(**options))
            return "".join(f"without {lost}; " for lost in kernels[0].objects.lost)

        self.run(name, load)
        for kernel in kernels:
            for check, function in checks.items():
                self.run(check, functools.partial(function, kernel))
            kernel.close()


def everything(results: Results) -> None:
    """All there is, as root."""
    results.load(_SNAPSHOT, "load: snapshot")
    results.load(_TOLD, "load: syscalls, text", calls=True, text=True)
    for source in offered():
        for case in _CASES:
            results.run(f"{source}: {case}", functools.partial(receipt, source, case))


def capabilities(results: Results) -> None:
    """As a service that may do nothing else."""
    results.load(_FEW, "load: snapshot")


def tracepoints(results: Results) -> None:
    """The same, where the host lets tracepoints of system calls be attached to."""
    results.load(_TOLD, "load: syscalls, text", calls=True, text=True)


_SETS: Final = {"everything": everything, "capabilities": capabilities, "tracepoints": tracepoints}


def main() -> int:
    """Run a set of checks; 0 if it was run to the end, however that is."""
    path, chosen, *prefix = sys.argv[1:]
    signal.signal(signal.SIGALRM, _too_long)
    results = Results(path, "".join(f"{word} " for word in prefix if word))
    with mock.patch.object(objects, "_BUILD_S", _BUILD_S):
        _SETS[chosen](results)
    return 0


def _too_long(*_: object) -> None:
    raise TimeoutError(f"not done within {_CHECK_S} s")


if __name__ == "__main__":
    sys.exit(main())
