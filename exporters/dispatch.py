"""Each receipt to every exporter, and nobody waits for anybody.

An exporter that can block gets a thread and a queue of its own. One that fails keeps its
receipts and tries again, until the queue is full; what it could not take then is counted, and
written to the log. One that raises anything but OSError loses that one receipt.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from exporters import Exporter
from exporters.redaction import Prompt, redact
from receipt_trace.receipt import Receipt

QUEUE: Final = 4096
"""Receipts kept for an exporter that is slow or failing. One is 3 kB, at most some 15 kB, and
shared by all queues."""

_FIRST_RETRY_S: Final = 0.1
_LAST_RETRY_S: Final = 5.0


@dataclass(slots=True)
class Tally:
    """What became of the receipts of one exporter; only grows, but for ``waiting``."""

    exported: int = 0
    errors: int = 0
    lost: int = 0
    waiting: int = 0


class Outlet:
    """One exporter. ``prompt`` says how much of a question it gets.

    ``gone`` is called when whoever read its output has gone.
    """

    def __init__(
        self, name: str, exporter: Exporter, prompt: Prompt, gone: Callable[[], None]
    ) -> None:
        self.name, self.prompt = name, prompt
        self.tally = Tally()
        self._exporter, self._gone = exporter, gone
        self._log = structlog.get_logger()

    def put(self, receipt: Receipt) -> None:
        """Export now: for those that neither block nor try again."""
        try:
            self._give(receipt)
        except Exception as error:  # noqa: BLE001  (its fault, whatever it is, stays its own)
            self._lose(receipt, error)

    def reopen(self) -> None:
        """Have it open again what may have been moved away."""
        try:
            self._exporter.reopen()
        except OSError as error:
            self._count(errors=1)
            self._log.error("not_reopened", exporter=self.name, error=str(error))

    def start(self) -> None:
        """Nothing: it has no thread."""

    def close(self, _deadline: float) -> None:
        """Let go of it."""
        self._exporter.close()

    def _give(self, receipt: Receipt) -> None:
        self._exporter.export(redact(receipt, self.prompt))
        self._count(exported=1)

    def _count(self, *, exported: int = 0, errors: int = 0, lost: int = 0) -> None:
        self.tally.exported += exported
        self.tally.errors += errors
        self.tally.lost += lost

    def _lose(self, receipt: Receipt, error: object) -> None:
        self._count(errors=isinstance(error, Exception), lost=1)
        told = redact(receipt, Prompt.REDACTED)
        self._log.error(
            "not_exported", exporter=self.name, error=str(error), receipt=told.to_json()
        )


class QueuedOutlet(Outlet):
    """One exporter with a thread of its own."""

    def __init__(
        self, name: str, exporter: Exporter, prompt: Prompt, gone: Callable[[], None]
    ) -> None:
        super().__init__(name, exporter, prompt, gone)
        self._queue: deque[Receipt] = deque()
        self._some = threading.Condition()
        self._nudge = threading.Event()
        self._closing = self._reopen = False
        self._thread = threading.Thread(target=self._run, name=f"export-{name}", daemon=True)

    def start(self) -> None:
        """Begin with what is in the queue."""
        self._thread.start()

    def put(self, receipt: Receipt) -> None:
        """Put it in the queue, if there is room."""
        with self._some:
            if full := len(self._queue) >= QUEUE:
                self._count(lost=1)
            else:
                self._queue.append(receipt)
                self.tally.waiting = len(self._queue)
                self._some.notify()
        if full and self.tally.lost.bit_count() == 1:  # 1, 2, 4, 8 …: the log may be full, too
            self._log.error("queue_full", exporter=self.name, lost=self.tally.lost)

    def reopen(self) -> None:
        """As soon as it is at it."""
        with self._some:
            self._reopen = True
            self._nudge.set()
            self._some.notify()

    def close(self, deadline: float) -> None:
        """Write what is in the queue, until ``deadline`` (CLOCK_MONOTONIC, seconds)."""
        with self._some:
            self._closing = True
            self._nudge.set()
            self._some.notify()
        if self._thread.ident is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        if not self._thread.is_alive():
            self._exporter.close()
        with self._some:  # what is left if it is still at the first, or gave up
            left, self._queue = self._queue, deque()
            self.tally.waiting = 0
        for receipt in left:
            self._lose(receipt, "the watcher ends")

    def _count(self, *, exported: int = 0, errors: int = 0, lost: int = 0) -> None:
        with self._some:  # both threads count
            super()._count(exported=exported, errors=errors, lost=lost)

    def _run(self) -> None:
        pause = _FIRST_RETRY_S
        while (receipt := self._next()) is not None:
            try:
                self._give(receipt)
            except BrokenPipeError:  # nobody will ever read these
                with self._some:
                    self._count(lost=len(self._queue))
                    self._queue.clear()
                self._gone()
                return
            except OSError as error:
                self._failed(error, first=pause == _FIRST_RETRY_S)
                if self._closing:
                    return
                self._nudge.wait(pause)
                pause = min(2 * pause, _LAST_RETRY_S)
                continue
            except Exception as error:  # noqa: BLE001  (this one it cannot take; the next it may)
                self._lose(receipt, error)
            pause = _FIRST_RETRY_S
            with self._some:
                if self._queue:  # else the end did not wait for us
                    self._queue.popleft()
                self.tally.waiting = len(self._queue)

    def _next(self) -> Receipt | None:
        """The oldest receipt there is, which stays in the queue; ``None`` when all is done."""
        while True:
            with self._some:
                self._some.wait_for(lambda: self._queue or self._closing or self._reopen)
                reopen, self._reopen = self._reopen, False
                if not self._closing:
                    self._nudge.clear()
                if not reopen:
                    return self._queue[0] if self._queue else None
            super().reopen()

    def _failed(self, error: OSError, *, first: bool) -> None:
        self._count(errors=1)
        if first:
            waiting = len(self._queue)
            self._log.error("export_failed", exporter=self.name, error=str(error), waiting=waiting)


class Dispatcher:
    """All exporters. ``gone`` is called (from any thread) when the reader of one has gone."""

    def __init__(self, gone: Callable[[], None] = lambda: None) -> None:
        self._gone = gone
        self._outlets: dict[str, Outlet] = {}
        self._open: list[Outlet] = []
        self._started = False

    def add(
        self, name: str, exporter: Exporter, prompt: Prompt = Prompt.FULL, *, queued: bool = True
    ) -> None:
        """Join an exporter; ``queued`` unless it never blocks."""
        kind = QueuedOutlet if queued else Outlet
        self._outlets[name] = kind(name, exporter, prompt, self._gone)
        self._open.append(self._outlets[name])
        if self._started:
            self._outlets[name].start()

    def start(self) -> None:
        """Start the threads; what was exported before has waited for them."""
        self._started = True
        for outlet in self._open:
            outlet.start()

    def export(self, receipt: Receipt) -> None:
        """Hand a receipt to everybody. Never blocks, never raises."""
        for outlet in self._outlets.values():
            outlet.put(receipt)

    def show(self, name: str, prompt: Prompt) -> None:
        """Change how much of a question an exporter gets."""
        if name in self._outlets:
            self._outlets[name].prompt = prompt

    def reopen(self) -> None:
        """Have all of them open again what may have been moved away."""
        for outlet in self._outlets.values():
            outlet.reopen()

    def tallies(self) -> Mapping[str, Tally]:
        """What became of the receipts, by the name of the exporter."""
        return {name: outlet.tally for name, outlet in self._outlets.items()}

    def close(self, seconds: float = 5.0) -> None:
        """Write what is waiting, for as long as that, and close all of them."""
        deadline = time.monotonic() + seconds
        while self._open:
            self._open.pop(0).close(deadline)
