"""Lifecycle events from the kernel's records, over a ring that a test fills."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receipt_trace.errors import UnobservableError
from receipt_trace.kernel.loader import Kernel
from receipt_trace.kernel.records import (
    LAYOUTS,
    EofRecord,
    EventRecord,
    Kind,
    MemberRecord,
    ProgramRecord,
)
from receipt_trace.observation import Beginning, Exec, Exit, Fork, ProcessId, Resync, Stir
from receipt_trace.sources.events import KernelEvents

START_NS, START = 1_234_567_890, 123  # ticks are 10 ms


def event(kind, tgid=20, parent=0, status=0, start=START_NS):
    """A record of a process."""
    layout = LAYOUTS[EventRecord]
    return layout.pack(kind, layout.size, tgid, parent, status, start)


class Source:
    """A kernel: its ring, and what it has lost."""

    parse = Kernel.parse

    def __init__(self):
        self.ring, self.records, self.lost = self, [], 0

    def read(self, limit):
        """Those of the ring."""
        taken, self.records = self.records[:limit], self.records[limit:]
        return taken

    def take_stock(self):
        """Of what the programs counted."""


@pytest.fixture
def kernel():
    """A kernel in which nothing has happened."""
    return Source()


def test_fork_exec_and_exit_are_told(kernel):
    """In order, the child with its identity, the end with its wait status."""
    kernel.records = [
        event(Kind.FORK, parent=10),
        event(Kind.EXEC),
        event(Kind.EXIT, status=0x8B),
    ]
    assert KernelEvents(kernel, pytest.fail).read() == [
        Fork(10, 20, ProcessId(20, START)),
        Exec(20),
        Exit(20, 0x8B),
    ]


def program(arguments=b"", environment=b"", **more):
    """What the root of a tree has become, as the ring has it."""
    layout = LAYOUTS[ProgramRecord]
    values = dict.fromkeys(ProgramRecord._fields, 0) | {
        "kind": Kind.PROGRAM, "size": layout.size, "tgid": 20, "parent": 10, "session": 20, "uid": 1000,
        "type": 0o020666, "device": 1 << 20 | 3, "start": START_NS, "comm": b"bash\0\0", "times": 2,
        "argument_bytes": len(arguments), "environment_bytes": len(environment),
        "arguments": arguments.ljust(1024, b"?"), "environment": environment.ljust(3072, b"?"),
    }  # fmt: skip
    return layout.pack(*ProgramRecord(**values | more))


def test_what_a_root_has_become_comes_with_its_exec(kernel):
    """All that its discovery asks for, for it may be gone by now."""
    kernel.records = [program(b"bash\0-c\0rm -i f\0", b"A=1\0AI_AGENT=x=y\0junk\0")]
    (told,) = KernelEvents(kernel, pytest.fail).read()
    assert told == Exec(
        20,
        Beginning(
            ProcessId(20, START), 10, "bash", ("bash", "-c", "rm -i f"),
            {"A": "1", "AI_AGENT": "x=y"}, "null", True, 1000, 2,
        ),
    )  # fmt: skip


def test_what_did_not_fit_is_cut(kernel):
    """Of the arguments the end is missing, of the environment its beginning, in the midst of a name."""
    environment = b"ECRET=1\0B=2\0".rjust(3072, b"S")
    kernel.records = [program(b"a\0".ljust(1024, b"b"), environment, session=10)]
    (told,) = KernelEvents(kernel, pytest.fail).read()
    assert told.began.argv == ("a", "b" * 1022)
    assert told.began.environment == {"B": "2"}
    assert not told.began.leads_session


@pytest.mark.parametrize(
    ("mode", "device", "stdin"),
    [
        (0o010600, 0, "pipe"),
        (0o140777, 0, "socket"),
        (0o100644, 0, "file"),
        (0o020666, 1 << 20 | 3, "null"),
        (0o020620, 136 << 20 | 5, "tty"),
        (0o020666, 5 << 20, "tty"),
        (0o020666, 10 << 20 | 229, ""),
        (0, 0, ""),
    ],
)
def test_what_it_was_given_to_read_has_a_word(kernel, mode, device, stdin):
    """The same as everywhere; what is none of them, or closed, has none."""
    kernel.records = [program(type=mode, device=device)]
    (told,) = KernelEvents(kernel, pytest.fail).read()
    assert told.began.stdin == stdin


def test_a_loss_is_told_once(kernel):
    """Whichever of the three it is, after what was told; and again when more is lost."""
    events = KernelEvents(kernel, pytest.fail)
    kernel.records, kernel.lost = [event(Kind.EXEC)], 3
    assert events.read() == [Exec(20), Resync()]
    assert events.read() == []
    kernel.lost = 4
    assert events.read() == [Resync()]


def test_a_call_makes_its_tree_worth_a_look(kernel):
    """By what the tree was marked with: who called does not matter."""
    kernel.records = [event(Kind.CALL, parent=10), event(Kind.CALL, parent=11)]
    assert KernelEvents(kernel, pytest.fail).read() == [Stir(10), Stir(11)]


def test_the_end_of_an_input_is_no_event_of_a_process(kernel):
    """It goes to who asked for it."""
    layout = LAYOUTS[EofRecord]
    record = EofRecord._make(layout.unpack(bytes(range(layout.size))))
    record = record._replace(kind=Kind.EOF, size=layout.size)
    kernel.records = [layout.pack(*record), event(Kind.EXEC)]
    ended = []
    assert KernelEvents(kernel, ended.append).read() == [Exec(20)]
    assert ended == [record]


def test_a_turn_is_bounded(kernel):
    """Sampling goes on in a storm; what is left comes in the next turns."""
    events = KernelEvents(kernel, pytest.fail)
    kernel.records = [event(Kind.EXEC)] * 20_000
    turns = [len(events.read()) for _ in range(4)]
    assert sum(turns) == 20_000
    assert max(turns) < 10_000


# -- what is not a record --------------------------------------------------------------------

WHOLE = st.builds(
    lambda layout, kind, rest: layout.pack(kind, layout.size, *rest),
    st.just(LAYOUTS[MemberRecord]),
    st.just(Kind.MEMBER),
    st.tuples(st.integers(0, 9), st.integers(-2, 9), st.integers(0, 9), st.integers(0, 9)),
)
HEAD = st.builds(
    lambda kind, size: kind.to_bytes(2, "little") + size.to_bytes(2, "little"),
    st.integers(0, 20),
    st.integers(0, 200),
)


@given(st.lists(st.one_of(WHOLE, HEAD, st.binary(max_size=40)), max_size=6).map(b"".join))
def test_whatever_comes_is_records_or_refused(raw):
    """Never anything else, and never for ever."""
    found = []
    try:
        found.extend(Kernel.parse(None, raw))
    except UnobservableError:
        assert sum(r.size for r in found) < len(raw)
    else:
        assert b"".join(LAYOUTS[type(r)].pack(*r) for r in found) == raw


@pytest.mark.parametrize(
    "raw",
    [
        event(Kind.EXEC)[:-1],
        event(Kind.EXEC) + b"\0",
        event(Kind.EXEC).replace(b"\x18\0", b"\x20\0", 1),
        event(99),
    ],
    ids=["cut", "something behind", "another size", "no such kind"],
)
def test_a_record_that_is_not_as_expected_says_so(raw):
    """With its kind and both sizes."""
    with pytest.raises(UnobservableError, match=r"a record of kind \d+ has \d+ bytes; expected"):
        list(Kernel.parse(None, raw))
