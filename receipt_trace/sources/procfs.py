"""The procfs source: samples of tracked trees from ``/proc``, ten times a second.

What makes it cheap: a thread that has not been given a processor since the last
look (``schedstat`` counts that, Documentation/scheduler/sched-stats.rst) is still
in the same call, so one read of 20 bytes settles it. Descriptors and memory are
read only for a tree in which some thread is blocked on input, and only when
something in it ran. Nothing is ever written, stopped or signalled.
"""

import contextlib
import os
import resource
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from receipt_trace.descriptors import Findings, find_waiters
from receipt_trace.observation import (
    Activity,
    Call,
    Console,
    Descriptor,
    Ending,
    FileKind,
    Forest,
    Process,
    ProcessId,
    Sample,
    Thread,
    Waiter,
    WaiterKey,
)
from receipt_trace.output import Output
from receipt_trace.sources import calls, proc
from receipt_trace.sources.context import output_file
from receipt_trace.sources.holders import writers_above
from receipt_trace.sources.sockets import unix_inodes, unix_peers
from receipt_trace.trees import Tree

_READ_BYTES: Final = 1024
_KEPT_FILES: Final = 4096  # of our own descriptors, kept open between samples, at most
_DESCRIPTORS_MAX: Final = 8192  # of one process; more would take longer than a sample
_WAKEUPS: Final = 256  # bytes of wake-ups a thread may read in one sample
_FIRST_SAMPLES: Final = 3  # in which a new root has surely become its program
_GUEST_PERIOD: Final = 5  # samples between two searches for helpers outside the tree


class Procfs:
    """Samples trees below a ``/proc``.

    ``root`` is the proc file system, ``machine`` decides the system call numbers,
    ``peers`` asks for the pairs of unix sockets: arguments, so that tests bring theirs.
    """

    name = "procfs"

    def __init__(
        self,
        root: Path = Path("/proc"),
        machine: str | None = None,
        peers: Callable[[], dict[int, int]] = unix_peers,
    ) -> None:
        self.root = root
        self._numbers = calls.NUMBERS.get(machine or calls.machine(), {})
        self._peers = _Peers(root, peers)
        self._trees: dict[ProcessId, _Watched] = {}
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._budget = _Budget(min(_KEPT_FILES, soft // 2))

    @property
    def usable(self) -> bool:
        """Whether the system calls of this machine are known."""
        return bool(self._numbers)

    def forget(self, tree: Tree) -> None:
        """Close what is kept open for a tree."""
        watched = self._trees.pop(tree.root, None)
        if watched is not None:
            for handle in watched.handles.values():
                handle.close()

    def sample(
        self,
        tree: Tree,
        now: int,
        *,
        fresh: bool = False,
        output: int | None = None,
        console: Console | None = None,
        given: int | None = None,
        fed: frozenset[str] = frozenset(),
    ) -> Sample:
        """Look at a tree.

        ``fresh`` looks at everything again, whatever seems unchanged: the last look
        before a wait is confirmed. ``output`` is the caller's own mark of the tree's
        output where it relays it; else bytes written are counted. ``given`` counts the
        input that the caller passed on, where all input comes through him; else bytes
        read are counted.
        """
        watched = self._trees.setdefault(tree.root, _Watched(tree.root))
        ran = self._refresh(tree, watched)
        watched.given = given
        if watched.samples < _FIRST_SAMPLES:
            watched.samples += 1
            self._inputs(tree, watched, self._root_input(tree))
        handles = watched.handles
        waiting = any(t.activity is Activity.INPUT for h in handles.values() for t in h.view)
        blind = any(t.activity is Activity.UNKNOWN for h in handles.values() for t in h.view)
        if waiting or (blind and console is not None):
            if ran or fresh or fed != watched.fed or console is not None or watched.asks_helper:
                watched.fed = fed
                watched.findings = self._look(tree, watched, console, fresh, output is None)
        else:
            watched.findings = Findings(blind=sum(h.blind for h in handles.values()))
        waiters = watched.findings.waiters
        ended = tree.take_ended()
        answered, closed = self._left(watched, waiters, ended)
        watched.waiters = {w.key: w for w in waiters}
        watched.marks = {  # a guest has no handle
            k: m for k, m in watched.marks.items() if k.pid in handles or k in watched.waiters
        }
        return Sample(
            time=now,
            output=watched.written if output is None else output,
            cpu_ticks=watched.cpu,
            waiters=waiters,
            running=frozenset(
                (*h.id, t.tid) for h in handles.values() for t in h.view if t.tid in h.on_cpu
            ),
            ended=ended,
            answered=answered,
            closed=closed,
            suspected=watched.findings.suspected,
            blind=watched.findings.blind,
            alive=bool(tree.members),
        )

    def processes(self, tree: Tree) -> Mapping[int, ProcessId]:
        """The processes of a tree that could be looked at in the last sample."""
        watched = self._trees.get(tree.root)
        return {} if watched is None else {pid: h.id for pid, h in watched.handles.items()}

    def _refresh(self, tree: Tree, watched: "_Watched") -> bool:
        """Bring the handles up to date; returns whether anything in the tree ran."""
        ran = False
        handles = watched.handles
        for pid in [pid for pid in handles if pid not in tree.members]:
            handles.pop(pid).close()
            ran = True
        for pid, identity in list(tree.members.items()):
            handle = handles.get(pid)
            try:
                if handle is None or (identity is not None and handle.id != identity):
                    if handle is not None:
                        handle.close()
                    handle = _Handle(self.root, pid, self._numbers, self._budget)
                    if identity is None:
                        tree.members[pid] = handle.id
                    elif handle.id != identity:  # the number belongs to somebody else now
                        handle.close()
                        raise ProcessLookupError(pid)
                    handles[pid] = handle
                    ran = True
                before = handle.cpu
                if handle.refresh():
                    ran = True
                    watched.cpu += max(0, handle.cpu - before)
            except (OSError, ValueError):
                gone = handles.pop(pid, None)
                if gone is not None:
                    gone.close()
                    ran = True
        return ran

    def _look(
        self,
        tree: Tree,
        watched: "_Watched",
        console: Console | None,
        fresh: bool,
        count_output: bool,
    ) -> Findings:
        """The whole picture: decode the calls, resolve the descriptors, find the waiters."""
        processes: dict[int, Process] = {}
        if fresh:
            self._peers.forget()
        for pid, handle in watched.handles.items():
            with contextlib.suppress(OSError):  # it ended since it was refreshed
                processes[pid] = handle.picture(self._peers)
        given = [
            p.descriptors[0] for p in processes.values() if p.descriptors and 0 in p.descriptors
        ]
        self._inputs(tree, watched, given)
        if count_output:
            watched.written += self._written(tree, watched, processes)
        forest = Forest(
            tree.root, processes,
            tree.inputs.union(k for k, mine in watched.inputs.items() if mine),
            watched.fed | self._idle(tree, watched, processes.get(tree.root.pid)), console,
        )  # fmt: skip
        found = find_waiters(forest)
        if not found.waiters:
            found = self._guests(tree, watched, forest) or found
        return replace(found, waiters=tuple(self._marked(watched, w) for w in found.waiters))

    def _idle(self, tree: Tree, watched: "_Watched", root: Process | None) -> frozenset[str]:
        """Inputs that the root may be fed from, by whom it then owes no answer.

        It was seen to take something from one. Or nobody saw how it began: it reads a
        pipe or socket, has written into another, and may be a server that has answered its
        first request. Neither if it has left a line unfinished where that can be seen.
        """
        held = (root.descriptors or {}) if root is not None else {}
        unknown = watched.given is None and not tree.recognised and _is_channel(held.get(1))
        if unknown and watched.handles[tree.root.pid].has_written():
            return frozenset(
                {*watched.seen_fed, *(k for k, mine in watched.inputs.items() if mine)}
            )
        if watched.seen_fed:
            said = Output()
            said.feed(output_file(self.root, tree.root.pid, 4096) or b"")
            if said.unterminated:
                return frozenset()
        return frozenset(watched.seen_fed)

    def _inputs(self, tree: Tree, watched: "_Watched", given: Iterable[Descriptor]) -> None:
        """Note which standard inputs come from outside: a process above the tree holds their
        other end. Each object is asked for once.
        """
        for stdin in given:
            stream = stdin.kind in (FileKind.PIPE, FileKind.UNIX)
            if stream and stdin.key not in watched.inputs and not tree.ended_input:
                end = stdin.target if stdin.kind is FileKind.PIPE else stdin.peer
                above = (tree.parent, *tree.givers)
                watched.inputs[stdin.key] = any(
                    any(writers_above(self.root, pid, end)) for pid in above
                )

    def _root_input(self, tree: Tree) -> list[Descriptor]:
        """What the root was given to read, looked at early: it may be gone before anybody waits."""
        pid = tree.root.pid
        try:
            return [self._peers.resolve(pid, proc.descriptor(self.root, pid, 0, None))]
        except OSError:
            return []

    def _written(self, tree: Tree, watched: "_Watched", processes: Mapping[int, Process]) -> int:
        """Bytes written since the last look by everybody whose output is the tree's output."""
        root = processes.get(tree.root.pid)
        for fd in (1, 2):
            given = (root.descriptors or {}).get(fd) if root is not None else None
            if given is not None:
                watched.outputs.add(given.key)
        written = 0
        for pid, process in processes.items():
            held = (process.descriptors or {}).values()
            if any(
                d.writable and (d.kind is FileKind.TTY or d.key in watched.outputs) for d in held
            ):
                written += watched.handles[pid].written()
        return written

    def _guests(self, tree: Tree, watched: "_Watched", forest: Forest) -> Findings | None:
        """Helpers outside the tree that read its terminal, such as a pinentry below gpg-agent.

        Looked for only while the tree itself is stuck, and only among processes of the
        same user that are younger than the tree.
        """
        terminals = {
            d.key
            for p in forest.processes.values()
            for d in (p.descriptors or {}).values()
            if d.kind is FileKind.TTY
        }
        watched.looks += 1
        # Its helper starts, and leaves, without anything in the tree having run.
        watched.asks_helper = bool(terminals) and any(
            p.descriptors and t.call and _is_socket(p.descriptors, t.call)
            for p in forest.processes.values()
            for t in p.threads
        )
        if not terminals or (watched.looks - 1) % _GUEST_PERIOD:
            return None
        if any(
            t.activity is Activity.ACTIVE and not p.guest
            for p in forest.processes.values()
            for t in p.threads
        ):
            return None
        guests: dict[int, Process] = {}
        for pid in self._younger(tree):
            try:
                handle = _Handle(self.root, pid, self._numbers, _Budget(0))
                handle.refresh()
                process = handle.picture(self._peers)
                handle.close()
            except (OSError, ValueError):
                continue
            held = (process.descriptors or {}).values()
            if any(d.kind is FileKind.TTY and d.key in terminals and d.readable for d in held):
                guests[pid] = replace(process, guest=True)
        if not guests:
            return None
        watched.looks = 0  # as long as there is a guest, look every time
        return find_waiters(replace(forest, processes={**forest.processes, **guests}))

    def _younger(self, tree: Tree) -> Iterable[int]:
        try:
            owner = os.stat(self.root / str(tree.root.pid)).st_uid
        except OSError:
            return
        for pid in proc.pids(self.root):
            if pid in tree.members:
                continue
            try:
                if os.stat(self.root / str(pid)).st_uid != owner:
                    continue
                if proc.stat(self.root, pid).start >= tree.root.start:
                    yield pid
            except (OSError, ValueError):
                continue

    def _marked(self, watched: "_Watched", waiter: Waiter) -> Waiter:
        """Put the mark on a waiter that moves when its thread takes input."""
        mark = watched.marks.get(waiter.key)
        if mark is None:
            mark = watched.marks[waiter.key] = _Mark()
        self._consumed(watched, waiter, mark)
        return replace(waiter, consumed=mark.count)

    def _consumed(self, watched: "_Watched", waiter: Waiter, mark: "_Mark") -> bool:
        """Bring a mark up to date; returns whether input was taken since the last time."""
        key = waiter.key
        handle = watched.handles.get(key.pid)
        thread = next((t for t in handle.view if t.tid == key.tid), None) if handle else None
        runs = thread.runs if thread is not None else None
        if mark.count >= 0 and runs is not None and runs == mark.runs:
            return False  # it has not run since
        read = None
        if watched.given is None and not waiter.syscall.startswith(
            "recv"
        ):  # recv(2) is not in rchar
            with contextlib.suppress(OSError):
                path = self.root / str(key.pid) / "task" / str(key.tid) / "io"
                read = proc.field(path.read_bytes(), "rchar")
        taken = mark.moved(runs, read, watched.given, alone=len(waiter.wait_set) <= 1)
        mark.count = max(0, mark.count) + taken
        mark.runs, mark.read, mark.given = runs, read, watched.given
        if taken and watched.given is None and waiter.wiring != "tty" and key[:2] == watched.root:
            watched.seen_fed.add(key.input)
        return taken

    def _lives(self, key: WaiterKey) -> bool:
        try:
            return proc.stat(self.root, key.pid).start == key.start
        except (OSError, ValueError):
            return False

    def _left(
        self, watched: "_Watched", waiters: tuple[Waiter, ...], ended: dict[ProcessId, Ending]
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Inputs whose waiter left its call: those it took something from, those that ended.

        Notes in ``ended`` whose process is no more, if nobody else has told it yet.
        """
        answered, closed = set(), set()
        now = {w.key for w in waiters}
        for key, was in watched.waiters.items():
            if key in now or was.grade == "terminal":
                continue
            mark = watched.marks[key]
            if watched.given is not None and watched.given != mark.given:
                answered.add(key.input)
            handle = watched.handles.get(key.pid)
            if handle is None or handle.id.start != key.start:
                if not self._lives(key):  # a guest may still do
                    ended.setdefault(ProcessId(key.pid, key.start), Ending())
            elif handle.stat.state in "ZX":
                ended.setdefault(handle.id, Ending(handle.stat.exit_code))
            elif self._consumed(watched, was, mark):
                answered.add(key.input)
            elif was.timeout is None and key.tid not in handle.on_cpu:
                closed.add(key.input)
        return frozenset(answered), frozenset(closed)


def _is_socket(held: Mapping[int, Descriptor], call: Call) -> bool:
    """Whether a call waits for an answer over a socket."""
    return any(fd in held and held[fd].target.startswith("socket:") for fd in call.fds or ())


def _is_channel(output: Descriptor | None) -> bool:
    return output is not None and output.kind in (FileKind.PIPE, FileKind.UNIX, FileKind.OUTSIDE)


@dataclass(slots=True)
class _Watched:
    """What is remembered of a tree between two samples."""

    root: ProcessId
    handles: dict[int, "_Handle"] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)
    waiters: dict[WaiterKey, Waiter] = field(default_factory=dict)
    inputs: dict[str, bool] = field(default_factory=dict)
    outputs: set[str] = field(default_factory=set)
    fed: frozenset[str] = frozenset()
    seen_fed: set[str] = field(default_factory=set)
    marks: dict[WaiterKey, "_Mark"] = field(default_factory=dict)
    given: int | None = None
    cpu: int = 0
    written: int = 0
    looks: int = 0
    asks_helper: bool = False
    samples: int = 0


@dataclass(slots=True)
class _Mark:
    """How much input a waiting thread has taken, as far as can be told (``count`` -1: not looked yet)."""

    count: int = -1
    runs: int | None = None
    read: int | None = None
    given: int | None = None

    def moved(self, runs: int | None, read: int | None, given: int | None, *, alone: bool) -> bool:
        """Whether it took input since. All input comes through the caller, or is counted as read,
        or, where neither is known, every time the thread ran counts.
        """
        if self.count < 0:
            return False
        if given is not None:
            return given != self.given
        if read is None or self.read is None:
            return runs != self.runs
        taken = read - self.read
        # Beside its input it may watch an eventfd, a timerfd or a self-pipe: these give words of 8.
        return taken > 0 and (alone or taken % 8 != 0 or taken > _WAKEUPS)


@dataclass(slots=True)
class _Budget:
    """How many of our own descriptors may still be kept open."""

    left: int


class _File:
    """A file below ``/proc`` that is read again and again; kept open while there is room.

    An open one stays bound to its process: it fails when that is gone, even if the
    number is used again.
    """

    __slots__ = ("_budget", "_fd", "_path")

    def __init__(self, path: str, budget: _Budget) -> None:
        self._path = path
        self._budget = budget
        self._fd = -1

    def read(self) -> bytes:
        """The content now. Raises OSError when the process is gone or says no."""
        if self._fd >= 0:
            return os.pread(self._fd, _READ_BYTES, 0)
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = os.pread(fd, _READ_BYTES, 0)
        except OSError:
            os.close(fd)
            raise
        if self._budget.left > 0:
            self._budget.left -= 1
            self._fd = fd
        else:
            os.close(fd)
        return content

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._budget.left += 1


class _ThreadHandle:
    """One thread, remembered: how often it ran, and the call it was in then."""

    __slots__ = ("_calls", "_sched", "blocked", "last_input", "permitted", "runs", "sched")

    def __init__(self, directory: str, budget: _Budget) -> None:
        self._sched = _File(f"{directory}/schedstat", budget)
        self._calls = _File(f"{directory}/syscall", budget)
        self.sched = b"?"
        self.blocked: calls.Blocked | None = None
        self.last_input: calls.Blocked | None = None
        self.permitted = True
        self.runs: int | None = None

    def refresh(self, numbers: dict[int, str]) -> bool:
        """Look again; returns whether it ran meanwhile. The count is read first: whoever runs
        between the two reads is looked at again next time.
        """
        try:
            sched = self._sched.read()
            self.runs = int(sched.split()[2])
        except FileNotFoundError:  # a kernel without CONFIG_SCHED_INFO: look every time
            sched, self.runs = b"", None
        if sched and sched == self.sched and self.blocked is not None:
            return False
        self.sched = sched
        try:
            self.blocked = calls.parse(self._calls.read(), numbers)
            self.permitted = True
        except PermissionError:
            self.permitted = False
            self.blocked = calls.Blocked(None, ())
        # After SIGSTOP and SIGCONT a poll goes on under another number, with its old arguments.
        was = self.last_input
        if self.blocked is not None and self.blocked.name == "restart_syscall":
            if was is not None and was.args[:2] == self.blocked.args[:2]:
                self.blocked = was
        elif calls.activity(self.blocked, "S") is Activity.INPUT:
            self.last_input = self.blocked
        return True

    def close(self) -> None:
        self._sched.close()
        self._calls.close()


class _Handle:
    """One process, remembered."""

    def __init__(self, root: Path, pid: int, numbers: dict[int, str], budget: _Budget) -> None:
        self.root, self.pid = root, pid
        self._numbers, self._budget = numbers, budget
        self._directory = f"{root}/{pid}"
        self._stat_file = _File(f"{self._directory}/stat", budget)
        self.stat = proc.parse_stat(self._stat_file.read())
        self.id = ProcessId(pid, self.stat.start)
        self.cpu = 0
        self.view: tuple[Thread, ...] = ()
        self.on_cpu: frozenset[int] = frozenset()
        self._threads: dict[int, _ThreadHandle] = {}
        self._table: dict[int, Descriptor] | None = None
        self._stale = True
        self._counted: int | None = None
        self._narrow: tuple[str | None, bool] = (None, False)

    @property
    def blind(self) -> bool:
        """Whether the kernel does not let us look into it."""
        return any(t.activity is Activity.UNKNOWN for t in self.view)

    def refresh(self) -> bool:
        """Look at every thread; returns whether any ran. Raises OSError when the process is gone."""
        ran, lost = not self._threads, False
        for tid, thread in list(self._threads.items()):
            try:
                ran = thread.refresh(self._numbers) or ran
            except OSError:
                self._threads.pop(tid).close()
                ran = lost = True
        if not ran:
            return False
        self.stat = proc.parse_stat(self._stat_file.read())
        self.cpu = self.stat.cpu + self.stat.children_cpu
        if lost or self.stat.threads != len(self._threads):
            self._list_threads()
        self._stale = True
        self.view = tuple(self._thread(tid, t) for tid, t in self._threads.items())
        self.on_cpu = frozenset(tid for tid, t in self._threads.items() if t.blocked is None)
        return True

    def _list_threads(self) -> None:
        for name in os.listdir(f"{self._directory}/task"):
            tid = int(name)
            if tid in self._threads:
                continue
            thread = _ThreadHandle(f"{self._directory}/task/{tid}", self._budget)
            try:
                thread.refresh(self._numbers)
            except OSError:
                thread.close()
                continue
            self._threads[tid] = thread

    def _thread(self, tid: int, handle: _ThreadHandle) -> Thread:
        if self.stat.state in "ZX":
            activity = Activity.PARKED
        elif not handle.permitted:
            activity = Activity.UNKNOWN
        else:
            activity = calls.activity(handle.blocked, self.stat.state)
        return Thread(tid, activity, None, handle.runs)

    def picture(self, peers: "_Peers") -> Process:
        """The whole process, with the calls of its blocked threads decoded."""
        terminal = proc.terminal_key(self.stat.tty)
        if self._stale:
            self._table = self._descriptors(terminal)
            self._stale = False
        ignored = caught = 0
        if any(t.activity is Activity.INPUT for t in self.view):
            ignored, caught = self._signals()
        table = self._table
        if table is not None:
            table = {fd: peers.resolve(self.pid, d) for fd, d in table.items()}
        return Process(
            id=self.id,
            ppid=self.stat.ppid,
            comm=self.stat.comm,
            group=self.stat.group,
            session=self.stat.session,
            state=self.stat.state,
            terminal=terminal,
            foreground=self.stat.foreground,
            threads=tuple(self._decoded(t) for t in self.view),
            descriptors=None if self.blind else table,
            ignored=ignored,
            caught=caught,
        )

    def _decoded(self, thread: Thread) -> Thread:
        handle = self._threads.get(thread.tid)
        if thread.activity is not Activity.INPUT or handle is None or handle.blocked is None:
            return thread
        if self._is_narrow():
            return replace(thread, call=Call(handle.blocked.name or "", None))
        call = calls.wait_set(handle.blocked, self._memory, self._epoll)
        return replace(thread, call=call)

    def _is_narrow(self) -> bool:
        """A 32-bit program has other numbers and layouts: what it waits for stays unknown."""
        exe = proc.link(self.root, self.pid, "exe")
        if exe is None or self._narrow[0] != exe:
            try:
                with open(f"{self._directory}/exe", "rb") as file:
                    narrow = file.read(5)[4:] == b"\x01"  # elf(5): EI_CLASS is ELFCLASS32
            except OSError:
                narrow = False
            self._narrow = (exe, narrow)
        return self._narrow[1]

    def _memory(self, address: int, length: int) -> bytes:
        fd = os.open(f"{self._directory}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, length, address)
        finally:
            os.close(fd)

    def _epoll(self, fd: int) -> tuple[int, ...] | None:
        info = Path(f"{self._directory}/fdinfo/{fd}").read_bytes()
        members = []
        for member, inode, device in proc.epoll_members(info):
            try:
                status = os.stat(f"{self._directory}/fd/{member}")
            except OSError:
                return None  # watched under a number that is closed now: the file is not known
            same = status.st_ino == inode
            if not same or status.st_dev != os.makedev(device >> 20, device & 0xFFFFF):
                return None
            members.append(member)
        return tuple(members)

    def _descriptors(self, terminal: str | None) -> dict[int, Descriptor] | None:
        try:
            names = os.listdir(f"{self._directory}/fd")
        except PermissionError:
            return None
        if len(names) > _DESCRIPTORS_MAX:
            return None
        table = {}
        for name in names:
            try:
                table[int(name)] = proc.descriptor(self.root, self.pid, int(name), terminal)
            except OSError:
                continue  # closed meanwhile
        return table

    def _signals(self) -> tuple[int, int]:
        try:
            raw = Path(f"{self._directory}/status").read_bytes()
        except OSError:
            return 0, 0
        return proc.field(raw, "SigIgn", 16) or 0, proc.field(raw, "SigCgt", 16) or 0

    def has_written(self) -> bool:
        """Whether it has written anything, to whomever (so: yes, if that may not be seen)."""
        try:
            return proc.field(Path(f"{self._directory}/io").read_bytes(), "wchar") != 0
        except OSError:
            return True

    def written(self) -> int:
        """Bytes written since the last call (0 at the first one)."""
        try:
            now = proc.field(Path(f"{self._directory}/io").read_bytes(), "wchar")
        except OSError:
            return 0
        before, self._counted = self._counted, now
        return 0 if now is None or before is None else max(0, now - before)

    def close(self) -> None:
        """Give back all descriptors kept open for this process."""
        self._stat_file.close()
        for thread in self._threads.values():
            thread.close()


class _Peers:
    """Tells unix sockets from network ones and names their other ends; remembers pairs."""

    def __init__(self, root: Path, ask: Callable[[], dict[int, int]]) -> None:
        self._root, self._ask = root, ask
        self._pairs: dict[int, int] = {}
        self._unknown: dict[int, bool] = {}  # and whether it listens

    def forget(self) -> None:
        """Ask again: what had no other end may have one now, and numbers are used again."""
        self._pairs, self._unknown = {}, {}

    def resolve(self, pid: int, descriptor: Descriptor) -> Descriptor:
        """Say of a socket whether it is a unix one, and whose other end it is."""
        if not descriptor.target.startswith("socket:["):
            return descriptor
        inode = int(descriptor.target[8:-1])
        if inode not in self._pairs and inode not in self._unknown:
            unix = unix_inodes(self._root, pid)
            if inode not in unix:
                return descriptor
            self._pairs = self._ask()
            self._unknown = {i: listens for i, listens in unix.items() if i not in self._pairs}
        if self._unknown.get(inode):
            return replace(descriptor, kind=FileKind.LISTENER)
        peer = self._pairs.get(inode)
        key = None if peer is None else f"socket:[{peer}]"
        return replace(descriptor, kind=FileKind.UNIX, peer=key)
