"""The table of `receipt-trace top`: rows in, lines of text out."""

import pytest
from builders import NS, START, context, waiter
from hypothesis import given
from hypothesis import strategies as st

from receipt_trace.observation import Holder, ProcessId, Program
from receipt_trace.receipt import Clerk, Host
from receipt_trace.rule import Confirmed
from receipt_trace.table import SORTS, Row, details, duration, render, sort_rows
from receipt_trace.trees import Tree

BAD = "\x1b[31m\n\r\x07\x7f\x9b\u202e\u2028"


def receipt(output=b"Go on? ", who=None, since=0, **seen):
    """The receipt of a wait."""
    return Clerk(Host("host", "boot"), "procfs").wait(
        Tree(ProcessId(10, START)),
        Confirmed(since + NS, who or waiter(wait_set=("0=/dev/pts/1",)), since, 0),
        context(output, **seen),
    )


def row(pid=10, agent="codex", started=0, since=None, command="make deploy", **more):
    """A tool call; with ``since`` it waits."""
    waits = None if since is None else receipt(since=since, **more)
    return Row(agent, pid, started, 2, command, since, waits)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"), (0, "0s"), (0.999, "0s"), (1, "1s"), (59.9, "59s"), (60, "1m00"),
        (184, "3m04"), (3599, "59m59"), (3600, "1h00"), (7620, "2h07"), (360_000, "100h00"),
    ],
)  # fmt: skip
def test_a_time_is_read_at_a_glance(seconds, text):
    """In whole seconds, never below zero."""
    assert duration(round(seconds * NS)) == text


# -- order -----------------------------------------------------------------------------------------

ROWS = [
    row(1, "goose", started=30),
    row(2, "codex", started=20, since=90),
    row(3, "amp", started=10),
    row(4, "codex", started=25, since=80),
]


@pytest.mark.parametrize(
    ("by", "expected"), [("waits", [4, 2, 3, 1]), ("age", [3, 2, 4, 1]), ("agent", [3, 2, 4, 1])]
)
def test_rows_are_in_the_order_that_was_asked_for(by, expected):
    """The longest wait first, the oldest first, or by agent."""
    assert [r.pid for r in sort_rows(ROWS, by)] == expected


@given(st.permutations(ROWS), st.sampled_from(SORTS))
def test_the_order_does_not_depend_on_the_one_before(rows, by):
    """A table that is drawn again stands still."""
    assert sort_rows(rows, by) == sort_rows(ROWS, by)


# -- lines -----------------------------------------------------------------------------------------


def test_a_table_has_a_summary_a_header_and_a_line_for_each_call():
    """What waits shows its question instead of its command."""
    rows = [row(4711, "codex", 0, since=58 * NS), row(12, "-", 5 * NS, command="rm -i notes")]
    summary, header, *lines = render(rows, 62 * NS, 100, "age")
    assert summary.startswith("receipt-trace: 2 tool calls of 1 agents, 1 waiting (sorted by age;")
    assert " ".join(header.split()) == "AGENT PID AGE PROCS WAITS ASKS COMMAND / QUESTION"
    assert lines[0].split(maxsplit=7) == (
        ["codex", "4711", "1m02", "2", "4s", "asks", "line", "Go on?"]
    )
    assert lines[1].split(maxsplit=4) == ["-", "12", "57s", "2", "rm -i notes"]
    for line in lines:
        assert [line[i - 1] for i in (16, 24, 31, 37, 44, 62)] == [" "] * 6


def test_a_question_that_cannot_be_seen_leaves_the_command():
    """The row still says who asks, and for what."""
    (line,) = render([row(since=0, output=b"", command="sudo x")], NS, 100, "waits")[2:]
    assert "asks line" in line
    assert line.endswith("sudo x")


def test_of_a_question_the_last_line_is_shown():
    """It is nearly always the question itself."""
    (line,) = render([row(since=0, output=b"a list\n of things\nGo on? ")], NS, 100, "waits")[2:]
    assert line.endswith("Go on?")


def test_an_empty_table_is_a_summary_and_a_header():
    """Nobody works."""
    assert len(render([], 0, 80, "waits")) == 2
    assert render([], 0, 80, "waits")[0].startswith("receipt-trace: 0 tool calls of 0 agents")


def test_a_row_that_is_too_wide_is_cut_and_says_so():
    """A cell keeps to its column, a line to the screen."""
    (line,) = render([row(agent="a" * 40, command="x" * 200)], 0, 80, "waits")[2:]
    assert line.startswith("a" * 14 + "… 10 ")
    assert line.endswith("x…")
    assert len(line) == 80


texts = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from([BAD, "x" * 500, ""])


@given(
    st.lists(st.tuples(texts, texts, st.integers(-(10**18), 10**18), st.booleans()), max_size=3),
    st.integers(1, 200),
    st.sampled_from(SORTS),
)
def test_no_line_is_wider_than_the_screen_or_acts_on_it(rows, width, by):
    """Whatever a process calls itself and prints."""
    rows = [
        row(agent=agent, started=started, since=0 if waits else None, command=text,
            output=text.encode("utf-8", "replace"), who=waiter(comm=agent))
        for agent, text, started, waits in rows
    ]  # fmt: skip
    lines = render(rows, 0, width, by)
    assert len(lines) == 2 + len(rows)
    for line in lines:
        assert len(line) <= width
        assert line.isprintable()


# -- one receipt in full ---------------------------------------------------------------------------


def test_a_receipt_is_shown_in_full():
    """Each part on a line of its own, the question last."""
    lines = details(
        receipt(
            b"Two\r\nlines? ",
            user="user",
            holders=(Holder("tmux", 3), Holder("sshd", 2)),
            person=True,
        ),
        100,
    )
    assert lines == [
        "program   asks[10] asks --twice",
        "command   sh -c asks --twice",
        "in        /home/user, user user",
        "input     line on /dev/pts/1, a person may answer too",
        "held by   tmux[3], sshd[2]",
        "evidence  syscall: read (0=/dev/pts/1)",
        f"advice    {receipt().advice}"[:99] + "…",
        "",
        "Two",
        "lines?",
    ]


def test_what_is_not_known_is_said():
    """Rather than left empty."""
    lines = details(receipt(b"", root=Program("sh"), user=None), 100)
    assert "in        ?, user 1000" in lines
    assert "held by   ?" in lines
    assert lines[-1] == "(the question cannot be seen)"
    assert not any("person" in line for line in lines)


@given(texts, st.integers(1, 120))
def test_no_line_of_a_receipt_is_wider_than_the_screen_or_acts_on_it(text, width):
    """Whatever a process calls itself and prints."""
    program = Program(text, text, (text,), text)
    seen = {"program": program, "root": program, "user": text, "holders": (Holder(text, 5),)}
    found = receipt(text.encode("utf-8", "replace"), waiter(comm=text, target=text), **seen)
    for line in details(found, width):
        assert len(line) <= width
        assert line.isprintable()
