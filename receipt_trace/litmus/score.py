"""What each trial shows, and the figures of a run. Pure: records in, values out."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from receipt_trace.litmus.catalogue import KINDS, Case

REPORTED: Final = "reported"
MISSED: Final = "missed"
FALSE: Final = "false report"
SILENT: Final = "silent"
CLOSED: Final = "closed input"
"""A command whose input is closed, and which did not wait."""

DID_NOT_WAIT: Final = "did not wait"
"""The catalogue says that it waits here, the oracle says that it does not."""

NOT_SHOWN: Final = "not shown"
"""A control that did not do what makes it one, so its silence says nothing."""

ABSENT: Final = "absent"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one trial shows. ``None`` where a question does not arise.

    ``proved``: the command took an answer and went on. ``doubts``: where the catalogue and the
    oracle differ. ``false_success``: status 0 without the asked-for action.
    """

    outcome: str
    why: str = ""
    kind: bool | None = None
    program: bool | None = None
    question: bool | None = None
    latency: float | None = None
    proved: bool | None = None
    doubts: tuple[str, ...] = ()
    hangs: bool = False
    false_success: bool = False
    flagged: bool = False


def judge(record: Mapping[str, Any], case: Case) -> Verdict:
    """Judge one record of the results by its case and by what the oracle saw."""
    if record["state"] != "ran":
        return Verdict(ABSENT, record["reason"])
    return _judge_asking(record, case) if case.asks else _judge_control(record, case)


def _judge_control(record: Mapping[str, Any], case: Case) -> Verdict:
    if record["receipts"]:
        receipt = record["receipts"][0]
        return Verdict(FALSE, f"{receipt['program']} {receipt['syscall']}({_set(receipt)})")
    if record.get("eof"):
        return Verdict(FALSE, "an unanswered question")
    if case.shown and case.shown not in record["tail"]:
        return Verdict(NOT_SHOWN, f"it did not print {case.shown!r}: {record['tail'][-120:]!r}")
    if record["status"] != case.status:
        wanted = "go on" if case.status is None else f"end with {case.status}"
        got = "went on" if record["status"] is None else f"ended with {record['status']}"
        return Verdict(NOT_SHOWN, f"it should {wanted}, and {got}: {record['tail'][-120:]!r}")
    readers = [r for r in record["readers"] if r["syscall"].startswith(("read", "recv"))]
    doubts: tuple[str, ...] = ()
    if readers and not case.why:
        doubts = (
            f"{readers[0]['comm']} reads {readers[0]['link']}, and the catalogue says not why",
        )
    return Verdict(SILENT, doubts=doubts)


def _judge_asking(record: Mapping[str, Any], case: Case) -> Verdict:
    wiring = record["wiring"]
    receipts = record["receipts"]
    expected = wiring in case.wirings
    if not record["waits"]:
        if receipts:
            return Verdict(
                FALSE, f"{receipts[0]['program']} {receipts[0]['syscall']}({_set(receipts[0])})"
            )
        if expected:
            seen = f"ended with {record['status']}" if record["status"] is not None else "goes on"
            return Verdict(DID_NOT_WAIT, f"it {seen}: {record['tail'][-160:]!r}")
        done = record["done"]
        return Verdict(
            CLOSED,
            hangs=record["status"] is None,
            false_success=record["status"] == 0 and done is False,
            flagged=bool(record.get("eof")),
        )
    want = case.expected(wiring if wiring in case.program else "pipe")
    doubts = (
        _doubts(record, case, want.kind, want.program)
        if expected
        else (f"it waits under {wiring}, which the catalogue does not say",)
    )
    proved = None if want.kind == "dead" or wiring == "null" else record["went_on"]
    if not receipts:
        return Verdict(MISSED, _reason(record), proved=proved, doubts=doubts)
    first = receipts[0]
    return Verdict(
        REPORTED,
        kind=first["kind"] == want.kind if expected else None,
        program=first["program"] == want.program[:15] if expected else None,
        question=plain(want.question) in plain(first["prompt"])
        if want.question and expected
        else None,
        latency=record["latency"],
        proved=proved,
        doubts=doubts,
    )


def _doubts(record: Mapping[str, Any], case: Case, kind: str, program: str) -> tuple[str, ...]:
    """Where the catalogue expects something else than the oracle saw."""
    doubts = []
    seen = record["kind"]
    told_apart = kind != "dead" and {seen, kind} != {"key", "screen"}
    if seen in KINDS and seen != kind and told_apart:
        doubts.append(f"its input is {seen}, the catalogue says {kind}")
    names = sorted({r["comm"] for r in record["readers"]})
    if program[:15] not in names:
        doubts.append(f"{', '.join(names)} reads, the catalogue says {program}")
    question = case.question.get(record["wiring"], "")
    if question and plain(question) not in plain(record["tail"]):
        doubts.append(f"it did not print {question!r}")
    return tuple(doubts)


def _reason(record: Mapping[str, Any]) -> str:
    """What the oracle saw of a wait that was not reported."""
    readers = "; ".join(
        f"{r['comm']} {r['state']} {r['syscall']}({r['fd']}={r['link']}) {r['where']}"
        for r in record["readers"]
    )
    return f"{readers}; {record['tail'][-60:]!r}"


def _set(receipt: Mapping[str, Any]) -> str:
    return ", ".join(receipt["wait_set"])


def plain(text: str) -> str:
    """Text with every run of white space as one space."""
    return re.sub(r"\s+", " ", text).strip()


def judged(
    records: Iterable[Mapping[str, Any]], cases: Iterable[Case]
) -> list[tuple[Mapping[str, Any], Case, Verdict]]:
    """Every record whose case is in the catalogue, with its verdict."""
    known = {case.id: case for case in cases}
    pairs = ((record, known.get(record["case"])) for record in records)
    return [(record, case, judge(record, case)) for record, case in pairs if case is not None]


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value below which a share of the values lies; ``None`` without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
