"""Process lifecycle from our own programs on the fork, exec and exit of the scheduler."""

from collections.abc import Callable
from typing import Final

from receipt_trace.constants import TICK_MS
from receipt_trace.kernel.loader import Kernel
from receipt_trace.kernel.records import EofRecord, EventRecord, Kind, ProgramRecord
from receipt_trace.observation import (
    Beginning,
    Exec,
    Exit,
    Fork,
    Lifecycle,
    ProcessId,
    Resync,
    Stir,
)
from receipt_trace.sources import proc
from receipt_trace.sources.look import standard_input

_AT_ONCE: Final = 8192  # events taken in one turn, so that sampling goes on in a storm
_TICK_NS: Final = TICK_MS * 1_000_000


class KernelEvents:
    """Reads the ring of a kernel's events; a loss, counted there, is told as ``Resync``.

    ``ended`` is given what the ring tells of ends of inputs.
    """

    name = "bpf"

    def __init__(self, kernel: Kernel, ended: Callable[[EofRecord], None]) -> None:
        self.kernel, self._ended = kernel, ended
        self.lost = 0

    def fileno(self) -> int:
        """For a selector."""
        return self.kernel.ring.fd

    def read(self) -> list[Lifecycle]:
        """The events there are, oldest first, a bounded number."""
        events: list[Lifecycle] = []
        for raw in self.kernel.ring.read(_AT_ONCE):
            for record in self.kernel.parse(raw):
                if isinstance(record, EventRecord):
                    self._take(record, events)
                elif isinstance(record, ProgramRecord):
                    events.append(Exec(record.tgid, _beginning(record)))
                elif isinstance(record, EofRecord):
                    self._ended(record)
        self.kernel.take_stock()
        lost = self.kernel.lost
        if lost != self.lost:
            self.lost = lost
            events.append(Resync())
        return events

    def _take(self, record: EventRecord, events: list[Lifecycle]) -> None:
        match record.kind:
            case Kind.FORK:
                child = ProcessId(record.tgid, record.start // _TICK_NS)
                events.append(Fork(record.parent, record.tgid, child))
            case Kind.EXEC:
                events.append(Exec(record.tgid))
            case Kind.EXIT:
                events.append(Exit(record.tgid, record.status))
            case Kind.CALL:
                events.append(Stir(record.parent))

    def execs(self, pid: int) -> int:
        """How often a process has become another program since we are attached."""
        return self.kernel.given(pid)[1]

    def close(self) -> None:
        """Detach everything."""
        self.kernel.close()


def _beginning(record: ProgramRecord) -> Beginning:
    environment = record.environment[: record.environment_bytes]
    if len(environment) == len(record.environment):  # it may begin in the midst of a variable
        environment = environment.partition(b"\0")[2]
    arguments = record.arguments[: record.argument_bytes]
    return Beginning(
        identity=ProcessId(record.tgid, record.start // _TICK_NS),
        parent=record.parent,
        comm=proc.text(record.comm.split(b"\0")[0]),
        argv=tuple(proc.parse_arguments(arguments)),
        environment=proc.parse_environment(environment),
        stdin=standard_input(record.type, record.device),
        leads_session=record.session == record.tgid,
        uid=record.uid,
        execs=record.times,
    )
