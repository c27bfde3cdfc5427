"""Who holds the other end of an input: the processes above a tool call, asked for their descriptors."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from receipt_trace.observation import FileKind, Holder, Waiter
from receipt_trace.sources import proc
from receipt_trace.sources.sockets import unix_peers
from receipt_trace.trees import Tree

_ANCESTORS: Final = 16


def find_holders(root: Path, tree: Tree, waiter: Waiter) -> tuple[tuple[Holder, ...], bool]:
    """(holders, shared): who above a tree can answer a waiter, and whether its terminal is also
    the harness's own, where a person sits. What may not be looked into is left out.
    """
    if waiter.wiring != "tty":
        return tuple(writers_above(root, tree.parent, _other_end(waiter))), False
    holders: list[Holder] = []
    shared = False
    harness = tree.agent.pid if tree.agent is not None else tree.parent
    for pid, comm in _ancestors(root, tree.parent):
        for fd, target in _links(root, pid):
            kind, key = proc.classify(target, None)
            shared = shared or (pid == harness and fd < 3 and key == waiter.key.input)
            if kind is FileKind.PTMX and _index(root, pid, fd) == waiter.key.input:
                holders.append(Holder(comm, pid))
                break
    return tuple(holders), shared


def writers_above(root: Path, pid: int, wanted: str | None) -> Iterator[Holder]:
    """A process and those above it that hold an object open for writing, by its link's name."""
    if wanted is None:
        return
    for holder, comm in _ancestors(root, pid):
        if any(t == wanted and _writable(root, holder, fd) for fd, t in _links(root, holder)):
            yield Holder(comm, holder)


def _other_end(waiter: Waiter) -> str | None:
    if waiter.wiring == "pipe":
        return waiter.target
    if waiter.wiring != "socket":
        return None
    peer = unix_peers().get(int(waiter.target[8:-1]))
    return None if peer is None else f"socket:[{peer}]"


def _ancestors(root: Path, pid: int) -> Iterator[tuple[int, str]]:
    for _ in range(_ANCESTORS):
        try:
            stat = proc.stat(root, pid)
        except (OSError, ValueError):
            return
        yield pid, stat.comm
        pid = stat.ppid


def _links(root: Path, pid: int) -> Iterator[tuple[int, str]]:
    directory = f"{root}/{pid}/fd"
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for name in names:
        try:
            yield int(name), proc.text(os.readlink(os.fsencode(f"{directory}/{name}")))
        except OSError:
            continue


def _writable(root: Path, pid: int, fd: int) -> bool:
    try:
        return bool(os.lstat(f"{root}/{pid}/fd/{fd}").st_mode & 0o200)
    except OSError:
        return False


def _index(root: Path, pid: int, fd: int) -> str:
    """The key of the slave of a master (fdinfo, proc_pid_fdinfo(5))."""
    try:
        raw = Path(f"{root}/{pid}/fdinfo/{fd}").read_bytes()
    except OSError:
        return ""
    return f"pts:{proc.field(raw, 'tty-index')}"
