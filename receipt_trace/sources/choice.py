"""Which source is used: what was asked for, or the best that the host allows."""

import os
from pathlib import Path
from typing import NamedTuple, Protocol

from receipt_trace.errors import UnobservableError, UsageError
from receipt_trace.observation import Lifecycle
from receipt_trace.sources import calls
from receipt_trace.sources.connector import Connector
from receipt_trace.sources.procfs import Procfs
from receipt_trace.sources.sampler import Sampler


class Events(Protocol):
    """Where lifecycle events come from."""

    name: str

    def fileno(self) -> int:
        """For a selector."""

    def read(self) -> list[Lifecycle]:
        """The events there are."""

    def execs(self, pid: int) -> int:
        """How often a process has become another program; 0: not known."""

    def close(self) -> None:
        """Stop listening."""


class Choice(NamedTuple):
    """A source, what tells it of processes (``None``: a scan has to), and what is not as it could be."""

    source: Sampler
    events: Events | None
    shortcomings: tuple[str, ...] = ()


def choose(
    wanted: str = "auto",
    attach: str = "snapshot",
    capture: str = "waits",
    root: Path = Path("/proc"),
) -> Choice:
    """Open a source. The values are those of ``--source``, ``--attach`` and ``--capture``.

    Raises UnobservableError where ``bpf`` is asked for and cannot be, UsageError where something
    is asked for that only it can do.
    """
    if wanted == "procfs":
        if attach != "snapshot" or capture != "waits":
            raise UsageError(
                "--attach syscalls and --capture text are seen by the kernel only; "
                "leave out --source procfs"
            )
        return _procfs(root)
    try:
        return _bpf(attach, capture, root)
    except UnobservableError as error:
        if wanted == "bpf" or attach != "snapshot" or capture != "waits":
            raise UnobservableError(
                f"BPF cannot be used: {error}\ntry: --source procfs, or: receipt-trace doctor"
            ) from None
        choice = _procfs(root, f"BPF cannot be used: {error}")
        choice.source.fallback = str(error)
        return choice


def _bpf(attach: str, capture: str, root: Path) -> Choice:
    if calls.machine() != "x86_64":
        raise UnobservableError(f"the programs know x86_64 only, this is {calls.machine()}")
    from receipt_trace.kernel.loader import Kernel  # noqa: PLC0415  (only where it is used)
    from receipt_trace.sources.bpf import Bpf  # noqa: PLC0415
    from receipt_trace.sources.events import KernelEvents  # noqa: PLC0415

    kernel = Kernel(calls=attach == "syscalls", text=capture == "text")
    source = Bpf(kernel, root)
    lost = tuple(f"this kernel does not tell {what}" for what in kernel.objects.lost)
    return Choice(source, KernelEvents(kernel, source.take_end), lost)


def _procfs(root: Path, *shortcomings: str) -> Choice:
    source = Procfs(root)
    try:
        return Choice(source, Connector(), shortcomings)
    except PermissionError:
        reason = "the process-events connector needs CAP_NET_ADMIN on this kernel"
    except OSError as error:
        reason = f"the process-events connector is not there: {os.strerror(error.errno or 0)}"
    return Choice(source, None, (*shortcomings, f"{reason}; everybody is looked at every second"))
