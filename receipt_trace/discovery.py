"""Finding tool calls: lifecycle events of the host in, trees out.

Three ways lead to a tree: a process named by the caller (``--root``), a child of a
harness, and marks in the environment. Each process is looked at when it became
another program, never again.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from receipt_trace.agents import MARK, AgentKind, Facts, Registry
from receipt_trace.observation import Exec, Exit, Fork, Lifecycle, ProcessId
from receipt_trace.sources import proc
from receipt_trace.trees import Agent, Tree, Trees

_ANCESTORS = 64  # a longer line of parents is not followed


class Discovery:
    """Keeps ``trees`` up to date.

    ``registry`` is ``None`` when nothing but what is named is to be followed.
    ``started`` is called with every new tree, ``found`` with every new agent.
    """

    def __init__(
        self,
        root: Path,
        trees: Trees,
        registry: Registry | None,
        started: Callable[[Tree], None],
        found: Callable[[Agent], None],
    ) -> None:
        self._root, self.trees, self._registry = root, trees, registry
        self._started, self._found = started, found
        self.harnesses: dict[int, tuple[ProcessId, AgentKind]] = {}
        self._named: dict[int, Agent] = {}
        self._told: dict[int, int | None] = {}

    # -- what the caller names ---------------------------------------------------------

    def name_root(self, pid: int) -> Tree:
        """Follow the tree of a process. Raises OSError when it is gone."""
        known = self.trees.of(pid)
        return (
            known
            if known is not None
            else self._start(pid, label=None, agent=self._agent_above(pid))
        )

    def name_agent(self, pid: int) -> None:
        """Take a process for a harness: each of its children, now and later, is a tool call."""
        stat = proc.stat(self._root, pid)
        self._named[pid] = Agent(self._name_of(pid, stat.comm), pid)
        for child in self._children(pid):
            self._start(child, None, self._named[pid])

    def _name_of(self, pid: int, comm: str) -> str:
        facts = self._facts(pid)
        kind = self._registry.harness(facts) if facts and self._registry else None
        return kind.name if kind is not None else comm

    # -- what happens on the host ------------------------------------------------------

    def take(self, events: Iterable[Lifecycle]) -> bool:
        """Take lifecycle events; returns whether some were lost."""
        lost = False
        for event in events:
            match event:
                case Fork(parent, child):
                    self.trees.fork(
                        parent, child, self._identity(child) if self.trees.of(parent) else None
                    )
                    if parent in self._named and self.trees.of(child) is None:
                        self._try(child, None, self._named[parent])
                case Exec(pid):
                    self._told.pop(pid, None)
                    self.look(pid)
                case Exit(pid, status):
                    if not self.lives(pid):
                        self.gone(pid, status)
                    elif self.trees.of(pid) is not None:
                        self._told[pid] = status  # it may just be going, and this is not told again
                case _:
                    lost = True
        return lost

    def gone(self, pid: int, status: int | None) -> None:
        """A process has ended."""
        self.harnesses.pop(pid, None)
        self._named.pop(pid, None)
        told = self._told.pop(pid, None)
        self.trees.exit(pid, told if status is None else status)

    def lives(self, pid: int) -> bool:
        """Whether a process we know is still there: not gone, not a zombie, not somebody else.

        The exit of a leader does not end a process whose other threads go on, nor does
        that of one whose thread has called exec (kernel/exit.c, fs/exec.c: de_thread).
        """
        try:
            stat = proc.stat(self._root, pid)
        except (OSError, ValueError):
            return False
        tree = self.trees.of(pid)
        known = tree.members.get(pid) if tree is not None else None
        if known is not None and known.start != stat.start:
            return False
        return stat.state not in "ZX" or stat.threads > 1

    def look(self, pid: int) -> None:
        """A process has become a program: is it an agent, or the root of a tool call?

        Also inside another tool call: the innermost mark counts.
        """
        inside = self.trees.of(pid)
        if self._registry is None and inside is None:
            return
        facts = self._facts(pid)
        if facts is None:
            return
        label = facts.environment.get(MARK)
        if label and self._environment(facts.ppid).get(MARK) != label:
            if inside is not None and inside.root.pid == pid:
                inside.label = label
            elif self._registry is not None:
                self._try(pid, label, self._agent_above(pid))
            return
        if self._registry is None or (inside is not None and inside.root.pid == pid):
            return
        kind = self._tool_kind(facts)
        if kind is not None:
            self._try(pid, None, self._agent_of(kind, facts), recognised=True)
            return
        harness = self._registry.harness(facts)
        if harness is not None:
            self._add_harness(pid, harness)

    def sweep(self, known: Iterable[int] = ()) -> None:
        """Look at every process there is and every tree we keep: at the start, and after a loss."""
        skip = set(known)
        pids = sorted(proc.pids(self._root))
        parents: dict[int, int] = {}
        for pid in pids:
            try:
                parents[pid] = proc.stat(self._root, pid).ppid
            except (OSError, ValueError):
                continue
        for tree in self.trees:
            for pid in list(tree.members):
                if not self.lives(pid):
                    self.gone(pid, None)
        for pid in list(self.harnesses):
            if self._identity(pid) != self.harnesses[pid][0]:
                self.gone(pid, None)
        for pid in pids:
            if pid not in skip:
                self.look(pid)
        self._adopt(parents)

    def _adopt(self, parents: dict[int, int]) -> None:
        """Everybody below a member is a member."""
        for pid in parents:
            line = [pid]
            while (
                len(line) < _ANCESTORS and self.trees.of(line[-1]) is None and parents.get(line[-1])
            ):
                line.append(parents[line[-1]])
            if self.trees.of(line[-1]) is not None:
                for parent, child in reversed(list(zip(line[1:], line, strict=False))):
                    self.trees.fork(parent, child, self._identity(child))

    # -- answers -----------------------------------------------------------------------

    def _tool_kind(self, facts: Facts) -> AgentKind | None:
        assert self._registry is not None
        marked = self._registry.marked(facts)
        if marked is not None:
            topmost = not marked.is_marked(
                Facts(facts.ppid, 0, environment=self._environment(facts.ppid))
            )
            return marked if topmost and marked.has_shape(facts) else None
        known = self.harnesses.get(facts.ppid)
        if known is not None and known[1].child and known[1].has_shape(facts):
            return known[1]
        return None

    def _agent_of(self, kind: AgentKind, facts: Facts) -> Agent:
        session = facts.environment.get(kind.session_variable) if kind.session_variable else None
        above = self._agent_above(facts.pid)
        pid = above.pid if above is not None and above.name == kind.name else facts.ppid
        return Agent(kind.name, pid, session)

    def _agent_above(self, pid: int) -> Agent | None:
        """The nearest harness among the ancestors."""
        for _ in range(_ANCESTORS):
            try:
                pid = proc.stat(self._root, pid).ppid
            except (OSError, ValueError):
                return None
            if pid in self._named:
                return self._named[pid]
            if pid in self.harnesses:
                return Agent(self.harnesses[pid][1].name, pid)
            facts = self._facts(pid) if pid > 1 and self._registry is not None else None
            kind = self._registry.harness(facts) if facts and self._registry else None
            if kind is not None:
                self._add_harness(pid, kind)
                return Agent(kind.name, pid)
        return None

    def _add_harness(self, pid: int, kind: AgentKind) -> None:
        identity = self._identity(pid)
        if identity is None or self.harnesses.get(pid, (None,))[0] == identity:
            return
        self.harnesses[pid] = (identity, kind)
        self._found(Agent(kind.name, pid))
        if kind.child:
            for child in self._children(pid):
                self.look(child)

    def _try(
        self, pid: int, label: str | None, agent: Agent | None, *, recognised: bool = False
    ) -> None:
        try:
            self._start(pid, label, agent, recognised=recognised)
        except (OSError, ValueError):
            return  # it came and went

    def _start(
        self, pid: int, label: str | None, agent: Agent | None, *, recognised: bool = False
    ) -> Tree:
        stat = proc.stat(self._root, pid)
        known = self.trees.of(pid)
        if known is not None and known.root.pid == pid:
            return known
        self.trees.leave(pid)
        root = ProcessId(pid, stat.start)
        tree = self.trees.add(Tree(root, stat.ppid, label, agent, recognised=recognised))
        self._started(tree)
        queue = [pid]
        for parent in queue:
            for child in self._children(parent):
                if child not in tree.members:
                    self.trees.leave(child)
                    self.trees.fork(parent, child, self._identity(child))
                    queue.append(child)
        return tree

    def _children(self, pid: int) -> list[int]:
        from receipt_trace.sources.scan import below  # noqa: PLC0415

        return [child for parent, child in below(self._root, [pid], ()) if parent == pid]

    def _identity(self, pid: int) -> ProcessId | None:
        try:
            return ProcessId(pid, proc.stat(self._root, pid).start)
        except (OSError, ValueError):
            return None

    def _environment(self, pid: int) -> dict[str, str]:
        try:
            return proc.environment(self._root, pid)
        except OSError:
            return {}

    def _facts(self, pid: int) -> Facts | None:
        """What may be seen of a process; ``None`` when it is gone."""
        try:
            stat = proc.stat(self._root, pid)
            argv = tuple(proc.arguments(self._root, pid))
        except (OSError, ValueError):
            return None
        exe = proc.link(self._root, pid, "exe")
        return Facts(pid, stat.ppid, argv, exe, self._environment(pid), stat.session == pid)
