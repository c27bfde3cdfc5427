"""Who holds the other end of an input: the processes above a tool call, asked for their descriptors."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from receipt_trace.observation import Descriptor, FileKind, Holder, Waiter
from receipt_trace.sources import proc
from receipt_trace.trees import Tree

_ANCESTORS: Final = 16

Table = Callable[[int], Mapping[int, Descriptor]]
"""What a process has open, by its number; empty where that may not be seen."""


def find_holders(
    root: Path, table: Table, tree: Tree, waiter: Waiter
) -> tuple[tuple[Holder, ...], bool]:
    """(holders, shared): who above a tree can answer a waiter, and whether its terminal is also
    the harness's own, where a person sits. What may not be looked into is left out.
    """
    if waiter.wiring != "tty":
        return tuple(writers_above(root, table, tree.parent, _other_end(table, waiter))), False
    holders: list[Holder] = []
    shared = False
    harness = tree.agent.pid if tree.agent is not None else tree.parent
    for pid, comm in _ancestors(root, tree.parent):
        held = table(pid).values()
        if pid == harness:
            shared = any(d.fd < 3 and d.key == waiter.key.input and not _drives(d) for d in held)
        if any(_drives(d) and d.key == waiter.key.input for d in held):
            holders.append(Holder(comm, pid))
    return tuple(holders), shared


def writers_above(root: Path, table: Table, pid: int, wanted: str | None) -> Iterator[Holder]:
    """A process and those above it that hold an object open for writing, by its link's name."""
    if wanted is None:
        return
    for holder, comm in _ancestors(root, pid):
        if any(d.target == wanted and d.writable for d in table(holder).values()):
            yield Holder(comm, holder)


def _drives(held: Descriptor) -> bool:
    return held.kind is FileKind.PTMX


def _other_end(table: Table, waiter: Waiter) -> str | None:
    if waiter.wiring == "pipe":
        return waiter.target
    held = table(waiter.key.pid).get(waiter.fd)
    return held.peer if held is not None and waiter.wiring == "socket" else None


def _ancestors(root: Path, pid: int) -> Iterator[tuple[int, str]]:
    for _ in range(_ANCESTORS):
        try:
            stat = proc.stat(root, pid)
        except (OSError, ValueError):
            return
        yield pid, stat.comm
        pid = stat.ppid
