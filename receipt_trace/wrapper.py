"""Running one command under observation: the API behind ``receipt-trace run``.

    result = receipt_trace.run(["rm", "-i", "notes"])
    with receipt_trace.Run(["rm", "-i", "notes"]) as command:
        for receipt in command:      # as they happen
            ...

The command is started before anything else is loaded, so that a short one costs
little more than itself.
"""

import contextlib
import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self

from receipt_trace import terminal
from receipt_trace.constants import INTERRUPT_GRACE_NS, NS, SAMPLE_PERIOD_NS
from receipt_trace.errors import EXIT_TIMEOUT, EXIT_WAIT, UsageError, exit_status
from receipt_trace.forward import Forward
from receipt_trace.output import Output
from receipt_trace.wiring import Wiring, adopt_orphans, spawn

if TYPE_CHECKING:
    from receipt_trace.observation import Console, Context, Lifecycle, ProcessId, Waiter
    from receipt_trace.receipt import Receipt
    from receipt_trace.sources.choice import Events
    from receipt_trace.sources.sampler import Sampler
    from receipt_trace.tracer import Tracer
    from receipt_trace.trees import Tree

_CHUNK: Final = 65536
_DRAIN_S: Final = 0.05  # the kernel hands the last output of a terminal on from a work queue
_REAP_S: Final = 0.05  # how often to look for the end where there is no pidfd

Sink = Callable[[int, bytes], None]
"""(stream, bytes): where output is passed on to. Stream 1 is stdout, 2 is stderr."""


class Result(NamedTuple):
    """What became of a command.

    ``returncode`` as a shell tells it: the exit status, 128+N for signal N; 75 when a
    wait ended it (``on_wait="interrupt"``), 124 when the time was up. ``output`` is
    stdout and stderr in the order they came. ``receipts`` are all records, waits and
    their resolutions.
    """

    returncode: int
    output: bytes
    receipts: tuple["Receipt", ...]
    survivors: tuple[int, ...] = ()


def run(
    argv: Sequence[str],
    *,
    wiring: Wiring | Literal["tty", "pipe", "null"] = "pipe",
    on_wait: Literal["report", "interrupt"] = "report",
    timeout: float | None = None,
    input: bytes | None = None,  # noqa: A002  (as in subprocess.run)
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Result:
    """Run a command to its end and return what became of it.

    With ``on_wait="report"`` nothing is ever signalled: a command that waits is waited
    for, unless ``timeout`` (seconds) ends it. ``input`` is given to the command; without
    it nobody answers. Raises what :func:`receipt_trace.wiring.spawn` raises.
    """
    given = None
    if input is not None:
        given, writer = os.pipe()
        _write_behind(writer, input)
    try:
        command = Run(
            argv, wiring=wiring, on_wait=on_wait, timeout=timeout, stdin=given, cwd=cwd, env=env
        )
        with command:
            receipts = tuple(command)
            return Result(command.returncode, bytes(command.captured), receipts, command.survivors)
    finally:
        if given is not None:
            os.close(given)


def _write_behind(writer: int, data: bytes) -> None:
    """Write all of it into a pipe without waiting for its reader."""
    import threading  # noqa: PLC0415  (only when input is given)

    def write() -> None:
        with contextlib.suppress(OSError), open(writer, "wb", buffering=0) as pipe:
            view = memoryview(data)
            while view:
                view = view[pipe.write(view) :]

    threading.Thread(target=write, daemon=True).start()


class Run:
    """A command under observation; iterating gives its receipts as they happen.

    ``problems`` are sentences about what went wrong on our side while the command went on.

    ``stdin`` is a descriptor whose bytes are passed on to the command, unread by us.
    Its end is passed on too, once something came; an input that is closed from the
    start is nobody, and leaves the command with an open one. ``sink`` gets the output
    instead of ``captured``. ``adopt`` makes this *process* adopt the command's orphans
    (the command line does; a host application that reaps its own children should not).

    Use it as a context manager: leaving it ends the command if it still runs.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        wiring: Wiring | Literal["tty", "pipe", "null"] = "pipe",
        on_wait: Literal["report", "interrupt"] = "report",
        timeout: float | None = None,
        stdin: int | None = None,
        sink: Sink | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        size: tuple[int, int] = (80, 24),
        adopt: bool = False,
        label: str | None = None,
        source: str = "auto",
        attach: str = "snapshot",
        capture: str = "waits",
    ) -> None:
        if timeout is not None and not timeout > 0:
            raise UsageError(f"timeout is {timeout}; expected seconds above 0")
        self._source: Sampler | None = None
        self._events: Events | None = None
        if source == "bpf" or attach != "snapshot" or capture != "waits":
            from receipt_trace.sources.choice import choose  # noqa: PLC0415

            self._source, self._events, _ = choose("bpf", attach, capture)
        if adopt:
            adopt_orphans()
        self.captured = bytearray()
        self.output = Output()
        self.survivors: tuple[int, ...] = ()
        self.problems: list[str] = []
        self.on_tick: Callable[[], None] | None = None
        self._sink: Sink = sink or (lambda _stream, data: self.captured.extend(data))
        self._on_wait, self._adopt, self._label = on_wait, adopt, label
        self._size = size
        self._selector = selectors.DefaultSelector()
        with self._source.expecting() if self._source is not None else contextlib.nullcontext():
            self._child = spawn(
                argv, Wiring(wiring), cwd=cwd, env=env, size=size, dies_with_us=adopt
            )
        self._started = time.monotonic_ns()
        self._deadline = None if timeout is None else self._started + int(timeout * NS)
        self._receipts: deque[Receipt] = deque()
        self._tracer: Tracer | None = None
        self._tree: Tree | None = None
        self._next_sample = self._started + SAMPLE_PERIOD_NS
        self._status: int | None = None
        self._ending: _Ending | None = None
        self._blind = False
        for fd in self._child.outputs:
            self._selector.register(fd, selectors.EVENT_READ, self._relay)
        self._pidfd = self._open_pidfd()
        self._forward = Forward(self._selector, stdin, self._child)
        if self._source is not None:
            self._observer()  # it sees from the first instruction on

    # -- what a caller sees ------------------------------------------------------------

    @property
    def pid(self) -> int:
        """Process number of the command."""
        return self._child.pid

    @property
    def master(self) -> int | None:
        """Our side of the command's terminal (``None``: it has none)."""
        return self._child.master

    @property
    def returncode(self) -> int:
        """How it ended, as in :class:`Result`; raises while it runs."""
        if self._status is None:
            raise RuntimeError("the command still runs; iterate over it to its end first")
        if self._ending is not None:
            return self._ending.returncode
        return exit_status(self._status)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator["Receipt"]:
        while self._status is None:
            self._turn()
            yield from self._take()
        self._finish()
        yield from self._take()

    def close(self) -> None:
        """End the command if it still runs, and let go of everything."""
        if self._status is None:
            self._end(EXIT_WAIT, (("SIGKILL", NS),))
            while self._status is None and not (self._ending and self._ending.given_up):
                self._turn()
        self._child.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        self._selector.close()
        if self._tracer is not None and self._tree is not None:
            self._tracer.stop(self._tree, time.monotonic_ns())
            self._tracer = None
        if self._source is not None:
            self._source.close()

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Call back whenever a descriptor of the caller is readable (signals, for one)."""
        self._selector.register(fd, selectors.EVENT_READ, lambda _fd: callback())

    def signal_foreground(self, number: int) -> None:
        """Hand a signal on to the foreground of the command's terminal, else to its group."""
        group = self.pid
        if self._child.master is not None:
            with contextlib.suppress(OSError):
                group = os.tcgetpgrp(self._child.master) or group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)

    def signal_members(self, number: int) -> None:
        """Send a signal to every process of the tree."""
        self._observer()
        self._scan()
        for pid in self._members():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def resize(self, columns: int, lines: int) -> None:
        """Give the command's terminal another size."""
        self._size = (columns, lines)
        if self._child.master is not None:
            terminal.resize(self._child.master, columns, lines)

    # -- one turn of the loop ----------------------------------------------------------

    def _turn(self) -> None:
        now = time.monotonic_ns()
        wake = min(
            t for t in (self._next_sample, self._deadline, self._ending and self._ending.at) if t
        )
        if self._pidfd is None:
            wake = min(wake, now + int(_REAP_S * NS))
        for key, _ in self._selector.select(max(0, wake - now) / NS):
            key.data(key.fd)
        if self._pidfd is None:
            self._reap(-1)
        now = time.monotonic_ns()
        if self._status is None and self._deadline is not None and now >= self._deadline:
            self._deadline = None
            self._end(EXIT_TIMEOUT, INTERRUPT_GRACE_NS[1:])
        if self._ending is not None:
            self._press(self._ending, now)
        elif self._status is None and now >= self._next_sample:
            self._observe(now)

    def _relay(self, fd: int) -> None:
        """Pass output on, and keep the end of it."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:  # EIO: the other side of the terminal is closed
            data = b""
        if not data:
            self._selector.unregister(fd)
            if fd != self._child.master:
                os.close(fd)
                del self._child.outputs[fd]
            return
        self.output.feed(data)
        try:
            self._sink(self._child.outputs[fd], data)
        except OSError as error:
            if not isinstance(error, BrokenPipeError):  # whoever closed a pipe knows about it
                self.problems.append(f"the command's output cannot be written: {error.strerror}")
            self._broken(fd)

    def _broken(self, fd: int) -> None:
        """Nobody reads our output any more: let the command find out as it would without us."""
        self._selector.unregister(fd)
        if fd == self._child.master:
            self._forward.stop()
            self._child.input = self._child.master = None
        os.close(fd)
        del self._child.outputs[fd]

    # -- observation -------------------------------------------------------------------

    def _observe(self, now: int) -> None:
        """One sample. A fault of ours ends the observation, never the command."""
        self._next_sample = now + SAMPLE_PERIOD_NS
        if self.on_tick is not None:
            self.on_tick()
        self._forward.tick()
        try:
            if not self._blind:
                self._sample(now)
        except Exception as error:  # noqa: BLE001  (whatever it is)
            self._fault(error)

    def _fault(self, error: Exception) -> None:
        self._blind = True
        self.problems.append(
            f"the command was no longer observed after a fault of ours "
            f"({type(error).__name__}: {error}); please report it"
        )

    def _sample(self, now: int) -> None:
        began = time.thread_time_ns()
        tracer, tree = self._observer()
        self._scan()
        key = self._child.key
        console = self._console() if tracer.counts(tree)[1] else None
        due = tracer.step(
            tree,
            now,
            output=self.output.total,
            console=console,
            given=self._forward.count,
            fed=frozenset((key,)) if self._is_fed() else frozenset(),
        )
        self._next_sample = tracer.pace(tree, due, now, now + time.thread_time_ns() - began)
        if (
            self._on_wait == "interrupt"
            and tracer.waits(tree)
            and tracer.still(tree, now, console=console, given=self._forward.count)
        ):
            self._end(EXIT_WAIT, INTERRUPT_GRACE_NS)

    def _observer(self) -> tuple["Tracer", "Tree"]:
        if self._tracer is None or self._tree is None:
            from receipt_trace.observation import ProcessId  # noqa: PLC0415
            from receipt_trace.sources import proc  # noqa: PLC0415
            from receipt_trace.tracer import Tracer, open_limit, this_host  # noqa: PLC0415
            from receipt_trace.trees import Tree  # noqa: PLC0415

            open_limit()
            source = self._open_source()
            self._root = source.root
            start = proc.stat(self._root, self.pid).start
            self._tree = Tree(
                ProcessId(self.pid, start),
                parent=os.getpid(),
                label=self._label,
                inputs=frozenset((self._child.key,) if self._child.input is not None else ()),
            )
            self._tracer = Tracer(
                source, this_host(), self._receipts.append, self._context, time.time_ns
            )
            self._tracer.follow(self._tree)
        return self._tracer, self._tree

    def _open_source(self) -> "Sampler":
        """The one that was opened before the command, else procfs, which is there at once."""
        if self._source is None:
            from receipt_trace.sources.procfs import Procfs  # noqa: PLC0415

            self._source = Procfs()
            if not self._source.usable:
                self.problems.append(
                    f"nothing is observed: the system calls of {os.uname().machine} are not known; "
                    f"try: receipt-trace doctor"
                )
        return self._source

    def _scan(self) -> None:
        """Who has ended, who was born below the command, and who came back to us as an orphan."""
        if self._tree is None:
            return
        if self._events is not None:
            self._follow(self._events.read())
        from receipt_trace.sources import scan  # noqa: PLC0415

        members = self._tree.members
        for pid, identity in list(members.items()):
            if pid != self.pid:
                self._bury(pid, identity)
        parents = [os.getpid(), *members] if self._adopt else list(members)
        for _, child in scan.below(self._root, parents, [*members, os.getpid()]):
            members[child] = self._identity(child)
            self._tree.born += 1

    def _follow(self, events: Iterable["Lifecycle"]) -> None:
        """Who was born below the command, and how whoever ended has ended, as the kernel tells it."""
        from receipt_trace.observation import Ending, Exit, Fork  # noqa: PLC0415

        assert self._tree is not None
        members = self._tree.members
        for event in events:
            match event:
                case Fork(parent, child, identity) if parent in members and child not in members:
                    members[child] = identity
                    self._tree.born += 1
                case Exit(pid, status) if pid in members and pid != self.pid:
                    ended = members.pop(pid)
                    if ended is not None:
                        self._tree.ended[ended] = Ending(status)

    def _bury(self, pid: int, identity: "ProcessId | None") -> None:
        """Drop a member that is gone, also if its number is somebody else's by now. Orphans that
        ended are ours to wait for.
        """
        assert self._tree is not None
        if self._adopt:
            from receipt_trace.observation import Ending  # noqa: PLC0415

            with contextlib.suppress(ChildProcessError):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended and identity is not None:
                    self._tree.ended[identity] = Ending(status)
        now = self._identity(pid)
        if now is None or now != identity:
            del self._tree.members[pid]

    def _identity(self, pid: int) -> "ProcessId | None":
        from receipt_trace.observation import ProcessId  # noqa: PLC0415
        from receipt_trace.sources import proc  # noqa: PLC0415

        try:
            return ProcessId(pid, proc.stat(self._root, pid).start)
        except (OSError, ValueError):
            return None

    def _console(self) -> "Console | None":
        from receipt_trace.observation import Console  # noqa: PLC0415

        master, said = self._child.master, self.output.unterminated
        if master is None and self._forward.taken:  # an open pipe with nothing left in it
            return Console(
                self._child.key, self._child.target, True, True, self.pid, said, wiring="pipe"
            )
        modes = terminal.modes(master) if master is not None else None
        if master is None or modes is None:
            return None
        try:
            foreground = os.tcgetpgrp(master)
        except OSError:
            return None
        return Console(
            self._child.key,
            self._child.target,
            modes.canonical,
            modes.echo,
            foreground,
            said,
        )

    def _is_fed(self) -> bool:
        """The command took all it was given and owes no answer: a server between two requests."""
        return bool(self._forward.count) and self._forward.taken and not self.output.unterminated

    def _context(self, tree: "Tree", waiter: "Waiter") -> "Context":
        from dataclasses import replace  # noqa: PLC0415

        from receipt_trace.sources.context import read_context  # noqa: PLC0415

        context = read_context(self._open_source(), tree, waiter, time.time_ns())
        on_terminal = self._child.master is not None
        console = self._console()
        ours = waiter.key.input == self._child.key or waiter.fd < 0
        if console is not None and console.wiring == "tty" and ours:
            context = replace(context, canonical=console.canonical, echo=console.echo)
        return replace(
            context,
            output=self.output.tail,
            output_source="output",
            output_total=self.output.total,
            alternate=self.output.alternate,
            terminal_output=on_terminal,
            columns=self._size[0],
            lines=self._size[1],
        )

    def _take(self) -> Iterator["Receipt"]:
        while self._receipts:
            yield self._receipts.popleft()

    # -- the end -----------------------------------------------------------------------

    def _open_pidfd(self) -> int | None:
        try:
            fd = os.pidfd_open(self.pid)
        except OSError:  # before Linux 5.3, or refused by a sandbox: ask again and again
            return None
        self._selector.register(fd, selectors.EVENT_READ, self._reap)
        return fd

    def _reap(self, _fd: int) -> None:
        """The command itself has ended."""
        code = self._child.process.poll()
        if code is None:
            return
        self._status = -code if code < 0 else code << 8
        if self._pidfd is not None:
            self._selector.unregister(self._pidfd)

    def _end(self, returncode: int, steps: Sequence[tuple[str, int]]) -> None:
        """Begin to end the tree ourselves."""
        self._observer()
        self._ending = _Ending(returncode, steps, time.monotonic_ns())

    def _press(self, ending: "_Ending", now: int) -> None:
        """Next signal when the time of the last one is over; everything hung up at last."""
        self._scan()
        if now < ending.at and self._status is None:
            return
        if not ending.steps:
            if self._status is None and not ending.given_up:
                ending.given_up = True
                self._child.close()
                ending.at = now + NS
            elif self._status is None:
                self._status = 0
            return
        name, grace = ending.steps.popleft()
        self.signal_members(getattr(signal, name))
        ending.at = now + grace

    def _members(self) -> list[int]:
        members = [] if self._tree is None else list(self._tree.members)
        return members if self.pid in members or self._status is not None else [self.pid, *members]

    def _finish(self) -> None:
        """The command ended: the last output, the last look, the last receipts."""
        quiet = False
        while not quiet and any(fd in self._selector.get_map() for fd in self._child.outputs):
            ready = self._selector.select(_DRAIN_S)
            outputs = [key.fd for key, _ in ready if key.fd in self._child.outputs]
            for fd in outputs:
                self._relay(fd)
            quiet = not outputs
        if self._tracer is None or self._tree is None:
            return
        try:
            self._last_look(self._tracer, self._tree, time.monotonic_ns())
        except Exception as error:  # noqa: BLE001  (the command's own status still stands)
            self._fault(error)
        self._tracer = None

    def _last_look(self, tracer: "Tracer", tree: "Tree", now: int) -> None:
        from receipt_trace.observation import Ending  # noqa: PLC0415
        from receipt_trace.rule import How  # noqa: PLC0415

        if self._ending is not None:
            self._end_rest(now)
            tracer.stop(tree, now, How.LOST if self.survivors else How.INTERRUPTED)
            return
        self._scan()
        tree.members.pop(self.pid, None)
        tree.ended[tree.root] = Ending(self._status)
        if not self._blind:
            tracer.step(tree, now, output=self.output.total, given=self._forward.count)
        tracer.stop(tree, now)

    def _end_rest(self, now: int) -> None:
        """The command is gone; whoever of its tree outlived the signals so far is ended too."""
        assert self._ending is not None
        steps = self._ending.steps or deque((("SIGKILL", NS),))
        while self._alive() and time.monotonic_ns() < now + 3 * NS:
            if steps:
                self.signal_members(getattr(signal, steps.popleft()[0]))
            time.sleep(0.02)  # each step is one bounded look at whether they are gone
        self.survivors = tuple(self._alive())

    def _alive(self) -> list[int]:
        self._scan()
        assert self._tree is not None
        return [
            pid
            for pid in self._tree.members
            if pid != self.pid and os.path.exists(f"/proc/{pid}") and not _zombie(pid)
        ]


class _Ending:
    """We are ending the tree: which signals are left, and when the next one is due."""

    def __init__(self, returncode: int, steps: Sequence[tuple[str, int]], at: int) -> None:
        self.returncode = returncode
        self.steps = deque(steps)
        self.at = at
        self.given_up = False


def _zombie(pid: int) -> bool:
    from pathlib import Path  # noqa: PLC0415

    from receipt_trace.sources import proc  # noqa: PLC0415

    try:
        return proc.stat(Path("/proc"), pid).state in "ZX"
    except (OSError, ValueError):
        return True
