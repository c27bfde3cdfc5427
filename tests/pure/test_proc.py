"""The files below /proc, parsed."""

import os

import pytest
from builders import stat_line
from hypothesis import given
from hypothesis import strategies as st

from receipt_trace.observation import Descriptor, FileKind
from receipt_trace.sources import proc as files

# -- stat --------------------------------------------------------------------------------------


def test_the_fields_of_stat_are_taken_from_their_places():
    """Every field has a value of its own here, so that none can be mistaken for another."""
    line = stat_line(
        42, b"prog", "S", ppid=41, group=40, session=39, tty=34817, foreground=38,
        utime=100, stime=20, cutime=3000, cstime=400, threads=7, start=12345,
    )  # fmt: skip
    assert files.parse_stat(line) == files.Stat(
        pid=42, comm="prog", state="S", ppid=41, group=40, session=39, tty=34817, foreground=38,
        cpu=120, children_cpu=3400, threads=7, start=12345, exit_code=None,
    )  # fmt: skip


NAMES = {
    "spaces": (b"a b  c", "a b  c"),
    "parentheses": (b") S 1 (x", ") S 1 (x"),
    "a newline": (b"a\nb)", "a\nb)"),
    "invalid UTF-8": (b"\xff\xfe(", "\\xff\\xfe("),
    "nothing": (b"", ""),
    "what looks like the end of a line": (b"x) R 0 0 0 0 0", "x) R 0 0 0 0 0"),
}


@pytest.mark.parametrize(("comm", "expected"), NAMES.values(), ids=NAMES)
def test_a_name_may_hold_anything(comm, expected):
    """The rest begins after the last parenthesis."""
    found = files.parse_stat(stat_line(7, comm, ppid=3))
    assert (found.pid, found.comm, found.ppid) == (7, expected, 3)


@given(st.binary(max_size=15))
def test_no_name_hides_the_parent(comm):
    """A program chooses its own name."""
    found = files.parse_stat(stat_line(7, comm, ppid=3, start=11))
    assert (found.pid, found.ppid, found.start) == (7, 3, 11)
    assert found.comm == files.text(comm)


def test_the_wait_status_of_a_zombie_is_known():
    """And of nobody else, and not where the kernel shows 0 instead."""
    assert files.parse_stat(stat_line(7, state="Z", exit_code=256)).exit_code == 256
    assert files.parse_stat(stat_line(7, state="X", exit_code=9)).exit_code == 9
    assert files.parse_stat(stat_line(7, state="Z", exit_code=0)).exit_code is None
    assert files.parse_stat(stat_line(7, state="S", exit_code=256)).exit_code is None


@pytest.mark.parametrize("raw", [b"", b"7", b"7 (x", b"7 (x) S 1 2", b")(", b"x (y) " + b"1 " * 60])
def test_what_is_no_status_line_is_refused(raw):
    """With an error that callers expect, not with nonsense."""
    with pytest.raises(ValueError):
        files.parse_stat(raw)


# -- keys of terminals -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (0, None),
        (136 << 8 | 3, "pts:3"),
        (136 << 8 | 255, "pts:255"),
        (136 << 8 | 44 | 256 << 12, "pts:300"),
        (137 << 8 | 1, "pts:257"),
        (4 << 8 | 1, "tty:4:1"),
        (4 << 8 | 64, "tty:4:64"),
        (204 << 8 | 64, "tty:204:64"),
    ],
)
def test_a_terminal_is_named_by_its_device_number(device, expected):
    """As the kernel encodes it: the minor number is in two pieces."""
    assert files.terminal_key(device) == expected


# -- links -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("pipe:[4711]", (FileKind.PIPE, "pipe:[4711]")),
        ("socket:[12]", (FileKind.OUTSIDE, "socket:[12]")),
        ("anon_inode:[eventfd]", (FileKind.EVENT, "anon_inode:[eventfd]")),
        ("anon_inode:[timerfd]", (FileKind.EVENT, "anon_inode:[timerfd]")),
        ("anon_inode:[signalfd]", (FileKind.EVENT, "anon_inode:[signalfd]")),
        ("anon_inode:[eventpoll]", (FileKind.EPOLL, "anon_inode:[eventpoll]")),
        ("anon_inode:[pidfd]", (FileKind.PIDFD, "anon_inode:[pidfd]")),
        ("anon_inode:inotify", (FileKind.OUTSIDE, "anon_inode:inotify")),
        ("anon_inode:[io_uring]", (FileKind.OUTSIDE, "anon_inode:[io_uring]")),
        ("/dev/pts/3", (FileKind.TTY, "pts:3")),
        ("/dev/pts/123", (FileKind.TTY, "pts:123")),
        ("/dev/ptmx", (FileKind.PTMX, "/dev/ptmx")),
        ("/dev/pts/ptmx", (FileKind.PTMX, "/dev/pts/ptmx")),
        ("/dev/tty", (FileKind.TTY, "pts:9")),
        ("/dev/null", (FileKind.NULL, "/dev/null")),
        ("/home/user/notes", (None, "/home/user/notes")),
        ("/dev/pts/3 (deleted)", (None, "/dev/pts/3 (deleted)")),
        ("/dev/ttyS0", (None, "/dev/ttyS0")),
    ],
)
def test_a_link_says_what_is_behind_a_descriptor(target, expected):
    """Where its name alone does not, it is to be looked at."""
    assert files.classify(target, "pts:9") == expected


def test_dev_tty_of_a_process_without_a_terminal_is_outside():
    """It cannot be told what it reads."""
    assert files.classify("/dev/tty", None) == (FileKind.OUTSIDE, "/dev/tty")


# -- descriptors in a tree of files --------------------------------------------------------------


def hold(proc, target, fd=0, info=None):
    """Let process 10 hold a descriptor; returns how it is seen."""
    for name in ("fd", "fdinfo"):
        (proc.root / "10" / name).mkdir(parents=True, exist_ok=True)
    os.symlink(target, proc.root / "10" / "fd" / str(fd))
    if info is not None:
        (proc.root / "10" / "fdinfo" / str(fd)).write_text(info)
    return files.descriptor(proc.root, 10, fd, "pts:4")


def test_a_pipe_is_keyed_by_its_inode(proc):
    """Both ends have the same key."""
    assert hold(proc, "pipe:[7]") == Descriptor(0, FileKind.PIPE, "pipe:[7]", "pipe:[7]")


def test_dev_tty_is_the_terminal_of_the_process(proc):
    """The target stays as it is seen, the key is the object's."""
    assert hold(proc, "/dev/tty", 3) == Descriptor(3, FileKind.TTY, "pts:4", "/dev/tty")


def test_a_master_has_the_key_of_its_slave(proc):
    """Its fdinfo knows the number."""
    info = "pos:\t0\nflags:\t0100002\nmnt_id:\t30\nino:\t2\ntty-index:\t12\n"
    assert hold(proc, "/dev/ptmx", 5, info) == Descriptor(5, FileKind.PTMX, "pts:12", "/dev/ptmx")


def test_a_pidfd_has_the_number_of_its_process(proc):
    """As the observer's namespace counts."""
    info = "pos:\t0\nflags:\t02000002\nPid:\t42\nNSpid:\t42\t7\n"
    found = hold(proc, "anon_inode:[pidfd]", 6, info)
    assert (found.kind, found.key) == (FileKind.PIDFD, "42")


def test_a_regular_file_and_a_directory_are_always_ready(proc, tmp_path):
    """They stand in nobody's way."""
    (tmp_path / "notes").write_text("x")
    assert hold(proc, tmp_path / "notes", 3).kind is FileKind.FILE
    assert hold(proc, tmp_path, 4).kind is FileKind.FILE


def test_a_named_pipe_is_a_pipe(proc, tmp_path):
    """Keyed by file system and inode, since its name may change."""
    os.mkfifo(tmp_path / "fifo")
    status = os.stat(tmp_path / "fifo")
    found = hold(proc, tmp_path / "fifo", 3)
    assert (found.kind, found.key) == (FileKind.PIPE, f"fifo:{status.st_dev}:{status.st_ino}")


@pytest.mark.parametrize(
    ("device", "kind"), [("/dev/null", FileKind.NULL), ("/dev/zero", FileKind.NULL)]
)
def test_devices_that_always_answer_are_always_ready(proc, device, kind):
    """By their numbers, whatever they are called."""
    assert hold(proc, device, 3).kind is kind


def test_a_descriptor_that_is_gone_is_an_os_error(proc):
    """Whoever looks drops it."""
    proc.add(10)
    with pytest.raises(FileNotFoundError):
        files.descriptor(proc.root, 10, 0, None)


# -- fdinfo and status ---------------------------------------------------------------------------

EPOLL = b"""\
pos:\t0
flags:\t02
mnt_id:\t15
ino:\t1057
tfd:        0 events:       19 data:                0  pos:0 ino:6 sdev:1b
tfd:        5 events: 80000001 data: ffffffffffffffff  pos:0 ino:61af sdev:800007
tfd:        6 events:        4 data:                6  pos:0 ino:7 sdev:f
tfd:       12 events:       40 data:               12  pos:0 ino:8 sdev:f
tfd:       13 events: 40000000 data:               13  pos:0 ino:9 sdev:f
"""


def test_an_epoll_set_watches_its_readable_members():
    """Those only written, and those that have fired once, are left out."""
    assert files.epoll_members(EPOLL) == [(0, 6, 0x1B), (5, 0x61AF, 0x800007), (12, 8, 0xF)]


def test_an_empty_epoll_set_has_no_members():
    """Nothing but the head of the file."""
    assert files.epoll_members(EPOLL[:40]) == []


STATUS = b"Name:\tSigIgn: 7\nVmRSS:\t  12 kB\nRSS:\t5\nSigIgn:\t0000000000384004\n"


def test_a_field_is_found_by_its_whole_name():
    """Neither inside another name nor inside a value."""
    assert files.field(STATUS, "SigIgn", 16) == 0x384004
    assert files.field(STATUS, "RSS") == 5
    assert files.field(STATUS, "VmRSS") == 12
    assert files.field(STATUS, "Threads") is None


# -- text, arguments, environment ------------------------------------------------------------------


@given(st.binary())
def test_text_is_always_valid_utf8(raw):
    """What is not is escaped, what is stays."""
    assert files.text(raw).encode().decode() == files.text(raw)
    assert files.text("größe".encode()) == "größe"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", []),
        (b"a\0b c\0", ["a", "b c"]),
        (b"a\0\0", ["a", ""]),
        (b"\0", [""]),
        (b"nginx: worker", ["nginx: worker"]),
        (b"a\0\xff\0", ["a", "\\xff"]),
    ],
)
def test_a_command_line_is_split_at_its_nul_bytes(proc, raw, expected):
    """Empty arguments count; a program that rewrote it gives what it wrote."""
    (proc.add(10) / "cmdline").write_bytes(raw)
    assert files.arguments(proc.root, 10) == expected


def test_an_environment_is_names_and_values(proc):
    """Values may hold equals signs; what is no pair is left out."""
    (proc.add(10) / "environ").write_bytes(b"A=1\0B=x=y\0junk\0C=\0D=\xff\0")
    found = files.environment(proc.root, 10)
    assert found == {"A": "1", "B": "x=y", "C": "", "D": "\\xff"}


def test_a_link_that_may_not_be_seen_is_none(proc):
    """No error for what is only told beside."""
    proc.add(10, exe="/usr/bin/prog")
    assert files.link(proc.root, 10, "exe") == "/usr/bin/prog"
    assert files.link(proc.root, 10, "cwd") is None


def without_first_thread(proc, **more):
    """Process 10, whose first thread has left; thread 12 goes on."""
    directory = proc.add(10, state="Z", threads=2, **more)
    (directory / "cmdline").write_bytes(b"")
    (directory / "environ").write_bytes(b"")
    (directory / "exe").unlink()
    proc.add(12, argv=("prog", "-v"), env={"A": "1"}, exe="/usr/bin/prog")
    (directory / "task/12").mkdir()


def test_a_process_shows_itself_by_a_thread_that_is_still_there(proc):
    """The first one has taken its memory and its files with it."""
    without_first_thread(proc)
    assert files.living(proc.root, 10) == 12
    assert files.arguments(proc.root, 10) == ["prog", "-v"]
    assert files.environment(proc.root, 10) == {"A": "1"}
    assert files.link(proc.root, 10, "exe") == "/usr/bin/prog"


def test_who_has_ended_or_cleared_its_arguments_shows_nothing(proc):
    """No other thread is looked for, and nothing is wrong."""
    for pid, state, threads in ((10, "Z", 1), (20, "S", 3)):
        directory = proc.add(pid, argv=(), state=state, threads=threads)
        (directory / "task" / str(pid + 1)).mkdir()
        assert files.living(proc.root, pid) == pid
        assert files.arguments(proc.root, pid) == []
    assert files.living(proc.root, 99) == 99


def test_processes_are_the_directories_with_numbers(proc):
    """Whatever else lies beside them."""
    proc.add(10)
    (proc.root / "sys").mkdir()
    assert sorted(files.pids(proc.root)) == [1, 10]


def test_a_process_that_is_gone_is_an_os_error(proc):
    """Whoever looks drops it."""
    with pytest.raises(FileNotFoundError):
        files.stat(proc.root, 99)
