"""Traces: what was observed goes in, the receipts of that day come out.

``RECEIPT_TRACE_UPDATE_GOLDEN=1`` writes the golden files again; look at the difference.
"""

import contextlib
import io
import json
import os
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from receipt_trace.cli import main
from receipt_trace.constants import SAMPLE_PERIOD_NS
from receipt_trace.errors import UsageError
from receipt_trace.observation import (
    Context,
    Ending,
    Holder,
    ProcessId,
    Program,
    Sample,
    Waiter,
    WaiterKey,
)
from receipt_trace.receipt import Host, schema
from receipt_trace.recording import Recorder, replay
from receipt_trace.rule import How
from receipt_trace.tracer import Tracer
from receipt_trace.trees import Agent, Tree

HERE = Path(__file__).parent / "traces"
UPDATE = bool(os.environ.get("RECEIPT_TRACE_UPDATE_GOLDEN"))
RECORDED = sorted(p.stem for p in HERE.glob("*.jsonl"))
NS = 1_000_000_000
HOST = Host("host", "boot")


def golden(name, text):
    """The golden file of a name, written first if that was asked for."""
    path = HERE / name
    if UPDATE:
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8")


# -- real traces -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDED)
def test_a_trace_gives_its_receipts(name, capfd):
    """The same ones, with the same ids, byte for byte."""
    assert main(["replay", str(HERE / f"{name}.jsonl")]) == 0
    out = capfd.readouterr().out
    assert out == golden(f"{name}.receipts", out)


@pytest.mark.parametrize("name", RECORDED)
def test_a_trace_reads_like_a_story(name, capfd):
    """A line for each wait and each end of one."""
    assert main(["replay", "--text", str(HERE / f"{name}.jsonl")]) == 0
    out = capfd.readouterr().out
    assert out == golden(f"{name}.txt", out)


@pytest.mark.parametrize("name", RECORDED)
def test_the_receipts_of_a_trace_keep_to_their_schema(name):
    """Each of them."""
    with (HERE / f"{name}.jsonl").open() as lines:
        receipts = list(replay(lines, name))
    assert receipts
    for receipt in receipts:
        jsonschema.validate(json.loads(receipt.to_json()), schema())


@pytest.mark.parametrize("name", RECORDED)
def test_a_trace_that_was_cut_gives_the_beginning_of_its_receipts(name):
    """Recording may be killed at any line; what was known until then stays."""
    lines = (HERE / f"{name}.jsonl").read_text().splitlines()
    whole = [r.to_json() for r in replay(lines, name)]
    for end in range(1, len(lines)):
        found = [r.to_json() for r in replay(lines[:end], name)]
        assert found == whole[: len(found)]


# -- what is no trace ------------------------------------------------------------------------------

HEADER = '{"trace":1,"version":"0.1.0","source":"procfs","host":{"hostname":"h","boot_id":"b"}}'
WRONG = {
    "another format": ('{"trace":2,"source":"x","host":{}}', "line 1: .*format 2, this version"),
    "no JSON": ("what is this", "line 1"),
    "no trace": ('{"hello": 1}', "line 1"),
    "a list": ("[]", "line 1"),
    "a line that is cut": (HEADER + '\n{"tree":[1,', "line 2"),
    "a record of nothing": (HEADER + "\n{}", "line 2"),
    "a sample of no tree": (HEADER + '\n\n{"sample":{},"of":[1,2],"wall":0}', "line 3"),
    "nothing": ("", "is empty"),
    "blank lines": ("\n \n", "is empty"),
}


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG)
def test_what_is_no_trace_is_told_with_its_line(text, said):
    """And what makes one."""
    with pytest.raises(UsageError, match=said) as caught:
        list(replay(text.splitlines(), "trace.jsonl"))
    assert str(caught.value).startswith("trace.jsonl")
    assert "watch --record" in str(caught.value)


lines = st.text(max_size=60) | st.sampled_from(
    [HEADER, '{"tree":[1,2],"label":null,"agent":null}', '{"stop":1,"of":[1,2],"how":"x"}', "null"]
)


@given(st.lists(lines, max_size=5))
def test_no_file_makes_replay_fail_otherwise(rows):
    """Whatever somebody calls a trace."""
    with contextlib.suppress(UsageError):
        list(replay(rows, "trace"))


# -- what is written is what was seen ----------------------------------------------------------------

ROOT = ProcessId(10, 500)
KEYS = (WaiterKey(10, 500, 10, "pts:1"), WaiterKey(11, 501, 12, "pipe:[7]"))


class Script:
    """A source that gives samples that were thought up."""

    name = "script"
    attach = None
    period = SAMPLE_PERIOD_NS

    def __init__(self, samples):
        self._samples = iter(samples)
        self.forgotten = []

    def sample(self, tree, now, **_):
        """The next one."""
        return next(self._samples)

    def moved(self, tree, now):
        """Always."""
        return True

    def ends(self, tree):
        """None."""
        return []

    def forget(self, tree):
        """Noted."""
        self.forgotten.append(tree)


def read_context(tree, waiter):
    """What a wait is told with: anything that a program can make of itself."""
    name = f"{waiter.comm}\x1b\n\U0001f600"
    return Context(
        Program(
            waiter.comm,
            "/usr/bin/asks",
            ("asks", name),
            "/home",
        ),
        Program("sh", None, ("sh", "-c", "x"), None),
        uid=1000,
        user=name,
        container="c" * 64,
        container_name=name,
        inner_pid=2,
        root_inner_pid=1,
        holders=(Holder(name, 5), Holder("tmux", 3)),
        person=True,
        canonical=True,
        echo=False,
        output=b"\xff\x00Name? \x1b[0m",
        output_source="output",
        terminal_output=True,
        columns=132,
        lines=50,
        wall=1_700_000_000 * NS,
        busy=False,
    )


def run_live(samples, how=How.LOST, tree=None):
    """What a tracer delivers, and what it records meanwhile."""
    written = io.StringIO()
    delivered = []
    moments = iter(range(1_700_000_000 * NS, 1_800_000_000 * NS, 123_456_789))
    tracer = Tracer(
        Script(samples),
        HOST,
        delivered.append,
        read_context,
        lambda: next(moments),
        Recorder(written, HOST, "script"),
    )
    tree = tree or Tree(ROOT, label="dêmo", agent=Agent("codex", 5, "t-1"))
    tracer.follow(tree)
    for sample in samples:
        tracer.step(tree, sample.time)
    tracer.stop(tree, samples[-1].time + 1 if samples else 0, how)
    return delivered, written.getvalue()


@st.composite
def traces(draw):
    """Rows of samples with waits in them, and pauses between."""
    moment, samples = 0, []
    for consumed in range(draw(st.integers(1, 6))):
        key = draw(st.sampled_from(KEYS))
        waiter = Waiter(
            key,
            draw(st.sampled_from(["asks", "a\u0000b", "größe", "\\xff"])),
            draw(st.sampled_from(["tty", "pipe"])),
            0,
            key.input,
            "read",
            (f"0={key.input}",),
            draw(st.none() | st.floats(0, 100)),
            draw(st.sampled_from([(), ("sudo", "script")])),
            dead=draw(st.booleans()),
            consumed=draw(st.none() | st.just(consumed)),
        )
        waits, rests = draw(st.integers(0, 15)), draw(st.integers(0, 8))
        runs = range(waits, waits + draw(st.integers(0, 5)))
        gone = draw(st.sampled_from([None, 0, 9, 256]))
        for number in range(waits + rests):
            moment += 100_000_000
            first = number == waits
            samples.append(
                Sample(
                    time=moment,
                    output=draw(st.sampled_from([0, 0, 0, 0, 0, 0, 7])),
                    cpu_ticks=draw(st.sampled_from([0, 0, 0, 1])),
                    waiters=(waiter,) if number < waits else (),
                    running=frozenset({key[:3]} if number in runs else ()),
                    ended={ProcessId(*key[:2]): Ending(gone)}
                    if first and draw(st.booleans())
                    else {},
                    answered=frozenset({key.input})
                    if first and draw(st.booleans())
                    else frozenset(),
                    closed=frozenset({key.input}) if first and draw(st.booleans()) else frozenset(),
                    suspected=draw(st.integers(0, 2)),
                    blind=draw(st.integers(0, 2)),
                    alive=draw(st.booleans()),
                )
            )
    return samples


@settings(deadline=None)  # the machine may be busy
@given(traces(), st.sampled_from([How.LOST, How.INTERRUPTED]))
def test_a_replay_equals_what_was_delivered_live(samples, how):
    """With the same ids, times and prompts, though samples without a wait are left out."""
    delivered, written = run_live(samples, how)
    assert list(replay(written.splitlines(), "trace")) == delivered


def quiet(count, start=0):
    """A row of samples in which a thread waits."""
    waiter = Waiter(KEYS[0], "asks", "tty", 0, "/dev/pts/1", "read")
    return [Sample(time=(start + n) * NS // 10, waiters=(waiter,)) for n in range(count)]


def empty(count, start):
    """A row of samples in which nobody does."""
    return [Sample(time=(start + n) * NS // 10) for n in range(count)]


def test_a_wait_and_its_end_are_delivered_and_recorded():
    """So that the property above is not about nothing."""
    delivered, written = run_live([*quiet(12), *empty(3, 12)])
    assert [r.event for r in delivered] == ["wait", "resolved"]
    assert delivered[0].tree.label == "dêmo"
    assert delivered[0].prompt.text.endswith("Name?")
    assert [r.to_json() for r in replay(written.splitlines(), "t")] == [
        r.to_json() for r in delivered
    ]


def test_a_thread_that_ran_on_has_left_its_wait_on_replay_too():
    """The samples after a wait are kept for as long as the rule remembers it."""
    ran = [Sample(time=(5 + n) * NS // 10, running=frozenset({KEYS[0][:3]})) for n in range(4)]
    delivered, written = run_live([*quiet(5), *ran, *quiet(9, 9)], tree=Tree(ROOT))
    assert delivered == []
    assert list(replay(written.splitlines(), "t")) == []


def test_a_trace_does_not_grow_while_nobody_waits():
    """A thousand samples of work take a few lines."""
    _, written = run_live([*quiet(3), *empty(1000, 3), *quiet(3, 1003)])
    assert written.count('"sample"') < 30


def test_a_trace_is_lines_of_ascii_json():
    """Each for itself, whatever the names are."""
    _, written = run_live(quiet(12))
    assert written.isascii()
    assert all(isinstance(json.loads(line), dict) for line in written.splitlines())


def test_a_trace_is_complete_at_every_moment():
    """What is written is not held back: the recorder may be killed."""

    class Pipe(io.StringIO):
        flushed = 0

        def flush(self):
            self.flushed = len(self.getvalue())

    file = Pipe()
    recorder = Recorder(file, HOST, "script")
    recorder.tree(Tree(ROOT))
    assert file.flushed == len(file.getvalue()) > 0


def test_the_output_of_a_trace_is_every_byte():
    """It is drawn again on replay, so it may not be mended."""
    _, written = run_live(quiet(12))
    (context,) = (json.loads(line) for line in written.splitlines() if '"context"' in line)
    assert context["context"]["output"] == "/wBOYW1lPyAbWzBt"


# -- the tracer's own turns --------------------------------------------------------------------------


def tracer_of(samples):
    """A tracer over a script, with its tree."""
    source, delivered = Script(samples), []
    tracer = Tracer(source, HOST, delivered.append, read_context, lambda: 0)
    tree = Tree(ROOT)
    tracer.follow(tree)
    return tracer, tree, source, delivered


def test_the_next_look_is_a_period_away_or_when_a_wait_ripens():
    """Whichever comes first, and never in the past."""
    tracer, tree, _, _ = tracer_of([*quiet(1), *quiet(1, 9.5), *quiet(1, 10)])
    assert tracer.step(tree, 0) == NS // 10
    assert tracer.step(tree, 95 * NS // 100) == NS
    assert tracer.step(tree, NS) == NS + NS // 10


def test_the_last_look_before_a_wait_is_a_fresh_one():
    """Everything is looked at again before something is claimed."""
    asked = []

    class Asked(Script):
        def sample(self, tree, now, *, fresh=False, **_):
            asked.append(fresh)
            return super().sample(tree, now)

    tracer = Tracer(Asked(quiet(12)), HOST, lambda _: None, read_context, lambda: 0)
    tree = Tree(ROOT)
    tracer.follow(tree)
    for number in range(12):
        tracer.step(tree, number * NS // 10)
    assert asked == [False] * 10 + [True, False]


def test_a_wait_still_stands_or_does_not():
    """One look more decides, and what it saw of endings is told at the next step."""
    ended = {ROOT: Ending(9)}
    tracer, tree, _, delivered = tracer_of(
        [*quiet(11), *quiet(1, 11), Sample(time=12 * NS // 10, ended=ended), *empty(1, 13)]
    )
    for number in range(11):
        tracer.step(tree, number * NS // 10)
    assert tracer.still(tree, 11 * NS // 10)
    assert not tracer.still(tree, 12 * NS // 10)
    assert tree.ended == ended
    assert [r.event for r in delivered] == ["wait"]


def test_a_tree_that_is_no_longer_followed_is_let_go():
    """Its wait is resolved, its source forgets it, and a second stop does nothing."""
    tracer, tree, source, delivered = tracer_of(quiet(11))
    for number in range(11):
        tracer.step(tree, number * NS // 10)
    tracer.stop(tree, 2 * NS, How.INTERRUPTED)
    tracer.stop(tree, 3 * NS)
    assert [r.resolution and r.resolution.how for r in delivered] == [None, "interrupted"]
    assert source.forgotten == [tree]
    assert tracer.waits(tree) == ()


def test_what_is_suspected_and_blind_is_counted():
    """As the last sample saw it."""
    samples = [Sample(time=0, suspected=2, blind=1), Sample(time=1, blind=3)]
    tracer, tree, _, _ = tracer_of(samples)
    tracer.step(tree, 0)
    assert tracer.counts(tree) == (2, 1)
    tracer.step(tree, 1)
    assert tracer.counts(tree) == (0, 3)


def test_a_tree_that_takes_long_to_look_at_is_left_alone_longer():
    """Nine times as long as the look took, so that it costs a tenth of a core at most."""
    tracer, tree, _, _ = tracer_of([])
    assert tracer.pace(tree, due=100, began=0, ended=20) == 100
    assert tracer.pace(tree, due=200, began=100, ended=120) == 300
    assert tracer.pace(tree, due=900, began=300, ended=330) == 900


def test_one_look_that_takes_long_does_not_count():
    """Something was loaded for it; the looks before and after were short."""
    tracer, tree, _, _ = tracer_of([])
    paces = [tracer.pace(tree, 1000, 0, 1), tracer.pace(tree, 1000, 0, 500)]
    assert [*paces, tracer.pace(tree, 1000, 600, 601)] == [1000, 1000, 1000]


def test_a_tree_that_is_not_followed_has_no_pace():
    """It ended while it was looked at."""
    tracer, tree, _, _ = tracer_of([])
    tracer.stop(tree, 0)
    assert tracer.pace(tree, 100, 0, 90) == 100
