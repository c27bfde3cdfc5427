"""The programs in the kernel: loaded, calibrated, proved right on ourselves, and asked.

Nothing is pinned: everything lives by the descriptors of this process, and so ends
with it, however it ends.
"""

import contextlib
import ctypes
import errno
import os
import resource
import select
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from receipt_trace.errors import UnobservableError
from receipt_trace.kernel import syscall
from receipt_trace.kernel.objects import Objects, Program, get_objects
from receipt_trace.kernel.records import (
    LAYOUTS,
    SAID,
    SAID_BYTES,
    EofRecord,
    EventRecord,
    FileRecord,
    Kind,
    MemberRecord,
    NowRecord,
    ProcessRecord,
    ProgramRecord,
    Record,
    TextRecord,
    ThreadRecord,
    WaiterRecord,
)
from receipt_trace.kernel.ring import Ring
from receipt_trace.observation import FileKind

_TRACING: Final = 26  # enum bpf_prog_type
_RAW_TRACEPOINT: Final = 17
_TRACEPOINT: Final = 5
_ITERATOR: Final = 28  # enum bpf_attach_type: BPF_TRACE_ITER
_FILES: Final = frozenset({"snapshot_files", "snapshot_texts"})
_HOOKS: Final = {
    "on_fork": "sched_process_fork",
    "on_exec": "sched_process_exec",
    "on_exit": "sched_process_exit",
}
_CALLS: Final = (
    "read", "readv", "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait",
    "epoll_pwait2", "recvfrom", "recvmsg",
)  # fmt: skip
_WRITES: Final = ("write", "writev", "sendto", "sendmsg")
_READS: Final = ("read", "readv", "recvfrom", "recvmsg")
_READ: Final = 0  # number of read(2) on x86-64
_CHUNK: Final = 1 << 18  # bytes asked for in one read of a walk; the kernel gives 32 KiB at most
_GIVEN: Final = struct.Struct("=QI4x")  # bpf/lifecycle.c: struct started
_PROG_INFO: Final = 200  # bytes of struct bpf_prog_info, up to and with run_time_ns
_RUN_TIME: Final = 192  # offset of run_time_ns
_STOCK_S: Final = 5.0  # between two countings of how long the programs ran
_STACKS: Final = (4096, 8192, 16384, 32768, 65536)  # THREAD_SIZE: 16 KiB, 32 with KASAN
_PADDINGS: Final = (0, 8, 16, 24)  # above the saved registers: 16 with CONFIG_X86_FRED
_REGISTERS: Final = 168  # sizeof(struct pt_regs)
_HEAD: Final = struct.Struct("=HH")
_TRACEFS: Final = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
_PARANOID: Final = Path("/proc/sys/kernel/perf_event_paranoid")
_BY_KIND: Final[dict[int, type[Record]]] = {
    Kind.NOW: NowRecord, Kind.THREAD: ThreadRecord, Kind.PROCESS: ProcessRecord,
    Kind.FILE: FileRecord, Kind.WAITER: WaiterRecord, Kind.MEMBER: MemberRecord,
    Kind.TEXT: TextRecord, Kind.FORK: EventRecord, Kind.EXEC: EventRecord,
    Kind.EXIT: EventRecord, Kind.CALL: EventRecord, Kind.EOF: EofRecord,
    Kind.PROGRAM: ProgramRecord,
}  # fmt: skip


class Said(NamedTuple):
    """The last that tracked processes wrote to an output.

    ``time`` is CLOCK_MONOTONIC in nanoseconds, ``tgid`` who wrote last, ``total`` and ``kept`` how
    many bytes were written and saved so far.
    """

    time: int
    total: int
    kept: int
    tgid: int
    text: bytes


class Kernel:
    """Our programs in this kernel.

    ``calls`` attaches to the system calls of the input family (attach mode ``syscalls``),
    ``text`` to those that write and to the ends of reads (capture level ``text``). Raises
    UnobservableError, with the reason, where the kernel or the host refuses anything of it.
    """

    def __init__(self, *, calls: bool = False, text: bool = False) -> None:
        self.calls, self.text = calls, text
        self._stack = contextlib.ExitStack()
        self._links: dict[str, int] = {}
        self._maps: dict[str, int] = {}
        self._programs: dict[str, int] = {}
        self.regs = self.lost = 0
        self.ran = self._counted = 0.0
        self.kinds: dict[int, FileKind] = {}
        self.epoll = 0
        self.pipes = 0
        try:
            objects = get_objects()
            with _unlimited_memory():
                self._load(objects)
                self._calibrate()
                self._learn()
                self._attach()
        except OSError as error:
            self.close()
            raise UnobservableError(_explain(error)) from None
        except BaseException:
            self.close()
            raise

    # -- asking ------------------------------------------------------------------------

    def snapshot(self) -> tuple[NowRecord, bytes]:
        """(when, the records of all threads of marked processes, as they are)."""
        raw = self._walk("snapshot_threads")
        head = LAYOUTS[NowRecord].size
        if len(raw) < head:
            return NowRecord(Kind.NOW, head, 0, 0, 0), b""
        return NowRecord._make(LAYOUTS[NowRecord].unpack_from(raw)), raw[head:]

    def look(
        self, pids: Iterable[int]
    ) -> tuple[list[ProcessRecord], list[FileRecord], list[WaiterRecord]]:
        """Who some processes are, what they have open, and who waits at it."""
        processes: list[ProcessRecord] = []
        files: list[FileRecord] = []
        waiters: list[WaiterRecord] = []
        with self._wanting(pids):
            found = [*self._records("snapshot_processes"), *self._records("snapshot_files")]
        for record in found:
            if isinstance(record, FileRecord):
                files.append(record)
            elif isinstance(record, WaiterRecord):
                waiters.append(record)
            elif isinstance(record, ProcessRecord):
                processes.append(record)
        return processes, files, waiters

    def members(self, polls: dict[int, int], sets: dict[int, int]) -> list[MemberRecord]:
        """The files that threads wait for: thread to address of its poll's table, or of its set."""
        questions = self._maps["questions"]
        found: list[Record] = []
        asked = [(tid, table, 0) for tid, table in polls.items()]
        asked += [(tid, 0, of) for tid, of in sets.items()]
        for tid, table, of in asked:
            syscall.update(questions, struct.pack("=I", tid), struct.pack("=QQ", table, of))
        if polls:
            found += self._records("snapshot_polls")
        if sets:
            found += self._records("snapshot_epolls")
        for tid, _, _ in asked:
            syscall.delete(questions, struct.pack("=I", tid))
        return [record for record in found if isinstance(record, MemberRecord)]

    def texts(self, pid: int) -> list[TextRecord]:
        """The terminals that a process has open, with what was last printed on them."""
        with self._wanting((pid,)):
            return [r for r in self._records("snapshot_texts") if isinstance(r, TextRecord)]

    def said(self, inode: int, filesystem: int) -> Said | None:
        """What was last written to an output (capture level ``text``)."""
        if not self.text:
            return None
        raw = syscall.lookup(
            self._maps["said"], struct.pack("=QII", inode, filesystem, 0), SAID.size
        )
        if raw is None:
            return None
        time, total, kept, tgid, text = SAID.unpack(raw)
        place = kept % SAID_BYTES
        whole = text[place:SAID_BYTES] + text[:place] if kept > SAID_BYTES else text[:kept]
        return Said(time, total, kept, tgid, whole)

    def given(self, pid: int) -> tuple[int, int]:
        """(address of the file that a process had for its input when it last became another
        program, how often it has become one since we are attached); 0: none, or not known.
        """
        raw = syscall.lookup(self._maps["given"], struct.pack("=I", pid), _GIVEN.size)
        return (0, 0) if raw is None else _GIVEN.unpack(raw)

    # -- marks -------------------------------------------------------------------------

    def mark(self, pid: int, root: int) -> None:
        """Track a process; what it forks from now on is tracked by the kernel itself."""
        syscall.update(self._maps["marks"], struct.pack("=I", pid), struct.pack("=I", root))

    def unmark(self, pid: int) -> None:
        """Track it no longer."""
        syscall.delete(self._maps["marks"], struct.pack("=I", pid))

    def nurse(self, pid: int) -> None:
        """Track every child of a process from its birth, each as the root of a tree."""
        syscall.update(self._maps["nurses"], struct.pack("=I", pid), bytes(4))

    def dismiss(self, pid: int) -> None:
        """Track its children no longer."""
        syscall.delete(self._maps["nurses"], struct.pack("=I", pid))

    def marked(self) -> list[int]:
        """Every process that is tracked now."""
        return [struct.unpack("=I", key)[0] for key in syscall.keys(self._maps["marks"], 4)]

    def losses(self) -> tuple[int, int, int]:
        """(events, marks, calls) that did not fit so far."""
        counts = [
            syscall.lookup(self._maps["losses"], struct.pack("=I", which), 8) or bytes(8)
            for which in range(3)
        ]
        events, marks, calls = (int.from_bytes(count, "little") for count in counts)
        self.lost = events + marks + calls
        return events, marks, calls

    def take_stock(self) -> None:
        """Bring ``lost`` and ``ran`` up to date, which others may read at any time."""
        self.losses()
        now = time.monotonic()
        if now - self._counted > _STOCK_S:
            self._counted, self.ran = now, self._run_seconds()

    def _run_seconds(self) -> float:
        """CPU time of the programs so far, where the host counts it (kernel.bpf_stats_enabled)."""
        spent = 0
        for program in self._programs.values():
            (ns,) = struct.unpack_from("=Q", syscall.describe(program, _PROG_INFO), _RUN_TIME)
            spent += ns
        return spent / 1e9

    def close(self) -> None:
        """Detach and let go of everything."""
        self._stack.close()

    # -- loading -----------------------------------------------------------------------

    def _load(self, objects: Objects) -> None:
        self.objects = objects
        for name, (kind, key, value, entries, flags) in objects.maps.items():
            unused = (name == "calls" and not self.calls) or (
                name in {"said", "took", "blank", "heard"} and not self.text
            )
            size = 1 if unused else entries
            self._maps[name] = self._own(syscall.create_map(kind, key, value, size, flags, name))
        for name in (n for n in objects.programs if n.startswith("snapshot_")):
            function = "bpf_iter_task_file" if name in _FILES else "bpf_iter_task"
            program = self._program(
                name, objects.programs[name], _TRACING, _ITERATOR, objects.functions[function]
            )
            self._links[name] = self._own(syscall.attach_iterator(program, _ITERATOR))
        self.ring = Ring(self._maps["events"], objects.maps["events"][3])
        self._stack.callback(self.ring.close)

    def _program(
        self, name: str, program: Program, kind: int, attach: int = 0, function: int = 0
    ) -> int:
        code = program.linked(self._maps)
        number = self._own(syscall.load_program(kind, code, name, attach, function))
        self._programs[name] = number
        return number

    def _own(self, descriptor: int) -> int:
        self._stack.callback(os.close, descriptor)
        return descriptor

    def _attach(self) -> None:
        """The hooks, last: what fails before leaves the host untouched."""
        for name, tracepoint in _HOOKS.items():
            program = self._program(name, self.objects.programs[name], _RAW_TRACEPOINT)
            self._own(syscall.attach_raw_tracepoint(program, tracepoint))
        if self.calls:
            self._trace("on_enter", "enter", _CALLS)
            self._trace("on_leave", "exit", _CALLS)
        if self.text:
            self._trace("on_write", "enter", _WRITES)
            self._trace("on_read", "exit", _READS)

    def _trace(self, name: str, side: str, calls: Iterable[str]) -> None:
        program = self._program(name, self.objects.programs[name], _TRACEPOINT)
        for call in calls:
            identity = tracepoint_id(f"sys_{side}_{call}")
            if identity is None:
                continue
            try:
                self._own(syscall.attach_tracepoint(program, identity))
            except OSError as error:
                reason = f"{error.strerror}: {name} at sys_{side}_{call}{_restricted()}"
                raise OSError(error.errno, reason) from None

    # -- calibration, on ourselves -------------------------------------------------------

    def _settings(self) -> None:
        values = struct.pack("=QQII", self.regs, self.epoll, int(self.calls), 0)
        syscall.update(self._maps["settings"], bytes(4), values)

    def _calibrate(self) -> None:
        """Find the saved registers: where the call we are in while we ask is seen, and only there.

        Kernels differ by 16 bytes, and the wrong place reads plausible nonsense. There is no
        default.
        """
        pid = os.getpid()
        self.mark(pid, 0)
        hits = []
        calls, self.calls = self.calls, False
        for stack in _STACKS:
            for padding in _PADDINGS:
                self.regs = stack - _REGISTERS - padding
                self._settings()
                if self._sees_own_read(pid):
                    hits.append(self.regs)
        self.calls = calls
        self.unmark(pid)
        if len(hits) != 1:
            raise UnobservableError(
                f"the saved registers were found in {len(hits)} places ({hits}); expected one"
            )
        self.regs = hits[0]
        self._settings()

    def _sees_own_read(self, pid: int) -> bool:
        walk = syscall.open_iterator(self._links["snapshot_threads"])
        try:
            raw = os.read(walk, _CHUNK)
        finally:
            os.close(walk)
        own = [r for r in self.parse(raw) if isinstance(r, ThreadRecord) and r.tid == r.tgid == pid]
        return any((r.number, r.arg0, r.arg2) == (_READ, walk, _CHUNK) for r in own)

    def _learn(self) -> None:
        """Open one of each kind, see what tells it, and compare what is seen with what we know."""
        with contextlib.ExitStack() as opened:
            samples = _samples(opened)
            reader, writer = os.pipe()
            opened.callback(os.close, reader)
            opened.callback(os.close, writer)
            processes, files, _ = self.look((os.getpid(),))
            known = {f.fd: f for f in files}
            for fd, kind in samples.items():
                if fd not in known:
                    raise UnobservableError("our own descriptors are not seen as they are")
                self.kinds[known[fd].operations] = kind
                if kind is FileKind.EPOLL:
                    self.epoll = known[fd].operations
            self._settings()
            self._prove(processes, known, (reader, writer))
            self.pipes = known[reader].filesystem

    def _prove(
        self, processes: list[ProcessRecord], files: dict[int, FileRecord], ours: tuple[int, ...]
    ) -> None:
        """What the kernel tells of us must be what we know; else offsets are wrong somewhere."""
        ids = [(p.tgid, p.parent, p.group, p.session) for p in processes]
        mine = (os.getpid(), os.getppid(), os.getpgrp(), os.getsid(0))
        if ids != [mine]:
            raise UnobservableError(
                f"the kernel knows us as {ids}, and we ourselves as {mine}: in a pid namespace "
                f"only /proc can be used"
            )
        for fd in ours:
            inode = os.fstat(fd).st_ino
            if fd not in files or files[fd].inode != inode:
                raise UnobservableError("our own descriptors are not seen as they are")

    # -- walks -------------------------------------------------------------------------

    @contextlib.contextmanager
    def _wanting(self, pids: Iterable[int]) -> Iterator[None]:
        keys = [struct.pack("=I", pid) for pid in pids]
        for key in keys:
            syscall.update(self._maps["wanted"], key, bytes(4))
        try:
            yield
        finally:
            for key in keys:
                syscall.delete(self._maps["wanted"], key)

    def _records(self, name: str) -> Iterator[Record]:
        return self.parse(self._walk(name))

    def _walk(self, name: str) -> bytes:
        """One walk of an iterator, to its end."""
        walk = syscall.open_iterator(self._links[name])
        parts: list[bytes] = []
        try:
            while True:
                try:
                    part = os.read(walk, _CHUNK)
                except BlockingIOError:  # it was busy with what concerns nobody: go on
                    continue
                if not part:
                    return b"".join(parts)
                parts.append(part)
        finally:
            os.close(walk)

    def parse(self, raw: bytes) -> Iterator[Record]:
        """Records one after the other. Raises UnobservableError when one has not its size."""
        at, end = 0, len(raw)
        while at < end:
            kind, size = _HEAD.unpack(raw[at : at + _HEAD.size].ljust(_HEAD.size, b"\0"))
            record = _BY_KIND.get(kind)
            layout = LAYOUTS[record] if record is not None else None
            if record is None or layout is None or size != layout.size or at + size > end:
                raise UnobservableError(
                    f"a record of kind {kind} has {size} bytes; expected {layout and layout.size}"
                )
            yield record._make(layout.unpack_from(raw, at))
            at += size


def _samples(opened: contextlib.ExitStack) -> dict[int, FileKind]:
    """One descriptor of each kind that only its file operations tell apart."""
    libc = ctypes.CDLL(None)
    nothing = ctypes.create_string_buffer(128)  # sigset_t
    epoll = select.epoll()
    opened.callback(epoll.close)
    found = {epoll.fileno(): FileKind.EPOLL}
    others = (
        (os.eventfd(0), FileKind.EVENT),
        (libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC), FileKind.EVENT),
        (libc.signalfd(-1, nothing, os.O_CLOEXEC), FileKind.EVENT),
        (os.pidfd_open(os.getpid()), FileKind.PIDFD),
    )
    for fd, kind in others:
        opened.callback(os.close, fd)
        found[fd] = kind
    return found


def tracepoint_id(name: str) -> int | None:
    """The number of a system call's tracepoint; ``None``: this kernel has no such call.

    Raises UnobservableError when tracefs is not mounted.
    """
    for folder in _TRACEFS:
        if not (folder / "events/syscalls").is_dir():
            continue
        try:
            return int((folder / "events/syscalls" / name / "id").read_text())
        except FileNotFoundError:
            return None
    raise UnobservableError(
        "tracefs is not mounted, and without it no system call can be attached to; "
        "mount it: mount -t tracefs tracefs /sys/kernel/tracing"
    )


def _restricted() -> str:
    """What Debian and Ubuntu add: above 2, perf_event_open(2) is for CAP_SYS_ADMIN alone."""
    try:
        level = int(_PARANOID.read_text())
    except (OSError, ValueError):
        return ""
    if level <= 2:
        return ""
    return (
        f" (kernel.perf_event_paranoid is {level}, which demands CAP_SYS_ADMIN; "
        f"or allow it: sysctl kernel.perf_event_paranoid=2)"
    )


@contextlib.contextmanager
def _unlimited_memory() -> Iterator[None]:
    """Before 5.11, maps and programs count against RLIMIT_MEMLOCK as they are made: 64 KiB.

    Only for that long, for what we start inherits the limit.
    """
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    with contextlib.suppress(OSError, ValueError):  # wants CAP_SYS_RESOURCE
        resource.setrlimit(
            resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, before)


def _explain(error: OSError) -> str:
    """A refusal of the kernel, and what can be done about it."""
    reason = str(error.strerror)
    if error.errno == errno.ENOSYS:
        return "this kernel has no bpf(2)"
    if error.errno != errno.EPERM:
        return f"the kernel refuses: {reason}"
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if os.geteuid() == 0 and soft != resource.RLIM_INFINITY:  # counted before 5.11 only
        return f"bpf(2) is refused ({reason}); if root may use it here, try: ulimit -l unlimited"
    return f"bpf(2) is refused ({reason}); it wants root, or CAP_BPF and CAP_PERFMON"
