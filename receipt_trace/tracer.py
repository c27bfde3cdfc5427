"""The tracer: a source, the rule and the clerk, for every tree that is followed.

``run`` and ``watch`` both drive it, and it is the only place where observations
become receipts. It owns no loop and no clock: the caller says when it is.
"""

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from receipt_trace.constants import NS, SAMPLE_PERIOD_NS
from receipt_trace.health import SourceHealth
from receipt_trace.observation import (
    Console,
    Context,
    Ending,
    InputEnd,
    ProcessId,
    Sample,
    Waiter,
)
from receipt_trace.receipt import Clerk, Host, Receipt
from receipt_trace.rule import How, Resolved, Rule, Transition
from receipt_trace.trees import Tree
from receipt_trace.unanswered import question

_GOES_ON_NS: Final = 5 * NS  # after which a program that got no answer is told of while it goes on
_REST: Final = 9  # times as long as a look at a tree took is it left alone, at least

Deliver = Callable[[Receipt], None]


class Source(Protocol):
    """Where samples of a tree come from."""

    @property
    def name(self) -> str:
        """As in ``--source`` and in receipts."""

    def sample(
        self,
        tree: Tree,
        now: int,
        *,
        fresh: bool = ...,
        output: int | None = ...,
        console: Console | None = ...,
        given: int | None = ...,
        fed: frozenset[str] = ...,
    ) -> Sample:
        """Look at a tree; see :meth:`receipt_trace.sources.procfs.Procfs.sample`."""

    @property
    def attach(self) -> str | None:
        """How it is attached to the kernel, where there is a choice."""

    @property
    def period(self) -> int:
        """Time between two samples of a tree, in nanoseconds."""

    def moved(self, tree: Tree, now: int) -> bool:
        """Whether a sample of a tree may differ from its last one."""

    def ends(self, tree: Tree) -> list[InputEnd]:
        """Ends of inputs that processes of a tree have read since the last call."""

    def forget(self, tree: Tree) -> None:
        """Let go of everything kept for a tree."""

    def health(self) -> SourceHealth:
        """How the source is. May be asked from another thread, and often: it has to be cheap."""


class Record(Protocol):
    """Where a trace is written down, in the order things were known."""

    def tree(self, tree: Tree) -> None:
        """A tree is followed from now on."""

    def context(self, tree: ProcessId, waiter: Waiter, context: Context) -> None:
        """What was read for the wait that the next sample confirms."""

    def sample(self, tree: ProcessId, sample: Sample, wall: int) -> None:
        """One sample of a tree."""

    def stop(self, tree: ProcessId, time: int, how: How, wall: int) -> None:
        """A tree is no longer followed."""


@dataclass(slots=True)
class _Case:
    """One tree under observation."""

    tree: Tree
    clerk: Clerk
    rule: Rule = field(default_factory=Rule)
    suspected: int = 0
    blind: int = 0
    cost: int = 0
    unanswered: dict[ProcessId, tuple[InputEnd, str, Context]] = field(default_factory=dict)
    told: set[ProcessId] = field(default_factory=set)


def this_host(proc: Path = Path("/proc")) -> Host:
    """The host as receipts name it."""
    try:
        boot_id = (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot_id = "unknown"
    return Host(socket.gethostname(), boot_id)


class Tracer:
    """Follows trees and delivers receipts.

    ``context`` reads what a receipt needs when a wait is confirmed; ``wall`` is
    CLOCK_REALTIME in nanoseconds.
    """

    def __init__(
        self,
        source: Source,
        host: Host,
        deliver: Deliver,
        context: Callable[[Tree, Waiter], Context],
        wall: Callable[[], int],
        record: Record | None = None,
    ) -> None:
        self.source = source
        self._host, self._deliver = host, deliver
        self._context, self._wall, self._record = context, wall, record
        self._cases: dict[ProcessId, _Case] = {}

    def follow(self, tree: Tree) -> None:
        """Begin with a tree."""
        self._cases[tree.root] = _Case(
            tree, Clerk(self._host, self.source.name, self.source.attach)
        )
        if self._record is not None:
            self._record.tree(tree)

    def waits(self, tree: Tree) -> tuple[Waiter, ...]:
        """The confirmed waits of a tree that are not resolved."""
        case = self._cases.get(tree.root)
        return () if case is None else case.rule.active

    def still(
        self, tree: Tree, now: int, *, console: Console | None = None, given: int | None = None
    ) -> bool:
        """Look at everything once more: whether a confirmed wait of the tree still stands."""
        sample = self.source.sample(tree, now, fresh=True, console=console, given=given)
        tree.ended.update(sample.ended)  # the next step is still to hear of them
        seen = {w.key for w in sample.waiters}
        return any(w.key in seen for w in self.waits(tree))

    def counts(self, tree: Tree) -> tuple[int, int]:
        """(suspected threads, processes that may not be looked into) in the last sample of a tree."""
        case = self._cases.get(tree.root)
        return (0, 0) if case is None else (case.suspected, case.blind)

    def rests(self, tree: Tree, now: int) -> int | None:
        """When a tree is looked at again in which nothing has moved; ``None``: it is to be looked at
        now. Most trees rest most of the time, so this is all that is done for them.
        """
        case = self._cases[tree.root]
        if case.rule.due is not None or case.unanswered or self.source.moved(tree, now):
            return None
        return self._following(case, now)

    def step(
        self,
        tree: Tree,
        now: int,
        *,
        output: int | None = None,
        console: Console | None = None,
        given: int | None = None,
        fed: frozenset[str] = frozenset(),
    ) -> int:
        """Take one sample of a tree; returns when the next one is wanted."""
        rest = self.rests(tree, now)
        if rest is not None:
            return rest
        case = self._cases[tree.root]
        due = case.rule.due
        sample = self.source.sample(
            tree,
            now,
            fresh=due is not None and now >= due,
            output=output,
            console=console,
            given=given,
            fed=fed,
        )
        case.suspected, case.blind = sample.suspected, sample.blind
        transitions = case.rule.step(sample)
        wall = self._wall()
        receipts = [self._receipt(case, t, wall) for t in transitions]
        if self._record is not None:
            self._record.sample(tree.root, sample, wall)
        for receipt in receipts:
            if receipt is not None:
                self._deliver(receipt)
        self._questions(case, sample, wall)
        due, following = case.rule.due, self._following(case, now)
        return following if due is None or due <= now else min(following, due)

    def _following(self, case: _Case, now: int) -> int:
        """Trees at rest are looked at all at the same moments, so that they share one look."""
        period = self.source.period
        return now + (SAMPLE_PERIOD_NS if case.rule.restless else period - now % period)

    def _receipt(self, case: _Case, transition: Transition, wall: int) -> Receipt | None:
        if isinstance(transition, Resolved):
            return case.clerk.resolution(transition, wall)
        context = self._context(case.tree, transition.waiter)
        context = case.clerk.without_answer(transition.waiter, context)
        if self._record is not None:
            self._record.context(case.tree.root, transition.waiter, context)
        return case.clerk.wait(case.tree, transition, context)

    def _questions(self, case: _Case, sample: Sample, wall: int) -> None:
        """Questions that met a closed input: told when their process has ended, or in a while."""
        self._note_questions(case)
        for process, (end, asked, context) in list(case.unanswered.items()):
            ended = sample.ended.get(process, None if sample.alive else Ending())
            if ended is not None or sample.time - end.time > _GOES_ON_NS:
                del case.unanswered[process]
                status = ended.status if ended is not None else None
                until = (sample.time, status)
                self._deliver(case.clerk.unanswered(case.tree, end, asked, context, until, wall))

    def _note_questions(self, case: _Case) -> None:
        for end in self.source.ends(case.tree):
            asked = question(end)
            if asked is not None and end.process not in case.told:
                case.told.add(end.process)
                case.unanswered[end.process] = (end, asked, self._context(case.tree, end.waiter))

    def pace(self, tree: Tree, due: int, began: int, ended: int) -> int:
        """When a tree that it took from ``began`` to ``ended`` to look at is looked at again.

        A huge tree is looked at less often, so that it costs at most a tenth of a core: what counts
        is processor time, or a busy host would make us look away. One look that took long
        (something was loaded for it) does not count.
        """
        case = self._cases.get(tree.root)
        if case is None:
            return due
        cost, case.cost = min(case.cost, ended - began), ended - began
        return max(due, ended + _REST * cost)

    def stop(self, tree: Tree, now: int, how: How = How.LOST) -> None:
        """End with a tree: its open waits are resolved as ``how`` says."""
        case = self._cases.pop(tree.root, None)
        if case is None:
            return
        wall = self._wall()
        for transition in case.rule.stop(now, how):
            receipt = self._receipt(case, transition, wall)
            if receipt is not None:
                self._deliver(receipt)
        self._note_questions(case)
        for end, asked, context in case.unanswered.values():
            self._deliver(case.clerk.unanswered(tree, end, asked, context, (now, None), wall))
        if self._record is not None:
            self._record.stop(tree.root, now, how, wall)
        self.source.forget(tree)


def open_limit() -> None:
    """Raise our own limit of open files to what the host allows: two are kept per thread."""
    import resource  # noqa: PLC0415

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
