"""The figures of a run: from judged records to one value that is JSON. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from receipt_trace.litmus.baselines import BASELINES, verdicts
from receipt_trace.litmus.catalogue import Case
from receipt_trace.litmus.score import (
    ABSENT,
    CLOSED,
    DID_NOT_WAIT,
    FALSE,
    MISSED,
    NOT_SHOWN,
    REPORTED,
    SILENT,
    Verdict,
    quantile,
)

Result = tuple[Mapping[str, Any], Case, Verdict]


def figures(results: Sequence[Result], timing: Sequence[Result] = ()) -> dict[str, Any]:
    """All figures. A wait is one that the oracle saw; nothing else is in the rates.

    ``timing``: results of a run that loads the machine less; latencies come from them then.
    """
    ran = [result for result in results if result[2].outcome != ABSENT]
    used = _sources(ran)
    ran = [
        ({**r, "source": used.get((r["through"], r["source"]), r["source"])}, c, v)
        for r, c, v in ran
    ]
    ways = sorted({(r["through"], r["source"]) for r, _, _ in ran})
    return {
        "catalogue": _catalogue(results),
        "overall": {f"{way[0]}, {way[1]}": _block(_of(ran, way)) for way in ways},
        "by_wiring": {
            f"{way[0]}, {way[1]}": {
                wiring: _block([x for x in _of(ran, way) if x[0]["wiring"] == wiring])
                for wiring in ("tty", "pipe", "null")
                if any(x[0]["wiring"] == wiring for x in _of(ran, way))
            }
            for way in ways
        },
        "by_family": {
            family: {
                f"{way[0]}, {way[1]}": _block([x for x in _of(ran, way) if x[1].family == family])
                for way in ways
            }
            for family in dict.fromkeys(case.family for _, case, _ in ran)
        },
        "load": _spread([r["load"] for r, _, _ in ran if r.get("load")]),
        "latency": {way: _spread(values) for way, values in latencies(timing or results).items()},
        "baselines": _baselines(ran),
        "closed_input": {f"{way[0]}, {way[1]}": _closed(_of(ran, way)) for way in ways},
        "missed": [
            {**_name(x), "why": x[2].why, "reason": x[1].miss}
            for x in ran
            if x[2].outcome == MISSED
        ],
        "false": _list(ran, FALSE),
        "wrong": _wrong(ran),
        "unflagged": [
            {**_name(x), "why": x[0]["tail"][-80:]}
            for x in ran
            if x[2].false_success and not x[2].flagged and x[0]["through"] == "watch"
        ],
        "did_not_wait": _list(ran, DID_NOT_WAIT),
        "not_shown": _list(ran, NOT_SHOWN),
        "unproved": [
            _name(x) for x in ran if x[2].proved is False and x[2].outcome in (REPORTED, MISSED)
        ],
        "doubts": [{**_name(x), "why": d} for x in ran for d in x[2].doubts],
        "absent": _absent(results),
    }


def latencies(results: Iterable[Result]) -> dict[str, list[float]]:
    """Seconds from blocking to receipt, by way."""
    found: dict[str, list[float]] = {}
    for record, _, verdict in results:
        if verdict.latency is not None:
            way = f"{record['through']}, {record['receipts'][0]['source']}"
            found.setdefault(way, []).append(verdict.latency)
    return found


def _spread(values: Sequence[float]) -> dict[str, float | int | None]:
    return {
        "waits": len(values),
        "median": quantile(values, 0.5),
        "p95": quantile(values, 0.95),
        "max": max(values, default=None),
    }


def _sources(results: Iterable[Result]) -> dict[tuple[str, str], str]:
    """What ``auto`` came to, as most receipts say, for each way and wish."""
    said: dict[tuple[str, str], Counter[str]] = {}
    for record, _, _ in results:
        way = record["through"], record["source"]
        said.setdefault(way, Counter()).update(r["source"] for r in record["receipts"])
    return {way: count.most_common(1)[0][0] for way, count in said.items() if count}


def _of(results: Iterable[Result], way: tuple[str, str]) -> list[Result]:
    return [x for x in results if (x[0]["through"], x[0]["source"]) == way]


def _catalogue(results: Sequence[Result]) -> dict[str, Any]:
    cases = {case.id: case for _, case, _ in results}.values()
    ran = {case.id for _, case, verdict in results if verdict.outcome != ABSENT}
    waited = {c.id for _, c, v in results if v.outcome in (REPORTED, MISSED)}
    asking = [case for case in cases if case.asks]
    return {
        "commands": len(asking),
        "programs": len({program for case in asking for program in case.program.values()}),
        "waited": len(waited),
        "programs_waited": len({c.program["tty"] for c in asking if c.id in waited}),
        "controls": sum(not case.asks for case in cases),
        "controls_shown": len({c.id for _, c, v in results if v.outcome == SILENT and not c.asks}),
        "families": len({case.family for case in cases}),
        "ran": len(ran),
        "trials": len(results),
    }


def _block(results: Sequence[Result]) -> dict[str, Any]:
    """Rates of one way, wiring or family."""
    waits = [x for x in results if x[2].outcome in (REPORTED, MISSED)]
    reported = [x for x in waits if x[2].outcome == REPORTED]
    controls = [x for x in results if x[2].outcome in (SILENT, FALSE) and not x[1].asks]
    return {
        "waits": len(waits),
        "reported": len(reported),
        "rate": _share(len(reported), len(waits)),
        "kind": _right(reported, "kind"),
        "program": _right(reported, "program"),
        "question": _right(reported, "question"),
        "controls": len(controls),
        "false": sum(x[2].outcome == FALSE for x in results),
        "proved": sum(x[2].proved is True for x in waits),
    }


def _right(results: Iterable[Result], part: str) -> float | None:
    answers = [a for x in results if (a := getattr(x[2], part)) is not None]
    return _share(sum(answers), len(answers))


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _baselines(results: Sequence[Result]) -> dict[str, Any]:
    """The same trials, and what each baseline would have said."""
    waits = [x for x in results if x[2].outcome in (REPORTED, MISSED)]
    controls = [x for x in results if not x[1].asks and x[2].outcome in (SILENT, FALSE)]
    spoken = [verdicts(x[0]) for x in waits]
    disturbed = [verdicts(x[0]) for x in controls]
    found: dict[str, Any] = {}
    for name in BASELINES:
        found[name] = {
            "reported": sum(v[name] is not None for v in spoken),
            "rate": _share(sum(v[name] is not None for v in spoken), len(spoken)),
            "false": sum(v[name] is not None for v in disturbed),
            "controls_disturbed": len(
                {x[1].id for x, v in zip(controls, disturbed, strict=True) if v[name] is not None}
            ),
        }
    found["receipt-trace"] = {
        "reported": sum(x[2].outcome == REPORTED for x in waits),
        "rate": _share(sum(x[2].outcome == REPORTED for x in waits), len(waits)),
        "false": sum(x[2].outcome == FALSE for x in results),
        "controls_disturbed": len({x[1].id for x in controls if x[2].outcome == FALSE}),
    }
    return found


def _closed(results: Sequence[Result]) -> dict[str, int]:
    closed = [x for x in results if x[2].outcome == CLOSED]
    return {
        "trials": len(closed),
        "hangs": sum(x[2].hangs for x in closed),
        "checked": sum(x[0]["done"] is not None for x in closed),
        "false_success": sum(x[2].false_success for x in closed),
        "flagged": sum(x[2].flagged and x[2].false_success for x in closed),
    }


def _name(result: Result) -> dict[str, str]:
    record, case, _ = result
    return {"case": case.id, "wiring": record["wiring"], "through": record["through"]}


def _list(results: Iterable[Result], outcome: str) -> list[dict[str, str]]:
    return [{**_name(x), "why": x[2].why} for x in results if x[2].outcome == outcome]


def _wrong(results: Iterable[Result]) -> list[dict[str, str]]:
    """Receipts that say something else than the program did."""
    found = []
    for record, case, verdict in results:
        for part, key in (("kind", "kind"), ("program", "program"), ("question", "prompt")):
            if getattr(verdict, part) is False:
                said = record["receipts"][0]
                if part == "question" and said["prompt_source"] == "none":
                    continue
                want = getattr(case.expected(record["wiring"]), part)
                found.append(
                    {**_name((record, case, verdict)), "part": part, "expected": want,
                     "said": said[key][-120:]}
                )  # fmt: skip
    return found


def _absent(results: Iterable[Result]) -> dict[str, str]:
    return {case.id: verdict.why for _, case, verdict in results if verdict.outcome == ABSENT}


def outcomes(results: Iterable[Result]) -> Counter[str]:
    """How many trials came out how."""
    return Counter(verdict.outcome for _, _, verdict in results)
