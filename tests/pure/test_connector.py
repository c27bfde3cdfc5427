"""Process events: datagrams in, lifecycle out."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from receipt_trace.observation import Exec, Exit, Fork
from receipt_trace.sources.connector import parse

FORK, EXEC, UID, COMM, EXIT = 0x1, 0x2, 0x4, 0x200, 0x80000000


def datagram(what, *union, idx=1, val=1):
    """A process event as the kernel sends it: nlmsghdr, cn_msg, proc_event."""
    event = struct.pack("=IIQ", what, 3, 123456789) + struct.pack(
        "=6I", *union, *[0] * (6 - len(union))
    )
    message = struct.pack("=IIIIHH", idx, val, 77, 0, len(event), 0) + event
    return struct.pack("=IHHII", 16 + len(message), 3, 0, 77, 0) + message


def test_a_fork_names_parent_and_child_by_their_process():
    """The parent is the process, whichever of its threads forked."""
    assert parse(datagram(FORK, 105, 100, 200, 200)) == Fork(parent=100, child=200)


def test_a_new_thread_is_no_fork():
    """Its number is not that of its process."""
    assert parse(datagram(FORK, 100, 100, 201, 100)) is None


def test_an_exec_names_the_process():
    """Whichever thread called it."""
    assert parse(datagram(EXEC, 105, 100)) == Exec(100)


def test_an_exit_has_the_wait_status():
    """As wait(2) would give it."""
    assert parse(datagram(EXIT, 100, 100, 256, 17, 1, 1)) == Exit(100, 256)
    assert parse(datagram(EXIT, 100, 100, 9, 17, 1, 1)) == Exit(100, 9)


def test_the_exit_of_a_thread_is_none_of_a_process():
    """Only the leader's counts."""
    assert parse(datagram(EXIT, 105, 100, 0, 17)) is None


def test_other_events_do_not_matter():
    """An acknowledgement, a new user, a new name."""
    for what in (0, UID, COMM):
        assert parse(datagram(what, 100, 100, 100, 100)) is None


def test_a_message_of_another_connector_is_ignored():
    """Only the process events are ours."""
    assert parse(datagram(EXEC, 100, 100, idx=2)) is None
    assert parse(datagram(EXEC, 100, 100, val=2)) is None


def test_a_short_datagram_is_no_event():
    """Half of one, or only its head."""
    whole = datagram(EXEC, 100, 100)
    assert [parse(whole[:length]) for length in (0, 1, 16, 36, 40, 60)] == [None] * 6


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(raw):
    """Whatever comes."""
    assert parse(raw) is None or isinstance(parse(raw), Fork | Exec | Exit)


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 2**32 - 1), min_size=6, max_size=6))
def test_no_event_makes_it_raise(what, union):
    """Whatever kind the kernel invents."""
    found = parse(datagram(what, *union))
    assert found is None or what in (FORK, EXEC, EXIT)
