"""What a source sees: plain values, the same whatever the source is.

Everything below a :class:`Forest` is a picture of one moment. Nothing here
reads a clock, a file or the kernel, so that a source, a recorded trace and a
test can all make these values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class ProcessId(NamedTuple):
    """A process, beyond the reuse of its number.

    ``start`` is the start time in clock ticks since boot (field 22 of
    ``/proc/PID/stat``, proc_pid_stat(5)).
    """

    pid: int
    start: int


class FileKind(StrEnum):
    """What an open descriptor refers to, as far as waiting on it is concerned."""

    TTY = "tty"  # the slave side of a pseudo-terminal, or a real terminal
    PTMX = "ptmx"  # the master side of a pseudo-terminal
    PIPE = "pipe"  # anonymous pipe or named fifo
    UNIX = "unix"  # a unix-domain socket
    LISTENER = "listener"  # one that listens: ready only when somebody new comes
    EVENT = "event"  # eventfd, timerfd, signalfd: made ready by the tree's own doing
    EPOLL = "epoll"
    PIDFD = "pidfd"
    FILE = "file"  # regular file or directory: always ready
    NULL = "null"  # /dev/null and its like: always ready
    OUTSIDE = "outside"  # network sockets, inotify, devices: anybody can make them ready


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One open descriptor.

    ``key`` names the object behind it (``pts:3``, ``pipe:4711``): two descriptors
    with the same key share one object, and a master has the key of its slave.
    ``peer`` is the key of the other end of a unix socket, where known.
    """

    fd: int
    kind: FileKind
    key: str
    target: str
    readable: bool = True
    writable: bool = True
    peer: str | None = None


class Activity(StrEnum):
    """What one thread does at the moment of the picture."""

    INPUT = "input"  # blocked in a call of the input family
    PARKED = "parked"  # waits for its own tree: a child, a lock, a stopped process
    TIMED = "timed"  # the same, but not for ever: it may act by itself when its time comes
    ACTIVE = "active"  # anything else: runs, sleeps on a timer, writes
    UNKNOWN = "unknown"  # the kernel does not let us see


@dataclass(frozen=True, slots=True)
class Call:
    """An input-family system call a thread is blocked in.

    ``fds`` are the descriptors it waits to *read*; ``None`` where the set cannot
    be known. ``timeout`` is in seconds, ``None`` for none. ``multiplexed`` tells
    poll, select and epoll from a plain read.
    """

    name: str
    fds: tuple[int, ...] | None
    timeout: float | None = None
    multiplexed: bool = False


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread: what it does, and how often it got a processor (``None``: unknown)."""

    tid: int
    activity: Activity
    call: Call | None = None
    runs: int | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a tree at one moment.

    ``descriptors`` is ``None`` where they may not be seen. ``ignored`` and ``caught`` are
    signal masks (bit N-1 for signal N, proc_pid_status(5)). ``guest`` marks a process that is
    not in the tree and reads the tree's terminal (a pinentry below gpg-agent).
    """

    id: ProcessId
    ppid: int
    comm: str
    group: int
    session: int
    state: str = "S"
    terminal: str | None = None
    foreground: int = -1
    threads: tuple[Thread, ...] = ()
    descriptors: Mapping[int, Descriptor] | None = field(default_factory=dict)
    ignored: int = 0
    caught: int = 0
    guest: bool = False


@dataclass(frozen=True, slots=True)
class Console:
    """The terminal or pipe a wrapper itself holds: what is known of it without looking into anybody.

    ``unterminated``: the last line of the output is not empty and not ended. A pipe has no modes;
    its ``foreground`` is the command's own group.
    """

    key: str
    target: str
    canonical: bool
    echo: bool
    foreground: int
    unterminated: bool
    wiring: str = "tty"


@dataclass(frozen=True, slots=True)
class Forest:
    """Everything that decides who waits for input, at one moment.

    ``inputs`` are the keys of what the root was given to read. ``fed`` are those
    of them from which the root has already taken input and which owe no answer:
    a server between two requests.
    """

    root: ProcessId
    processes: Mapping[int, Process]
    inputs: frozenset[str] = frozenset()
    fed: frozenset[str] = frozenset()
    console: Console | None = None


class WaiterKey(NamedTuple):
    """Identity of a wait: the thread, and the object it wants input from."""

    pid: int
    start: int
    tid: int
    input: str


@dataclass(frozen=True, slots=True)
class Waiter:
    """A thread that waits for input which the harness holds (or which nobody can give).

    ``grade`` is the evidence: ``kernel``, ``syscall`` or ``terminal``. ``consumed``
    is a mark that moves when the thread takes input; ``None`` if unknown. ``relays``
    are the programs that only pass the input on, outermost first.
    """

    key: WaiterKey
    comm: str
    wiring: str  # "tty", "pipe" or "socket"
    fd: int
    target: str
    syscall: str
    wait_set: tuple[str, ...] = ()
    timeout: float | None = None
    relays: tuple[str, ...] = ()
    dead: bool = False
    grade: str = "syscall"
    consumed: int | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process of the tree ended: its wait status is known or it is just gone."""

    status: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at one tree, all that the rule is given.

    ``time`` is CLOCK_MONOTONIC in nanoseconds. ``output`` is a mark that moves
    with every write to the tree's terminal, stdout or stderr. ``cpu_ticks`` is the
    CPU time of the whole tree so far. ``running`` holds the threads (pid, start,
    tid) that were seen on a processor. ``ended`` holds the processes that ended
    since the last sample. ``answered`` and ``closed`` hold the inputs from which
    something was taken since then, and those that came to their end. ``suspected`` counts threads that wait for a terminal
    and, beside it, for a network connection. ``blind`` counts processes that may
    not be looked into. ``still`` is since when nobody in the tree has run, ``None`` where
    only looking again can tell.
    """

    time: int
    output: int = 0
    cpu_ticks: int = 0
    waiters: tuple[Waiter, ...] = ()
    running: frozenset[tuple[int, int, int]] = frozenset()
    ended: Mapping[ProcessId, Ending] = field(default_factory=dict)
    answered: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()
    suspected: int = 0
    blind: int = 0
    alive: bool = True
    still: int | None = None


@dataclass(frozen=True, slots=True)
class InputEnd:
    """A process read the end of an input.

    ``target`` names the input, ``wiring`` is ``null`` for a device that is always at its end.
    ``given``: it is what its tree was given to read; ``took``: the process had read something from
    it before. ``said`` is the last of the output then, ``own``: this process wrote it. ``time``
    is CLOCK_MONOTONIC in nanoseconds.
    """

    process: ProcessId
    comm: str
    time: int
    fd: int
    target: str
    wiring: str
    given: bool
    took: bool
    own: bool
    said: bytes = b""

    @property
    def waiter(self) -> Waiter:
        """The read that met the end, as one that waited is told."""
        key = WaiterKey(*self.process, self.process.pid, self.target)
        held = (f"{self.fd}={self.target}",)
        return Waiter(
            key, self.comm, self.wiring, self.fd, self.target, "read", held, grade="kernel"
        )


@dataclass(frozen=True, slots=True)
class Fork:
    """A process came to be. Threads are not told. ``identity`` is the child's, where it is known."""

    parent: int
    child: int
    identity: ProcessId | None = None


@dataclass(frozen=True, slots=True)
class Beginning:
    """How a process began, as the kernel told: all there is of one that was gone before anybody looked.

    Before it has become a program, only ``identity`` and ``parent`` are known. ``stdin`` is one of
    null, pipe, socket, tty, file, or empty. ``argv`` and ``environment`` may be cut short. ``execs``: how
    often it has become another program, with this one.
    """

    identity: ProcessId
    parent: int
    comm: str = ""
    argv: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    stdin: str = ""
    leads_session: bool = False
    uid: int | None = None
    execs: int = 0


@dataclass(frozen=True, slots=True)
class Exec:
    """A process became another program: only now do its name and environment mean anything.

    ``began`` is told of the root of a tree.
    """

    pid: int
    began: Beginning | None = None


@dataclass(frozen=True, slots=True)
class Exit:
    """A whole process ended; ``status`` is a wait status, ``None`` where it is not known."""

    pid: int
    status: int | None = None


@dataclass(frozen=True, slots=True)
class Resync:
    """Events were lost: whoever keeps state must look for himself."""


@dataclass(frozen=True, slots=True)
class Stir:
    """A thread of a tree has begun a call, or left a long one: the tree is worth a look now."""

    root: int


Lifecycle = Fork | Exec | Exit | Stir | Resync


@dataclass(frozen=True, slots=True)
class Program:
    """Who somebody is, as a receipt tells it."""

    comm: str
    exe: str | None = None
    argv: tuple[str, ...] = ()
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds the other end of an input."""

    name: str
    pid: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What can be seen of where a waiter reads, and of what was printed there.

    ``canonical`` and ``echo`` are a terminal's modes (``None``: no terminal, or not readable);
    ``output`` the latest output (``None``: nobody could see it), ``source`` how it was seen,
    ``terminal``: as a terminal got it, ``alternate``: with the alternate screen on, ``total``: how
    many bytes of it there were so far (0: not counted).
    """

    canonical: bool | None = None
    echo: bool | None = None
    output: bytes | None = None
    source: str = "output"
    terminal: bool = False
    alternate: bool = False
    total: int = 0
    columns: int = 80
    lines: int = 24


@dataclass(frozen=True, slots=True)
class Context:
    """What is read once, when a wait is confirmed, to word its receipt.

    ``canonical`` and ``echo`` are the terminal's modes (``None``: no terminal, or not
    readable). ``output`` is the latest output, ``columns`` and ``lines`` the size it was
    drawn for; ``output_source`` is ``output`` when it passed through us or was read from
    the file the harness gave, ``none`` when nobody could see it; ``output_total`` is how many bytes
    there were so far (0: not counted). ``wall`` is CLOCK_REALTIME
    in nanoseconds. ``holders`` are the processes above the tree that hold the other end
    of the input, ``person``: a person may answer at it as well. ``inner_pid`` and
    ``root_inner_pid`` are the numbers inside the innermost pid namespace (``None``: there
    is only ours). ``busy`` tells that something else happened in the tree before.
    """

    program: Program
    root: Program
    uid: int | None = None
    user: str | None = None
    cgroup: str | None = None
    container: str | None = None
    container_name: str | None = None
    inner_pid: int | None = None
    root_inner_pid: int | None = None
    holders: tuple["Holder", ...] = ()
    person: bool = False
    canonical: bool | None = None
    echo: bool | None = None
    output: bytes = b""
    output_source: str = "none"
    output_total: int = 0
    alternate: bool = False
    columns: int = 80
    lines: int = 24
    terminal_output: bool = False
    wall: int = 0
    busy: bool = True
