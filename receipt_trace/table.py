"""The table of `receipt-trace top`: plain values in, lines of text out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from receipt_trace.constants import NS
from receipt_trace.receipt import Receipt

SORTS: Final = ("waits", "age", "agent")
"""What the table can be sorted by, in the order the key goes through them."""

_HEADER: Final = ("AGENT", "PID", "AGE", "PROCS", "WAITS", "ASKS", "COMMAND / QUESTION")
_WIDTHS: Final = (16, 8, 7, 6, 7, 18)


@dataclass(frozen=True, slots=True)
class Row:
    """One tool call. ``started`` and ``waiting_since`` are CLOCK_MONOTONIC in nanoseconds."""

    agent: str
    pid: int
    started: int
    processes: int
    command: str
    waiting_since: int | None = None
    receipt: Receipt | None = None


def duration(nanoseconds: int) -> str:
    """A time as a person reads it at a glance: 12s, 3m04, 2h07."""
    seconds = max(0, nanoseconds // NS)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}"
    return f"{seconds // 3600}h{seconds % 3600 // 60:02d}"


def sort_rows(rows: Iterable[Row], by: str) -> list[Row]:
    """Rows in order: the longest wait first, the oldest first, or by agent."""
    if by == "agent":
        return sorted(rows, key=lambda r: (r.agent, r.started, r.pid))
    if by == "age":
        return sorted(rows, key=lambda r: (r.started, r.pid))
    never = 1 << 62
    return sorted(
        rows,
        key=lambda r: (never if r.waiting_since is None else r.waiting_since, r.started, r.pid),
    )


def render(rows: Sequence[Row], now: int, width: int, by: str) -> list[str]:
    """The table: a summary, a header and a line for each row, none wider than ``width``."""
    waiting = sum(row.receipt is not None for row in rows)
    agents = len({row.agent for row in rows if row.agent != "-"})
    summary = (
        f"receipt-trace: {len(rows)} tool calls of {agents} agents, {waiting} waiting "
        f"(sorted by {by}; q quit, s sort, enter full)"
    )
    return [_fit(line, width) for line in (summary, _line(_HEADER), *(_row(r, now) for r in rows))]


def details(receipt: Receipt, width: int) -> list[str]:
    """One receipt in full."""
    person = ", a person may answer too" if receipt.input.person else ""
    waited_for = ", ".join(receipt.evidence.wait_set)
    lines = [
        f"program   {receipt.program.name}[{receipt.program.pid}] {' '.join(receipt.program.argv)}",
        f"command   {' '.join(receipt.tree.command)}",
        f"in        {receipt.tree.cwd or '?'}, user {receipt.tree.user or receipt.tree.uid}",
        f"input     {receipt.input.kind} on {receipt.input.target}{person}",
        f"held by   {', '.join(f'{h.name}[{h.pid}]' for h in receipt.input.holders) or '?'}",
        f"evidence  {receipt.evidence.grade}: {receipt.evidence.syscall} ({waited_for})",
        f"advice    {receipt.advice}",
        "",
        *(receipt.prompt.text or "(the question cannot be seen)").splitlines(),
    ]
    return [_fit(_clean(line), width) for line in lines]


def _row(row: Row, now: int) -> str:
    receipt, since = row.receipt, row.waiting_since
    told = row.command
    if receipt is not None and receipt.prompt.text:
        told = receipt.prompt.text.strip().splitlines()[-1].strip()
    return _line(
        (
            row.agent,
            str(row.pid),
            duration(now - row.started),
            str(row.processes),
            "" if since is None else duration(now - since),
            "" if receipt is None else f"{receipt.program.name} {receipt.input.kind}",
            told,
        )
    )


def _line(cells: Sequence[str]) -> str:
    fixed = "".join(
        _fit(_clean(cell), size - 1).ljust(size) for cell, size in zip(cells, _WIDTHS, strict=False)
    )
    return fixed + _clean(cells[-1])


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() else "�" for c in text)


def _fit(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
