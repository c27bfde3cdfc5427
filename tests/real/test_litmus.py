"""The subset of litmus: everything that the oracle sees waiting is reported, and nothing else."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from receipt_trace.litmus import oracle
from receipt_trace.litmus.catalogue import Case, load
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
    judged,
)

from .support import RECEIPT_TRACE, Terminal, environment, eventually, missing

pytestmark = pytest.mark.kernel

UNSEEN: Final[dict[tuple[str, str], str]] = {}
"""Waits that are known to be missed, and why."""

Result = tuple[dict[str, Any], Case, Verdict]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """One run of the subset, through ``run``, on a terminal and on a pipe."""
    directory = tmp_path_factory.mktemp("litmus")
    out = directory / "results.jsonl"
    words = (RECEIPT_TRACE, "litmus", "run", "--quick", "--through", "run", "--wiring", "tty", "--wiring", "pipe",
             "--parallel", "12", "--out", str(out))  # fmt: skip
    done = subprocess.run(
        words, env=environment(directory), capture_output=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    records = [json.loads(line) for line in out.read_text().splitlines()]
    return judged(records, load().cases)


def _told(results: Sequence[Result], outcome: str) -> list[str]:
    return [
        f"{case.id} [{record['wiring']}]: {verdict.why}"
        for record, case, verdict in results
        if verdict.outcome == outcome and (case.id, record["wiring"]) not in UNSEEN
    ]


def test_every_case_ran(results: list[Result]) -> None:
    """Each program is there, each one that should wait did, each control did what makes it one."""
    absent = _told(results, ABSENT)
    if absent:
        missing("; ".join(absent), "run scripts/setup --test as root")
    assert _told(results, DID_NOT_WAIT) == []
    assert _told(results, NOT_SHOWN) == []
    assert sum(verdict.outcome == REPORTED for _, _, verdict in results) >= 90
    assert sum(verdict.outcome == SILENT for _, _, verdict in results) >= 110


def test_every_wait_is_reported(results: list[Result]) -> None:
    """But for those of which it is known why they are not."""
    assert _told(results, MISSED) == []


def test_nothing_else_is_reported(results: list[Result]) -> None:
    """No receipt about a control, and none about a command that does not wait."""
    assert _told(results, FALSE) == []


@pytest.mark.parametrize("part", ["kind", "program", "question"])
def test_what_a_receipt_says_is_right(results: list[Result], part: str) -> None:
    """As the catalogue has it, which the oracle does not contradict."""
    wrong = [
        f"{case.id} [{record['wiring']}]: {record['receipts'][0]}"
        for record, case, verdict in results
        if getattr(verdict, part) is False
    ]
    assert wrong == []


def test_the_oracle_and_the_catalogue_agree(results: list[Result]) -> None:
    """Kind, program and text of each question are what the oracle saw, too."""
    assert [f"{case.id}: {verdict.doubts}" for _, case, verdict in results if verdict.doubts] == []


def test_answers_prove_the_waits(results: list[Result]) -> None:
    """The command goes on."""
    unproved = [
        f"{case.id} [{record['wiring']}]: {record['tail'][-200:]!r}"
        for record, case, verdict in results
        if verdict.proved is False
    ]
    assert unproved == []


def test_the_oracle_sees_a_reader_and_the_state_of_its_terminal(tmp_path: Path) -> None:
    """By itself: which call, on what, and whether it would echo."""
    with Terminal(tmp_path, "bash", "-c", "read -s -p 'Token: ' x") as terminal:
        terminal.shows(b"Token: ")
        pid = terminal.process.pid
        given = oracle.wiring(pid)
        assert given is not None

        def readers() -> tuple[oracle.Reader, ...]:
            return tuple(oracle.blocked(pid, given))

        reader = eventually(readers, "somebody reads")[0]
        assert (reader.comm, reader.syscall, reader.fd, reader.where) == (
            "bash",
            "read",
            0,
            "input",
        )
        assert oracle.modes(reader.link) == (True, False)
        before = oracle.switches(reader)
        terminal.type(b"secret\n")
        eventually(lambda: oracle.switches(reader) != before, "it takes what is typed")


def test_the_oracle_sees_nobody_where_nobody_reads(tmp_path: Path) -> None:
    """A question on the screen is none."""
    with Terminal(tmp_path, "bash", "-c", "printf 'Token: '; exec sleep 60") as terminal:
        terminal.shows(b"Token: ")
        pid = terminal.process.pid
        given = oracle.wiring(pid)
        assert given is not None
        assert list(oracle.blocked(pid, given)) == []


def test_a_harness_is_measured_through_its_own_command_line(tmp_path: Path) -> None:
    """Which wiring it gives, what hangs, and what falsely succeeds."""
    out = tmp_path / "results.jsonl"
    words = (RECEIPT_TRACE, "litmus", "run", "coreutils/cp -i", "--harness", "sh -c {} </dev/null",
             "--out", str(out))  # fmt: skip
    done = subprocess.run(
        words, env=environment(tmp_path), capture_output=True, timeout=120, check=False
    )
    said = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()
    assert "standard input: /dev/null" in said
    assert "coreutils/cp -i: ended with 0, and the action was not done" in said


def test_the_watcher_is_measured_below_a_stand_in_agent(tmp_path: Path) -> None:
    """A tool call that asks is reported; a server is none, whatever it waits for."""
    out = tmp_path / "results.jsonl"
    words = (RECEIPT_TRACE, "litmus", "run", "coreutils/rm -i", "controls_input/stdio server",
             "--through", "watch", "--out", str(out))  # fmt: skip
    done = subprocess.run(
        words, env=environment(tmp_path), capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    records = [json.loads(line) for line in out.read_text().splitlines()]
    found = {
        (case.id, record["wiring"]): verdict.outcome
        for record, case, verdict in judged(records, load().cases)
    }
    assert found == {
        ("coreutils/rm -i", "tty"): REPORTED,
        ("coreutils/rm -i", "pipe"): REPORTED,
        ("coreutils/rm -i", "null"): CLOSED,
        ("controls_input/stdio server", "pipe"): SILENT,
    }, done.stderr.decode()
