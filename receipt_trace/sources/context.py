"""What a receipt tells of a program and its tool call, read once from ``/proc``."""

import os
import pwd
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from receipt_trace import terminal
from receipt_trace.constants import OUTPUT_TAIL_BYTES
from receipt_trace.observation import (
    Beginning,
    Context,
    Descriptor,
    FileKind,
    Program,
    Seen,
    Waiter,
)
from receipt_trace.sources import proc
from receipt_trace.sources.containers import container_name
from receipt_trace.sources.holders import find_holders
from receipt_trace.trees import Tree

# Docker, containerd, podman and Kubernetes all name the cgroup after the 64-digit id.
_CONTAINER: Final = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")


class Sight(Protocol):
    """What a source can tell when a wait is confirmed."""

    @property
    def root(self) -> Path:
        """The proc file system."""

    def table(self, pid: int) -> Mapping[int, Descriptor]:
        """What a process has open."""

    def seen(self, tree: Tree, waiter: Waiter) -> Seen:
        """The modes of what a waiter reads, and the latest output there."""


def read_context(source: Sight, tree: Tree, waiter: Waiter, wall: int) -> Context:
    """Read the context of a wait. What may not be seen is left out; nothing is raised."""
    root = source.root
    program = read_program(root, waiter.key.pid, waiter.comm)
    began = tree.began
    asker = tree.root.pid if _lives(root, tree) else waiter.key.pid
    top = program
    if asker != waiter.key.pid:
        top = read_program(root, asker, _comm(root, asker))
    if began is not None and began.argv and not _is_still(top, began):
        top = replace(top, comm=began.comm, argv=began.argv)
        if not program.argv and (asker, waiter.comm) == (tree.root.pid, began.comm):
            program = top
    cgroup = _cgroup(root, asker)
    found = _CONTAINER.search(cgroup or "")
    container = found[1] if found else None
    uid = _owner(root, asker)
    if uid is None and tree.began is not None:
        uid = tree.began.uid
    holders, shared = find_holders(root, source.table, tree, waiter)
    seen = source.seen(tree, waiter)
    return Context(
        program=program,
        root=top,
        uid=uid,
        user=_user(uid),
        cgroup=cgroup,
        container=container,
        container_name=container_name(container) if container else None,
        inner_pid=_inner_pid(root, waiter.key.pid),
        root_inner_pid=_inner_pid(root, asker),
        holders=holders,
        person=tree.person or shared,
        canonical=seen.canonical,
        echo=seen.echo,
        output=seen.output or b"",
        output_source="none" if seen.output is None else seen.source,
        output_total=seen.total,
        terminal_output=seen.terminal,
        alternate=seen.alternate,
        columns=seen.columns,
        lines=seen.lines,
        wall=wall,
        busy=tree.born > 1 or len(tree.members) > 1 or waiter.key.pid != tree.root.pid,
    )


def _is_still(program: Program, began: Beginning) -> bool:
    """Whether a root is what it began as, of which the last may be cut short."""
    *first, last = began.argv
    now = program.argv[len(first) :]
    return [*program.argv[: len(first)]] == first and bool(now) and now[0].startswith(last)


def read_program(root: Path, pid: int, comm: str) -> Program:
    """Name, executable, arguments and directory of a process, as far as they may be seen."""
    try:
        argv = tuple(proc.arguments(root, pid))
    except OSError:
        argv = ()
    return Program(comm, proc.link(root, pid, "exe"), argv, proc.link(root, pid, "cwd"))


def _comm(root: Path, pid: int) -> str:
    try:
        return proc.stat(root, pid).comm
    except (OSError, ValueError):
        return ""


def _lives(root: Path, tree: Tree) -> bool:
    try:
        return proc.stat(root, tree.root.pid).start == tree.root.start
    except (OSError, ValueError):
        return False


def _owner(root: Path, pid: int) -> int | None:
    try:
        return os.stat(root / str(pid)).st_uid
    except OSError:
        return None


def _user(uid: int | None) -> str | None:
    try:
        return None if uid is None else pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def _inner_pid(root: Path, pid: int) -> int | None:
    """The number in the innermost pid namespace (NSpid, proc_pid_status(5))."""
    try:
        raw = (root / str(pid) / "status").read_bytes()
    except OSError:
        return None
    numbers = next((line.split()[1:] for line in raw.splitlines() if line[:6] == b"NSpid:"), [])
    return int(numbers[-1]) if len(numbers) > 1 else None


def _cgroup(root: Path, pid: int) -> str | None:
    """The cgroup v2 path, else the first v1 one (cgroups(7))."""
    try:
        lines = proc.text((root / str(pid) / "cgroup").read_bytes()).splitlines()
    except OSError:
        return None
    paths = {line.partition(":")[0]: line.rpartition(":")[2] for line in lines}
    return paths.get("0") or next(iter(paths.values()), None)


def terminal_modes(root: Path, waiter: Waiter) -> terminal.Modes | None:
    """Modes of the terminal it reads, opened through the reader's own view of the files."""
    if waiter.wiring != "tty":
        return None
    tid = waiter.key.tid  # of the thread that waits: the first one may have left
    kind, name = waiter.key.input.partition(":")[::2]
    candidates = [f"{root}/{tid}/root/dev/pts/{name}"] if kind == "pts" else []
    if waiter.fd >= 0 and waiter.target != "/dev/tty":  # opening /dev/tty would open our own
        candidates.insert(0, f"{root}/{tid}/fd/{waiter.fd}")
    for path in candidates:
        found = terminal.modes_at(path)
        if found is not None:
            return found
    return None


def output_file(root: Path, pid: int, size: int) -> bytes | None:
    """The end of the regular file that a process writes its output to; ``None``: there is none."""
    for fd in (1, 2):
        try:
            descriptor = proc.descriptor(root, pid, fd, None)
            if descriptor.kind is not FileKind.FILE or not descriptor.writable:
                continue
            with open(f"{root}/{pid}/fd/{fd}", "rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(0, end - size))
                return file.read(size)
        except OSError:
            continue
    return None


def tree_output(root: Path, tree: Tree, waiter: Waiter) -> bytes | None:
    """The latest output of a tree, where the harness gave it a file to write to.

    ``None`` also if nobody in it has written anything: what is in the file is not its own.
    """
    if not any(_wrote(root, pid) for pid in tree.members):
        return None
    said = output_file(root, proc.living(root, tree.root.pid), OUTPUT_TAIL_BYTES)
    return output_file(root, waiter.key.tid, OUTPUT_TAIL_BYTES) if said is None else said


def _wrote(root: Path, pid: int) -> bool:
    try:
        return bool(proc.field((root / str(pid) / "io").read_bytes(), "wchar"))
    except OSError:
        return False
