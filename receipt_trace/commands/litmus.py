"""``receipt-trace litmus``: the suite of commands that ask, and of those that do not."""

import argparse
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from receipt_trace.errors import UsageError
from receipt_trace.litmus import catalogue
from receipt_trace.litmus.catalogue import Case
from receipt_trace.litmus.score import (
    ABSENT,
    DID_NOT_WAIT,
    FALSE,
    MISSED,
    NOT_SHOWN,
    Verdict,
    judged,
)


def main(options: argparse.Namespace) -> int:
    """List, install, run or report."""
    match options.action:
        case "list":
            return _list(options)
        case "install":
            return _install(options)
        case "run":
            return _run(options)
        case _:
            return _report(options)


def _list(options: argparse.Namespace) -> int:
    from receipt_trace.litmus import stage  # noqa: PLC0415

    cases = catalogue.load().select(options.pattern, quick=options.quick)
    for case in cases:
        absent = stage.missing(case.packages, case.family)
        if options.json:
            print(json.dumps(_described(case, absent)))
            continue
        what = f"{case.kind['tty']:<7}" if case.asks else "control"
        note = f"   (not installed: {' '.join(absent)})" if absent else ""
        print(f"{case.id:<48} {what} {','.join(case.wirings):<14} {_one_line(case.command)}{note}")
    asking = sum(case.asks for case in cases)
    if not options.json:
        programs = {case.program["tty"] for case in cases if case.asks}
        print(
            f"{asking} commands of {len(programs)} programs that ask, "
            f"{len(cases) - asking} controls",
            file=sys.stderr,
        )
    return 0


def _install(options: argparse.Namespace) -> int:
    from receipt_trace.litmus import stage  # noqa: PLC0415

    cases = catalogue.load().select(options.pattern, quick=options.quick)
    stage.install(cases, lambda text: print(text, file=sys.stderr, flush=True))
    lacking = stage.absent(cases)
    for family, packages in lacking.items():
        print(f"{family}: not installed: {' '.join(packages)}")
    return 1 if lacking else 0


def _described(case: Case, absent: Iterable[str]) -> dict[str, object]:
    return {
        "id": case.id,
        "asks": case.asks,
        "command": case.command,
        "wirings": case.wirings,
        "packages": case.packages,
        "missing": tuple(absent),
        "quick": case.quick,
        **({w: asdict(case.expected(w)) for w in case.wirings} if case.asks else {}),
    }


def _one_line(text: str) -> str:
    first, _, more = text.strip().partition("\n")
    return f"{first} …" if more else first


def _run(options: argparse.Namespace) -> int:
    from receipt_trace.litmus import harness, oracle  # noqa: PLC0415
    from receipt_trace.litmus.runner import THROUGH, Plan, Runner, write_record  # noqa: PLC0415
    from receipt_trace.litmus.trial import Record  # noqa: PLC0415

    if options.harness is not None and "{}" not in options.harness:
        raise UsageError(
            f"--harness is {options.harness!r}; expected a command line with {{}} where the "
            "command goes, as in --harness 'my-agent exec {}'"
        )
    if not oracle.available():
        raise UsageError("the oracle does not know the system calls of this machine")
    suite = catalogue.load()
    plan = Plan(
        suite.select(options.pattern, quick=options.quick),
        tuple(options.through or THROUGH),
        tuple(options.wiring or catalogue.WIRINGS),
        options.source or "auto",
        options.attach,
        options.capture,
        options.harness or "",
        options.parallel,
        options.install,
    )
    total = len(list(plan.trials()))
    if not total:
        raise UsageError("nothing is left to run: no case chosen is run in these wirings")
    for number in (signal.SIGINT, signal.SIGQUIT):  # of a shell that started us in the background
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)  # some programs then do not ask
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # clean up then, too
    progress = _Progress(total, sys.stderr)
    with open(options.out, "w", encoding="ascii") as out:

        def take(record: Record) -> None:
            print(write_record(record), file=out, flush=True)
            progress.step(record)

        Runner(suite, plan).run(take, progress.say)
    records = _records([options.out])
    if options.harness:
        for line in harness.describe(records):
            print(line)
        return 0
    _summary(judged(records, suite.cases), progress.say)
    progress.say(f"written: {options.out}; next: receipt-trace litmus report {options.out}")
    return 0


def _records(paths: Iterable[str]) -> list[dict[str, Any]]:
    """Results as `run` wrote them. Raises UsageError for a file that holds something else."""
    records = []
    for path in paths:
        try:
            with open(path, encoding="ascii") as file:
                records += [json.loads(line) for line in file]
        except OSError as error:
            raise UsageError(
                f"{path} cannot be read: {error.strerror}; expected what `litmus run` wrote"
            ) from None
        except ValueError as error:
            raise UsageError(f"{path}: {error}; expected what `litmus run` wrote") from None
    return records


def _summary(
    results: list[tuple[Mapping[str, Any], Case, Verdict]], say: Callable[[str], None]
) -> None:
    """What a person wants to know at once: how many of what, and everything that is not fine."""
    unread = 0
    for record, case, verdict in results:
        notes = [*verdict.doubts]
        if verdict.outcome in (MISSED, FALSE, DID_NOT_WAIT, NOT_SHOWN, ABSENT):
            notes.insert(0, f"{verdict.outcome}: {verdict.why}")
        for part in ("kind", "program", "question", "proved"):
            if getattr(verdict, part) is False:
                said = record["receipts"][0] if record["receipts"] else {}
                if part == "question" and said.get("prompt_source") == "none":
                    unread += 1  # this source cannot read what was printed
                    continue
                got = said.get({"question": "prompt"}.get(part, part), "")
                notes.append(
                    f"{part} not {'shown' if part == 'proved' else 'right'} {str(got)[-80:]!r}"
                )
        for note in notes:
            say(f"{case.id} [{record['wiring']}, {record['through']}] {note}")
    if unread:
        say(f"{unread} receipts without a prompt: their source cannot read what was printed")
    counts = Counter(verdict.outcome for _, _, verdict in results)
    say(", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))


class _Progress:
    """How far it is: one line that is written over on a terminal, a line now and then elsewhere."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self._total, self._stream, self._done = total, stream, 0
        self._live = stream.isatty()

    def step(self, record: object) -> None:
        """One more is done."""
        self._done += 1
        if self._live:
            width = 30 * self._done // self._total
            bar = f"[{'#' * width:<30}] {self._done}/{self._total} {getattr(record, 'case', '')}"
            self._stream.write(f"\r{bar[:100]:<100}")
        elif self._done % 50 == 0 or self._done == self._total:
            self._stream.write(f"{self._done} of {self._total}\n")
        self._stream.flush()

    def say(self, text: str) -> None:
        """A line of its own."""
        self._stream.write(f"\r{text:<100}\n" if self._live else f"{text}\n")
        self._stream.flush()


def _report(options: argparse.Namespace) -> int:
    from receipt_trace.litmus import report  # noqa: PLC0415
    from receipt_trace.litmus.figures import figures, latencies  # noqa: PLC0415

    cases = catalogue.load().cases
    results = judged(_records(options.file), cases)
    if not results:
        raise UsageError("nothing in these results is of a case of the catalogue")
    timing = judged(_records(options.timing), cases)
    found = figures(results, timing)
    if options.plot is not None:
        report.plot(found, latencies(timing or results), options.plot)
    picture = "" if options.plot is None else os.path.basename(options.plot)
    text = json.dumps(found, indent=1) + "\n" if options.json else report.markdown(found, picture)
    if options.out is None:
        sys.stdout.write(text)
        return 0
    try:
        Path(options.out).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{options.out} cannot be written: {error.strerror}") from None
    return 0
