"""Who waits for whom: from blocked threads and open descriptors to input waiters.

Pure. Given a picture of a tree it answers which threads wait for input that
somebody outside has to give. The heart is a greatest fixed point: every
blocked thread is taken as stuck, and a thread is struck off as long as somebody
in its own tree may still make its input ready. What is left can go on only if
the other end of a controlled input answers, or never (a dead wait).

Words as in ``docs/rule.md``; job control after tty_ioctl(4) and n_tty.c.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from receipt_trace.constants import NS, QUIET_NS
from receipt_trace.observation import (
    Activity,
    Call,
    Console,
    Descriptor,
    FileKind,
    Forest,
    Process,
    Thread,
    Waiter,
    WaiterKey,
)

# How an interactive shell shows itself (bash, zsh, fish, dash, ash, tcsh, mksh, ksh93, yash and elvish
# alike): it catches SIGCHLD for its jobs and SIGINT to keep its line (or found it ignored), survives
# SIGQUIT and SIGTERM, and with job control it ignores SIGTSTP (ksh93 catches it, and so does a relay
# such as sudo, which has a terminal of its own to drive), and SIGTTOU so that it can
# take its terminal back from a job. What is ignored may be inherited from a shell (`bash -i -c` leaves
# the stop signals ignored), and editors catch what ends them; only a shell waits for its jobs,
# too. signal(7) has the numbers.
_INT: Final = 1 << 1
_QUIT: Final = 1 << 2
_TERM: Final = 1 << 14
_CHLD: Final = 1 << 16
_TSTP: Final = 1 << 19
_TTOU: Final = 1 << 21

_WIRING: Final = {FileKind.TTY: "tty", FileKind.PIPE: "pipe", FileKind.UNIX: "socket"}
_STOPPED: Final = frozenset("Tt")
_GONE: Final = frozenset("ZX")


@dataclass(frozen=True, slots=True)
class Findings:
    """The waiters of one picture, and what was seen beside them.

    ``suspected``: threads that wait for a controlled terminal and a network
    connection at once. ``blind``: processes that may not be looked into.
    """

    waiters: tuple[Waiter, ...] = ()
    suspected: int = 0
    blind: int = 0


@dataclass(slots=True)
class _Wait:
    """One blocked thread, with its descriptors resolved."""

    process: Process
    thread: Thread
    controlled: tuple[Descriptor, ...]
    wrong_end: tuple[Descriptor, ...]
    feeders: dict[str, frozenset[int]]  # descriptor key -> processes of the tree that feed it
    relays: bool  # it stands between an inner terminal and the harness, so it never asks for itself
    listens: bool  # somebody new may come to it: it waits, but not for the harness alone
    wait_set: tuple[str, ...]

    @property
    def call(self) -> Call:
        """The call it is blocked in."""
        assert self.thread.call is not None
        return self.thread.call

    @property
    def descriptors(self) -> list[Descriptor]:
        """What it waits for."""
        held = self.process.descriptors or {}
        return [held[fd] for fd in self.call.fds or ()]


def find_waiters(forest: Forest) -> Findings:
    """Name the input waiters of a picture.

    A thread is one when it is blocked in an input-family call, everything in its
    wait set is known, nothing in it can be made ready from outside except the
    controlled input, and no other process of the tree can make it ready either.
    Idle job-control shells, fed roots and relays without a reader are not.
    """
    ends = _Ends(forest)
    waits: list[_Wait] = []
    suspected = 0
    for process in forest.processes.values():
        for thread in process.threads:
            wait, suspect = _resolve(forest, ends, process, thread)
            suspected += suspect
            if wait is not None:
                waits.append(wait)
    _mark_relays(waits)
    stuck = _fixed_point(forest, waits)
    found = _controlled(forest, ends, stuck)
    answerable = {(w.key.pid, w.key.tid) for w in found}
    found += _dead(ends, [w for w in stuck if (w.process.id.pid, w.thread.tid) not in answerable])
    blind = [p for p in forest.processes.values() if p.descriptors is None]
    if forest.console is not None:
        found += _terminal_grade(forest, forest.console, blind)
    return Findings(tuple(found), suspected, len(blind))


class _Ends:
    """Index of both ends: which processes of the tree hold what."""

    def __init__(self, forest: Forest) -> None:
        self.writers: dict[str, set[int]] = {}
        self.masters: dict[str, set[int]] = {}
        self.slaves: dict[str, set[int]] = {}
        self.sockets: dict[str, set[int]] = {}
        index = {
            FileKind.PTMX: self.masters,
            FileKind.TTY: self.slaves,
            FileKind.UNIX: self.sockets,
        }
        for pid, process in forest.processes.items():
            if process.guest:  # a guest reads the terminal, it feeds nobody of the tree
                continue
            for descriptor in (process.descriptors or {}).values():
                held = index.get(descriptor.kind)
                if held is None and descriptor.kind is FileKind.PIPE and descriptor.writable:
                    held = self.writers
                if held is not None:
                    held.setdefault(descriptor.key, set()).add(pid)

    def feeders(self, pid: int, descriptor: Descriptor) -> frozenset[int] | None:
        """Processes of the tree that can make a descriptor ready; ``None``: somebody outside can.

        A process that holds the other end itself (a self-pipe) is not its own feeder.
        """
        match descriptor.kind:
            case FileKind.TTY:
                held = self.masters.get(descriptor.key)
            case FileKind.PTMX:
                held = self.slaves.get(descriptor.key)
            case FileKind.PIPE:
                held = self.writers.get(descriptor.key)
            case FileKind.UNIX:
                held = self.sockets.get(descriptor.peer or "")
            case FileKind.PIDFD:
                return frozenset((int(descriptor.key),))
            case FileKind.EVENT | FileKind.FILE | FileKind.NULL:
                return frozenset()
            case _:
                held = None
        return None if held is None else frozenset(held - {pid})


def _resolve(
    forest: Forest, ends: _Ends, process: Process, thread: Thread
) -> tuple[_Wait | None, int]:
    """Look at one thread; the second value is 1 when a network connection stands in the way."""
    call = thread.call
    if thread.activity is not Activity.INPUT or call is None or not call.fds:
        return None, 0
    if process.descriptors is None:
        return None, 0
    controlled: list[Descriptor] = []
    wrong_end: list[Descriptor] = []
    feeders: dict[str, frozenset[int]] = {}
    outside: list[Descriptor] = []
    listens = False
    wait_set: list[str] = []
    for fd in call.fds:
        descriptor = process.descriptors.get(fd)
        if descriptor is None:
            return None, 0
        wait_set.append(f"{fd}={descriptor.target}")
        if descriptor.kind is FileKind.PIPE and not descriptor.readable:
            wrong_end.append(descriptor)
            continue
        if descriptor.kind is FileKind.LISTENER:
            listens = True
            continue
        fed_by = ends.feeders(process.id.pid, descriptor)
        if _is_controlled(forest, descriptor, fed_by):
            controlled.append(descriptor)
        elif fed_by is None:
            outside.append(descriptor)
        else:
            feeders[descriptor.key] = fed_by
    if outside:
        network = all(d.target.startswith("socket:") for d in outside)
        return None, int(network and bool(controlled))
    mine = [d for d in controlled if _may_read(forest, process, d, thread)]
    if controlled and not mine:
        return None, 0
    masters = any(process.descriptors[fd].kind is FileKind.PTMX for fd in call.fds)
    return _Wait(
        process=process,
        thread=thread,
        controlled=tuple(mine),
        wrong_end=tuple(wrong_end),
        feeders=feeders,
        relays=masters,
        listens=listens,
        wait_set=tuple(wait_set),
    ), 0


def _is_controlled(forest: Forest, descriptor: Descriptor, feeders: frozenset[int] | None) -> bool:
    """The other end is the harness's: a terminal no one in the tree drives, or what the root got."""
    if descriptor.kind is FileKind.TTY:
        return feeders is None
    return descriptor.key in forest.inputs


def _may_read(forest: Forest, process: Process, descriptor: Descriptor, thread: Thread) -> bool:
    """Whether the waiter would get what is typed or written: job control, idle shells, fed roots."""
    stopped = process.state in _STOPPED
    if descriptor.kind is not FileKind.TTY:
        idle = descriptor.key in forest.fed or _idle_shell(process, job_control=False)
        return not stopped and not (process.id == forest.root and idle)
    if process.terminal != descriptor.key:  # not its controlling terminal: no job control
        return not stopped
    background = process.foreground not in (-1, process.group)
    if background:
        # Stopped by SIGTTIN inside its read: it would read if it were let.
        plain = thread.call is not None and not thread.call.multiplexed
        return stopped and plain
    return not stopped and not _idle_shell(process, job_control=True)


def _idle_shell(process: Process, *, job_control: bool) -> bool:
    """An interactive shell that itself reads its terminal or command channel runs no command."""
    ignored, caught = process.ignored, process.caught
    if not caught & _CHLD:
        return False
    if job_control:
        survived = _INT | _QUIT | _TERM | _TSTP
        held = (process.descriptors or {}).values()
        drives = caught & _TSTP and any(d.kind is FileKind.PTMX for d in held)
        survives = (ignored | caught) & survived == survived
        return bool(ignored & _TTOU) and survives and not drives
    return bool(caught & _INT) and ignored & (_QUIT | _TERM) == _QUIT | _TERM


def _mark_relays(waits: list[_Wait]) -> None:
    """Who holds a connection to a relay only passes on, too: the client of a terminal multiplexer."""
    relays = {wait.process.id.pid for wait in waits if wait.relays}
    for wait in waits:
        fed_by = (wait.feeders.get(d.key, ()) for d in wait.descriptors if d.kind is FileKind.UNIX)
        wait.relays = wait.relays or any(not relays.isdisjoint(pids) for pids in fed_by)


def _fixed_point(forest: Forest, waits: list[_Wait]) -> list[_Wait]:
    """Strike off every wait that somebody in the tree may still end, until none is left to strike."""
    children: dict[int, list[int]] = {}
    for pid, process in forest.processes.items():
        children.setdefault(process.ppid, []).append(pid)
    stuck = waits
    while True:
        blocked = {(w.process.id.pid, w.thread.tid) for w in stuck}
        quiet = _quiet(forest.processes, blocked)
        kept = [w for w in stuck if _holds(w, quiet, children, blocked)]
        if len(kept) == len(stuck):
            return kept
        stuck = kept


def _holds(
    wait: _Wait,
    quiet: Mapping[int, bool],
    children: Mapping[int, list[int]],
    blocked: AbstractSet[tuple[int, int]],
) -> bool:
    if wait.relays:  # whether its inner terminal is waited for decides the inner reader
        return True
    others = [pid for fed_by in wait.feeders.values() for pid in fed_by]
    if wait.call.multiplexed and len(wait.call.fds or ()) > 1:
        # It watches its input while its own children or threads work: whatever ends first.
        others += children.get(wait.process.id.pid, ())
        if any(_works(t, wait.process, blocked) for t in wait.process.threads):
            return False
    return all(quiet.get(pid, True) for pid in others)


def _works(thread: Thread, process: Process, blocked: AbstractSet[tuple[int, int]]) -> bool:
    """A thread that does something, and not only keeps a runtime's time."""
    idle = thread.activity in (Activity.PARKED, Activity.TIMED)
    return not idle and (process.id.pid, thread.tid) not in blocked


def _quiet(processes: Mapping[int, Process], blocked: set[tuple[int, int]]) -> dict[int, bool]:
    """For each process: neither it nor anything below it can act by itself."""
    quiet = dict.fromkeys(processes, True)
    for pid, process in processes.items():
        if process.state in _GONE or not quiet[pid]:
            continue
        parked = process.descriptors is not None and all(
            t.activity is Activity.PARKED or (pid, t.tid) in blocked for t in process.threads
        )
        up = pid
        while not parked and quiet.get(up, False):  # until somebody is known to act already
            quiet[up] = False
            up = processes[up].ppid
    return quiet


def _controlled(forest: Forest, ends: _Ends, stuck: Iterable[_Wait]) -> list[Waiter]:
    """The waiters that the harness can answer: directly, or at the end of a chain of terminals."""
    stuck = list(stuck)
    by_process: dict[int, list[_Wait]] = {}
    for wait in stuck:
        by_process.setdefault(wait.process.id.pid, []).append(wait)
    found: list[Waiter] = []
    for wait in stuck:
        if wait.relays or wait.listens:  # it asks nothing itself, or not the harness alone
            continue
        if wait.controlled:
            found.append(_waiter(wait, wait.controlled[0]))
            continue
        for descriptor in wait.descriptors:
            relays = _relays(forest, ends, by_process, descriptor, frozenset())
            if relays and _may_read(forest, wait.process, descriptor, wait.thread):
                found.append(_waiter(wait, descriptor, relays=relays))
                break
    return found


def _relays(
    forest: Forest,
    ends: _Ends,
    by_process: Mapping[int, list[_Wait]],
    descriptor: Descriptor,
    seen: frozenset[str],
) -> tuple[str, ...]:
    """The programs between an inner terminal and the harness, outermost first; empty: there is no way."""
    if descriptor.kind is not FileKind.TTY or descriptor.key in seen:
        return ()
    for holder in sorted(ends.masters.get(descriptor.key, ())):
        for wait in by_process.get(holder, ()):
            comm = wait.process.comm
            if wait.controlled:
                return (comm,)
            for client in _clients(wait, by_process):
                return (client, comm)
            for outer in wait.descriptors:
                chain = _relays(forest, ends, by_process, outer, seen | {descriptor.key})
                if chain:
                    return (*chain, comm)
    return ()


def _clients(wait: _Wait, by_process: Mapping[int, list[_Wait]]) -> Iterator[str]:
    """The programs that hold a connection to a relay, and the harness's terminal beside it."""
    fed_by = (wait.feeders.get(d.key, ()) for d in wait.descriptors if d.kind is FileKind.UNIX)
    for pid in sorted({pid for pids in fed_by for pid in pids}):
        yield from (w.process.comm for w in by_process.get(pid, ()) if w.controlled)


def _dead(ends: _Ends, stuck: Iterable[_Wait]) -> list[Waiter]:
    """The waits that nobody can end: an inner terminal all of whose drivers are stuck, a wrong end.

    A driver whose own time-out has not yet passed may still act; one with a shorter
    time-out than the quiet time has come back from it and done nothing. Nor is it dead where
    somebody can still come to the driver.
    """
    stuck = list(stuck)
    patient = {
        w.process.id.pid for w in stuck if w.call.timeout and w.call.timeout * NS >= QUIET_NS
    }
    reaching = {w.process.id.pid for w in stuck if w.controlled or w.listens}
    found: list[Waiter] = []
    for wait in stuck:
        if wait.controlled or wait.relays:
            continue
        alone = not wait.feeders and not wait.listens
        if wait.wrong_end and alone and wait.call.timeout is None:
            found.append(_waiter(wait, wait.wrong_end[0], dead=True))
            continue
        for descriptor in wait.descriptors:
            drivers = ends.masters.get(descriptor.key, set()) - {wait.process.id.pid}
            if descriptor.kind is FileKind.TTY and drivers and not drivers & (patient | reaching):
                if not _idle_shell(wait.process, job_control=True):
                    found.append(_waiter(wait, descriptor, dead=True))
                break
    return found


def _terminal_grade(forest: Forest, console: Console, blind: Iterable[Process]) -> list[Waiter]:
    """A set-uid program that may not be looked into: only the wrapper's own input speaks.

    It must be asleep in the foreground of the terminal, or in the command's own group, and
    still alone (a ``sudo`` that already runs its command has a child), and either have
    switched the echo off in line mode, as only a question for a secret does, or have left a
    line unfinished. The last says nothing of a command that a set-uid program runs: a download
    below ``sudo`` looks just so.
    """
    secret = console.canonical and not console.echo
    if not secret and not console.unterminated:
        return []
    blind = list(blind)
    unseen = {process.id.pid for process in blind}
    parents = {p.ppid for p in forest.processes.values() if p.state not in _GONE}
    return [
        Waiter(
            key=WaiterKey(*process.id, process.id.pid, console.key),
            comm=process.comm,
            wiring=console.wiring,
            fd=-1,
            target=console.target,
            syscall="unknown",
            grade="terminal",
        )
        for process in blind
        if process.state == "S"
        and process.group == console.foreground
        and process.id.pid not in parents
        and (secret or process.ppid not in unseen)
    ]


def _waiter(
    wait: _Wait, descriptor: Descriptor, relays: tuple[str, ...] = (), dead: bool = False
) -> Waiter:
    return Waiter(
        key=WaiterKey(*wait.process.id, wait.thread.tid, descriptor.key),
        comm=wait.process.comm,
        wiring=_WIRING.get(descriptor.kind, "pipe"),
        fd=descriptor.fd,
        target=descriptor.target,
        syscall=wait.call.name,
        wait_set=wait.wait_set,
        timeout=wait.call.timeout,
        relays=relays,
        dead=dead,
    )
