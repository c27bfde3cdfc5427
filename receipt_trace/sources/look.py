"""One look of the kernel at processes: its records put together, and told as all sources tell them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from receipt_trace.kernel.records import (
    MEMBERS_GO_ON,
    FileRecord,
    MemberRecord,
    ProcessRecord,
    ThreadRecord,
    WaiterRecord,
)
from receipt_trace.observation import Descriptor, FileKind
from receipt_trace.sources import proc

TYPE: Final = 0o170000  # of a file's mode, stat(2)
FIFO: Final = 0o010000
SOCKET: Final = 0o140000
PTMX: Final = 5 << 20 | 2
_DEV_TTY: Final = 5 << 20
_AF_UNIX: Final = 1
_TCP_LISTEN: Final = 10  # include/net/tcp_states.h; unix sockets have it too
_PID_MAX: Final = 1 << 22  # include/linux/threads.h: PID_MAX_LIMIT
_POLL_READ: Final = 0x001 | 0x040  # POLLIN and POLLRDNORM


def standard_input(mode: int, device: int) -> str:
    """What somebody was given to read, by the mode and the device of its file, in the words of
    :class:`receipt_trace.observation.Beginning`.
    """
    number = (device >> 20, device & 0xFFFFF)
    match mode & TYPE:
        case 0o010000:
            return "pipe"
        case 0o140000:
            return "socket"
        case 0o100000 | 0o040000:
            return "file"
        case 0o020000 if number in proc.READY_DEVICES:
            return "null"
        case 0o020000 if proc.is_terminal(*number):
            return "tty"
        case _:
            return ""


@dataclass(slots=True)
class Look:
    """Everything about one process at one moment.

    ``queues``: who waits at the objects it has open, by their addresses; ``members``: what a
    thread of it waits for.
    """

    process: ProcessRecord
    files: dict[int, FileRecord] = field(default_factory=dict)
    queues: dict[int, set[WaiterRecord]] = field(default_factory=dict)
    members: dict[int, list[MemberRecord]] = field(default_factory=dict)

    def reads(self, thread: ThreadRecord, fd: int) -> bool:
        """Whether a thread itself waits at what a descriptor names; yes, where nobody could."""
        file = self.files.get(fd)
        if file is None or not file.object:
            return file is not None
        queue = self.queues.get(file.object, ())
        if any(w.private == thread.task for w in queue):
            return True
        # Readers of one terminal take turns (n_tty_read, drivers/tty/n_tty.c): only the first is in
        # the queue, the others wait for it to be through.
        return bool(file.terminal) and any(0 < w.waiter <= _PID_MAX for w in queue)

    def poll_of(self, thread: ThreadRecord) -> dict[int, int]:
        """Thread to the address of its poll's table, if it waits in one at anything it has open."""
        tables = [
            w.private
            for queue in self.queues.values()
            for w in queue
            if w.private and w.private != thread.task and w.behind == thread.task
        ]
        return {thread.tid: tables[0]} if tables else {}

    def set_of(self, thread: ThreadRecord) -> dict[int, int]:
        """Thread to the address of the epoll set that it waits at."""
        file = self.files.get(thread.arg0 & 0xFFFFFFFF)
        if file is None or not file.object or file.type & TYPE:
            return {}
        waits = any(w.private == thread.task for w in self.queues.get(file.object, ()))
        return {thread.tid: file.object} if waits else {}

    def numbers(self, tid: int) -> tuple[int, ...] | None:
        """The descriptors a thread waits to read; ``None`` where they cannot be known."""
        found: set[int] = set()
        for member in self.members.get(tid, ()):
            if member.fd == MEMBERS_GO_ON:
                return None
            if not member.events & _POLL_READ:
                continue
            if member.fd >= 0:
                file = self.files.get(member.fd)
                if file is None or file.file != member.file:
                    return None  # watched under a number that is another file's now
                found.add(member.fd)
            else:
                fds = [f.fd for f in self.files.values() if f.file == member.file]
                if not fds:
                    return None
                found.add(min(fds))
        return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class Books:
    """What tells kinds of files apart in this kernel.

    ``root`` is the proc file system, ``kinds`` the addresses of file operations that were
    learned, ``pipes`` the device of the file system of anonymous pipes.
    """

    root: Path
    kinds: Mapping[int, FileKind]
    pipes: int

    def descriptor(self, record: FileRecord) -> Descriptor:
        """An open file as all sources tell it."""
        kind, key, target = self._classify(record)
        peer = f"socket:[{record.peer}]" if record.peer else None
        return Descriptor(
            record.fd, kind, key, target, bool(record.mode & 1), bool(record.mode & 2), peer
        )

    def _classify(self, record: FileRecord) -> tuple[FileKind, str, str]:
        """(kind, key, target) of an open file."""
        known = self.kinds.get(record.operations)
        if known is FileKind.PIDFD:
            return self._pidfd(record)
        if known is not None:
            return known, f"anon_inode:[{known}]", f"anon_inode:[{known}]"
        device = (record.device >> 20, record.device & 0xFFFFF)
        match record.type & TYPE:
            case 0o010000:
                if record.filesystem == self.pipes:
                    name = f"pipe:[{record.inode}]"
                    return FileKind.PIPE, name, name
                host = os.makedev(record.filesystem >> 20, record.filesystem & 0xFFFFF)
                link = proc.link(self.root, record.tgid, f"fd/{record.fd}")
                key = f"fifo:{host}:{record.inode}"
                return FileKind.PIPE, key, link or key
            case 0o140000:
                name = f"socket:[{record.inode}]"
                if record.family != _AF_UNIX:
                    return FileKind.OUTSIDE, name, name
                listens = record.state == _TCP_LISTEN
                return FileKind.LISTENER if listens else FileKind.UNIX, name, name
            case 0o020000:
                return _character(record, device)
            case 0o100000 | 0o040000:
                return FileKind.FILE, f"file:{record.filesystem}:{record.inode}", "file"
            case _:
                return FileKind.OUTSIDE, "anon_inode:[?]", "anon_inode:[?]"

    def _pidfd(self, record: FileRecord) -> tuple[FileKind, str, str]:
        try:
            path = self.root / str(record.tgid) / "fdinfo" / str(record.fd)
            pid = proc.field(path.read_bytes(), "Pid")
        except OSError:
            pid = None
        kind = FileKind.OUTSIDE if pid is None else FileKind.PIDFD
        return kind, str(pid or 0), "anon_inode:[pidfd]"


def _character(record: FileRecord, device: tuple[int, int]) -> tuple[FileKind, str, str]:
    if record.terminal:
        key = proc.device_key(record.terminal >> 20, record.terminal & 0xFFFFF)
        if record.device == PTMX:
            return FileKind.PTMX, key, "/dev/ptmx"
        name = key.replace("pts:", "/dev/pts/") if key.startswith("pts:") else f"/dev/{key}"
        return FileKind.TTY, key, "/dev/tty" if record.device == _DEV_TTY else name
    name = f"/dev/char/{device[0]}:{device[1]}"
    if device in proc.READY_DEVICES:
        return FileKind.NULL, name, "/dev/null" if device == (1, 3) else name
    return FileKind.OUTSIDE, name, name
