"""Lifecycle by looking: who has been born below the processes we know.

For a wrapper, whose orphans come back to it (PR_SET_CHILD_SUBREAPER, prctl(2)), and
wherever the process-events connector is refused. What is born and gone between
two looks is not seen; its children are, as long as somebody known inherits them.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from receipt_trace.sources import proc


def children(root: Path, pid: int) -> list[int]:
    """Children of all threads of a process (CONFIG_PROC_CHILDREN).

    Raises ProcessLookupError when it is gone, FileNotFoundError where the kernel keeps no
    such list.
    """
    found: list[int] = []
    tasks = f"{root}/{pid}/task"
    try:
        threads = os.listdir(tasks)
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None
    for tid in threads:
        try:
            with open(f"{tasks}/{tid}/children", "rb", buffering=0) as file:
                found += map(int, file.read().split())
        except FileNotFoundError:
            if os.path.exists(f"{tasks}/{tid}"):
                raise
    return found


def below(root: Path, parents: Iterable[int], known: Iterable[int]) -> list[tuple[int, int]]:
    """(parent, child) for everybody below ``parents`` who is not ``known``, parents first."""
    seen = set(known)
    found: list[tuple[int, int]] = []
    queue = list(parents)
    try:
        for pid in queue:
            try:
                born = children(root, pid)
            except (ProcessLookupError, PermissionError):
                continue
            for child in born:
                if child not in seen:
                    seen.add(child)
                    found.append((pid, child))
                    queue.append(child)
    except FileNotFoundError:
        return _below_by_parent(root, parents, known)
    return found


def _below_by_parent(
    root: Path, parents: Iterable[int], known: Iterable[int]
) -> list[tuple[int, int]]:
    """The same from every process's own word about its parent: slower, always possible."""
    parent_of: dict[int, int] = {}
    for pid in proc.pids(root):
        try:
            parent_of[pid] = proc.stat(root, pid).ppid
        except (OSError, ValueError):
            continue
    inside = set(parents)
    seen = set(known)
    found: list[tuple[int, int]] = []
    grown = True
    while grown:
        grown = False
        for pid, parent in parent_of.items():
            if parent in inside and pid not in inside:
                inside.add(pid)
                grown = True
                if pid not in seen:
                    found.append((parent, pid))
    return found
