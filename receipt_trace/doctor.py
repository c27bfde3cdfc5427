"""What this host allows: each thing the product rests on, tried out, with what to do about it."""

import ctypes
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from receipt_trace.errors import UnobservableError
from receipt_trace.sources import calls, proc

_ROOT: Final = Path("/proc")
_CAP_SYS_PTRACE: Final = 19  # capabilities(7), include/uapi/linux/capability.h


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. ``state`` is yes, partly or no; ``instead`` what is done without it."""

    what: str
    state: str
    seen: str
    instead: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, and the source that follows from them."""

    checks: tuple[Check, ...]

    @property
    def usable(self) -> bool:
        """Whether anything can be observed at all."""
        return self.reason is None

    @property
    def reason(self) -> str | None:
        """Why nothing can be observed."""
        vital = [c for c in self.checks if c.what in _VITAL and c.state == "no"]
        return f"{vital[0].what}: {vital[0].seen}" if vital else None

    @property
    def source(self) -> str | None:
        """The source that ``watch --source auto`` takes."""
        if not self.usable:
            return None
        return "bpf" if any(c.what == _BPF and c.state == "yes" for c in self.checks) else "procfs"

    @property
    def limits(self) -> tuple[str, ...]:
        """What cannot be seen, in a line each."""
        return tuple(f"{c.what}: {c.seen}" for c in self.checks if c.state != "yes")

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "usable": self.usable,
            "source": self.source,
            "checks": [asdict(c) for c in self.checks],
        }


def examine(root: Path = _ROOT, *, bpf: bool = True) -> Report:
    """Try everything out; changes nothing. ``bpf`` loads the programs to see whether they can be,
    which takes a tenth of a second, or some seconds where they have to be built first; without
    it the rest takes a few milliseconds.
    """
    return Report(tuple(check(root) for check in (*_CHECKS, *(_KERNEL if bpf else ()))))


def _machine(_root: Path) -> Check:
    machine = calls.machine()
    known = machine in calls.NUMBERS
    return Check(
        "system call numbers",
        "yes" if known else "no",
        f"{machine}, Linux {os.uname().release}" if known else f"those of {machine} are not known",
        "nothing: what a thread is blocked in cannot be told",
        f"run on one of {', '.join(calls.NUMBERS)}",
    )


def _own(root: Path) -> Check:
    try:
        line = (root / "self/syscall").read_bytes()
        table = os.listdir(root / "self/fd")
    except OSError as error:
        return Check(
            "blocked calls in /proc", "no",
            f"/proc/self/syscall cannot be read ({error.strerror}); expected the call a thread is in",
            "nothing", "mount /proc, on a kernel with CONFIG_HAVE_ARCH_TRACEHOOK: mount -t proc proc /proc",
        )  # fmt: skip
    return Check(
        "blocked calls in /proc", "yes", f"{len(line.split())} fields, {len(table)} descriptors"
    )


def _others(root: Path) -> Check:
    what = "other users' processes"
    if _may_look(root):
        return Check(what, "yes", "CAP_SYS_PTRACE: every process may be looked into")
    if os.geteuid() == 0:
        return Check(
            what, "partly", "root without CAP_SYS_PTRACE may not look into them",
            "what they wait for stays unknown; it never becomes a receipt",
            "give the service CAP_SYS_PTRACE",
        )  # fmt: skip
    return Check(
        what, "partly", f"uid {os.geteuid()} may look into its own processes only",
        "`run` judges a set-uid program by its own terminal; `watch` counts it as blind",
        "run as root: sudo receipt-trace watch",
    )  # fmt: skip


def _may_look(root: Path) -> bool:
    """Whether this process has CAP_SYS_PTRACE: root as a rule, and a service that was given it."""
    effective = proc.field((root / "self/status").read_bytes(), "CapEff", 16) or 0
    return bool(effective >> _CAP_SYS_PTRACE & 1)


def _yama(root: Path) -> Check:
    what = "own processes that are not children"
    try:
        scope = int((root / "sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return Check(what, "yes", "no restriction (Yama is not there)")
    if scope == 0 or (_may_look(root) and scope < 3):
        return Check(what, "yes", f"no restriction for this user (ptrace_scope {scope})")
    return Check(
        what, "partly", f"ptrace_scope is {scope}: only descendants may be looked into",
        "`run` works on what it starts; `watch` is blind to the rest",
        "run as root, or: sysctl kernel.yama.ptrace_scope=0",
    )  # fmt: skip


def _events(_root: Path) -> Check:
    from receipt_trace.sources.connector import Connector  # noqa: PLC0415

    what = "process events"
    try:
        Connector().close()
    except OSError as error:
        return Check(
            what, "partly", f"the connector is refused ({error.strerror})",
            "everybody is looked at once a second, every tree ten times a second; a process "
            "that lives shorter than that can leave its tree unseen",
            "CAP_NET_ADMIN, a kernel with CONFIG_PROC_EVENTS, the host's network namespace",
        )  # fmt: skip
    return Check(what, "yes", "fork, exec and exit arrive from the kernel")


def _sched(root: Path) -> Check:
    what = "run counters"
    try:
        fields = (root / "self/schedstat").read_bytes().split()
    except OSError as error:
        return Check(
            what,
            "partly",
            f"/proc/PID/schedstat is not there ({error.strerror})",
            "every thread is looked at in every sample: more CPU",
            "a kernel with CONFIG_SCHED_INFO",
        )
    return Check(what, "yes", f"schedstat has {len(fields)} fields")


def _children(root: Path) -> Check:
    what = "lists of children"
    if (root / f"self/task/{os.getpid()}/children").exists():
        return Check(what, "yes", "/proc/PID/task/TID/children is there")
    return Check(
        what,
        "partly",
        "the kernel does not list them",
        "the parent of every process is asked: more CPU",
        "a kernel with CONFIG_PROC_CHILDREN",
    )


def _sockets(_root: Path) -> Check:
    what = "ends of unix sockets"
    netlink_sock_diag = 4
    try:
        socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, netlink_sock_diag).close()
    except OSError as error:
        return Check(
            what,
            "partly",
            f"socket diagnostics are refused ({error.strerror})",
            "a socket given as standard input (Node does) counts as somebody else's",
            "a kernel with CONFIG_UNIX_DIAG: modprobe unix_diag",
        )
    return Check(what, "yes", "socket diagnostics answer")


def _setuid(root: Path) -> Check:
    what = "set-uid programs below `run`"
    pr_get_no_new_privs = 39
    if _may_look(root):
        return Check(what, "yes", "CAP_SYS_PTRACE: they may be looked into")
    if ctypes.CDLL(None).prctl(pr_get_no_new_privs, 0, 0, 0, 0) == 1:
        return Check(what, "yes", "none can be started here (no_new_privs)")
    return Check(
        what,
        "partly",
        "sudo, su and passwd may not be looked into",
        "their own terminal decides (grade `terminal`): echo off, or an unfinished line",
        "run as root",
    )


def _bpf(_root: Path) -> Check:
    from receipt_trace.sources.choice import choose  # noqa: PLC0415

    began = time.monotonic()
    try:
        source = choose("bpf").source
    except UnobservableError as error:
        reason = str(error).partition("\n")[0].removeprefix("BPF cannot be used: ")
        return Check(
            _BPF, "partly", reason,
            "/proc is looked at ten times a second: more CPU, and no text of other people's terminals",
            "run as root on x86_64, Linux 5.8 or later with BTF, with bcc: apt-get install python3-bpfcc",
        )  # fmt: skip
    kernel = source.kernel  # type: ignore[attr-defined]
    source.close()
    origin = "kept from before" if kernel.objects.kept else "built now"
    seen = (
        f"{len(kernel.objects.programs)} programs ({origin}) ready after "
        f"{time.monotonic() - began:.1f} s; saved registers {kernel.regs} bytes into the stack"
    )
    if kernel.objects.lost:
        lost = "; ".join(kernel.objects.lost)
        return Check(_BPF, "yes", f"{seen}; not told by this kernel: {lost}")
    return Check(_BPF, "yes", seen)


def _tracefs(_root: Path) -> Check:
    from receipt_trace.kernel.loader import tracepoint_id  # noqa: PLC0415

    what = "tracepoints of system calls"
    try:
        found = tracepoint_id("sys_enter_read")
    except UnobservableError as error:
        return Check(
            what, "partly", str(error).partition(",")[0],
            "--attach syscalls and --capture text cannot be used; snapshots do not need them",
            "mount -t tracefs tracefs /sys/kernel/tracing",
        )  # fmt: skip
    if found is None:
        return Check(
            what, "partly", "this kernel has none (CONFIG_FTRACE_SYSCALLS)",
            "--attach syscalls and --capture text cannot be used; snapshots do not need them",
            "a kernel with CONFIG_FTRACE_SYSCALLS",
        )  # fmt: skip
    return Check(what, "yes", "for --attach syscalls and --capture text")


_BPF: Final = "BPF"
_KERNEL: Final[tuple[Callable[[Path], Check], ...]] = (_bpf, _tracefs)
_CHECKS: Final[tuple[Callable[[Path], Check], ...]] = (
    _machine, _own, _others, _yama, _setuid, _events, _sched, _children, _sockets,
)  # fmt: skip
_VITAL: Final = frozenset({"system call numbers", "blocked calls in /proc"})
