"""The procfs source: samples of tracked trees from ``/proc``, ten times a second.

What makes it cheap: a thread that has not been given a processor since the last
look (``schedstat`` counts that, Documentation/scheduler/sched-stats.rst) is still
in the same call, so one read of 20 bytes settles it. Descriptors and memory are
read only for a tree in which some thread is blocked on input, and only when
something in it ran. Nothing is ever written, stopped or signalled.
"""

import os
import resource
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from receipt_trace.health import SourceHealth
from receipt_trace.observation import (
    Activity,
    Call,
    Descriptor,
    FileKind,
    Process,
    ProcessId,
    Seen,
    Thread,
    Waiter,
)
from receipt_trace.sources import calls, proc
from receipt_trace.sources.context import terminal_modes, tree_output
from receipt_trace.sources.sampler import Sampler, Watched, is_blind, younger
from receipt_trace.sources.sockets import unix_inodes, unix_peers
from receipt_trace.trees import Tree

_READ_BYTES: Final = 1024
_KEPT_FILES: Final = 4096  # of our own descriptors, kept open between samples, at most
_DESCRIPTORS_MAX: Final = 8192  # of one process; more would take longer than a sample
_TICK_NS: Final = 10_000_000


class Procfs(Sampler):
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
        super().__init__(root)
        self._numbers = calls.NUMBERS.get(machine or calls.machine(), {})
        self._peers = _Peers(root, peers)
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._budget = _Budget(min(_KEPT_FILES, soft // 2))

    @property
    def usable(self) -> bool:
        """Whether the system calls of this machine are known."""
        return bool(self._numbers)

    def table(self, pid: int) -> Mapping[int, Descriptor]:
        """What a process has open; empty where that may not be seen."""
        try:
            terminal = proc.terminal_key(proc.stat(self.root, pid).tty)
            found = descriptors(self.root, pid, terminal) or {}
        except (OSError, ValueError):
            return {}
        return {fd: self._peers.resolve(pid, d) for fd, d in found.items()}

    def health(self) -> SourceHealth:
        """Nothing is lost here and nothing runs in the kernel: files are read."""
        return SourceHealth(self.name, fallback=self.fallback)

    def seen(self, tree: Tree, waiter: Waiter) -> Seen:
        """The modes of what a waiter reads, and what its tree wrote into a regular file."""
        modes = terminal_modes(self.root, waiter)
        return Seen(
            canonical=modes.canonical if modes else None,
            echo=modes.echo if modes else None,
            output=tree_output(self.root, tree, waiter),
        )

    def _open(self, pid: int) -> "_Handle":
        return _Handle(self.root, pid, self._numbers, self._budget, self._peers)

    def _root_input(self, tree: Tree) -> list[Descriptor]:
        pid = tree.root.pid
        try:
            return [self._peers.resolve(pid, proc.descriptor(self.root, pid, 0, None))]
        except OSError:
            return []

    def _gather(self, _watched: Watched, *, fresh: bool) -> None:
        if fresh:
            self._peers.forget()

    def _helpers(self, tree: Tree) -> Iterator[Process]:
        for pid in younger(self.root, tree):
            try:
                handle = _Handle(self.root, pid, self._numbers, _Budget(0), self._peers)
                handle.refresh()
                yield handle.picture()
                handle.close()
            except (OSError, ValueError):
                continue


def descriptors(root: Path, pid: int, terminal: str | None) -> dict[int, Descriptor] | None:
    """What a process has open, other ends of sockets not resolved; ``None``: may not be seen.

    ``terminal`` is the key of its controlling terminal. Raises OSError when it is gone.
    """
    try:
        names = os.listdir(f"{root}/{pid}/fd")
    except PermissionError:
        return None
    if len(names) > _DESCRIPTORS_MAX:
        return None
    table = {}
    for name in names:
        try:
            table[int(name)] = proc.descriptor(root, pid, int(name), terminal)
        except OSError:
            continue  # closed meanwhile
    return table


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
        self.blocked = calls.resumed(self.blocked, self.last_input)
        if calls.activity(self.blocked, "S") is Activity.INPUT:
            self.last_input = self.blocked
        return True

    def close(self) -> None:
        self._sched.close()
        self._calls.close()


class _Handle:
    """One process, remembered."""

    def __init__(
        self, root: Path, pid: int, numbers: dict[int, str], budget: _Budget, peers: "_Peers"
    ) -> None:
        self.root, self.pid = root, pid
        self._numbers, self._budget, self._peers = numbers, budget, peers
        self._directory = f"{root}/{pid}"
        self._stat_file = _File(f"{self._directory}/stat", budget)
        self.stat = proc.parse_stat(self._stat_file.read())
        self.id = ProcessId(pid, self.stat.start)
        self.cpu = 0
        self.threads: tuple[Thread, ...] = ()
        self.on_cpu: frozenset[int] = frozenset()
        self._kept: dict[int, _ThreadHandle] = {}
        self._table: dict[int, Descriptor] | None = None
        self._stale = True
        self._counted: int | None = None
        self._narrow: tuple[str | None, bool] = (None, False)

    @property
    def state(self) -> str:
        """The letter of proc_pid_stat(5); of a process whose first thread has left it, a sleeper's."""
        left = self.stat.state in "ZX" and self.stat.threads > 1
        return "S" if left else self.stat.state

    @property
    def _living(self) -> int:
        """A thread by whose number its files are seen: the first, unless that has left."""
        left = self.stat.state in "ZX"
        return next((t for t in self._kept if t != self.pid), self.pid) if left else self.pid

    @property
    def exit_code(self) -> int | None:
        """A zombie's wait status."""
        return self.stat.exit_code

    def refresh(self) -> bool:
        """Look at every thread; returns whether any ran. Raises OSError when the process is gone."""
        ran, lost = not self._kept, False
        for tid, thread in list(self._kept.items()):
            try:
                ran = thread.refresh(self._numbers) or ran
            except OSError:
                self._kept.pop(tid).close()
                ran = lost = True
        if not ran:
            return False
        self.stat = proc.parse_stat(self._stat_file.read())
        self.cpu = (self.stat.cpu + self.stat.children_cpu) * _TICK_NS
        if lost or self.stat.threads != len(self._kept):
            self._list_threads()
        self._stale = True
        self.threads = tuple(self._thread(tid, t) for tid, t in self._kept.items())
        self.on_cpu = frozenset(tid for tid, t in self._kept.items() if t.blocked is None)
        return True

    def _list_threads(self) -> None:
        for name in os.listdir(f"{self._directory}/task"):
            tid = int(name)
            if tid in self._kept:
                continue
            thread = _ThreadHandle(f"{self._directory}/task/{tid}", self._budget)
            try:
                thread.refresh(self._numbers)
            except OSError:
                thread.close()
                continue
            self._kept[tid] = thread

    def _thread(self, tid: int, handle: _ThreadHandle) -> Thread:
        if self.state in "ZX" or (self.stat.state in "ZX" and tid == self.pid):
            activity = Activity.PARKED
        elif not handle.permitted:
            activity = Activity.UNKNOWN
        else:
            activity = calls.activity(handle.blocked, self.state)
        return Thread(tid, activity, None, handle.runs)

    def picture(self) -> Process:
        """The whole process, with the calls of its blocked threads decoded."""
        terminal = proc.terminal_key(self.stat.tty)
        if self._stale:
            self._table = descriptors(self.root, self._living, terminal)
            self._stale = False
        ignored = caught = 0
        if any(t.activity is Activity.INPUT for t in self.threads):
            ignored, caught = self._signals()
        table = self._table
        if table is not None:
            table = {fd: self._peers.resolve(self.pid, d) for fd, d in table.items()}
        return Process(
            id=self.id,
            ppid=self.stat.ppid,
            comm=self.stat.comm,
            group=self.stat.group,
            session=self.stat.session,
            state=self.state,
            terminal=terminal,
            foreground=self.stat.foreground,
            threads=tuple(self._decoded(t) for t in self.threads),
            descriptors=None if is_blind(self) else table,
            ignored=ignored,
            caught=caught,
        )

    def _decoded(self, thread: Thread) -> Thread:
        handle = self._kept.get(thread.tid)
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

    def consumed(self, tid: int) -> int | None:
        """Bytes a thread has read from files; ``None``: may not be seen."""
        try:
            return proc.field(Path(f"{self._directory}/task/{tid}/io").read_bytes(), "rchar")
        except OSError:
            return None

    def close(self) -> None:
        """Give back all descriptors kept open for this process."""
        self._stat_file.close()
        for thread in self._kept.values():
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
