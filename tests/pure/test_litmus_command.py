"""``receipt-trace litmus`` on the command line."""

import json

import pytest

from receipt_trace.cli import main
from receipt_trace.litmus import stage
from receipt_trace.litmus.harness import PROBE, describe


def run(capsys, *words):
    """The exit code, and both outputs."""
    code = main(["litmus", *words])
    return code, *capsys.readouterr()


def test_the_list_shows_each_case_and_counts(capsys):
    """One line each on stdout, the sum on stderr."""
    code, out, err = run(capsys, "list", "coreutils", "controls_quiet/sleep")
    assert code == 0
    assert "coreutils/rm -i " in out
    assert err.endswith("1 controls\n")


def test_the_list_as_json_says_what_is_expected(capsys):
    """For each wiring in which it waits."""
    _, out, _ = run(capsys, "list", "--json", "coreutils/rm -i")
    case = json.loads(out)
    assert case["tty"] == {
        "kind": "line",
        "program": "rm",
        "question": "remove regular empty file 'f'?",
    }
    assert case["pipe"]["kind"] == "stream"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "nothing"), "'nothing' fits no case"),
        (("run", "--harness", "sh"), "expected a command line with {}"),
        (("run", "--parallel", "0"), "is not a number from 1 to 256"),
        (("run", "coreutils/rm write*", "--wiring", "pipe"), "nothing is left to run"),
        (("report", "/nonexistent"), "/nonexistent cannot be read"),
        (("report", "/dev/null"), "nothing in these results"),
        ((), "required: ACTION"),
    ],
)
def test_a_mistake_is_told_with_the_next_step(capsys, words, said):
    """And nothing is run."""
    code, _, err = run(capsys, *words)
    assert code == 64
    assert said in err


def test_what_could_not_be_installed_is_named(capsys, monkeypatch):
    """By family, and the exit code says so."""
    lacking = [{"coreutils": ("nano",)}, {}]
    monkeypatch.setattr(stage, "install", lambda _cases, tell: tell("installing"))
    monkeypatch.setattr(stage, "absent", lambda _cases: lacking.pop(0))
    assert run(capsys, "install", "coreutils") == (
        1, "coreutils: not installed: nano\n", "installing\n",
    )  # fmt: skip
    assert run(capsys, "install", "coreutils") == (0, "", "installing\n")


def test_results_that_are_none_are_told_so(capsys, tmp_path):
    """And not a fault of ours."""
    (tmp_path / "x").write_text("{not json\n")
    code, _, err = run(capsys, "report", str(tmp_path / "x"))
    assert code == 64
    assert "expected what `litmus run` wrote" in err


def record(case, **more):
    """What matters of a trial through a harness."""
    values = {
        "case": case, "state": "ran", "reason": "", "ended": 1.0, "status": 0, "done": True,
        "lasted": 9.0, "readers": [], "probe": "",
    }  # fmt: skip
    return values | more


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        ("/dev/null\npipe:[1]\n", ("closed: questions", "controlling terminal: none")),
        ("/dev/pts/1\n/dev/pts/1\nyes\n", ("a terminal: who asks", "controlling terminal: yes")),
        ("pipe:[1]\npipe:[2]\n", ("a pipe: who asks", "none")),
        ("/tmp/x\n/tmp/y\n", ("/tmp/x (a file)", "none")),
        ("", ("did not run the probe", "")),
    ],
)
def test_a_harness_is_told_which_input_it_gives(probe, said):
    """And what that means for a command that asks."""
    text = "\n".join(describe([record(PROBE.id, probe=probe)]))
    assert all(part in text for part in said)


def test_a_harness_is_told_what_hangs_and_what_falsely_succeeds():
    """With who waits on what."""
    reader = {"comm": "rm", "syscall": "read", "link": "pipe:[1]"}
    text = "\n".join(
        describe(
            [
                record("f/hangs", ended=None, status=None, done=False, readers=[reader]),
                record("f/spins", ended=None, status=None),
                record("f/lies", done=False),
                record("f/fine"),
                record("f/fails", status=1, done=False),
                record("f/absent", state="absent", reason="not installed: x"),
            ]
        )
    )
    assert "5 commands that ask: 2 did not end, 1 ended with 0 and had done nothing" in text
    assert "f/hangs: did not end within 9 s; rm waits in read on pipe:[1]" in text
    assert "f/spins: did not end within 9 s; nobody was blocked" in text
    assert "f/lies: ended with 0, and the action was not done" in text
    assert "f/absent: not run, not installed: x" in text
    assert "f/fine" not in text
    assert "f/fails" not in text
