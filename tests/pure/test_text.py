"""Receipts as lines for people."""

import os

import pytest
from builders import NS, START, context, waiter
from hypothesis import given
from hypothesis import strategies as st

from exporters.text import TextExporter, describe, printable
from receipt_trace.observation import ProcessId, Program
from receipt_trace.receipt import Clerk, Host
from receipt_trace.rule import Confirmed, How, Resolved
from receipt_trace.trees import Agent, Tree

NAMED = Tree(ProcessId(10, START), label="demo")
NOBODYS = Tree(ProcessId(10, START))
BAD = "\x1b[31m\n\r\x07\x7f\x9b\u202e\u2028"


def line(output=b"", who=None, tree=NOBODYS, **seen):
    """The line about a wait."""
    found = Clerk(Host("host", "boot"), "procfs").wait(
        tree, Confirmed(NS, who or waiter(), 0, 0), context(output, **seen)
    )
    return describe(found)


def end(how, status=None):
    """The line about the end of a wait of 2.5 s."""
    clerk = Clerk(Host("host", "boot"), "procfs")
    clerk.wait(NAMED, Confirmed(NS, waiter(), 0, 0), context(b"Go on? "))
    return describe(clerk.resolution(Resolved(5 * NS // 2, waiter(), 0, how, status), NS))


KINDS = {
    "line": ({}, {}, "asks[10] asks for a line on /dev/pts/1"),
    "secret": ({}, {"echo": False}, "asks[10] asks for a secret on /dev/pts/1"),
    "key": ({}, {"canonical": False}, "asks[10] waits for a key on /dev/pts/1"),
    "screen": (
        {}, {"canonical": False, "alternate": True},
        "asks[10] shows a full screen on /dev/pts/1"),
    "stream": (
        {"wiring": "pipe", "target": "pipe:[7]"}, {},
        "asks[10] reads its input on pipe:[7]"),
    "dead": (
        {"dead": True}, {}, "asks[10] waits for what nobody can give on /dev/pts/1"),
}  # fmt: skip


@pytest.mark.parametrize(("who", "seen", "expected"), KINDS.values(), ids=KINDS)
def test_every_kind_of_wait_has_its_words(who, seen, expected):
    """Who, what, and on what."""
    assert line(who=waiter(**who), **seen) == expected


ENDS = {
    How.ANSWERED: "was answered",
    How.EOF: "its input was closed",
    How.EXPIRED: "gave up by its own time-out",
    How.INTERRUPTED: "was ended by receipt-trace",
    How.KILLED: "was killed",
    How.EXITED: "has exited",
    How.LOST: "is no longer watched",
}


@pytest.mark.parametrize("how", How)
def test_every_end_of_a_wait_has_its_words(how):
    """And how long it lasted."""
    assert end(how) == f"asks[10] of demo {ENDS[how]} after 2.5 s"


def test_an_exit_status_is_told_where_it_is_known():
    """As a shell tells it."""
    assert end(How.KILLED, 9) == "asks[10] of demo was killed after 2.5 s, exit status 137"
    assert end(How.EXITED, 0).endswith(", exit status 0")


def test_the_question_is_told():
    """The last line that says something."""
    assert line(b"1) one\r\n2) two\r\nWhich? \r\n") == (
        "asks[10] asks for a line on /dev/pts/1: “Which?”"
    )


def test_of_a_dialog_the_frame_is_left_out():
    """A row of dashes asks nothing."""
    assert line("Install?\r\n└──────┘\r\n~\r\n".encode()).endswith(": “Install?”")


def test_blanks_in_a_question_are_one():
    """It was laid out for a screen."""
    assert line(b"<Yes>          <No>\r\n").endswith(": “<Yes> <No>”")


def test_a_long_question_is_cut_at_its_beginning():
    """What is asked stands at its end."""
    question = line(b"x" * 200 + b" Go on?", terminal_output=False).partition("“")[2]
    assert question.startswith("…xxx")
    assert question.endswith("x Go on?”")
    assert len(question) == 161


def test_relays_are_told():
    """From the outside."""
    found = line(who=waiter(relays=("sudo", "script")))
    assert found.endswith("on /dev/pts/1 through sudo, script")


def test_an_agent_is_told_before_a_label():
    """And nothing where nobody is known."""
    agents = Tree(ProcessId(10, START), label="demo", agent=Agent("codex", 5))
    assert line(tree=agents).startswith("asks[10] of codex asks")
    assert line(tree=NAMED).startswith("asks[10] of demo asks")
    assert line(tree=NOBODYS).startswith("asks[10] asks")


def test_nothing_unprintable_leaves():
    """Names, labels, targets, relays and prompts are hostile; they are escaped."""
    found = line(
        BAD.encode() + b"Go? ",
        waiter(comm=BAD, target=BAD, relays=(BAD,)),
        Tree(ProcessId(10, START), label=BAD),
        program=Program(BAD, BAD, (BAD,), BAD),
    )
    assert [c for c in found if not c.isprintable()] == []
    assert found.startswith("\\x1b[31m\\n\\r\\x07\\x7f\\x9b\\u202e\\u2028[10] of \\x1b")


@given(st.text(st.characters()))
def test_printable_text_stays_and_the_rest_is_escaped(text):
    """Nothing acts on a terminal, nothing is lost."""
    assert printable(text).isprintable()
    if text.isprintable():
        assert printable(text) == text


@given(st.binary(max_size=60))
def test_any_prompt_gives_one_printable_line(output):
    """Whatever a program prints."""
    assert line(output).isprintable()


def test_lines_are_written_whole_and_ended():
    """With the prefix and the newline that were asked for, as UTF-8."""
    reader, writer = os.pipe()
    with open(reader, "rb") as out:
        exporter = TextExporter(writer, prefix="-> ", newline="\r\n")
        exporter.say("one “two”")
        clerk = Clerk(Host("host", "boot"), "procfs")
        exporter.export(clerk.wait(NAMED, Confirmed(NS, waiter(), 0, 0), context(b"Go? ")))
        exporter.close()
        os.close(writer)
        assert out.read().decode() == (
            "-> one “two”\r\n-> asks[10] of demo asks for a line on /dev/pts/1: “Go?”\r\n"
        )
