"""What litmus makes of a trial: verdicts, figures, baselines and the page."""

from dataclasses import asdict

import pytest

from receipt_trace.litmus import report
from receipt_trace.litmus.baselines import BASELINES, verdicts
from receipt_trace.litmus.catalogue import Case
from receipt_trace.litmus.figures import figures, latencies
from receipt_trace.litmus.score import (
    ABSENT,
    CLOSED,
    DID_NOT_WAIT,
    FALSE,
    MISSED,
    NOT_SHOWN,
    REPORTED,
    SILENT,
    judge,
    judged,
    quantile,
)
from receipt_trace.litmus.trial import Record, visible

ASK = Case(
    "f", "ask", "rm -i f",
    kind={"tty": "line", "pipe": "stream", "null": "dead"},
    program=dict.fromkeys(("tty", "pipe", "null"), "rm"),
    question=dict.fromkeys(("tty", "pipe", "null"), "remove 'f'?"),
    after="test ! -e f",
)  # fmt: skip
CONTROL = Case("f", "control", "sleep 60", asks=False, shown="begun")
READER = {
    "pid": 1, "tid": 1, "comm": "rm", "state": "S", "syscall": "read", "wchan": "wait_woken",
    "fd": 0, "link": "/dev/pts/1", "where": "input",
}  # fmt: skip
RECEIPT = {
    "at": 1.1, "program": "rm", "pid": 1, "tid": 1, "relays": [], "kind": "line", "input": "tty",
    "prompt": "rm: remove\n 'f'?", "prompt_source": "output", "grade": "syscall",
    "syscall": "read", "wait_set": ["0=/dev/pts/1"], "source": "procfs",
}  # fmt: skip


def trial(case, wiring="tty", **more):
    """A record of a case that waits and was reported, or of a control that stayed silent."""
    record = asdict(Record(case.id, case.asks, wiring, "run", "auto"))
    record.update(begun=0.0, lasted=3.0, tail="begun")
    if case.asks:
        record.update(
            waits=True, readers=[READER], kind="line", receipts=[RECEIPT], latency=1.05,
            tail="rm: remove 'f'?", went_on=True, answered=2.4,
            lines=[(0.05, "rm: remove 'f'? ", "rm: remove 'f'? ")],
        )  # fmt: skip
    record.update(more)
    return record


def test_a_wait_with_a_receipt_is_reported():
    """And everything that it says is compared."""
    verdict = judge(trial(ASK), ASK)
    assert verdict.outcome == REPORTED
    assert (verdict.kind, verdict.program, verdict.question) == (True, True, True)
    assert (verdict.latency, verdict.proved, verdict.doubts) == (1.05, True, ())


def test_a_wait_without_a_receipt_is_missed():
    """With what the oracle saw as the reason."""
    verdict = judge(trial(ASK, receipts=[]), ASK)
    assert verdict.outcome == MISSED
    assert "rm S read(0=/dev/pts/1)" in verdict.why


@pytest.mark.parametrize(
    ("part", "value"), [("kind", "key"), ("program", "mv"), ("prompt", "overwrite?")]
)
def test_a_receipt_that_says_something_else_is_wrong(part, value):
    """Part by part."""
    verdict = judge(trial(ASK, receipts=[{**RECEIPT, part: value}]), ASK)
    assert verdict.outcome == REPORTED
    assert getattr(verdict, {"prompt": "question"}.get(part, part)) is False


def test_the_oracle_decides_and_not_the_catalogue():
    """A command that it does not see waiting: no wait, and a receipt would be false."""
    assert judge(trial(ASK, waits=False, receipts=[]), ASK).outcome == DID_NOT_WAIT
    assert judge(trial(ASK, waits=False), ASK).outcome == FALSE


def test_a_wait_that_the_catalogue_does_not_know_is_one():
    """And a doubt about the catalogue."""
    record = trial(ASK, "null", receipts=[])
    verdict = judge(record, ASK)
    assert verdict.outcome == MISSED
    assert verdict.doubts == ("it waits under null, which the catalogue does not say",)


def test_a_catalogue_that_the_oracle_contradicts_is_doubted():
    """In the kind, the program, and what was printed."""
    record = trial(ASK, kind="secret", readers=[{**READER, "comm": "mv"}], tail="nothing")
    assert len(judge(record, ASK).doubts) == 3


def test_a_control_that_is_told_to_have_asked_is_a_false_report():
    """Though nobody was said to wait."""
    assert judge(trial(CONTROL, eof=1), CONTROL).outcome == FALSE


def test_a_closed_input_shows_false_success():
    """Status 0, and nothing was done."""
    record = trial(ASK, "null", waits=False, receipts=[], status=0, done=False, ended=0.1)
    verdict = judge(record, ASK)
    assert (verdict.outcome, verdict.false_success, verdict.flagged) == (CLOSED, True, False)
    assert judge({**record, "eof": 1}, ASK).flagged
    assert not judge({**record, "done": True}, ASK).false_success
    assert judge({**record, "status": None}, ASK).hangs


def test_a_control_is_silent_only_if_it_did_what_makes_it_one():
    """Else its silence says nothing."""
    assert judge(trial(CONTROL), CONTROL).outcome == SILENT
    assert judge(trial(CONTROL, tail="no such file"), CONTROL).outcome == NOT_SHOWN
    assert judge(trial(CONTROL, status=1), CONTROL).outcome == NOT_SHOWN
    assert judge(trial(CONTROL, receipts=[RECEIPT]), CONTROL).outcome == FALSE


def test_a_control_that_reads_its_input_needs_a_reason():
    """It may be a wait that nobody noticed."""
    assert judge(trial(CONTROL, readers=[READER]), CONTROL).doubts
    why = Case("f", "control", "bash -i", asks=False, shown="begun", why="idle")
    assert not judge(trial(why, readers=[READER]), why).doubts


def test_a_case_that_could_not_run_is_neither_passed_nor_failed():
    """It is counted as such."""
    record = trial(ASK, state="absent", reason="not installed: x")
    assert judge(record, ASK) == judge(record, ASK).__class__(ABSENT, "not installed: x")


def test_the_baselines_see_what_was_printed_until_the_answer():
    """A question at the end of the output, and a silence of each one's length."""
    spoken = verdicts(trial(ASK))
    assert spoken == {
        "prompt patterns": 0.55,
        "unterminated line": 1.05,
        "silence watchdog": 1.05,
    }
    assert verdicts(trial(ASK, answered=0.4)) == dict.fromkeys(BASELINES)


@pytest.mark.parametrize(
    "line",
    ["Continue? [y/N] ", "Password: ", "Username for 'https://x': ", "Press any key to continue...",
     "What now> ", "Select 1-3: ", ">>> ", "overwrite 'b'?", "Are you sure (yes/no)? "],
)  # fmt: skip
def test_the_prompt_patterns_know_usual_prompts(line):
    """As their users write them."""
    assert verdicts(trial(ASK, lines=[(0.1, line.rstrip(), line)]))["prompt patterns"]


@pytest.mark.parametrize("line", ["Compiling foo.c", "100 %", "done."])
def test_the_prompt_patterns_let_other_lines_be(line):
    """Or they would not be fair."""
    assert verdicts(trial(ASK, lines=[(0.1, line, line)]))["prompt patterns"] is None


def test_a_program_that_keeps_talking_disturbs_no_baseline():
    """There is no pause."""
    lines = [(n / 10, "Continue?", "Continue?") for n in range(30)]
    assert verdicts(trial(CONTROL, lines=lines)) == dict.fromkeys(BASELINES)


def test_the_figures_are_of_what_ran():
    """Waits, controls, false reports, baselines, lists."""
    records = [
        trial(ASK), trial(ASK, receipts=[]), trial(ASK, "pipe", state="absent", reason="r"),
        trial(CONTROL), trial(CONTROL, "pipe", receipts=[RECEIPT]),
    ]  # fmt: skip
    results = judged(records, [ASK, CONTROL])
    found = figures(results)
    assert found["catalogue"]["commands"] == found["catalogue"]["controls"] == 1
    assert sum(b["waits"] for b in found["overall"].values()) == 2
    assert sum(b["reported"] for b in found["overall"].values()) == 1
    assert sum(b["false"] for b in found["overall"].values()) == 1
    assert [x["case"] for x in found["missed"]] == ["f/ask"]
    assert [x["case"] for x in found["false"]] == ["f/control"]
    assert found["absent"] == {"f/ask": "r"}
    assert found["baselines"]["receipt-trace"]["rate"] == 0.5
    assert list(latencies(results).values()) == [[1.05]]


@pytest.mark.parametrize(
    ("through", "eof", "listed"), [("watch", 0, 1), ("watch", 1, 0), ("run", 0, 0)]
)
def test_a_false_success_that_could_be_flagged_and_was_not_is_listed(through, eof, listed):
    """With the last that it printed: ``run`` sees no ends of inputs."""
    closed = trial(ASK, "null", waits=False, receipts=[], status=0, done=False, ended=0.1)
    found = figures(judged([{**closed, "through": through, "eof": eof}], [ASK]))
    assert len(found["unflagged"]) == listed


def test_the_page_shows_nothing_unescaped():
    """Output of programs ends up in it."""
    evil = "\x1b[31m|`\n# heading"
    results = judged([trial(ASK, receipts=[], readers=[{**READER, "comm": evil}])], [ASK])
    page = report.markdown(figures(results))
    assert "\x1b" not in page
    assert "\n# heading" not in page
    assert "## Missed" in page


def test_the_picture_is_drawn(tmp_path):
    """As a file that is the same for the same figures."""
    results = judged([trial(ASK), trial(CONTROL)], [ASK, CONTROL])
    for name in ("a.svg", "b.svg"):
        report.plot(figures(results), latencies(results), str(tmp_path / name))
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert b"waits reported" in (tmp_path / "a.svg").read_bytes()


def test_control_sequences_are_not_seen():
    """Only what a person would."""
    assert visible(b"\x1b]0;title\x07\x1b[1mName\x1b[0m: \x1b(B\r\nnext\x07") == "Name: \nnext"


def test_quantiles_of_nothing_are_nothing():
    """Rather than a fault."""
    assert quantile([], 0.5) is None
    assert quantile([3, 1, 2], 0.5) == 2
    assert quantile([1, 2], 0.95) == 2
