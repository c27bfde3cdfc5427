"""The status page: what is blocked now, the latest receipts, agents and tool calls, and health.

Written here, whole, with every value escaped; the browser only asks again. The policy in the
headers (``exporters.http``) lets it run no script but ours, and load nothing from elsewhere.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Final

from exporters.dispatch import Tally
from exporters.redaction import Prompt
from exporters.text import HOW
from receipt_trace import __version__
from receipt_trace.constants import NS
from receipt_trace.health import Health
from receipt_trace.receipt import Receipt
from receipt_trace.table import Row, duration, sort_rows

LATEST: Final = 30
"""Receipts that are remembered."""
_ROWS: Final = 200
_COMMAND: Final = 300  # characters of a command line

_HEAD: Final = """\
<!doctype html>
<html lang=en>
<head>
<meta charset=utf-8>
<meta name=viewport content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel=stylesheet href="/page.css">
<noscript><meta http-equiv=refresh content=3></noscript>
<script src="/page.js" defer></script>
</head>
<body>
<main>
"""
_HEADER: Final = """\
<header><h1>receipt-trace</h1> <span>{host}</span> <span class="state{alarm}">{state}</span>
<span class=gone>the watcher does not answer</span></header>
"""
_END: Final = "</main>\n</body>\n</html>\n"

FILES: Final[Mapping[str, str]] = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
}


def file(name: str) -> bytes:
    """One of ``FILES``."""
    return resources.files("exporters").joinpath(name).read_bytes()


class PageExporter:
    """Remembers what is on the page. ``prompt`` is what it is given of questions, for its words."""

    def __init__(
        self,
        hostname: str,
        health: Callable[[], Health],
        tallies: Callable[[], Mapping[str, Tally]],
        rows: Callable[[], Sequence[Row]],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.prompt = Prompt.OFF
        self._hostname, self._clock = hostname, clock
        self._health, self._tallies, self._rows = health, tallies, rows
        self._open: dict[str, Receipt] = {}
        self._latest: deque[Receipt] = deque(maxlen=LATEST)

    def export(self, receipt: Receipt) -> None:
        """Remember one."""
        if receipt.event == "resolved":
            self._open.pop(receipt.wait, None)
        elif receipt.event == "wait":
            self._open[receipt.wait] = receipt
        self._latest.appendleft(receipt)

    def reopen(self) -> None:
        """Nothing: there is no file."""

    def close(self) -> None:
        """Nothing is open."""

    def render(self) -> bytes:
        """The page as it is now (asked from another thread: it looks at copies)."""
        now = self._clock()
        blocked = list(self._open.values())
        blocked.sort(key=lambda r: r.evidence.blocked_since)
        count = len(blocked)
        title = f"({count}) receipt-trace" if count else "receipt-trace"
        state = f"{count} blocked" if count else "nothing is blocked"
        head = _HEAD.format(title=escape(title))
        header = _HEADER.format(
            host=escape(self._hostname), alarm=" alarm" if count else "", state=state
        )
        sections = (
            _section("Blocked now", self._blocked(blocked, now)),
            _section("Tool calls", _calls(self._rows(), now)),
            _section("Latest receipts", self._receipts(list(self._latest))),
            _section("Source and health", self._facts()),
        )
        return f"{head}{header}{''.join(sections)}{_END}".encode("utf-8", "replace")

    def _blocked(self, receipts: Sequence[Receipt], now: int) -> str:
        if not receipts:
            return "<p class=none>Nothing waits for input.</p>"
        return _table(
            ("for", "agent", "program", "input", "command", self._question_heading()),
            (
                (
                    _number(duration(now - r.evidence.blocked_since)),
                    _name(_agent(r)),
                    _name(f"{r.program.name}[{r.program.pid}]"),
                    _name(f"{r.input.kind} on {r.input.target}"),
                    _command(" ".join(r.tree.command)),
                    self._question(r),
                )
                for r in receipts
            ),
        )

    def _receipts(self, receipts: Sequence[Receipt]) -> str:
        if not receipts:
            return "<p class=none>None since this watcher was started.</p>"
        return _table(
            ("time", "agent", "program", "what", self._question_heading()),
            (
                (
                    _number(r.time[11:19]),
                    _name(_agent(r)),
                    _name(f"{r.program.name}[{r.program.pid}]"),
                    _name(_what(r)),
                    self._question(r),
                )
                for r in receipts
            ),
        )

    def _question_heading(self) -> str:
        return "question (not shown)" if self.prompt is Prompt.OFF else "question"

    def _question(self, receipt: Receipt) -> str:
        text = receipt.prompt.text
        return f"<td><pre>{escape(text)}</pre>" if text else "<td class=none>–"

    def _facts(self) -> str:
        health = self._health()
        source = health.source
        attach = f", attached by {source.attach}" if source.attach else ""
        followed = (
            f"tool calls: {health.trees}, processes: {health.processes}, agents: {health.agents}"
        )
        unseen = f"{health.blind} processes not looked into, {health.suspected} threads suspected"
        facts = [
            ("source", f"{source.name}{attach}; processes by {health.lifecycle}"),
            ("followed", followed),
            ("not seen", unseen),
            ("lost", f"{source.lost} records, {health.overflows} times process events"),
        ]
        if source.fallback:
            facts.insert(1, ("instead of better", source.fallback))
        for name, t in self._tallies().items():
            what = f"{t.exported} exported, {t.waiting} waiting, {t.lost} lost, {t.errors} errors"
            facts.append((f"to {name}", what))
        facts.append(("version", __version__))
        rows = "".join(f"<dt>{escape(name)}<dd>{escape(value)}\n" for name, value in facts)
        return f"<dl>\n{rows}</dl>"


def _calls(rows: Sequence[Row], now: int) -> str:
    if not rows:
        return "<p class=none>No tool call is running.</p>"
    shown = sort_rows(rows, "agent")[:_ROWS]
    table = _table(
        ("agent", "root", "age", "processes", "command"),
        (
            (
                _name(row.agent),
                _number(str(row.pid)),
                _number(duration(now - row.started)),
                _number(str(row.processes)),
                _command(row.command),
            )
            for row in shown
        ),
    )
    more = len(rows) - len(shown)
    return table + (f"<p class=none>and {more} more</p>" if more else "")


def _section(title: str, body: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}\n</section>\n"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(h)}" for h in heads)
    body = "".join(f"<tr>{''.join(cells)}\n" for cells in rows)
    return f"<div class=scroll><table>\n<tr>{head}\n{body}</table></div>"


def _number(text: str) -> str:
    return f"<td class=number>{escape(text)}"


def _name(text: str) -> str:
    return f"<td class=name>{escape(text)}"


def _command(text: str) -> str:
    short = text if len(text) <= _COMMAND else text[:_COMMAND] + "…"
    return f"<td><code>{escape(short)}</code>"


def _agent(receipt: Receipt) -> str:
    return receipt.agent.name if receipt.agent else receipt.tree.label or "-"


def _what(receipt: Receipt) -> str:
    if receipt.resolution is None:
        return f"waits: {receipt.input.kind}"
    waited = duration(int(receipt.resolution.waited_s * NS))
    return f"{HOW[receipt.resolution.how]} after {waited}"
