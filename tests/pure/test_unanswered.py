"""Questions that met a closed input: which are some, how they are told, and when."""

import json

import jsonschema
import pytest
from builders import NS, START, context, sample
from hypothesis import given
from hypothesis import strategies as st

from exporters.text import describe, printable
from receipt_trace.constants import PROMPT_BYTES
from receipt_trace.observation import Ending, InputEnd, ProcessId
from receipt_trace.receipt import Clerk, Host, from_dict, schema
from receipt_trace.tracer import Tracer
from receipt_trace.trees import Agent, Tree
from receipt_trace.unanswered import question

HOST = Host("host", "b00t-1d")
SCHEMA = jsonschema.Draft202012Validator(
    schema(), format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
)
WALL = 1_700_000_000 * NS
ASKED = 3 * NS


def end(said=b"Proceed? ", pid=11, **more):
    """A program that has printed something reads the end of what it was given."""
    values = {
        "process": ProcessId(pid, START),
        "comm": "asks",
        "time": ASKED,
        "fd": 0,
        "target": "/dev/null",
        "wiring": "null",
        "given": True,
        "took": False,
        "own": True,
    }
    return InputEnd(**values | more, said=said)


# -- what a question is ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (b"Proceed? ", "Proceed?"),
        (b"Proceed?", "Proceed?"),
        (b"Password:", "Password:"),
        (b"name: ", "name:"),
        (b"What now> ", "What now>"),
        (b"Do you want to continue? [Y/n] ", "Do you want to continue? [Y/n]"),
        (b"Go on (yes/no) ", "Go on (yes/no)"),
        (b"(Pdb) ", "(Pdb)"),
        (b"{default} ", "{default}"),
        (b"done\nProceed? ", "Proceed?"),
        (b"done\r\nProceed? ", "Proceed?"),
        (b"10 %\r20 %\rRemove 3 files? ", "Remove 3 files?"),
        ("Löschen? ".encode(), "Löschen?"),
        ("続けますか? ".encode(), "続けますか?"),
        ("? What is your username? ‣ ".encode(), "? What is your username? ‣"),
        # drawn: a menu below, the cursor moved back or hidden
        (
            "? Which template?\n❯ vue\n  react\n\n↑↓ navigate\x1b[?25l\x1b[23G".encode(),
            "? Which template?",
        ),
        (b"? Enter your token\nctrl+t shows it\x1b[1A\x1b[20G", "? Enter your token"),
        (b"- resolving? Which one?\n> npm\n  yarn\x1b[?25l", "- resolving? Which one?"),
        # a line of its own, where it is in a form in which people ask
        (b"Proceed? [y/N]\n", "Proceed? [y/N]"),
        (b"Overwrite (y/n)\n", "Overwrite (y/n)"),
        (b"Overwrite [Yes/No/All]\n\n", "Overwrite [Yes/No/All]"),
        (b"Go on [n|y]\n", "Go on [n|y]"),
        (b"Do you want to continue?\n", "Do you want to continue?"),
        (b"Continue? \r\n", "Continue?"),
    ],
)
def test_a_question_is_known_by_its_end(said, text):
    """An unfinished line that ends like one, or a form of yes or no."""
    assert question(end(said)) == text


@pytest.mark.parametrize(
    "said",
    [
        b"", b" ", b"\n\n", b"\0", b"progress... ", b"50 %", b"done", b"done.\n", b"Reading:\n",
        b"menu>\n", b"? ", b">>> ", b"12:30:01> ", b"(1)\n", b"[ok]\n", b"Really? No.\n",
        b"Proceed? \nno\n", b"\xff\xfe: ", b"Proceed?\nno, 50 %", b"Proceed?\nno, 50 %\x1b[K",
        b"a\nb 50 %\x1b[?25l",
    ],
)  # fmt: skip
def test_what_ends_otherwise_is_none(said):
    """Progress, data, headings, and what has no word in it."""
    assert question(end(said)) is None


@pytest.mark.parametrize("not_so", [{"given": False}, {"took": True}, {"own": False}])
def test_nobody_asks_who_reads_data_or_did_not_print(not_so):
    """It is not the harness's input, or gave data before, or somebody else has printed that."""
    assert question(end(**not_so)) is None


@given(st.binary(max_size=2000), st.sampled_from([b"", b"? ", b": ", b"[y/N]\n"]))
def test_arbitrary_bytes_are_harmless(said, tail):
    """They give nothing, or one line that is in what was said and can be shown."""
    asked = question(end(said + tail))
    if asked is not None:
        assert "\n" not in asked
        assert "\r" not in asked
        assert asked == asked.strip()
        assert printable(asked).isprintable()


# -- its receipt -----------------------------------------------------------------------------


def tree(**more):
    """A tool call of an agent."""
    values = {"label": "demo", "agent": Agent("codex", 5, "t-1")}
    return Tree(ProcessId(10, START), **values | more)


def receipt(seen=None, status=256, asked=None, until=4 * NS):
    """The receipt of a question; ``status`` is a wait status."""
    seen = seen or end()
    text = question(seen) if asked is None else asked
    return Clerk(HOST, "bpf", "snapshot").unanswered(
        tree(), seen, text, context(), (until, status), WALL
    )


@pytest.mark.parametrize("wiring", ["null", "pipe", "socket", "tty"])
@pytest.mark.parametrize("status", [0, 256, 9, None])
def test_every_receipt_is_as_published(wiring, status):
    """It keeps to the schema, and can be read back."""
    told = receipt(end(wiring=wiring), status)
    SCHEMA.validate(_plain(told))
    assert from_dict(_plain(told)).to_json() == told.to_json()


def _plain(told):

    return json.loads(told.to_json())


def test_it_says_who_asked_what_and_how_that_ended():
    """And that nobody waits, and nobody can answer any more."""
    told = receipt(end(b"done\nProceed? "), 256)
    assert (told.event, told.wait) == ("eof", told.id)
    assert (told.program.name, told.program.pid) == ("asks", 11)
    assert (told.prompt.text, told.prompt.source) == ("Proceed?", "syscall")
    assert (told.input.kind, told.input.wiring, told.input.target) == (
        "stream",
        "null",
        "/dev/null",
    )
    assert (told.input.holders, told.input.person) == ((), False)
    assert (told.evidence.grade, told.evidence.syscall) == ("kernel", "read")
    assert (told.evidence.wait_set, told.evidence.blocked_since) == (("0=/dev/null",), ASKED)
    assert told.resolution is not None
    assert (told.resolution.how, told.resolution.exit_status) == ("eof", 1)
    assert told.resolution.waited_s == 1.0
    assert told.monotonic_ns == 4 * NS
    assert told.agent is not None


def test_a_signal_is_told_as_a_shell_does():
    """128 and its number."""
    told = receipt(status=9)
    assert told.resolution is not None
    assert told.resolution.exit_status == 137


def test_a_long_question_is_cut_and_said_to_be():
    """It keeps to the limit of prompts, which is one of bytes."""
    told = receipt(asked="ä" * 3000 + "?")
    assert len(told.prompt.text.encode()) <= PROMPT_BYTES
    assert told.prompt.truncated


def test_it_leaves_an_open_wait_at_the_same_input_alone():
    """Another one can follow with the same clerk."""
    clerk = Clerk(HOST, "bpf")
    first = clerk.unanswered(tree(), end(), "a?", context(), (NS, 0), WALL)
    second = clerk.unanswered(tree(), end(pid=12), "b?", context(), (NS, 0), WALL)
    assert first.id != second.id


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (256, "asks[11] of codex asked “Proceed?” and its input was at its end, exit status 1"),
        (None, "asks[11] of codex asked “Proceed?” and its input was at its end"),
    ],
)
def test_people_read_one_line(status, line):
    """Who asked what, and the exit status if there is one."""
    assert describe(receipt(status=status)) == line


@given(st.binary(max_size=300), st.text(max_size=15))
def test_hostile_bytes_do_not_reach_a_terminal(said, comm):
    """Neither by the question nor by the name."""
    seen = end(said + b"? ", comm=comm)
    told = receipt(seen, asked=question(seen) or "none?")
    assert describe(told).isprintable()
    assert told.to_json().isascii()
    assert told.to_json().isprintable()


# -- when it is told -------------------------------------------------------------------------


class Source:
    """Tells of ends of inputs and of endings as a test says."""

    name, attach, period = "bpf", "snapshot", NS // 5

    def __init__(self):
        self.read, self.ended, self.alive = [], {}, True

    def moved(self, _tree, _now):
        """Only what a test says: otherwise the tree is at rest."""
        return bool(self.read or self.ended or not self.alive)

    def sample(self, _tree, now, **_more):
        """Nobody waits."""
        ended, self.ended = self.ended, {}
        return sample(10 * now / NS, ended=ended, alive=self.alive)

    def ends(self, _tree):
        """Those since the last time."""
        read, self.read = self.read, []
        return read

    def forget(self, _tree):
        """There is nothing."""


@pytest.fixture
def told():
    """A tracer that follows one tree: step(now, ends, ended) gives what was delivered."""
    source, delivered = Source(), []
    tracer = Tracer(source, HOST, delivered.append, lambda *_: context(), lambda: WALL)
    call = tree()
    tracer.follow(call)

    def step(now, *ends, ended=None, alive=True, stop=False):
        source.read += ends
        source.ended = {ProcessId(p, START): Ending(s) for p, s in (ended or {}).items()}
        source.alive = alive
        if stop:
            tracer.stop(call, round(now * NS))
        else:
            tracer.step(call, round(now * NS))
        given, delivered[:] = list(delivered), []
        return [(r.program.pid, r.resolution.exit_status) for r in given]

    return step


def test_it_is_told_when_its_program_has_ended(told):
    """With its status, not before."""
    assert told(3, end()) == []
    assert told(4) == []
    assert told(5, ended={12: 0}) == []
    assert told(6, ended={11: 256}) == [(11, 1)]
    assert told(7) == []


def test_it_is_told_at_once_of_a_program_that_has_ended_before_anybody_looked(told):
    """Both come with the same look."""
    assert told(3, end(), ended={11: 0}, alive=False) == [(11, 0)]


def test_it_is_told_while_the_program_goes_on(told):
    """After five seconds, without a status."""
    assert told(3, end()) == []
    assert told(8) == []
    assert told(8.2) == [(11, None)]
    assert told(9, ended={11: 0}) == []


def test_a_program_is_told_of_once(told):
    """However often it asks, and also if it asks again later."""
    assert told(3, end(b"a? "), end(b"b? ")) == []
    assert told(3.1, end(b"c? ")) == []
    assert told(3.2, ended={11: 0}) == [(11, 0)]
    assert told(3.3, end(b"d? ")) == []


def test_every_program_is_told_of(told):
    """Each with its own status."""
    assert told(3, end(), end(pid=12)) == []
    assert told(4, ended={12: 512}) == [(12, 2)]
    assert told(5, ended={11: 0}) == [(11, 0)]


def test_what_is_no_question_does_not_hide_one(told):
    """The end of some data, then a question."""
    assert told(3, end(own=False)) == []
    assert told(3.1, end()) == []
    assert told(3.2, ended={11: 0}) == [(11, 0)]


def test_it_is_told_when_the_tree_is_no_longer_followed(told):
    """Nothing that was seen is lost; how it ended is then not known."""
    assert told(3, end()) == []
    assert told(4, stop=True) == [(11, None)]
    assert told(5, stop=True) == []


def test_an_end_that_nobody_has_asked_for_yet_is_told_then_too(told):
    """It was read just before the tree was let go."""
    assert told(3, end(), stop=True) == [(11, None)]
