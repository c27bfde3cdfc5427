"""The BPF source: pictures that the kernel itself makes of tracked processes.

One walk of an iterator tells of every thread of every tree in a tenth of a millisecond, and
nobody is hooked. Where a thread is blocked on input, a second look asks the input
who waits for it: the wait queue of each terminal, pipe and socket names its threads, and
what a poll, select or epoll waits for is read where the kernel keeps it.
A walk takes no locks; the rule confirms nothing that two looks do not agree on.
"""

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from receipt_trace.constants import NS, PATIENCE_NS, TICK_MS
from receipt_trace.health import SourceHealth
from receipt_trace.kernel.loader import Kernel
from receipt_trace.kernel.records import (
    MEMBERS_GO_ON,
    EofRecord,
    MemberRecord,
    ThreadFlag,
    ThreadRecord,
    WaiterRecord,
)
from receipt_trace.observation import (
    Activity,
    Call,
    Descriptor,
    InputEnd,
    Process,
    ProcessId,
    Seen,
    Thread,
    Waiter,
)
from receipt_trace.output import Output
from receipt_trace.sources import calls, proc
from receipt_trace.sources.context import tree_output
from receipt_trace.sources.look import FIFO, PTMX, SOCKET, TYPE, Books, Look
from receipt_trace.sources.sampler import Sampler, Watched, is_output, younger
from receipt_trace.trees import Tree

_TICK_NS: Final = TICK_MS * 1_000_000
_PERIOD_NS: Final = NS // 4  # when a tree went still is known exactly, however late it is seen
_TOGETHER_NS: Final = 40_000_000  # trees sampled within this share a snapshot
_FRESH_NS: Final = 10_000_000  # as old may a snapshot be that a wait is confirmed by
_SLACK_NS: Final = 4_000_000  # CPU time of a running thread is brought up to date at every tick
_CLOCKS: Final = 64  # snapshots by which the scheduler's clock is compared with ours
_ENDS: Final = 4096  # ends of inputs that are kept until their tree is sampled
_ENDS_NS: Final = 10 * NS  # after which nobody comes for them: they were of no tool call
_STRAYS: Final = 25  # snapshots after which a marked process that is in no tree is let go

_DEV_NULL: Final = 1 << 20 | 3
_ICANON, _ECHO = 0o2, 0o10  # termios(3)
_INTERRUPTIBLE, _UNINTERRUPTIBLE, _STOPPED, _TRACED = 1, 2, 4, 8  # include/linux/sched.h
_DEAD, _ZOMBIE = 16, 32
_LETTERS: Final = ((_ZOMBIE, "Z"), (_DEAD, "X"), (_STOPPED, "T"), (_TRACED, "t"),
                   (_UNINTERRUPTIBLE, "D"), (_INTERRUPTIBLE, "S"))  # fmt: skip

Records = dict[int, ThreadRecord]


class Bpf(Sampler):
    """Samples trees by what a kernel tells; ``root`` is the proc file system, for names."""

    name = "bpf"
    grade = "kernel"
    period = _PERIOD_NS

    def __init__(self, kernel: Kernel, root: Path = Path("/proc")) -> None:
        super().__init__(root)
        self.kernel = kernel
        self.books = Books(root, kernel.kinds, kernel.pipes)
        self.attach = "syscalls" if kernel.calls else "snapshot"
        self.threads: dict[int, Records] = {}
        self.told: dict[int, list[int]] = {}  # thread to what its own call said it waits for
        self.stopped: dict[int, int] = {}  # thread to when it left the processor, at the latest
        self.looks: dict[int, Look] = {}
        self._raw = b""
        self._taken = self._looked = 0
        self._clocks: deque[int] = deque(maxlen=_CLOCKS)
        self._moved: set[int] = set()
        self._roots: dict[int, int] = {}  # process to the root of the tree it is marked for
        self._strays: dict[int, int] = {}
        self._ends: deque[EofRecord] = deque(maxlen=_ENDS)
        self._expected = False
        self._nurses: set[int] = set()

    # -- snapshots -----------------------------------------------------------------------

    def moved(self, tree: Tree, now: int) -> bool:
        """Whether a sample of a tree may differ from its last one."""
        watched = self._trees.get(tree.root)
        if watched is None or watched.asks_helper or tree.ended:
            return True
        if tree.members.keys() != watched.views.keys() or (self._ends and self._own_ends(tree)):
            return True
        if now - self._taken > _TOGETHER_NS:  # all its members are marked, for they are in view
            self._snapshot(now)
        return tree.root.pid in self._moved

    def health(self) -> SourceHealth:
        """What the kernel had to drop, and how long our programs ran there, as of the last turn."""
        kernel = self.kernel
        return SourceHealth(self.name, self.attach, lost=kernel.lost, run_seconds=kernel.ran)

    def close(self) -> None:
        """Detach everything."""
        self.kernel.close()

    def nurse(self, pids: Iterable[int]) -> None:
        """Have the kernel track every child of these processes from its birth."""
        wanted = set(pids)
        for pid in wanted - self._nurses:
            self.kernel.nurse(pid)
        for pid in self._nurses - wanted:
            self.kernel.dismiss(pid)
        self._nurses = wanted

    @contextlib.contextmanager
    def expecting(self) -> Iterator[None]:
        """What this process starts meanwhile is tracked from its first instruction on."""
        self._expected = True
        self.kernel.mark(os.getpid(), 0)
        try:
            yield
        finally:
            self.kernel.unmark(os.getpid())

    def forget(self, tree: Tree) -> None:
        """Let go of everything kept for a tree."""
        super().forget(tree)
        self.ends(tree)
        for pid in [pid for pid, root in self._roots.items() if root == tree.root.pid]:
            self._unmark(pid)
        self._moved.discard(tree.root.pid)

    def _begin(self, tree: Tree, now: int, *, fresh: bool) -> None:
        self._bring_up(tree, now, fresh=fresh)
        self._moved.discard(tree.root.pid)

    def _bring_up(self, tree: Tree, now: int, *, fresh: bool) -> None:
        """Mark who belongs to a tree, and have a snapshot that is new enough."""
        root = tree.root.pid
        unmarked = [pid for pid in tree.members if self._roots.get(pid) != root]
        for pid in unmarked:
            self.kernel.mark(pid, root)
            self._roots[pid] = root
        watched = self._trees.get(tree.root)
        gone = () if watched is None else watched.views.keys() - tree.members.keys()
        for pid in gone:
            if self._roots.get(pid) == root:
                self._unmark(pid)
        if unmarked or now - self._taken > (_FRESH_NS if fresh else _TOGETHER_NS):
            self._snapshot(now)

    def _unmark(self, pid: int) -> None:
        self.kernel.unmark(pid)
        del self._roots[pid]

    def _snapshot(self, now: int) -> None:
        """Take a picture of all trees, and note which of them have changed."""
        when, raw = self.kernel.snapshot()
        before, self._taken = self._taken, now
        if when.arrived:
            self._clocks.append(when.monotonic - when.arrived)
        if raw == self._raw:
            return
        self._raw = raw
        found: dict[int, Records] = {}
        self.told = {}
        for record in self.kernel.parse(raw):
            if isinstance(record, ThreadRecord):
                if not record.flags & ThreadFlag.WORKER:
                    found.setdefault(record.tgid, {})[record.tid] = record
            elif isinstance(record, MemberRecord):
                self.told.setdefault(record.tid, []).append(record.fd)
        stopped: dict[int, int] = {}
        for tgid, records in found.items():
            was = self.threads.get(tgid, {})
            if records == was:
                found[tgid] = was
            else:
                self._moved.update(r.root for r in records.values())
            for tid, record in records.items():
                old = was.get(tid)
                known = self.stopped.get(tid)
                if old == record and known is not None:
                    stopped[tid] = known
                else:
                    stopped[tid] = self._stop_of(record, old, before, when.monotonic)
        for tgid, records in self.threads.items():
            if tgid not in found:
                self._moved.update(r.root for r in records.values())
        self.threads, self.stopped = found, stopped
        self._let_strays_go()

    def _stop_of(
        self, record: ThreadRecord, old: ThreadRecord | None, before: int, now: int
    ) -> int:
        """When a thread left the processor, at the latest; CLOCK_MONOTONIC, ns.

        It cannot have run for longer, since it last got one, than its CPU time has grown.
        """
        if record.flags & ThreadFlag.RUNS or not record.arrived or not self._clocks:
            return now
        began = record.arrived + min(self._clocks)
        grown = record.cpu - (old.cpu if old is not None else 0)
        if old is not None and began < before:  # it was running when it was last looked at
            began, grown = before, grown + _SLACK_NS
        return min(now, began + grown)

    def _let_strays_go(self) -> None:
        """Marked by the kernel, in no tree for long: its membership ended while it forked."""
        strays = self.threads.keys() - self._roots.keys()
        self._strays = {pid: self._strays.get(pid, 0) + 1 for pid in strays}
        for pid, seen in self._strays.items():
            if seen > _STRAYS:
                self.kernel.unmark(pid)

    def _still(self, watched: Watched, now: int) -> int | None:
        if watched.left:  # until it ended, it ran
            watched.left, watched.since = False, now
        stops = [
            now if record.flags & ThreadFlag.RUNS else self.stopped.get(tid, now)
            for pid in watched.views
            for tid, record in self.threads.get(pid, {}).items()
        ]
        return max([watched.since, *stops])

    # -- ends of inputs ------------------------------------------------------------------

    def take_end(self, record: EofRecord) -> None:
        """Something that is tracked has read the end of an input (capture level ``text``)."""
        while self._ends and record.time - self._ends[0].time > _ENDS_NS:
            self._ends.popleft()
        self._ends.append(record)

    def ends(self, tree: Tree) -> list[InputEnd]:
        """Ends of inputs that processes of a tree have read since the last call."""
        own = self._own_ends(tree)
        for record in own:
            self._ends.remove(record)
        return [self._end(record) for record in own]

    def _own_ends(self, tree: Tree) -> list[EofRecord]:
        root = tree.root.pid
        return [
            r
            for r in self._ends
            if root in (r.root, self._roots.get(r.tgid), r.tgid)
            or r.root in tree.joined  # over before it was marked as one of this tree
            or (self._expected and not r.root)
        ]

    def _end(self, record: EofRecord) -> InputEnd:
        kind = record.type & TYPE
        streams = (
            (record.time1, record.kept1, record.tgid1, record.inode1, record.filesystem1),
            (record.time2, record.kept2, record.tgid2, record.inode2, record.filesystem2),
        )
        _, kept, writer, *place = max(streams)
        said = self.kernel.said(*place) if kept else None
        text = b"" if said is None else said.text[: len(said.text) - (said.kept - kept)]
        name = {FIFO: f"pipe:[{record.inode}]", SOCKET: f"socket:[{record.inode}]"}
        return InputEnd(
            process=ProcessId(record.tgid, record.start // _TICK_NS),
            comm=proc.text(record.comm.split(b"\0")[0]),
            time=record.time,
            fd=record.fd,
            target=name.get(kind, "/dev/null" if record.device == _DEV_NULL else "terminal"),
            wiring={FIFO: "pipe", SOCKET: "socket"}.get(
                kind, "null" if record.device == _DEV_NULL else "tty"
            ),
            given=record.fd == 0 and bool(record.inherited),
            took=bool(record.took),
            own=writer == record.tgid,
            said=text,
        )

    # -- the whole picture ---------------------------------------------------------------

    def table(self, pid: int) -> Mapping[int, Descriptor]:
        """What a process has open."""
        _, files, _ = self.kernel.look((pid,))
        return {f.fd: self.books.descriptor(f) for f in files}

    def seen(self, tree: Tree, waiter: Waiter) -> Seen:
        """The modes of the terminal a waiter reads, and what was last printed: what its tree wrote into
        a regular file, or, with capture level ``text``, into a pipe or socket, or what stands on
        the terminal. Of these that which leaves a line unfinished, as questions do: a command may have
        its results in a file and ask elsewhere.
        """
        shown, printed = self._terminal(waiter) if waiter.wiring == "tty" else (Seen(), None)
        file = tree_output(self.root, tree, waiter)
        said = self._said(tree, waiter) if self.kernel.text else None
        places = [
            replace(shown, output=file) if file is not None else None,
            replace(shown, output=said[0], total=said[1], source="syscall") if said else None,
            printed,
        ]
        there = [seen for seen in places if seen is not None]
        asks = (seen for seen in there if _asks(seen.output or b""))
        return next(asks, None) or next((s for s in there if s.output), shown)

    def _terminal(self, waiter: Waiter) -> tuple[Seen, Seen | None]:
        """(modes and size of the terminal a waiter reads, the same with what stands there, or where
        the waiter prints if that is another terminal).
        """
        texts = {text.fd: text for text in self.kernel.texts(waiter.key.pid)}
        if waiter.fd not in texts:
            return Seen(), None
        read, shown = texts[waiter.fd], Seen()
        shown = replace(
            shown,
            canonical=bool(read.modes & _ICANON),
            echo=bool(read.modes & _ECHO),
            columns=read.columns or shown.columns,
            lines=read.rows or shown.lines,
        )
        there = (texts[fd] for fd in (waiter.fd, 2, 1) if fd in texts)
        text = next((t for t in there if t.has and t.head), None)
        if text is None:
            return shown, None
        place = text.head % len(text.text)
        said = text.text[place:] * (text.head > place) + text.text[:place]
        return shown, replace(
            shown, output=said, source="ldisc", total=text.head, terminal=True,
            alternate=_output(said).alternate,
        )  # fmt: skip

    def _said(self, tree: Tree, waiter: Waiter) -> tuple[bytes, int] | None:
        """The last that was written into the pipes and sockets that are the tree's output, and how
        many bytes were.
        """
        _, files, _ = self.kernel.look((tree.root.pid, waiter.key.pid))
        streams = {(f.inode, f.filesystem) for f in files
                   if f.fd in (1, 2) and f.type & TYPE in (FIFO, SOCKET)}  # fmt: skip
        said = [s for s in (self.kernel.said(*stream) for stream in streams) if s is not None]
        text = b"".join(s.text for s in sorted(said))
        return (text, sum(s.total for s in said)) if said else None

    def _open(self, pid: int) -> "_View":
        return _View(self, pid)

    def _gather(self, watched: Watched, *, fresh: bool) -> None:  # noqa: ARG002
        """One look goes over all processes of the host, so it is taken for all trees at once."""
        if self._looked != self._taken:
            self._looked = self._taken
            self.looks = self._look_at([pid for pid in self._roots if pid in self.threads])
        missing = [pid for pid in watched.views if pid not in self.looks]
        if missing:
            self.looks.update(self._look_at(missing))

    def _look_at(self, pids: Iterable[int]) -> dict[int, "Look"]:
        """Everything about some processes, and what their blocked threads wait for."""
        pids = list(pids)
        processes, files, waiters = self.kernel.look(pids)
        looks = {p.tgid: Look(p) for p in processes}
        for file in files:
            if file.tgid in looks:
                looks[file.tgid].files[file.fd] = file
        queues: dict[int, set[WaiterRecord]] = {}
        for waiter in waiters:
            queues.setdefault(waiter.object, set()).add(waiter)
        polls: dict[int, int] = {}
        sets: dict[int, int] = {}
        for pid, look in looks.items():
            look.queues = {
                f.object: queues[f.object] for f in look.files.values() if f.object in queues
            }
            for record in self.threads.get(pid, {}).values():
                polls.update(look.poll_of(record))
                sets.update(look.set_of(record))
        for member in self.kernel.members(polls, sets) if polls or sets else ():
            for pid, look in looks.items():
                if member.tid in self.threads.get(pid, {}):
                    look.members.setdefault(member.tid, []).append(member)
        return looks

    def _written(self, tree: Tree, watched: Watched, processes: Mapping[int, Process]) -> int:
        """How often somebody of the tree was seen to have written to its outputs.

        Terminals and pipes tell how far they have come, and their writers that it was them: the
        harness may print on the same terminal. Of sockets and files only the writers tell.
        """
        self._note_outputs(tree, watched, processes)
        wrote = {pid: watched.views[pid].written() for pid in processes}
        born, watched.born = watched.born, tree.born  # who came and went may have written
        moved = 0
        marks: dict[str, int] = {}
        for pid, process in processes.items():
            for fd, held in (process.descriptors or {}).items():
                if not held.writable or not is_output(watched, held):
                    continue
                file = self.looks[pid].files[fd]
                marked = file.type & TYPE == FIFO or file.terminal
                before = watched.output_marks.get(held.key, file.output) if marked else -1
                if marked:
                    marks[held.key] = file.output
                if before != file.output or not marked:
                    moved += bool(wrote[pid]) or (marked and born not in (0, tree.born))
        watched.output_marks.update(marks)
        return moved

    def _inputs(self, tree: Tree, watched: Watched, given: Iterable[Descriptor]) -> None:
        """What the root was started with, though it has moved it elsewhere before anybody looked."""
        file, _ = self.kernel.given(tree.root.pid)
        look = self.looks.get(tree.root.pid)
        held = look.files.values() if look is not None and file else ()
        moved = [self.books.descriptor(f) for f in held if f.file == file and f.fd]
        super()._inputs(tree, watched, [*given, *moved])

    def _place(self, waiter: Waiter) -> int | None:
        """A terminal counts what was read from it, until it is flushed; a pipe what was taken out."""
        pid = waiter.key.pid
        look = self.looks.get(pid) if self._looked == self._taken else None
        for file in self.kernel.look((pid,))[1] if look is None else look.files.values():
            if file.fd == waiter.fd and (file.terminal or file.type & TYPE == FIFO):
                same = self.books.descriptor(file).key == waiter.key.input
                flushed = 0 if file.terminal else 1  # a pipe never begins anew
                return file.input + flushed if same else None
        return None

    def _was_fed(self, tree: Tree, key: str) -> bool | None:
        """A pipe counts the slots that were ever filled (pipe_inode_info.head)."""
        look = self.looks.get(tree.root.pid)
        for file in look.files.values() if look is not None else ():
            if file.type & TYPE == FIFO and key == self.books.descriptor(file).key:
                return bool(file.output)
        return None

    def _helpers(self, tree: Tree) -> Iterator[Process]:
        """The terminal's own queue names whoever waits for it, in the tree or not."""
        named: set[int] = set()
        for pid in tree.members:
            look = self.looks.get(pid)
            for file in look.files.values() if look is not None else ():
                if file.terminal and file.device != PTMX:
                    waiting = look.queues.get(file.object, ()) if look is not None else ()
                    named.update(n for w in waiting for n in (w.waiter, w.poller))
        named -= {*self._roots, 0}  # whoever is in a tree is nobody's helper
        named &= set(younger(self.root, tree)) if named else set()
        if not named:
            return
        for pid in named:
            self.kernel.mark(pid, 0)
        try:
            self._raw = b""
            self._snapshot(self._taken)
            looks = self._look_at(named)
            self.looks.update(looks)
            for pid in looks:
                try:
                    view = _View(self, pid)
                    view.refresh()
                    yield view.picture()
                except OSError:
                    continue
        finally:
            for pid in named:
                self.kernel.unmark(pid)


def _output(said: bytes) -> Output:
    output = Output()
    output.feed(said)
    return output


def _asks(said: bytes) -> bool:
    """Whether it leaves a line unfinished, or a screen that is no sheet of lines."""
    output = _output(said)
    return output.unterminated or output.alternate


class _View:
    """One process, as the latest snapshot has it."""

    def __init__(self, source: Bpf, pid: int) -> None:
        self._source, self.pid = source, pid
        self._records: Records = {}
        self._last: dict[int, calls.Blocked] = {}
        self._blocked: dict[int, calls.Blocked] = {}
        self._counted: int | None = None
        self.threads: tuple[Thread, ...] = ()
        self._passed: set[int] = set()  # threads that had left the call when their input was asked
        self.cpu = 0
        records = self._found()
        self.id = ProcessId(pid, next(iter(records.values())).start // _TICK_NS)

    def _found(self) -> Records:
        records = self._source.threads.get(self.pid)
        if not records:
            raise ProcessLookupError(self.pid)
        return records

    @property
    def state(self) -> str:
        """The letter of proc_pid_stat(5)."""
        leader = self._records.get(self.pid)
        state = leader.state if leader is not None else _ZOMBIE
        if state & (_ZOMBIE | _DEAD):  # it may go on without its first thread
            living = (r.state for r in self._records.values())
            state = next((s for s in living if not s & (_ZOMBIE | _DEAD)), state)
        return next((letter for bit, letter in _LETTERS if state & bit), "R")

    @property
    def exit_code(self) -> int | None:
        """A zombie's wait status."""
        leader = self._records.get(self.pid)
        return leader.status if leader is not None else None

    def refresh(self) -> bool:
        """Take it from the latest snapshot; returns whether anything changed."""
        records = self._found()
        if records is self._records:
            return False
        if next(iter(records.values())).start // _TICK_NS != self.id.start:
            raise ProcessLookupError(self.pid)
        self._records = records
        self._blocked = {}
        self._passed.clear()
        self.cpu = sum(r.cpu + r.ended_cpu for r in records.values())
        self.threads = tuple(self._thread(r) for r in records.values())
        return True

    @property
    def on_cpu(self) -> frozenset[int]:
        """Threads on a processor, or between two calls."""
        runs = (r.tid for r in self._records.values() if r.flags & ThreadFlag.RUNS)
        return frozenset(self._passed.union(runs))

    def _thread(self, record: ThreadRecord) -> Thread:
        state = self.state
        blocked = None
        if not record.flags & ThreadFlag.RUNS:
            names = calls.NARROW if record.flags & ThreadFlag.NARROW else calls.NUMBERS["x86_64"]
            blocked = calls.Blocked(names.get(record.number), record.args)
            blocked = calls.resumed(blocked, self._last.get(record.tid))
            assert blocked is not None
            self._blocked[record.tid] = blocked
        activity = Activity.PARKED if state in "ZX" else calls.activity(blocked, state)
        if activity is Activity.INPUT:
            assert blocked is not None
            self._last[record.tid] = blocked
            if record.state & _UNINTERRUPTIBLE:  # it waits for a disk, not for anybody
                activity = Activity.ACTIVE
        return Thread(record.tid, activity, None, record.runs)

    def picture(self) -> Process:
        """The whole process. Raises OSError when it is gone."""
        look = self._source.looks.get(self.pid)
        if look is None or look.process.start // _TICK_NS != self.id.start:
            raise ProcessLookupError(self.pid)
        self._passed.clear()
        process = look.process
        terminal = None
        if process.terminal:
            terminal = proc.device_key(process.terminal >> 20, process.terminal & 0xFFFFF)
        return Process(
            id=self.id,
            ppid=process.parent,
            comm=proc.text(process.comm.split(b"\0")[0]),
            group=process.group,
            session=process.session,
            state=self.state,
            terminal=terminal,
            foreground=process.foreground,
            threads=tuple(self._decoded(t, look) for t in self.threads),
            descriptors={fd: self._source.books.descriptor(f) for fd, f in look.files.items()},
            ignored=process.ignored,
            caught=process.caught,
        )

    def _decoded(self, thread: Thread, look: Look) -> Thread:
        if thread.activity is not Activity.INPUT:
            return thread
        record, blocked = self._records[thread.tid], self._blocked[thread.tid]
        name = blocked.name or ""
        numbers = self._numbers(record, blocked, look)
        if numbers is None and not record.fresh:
            # It was seen a moment before its input was, and has moved on.
            self._passed.add(thread.tid)
        if name in calls.READS:
            return replace(thread, call=Call(name, numbers))
        return replace(thread, call=Call(name, numbers, self._timeout(record, blocked), True))

    def _numbers(
        self, record: ThreadRecord, blocked: calls.Blocked, look: Look
    ) -> tuple[int, ...] | None:
        """The descriptors that a blocked thread waits for; ``None``: not known."""
        if blocked.name in calls.READS:
            fd = blocked.args[0] & 0xFFFFFFFF
            waits = record.fresh or self.state in "Tt" or look.reads(record, fd)
            return (fd,) if waits else None
        told = self._source.told.get(record.tid)
        if record.fresh and not (blocked.name or "").startswith("epoll"):
            return None if told and MEMBERS_GO_ON in told else tuple(sorted(told or ()))
        return look.numbers(record.tid) if record.tid in look.members else None

    def _timeout(self, record: ThreadRecord, blocked: calls.Blocked) -> float | None:
        """How long the call waits, in seconds; the longest that matters where it is not known."""
        unknown = PATIENCE_NS / NS
        if record.fresh:
            return (
                None
                if record.timeout_ms == -1
                else (unknown if record.timeout_ms < 0 else record.timeout_ms / 1000)
            )
        if record.flags & ThreadFlag.NARROW and blocked.name not in ("poll", "epoll_wait"):
            return unknown
        try:
            return calls.timeout(blocked, self._memory)
        except (OSError, ValueError):
            return unknown

    def _memory(self, address: int, length: int) -> bytes:
        fd = os.open(f"{self._source.root}/{self.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, length, address)
        finally:
            os.close(fd)

    def written(self) -> int:
        """Bytes written to files since the last call (0 at the first one)."""
        now = sum(r.written for r in self._records.values())
        before, self._counted = self._counted, now
        return 0 if before is None else max(0, now - before)

    def has_written(self) -> bool:
        """Whether it has written anything, to whomever."""
        return any(r.written for r in self._records.values())

    def consumed(self, tid: int) -> int | None:
        """Bytes that a thread has read from files so far."""
        record = self._records.get(tid)
        return None if record is None else record.consumed

    def close(self) -> None:
        """Nothing is kept open."""
        self._source.looks.pop(self.pid, None)
