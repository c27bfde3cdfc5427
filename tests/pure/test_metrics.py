"""Metrics: what receipts add up to. The page is read by the library's own parser."""

import itertools
import re
from dataclasses import replace

from builders import NS, many, receipt, resolved
from prometheus_client.parser import text_string_to_metric_families

from exporters.dispatch import Tally
from exporters.metrics import AGENTS, OTHER, PROGRAMS, Bounded, MetricsExporter
from receipt_trace.health import Health, SourceHealth
from receipt_trace.receipt import AgentPart

HEALTH = Health(
    source=SourceHealth("procfs", fallback='no "BTF"\n', lost=3, run_seconds=1.5),
    lifecycle="scan", agents=2, trees=5, processes=9, suspected=1, blind=4, events=77, overflows=6,
)  # fmt: skip


def exporter(clock=lambda: 0):
    """One that knows a watcher of the test's own."""
    tallies = {"receipts": Tally(5, 2, 1, 7)}
    return MetricsExporter(lambda: HEALTH, lambda: tallies, clock)


def values(exporter, name):
    """The samples of a name: labels and value, those at 0 left out."""
    page, kind = exporter.page()
    assert kind.startswith("text/plain")
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if sample.name == f"receipt_trace_{name}" and sample.value
    }


def labels(**pairs):
    """As :func:`values` has them."""
    return tuple(sorted(pairs.items()))


def test_a_wait_is_counted_by_agent_program_kind_and_wiring():
    """And the way from blocking to the receipt is measured."""
    metrics = exporter()
    metrics.export(receipt(comm="rm", agent="codex"))
    metrics.export(receipt(comm="rm", agent="codex"))
    metrics.export(receipt(comm="cat"))
    assert values(metrics, "waits_total") == {
        labels(agent="codex", program="rm", kind="line", wiring="tty"): 2,
        labels(agent="none", program="cat", kind="line", wiring="tty"): 1,
    }
    assert values(metrics, "detection_seconds_count") == {(): 3}
    assert values(metrics, "detection_seconds_sum") == {(): 3.0}


def test_the_end_of_a_wait_is_counted_with_its_length():
    """By agent and resolution."""
    metrics = exporter()
    wait = receipt(agent="codex")
    metrics.export(wait)
    metrics.export(resolved(wait, "killed", 12.5))
    assert values(metrics, "wait_seconds_sum") == {labels(agent="codex", resolution="killed"): 12.5}
    assert values(metrics, "wait_seconds_count") == {labels(agent="codex", resolution="killed"): 1}


def test_open_waits_are_there_until_they_end():
    """The oldest tells how long it has been, by the clock that never steps."""
    metrics = exporter(lambda: 61 * NS)
    first, second = receipt(1, agent="codex"), receipt(2)
    metrics.export(first)
    metrics.export(second)
    assert values(metrics, "waits_active") == {
        labels(agent="codex", kind="line"): 1,
        labels(agent="none", kind="line"): 1,
    }
    assert values(metrics, "oldest_wait_seconds") == {(): 60}
    metrics.export(resolved(first))
    metrics.export(resolved(second))
    assert values(metrics, "waits_active") == values(metrics, "oldest_wait_seconds") == {}


def test_a_resolution_of_a_wait_of_before_is_no_open_wait():
    """A watcher that was started again may tell of such."""
    metrics = exporter()
    metrics.export(resolved(receipt()))
    assert values(metrics, "waits_active") == {}


def test_the_watcher_tells_how_it_is():
    """Source, blind spots, losses, exporters."""
    metrics = exporter()
    told = {
        name: values(metrics, name)[()]
        for name in ("agents", "trees", "processes", "suspected_threads", "blind_processes",
                     "events_total", "kernel_run_seconds_total")
    }  # fmt: skip
    assert told == {
        "agents": 2, "trees": 5, "processes": 9, "suspected_threads": 1, "blind_processes": 4,
        "events_total": 77, "kernel_run_seconds_total": 1.5,
    }  # fmt: skip
    assert values(metrics, "events_lost_total") == {
        labels(of="source"): 3,
        labels(of="lifecycle"): 6,
    }
    assert values(metrics, "source_info") == {
        labels(source="procfs", attach="", lifecycle="scan", fallback='no "BTF"\\n'): 1
    }
    of = labels(exporter="receipts")
    assert values(metrics, "exported_receipts_total") == {of: 5}
    assert values(metrics, "exporter_errors_total") == {of: 2}
    assert values(metrics, "exporter_lost_receipts_total") == {of: 1}
    assert values(metrics, "exporter_queue") == {of: 7}


def test_its_own_cost_is_there():
    """CPU, memory and descriptors of this process, under the names that everybody knows."""
    page = exporter().page()[0].decode()
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"):
        assert float(re.search(rf"^{name} (\S+)$", page, re.MULTILINE)[1]) > 0


def test_counters_stand_at_zero_before_anything_happens():
    """An increase from nothing is none to Prometheus."""
    page = exporter().page()[0].decode()
    for line in (
        'receipt_trace_waits_total{agent="none",kind="secret",program="other",wiring="tty"} 0.0',
        'receipt_trace_wait_seconds_count{agent="none",resolution="lost"} 0.0',
        "receipt_trace_detection_seconds_count 0.0",
        'receipt_trace_unanswered_questions_total{agent="none",program="other"} 0.0',
        'receipt_trace_config_reloads_total{result="refused"} 0.0',
        'receipt_trace_waits_active{agent="none",kind="dead"} 0.0',
    ):
        assert f"\n{line}\n" in page
    assert "_created" not in page


def test_labels_have_a_bound_however_many_names_there_are():
    """The first stay, the rest are one."""
    metrics = exporter()
    for number, one in enumerate(many(PROGRAMS + AGENTS + 300)):
        program = replace(one.program, name=f"p{number}")
        wait = replace(one, program=program, agent=AgentPart(f"a{number}", 5, None))
        metrics.export(wait)
        metrics.export(resolved(wait))
    seen = values(metrics, "waits_total")
    assert len({dict(key)["program"] for key in seen}) == PROGRAMS + 1
    assert len({dict(key)["agent"] for key in seen}) == AGENTS + 1
    rest = seen[labels(agent=OTHER, program=OTHER, kind="line", wiring="tty")]
    assert rest == AGENTS + 300
    assert sum(seen.values()) == PROGRAMS + AGENTS + 300
    assert len(metrics.page()[0].splitlines()) < 20 * (PROGRAMS + AGENTS)


def test_a_name_cannot_be_more_than_a_value():
    """Quotes, line ends and control sequences are text; so are long names."""
    metrics = exporter()
    hostile = 'a"} 1\nevil_total 9\x1b[2J\\'
    metrics.export(receipt(comm=hostile, agent=hostile * 50))
    ((key, _),) = values(metrics, "waits_total").items()
    assert dict(key)["program"] == 'a"} 1\\nevil_total 9\\x1b[2J\\'
    assert len(dict(key)["agent"]) == 128
    page = metrics.page()[0]
    assert not any(line.startswith(b"evil") for line in page.splitlines())
    assert b"\x1b" not in page


def test_bounded_values_are_the_first_ones():
    """A value that was seen stays itself."""
    bounded = Bounded(2)
    assert [bounded(v) for v in ("a", "b", "c", "a", "d")] == ["a", "b", OTHER, "a", OTHER]


def test_open_metrics_is_given_to_whoever_asks_for_it():
    """As Prometheus does."""
    page, kind = exporter().page("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert page.endswith(b"# EOF\n")
    assert exporter().page("*/*; \x00 nonsense")[1].startswith("text/plain")


def test_reloads_are_counted_by_their_result():
    """A wrong configuration shows."""
    metrics = exporter()
    for taken in (True, False, False):
        metrics.reloaded(taken=taken)
    assert values(metrics, "config_reloads_total") == {
        labels(result="taken"): 1,
        labels(result="refused"): 2,
    }


def test_every_metric_says_what_it_is():
    """Help, and a unit in the name where there is one; no name of ours without our prefix."""
    page = exporter().page()[0].decode()
    helped = re.findall(r"^# HELP (\S+) (.+)$", page, re.MULTILINE)
    names = set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))
    assert {name for name, _ in helped} == names
    assert all(name.startswith(("receipt_trace_", "process_")) for name in names)
    assert (
        max(len(list(group)) for _, group in itertools.groupby(sorted(n for n, _ in helped))) == 1
    )
