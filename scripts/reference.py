"""Make the reference pages from the code: docs/metrics.md, and the fields in docs/receipts.md.

usage: .venv/bin/python scripts/reference.py [--check]

With --check nothing is written; the exit status is 1 if a page is not what the code says.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from exporters.dispatch import Tally
from exporters.metrics import AGENTS, OTHER, PROGRAMS, MetricsExporter
from receipt_trace.health import Health, SourceHealth
from receipt_trace.receipt import schema

DOCS: Final = Path(__file__).parent.parent / "docs"
BEGIN: Final = "<!-- made by scripts/reference.py from the schema -->\n"
END: Final = "<!-- end -->\n"

_METRICS: Final = """\
# Metrics

Made by `scripts/reference.py` from `exporters/metrics.py`; do not edit.

`receipt-trace watch --metrics 127.0.0.1:9737` serves them at `/metrics`, in the text format of Prometheus or as OpenMetrics, whichever is asked for.
Beside them: `/healthz` is 200 while the loop of the watcher turns, and 503 when it has not for 20 s; `/readyz` is 200 while it observes, and 503 before and after.

| metric | type | labels | meaning |
| --- | --- | --- | --- |
{rows}
`receipt_trace_*_info` are always 1; what they tell is in their labels. The names that begin with `process_` are those of every program that speaks to Prometheus: they are the cost of the watcher itself.

## Labels

Every label has a bound. `agent` is a name from the registry, or what an agent calls itself, or `none`: the first {agents} there are, then `{other}`. `program` is a comm: the first {programs}, then `{other}`. The rest have few values, listed in [receipts.md](receipts.md): `kind`, `wiring`, `resolution`. No label holds a process number, a path, a user or a question.
Unprintable characters are escaped.

## Counting

- Counters whose labels are known beforehand stand at 0 from the start. The first wait of a new agent or program makes a new series that begins at 1, which `increase` does not see. To count every wait, use `receipt_trace_detection_seconds_count`, which has no labels.
- A wait that has not ended is not in `receipt_trace_wait_seconds`. `receipt_trace_oldest_wait_seconds` shows it.
- Durations are taken from CLOCK_MONOTONIC; a step of the wall clock changes none.
- A restart begins at 0, as always with Prometheus, and waits that are open then are counted again when they are seen again.

Dashboard, alerts and recording rules: [operating.md](operating.md#dashboard-and-alerts).
"""


def metrics() -> str:
    """The page of the metrics."""
    health = Health(SourceHealth("procfs"), "connector", 0, 0, 0, 0, 0, 0, 0)
    exporter = MetricsExporter(lambda: health, lambda: {"receipts": Tally()})
    rows = ""
    for family in sorted(exporter.registry.collect(), key=_order):
        labels = sorted({name for s in family.samples for name in s.labels} - {"le"})
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        name = family.name + suffix if not family.name.endswith(suffix) else family.name
        kind = "gauge" if family.type == "info" else family.type
        rows += f"| `{name}` | {kind} | {', '.join(map(_code, labels)) or '–'} | "
        rows += f"{family.documentation.rstrip('.')}{_buckets(family)} |\n"
    return _METRICS.format(rows=rows, agents=AGENTS, programs=PROGRAMS, other=OTHER)


def fields() -> str:
    """The table of a receipt's fields."""
    rows = "".join(
        f"| `{name}` | {kind} | {meaning} |\n" for name, kind, meaning in _fields(schema(), "")
    )
    return f"| field | type | meaning |\n| --- | --- | --- |\n{rows}"


def pages() -> dict[Path, str]:
    """What each page has to be."""
    receipts = DOCS / "receipts.md"
    text = receipts.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return {
        DOCS / "metrics.md": metrics(),
        receipts: f"{head}{BEGIN}{fields()}{END}{tail}",
    }


def main() -> int:
    """Write the pages, or say which are old."""
    parser = argparse.ArgumentParser(prog="scripts/reference.py", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    old = [p for p, text in pages().items() if not p.exists() or p.read_text() != text]
    for path in old:
        if options.check:
            print(f"{path} is not what the code says; try: .venv/bin/python scripts/reference.py")
        else:
            path.write_text(pages()[path])
    return 1 if options.check and old else 0


def _order(family: Any) -> tuple[bool, str]:
    return not family.name.startswith("receipt_trace"), family.name


def _code(text: str) -> str:
    return f"`{text}`"


def _buckets(family: Any) -> str:
    bounds = {s.labels["le"]: None for s in family.samples if "le" in s.labels}
    finite = [bound.removesuffix(".0") for bound in bounds if bound != "+Inf"]
    return f". Buckets: {', '.join(finite)} s" if finite else ""


def _fields(part: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str, str]]:
    for name, value in part["properties"].items():
        yield prefix + name, _kind(value), _meaning(value)
        if "properties" in value:
            yield from _fields(value, f"{prefix}{name}.")
        elif "properties" in value.get("items", {}):
            yield from _fields(value["items"], f"{prefix}{name}[].")


def _kind(value: Mapping[str, Any]) -> str:
    if "const" in value:
        return f"always {value['const']}"
    if "enum" in value:
        return "string"
    kinds = value["type"] if isinstance(value["type"], list) else [value["type"]]
    if kinds[0] == "array":
        return f"array of {value['items']['type']}s"
    return " or ".join(kinds)


def _meaning(value: Mapping[str, Any]) -> str:
    said: str = value["description"]
    values = [_code(v) for v in value.get("enum", ()) if _code(v) not in said]
    return f"{said}. One of {', '.join(map(_code, value['enum']))}" if values else said


if __name__ == "__main__":
    sys.exit(main())
