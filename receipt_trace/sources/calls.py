"""Blocked system calls: what ``/proc/PID/task/TID/syscall`` says, decoded.

The numbers are those of arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h; the arguments are as in the man page of each
call. The kernel writes a poll or select set back only when the call returns, so
what lies in the thread's memory while it is blocked is what it waits for.
"""

import os
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from receipt_trace.constants import POLL_SET_MAX
from receipt_trace.observation import Activity, Call

ReadMemory = Callable[[int, int], bytes]
"""(address, length) to bytes of the blocked thread; raises OSError where that is refused."""
EpollMembers = Callable[[int], tuple[int, ...] | None]
"""The descriptors an epoll set watches for reading; ``None`` where they cannot be known."""

_X86_64: Final = {
    0: "read", 19: "readv", 45: "recvfrom", 47: "recvmsg", 299: "recvmmsg",
    7: "poll", 271: "ppoll", 23: "select", 270: "pselect6",
    232: "epoll_wait", 281: "epoll_pwait", 441: "epoll_pwait2",
    61: "wait4", 247: "waitid", 202: "futex", 449: "futex_waitv", 219: "restart_syscall",
}  # fmt: skip
_AARCH64: Final = {
    63: "read", 65: "readv", 207: "recvfrom", 212: "recvmsg", 243: "recvmmsg",
    73: "ppoll", 72: "pselect6", 22: "epoll_pwait", 441: "epoll_pwait2",
    260: "wait4", 95: "waitid", 98: "futex", 449: "futex_waitv", 128: "restart_syscall",
}  # fmt: skip
# What a 32-bit program on x86-64 calls: arch/x86/entry/syscalls/syscall_32.tbl. The calls behind socketcall(2) are not told apart
NARROW: Final = {
    3: "read", 145: "readv", 371: "recvfrom", 372: "recvmsg", 337: "recvmmsg", 417: "recvmmsg",
    168: "poll", 309: "ppoll", 414: "ppoll", 142: "select", 308: "pselect6", 413: "pselect6",
    256: "epoll_wait", 319: "epoll_pwait", 441: "epoll_pwait2",
    114: "wait4", 7: "wait4", 284: "waitid", 240: "futex", 422: "futex", 449: "futex_waitv",
    0: "restart_syscall",
}  # fmt: skip
NUMBERS: Final = {"x86_64": _X86_64, "aarch64": _AARCH64}
"""System call names by number, by machine (``uname -m``)."""

READS: Final = frozenset({"read", "readv", "recvfrom", "recvmsg", "recvmmsg"})
_PARKED: Final = frozenset({"wait4", "waitid", "futex", "futex_waitv"})

# include/uapi/asm-generic/poll.h: readable in any way a person's input can be.
# POLLRDBAND alone is what tail -f and tee use to notice a closed reader.
_POLL_READ: Final = 0x001 | 0x040


class Blocked(NamedTuple):
    """A parsed line: the call's name (``None``: not one we know) and its arguments."""

    name: str | None
    args: tuple[int, ...]


def machine() -> str:
    """The machine whose system call numbers apply here."""
    return os.uname().machine


def parse(line: bytes, numbers: dict[int, str]) -> Blocked | None:
    """Parse one line of ``syscall``: ``None`` when the thread runs.

    A thread blocked outside any call (``-1``, a page fault) is one in no known call.
    """
    fields = line.split()
    if not fields or fields[0] == b"running":
        return None
    try:
        number = int(fields[0])
        args = tuple(int(f, 16) for f in fields[1:7])
    except ValueError:
        return Blocked(None, ())
    return Blocked(numbers.get(number), args)


def activity(blocked: Blocked | None, state: str) -> Activity:
    """What a thread in that call does; a stopped one can do nothing by itself."""
    if blocked is None:
        return Activity.ACTIVE
    if blocked.name in _PARKED:
        # A futex(2) wait with a time-out ends by itself; without one somebody must end it.
        timed = blocked.name.startswith("futex") and blocked.args[3:4] not in ((0,), ())
        return Activity.TIMED if timed else Activity.PARKED
    if _is_empty(blocked):
        # A sleep; without an end it is a pause(2), as of the first thread of Erlang's runtime.
        return Activity.PARKED if state in "Tt" or _is_endless(blocked) else Activity.ACTIVE
    if blocked.name in READS or (blocked.name or "").startswith(
        ("poll", "ppoll", "select", "pselect", "epoll")
    ):
        return Activity.INPUT
    return Activity.PARKED if state in "Tt" else Activity.ACTIVE


def _is_empty(blocked: Blocked) -> bool:
    """Whether it is a poll or a select of nothing at all."""
    place = {"poll": 1, "ppoll": 1, "select": 0, "pselect6": 0}.get(blocked.name or "")
    return place is not None and len(blocked.args) == 6 and not _int(blocked.args[place])


def _is_endless(blocked: Blocked) -> bool:
    """Whether a poll or a select has no time-out."""
    if blocked.name == "poll":
        return _milliseconds(blocked.args[2]) is None
    return not blocked.args[2 if blocked.name == "ppoll" else 4]


def resumed(blocked: Blocked | None, was: Blocked | None) -> Blocked | None:
    """After SIGSTOP and SIGCONT a poll goes on under another number, with its old arguments.

    ``was`` is the last call of the input family of the same thread.
    """
    if blocked is None or was is None or blocked.name != "restart_syscall":
        return blocked
    return was if was.args[:2] == blocked.args[:2] else blocked


def wait_set(blocked: Blocked, memory: ReadMemory, epoll: EpollMembers) -> Call:
    """Decode which descriptors a call of the input family waits to read, and for how long.

    Never raises: what cannot be read makes the set unknown (``fds`` is ``None``).
    """
    name, args = blocked.name or "", blocked.args
    if len(args) < 6:
        return Call(name, None)
    try:
        if name in READS:
            return Call(name, (_int(args[0]),))
        if name in ("poll", "ppoll"):
            return Call(name, _poll_set(args, memory), timeout(blocked, memory), True)
        if name in ("select", "pselect6"):
            return Call(name, _select_set(args, memory), timeout(blocked, memory), True)
        if name.startswith("epoll"):
            return Call(name, epoll(_int(args[0])), timeout(blocked, memory), True)
    except (OSError, ValueError, struct.error):
        pass
    return Call(name, None, None, name not in READS)


def _int(value: int) -> int:
    """An ``int`` argument: the register's upper half means nothing."""
    return value & 0xFFFFFFFF


def _poll_set(args: tuple[int, ...], memory: ReadMemory) -> tuple[int, ...] | None:
    count = args[1]
    if count > POLL_SET_MAX:
        return None
    raw = _whole(memory, args[0], count * 8)
    entries = struct.iter_unpack("=ihh", raw)
    return tuple(fd for fd, events, _ in entries if fd >= 0 and events & _POLL_READ)


def timeout(blocked: Blocked, memory: ReadMemory) -> float | None:
    """How long a call of the input family waits, in seconds; ``None``: for ever.

    Raises OSError or ValueError where the memory that says so cannot be read.
    """
    name, args = blocked.name or "", blocked.args
    match name:
        case "poll":
            return _milliseconds(args[2])
        case "ppoll":
            return _time(args[2], memory, False)
        case "select" | "pselect6":
            return _time(args[4], memory, name == "select")
        case "epoll_wait" | "epoll_pwait":
            return _milliseconds(args[3])
        case "epoll_pwait2":
            return _time(args[3], memory, False)
        case _:
            return None


def _select_set(args: tuple[int, ...], memory: ReadMemory) -> tuple[int, ...] | None:
    count = _int(args[0])
    if count > POLL_SET_MAX:
        return None
    if not args[1] or not count:
        return ()
    words = _whole(memory, args[1], (count + 63) // 64 * 8)
    bits = int.from_bytes(words, "little")
    return tuple(fd for fd in range(count) if bits >> fd & 1)


def _whole(memory: ReadMemory, address: int, length: int) -> bytes:
    """All of it, or ValueError: a part of a set says nothing of the rest."""
    raw = memory(address, length) if length else b""
    if len(raw) != length:
        raise ValueError(f"{len(raw)} of {length} bytes")
    return raw


def _milliseconds(value: int) -> float | None:
    signed = value & 0xFFFFFFFF
    return None if signed >= 0x80000000 else signed / 1000


def _time(address: int, memory: ReadMemory, micro: bool) -> float | None:
    """A ``timeval`` or ``timespec`` in memory; a null pointer is no time-out."""
    if not address:
        return None
    seconds, fraction = map(float, struct.unpack("=qq", _whole(memory, address, 16)))
    return seconds + fraction / (1e6 if micro else 1e9)
