"""The suite through somebody's own harness: what input it gives, and what comes of it."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from receipt_trace.litmus.catalogue import Case

PROBE: Final = Case(
    family="harness",
    name="probe",
    command="exec 3> {work}/probe; readlink /proc/$$/fd/0 >&3; readlink /proc/$$/fd/1 >&3; "
    "(: </dev/tty) 2>/dev/null && echo yes >&3",
    after="test -s probe",
)
"""Tells what a harness gives a command: its standard input and output, and whether it has a terminal."""

_MEANING: Final = {
    "/dev/null": "closed: questions are answered by end-of-file, and many programs then take a default",
    "pipe": "a pipe: who asks waits for whoever holds its other end",
    "socket": "a socket: who asks waits for whoever holds its other end",
    "/dev/pts/": "a terminal: who asks waits for a person",
}


def command_line(harness: str, case: Case, work: Path) -> list[str]:
    """The harness's command line around a case: ``{}`` becomes the command as one word."""
    command = case.command.replace("{work}", str(work))
    return ["bash", "-c", harness.replace("{}", shlex.quote(command))]


def describe(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The report on a harness, line by line. What was judged is who hung, and who falsely succeeded."""
    cases = [r for r in records if r["case"] != PROBE.id]
    yield from _wiring([r for r in records if r["case"] == PROBE.id])
    ran = [r for r in cases if r["state"] == "ran"]
    hung = [r for r in ran if r["ended"] is None]
    false = [r for r in ran if r["status"] == 0 and r["done"] is False]
    yield ""
    yield f"{len(ran)} commands that ask: {len(hung)} did not end, {len(false)} ended with 0 and had done nothing"
    for record in hung:
        yield f"{record['case']}: did not end within {record['lasted']:.0f} s; {_held(record)}"
    for record in false:
        yield f"{record['case']}: ended with 0, and the action was not done"
    for record in cases:
        if record["state"] != "ran":
            yield f"{record['case']}: not run, {record['reason']}"


def _wiring(probes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    words = probes[0]["probe"].splitlines() if probes and probes[0]["probe"] else []
    if len(words) < 2:
        yield "the harness did not run the probe; expected 'CMD {}', where {} is a shell command in one word"
        return
    meaning = next(
        (text for start, text in _MEANING.items() if words[0].startswith(start)), "a file"
    )
    yield f"standard input: {words[0]} ({meaning})"
    yield f"standard output: {words[1]}"
    has = "yes" in words[2:]
    yield (
        "controlling terminal: yes: who opens /dev/tty waits there, whatever the standard input is"
        if has
        else "controlling terminal: none: who opens /dev/tty fails at once"
    )


def _held(record: Mapping[str, Any]) -> str:
    """What the oracle saw of a command that did not end."""
    if not record["readers"]:
        return "nobody was blocked on its input (it spins, or waits for something else)"
    reader = record["readers"][-1]
    return f"{reader['comm']} waits in {reader['syscall']} on {reader['link']}"
