"""Blocked system calls, decoded from a line and some memory."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receipt_trace.constants import POLL_SET_MAX
from receipt_trace.observation import Activity, Call
from receipt_trace.sources.calls import NUMBERS, Blocked, activity, parse, wait_set

X86 = NUMBERS["x86_64"]
IN, PRI, OUT, RDNORM, RDBAND = 0x001, 0x002, 0x004, 0x040, 0x080
SET, TIME = 0x7F0000001000, 0x7F0000002000


def memory(**parts):
    """A reader of memory that holds ``set`` and ``time`` and refuses every other address."""
    held = {SET: parts.get("set"), TIME: parts.get("time")}

    def read(address, length):
        if held.get(address) is None:
            raise OSError(5, "Input/output error")
        return held[address][:length]

    return read


def no_epoll(fd):
    """No epoll set is known."""
    raise AssertionError(f"nobody asked for epoll set {fd}")


def decode(name, *args, epoll=no_epoll, **parts):
    """The call with that name and those arguments (missing ones are 0)."""
    blocked = Blocked(name, (*args, *[0] * (6 - len(args))))
    return wait_set(blocked, memory(**parts), epoll)


def pollfds(*entries):
    """(descriptor, events) as poll(2) has them in memory."""
    return b"".join(struct.pack("=ihh", fd, events, 0) for fd, events in entries)


# -- the line --------------------------------------------------------------------------------------


def test_a_blocked_call_is_its_name_and_six_arguments():
    """The stack and instruction pointers after them are left out."""
    line = b"0 0x3 0x7ffd6ff0 0x1000 0x0 0x5 0xffffffffffffffff 0x7ffd6f00 0x7f1234\n"
    assert parse(line, X86) == Blocked("read", (3, 0x7FFD6FF0, 0x1000, 0, 5, 2**64 - 1))


def test_the_numbers_are_those_of_the_machine():
    """63 is read on one machine and uname on another."""
    line = b"63 0x0 0x0 0x0 0x0 0x0 0x0 0x0 0x0\n"
    assert parse(line, NUMBERS["aarch64"]).name == "read"
    assert parse(line, X86).name is None


@pytest.mark.parametrize("line", [b"running\n", b"running", b"", b"\n"])
def test_a_running_thread_is_in_no_call(line):
    """It is on a processor, or has just gone."""
    assert parse(line, X86) is None


@pytest.mark.parametrize("line", [b"-1 0x7ffc 0x7f12\n", b"nonsense 0x1\n", b"0 0xzz\n"])
def test_a_thread_blocked_outside_a_call_is_in_no_known_one(line):
    """A page fault, or a line nobody has seen yet."""
    assert parse(line, X86).name is None


@pytest.mark.parametrize(
    ("machine", "number", "name"),
    [
        ("x86_64", 0, "read"), ("x86_64", 7, "poll"), ("x86_64", 23, "select"),
        ("x86_64", 232, "epoll_wait"), ("x86_64", 270, "pselect6"), ("x86_64", 271, "ppoll"),
        ("x86_64", 45, "recvfrom"), ("x86_64", 47, "recvmsg"), ("x86_64", 441, "epoll_pwait2"),
        ("aarch64", 22, "epoll_pwait"), ("aarch64", 72, "pselect6"), ("aarch64", 73, "ppoll"),
        ("aarch64", 207, "recvfrom"), ("aarch64", 212, "recvmsg"), ("aarch64", 65, "readv"),
    ],
)  # fmt: skip
def test_the_input_family_has_the_numbers_of_the_kernel(machine, number, name):
    """As in syscall_64.tbl and unistd.h, typed here a second time."""
    assert NUMBERS[machine][number] == name


# -- what a thread does ----------------------------------------------------------------------------


def blocked(name, *args):
    """A call with those arguments."""
    return Blocked(name, (*args, *[0] * (6 - len(args))))


@pytest.mark.parametrize(
    ("call", "state", "expected"),
    [
        (blocked("pselect6", 0, 0, 0, 0, 0, 0), "S", Activity.PARKED),
        (blocked("select", 0, 0, 0, 0, 0x7FFE, 0), "S", Activity.ACTIVE),
        (blocked("select", 0, 0, 0, 0, 0x7FFE, 0), "T", Activity.PARKED),
        (blocked("select", 1, 0x7FFE, 0, 0, 0, 0), "S", Activity.INPUT),
        (blocked("poll", 0, 0, 0xFFFFFFFF, 0, 0, 0), "S", Activity.PARKED),
        (blocked("poll", 0, 0, 1000, 0, 0, 0), "S", Activity.ACTIVE),
        (blocked("poll", 0x7FFE, 1, 1000, 0, 0, 0), "S", Activity.INPUT),
        (blocked("ppoll", 0, 0, 0, 0, 0, 0), "S", Activity.PARKED),
        (blocked("ppoll", 0, 0, 0x7FFE, 0, 0, 0), "S", Activity.ACTIVE),
    ],
)
def test_a_poll_of_nothing_is_a_sleep(call, state, expected):
    """Without a time-out nobody but a signal ends it, as that of Erlang's first thread."""
    assert activity(call, state) is expected


@pytest.mark.parametrize(
    ("call", "state", "expected"),
    [
        (None, "R", Activity.ACTIVE),
        (blocked("read"), "S", Activity.INPUT),
        (blocked("read"), "T", Activity.INPUT),
        (blocked("recvmmsg"), "S", Activity.INPUT),
        (blocked("poll", 1, 1), "S", Activity.INPUT),
        (blocked("ppoll", 1, 1), "S", Activity.INPUT),
        (blocked("select", 1, 1), "S", Activity.INPUT),
        (blocked("pselect6", 1, 1), "S", Activity.INPUT),
        (blocked("epoll_pwait2"), "S", Activity.INPUT),
        (blocked("wait4"), "S", Activity.PARKED),
        (blocked("waitid"), "S", Activity.PARKED),
        (blocked(None), "S", Activity.ACTIVE),
        (blocked(None), "D", Activity.ACTIVE),
        (blocked(None), "T", Activity.PARKED),
        (blocked(None), "t", Activity.PARKED),
        (blocked("restart_syscall"), "S", Activity.ACTIVE),
    ],
)
def test_a_call_says_what_a_thread_does(call, state, expected):
    """Reads input, waits for its own tree, or may go on by itself; a stopped one cannot."""
    assert activity(call, state) is expected


def test_a_futex_without_a_time_out_waits_for_its_own_tree():
    """Somebody has to wake it."""
    assert activity(blocked("futex", 0x7F00, 0x80, 2, 0, 1, 1), "S") is Activity.PARKED


@pytest.mark.parametrize("name", ["futex", "futex_waitv"])
def test_a_futex_with_a_time_out_goes_on_by_itself(name):
    """The fourth argument points to the time."""
    assert activity(blocked(name, 0x7F00, 0x80, 2, TIME), "S") is Activity.TIMED


def test_a_futex_whose_arguments_are_unknown_is_parked():
    """A line without arguments has no time-out to show."""
    assert activity(Blocked("futex", ()), "S") is Activity.PARKED


# -- what it waits for -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["read", "readv", "recvfrom", "recvmsg", "recvmmsg"])
def test_a_read_waits_for_its_descriptor(name):
    """Without a time-out, and for it alone."""
    assert decode(name, 5) == Call(name, (5,))


def test_the_upper_half_of_a_descriptor_register_means_nothing():
    """The kernel takes an int."""
    assert decode("read", 0xDEAD_0000_0000_0003) == Call("read", (3,))


def test_poll_waits_for_what_it_wants_to_read():
    """Entries that are switched off or only to be written are left out."""
    entries = pollfds((0, IN), (-1, IN), (4, OUT), (5, IN | PRI), (6, RDNORM), (7, 0))
    assert decode("poll", SET, 6, 2500, set=entries) == Call("poll", (0, 5, 6), 2.5, True)


def test_out_of_band_data_alone_is_no_input():
    """Tail -f and tee watch for a closed reader with POLLRDBAND."""
    assert decode("poll", SET, 1, 0, set=pollfds((1, RDBAND))).fds == ()


@pytest.mark.parametrize(
    ("value", "expected"), [(0, 0.0), (100, 0.1), (2**32 - 1, None), (2**64 - 1, None)]
)
def test_a_poll_time_out_is_milliseconds_and_negative_ones_are_none(value, expected):
    """-1 is for ever, whatever stands in the register's upper half."""
    assert decode("poll", SET, 1, value, set=pollfds((0, IN))).timeout == expected


def test_an_empty_poll_waits_for_nothing():
    """It is a sleep; no memory is looked at."""
    assert decode("poll", 0, 0, 1000) == Call("poll", (), 1.0, True)


def test_ppoll_has_its_time_in_memory():
    """A timespec: seconds and nanoseconds."""
    parts = {"set": pollfds((0, IN)), "time": struct.pack("=qq", 1, 250_000_000)}
    assert decode("ppoll", SET, 1, TIME, **parts) == Call("ppoll", (0,), 1.25, True)
    assert decode("ppoll", SET, 1, 0, **parts).timeout is None


def test_select_waits_for_the_bits_of_its_read_set():
    """Below nfds, across words; a timeval is seconds and microseconds."""
    bits = (1 << 0 | 1 << 5 | 1 << 63 | 1 << 64 | 1 << 70).to_bytes(16, "little")
    time = struct.pack("=qq", 3, 500_000)
    found = decode("select", 70, SET, 0, 0, TIME, set=bits, time=time)
    assert found == Call("select", (0, 5, 63, 64), 3.5, True)


def test_pselect_counts_in_nanoseconds():
    """Its time is a timespec, and may be missing."""
    parts = {"set": b"\x01" + bytes(7), "time": struct.pack("=qq", 0, 500_000_000)}
    assert decode("pselect6", 1, SET, 0, 0, TIME, **parts) == Call("pselect6", (0,), 0.5, True)
    assert decode("pselect6", 1, SET, 0, 0, 0, **parts).timeout is None


def test_select_without_a_read_set_waits_for_no_input():
    """It sleeps, or waits to write."""
    assert decode("select", 10, 0, SET, 0, 0) == Call("select", (), None, True)
    assert decode("select", 0, SET, 0, 0, 0).fds == ()


@pytest.mark.parametrize("name", ["epoll_wait", "epoll_pwait"])
def test_epoll_waits_for_the_members_of_its_set(name):
    """The set is asked for by its descriptor; the time is in milliseconds."""
    sets = {9: (0, 4)}
    assert decode(name, 9, SET, 10, 1500, epoll=sets.get) == Call(name, (0, 4), 1.5, True)
    assert decode(name, 9, SET, 10, 2**32 - 1, epoll=sets.get).timeout is None


def test_epoll_pwait2_has_its_time_in_memory():
    """A timespec behind the fourth argument."""
    time = struct.pack("=qq", 2, 0)
    found = decode("epoll_pwait2", 9, SET, 10, TIME, epoll=lambda _: (0,), time=time)
    assert found == Call("epoll_pwait2", (0,), 2.0, True)


# -- what cannot be known --------------------------------------------------------------------------


def refuse(_fd):
    """An epoll set that may not be seen."""
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("poll", (SET, 1, 0)),
        ("ppoll", (SET, 1, 0)),
        ("select", (1, SET)),
        ("pselect6", (1, SET)),
        ("epoll_wait", (9, SET, 1, 0)),
    ],
)
def test_memory_that_cannot_be_read_makes_the_set_unknown(name, args):
    """Unknown is not empty."""
    assert decode(name, *args, epoll=refuse) == Call(name, None, None, True)


def test_a_time_that_cannot_be_read_makes_the_set_unknown():
    """Half of the truth is not believed."""
    assert decode("ppoll", SET, 1, TIME, set=pollfds((0, IN))).fds is None


def test_an_epoll_set_that_is_unknown_stays_unknown():
    """A member whose file is not known anymore spoils the set."""
    assert decode("epoll_wait", 9, SET, 1, 0, epoll=lambda _: None).fds is None


@pytest.mark.parametrize("name", ["poll", "ppoll"])
def test_a_poll_set_of_part_of_which_nothing_is_known_is_unknown(name):
    """Only the first of two entries could be read: the other may be anything."""
    assert decode(name, SET, 2, 0, set=pollfds((0, IN))).fds is None


def test_a_select_set_of_part_of_which_nothing_is_known_is_unknown():
    """Only the first of two words could be read."""
    assert decode("select", 128, SET, set=b"\x01" + bytes(7)).fds is None


def test_an_oversized_set_is_unknown():
    """The largest set that is read is POLL_SET_MAX."""
    entries = pollfds(*[(0, IN)] * (POLL_SET_MAX + 1))
    assert len(decode("poll", SET, POLL_SET_MAX, 0, set=entries).fds) == POLL_SET_MAX
    assert decode("poll", SET, POLL_SET_MAX + 1, 0, set=entries).fds is None
    bits = b"\x01" + bytes(1023)
    assert decode("select", POLL_SET_MAX, SET, set=bits).fds == (0,)
    assert decode("select", POLL_SET_MAX + 1, SET, set=bits).fds is None


def test_a_call_without_its_arguments_is_unknown():
    """A line that was cut short is not filled up with zeros."""
    assert wait_set(Blocked("read", (0,)), memory(), no_epoll) == Call("read", None)


words = st.integers(0, 2**64 - 1) | st.sampled_from([SET, TIME, 0, 1, 2**32 - 1])
names = st.sampled_from(sorted({*X86.values(), "nonsense"})) | st.none()


@given(names, st.lists(words, max_size=7), st.binary(max_size=80), st.binary(max_size=20))
def test_decoding_never_raises(name, args, held, time):
    """Whatever stands in the registers and in the memory of a hostile program."""
    call = wait_set(
        Blocked(name, tuple(args)), memory(set=held, time=time), lambda fd: (fd,) if fd else None
    )
    assert call.name == (name or "")
    assert call.fds is None or all(fd >= 0 for fd in call.fds)


@given(st.binary(max_size=200))
def test_parsing_never_raises(line):
    """Whatever the kernel writes one day."""
    found = parse(line, X86)
    assert found is None or len(found.args) <= 6
