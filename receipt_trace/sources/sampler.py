"""What all sources do alike: samples of trees, from views of their processes.

A source opens a view of each process (:class:`View`) and says how it learns of other ends and
of helpers; the sampler keeps the views of a tree in step with its members, decides when the
whole picture has to be looked at, and remembers between two samples who took input.
"""

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from receipt_trace.constants import SAMPLE_PERIOD_NS, TICK_MS
from receipt_trace.descriptors import Findings, find_waiters
from receipt_trace.health import SourceHealth
from receipt_trace.observation import (
    Activity,
    Call,
    Console,
    Descriptor,
    Ending,
    FileKind,
    Forest,
    InputEnd,
    Process,
    ProcessId,
    Sample,
    Seen,
    Thread,
    Waiter,
    WaiterKey,
)
from receipt_trace.output import Output
from receipt_trace.sources import proc
from receipt_trace.sources.context import output_file
from receipt_trace.sources.holders import writers_above
from receipt_trace.trees import Tree

_WAKEUPS: Final = 256  # bytes of wake-ups a thread may read in one sample
_FIRST_SAMPLES: Final = 3  # in which a new root has surely become its program
_GUEST_PERIOD: Final = 5  # samples between two searches for helpers outside the tree
_TICK_NS: Final = TICK_MS * 1_000_000


class View(Protocol):
    """One process that a source keeps in view.

    ``threads`` as of the last :meth:`refresh`, their calls not decoded; ``on_cpu`` are those
    on a processor, or between two calls. ``cpu`` is CPU time in nanoseconds, with that of children
    that ended.
    ``state`` is the letter of proc_pid_stat(5), ``exit_code`` a zombie's wait status.
    """

    id: ProcessId
    threads: tuple[Thread, ...]
    cpu: int

    @property
    def on_cpu(self) -> frozenset[int]:
        """See above."""

    @property
    def state(self) -> str:
        """See above."""

    @property
    def exit_code(self) -> int | None:
        """See above."""

    def refresh(self) -> bool:
        """Look at every thread; returns whether any ran. Raises OSError when the process is gone."""

    def picture(self) -> Process:
        """The whole process, calls decoded. Raises OSError when it is gone."""

    def written(self) -> int:
        """Bytes written to files since the last call (0 at the first one)."""

    def has_written(self) -> bool:
        """Whether it has written anything, to whomever (so: yes, if that may not be seen)."""

    def consumed(self, tid: int) -> int | None:
        """Bytes that a thread has read from files so far; ``None``: not known."""

    def close(self) -> None:
        """Let go of what is kept open for it."""


class Sampler(ABC):
    """Samples trees. ``root`` is the proc file system.

    ``grade`` is that of its evidence, ``period`` is the time between two samples of a tree in nanoseconds; ``attach`` how the
    source is attached to the kernel, where there is a choice.
    """

    name = ""
    grade = "syscall"
    attach: str | None = None
    period = SAMPLE_PERIOD_NS

    def __init__(self, root: Path) -> None:
        self.root = root
        self.fallback: str | None = None  # why a better source is not used
        self._trees: dict[ProcessId, Watched] = {}

    # -- what a source says --------------------------------------------------------------

    @abstractmethod
    def health(self) -> SourceHealth:
        """How the source is. May be asked from another thread."""

    @abstractmethod
    def _open(self, pid: int) -> View:
        """A view of a process. Raises OSError or ValueError when it is gone."""

    @abstractmethod
    def table(self, pid: int) -> Mapping[int, Descriptor]:
        """What a process has open; empty where that may not be seen."""

    @abstractmethod
    def seen(self, tree: Tree, waiter: Waiter) -> Seen:
        """The modes of what a waiter reads, and the latest output there."""

    @abstractmethod
    def _helpers(self, tree: Tree) -> Iterable[Process]:
        """Processes outside a tree that may read one of its terminals."""

    def _begin(self, tree: Tree, now: int, *, fresh: bool) -> None:  # noqa: B027  (unless needed)
        """A sample of a tree is about to be taken."""

    def _gather(self, watched: "Watched", *, fresh: bool) -> None:  # noqa: B027
        """The whole picture of its processes is about to be looked at."""

    def _was_fed(self, tree: Tree, key: str) -> bool | None:  # noqa: ARG002
        """Whether anything was ever written into an input of a tree's root; ``None``: not known."""
        return None

    def _place(self, waiter: Waiter) -> int | None:  # noqa: ARG002
        """How far the input of a waiter has been read, by whomever; ``None``: not known, 0: it was
        flushed, or never read.
        """
        return None

    def _still(self, watched: "Watched", now: int) -> int | None:  # noqa: ARG002
        """Since when nobody in a tree has run: CLOCK_MONOTONIC, ns; ``None``: not known."""
        return None

    def ends(self, tree: Tree) -> list[InputEnd]:  # noqa: ARG002
        """Ends of inputs that processes of a tree have read since the last call, where they show."""
        return []

    # -- sampling ------------------------------------------------------------------------

    def forget(self, tree: Tree) -> None:
        """Let go of everything kept for a tree."""
        watched = self._trees.pop(tree.root, None)
        if watched is not None:
            for view in watched.views.values():
                view.close()

    def nurse(self, pids: Iterable[int]) -> None:  # noqa: B027
        """These, and only these, are processes each child of which is a tool call."""

    def expecting(self) -> contextlib.AbstractContextManager[None]:
        """While something is started that is to be followed from its first instruction on."""
        return contextlib.nullcontext()

    def close(self) -> None:  # noqa: B027
        """Let go of everything."""

    def moved(self, _tree: Tree, _now: int) -> bool:
        """Whether a sample of a tree may differ from its last one."""
        return True

    def processes(self, tree: Tree) -> Mapping[int, ProcessId]:
        """The processes of a tree that could be looked at in the last sample."""
        watched = self._trees.get(tree.root)
        return {} if watched is None else {pid: v.id for pid, v in watched.views.items()}

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
        output where it relays it; else the source counts. ``given`` counts the
        input that the caller passed on, where all input comes through him; else bytes
        read are counted.
        """
        self._begin(tree, now, fresh=fresh)
        watched = self._trees.setdefault(tree.root, Watched(tree.root))
        ran = self._refresh(tree, watched)
        watched.given = given
        if watched.samples < _FIRST_SAMPLES:
            watched.samples += 1
            self._inputs(tree, watched, self._root_input(tree))
        views = watched.views
        waiting = any(t.activity is Activity.INPUT for v in views.values() for t in v.threads)
        blind = any(is_blind(v) for v in views.values())
        if waiting or (blind and console is not None):
            if ran or fresh or fed != watched.fed or console is not None or watched.asks_helper:
                watched.fed = fed
                watched.findings = self._look(tree, watched, console, fresh, output is None)
        else:
            watched.findings = Findings(blind=sum(map(is_blind, views.values())))
        waiters = watched.findings.waiters
        ended = tree.take_ended()
        answered, closed, leaving = self._left(watched, waiters, ended, tree.members)
        watched.marks = {  # a guest has no view
            k: m for k, m in watched.marks.items() if k.pid in views or k in watched.waiters
        }
        return Sample(
            time=now,
            output=watched.written if output is None else output,
            cpu_ticks=watched.cpu // _TICK_NS,
            waiters=waiters,
            running=leaving.union((*v.id, tid) for v in views.values() for tid in v.on_cpu),
            ended=ended,
            answered=answered,
            closed=closed,
            suspected=watched.findings.suspected,
            blind=watched.findings.blind,
            alive=bool(tree.members),
            # of a guest nobody knows when it last ran
            still=self._still(watched, now) if all(w.key.pid in views for w in waiters) else None,
        )

    def _refresh(self, tree: Tree, watched: "Watched") -> bool:
        """Bring the views up to date; returns whether anything in the tree ran."""
        ran = False
        views = watched.views
        for pid in [pid for pid in views if pid not in tree.members]:
            views.pop(pid).close()
            ran = watched.left = True
        for pid, identity in list(tree.members.items()):
            view = views.get(pid)
            try:
                if view is None or (identity is not None and view.id != identity):
                    if view is not None:
                        view.close()
                    view = self._open(pid)
                    if identity is None:
                        tree.members[pid] = view.id
                    elif view.id != identity:  # the number belongs to somebody else now
                        view.close()
                        raise ProcessLookupError(pid)
                    views[pid] = view
                    ran = True
                before = view.cpu
                if view.refresh():
                    ran = True
                    watched.cpu += max(0, view.cpu - before)
            except (OSError, ValueError):
                gone = views.pop(pid, None)
                if gone is not None:
                    gone.close()
                    ran = watched.left = True
        return ran

    def _look(
        self,
        tree: Tree,
        watched: "Watched",
        console: Console | None,
        fresh: bool,
        count_output: bool,
    ) -> Findings:
        """The whole picture: decode the calls, resolve the descriptors, find the waiters."""
        self._gather(watched, fresh=fresh)
        processes: dict[int, Process] = {}
        for pid, view in watched.views.items():
            try:
                processes[pid] = view.picture()
            except OSError:  # it ended since it was refreshed
                continue
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

    # -- inputs and outputs ----------------------------------------------------------------

    def _idle(self, tree: Tree, watched: "Watched", root: Process | None) -> frozenset[str]:
        """Inputs that the root may be fed from, by whom it then owes no answer.

        It was seen to take something from one. Or nobody saw how it began: it reads a
        pipe or socket, has written into another, and may be a server that has answered its
        first request. Neither if it has left a line unfinished where that can be seen.
        """
        held = (root.descriptors or {}) if root is not None else {}
        unknown = watched.given is None and not tree.recognised and _is_channel(held.get(1))
        known = {k: self._was_fed(tree, k) for k, ours in watched.inputs.items() if ours}
        # What a command below a shell that lives on reads was fed to the shell.
        if watched.given is None and not tree.recognised:
            watched.seen_fed.update(k for k, fed in known.items() if fed)
        if unknown and watched.views[tree.root.pid].has_written():
            return frozenset({*watched.seen_fed, *(k for k, fed in known.items() if fed is None)})
        if watched.seen_fed:
            said = Output()
            said.feed(output_file(self.root, tree.root.pid, 4096) or b"")
            if said.unterminated:
                return frozenset()
        return frozenset(watched.seen_fed)

    def _inputs(self, tree: Tree, watched: "Watched", given: Iterable[Descriptor]) -> None:
        """Note which standard inputs come from outside: a process above the tree holds their
        other end. Each object is asked for once.
        """
        for stdin in given:
            stream = stdin.kind in (FileKind.PIPE, FileKind.UNIX)
            if stream and stdin.key not in watched.inputs and not tree.ended_input:
                end = stdin.target if stdin.kind is FileKind.PIPE else stdin.peer
                above = (tree.parent, *tree.givers)
                watched.inputs[stdin.key] = any(
                    any(writers_above(self.root, self.table, pid, end)) for pid in above
                )

    def _root_input(self, tree: Tree) -> list[Descriptor]:
        """What the root was given to read, looked at early: it may be gone before anybody waits."""
        found = self.table(tree.root.pid).get(0)
        return [] if found is None else [found]

    def _note_outputs(
        self, tree: Tree, watched: "Watched", processes: Mapping[int, Process]
    ) -> None:
        """What the root was given to write to is the tree's output."""
        root = processes.get(tree.root.pid)
        for fd in (1, 2):
            given = (root.descriptors or {}).get(fd) if root is not None else None
            if given is not None:
                watched.outputs.add(given.key)

    def _written(self, tree: Tree, watched: "Watched", processes: Mapping[int, Process]) -> int:
        """How far the tree's output has moved since the last look."""
        self._note_outputs(tree, watched, processes)
        written = 0
        for pid, process in processes.items():
            held = (process.descriptors or {}).values()
            if any(d.writable and is_output(watched, d) for d in held):
                written += watched.views[pid].written()
        return written

    def _guests(self, tree: Tree, watched: "Watched", forest: Forest) -> Findings | None:
        """Helpers outside the tree that read its terminal, such as a pinentry below gpg-agent.

        Looked for only while the tree itself is stuck.
        """
        terminals = {
            d.key: d
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
        guests = {
            p.id.pid: replace(p, guest=True)
            for p in self._helpers(tree)
            if any(
                d.kind is FileKind.TTY and d.key in terminals and d.readable
                for d in (p.descriptors or {}).values()
            )
        }
        if not guests:
            return None
        watched.looks = 0  # as long as there is a guest, look every time
        return find_waiters(replace(forest, processes={**forest.processes, **guests}))

    # -- who took input ----------------------------------------------------------------------

    def _marked(self, watched: "Watched", waiter: Waiter) -> Waiter:
        """Put the mark on a waiter that moves when its thread takes input."""
        mark = watched.marks.get(waiter.key)
        if mark is None:
            mark = watched.marks[waiter.key] = _Mark()
        self._consumed(watched, waiter, mark)
        grade = self.grade if waiter.grade == "syscall" else waiter.grade
        return replace(waiter, consumed=mark.count, grade=grade)

    def _consumed(self, watched: "Watched", waiter: Waiter, mark: "_Mark") -> bool:
        """Bring a mark up to date; returns whether input was taken since the last time."""
        key = waiter.key
        view = watched.views.get(key.pid)
        thread = next((t for t in view.threads if t.tid == key.tid), None) if view else None
        runs = thread.runs if thread is not None else None
        if mark.count >= 0 and runs is not None and runs == mark.runs:
            return False  # it has not run since
        counted = watched.given is None and not waiter.syscall.startswith("recv")
        read = view.consumed(key.tid) if view is not None and counted else None
        place = self._place(waiter) if watched.given is None else None
        taken = mark.moved(runs, read, place, watched.given, alone=len(waiter.wait_set) <= 1)
        mark.count = max(0, mark.count) + taken
        mark.runs, mark.read, mark.place, mark.given = runs, read, place, watched.given
        if taken and watched.given is None and waiter.wiring != "tty" and key[:2] == watched.root:
            watched.seen_fed.add(key.input)
        return taken

    def _ending(self, key: WaiterKey) -> Ending | None:
        """How a process that is out of view has ended; ``None``: it lives."""
        try:
            stat = proc.stat(self.root, key.pid)
        except (OSError, ValueError):
            return Ending()
        if stat.start != key.start:
            return Ending()
        return Ending(stat.exit_code) if stat.state in "ZX" and stat.threads <= 1 else None

    def _left(
        self,
        watched: "Watched",
        waiters: tuple[Waiter, ...],
        ended: dict[ProcessId, Ending],
        members: Container[int],
    ) -> tuple[frozenset[str], frozenset[str], frozenset[tuple[int, int, int]]]:
        """Inputs whose waiter left its call: those it took something from, those that ended; and
        waiters that are on their way out of life.

        Notes in ``ended`` whose process is no more, if nobody else has told it yet. Of whom nothing
        can be said yet, for he is on a processor, is asked again the next time.
        """
        answered, closed, leaving = set(), set(), set()
        now = {w.key: w for w in waiters}
        held = {w.key.input for w in waiters}
        for key, was in watched.waiters.items():
            if key in now or was.grade == "terminal":
                continue
            mark = watched.marks[key]
            if watched.given is not None and watched.given != mark.given:
                answered.add(key.input)
            view = watched.views.get(key.pid)
            if view is None or view.id.start != key.start:
                ending = self._ending(key)
                if ending is not None:
                    ended.setdefault(ProcessId(key.pid, key.start), ending)
                elif key.pid in members:  # it is just going; a guest, too, may be out of view
                    leaving.add(key[:3])
            elif view.state in "ZX":
                ended.setdefault(view.id, Ending(view.exit_code))
            elif self._consumed(watched, was, mark):
                answered.add(key.input)
            elif key.tid in view.on_cpu:
                leaving.add(key[:3])
            elif was.timeout is None:
                closed.add(key.input)
        undecided = {
            k: w for k, w in watched.waiters.items() if k[:3] in leaving and k.input not in held
        }
        watched.waiters = undecided | now
        return frozenset(answered), frozenset(closed), frozenset(leaving)


def is_blind(view: View) -> bool:
    """Whether the kernel does not let us look into a process."""
    return any(t.activity is Activity.UNKNOWN for t in view.threads)


def is_output(watched: "Watched", held: Descriptor) -> bool:
    """Whether what is written there is output of the tree: any terminal, or what its root was given."""
    return held.kind is FileKind.TTY or held.key in watched.outputs


def younger(root: Path, tree: Tree) -> Iterable[int]:
    """Processes outside a tree, of the same user, that are not older than it."""
    try:
        owner = os.stat(root / str(tree.root.pid)).st_uid
    except OSError:
        return
    for pid in proc.pids(root):
        if pid in tree.members:
            continue
        try:
            if os.stat(root / str(pid)).st_uid != owner:
                continue
            if proc.stat(root, pid).start >= tree.root.start:
                yield pid
        except (OSError, ValueError):
            continue


def _is_socket(held: Mapping[int, Descriptor], call: Call) -> bool:
    """Whether a call waits for an answer over a socket."""
    return any(fd in held and held[fd].target.startswith("socket:") for fd in call.fds or ())


def _is_channel(output: Descriptor | None) -> bool:
    return output is not None and output.kind in (FileKind.PIPE, FileKind.UNIX, FileKind.OUTSIDE)


@dataclass(slots=True)
class Watched:
    """What is remembered of a tree between two samples. ``cpu`` is in nanoseconds.

    ``left``: a process has gone since anybody asked; ``since``: when that was, for sources that know
    more than that. ``output_marks`` are how far each output had come.
    """

    root: ProcessId
    views: dict[int, View] = field(default_factory=dict)
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
    left: bool = False
    since: int = 0
    born: int = 0
    output_marks: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Mark:
    """How much input a waiting thread has taken, as far as can be told (``count`` -1: not looked yet)."""

    count: int = -1
    runs: int | None = None
    read: int | None = None
    place: int | None = None
    given: int | None = None

    def moved(
        self,
        runs: int | None,
        read: int | None,
        place: int | None,
        given: int | None,
        *,
        alone: bool,
    ) -> bool:
        """Whether it took input since. All input comes through the caller, or the input itself says
        how far it was read, or what the thread has read is counted, or, where none of these
        is known, every time the thread ran counts.
        """
        if self.count < 0:
            return False
        if given is not None:
            return given != self.given
        if place is not None and self.place is not None and (place or self.place):
            return place != self.place
        if read is None or self.read is None:
            return runs != self.runs
        taken = read - self.read
        if alone or taken <= 0:
            return taken > 0
        # Beside its input it may watch an eventfd, a timerfd or a self-pipe: these give words of 8.
        # More at once than a person types, and the terminal is not known to have given any: a file.
        much, odd = taken > _WAKEUPS, taken % 8 != 0
        return odd or much if place is None else odd and not much
