"""The oracle: an own, direct look at who is blocked where.

It shares no code with the product and decides nothing by time or output. It reads which
call each thread is blocked in, on which descriptor, and in which state the terminal is;
that a wait is real is proved afterwards, by an answer on which the program goes on
(:mod:`receipt_trace.litmus.trial`). proc(5), ``fs/proc/base.c``, ``fs/eventpoll.c``.
"""

import os
import platform
import re
import struct
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_CALLS: Final = {
    "x86_64": {
        0: "read", 7: "poll", 19: "readv", 23: "select", 45: "recvfrom", 47: "recvmsg",
        232: "epoll_wait", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 299: "recvmmsg",
        441: "epoll_pwait2",
    },
    "aarch64": {
        22: "epoll_pwait", 63: "read", 65: "readv", 72: "pselect6", 73: "ppoll", 207: "recvfrom",
        212: "recvmsg", 243: "recvmmsg", 441: "epoll_pwait2",
    },
}  # fmt: skip
_NAMES: Final = _CALLS.get(platform.machine(), {})
_POLLIN: Final = 0x001 | 0x040  # POLLIN, POLLRDNORM: asm-generic/poll.h
_MAX_SET: Final = 4096


@dataclass(frozen=True, slots=True)
class Reader:
    """One thread that is blocked on something a person or a harness could give.

    ``where``: ``input`` (what the command was given), ``terminal`` (its controlling one),
    ``inner`` (another terminal), or ``wrong end`` (a pipe it can only write to).
    """

    pid: int
    tid: int
    comm: str
    state: str
    syscall: str
    wchan: str
    fd: int
    link: str
    where: str


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a command's processes. ``ticks`` is their CPU time, in clock ticks."""

    readers: tuple[Reader, ...] = ()
    pids: tuple[int, ...] = ()
    ticks: int = 0


@dataclass(frozen=True, slots=True)
class Wiring:
    """What the command was given, as seen on its first process."""

    stdin: str
    terminal: str


def available() -> bool:
    """Whether the calls of this machine are known."""
    return bool(_NAMES)


def below(pid: int) -> list[int]:
    """Every process below one, nearest first."""
    found: list[int] = []
    for task in _list(f"/proc/{pid}/task"):
        found += map(int, _read(f"/proc/{pid}/task/{task}/children").split())
    for child in list(found):
        found += below(child)
    return found


def first(wrapper: int) -> Wiring | None:
    """The wiring of the command below a wrapper: of the first process that has become a program
    of its own (one that was only forked yet has the words of its parent).
    """
    before = _read(f"/proc/{wrapper}/cmdline")
    for pid in below(wrapper):
        words = _read(f"/proc/{pid}/cmdline")
        if words and words != before:
            return _given_by(wrapper, wiring(pid))
    return None


def _given_by(wrapper: int, found: Wiring | None) -> Wiring | None:
    """A shell may have put a pipe of its own in the place of its input already: then the wrapper,
    which holds the other end of what it gave, does not have it.
    """
    if found is None or not found.stdin.startswith("pipe:"):
        return found
    held = {_link(wrapper, int(fd)) for fd in _list(f"/proc/{wrapper}/fd")}
    return found if found.stdin in held else Wiring("", found.terminal)


def wiring(pid: int) -> Wiring | None:
    """What a process has for standard input, and its controlling terminal; ``None``: it is gone."""
    stat = fields(pid)
    link = _link(pid, 0)
    return None if not stat or link is None else Wiring(link, _terminal(int(stat[4])))


def look(wrapper: int, given: Wiring) -> Look:
    """Who, below a wrapper, is blocked on the command's input or on a terminal."""
    pids = below(wrapper)
    readers: list[Reader] = []
    ticks = 0
    for pid in pids:
        stat = fields(pid)
        if stat:
            ticks += int(stat[11]) + int(stat[12])
            readers += blocked(pid, given)
    return Look(tuple(readers), tuple(pids), ticks)


def blocked(pid: int, given: Wiring) -> Iterator[Reader]:
    """The threads of a process that are blocked on the input or on a terminal."""
    stat = fields(pid)
    own = _terminal(int(stat[4])) if stat else ""
    for task in _list(f"/proc/{pid}/task"):
        yield from _blocked(pid, int(task), own, given)


def fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; empty: it is gone."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def switches(reader: Reader) -> int | None:
    """How often a thread has gone to sleep so far; ``None``: it is gone."""
    text = _read(f"/proc/{reader.pid}/task/{reader.tid}/status")
    found = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else None


def modes(path: str) -> tuple[bool, bool] | None:
    """(canonical, echo) of a terminal by its name; ``None`` where it cannot be asked."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        flags = termios.tcgetattr(fd)[3]
        return bool(flags & termios.ICANON), bool(flags & termios.ECHO)
    except termios.error:
        return None
    finally:
        os.close(fd)


def _blocked(pid: int, tid: int, own: str, given: Wiring) -> Iterator[Reader]:
    words = _read(f"/proc/{pid}/task/{tid}/syscall").split()
    if len(words) < 8 or not words[0].isdigit():  # "running", or it may not be looked at
        return
    name = _NAMES.get(int(words[0]))
    if name is None:
        return
    arguments = [int(word, 16) for word in words[1:7]]
    for fd in _wait_set(pid, name, arguments):
        link = _link(pid, fd)
        where = _where(pid, fd, link, own, given) if link is not None else None
        if link is None or where is None:
            continue
        stat = _read(f"/proc/{pid}/task/{tid}/stat")
        yield Reader(
            pid, tid, _read(f"/proc/{pid}/comm").rstrip("\n"),
            stat.rpartition(")")[2].split()[0] if stat else "",
            name, _read(f"/proc/{pid}/task/{tid}/wchan"), fd, link, where,
        )  # fmt: skip
        return  # one is enough


def _where(pid: int, fd: int, link: str, own: str, given: Wiring) -> str | None:
    if link.startswith(("pipe:", "socket:")):
        if link == given.stdin:
            return "input"
        return "wrong end" if link.startswith("pipe:") and _writes_only(pid, fd) else None
    if link == "/dev/tty":
        link = own
    if link == given.terminal or (link == given.stdin and link.startswith("/dev/pts/")):
        return "terminal" if link != given.stdin else "input"
    return "inner" if link.startswith("/dev/pts/") else None


def _wait_set(pid: int, name: str, arguments: list[int]) -> list[int]:
    if name in ("poll", "ppoll"):
        return _poll_set(pid, *arguments[:2])
    if name in ("select", "pselect6"):
        return _select_set(pid, *arguments[:2])
    if name.startswith("epoll"):
        return _epoll_set(pid, arguments[0])
    return [arguments[0]]


def _poll_set(pid: int, address: int, count: int) -> list[int]:
    data = _memory(pid, address, min(count, _MAX_SET) * 8)
    entries = struct.iter_unpack("=ihh", data[: len(data) // 8 * 8])
    return [fd for fd, events, _ in entries if fd >= 0 and events & _POLLIN]


def _select_set(pid: int, count: int, address: int) -> list[int]:
    count = min(count, _MAX_SET)
    data = _memory(pid, address, (count + 7) // 8) if address else b""
    return [fd for fd in range(min(count, len(data) * 8)) if data[fd // 8] >> fd % 8 & 1]


def _epoll_set(pid: int, fd: int) -> list[int]:
    members = re.findall(
        r"^tfd:\s*(\d+)\s+events:\s*([0-9a-f]+)", _read(f"/proc/{pid}/fdinfo/{fd}"), re.MULTILINE
    )
    return [int(member) for member, events in members if int(events, 16) & _POLLIN]


def _writes_only(pid: int, fd: int) -> bool:
    found = re.search(r"^flags:\s*([0-7]+)", _read(f"/proc/{pid}/fdinfo/{fd}"), re.MULTILINE)
    return bool(found and int(found[1], 8) & os.O_ACCMODE == os.O_WRONLY)


def _terminal(number: int) -> str:
    """The name of a terminal from its device number (Documentation/admin-guide/devices.txt)."""
    major, minor = os.major(number), os.minor(number)
    return f"/dev/pts/{(major - 136) * 256 + minor}" if 136 <= major <= 143 else ""


def _memory(pid: int, address: int, size: int) -> bytes:
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
            return os.pread(file.fileno(), size, address)
    except (OSError, OverflowError):
        return b""


def _link(pid: int, fd: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return None


def _list(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(1 << 16).decode("utf-8", "replace")
    except OSError:
        return ""
