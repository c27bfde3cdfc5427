"""Who belongs to which tool call.

A tree is a root and everything it ever forked: membership is decided when a
process is born and never afterwards, so neither a new parent, nor a new session,
nor a double fork gets anybody out of it. Pure: lifecycle events go in.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from receipt_trace.observation import Beginning, Ending, ProcessId


@dataclass(frozen=True, slots=True)
class Agent:
    """The harness a tool call belongs to."""

    name: str
    pid: int
    session: str | None = None


@dataclass(slots=True, eq=False)
class Tree:
    """One tool call.

    ``members`` maps the number of each living process to its identity; ``None``
    while that is not known (a process that came and went too fast to be looked at
    still hands the tree on to its children). ``parent`` started the root. ``recognised``: the
    agent is known to run its commands so; else the root may as well be a server. ``person``: a
    person sees its terminal and may type there, too. ``ended_input``: what its agent gives it to read is at its end from the
    start, so that whoever waits there is no tool call. ``givers`` are processes that may hold
    the other end of its input besides those above it. ``inputs`` are the keys of inputs that are
    known to be its own, whatever its root has made of its descriptor 0 meanwhile. ``began``: how its
    root began, where the kernel told. ``joined`` are those whom nobody in it has started.
    """

    root: ProcessId
    parent: int = 0
    label: str | None = None
    agent: Agent | None = None
    members: dict[int, ProcessId | None] = field(default_factory=dict)
    ended: dict[ProcessId, Ending] = field(default_factory=dict)
    recognised: bool = False
    person: bool = False
    ended_input: bool = False
    givers: tuple[int, ...] = ()
    inputs: frozenset[str] = frozenset()
    began: Beginning | None = None
    joined: set[int] = field(default_factory=set)
    born: int = 1

    def __post_init__(self) -> None:
        self.members.setdefault(self.root.pid, self.root)

    def take_ended(self) -> dict[ProcessId, Ending]:
        """Hand over (and forget) the processes that ended since the last call."""
        ended, self.ended = self.ended, {}
        return ended


class Trees:
    """All tool calls that are followed."""

    def __init__(self) -> None:
        self._trees: dict[ProcessId, Tree] = {}
        self._of: dict[int, Tree] = {}

    def __iter__(self) -> Iterator[Tree]:
        return iter(list(self._trees.values()))

    def __len__(self) -> int:
        return len(self._trees)

    def of(self, pid: int) -> Tree | None:
        """The tree a living process belongs to."""
        return self._of.get(pid)

    def add(self, tree: Tree) -> Tree:
        """Follow a tree. One whose root is in another tree already is part of that one."""
        known = self._of.get(tree.root.pid)
        if known is not None:
            return known
        self._trees[tree.root] = tree
        for pid in tree.members:
            self._of[pid] = tree
        return tree

    def remove(self, tree: Tree) -> None:
        """Stop following a tree, whether or not anybody in it still lives."""
        self._trees.pop(tree.root, None)
        for pid in tree.members:
            if self._of.get(pid) is tree:
                del self._of[pid]

    def fork(self, parent: int, child: int, identity: ProcessId | None) -> Tree | None:
        """A process was born; returns the tree it was born into."""
        tree = self._of.get(parent)
        if tree is None:
            return None
        known = self._of.get(child)
        if known is not None and known is not tree:  # the number was used again, unseen
            self.exit(child, None)
        if child not in tree.members:
            tree.born += 1
        tree.members[child] = identity
        self._of[child] = tree
        return tree

    def join(self, tree: Tree, pid: int, identity: ProcessId | None) -> None:
        """A process belongs to a tree though nobody in that is its parent."""
        self.leave(pid)
        tree.members[pid] = identity
        tree.joined.add(pid)
        tree.born += 1
        self._of[pid] = tree

    def leave(self, pid: int) -> None:
        """A living process is about to be the root of a tree of its own, or part of that."""
        tree = self._of.pop(pid, None)
        if tree is not None:
            tree.members.pop(pid, None)

    def exit(self, pid: int, status: int | None) -> Tree | None:
        """A process ended; returns the tree it was in."""
        tree = self._of.pop(pid, None)
        if tree is None:
            return None
        identity = tree.members.pop(pid, None)
        if identity is not None:
            tree.ended[identity] = Ending(status)
        return tree
