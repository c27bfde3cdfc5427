"""The files below ``/proc``, parsed: proc_pid_stat(5) and its family.

Every function takes the root of the tree of files or bytes of it, so that a
test can bring its own. A process that vanishes between two reads is normal:
whoever reads gets :class:`OSError` and drops it.
"""

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from receipt_trace.observation import Descriptor, FileKind

_ANON: Final = {
    "[eventfd]": FileKind.EVENT,
    "[timerfd]": FileKind.EVENT,
    "[signalfd]": FileKind.EVENT,
    "[eventpoll]": FileKind.EPOLL,
}
_EPOLL_MEMBER: Final = re.compile(
    rb"^tfd:\s*(\d+)\s+events:\s*([0-9a-f]+).*?ino:([0-9a-f]+)\s+sdev:([0-9a-f]+)", re.MULTILINE
)
_EPOLLIN: Final = 0x001 | 0x040
_PTS_MAJORS: Final = range(136, 144)  # Documentation/admin-guide/devices.txt: Unix98 slaves
_TTY_MAJORS: Final = frozenset({4, 204, 229, *_PTS_MAJORS})  # consoles, serial lines, hvc
READY_DEVICES: Final = frozenset({(1, 3), (1, 5), (1, 7), (1, 8), (1, 9)})  # null zero full random


class Stat(NamedTuple):
    """The fields of ``/proc/PID/stat`` that are used; times in ticks.

    ``exit_code`` is the wait status of a zombie; ``None`` where it may not be seen.
    """

    pid: int
    comm: str
    state: str
    ppid: int
    group: int
    session: int
    tty: int
    foreground: int
    cpu: int
    children_cpu: int
    threads: int
    start: int
    exit_code: int | None


def text(raw: bytes) -> str:
    """Bytes of a process as text that is always valid UTF-8: what is not, escaped."""
    return raw.decode("utf-8", "backslashreplace")


def parse_stat(raw: bytes) -> Stat:
    """Parse ``/proc/PID/stat``. ``comm`` may hold anything, so the rest starts after the last ``)``.

    Raises ValueError when it is not such a line.
    """
    opening, closing = raw.find(b"("), raw.rfind(b")")
    rest = raw[closing + 1 :].split()
    if opening < 0 or closing < opening or len(rest) < 20:
        raise ValueError(f"not a process status line: {raw[:80]!r}")
    return Stat(
        pid=int(raw[:opening]),
        comm=text(raw[opening + 1 : closing]),
        state=rest[0].decode(),
        ppid=int(rest[1]),
        group=int(rest[2]),
        session=int(rest[3]),
        tty=int(rest[4]),
        foreground=int(rest[5]),
        cpu=int(rest[11]) + int(rest[12]),
        children_cpu=int(rest[13]) + int(rest[14]),
        threads=int(rest[17]),
        start=int(rest[19]),
        exit_code=int(rest[49]) or None if len(rest) > 49 and rest[0] in (b"Z", b"X") else None,
    )


def terminal_key(device: int) -> str | None:
    """The key of a controlling terminal from ``tty_nr`` (0: none)."""
    if not device:
        return None
    return device_key(device >> 8 & 0xFFF, device & 0xFF | device >> 12 & 0xFFF00)


def is_terminal(major: int, minor: int) -> bool:
    """Whether a device is a terminal; 5 has ``/dev/tty``, ``/dev/console`` and ``/dev/ptmx``."""
    return major in _TTY_MAJORS or (major == 5 and minor < 3)


def device_key(major: int, minor: int) -> str:
    """The key of a terminal by the number of its device."""
    if major in _PTS_MAJORS:
        return f"pts:{(major - 136) * 256 + minor}"
    return f"tty:{major}:{minor}"


def stat(root: Path, pid: int) -> Stat:
    """Read one process. Raises OSError when it is gone."""
    return parse_stat((root / str(pid) / "stat").read_bytes())


def pids(root: Path) -> list[int]:
    """The numbers of all processes there are now."""
    return [int(name) for name in os.listdir(root) if name.isdigit()]


def living(root: Path, pid: int) -> int:
    """The number under which a process shows its memory and its files: its own; if its first thread
    has left, that of one that has not.
    """
    try:
        leader = stat(root, pid)
        if leader.state not in "ZX" or leader.threads <= 1:
            return pid
        return next(int(n) for n in os.listdir(root / str(pid) / "task") if n != str(pid))
    except (OSError, ValueError, StopIteration):
        return pid


def _memory(root: Path, pid: int, name: str) -> bytes:
    """A file that shows memory; empty where there is none, as of a kernel thread."""
    try:
        raw = (root / str(pid) / name).read_bytes()
    except ProcessLookupError:
        raw = b""
    tid = pid if raw else living(root, pid)
    return raw if tid == pid else (root / str(tid) / name).read_bytes()


def arguments(root: Path, pid: int) -> list[str]:
    """The command line (empty for a kernel thread or a process that cleared it)."""
    return parse_arguments(_memory(root, pid, "cmdline"))


def parse_arguments(raw: bytes) -> list[str]:
    """A command line as it lies in memory: each argument ends with a zero."""
    return [text(part) for part in raw.removesuffix(b"\0").split(b"\0")] if raw else []


def environment(root: Path, pid: int) -> dict[str, str]:
    """The environment at the last exec. Raises PermissionError for other people's processes."""
    return parse_environment(_memory(root, pid, "environ"))


def parse_environment(raw: bytes) -> dict[str, str]:
    """An environment as it lies in memory: what is no ``NAME=VALUE`` is left out."""
    pairs = (text(part).partition("=") for part in raw.split(b"\0") if b"=" in part)
    return {name: value for name, _, value in pairs}


def link(root: Path, pid: int, name: str) -> str | None:
    """Where a link such as ``exe`` or ``cwd`` points; ``None`` where that may not be seen."""
    found = _readlink(root, pid, name)
    return found if found is not None else _readlink(root, living(root, pid), name)


def _readlink(root: Path, number: int, name: str) -> str | None:
    try:
        return text(os.readlink(os.fsencode(root / str(number) / name)))
    except OSError:
        return None


def field(raw: bytes, name: str, base: int = 10) -> int | None:
    """A number from a ``name: value`` file (``status``, ``io``)."""
    found = re.search(rb"^" + name.encode() + rb":\s*([0-9a-fA-F]+)", raw, re.MULTILINE)
    return int(found[1], base) if found else None


def epoll_members(fdinfo: bytes) -> list[tuple[int, int, int]]:
    """What an epoll set watches for reading: (descriptor, inode, device of the file system).

    fs/eventpoll.c, ep_show_fdinfo: inode and device are hexadecimal.
    """
    return [
        (int(m[1]), int(m[3], 16), int(m[4], 16))
        for m in _EPOLL_MEMBER.finditer(fdinfo)
        if int(m[2], 16) & _EPOLLIN
    ]


def descriptor(root: Path, pid: int, fd: int, terminal: str | None) -> Descriptor:
    """Look at one open descriptor of a process; ``terminal`` is its controlling terminal.

    Raises OSError when the descriptor or the process is gone or may not be seen.
    """
    path = os.fsencode(root / str(pid) / "fd" / str(fd))
    target = text(os.readlink(path))
    mode = os.lstat(path).st_mode  # fs/proc/fd.c: the link's own bits say how it was opened
    kind, key = classify(target, terminal)
    if kind is None:
        kind, key = _by_status(path, target)
    if kind is FileKind.PTMX or kind is FileKind.PIDFD:
        info = (root / str(pid) / "fdinfo" / str(fd)).read_bytes()
        number = field(info, "tty-index" if kind is FileKind.PTMX else "Pid")
        key = f"pts:{number}" if kind is FileKind.PTMX else str(number or 0)
    return Descriptor(fd, kind, key, target, bool(mode & 0o400), bool(mode & 0o200))


def classify(target: str, terminal: str | None) -> tuple[FileKind | None, str]:
    """Kind and key by the name of a link alone; kind ``None`` where the name does not say."""
    if target.startswith("pipe:["):
        return FileKind.PIPE, target
    if target.startswith("socket:["):
        return FileKind.OUTSIDE, target  # unix sockets are told apart by their peers
    if target.startswith("anon_inode:"):
        name = target.removeprefix("anon_inode:")
        kind = FileKind.PIDFD if name == "[pidfd]" else _ANON.get(name, FileKind.OUTSIDE)
        return kind, target
    if target.startswith("/dev/pts/") and target[9:].isdigit():
        return FileKind.TTY, f"pts:{target[9:]}"
    if target in ("/dev/ptmx", "/dev/pts/ptmx"):
        return FileKind.PTMX, target
    if target == "/dev/tty":
        return (FileKind.TTY, terminal) if terminal else (FileKind.OUTSIDE, target)
    if target == "/dev/null":
        return FileKind.NULL, target
    return None, target


def _by_status(path: bytes, target: str) -> tuple[FileKind, str]:
    """Kind and key by fstat: regular files, named pipes, terminals under another name."""
    status = os.stat(path)
    kind = status.st_mode & 0o170000
    device = (os.major(status.st_rdev), os.minor(status.st_rdev))
    if kind == 0o010000:
        return FileKind.PIPE, f"fifo:{status.st_dev}:{status.st_ino}"
    if kind == 0o020000:
        if device[0] in _TTY_MAJORS:
            return FileKind.TTY, device_key(*device)
        if device[0] == 5 and device[1] == 2:
            return FileKind.PTMX, target
        return (FileKind.NULL if device in READY_DEVICES else FileKind.OUTSIDE), target
    if kind in (0o100000, 0o040000) and not target.startswith("pidfd:"):
        return FileKind.FILE, target
    return FileKind.OUTSIDE, target
