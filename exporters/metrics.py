"""Metrics for Prometheus: what the receipts add up to, and how the watcher is.

Every label has a bound: agents and programs beyond it are ``other``. Counters that can be known
beforehand stand at 0 from the start, so that the first increase is seen. ``docs/metrics.md`` is
made from this module.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from exporters.dispatch import Tally
from exporters.text import printable
from receipt_trace import __version__
from receipt_trace.health import Health
from receipt_trace.receipt import Receipt

AGENTS: Final = 48
"""Names of agents that get a label of their own: those in the registry, and some of the caller's."""
PROGRAMS: Final = 128
"""Names of programs that do."""
OTHER: Final = "other"

WAIT_BUCKETS: Final = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 14400)
"""Seconds. A runner's time-out is most often 120 or 600."""
DETECTION_BUCKETS: Final = (0.5, 1, 1.1, 1.2, 1.5, 2, 3, 5, 10)
"""Seconds. One second of quiet is the rule, so nothing can be below."""

_INPUTS: Final = (
    *((kind, "tty") for kind in ("line", "secret", "key", "screen", "dead")),
    *((kind, wiring) for kind in ("stream", "dead") for wiring in ("pipe", "socket")),
)
_HOW: Final = ("answered", "eof", "expired", "interrupted", "killed", "exited", "lost")


class MetricsExporter:
    """Counts receipts. ``health`` and ``tallies`` are asked at every scrape, from its thread."""

    def __init__(
        self,
        health: Callable[[], Health],
        tallies: Callable[[], Mapping[str, Tally]],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        disable_created_metrics()
        self.registry = CollectorRegistry()
        self._agents, self._programs = Bounded(AGENTS), Bounded(PROGRAMS)
        self._open: dict[str, Receipt] = {}
        self._lock = threading.Lock()
        self._clock = clock
        registry: Any = self.registry
        self._waits = Counter(
            "receipt_trace_waits",
            "Waits for input that were confirmed.",
            ("agent", "program", "kind", "wiring"),
            registry=registry,
        )
        self._unanswered = Counter(
            "receipt_trace_unanswered_questions",
            "Questions that were answered by a closed input: the false success in the making.",
            ("agent", "program"),
            registry=registry,
        )
        self._waited = Histogram(
            "receipt_trace_wait_seconds",
            "How long waits took, from blocking to their end.",
            ("agent", "resolution"),
            buckets=WAIT_BUCKETS,
            registry=registry,
        )
        self._detected = Histogram(
            "receipt_trace_detection_seconds",
            "From blocking to the receipt. Its count is the number of waits without any label.",
            buckets=DETECTION_BUCKETS,
            registry=registry,
        )
        self._reloads = Counter(
            "receipt_trace_config_reloads",
            "Configurations read again after SIGHUP.",
            ("result",),
            registry=registry,
        )
        for kind, wiring in _INPUTS:
            self._waits.labels("none", OTHER, kind, wiring)
        self._unanswered.labels("none", OTHER)
        for how in _HOW:
            self._waited.labels("none", how)
        for result in ("taken", "refused"):
            self._reloads.labels(result)
        registry.register(_Live(health, tallies, self._blocked))
        ProcessCollector(registry=registry)

    def export(self, receipt: Receipt) -> None:
        """Count one receipt."""
        agent = self._agents(_agent(receipt))
        if receipt.event == "wait":
            program = self._programs(receipt.program.name)
            self._waits.labels(agent, program, receipt.input.kind, receipt.input.wiring).inc()
            blocked = receipt.monotonic_ns - receipt.evidence.blocked_since
            self._detected.observe(max(0, blocked) / 1e9)
            with self._lock:
                self._open[receipt.wait] = receipt
        elif receipt.event == "resolved" and receipt.resolution is not None:
            self._waited.labels(agent, receipt.resolution.how).observe(receipt.resolution.waited_s)
            with self._lock:
                self._open.pop(receipt.wait, None)
        elif receipt.event == "eof":
            self._unanswered.labels(agent, self._programs(receipt.program.name)).inc()

    def reopen(self) -> None:
        """Nothing: there is no file."""

    def close(self) -> None:
        """Nothing is open."""

    def reloaded(self, *, taken: bool) -> None:
        """Count a configuration that was read again."""
        self._reloads.labels("taken" if taken else "refused").inc()

    def page(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics, and the content type, in the format that ``accept`` asks for."""
        encode, kind = choose_encoder(accept)
        return encode(self.registry), kind

    def _blocked(self) -> tuple[dict[tuple[str, str], int], float]:
        """How many wait now, by agent and kind, and for how many seconds the first of them."""
        with self._lock:
            waiting = list(self._open.values())
        counts = {("none", kind): 0 for kind, _ in _INPUTS}
        for receipt in waiting:
            key = (self._agents(_agent(receipt)), receipt.input.kind)
            counts[key] = counts.get(key, 0) + 1
        since = min((r.evidence.blocked_since for r in waiting), default=None)
        return counts, 0.0 if since is None else (self._clock() - since) / 1e9


class Bounded:
    """Values of a label: the first so many, and ``other`` for all that come later."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        """The value as a label."""
        if value not in self._known:
            if len(self._known) >= self._limit:
                return OTHER
            self._known.add(value)
        return printable(value)[:128]


class _Live(Collector):
    """What is asked at every scrape."""

    def __init__(
        self,
        health: Callable[[], Health],
        tallies: Callable[[], Mapping[str, Tally]],
        blocked: Callable[[], tuple[dict[tuple[str, str], int], float]],
    ) -> None:
        self._health, self._tallies, self._blocked = health, tallies, blocked

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are only known when it is asked."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Ask everybody."""
        yield InfoMetricFamily(
            "receipt_trace_build", "The version that runs.", value={"version": __version__}
        )
        yield from self._of_waits()
        yield from self._of_health(self._health())
        yield from self._of_exporters()

    def _of_waits(self) -> Iterable[Metric]:
        counts, oldest = self._blocked()
        active = GaugeMetricFamily(
            "receipt_trace_waits_active",
            "Waits that are confirmed and not resolved.",
            labels=("agent", "kind"),
        )
        for labels, count in counts.items():
            active.add_metric(labels, count)
        yield active
        yield GaugeMetricFamily(
            "receipt_trace_oldest_wait_seconds",
            "How long the longest open wait has lasted; 0 if there is none.",
            value=oldest,
        )

    def _of_health(self, health: Health) -> Iterable[Metric]:
        source = health.source
        yield InfoMetricFamily(
            "receipt_trace_source",
            "What observes, how processes come to be known, and why nothing better does.",
            value={
                "source": source.name,
                "attach": source.attach or "",
                "lifecycle": health.lifecycle,
                "fallback": printable(source.fallback or "")[:128],
            },
        )
        for name, help_, value in (
            ("agents", "Harnesses that are known now.", health.agents),
            ("trees", "Tool calls that are followed now.", health.trees),
            ("processes", "Processes of the tool calls that are followed now.", health.processes),
            ("suspected_threads", "Threads that seem to wait, and are not believed.",
             health.suspected),
            ("blind_processes", "Followed processes that may not be looked into.", health.blind),
        ):  # fmt: skip
            yield GaugeMetricFamily(f"receipt_trace_{name}", help_, value=value)
        yield CounterMetricFamily(
            "receipt_trace_events", "Lifecycle events of processes taken.", value=health.events
        )
        lost = CounterMetricFamily(
            "receipt_trace_events_lost",
            "Losses: records the kernel dropped (source), and times that lifecycle events "
            "were lost, of which the kernel gives no number (lifecycle).",
            labels=("of",),
        )
        lost.add_metric(("source",), source.lost)
        lost.add_metric(("lifecycle",), health.overflows)
        yield lost
        yield CounterMetricFamily(
            "receipt_trace_kernel_run_seconds",
            "Time that BPF programs of ours ran in the kernel; 0 for a source without any.",
            value=source.run_seconds,
        )

    def _of_exporters(self) -> Iterable[Metric]:
        tallies = dict(self._tallies())
        for name, help_, take in (
            ("exported_receipts", "Receipts an exporter has taken.", attrgetter("exported")),
            ("exporter_errors", "Times an exporter failed; it may have succeeded later.",
             attrgetter("errors")),
            ("exporter_lost_receipts", "Receipts an exporter never took.", attrgetter("lost")),
        ):  # fmt: skip
            family = CounterMetricFamily(f"receipt_trace_{name}", help_, labels=("exporter",))
            for exporter, tally in tallies.items():
                family.add_metric((exporter,), take(tally))
            yield family
        waiting = GaugeMetricFamily(
            "receipt_trace_exporter_queue",
            "Receipts that wait for an exporter.",
            labels=("exporter",),
        )
        for exporter, tally in tallies.items():
            waiting.add_metric((exporter,), tally.waiting)
        yield waiting


def _agent(receipt: Receipt) -> str:
    return "none" if receipt.agent is None else receipt.agent.name
