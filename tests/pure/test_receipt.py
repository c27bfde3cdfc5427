"""Receipts: a transition and its context in, what is published out."""

import dataclasses
import json
import types
import typing

import jsonschema
import pytest
from builders import NS, START, context, waiter
from hypothesis import given
from hypothesis import strategies as st

from receipt_trace.constants import ARGV_BYTES, PROMPT_BYTES
from receipt_trace.errors import exit_status
from receipt_trace.observation import Holder, ProcessId, Program
from receipt_trace.receipt import Clerk, Host, Receipt, from_dict, schema
from receipt_trace.rule import Confirmed, How, Resolved
from receipt_trace.terminal import InputKind, input_kind
from receipt_trace.trees import Agent, Tree

HOST = Host("host", "b00t-1d")
SCHEMA = jsonschema.Draft202012Validator(
    schema(), format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
)
SINCE, NOW = 5 * NS, 6 * NS


def tree(**more):
    """A tool call of an agent."""
    values = {"label": "demo", "agent": Agent("codex", 5, "t-1")}
    return Tree(ProcessId(10, START), **values | more)


def confirmed(who=None, **more):
    """A wait of one second."""
    values = {"time": NOW, "waiter": who or waiter(), "since": SINCE, "cpu_ticks": 2}
    return Confirmed(**values | more)


def wait(who=None, seen=None, clerk=None, of=None):
    """The receipt of a wait."""
    return (clerk or Clerk(HOST, "procfs")).wait(of or tree(), confirmed(who), seen or context())


def resolved(how=How.ANSWERED, status=None, clerk=None, wall=1_700_000_003 * NS):
    """The receipt of a wait and the record of its end."""
    clerk = clerk or Clerk(HOST, "procfs")
    begun = wait(clerk=clerk)
    return begun, clerk.resolution(Resolved(8 * NS, waiter(), SINCE, how, status), wall)


# -- what is in a receipt ----------------------------------------------------------------------


def test_a_wait_is_told_in_full():
    """Every field, with its value from where it belongs."""
    who = waiter(11, 12, wait_set=("0=/dev/pts/1",), timeout=0.5, relays=("sudo", "script"))
    seen = context(
        b"Proceed? [y/N] ",
        user="user",
        cgroup="/user.slice",
        container="c" * 64,
        container_name="box",
        inner_pid=8,
        root_inner_pid=7,
        holders=(Holder("sshd", 4), Holder("tmux", 3)),
        person=True,
        wall=1_700_000_000_123_456_789,
    )
    found = wait(who, seen).to_dict()
    identity = found["id"]
    assert found == {
        "version": 1,
        "id": identity,
        "wait": identity,
        "event": "wait",
        "time": "2023-11-14T22:13:20.123Z",
        "monotonic_ns": NOW,
        "host": {"hostname": "host", "boot_id": "b00t-1d"},
        "agent": {"name": "codex", "pid": 5, "session": "t-1"},
        "tree": {
            "label": "demo",
            "root_pid": 10,
            "root_start": START,
            "command": ("sh", "-c", "asks --twice"),
            "cwd": "/home/user",
            "uid": 1000,
            "user": "user",
            "cgroup": "/user.slice",
            "container_id": "c" * 64,
            "container_name": "box",
            "root_inner_pid": 7,
        },
        "program": {
            "name": "asks",
            "exe": "/usr/bin/asks",
            "pid": 11,
            "tid": 12,
            "inner_pid": 8,
            "argv": ("asks", "--twice"),
            "relays": ("sudo", "script"),
        },
        "input": {
            "kind": "line",
            "wiring": "tty",
            "fd": 0,
            "target": "/dev/pts/1",
            "holders": ({"name": "sshd", "pid": 4}, {"name": "tmux", "pid": 3}),
            "person": True,
        },
        "prompt": {
            "text": "Proceed? [y/N]",
            "truncated": False,
            "source": "output",
            "redacted": False,
        },
        "evidence": {
            "grade": "syscall",
            "syscall": "read",
            "wait_set": ("0=/dev/pts/1",),
            "timeout_s": 0.5,
            "quiet_s": 1.0,
            "cpu_ticks": 2,
            "blocked_since": SINCE,
            "source": "procfs",
            "attach": None,
        },
        "effects": {"tree_ended": False, "ended_by": "none", "prior": "unverified"},
        "advice": found["advice"],
        "resolution": None,
    }


def test_a_resolution_repeats_its_wait_and_says_how_it_ended():
    """It has an id and a time of its own, and names the wait it ends."""
    begun, ended = resolved(How.EXITED, 256)
    assert ended == dataclasses.replace(
        begun,
        id=ended.id,
        event="resolved",
        time="2023-11-14T22:13:23.000Z",
        monotonic_ns=8 * NS,
        resolution=ended.resolution,
    )
    assert ended.wait == begun.id != ended.id
    assert dataclasses.asdict(ended.resolution) == {
        "how": "exited",
        "waited_s": 3.0,
        "exit_status": 1,
    }


@pytest.mark.parametrize("how", How)
def test_only_we_end_a_tree_by_interrupting(how):
    """Every other end is somebody else's doing."""
    _, ended = resolved(how)
    ours = how is How.INTERRUPTED
    assert (ended.effects.tree_ended, ended.effects.ended_by) == (
        ours, "receipt-trace" if ours else "none",
    )  # fmt: skip
    assert ended.resolution.how == how.value


def test_a_resolution_without_its_wait_is_not_written():
    """Nor is a second one."""
    clerk = Clerk(HOST, "procfs")
    end = Resolved(8 * NS, waiter(), SINCE, How.LOST)
    assert clerk.resolution(end, 0) is None
    wait(clerk=clerk)
    assert clerk.resolution(end, 0) is not None
    assert clerk.resolution(end, 0) is None


def test_a_tree_of_nobody_has_no_agent():
    """And no label."""
    found = wait(of=tree(agent=None, label=None))
    assert (found.agent, found.tree.label) == (None, None)


def test_a_root_without_arguments_is_named_by_its_program():
    """It cleared its command line."""
    found = wait(seen=context(root=Program("cleared")))
    assert found.tree.command == ("cleared",)


def test_what_nobody_could_see_is_no_prompt():
    """The source says so, whatever bytes are there."""
    found = wait(seen=context(b"Go on? ", output_source="none"))
    assert dataclasses.astuple(found.prompt) == ("", False, "none", False)


def test_output_that_shows_nothing_is_no_prompt():
    """Nothing was asked in words."""
    assert wait(seen=context(b"\x1b[2K\r\n")).prompt.source == "none"


def test_the_program_that_was_alone_has_done_nothing_seen():
    """Anything else is unverified."""
    assert wait(seen=context(busy=False)).effects.prior == "none-seen"
    assert wait(seen=context(busy=True)).effects.prior == "unverified"


# -- kinds -------------------------------------------------------------------------------------

KINDS = [
    # wiring, dead, canonical, echo, drawn
    ("tty", False, True, True, False, "line"),
    ("tty", False, True, True, True, "line"),
    ("tty", False, True, False, False, "secret"),
    ("tty", False, True, False, True, "secret"),
    ("tty", False, False, False, False, "key"),
    ("tty", False, False, True, False, "key"),
    ("tty", False, False, False, True, "screen"),
    ("tty", False, None, None, False, "line"),
    ("tty", False, None, None, True, "line"),
    ("pipe", False, None, None, False, "stream"),
    ("pipe", False, None, None, True, "stream"),
    ("socket", False, None, None, False, "stream"),
    ("tty", True, True, True, False, "dead"),
    ("pipe", True, None, None, False, "dead"),
]


@pytest.mark.parametrize(("wiring", "dead", "canonical", "echo", "drawn", "expected"), KINDS)
def test_the_terminal_says_what_kind_of_input_is_wanted(
    wiring, dead, canonical, echo, drawn, expected
):
    """The line discipline and the screen at that moment."""
    assert input_kind(wiring, dead, canonical, echo, drawn) == expected


@pytest.mark.parametrize(
    ("who", "seen", "kind"),
    [
        (waiter(), context(b"Name: "), "line"),
        (waiter(), context(b"Password: ", echo=False), "secret"),
        (waiter(), context(b"Pick: ", canonical=False, echo=False), "key"),
        (waiter(), context(b"\x1b[2J\x1b[Hmenu", canonical=False, echo=False), "screen"),
        (waiter(), context(b"x", canonical=False, echo=False, alternate=True), "screen"),
        (waiter(wiring="pipe"), context(b"Name: ", canonical=None, echo=None), "stream"),
        (waiter(dead=True), context(b"Name: "), "dead"),
    ],
)
def test_a_receipt_has_the_kind_of_its_moment(who, seen, kind):
    """Modes and screen come from its context."""
    assert wait(who, seen).input.kind == kind


def test_every_kind_has_an_advice_of_its_own():
    """One sentence or two, ended; a guess by the terminal alone is worded as one."""
    cases = [
        wait(waiter(), context()),
        wait(waiter(), context(echo=False)),
        wait(waiter(), context(canonical=False)),
        wait(waiter(), context(canonical=False, alternate=True)),
        wait(waiter(wiring="pipe"), context()),
        wait(waiter(dead=True), context()),
        wait(waiter(grade="terminal"), context()),
    ]
    advice = [found.advice for found in cases]
    assert len(set(advice)) == len(cases)
    assert all(sentence.endswith(".") for sentence in advice)
    assert "seems to" in advice[-1]
    assert wait(waiter(grade="terminal"), context(echo=False)).advice == advice[1]


# -- ids ---------------------------------------------------------------------------------------


def test_ids_sort_by_time():
    """As text, over the whole time that 48 bits of milliseconds have."""
    walls = [0, 1_000_000, 1_699_999_999_999 * 10**6, 1_700_000_000_000 * 10**6, 2**47 * 10**6]
    ids = [wait(seen=context(wall=wall)).id for wall in walls]
    assert ids == sorted(ids)


def test_a_resolution_sorts_after_its_wait():
    """It was written later."""
    begun, ended = resolved()
    assert begun.id < ended.id


def test_ids_are_made_of_what_they_name():
    """The same wait has the same id wherever it is written; another has another."""
    assert wait().id == wait().id
    others = [
        wait(waiter(11)),
        wait(waiter(tid=11)),
        wait(waiter(key="pts:2")),
        wait(seen=context(wall=1)),
        wait(clerk=Clerk(Host("host", "another boot"), "procfs")),
        Clerk(HOST, "procfs").wait(tree(), confirmed(since=SINCE + 1), context()),
    ]
    assert len({wait().id, *(found.id for found in others)}) == 7


# -- bounds ------------------------------------------------------------------------------------


def argv_of(*arguments):
    """A command line as a receipt tells it."""
    return wait(seen=context(program=Program("x", argv=arguments))).program.argv


def test_a_short_command_line_is_whole():
    """Also with empty arguments."""
    assert argv_of("a", "", "b c") == ("a", "", "b c")


def test_a_long_command_line_is_cut_and_says_so():
    """What was left out stands as an ellipsis at the end of the argument it was cut in."""
    found = argv_of("cc", "x" * 10_000, "never")
    assert found[0] == "cc"
    assert found[1].startswith("xxx")
    assert found[1].endswith("x…")
    assert len(found) == 2
    assert ARGV_BYTES - 4 <= sum(len(a.encode()) + 1 for a in found) <= ARGV_BYTES


def test_a_cut_does_not_split_a_character():
    """Three bytes each."""
    (found,) = argv_of("€" * 2000)
    assert set(found[:-1]) == {"€"}
    assert found[-1] == "…"


def test_many_small_arguments_are_cut_too():
    """The bound is on the whole."""
    found = argv_of(*["a"] * 5000)
    assert found[-1] == "…"
    assert set(found[:-1]) == {"a"}
    assert 2000 < len(found) < 2050


@given(st.lists(st.integers(0, 4200), max_size=4))
def test_no_command_line_is_longer_than_its_bound(lengths):
    """However its arguments are cut up."""
    found = argv_of(*["x" * length for length in lengths])
    assert sum(len(a.encode()) for a in found) <= ARGV_BYTES


@pytest.mark.parametrize("first", range(ARGV_BYTES - 5, ARGV_BYTES + 2))
def test_a_command_line_cut_near_its_bound_stays_within(first):
    """Where there is hardly room left for the ellipsis."""
    found = argv_of("x" * first, "next")
    assert sum(len(a.encode()) for a in found) <= ARGV_BYTES
    assert found[-1].endswith("…")


@pytest.mark.parametrize(
    ("status", "expected"),
    [(0, 0), (256, 1), (255 << 8, 255), (2, 130), (9, 137), (0x80 | 11, 139), (15, 143)],
)
def test_an_exit_status_is_as_a_shell_tells_it(status, expected):
    """128 and the signal, dumped or not."""
    assert exit_status(status) == expected
    _, ended = resolved(How.EXITED, status)
    assert ended.resolution.exit_status == expected


# -- the schema ----------------------------------------------------------------------------------

HOSTILE = "\x1b]0;pwn\x07\n\r\x00\x7f\x85\u2028\u202e\udc80\U0001f600\"\\'</script>"


def hostile_receipts():
    """A wait and its end in which every text is an attack."""
    bad = HOSTILE.replace("\udc80", "\\x80")  # what comes from /proc is valid UTF-8
    program = Program(bad, bad, (bad, bad), bad)
    seen = context(
        bad.encode() * 300, program=program, root=program, cgroup=bad, container=bad, user=bad,
        container_name=bad, holders=(Holder(bad, 5),),
    )  # fmt: skip
    who = waiter(comm=bad, target=bad, wait_set=(bad,), relays=(bad,))
    clerk = Clerk(Host(bad, bad), bad, bad)
    begun = clerk.wait(tree(label=bad, agent=Agent(bad, 5, bad)), confirmed(who), seen)
    return begun, clerk.resolution(Resolved(8 * NS, who, SINCE, How.KILLED, 9), 8 * NS)


ALL = {
    "a wait": wait(),
    "a wait of nobody": wait(of=tree(agent=None, label=None), seen=context(uid=None)),
    "a resolution": resolved(How.EXITED, 256)[1],
    "a lost one": resolved(How.LOST)[1],
    "a hostile wait": hostile_receipts()[0],
    "a hostile resolution": hostile_receipts()[1],
}


@pytest.mark.parametrize("receipt", ALL.values(), ids=ALL)
def test_every_receipt_keeps_to_its_schema(receipt):
    """As it is read back from its line."""
    SCHEMA.validate(json.loads(receipt.to_json()))


@pytest.mark.parametrize("receipt", ALL.values(), ids=ALL)
def test_a_receipt_is_one_printable_line_of_ascii(receipt):
    """Nothing in it can act on a terminal or begin another line of a log."""
    line = receipt.to_json()
    assert line.isascii()
    assert [c for c in line if not c.isprintable()] == []
    assert json.loads(line) == json.loads(json.dumps(receipt.to_dict()))


# -- read back -----------------------------------------------------------------------------------


@pytest.mark.parametrize("receipt", ALL.values(), ids=ALL)
def test_a_receipt_is_the_same_when_it_is_read_back(receipt):
    """From its values and from its line."""
    assert from_dict(receipt.to_dict()) == receipt
    assert from_dict(json.loads(receipt.to_json())) == receipt


def test_fields_of_a_later_version_are_left_out():
    """Wherever they stand."""
    begun, ended = resolved(How.EXITED, 256)
    for receipt in (begun, ended, wait(seen=context(holders=(Holder("tmux", 3),)))):
        values = json.loads(receipt.to_json())
        parts = [values, *(v for v in values.values() if isinstance(v, dict))]
        for part in [*parts, *values["input"]["holders"]]:
            part["later"] = {"than": "this"}
        assert from_dict(values) == receipt


def test_what_is_no_receipt_is_refused():
    """By what is missing, or is something else."""
    fine = json.loads(resolved()[1].to_json())
    for name in fine:
        with pytest.raises(KeyError):
            from_dict({n: v for n, v in fine.items() if n != name})
    parts = [name for name, value in fine.items() if isinstance(value, dict)]
    assert "resolution" in parts
    for name in parts:
        for wrong in ([], "text", 7):
            with pytest.raises(TypeError):
                from_dict({**fine, name: wrong})
        with pytest.raises(KeyError):
            from_dict({**fine, name: {}})
    for wrong in ([], None, "text", 7):
        with pytest.raises(TypeError):
            from_dict(wrong)
    for wrong in ([7], 7, ["x"]):
        with pytest.raises(TypeError):
            from_dict({**fine, "input": {**fine["input"], "holders": wrong}})


def test_a_hostile_prompt_is_bounded_and_printable():
    """It is what programs print."""
    text = hostile_receipts()[0].prompt.text
    assert len(text.encode()) <= PROMPT_BYTES
    assert all(c == "\n" or c.isprintable() for c in text)


def test_the_schema_is_a_schema():
    """And refuses what is none of ours."""
    jsonschema.Draft202012Validator.check_schema(schema())
    assert not SCHEMA.is_valid({})
    assert not SCHEMA.is_valid({**json.loads(wait().to_json()), "version": 2})
    assert not SCHEMA.is_valid({**json.loads(wait().to_json()), "event": "question"})


def parts(annotation):
    """The dataclass behind an annotation, if there is one."""
    options = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else ()
    return next((a for a in (annotation, *options) if dataclasses.is_dataclass(a)), None)


def fields(cls, path=""):
    """Every field of a dataclass and of those inside it, with its path."""
    found = {}
    for name, annotation in typing.get_type_hints(cls).items():
        found[f"{path}{name}"] = annotation
        inner = parts(annotation)
        if inner is not None:
            found |= fields(inner, f"{path}{name}.")
    return found


def properties(part, path=""):
    """Every property of a schema and of those inside it, with its path; all are required."""
    found = {}
    assert sorted(part["required"]) == sorted(part["properties"])
    for name, inner in part["properties"].items():
        found[f"{path}{name}"] = inner
        if "properties" in inner:
            found |= properties(inner, f"{path}{name}.")
    return found


def test_schema_and_receipt_have_the_same_fields():
    """In the same order, however deep, and null where the other says None."""
    mine, published = fields(Receipt), properties(schema())
    assert list(mine) == list(published)
    for path, annotation in mine.items():
        optional = type(None) in typing.get_args(annotation)
        assert ("null" in published[path].get("type", ())) == optional, path


def test_the_schema_knows_every_word_of_ours():
    """Kinds and ends are listed once there and once here."""
    known = properties(schema())
    assert known["input.kind"]["enum"] == [kind.value for kind in InputKind]
    assert known["resolution.how"]["enum"] == [how.value for how in How]
