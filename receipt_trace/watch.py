"""The service loop: discovery, sampling and receipts for a whole host.

One thread. Lifecycle events are taken as they come, every tree is sampled when
its time has come, and nothing is done to any of them.
"""

import selectors
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import structlog

from receipt_trace.agents import Registry
from receipt_trace.constants import NS, SAMPLE_PERIOD_NS
from receipt_trace.discovery import Discovery
from receipt_trace.health import Health
from receipt_trace.observation import Context, Fork, Lifecycle, ProcessId, Stir, Waiter
from receipt_trace.receipt import Host, Receipt
from receipt_trace.rule import How
from receipt_trace.sources import proc, scan
from receipt_trace.sources.choice import Choice, choose
from receipt_trace.sources.context import read_context
from receipt_trace.tracer import Record, Tracer, open_limit
from receipt_trace.trees import Agent, Tree, Trees

_SWEEP_NS: Final = NS  # how often everybody is looked at where no events come
_NEVER: Final = 1 << 62
_LONGEST_PAUSE_NS: Final = 3600 * NS  # epoll_wait(2) counts milliseconds in an int
_SLICE_NS: Final = 40_000_000  # trees due within this are sampled together: fewer wake-ups


class Watch:
    """Watches trees until it is stopped.

    ``everybody`` is false to follow only what is named. ``deliver`` gets every
    receipt; ``record`` writes a trace; ``choice`` is what is observed by.
    """

    def __init__(
        self,
        registry: Registry,
        host: Host,
        deliver: Callable[[Receipt], None],
        record: Record | None = None,
        root: Path = Path("/proc"),
        *,
        everybody: bool = True,
        choice: Choice | None = None,
    ) -> None:
        open_limit()
        self._log = structlog.get_logger()
        self._root = root
        self.trees = Trees()
        self.receipts = 0
        self._deliver = deliver
        self._stopped = False
        self._taken = self._overflows = 0
        self._due: dict[ProcessId, int] = {}
        self._source, self._events, shortcomings = choice or choose("procfs", root=root)
        for reason in shortcomings:
            self._log.warning("limited", what=reason)
        self._tracer = Tracer(self._source, host, self._count, self._context, time.time_ns, record)
        self.discovery = Discovery(
            root,
            self.trees,
            registry,
            self._started,
            self._found,
            time.monotonic_ns,
            everybody=everybody,
            execs=self._events.execs if self._events is not None else lambda _pid: 0,
        )
        self._next_sweep = 0
        self._seen: dict[int, int] = {}
        self._told: set[tuple[ProcessId, str]] = set()

    def stop(self) -> None:
        """Leave the loop at the next turn (may be called from a signal handler)."""
        self._stopped = True

    def run(
        self,
        done: Callable[[], bool] = lambda: False,
        callbacks: Mapping[int, Callable[[], None]] | None = None,
        tick: int = _LONGEST_PAUSE_NS,
    ) -> None:
        """Watch until ``done`` or :meth:`stop`; ``callbacks`` are called when their descriptor
        is readable, which also ends a wait early. ``done`` is asked at least every ``tick``
        nanoseconds.
        """
        with selectors.DefaultSelector() as selector:
            if self._events is not None:
                selector.register(self._events.fileno(), selectors.EVENT_READ, None)
            for fd, callback in (callbacks or {}).items():
                selector.register(fd, selectors.EVENT_READ, callback)
            while not self._stopped and not done():
                now = time.monotonic_ns()
                pause = min(tick, max(0, self._wake_at(now) - now)) / NS
                for key, _ in selector.select(pause):
                    if key.data is not None:
                        key.data()
                self.turn(time.monotonic_ns())
        for tree in self.trees:
            self._end(tree)
        if self._events is not None:
            self._events.close()

    def waits(self, tree: Tree) -> tuple[Waiter, ...]:
        """The open waits of a tree."""
        return self._tracer.waits(tree)

    def health(self) -> Health:
        """How the watcher is. May be asked from another thread: it looks at copies."""
        trees = list(self.trees)
        counts = [self._tracer.counts(tree) for tree in trees]
        return Health(
            source=self._source.health(),
            lifecycle="scan" if self._events is None else self._events.name,
            agents=self.discovery.agents,
            trees=len(trees),
            processes=sum(len(tree.members) for tree in trees),
            suspected=sum(suspected for suspected, _ in counts),
            blind=sum(blind for _, blind in counts),
            events=self._taken,
            overflows=self._overflows,
        )

    def turn(self, now: int) -> None:
        """Take what events there are, sample the trees that are due."""
        events = self._take()
        stirred = {event.root for event in events if isinstance(event, Stir)}
        if now >= self._next_sweep:
            self._sweep(now)
        self._source.nurse(self.discovery.nurses())
        if self._events is None:
            self._scan_parents()
        for tree in self.trees:
            due = self._due.get(tree.root, 0)
            stirs = tree.root.pid in stirred and due - now < SAMPLE_PERIOD_NS
            if due - now > _SLICE_NS and not stirs:
                continue
            if self._events is None:
                self._scan(tree)
            try:
                rest = self._tracer.rests(tree, now)
                if rest is not None:
                    self._due[tree.root] = rest
                    continue
                began, spent = time.monotonic_ns(), -time.thread_time_ns()
                due = self._tracer.step(tree, began)
                spent += time.thread_time_ns()
                self._due[tree.root] = self._tracer.pace(tree, due, began, began + spent)
                self._tell(tree)
                self._reconcile(tree)
            except BrokenPipeError:
                raise  # nobody reads our output any more
            except Exception:  # noqa: BLE001  (one tree that we cannot digest must not blind us)
                self._log.exception("tree_failed", root_pid=tree.root.pid, label=tree.label)
                self._end(tree)

    def _take(self) -> list[Lifecycle]:
        """Take what events there are, and return them."""
        events = self._events.read() if self._events is not None else []
        self._taken += len(events)
        if self.discovery.take(events):
            self._overflows += 1
            self._log.warning("events_lost", action="every process is looked at again")
            self._next_sweep = 0
        return events

    def _wake_at(self, now: int) -> int:
        blind = self._events is None and self.discovery.parents()
        longest = SAMPLE_PERIOD_NS if blind else _LONGEST_PAUSE_NS
        return min(self._next_sweep, now + longest, *self._due.values())

    def _sweep(self, now: int) -> None:
        """Look at everybody, or, where no events come and it is done again and again, at the new."""
        if self._events is not None:
            self.discovery.sweep()
            self._next_sweep = _NEVER  # or until events are lost
            return
        # Without events a fork and the exec after it look alike: the young are looked at twice.
        grown = {pid for pid, seen in self._seen.items() if now - seen > 2 * _SWEEP_NS}
        self.discovery.sweep(known=grown)
        alive = set(proc.pids(self._root))
        self._seen = {pid: self._seen.get(pid, now) for pid in alive}
        self._next_sweep = now + _SWEEP_NS

    def _scan_parents(self) -> None:
        parents = self.discovery.parents()
        for parent, child in scan.below(self._root, parents, ()) if parents else ():
            if parent in parents and not self.discovery.known(child):
                self.discovery.take([Fork(parent, child)])

    def _scan(self, tree: Tree) -> None:
        born = scan.below(self._root, list(tree.members), list(tree.members))
        self.discovery.take(Fork(parent, child) for parent, child in born)

    def _reconcile(self, tree: Tree) -> None:
        """Drop members that are gone; end a tree that has none left."""
        missing = set(tree.members) - set(self._source.processes(tree))
        if missing and self._events is not None:
            # What they did last, and their statuses, came after the events of this turn were read.
            self._take()
        for pid in missing:
            if pid in tree.members and not self.discovery.lives(pid):
                self.discovery.gone(pid, None)
        if not tree.members:
            self._tracer.step(tree, time.monotonic_ns())
            self._end(tree)

    def _end(self, tree: Tree) -> None:
        self.trees.remove(tree)
        self._tracer.stop(tree, time.monotonic_ns(), How.LOST)
        self._due.pop(tree.root, None)
        self._told -= {(tree.root, "suspected"), (tree.root, "blind")}
        self._log.debug("tree_ended", root_pid=tree.root.pid, label=tree.label)

    def _tell(self, tree: Tree) -> None:
        """Say once of each tree what cannot be seen of it, or is not believed."""
        for event, count in zip(("suspected", "blind"), self._tracer.counts(tree), strict=True):
            if count and (tree.root, event) not in self._told:
                self._told.add((tree.root, event))
                self._log.warning(event, root_pid=tree.root.pid, label=tree.label, count=count)

    def _started(self, tree: Tree) -> None:
        self._tracer.follow(tree)
        self._due[tree.root] = 0
        agent = tree.agent.name if tree.agent else None
        self._log.debug("tree_started", root_pid=tree.root.pid, agent=agent, label=tree.label)

    def _found(self, agent: Agent) -> None:
        self._source.nurse(self.discovery.nurses())  # at once: its first call may be a short one
        self._log.info("agent_found", agent=agent.name, pid=agent.pid)

    def _context(self, tree: Tree, waiter: Waiter) -> Context:
        return read_context(self._source, tree, waiter, time.time_ns())

    def _count(self, receipt: Receipt) -> None:
        self.receipts += receipt.event == "wait"
        self._deliver(receipt)
