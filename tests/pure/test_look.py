"""One look of the kernel, from records that a test has written itself."""

import os
from pathlib import Path

import pytest

from receipt_trace.kernel.records import (
    LAYOUTS,
    MEMBERS_GO_ON,
    FileRecord,
    Kind,
    MemberRecord,
    ProcessRecord,
    ThreadRecord,
    WaiterRecord,
)
from receipt_trace.observation import FileKind
from receipt_trace.sources.look import Books, Look

PID, TID, TASKS = 10, 11, 0xFFFF_8000_0000_0000
PIPES, DISK = 14, 8 << 20 | 1  # devices of file systems
FIFO, CHARACTER, REGULAR, SOCKET, NOTHING = 0o010600, 0o020620, 0o100644, 0o140777, 0
READ, WRITE = 1, 2
EPOLL_OPS, EVENT_OPS, PIDFD_OPS = 0xE0, 0xE1, 0xE2
POLLIN, POLLOUT, POLLRDNORM, POLLRDBAND = 0x001, 0x004, 0x040, 0x080


def pts(number):
    """The device of a pseudo-terminal's slave."""
    return 136 << 20 | number


def thread_record(tid=TID, tgid=PID, **more):
    """A thread that sleeps in no call."""
    values = dict.fromkeys(ThreadRecord._fields, 0) | {
        "kind": Kind.THREAD, "size": LAYOUTS[ThreadRecord].size, "root": tgid, "tgid": tgid, "tid": tid,
        "task": TASKS + tid * 256, "number": -1, "state": 1, "start": 5_000_000_000,
    }  # fmt: skip
    return ThreadRecord(**values | more)


def process_record(tgid=PID, **more):
    """A process that leads its group and session."""
    values = dict.fromkeys(ProcessRecord._fields, 0) | {
        "kind": Kind.PROCESS, "size": LAYOUTS[ProcessRecord].size, "tgid": tgid, "parent": 1, "group": tgid,
        "session": tgid, "foreground": -1, "comm": b"prog".ljust(16, b"\0"), "start": 5_000_000_000,
    }  # fmt: skip
    return ProcessRecord(**values | more)


def file_record(fd, kind=NOTHING, *, mode=READ | WRITE, tgid=PID, **more):
    """An open descriptor; every file and object has an address of its own."""
    values = dict.fromkeys(FileRecord._fields, 0) | {
        "kind": Kind.FILE, "size": LAYOUTS[FileRecord].size, "tgid": tgid, "fd": fd, "mode": mode, "type": kind,
        "filesystem": PIPES if kind == FIFO else DISK, "inode": 70 + fd, "operations": 0xF0,
        "file": 0x1000 + fd, "object": 0x2000 + fd,
    }  # fmt: skip
    return FileRecord(**values | more)


def tty_record(fd, number=1, *, device=None, **more):
    """A slave of a pseudo-terminal."""
    given = pts(number) if device is None else device
    return file_record(fd, CHARACTER, **{"device": given, "terminal": pts(number)} | more)


def waits_at(file, private, behind=0, **more):
    """An entry of the wait queue behind a descriptor."""
    values = dict.fromkeys(WaiterRecord._fields, 0) | {
        "kind": Kind.WAITER, "size": LAYOUTS[WaiterRecord].size, "tgid": file.tgid, "object": file.object,
        "private": private, "behind": behind,
    }  # fmt: skip
    return WaiterRecord(**values | more)


def member(file, fd=-1, events=POLLIN, tid=TID):
    """What a thread's poll (``fd`` -1) or epoll set waits for."""
    return MemberRecord(Kind.MEMBER, LAYOUTS[MemberRecord].size, tid, fd, events, file.file)


def look_of(*files, queues=(), members=()):
    """A look at one process."""
    look = Look(process_record(), {f.fd: f for f in files}, {}, {TID: list(members)})
    for waiter in queues:
        look.queues.setdefault(waiter.object, set()).add(waiter)
    return look


# -- what a descriptor is --------------------------------------------------------------------

BOOKS = Books(
    Path("/nowhere"),
    {EPOLL_OPS: FileKind.EPOLL, EVENT_OPS: FileKind.EVENT, PIDFD_OPS: FileKind.PIDFD},
    PIPES,
)
PTMX, DEV_TTY, DEV_NULL, DEV_ZERO = 5 << 20 | 2, 5 << 20, 1 << 20 | 3, 1 << 20 | 5


@pytest.mark.parametrize(
    ("record", "kind", "key", "target"),
    [
        (tty_record(0, 3), FileKind.TTY, "pts:3", "/dev/pts/3"),
        (tty_record(0, device=137 << 20 | 4, terminal=137 << 20 | 4), FileKind.TTY, "pts:260", "/dev/pts/260"),
        (tty_record(0, 3, device=PTMX), FileKind.PTMX, "pts:3", "/dev/ptmx"),
        (tty_record(0, 3, device=DEV_TTY), FileKind.TTY, "pts:3", "/dev/tty"),
        (tty_record(0, device=4 << 20 | 64, terminal=4 << 20 | 64), FileKind.TTY, "tty:4:64", None),
        (file_record(0, CHARACTER, device=DEV_NULL), FileKind.NULL, "/dev/char/1:3", "/dev/null"),
        (file_record(0, CHARACTER, device=DEV_ZERO), FileKind.NULL, "/dev/char/1:5", "/dev/char/1:5"),
        (file_record(0, CHARACTER, device=10 << 20 | 200), FileKind.OUTSIDE, "/dev/char/10:200", "/dev/char/10:200"),
        (file_record(4, FIFO), FileKind.PIPE, "pipe:[74]", "pipe:[74]"),
        (file_record(4, SOCKET, family=1), FileKind.UNIX, "socket:[74]", "socket:[74]"),
        (file_record(4, SOCKET, family=2), FileKind.OUTSIDE, "socket:[74]", "socket:[74]"),
        (file_record(4, operations=EPOLL_OPS), FileKind.EPOLL, "anon_inode:[epoll]", "anon_inode:[epoll]"),
        (file_record(4, operations=EVENT_OPS), FileKind.EVENT, "anon_inode:[event]", "anon_inode:[event]"),
        (file_record(4, REGULAR), FileKind.FILE, f"file:{DISK}:74", "file"),
        (file_record(4), FileKind.OUTSIDE, "anon_inode:[?]", "anon_inode:[?]"),
    ],
    ids=["slave", "slave 260", "master", "/dev/tty", "serial line", "null", "zero", "device",
         "pipe", "unix socket", "network", "epoll", "eventfd", "file", "anything else"],
)  # fmt: skip
def test_each_kind_of_file_is_told(record, kind, key, target):
    """As all sources tell it: the same key is the same object."""
    found = BOOKS.descriptor(record)
    assert (found.fd, found.kind, found.key) == (record.fd, kind, key)
    assert target in (None, found.target)


@pytest.mark.parametrize(("mode", "want"), [(READ, (True, False)), (WRITE, (False, True))])
def test_how_a_file_was_opened_is_told(mode, want):
    """Which end of a pipe it is."""
    found = BOOKS.descriptor(file_record(0, FIFO, mode=mode))
    assert (found.readable, found.writable) == want


def test_the_other_end_of_a_unix_socket_is_told():
    """Where there is one."""
    assert BOOKS.descriptor(file_record(0, SOCKET, family=1, peer=99)).peer == "socket:[99]"
    assert BOOKS.descriptor(file_record(0, SOCKET, family=1)).peer is None


def test_a_named_fifo_is_known_by_its_place(proc):
    """Its name is the link's; its key is the one that stat(2) gives, whoever looks."""
    proc.add(PID)
    proc.hold(PID, {4: "/run/queue"})
    books = Books(proc.root, {}, PIPES)
    key = f"fifo:{os.makedev(8, 1)}:74"
    named = file_record(4, FIFO, filesystem=DISK)
    found = books.descriptor(named)
    assert (found.kind, found.key, found.target) == (FileKind.PIPE, key, "/run/queue")
    assert books.descriptor(named._replace(tgid=99)).target == key  # it is gone meanwhile


def test_a_pidfd_names_its_process(proc):
    """Read from fdinfo; what cannot be read may be anybody's."""
    proc.add(PID)
    proc.hold(PID, {}, {4: "Pid:\t77\n"})
    books = Books(proc.root, BOOKS.kinds, PIPES)
    pidfd = file_record(4, operations=PIDFD_OPS)
    found = books.descriptor(pidfd)
    assert (found.kind, found.key) == (FileKind.PIDFD, "77")
    assert books.descriptor(pidfd._replace(fd=5)).kind is FileKind.OUTSIDE


# -- who waits -------------------------------------------------------------------------------

THREAD = thread_record()
TTY = tty_record(0)
PIPE = file_record(4, FIFO)


def test_a_reader_is_who_the_queue_names():
    """And nobody else, though he may be blocked in the same call."""
    look = look_of(TTY, PIPE, queues=[waits_at(TTY, THREAD.task)])
    assert look.reads(THREAD, 0)
    assert not look.reads(THREAD, 4)
    assert not look.reads(thread_record(12), 0)
    assert not look.reads(THREAD, 9)  # it has no such descriptor


def test_who_polls_does_not_read():
    """The entry is its table's, and names the thread only behind it."""
    look = look_of(TTY, queues=[waits_at(TTY, 0x77, THREAD.task)])
    assert not look.reads(THREAD, 0)


def test_what_has_no_queue_is_taken_by_the_call_alone():
    """Nobody could be named there."""
    assert look_of(TTY._replace(object=0)).reads(THREAD, 0)


def test_a_poll_is_found_by_its_table():
    """From whichever object it waits at; a read leads to none."""
    look = look_of(TTY, PIPE, queues=[waits_at(TTY, THREAD.task, 1), waits_at(PIPE, 0x77, TASKS)])
    assert look.poll_of(THREAD) == {}
    look.queues[PIPE.object].add(waits_at(PIPE, 0x78, THREAD.task))
    assert look.poll_of(THREAD) == {TID: 0x78}


def test_an_epoll_set_is_waited_at_only_by_who_is_in_its_queue():
    """That it is registered somewhere makes nobody wait."""
    thread = thread_record(arg0=0xFFFF_FFFF_0000_0006)  # the upper half means nothing
    epoll = file_record(6, operations=EPOLL_OPS)
    assert look_of(TTY, epoll, queues=[waits_at(TTY, 0, epoll.object)]).set_of(thread) == {}
    look = look_of(TTY, epoll, queues=[waits_at(epoll, thread.task)])
    assert look.set_of(thread) == {TID: epoll.object}
    assert look.set_of(thread._replace(arg0=0)) == {}  # a terminal is no set
    assert look.set_of(thread._replace(arg0=9)) == {}


# -- what it waits for -----------------------------------------------------------------------


def test_a_set_is_what_is_watched_for_reading():
    """Not what is only watched for writing, or for a reader that left."""
    third, fourth = file_record(5), file_record(6)
    look = look_of(
        TTY, PIPE, third, fourth,
        members=[member(fourth, events=POLLRDNORM), member(TTY), member(PIPE, events=POLLOUT),
                 member(third, events=POLLRDBAND)],
    )  # fmt: skip
    assert look.numbers(TID) == (0, 6)
    assert look.numbers(99) == ()


def test_a_file_that_has_several_numbers_has_the_lowest():
    """dup(2): a poll keeps the file, and not by which number it was named."""
    copies = [TTY._replace(fd=fd) for fd in (2, 0, 1)]
    assert look_of(*copies, members=[member(TTY)]).numbers(TID) == (0,)


def test_an_epoll_set_keeps_the_number_it_was_told():
    """So that one is told."""
    copies = [TTY._replace(fd=fd) for fd in (0, 1)]
    assert look_of(*copies, members=[member(TTY, 1)]).numbers(TID) == (1,)


@pytest.mark.parametrize(
    "watched",
    [
        member(TTY, MEMBERS_GO_ON),
        member(PIPE._replace(file=0x9999)),
        member(PIPE._replace(file=0x9999), 4),
        member(PIPE, 5),
    ],
    ids=["more than were told", "closed", "another file's number now", "number closed"],
)
def test_a_set_that_is_not_known_whole_is_not_known(watched):
    """Whatever else is in it: it may be just that which comes."""
    assert look_of(TTY, PIPE, members=[member(TTY, 0), watched]).numbers(TID) is None
