"""Finding tool calls: lifecycle events of the host in, trees out.

Four ways lead to a tree: a process named by the caller (``--root``), a child of a
harness, a command below a shell that lives on between commands, and marks in the
environment. A process is looked at when it became another program, never again. One
that is gone by then is what the kernel told of its beginning.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from receipt_trace.agents import MARK, AgentKind, Facts, Registry, Tool
from receipt_trace.observation import (
    Beginning,
    Exec,
    Exit,
    FileKind,
    Fork,
    Lifecycle,
    ProcessId,
    Resync,
)
from receipt_trace.sources import proc, scan
from receipt_trace.trees import Agent, Tree, Trees

_ANCESTORS: Final = 64  # a longer line of parents is not followed
_BURST_NS: Final = 100_000_000  # a shell forks all members of a pipeline within this

_STDIN: Final = {
    FileKind.NULL: "null",
    FileKind.PIPE: "pipe",
    FileKind.TTY: "tty",
    FileKind.FILE: "file",
}


class Discovery:
    """Keeps ``trees`` up to date.

    ``everybody`` is false when nothing but what is named is to be followed. ``started`` is called with every new tree, ``found`` with every new agent. ``clock``
    is CLOCK_MONOTONIC in nanoseconds; ``execs`` tells how often a process has become another
    program where the kernel counts that (0: not known), for events may be lost.
    """

    def __init__(
        self,
        root: Path,
        trees: Trees,
        registry: Registry,
        started: Callable[[Tree], None],
        found: Callable[[Agent], None],
        clock: Callable[[], int],
        *,
        everybody: bool = True,
        execs: Callable[[int], int] = lambda _pid: 0,
    ) -> None:
        self._root, self.trees, self._registry = root, trees, registry
        self._everybody, self._counted = everybody, execs
        self._started, self._found, self._clock = started, found, clock
        self.harnesses: dict[int, tuple[ProcessId, AgentKind]] = {}
        self.shells: dict[int, _Shell] = {}
        self._named: dict[int, Agent] = {}
        self._told: dict[int, int | None] = {}
        self._execs: dict[int, int] = {}
        self._forked: dict[int, AgentKind] = {}
        self._stdins: dict[int, str] = {}
        self._began: dict[int, Beginning] = {}

    @property
    def agents(self) -> int:
        """How many harnesses are known now, with those the caller named."""
        return len(self.harnesses) + len(self._named)

    def teach(self, registry: Registry) -> None:
        """Know agents by another registry from now on; what is followed already stays so."""
        self._registry = registry

    # -- what the caller names ---------------------------------------------------------

    def name_root(self, pid: int) -> Tree:
        """Follow the tree of a process. Raises OSError when it is gone."""
        known = self.trees.of(pid)
        if known is not None:
            return known
        return self._start(pid, None, self._agent_above(pid))

    def name_agent(self, pid: int) -> None:
        """Take a process for a harness: its children, now and later, are tool calls.

        Of an agent that is known only those that look like its tool calls. Raises OSError
        when it is gone.
        """
        stat = proc.stat(self._root, pid)
        facts = self._facts(pid)
        kind = self._registry.harness(facts) if facts is not None else None
        if kind is not None:
            self._add_harness(pid, kind)
        else:
            self._named[pid] = Agent(stat.comm, pid)
        for child in self._children(pid):
            if kind is not None:
                self.look(child)
            else:
                self._try(child, None, self._named[pid])

    # -- what happens on the host ------------------------------------------------------

    def take(self, events: Iterable[Lifecycle]) -> bool:
        """Take lifecycle events; returns whether some were lost."""
        lost = False
        for event in events:
            match event:
                case Fork(parent, child, identity):
                    self._born(parent, child, identity)
                case Exec(pid, began):
                    self._begin(pid, began)
                    self._told.pop(pid, None)
                    self._forked.pop(pid, None)
                    if pid in self._execs:
                        self._execs[pid] += 1
                    self.look(pid)
                case Exit(pid, status):
                    if not self.lives(pid):
                        self.gone(pid, status)
                    elif self.trees.of(pid) is not None:
                        self._told[pid] = status  # it may just be going, and this is not told again
                case Resync():
                    self._began.clear()
                    lost = True
        return lost

    def parents(self) -> list[int]:
        """Processes whose every child is of interest: who sees no events must ask for them."""
        return [*self.shells, *self._named]

    def nurses(self) -> set[int]:
        """Processes whose children are tool calls, or may be."""
        return {*self.shells, *self._named, *self.harnesses}

    def known(self, pid: int) -> bool:
        """Whether a child of one of those has been seen already."""
        return self.trees.of(pid) is not None or pid in self.shells

    def _born(self, parent: int, child: int, told: ProcessId | None) -> None:
        identity = told or self._identity(child)
        if self._was_somebody_else(child, identity):
            self.gone(child, None)
        self._execs[child] = 0
        self._stdins.pop(child, None)
        self._began.pop(child, None)
        if told is not None and (parent in self.shells or parent in self._named):
            self._began[child] = Beginning(told, parent)
        same = self.harnesses[parent][1] if parent in self.harnesses else self._forked.get(parent)
        if same is not None:  # it is the agent still: tmux forks twice to be a server
            self._forked[child] = same
        if self.trees.of(parent) is not None:
            self.trees.fork(parent, child, identity)
        elif parent in self.shells:
            self._command(self.shells[parent], child, identity)
        elif parent in self._named:
            self._try(child, None, self._named[parent])

    def _begin(self, pid: int, began: Beginning | None) -> None:
        """A process has become a program. Its tree is named after the first one it was."""
        self._began.pop(pid, None)
        if began is None:
            return
        self._began[pid] = began
        tree = self.trees.of(pid)
        if tree is None or tree.root != began.identity:
            return
        if tree.began is None or not tree.began.argv:
            tree.began = began

    def _was_somebody_else(self, pid: int, now: ProcessId | None) -> bool:
        """Whether the number of a new process was that of one we still know, unless it is the same
        one, found before its birth was told. One that was never looked at is another one.
        """
        tree = self.trees.of(pid)
        known = [] if tree is None else [tree.members.get(pid)]
        known += [self.harnesses[pid][0]] if pid in self.harnesses else []
        known += [self.shells[pid].id] if pid in self.shells else []
        return any(identity is None or identity != now for identity in known)

    def _command(
        self, shell: "_Shell", child: int, identity: ProcessId | None, *, found: bool = False
    ) -> None:
        """A shell that lives on has started something: another tool call, or the next member
        of a pipeline. What was ``found`` below it when it became known is told apart by its
        process groups, which are its jobs.
        """
        now, group = self._clock(), self._group(child)
        tree = shell.latest
        same = group == shell.group if found else now - shell.forked < _BURST_NS
        shell.forked, shell.group = now, group
        if same and tree is not None and tree.members.keys() - self._told.keys():
            self.trees.join(tree, child, identity)
        else:
            shell.latest = self._try(child, None, shell.agent, recognised=True, person=shell.person)

    def gone(self, pid: int, status: int | None) -> None:
        """A process has ended."""
        self.harnesses.pop(pid, None)
        self.shells.pop(pid, None)
        self._named.pop(pid, None)
        self._execs.pop(pid, None)
        self._forked.pop(pid, None)
        self._stdins.pop(pid, None)
        self._began.pop(pid, None)
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
        if not self._everybody and inside is None and not self._starts_calls(pid):
            return
        facts = self._facts(pid)
        if facts is None:
            return
        label = facts.environment.get(MARK)
        if label and self._environment(facts.ppid).get(MARK) != label:
            if inside is not None and inside.root.pid == pid:
                inside.label = label
            elif self._everybody:
                self._try(pid, label, self._agent_above(pid))
            return
        harness = self._registry.harness(facts)
        if pid in self.harnesses and self.harnesses[pid][1] is not harness:
            del self.harnesses[pid]  # it has become something else
        is_root = inside is not None and inside.root.pid == pid
        if (is_root or not self._look_for_tool(facts, inside)) and harness is not None:
            self._add_harness(pid, harness)

    def _starts_calls(self, pid: int) -> bool:
        """Whether the parent of a process is an agent that was named."""
        above = self._parent(pid)
        return above in self.harnesses or above in self._forked

    def _look_for_tool(self, facts: Facts, inside: Tree | None) -> bool:
        known = self.harnesses.get(facts.ppid)
        above = known[1] if known is not None else self._forked.get(facts.ppid)
        parent = Facts(facts.ppid, 0)
        if self._registry.marks(facts):  # only then does the parent matter
            parent = self._facts(facts.ppid) or parent
        found = self._registry.tool(facts, parent, above)
        if found is None:
            return False
        kind, tool = found
        agent = self._agent_of(kind, facts)
        outer = inside.agent if inside is not None else None
        if outer is not None and outer.name == agent.name and above is not kind:
            return False  # a part of the tool call that it is in
        if tool.persistent:
            self._add_shell(facts.pid, agent, tool)
        else:
            sure = tool.is_sure(facts)
            tree = self._try(facts.pid, None, agent, recognised=sure, person=tool.person)
            if tree is not None:
                tree.ended_input = tool.ended
                if above is not kind:  # its root may be gone, and this be an orphan of it
                    tree.givers = self._harnesses_of(kind)
        return True

    def _add_shell(self, pid: int, agent: Agent, tool: Tool) -> None:
        """A shell between the harness and its commands: never a tool call itself."""
        identity = self._identity(pid)
        if identity is None or (pid in self.shells and self.shells[pid].id == identity):
            return
        self.trees.leave(pid)
        self.shells[pid] = _Shell(identity, agent, tool.person)
        for child in self._children(pid):
            self.trees.leave(child)
            self._command(self.shells[pid], child, self._identity(child), found=True)

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
        agents = {pid: identity for pid, (identity, _) in self.harnesses.items()}
        for pid, identity in (agents | {pid: s.id for pid, s in self.shells.items()}).items():
            if self._identity(pid) != identity:
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

    def _agent_of(self, kind: AgentKind, facts: Facts) -> Agent:
        session = facts.environment.get(kind.session_variable) if kind.session_variable else None
        above = self._agent_above(facts.pid)
        there = self._harnesses_of(kind)
        pid = there[0] if len(there) == 1 else facts.ppid
        if above is not None and above.name == kind.name:
            pid = above.pid
        return Agent(kind.name_of(facts), pid, session)

    def _harnesses_of(self, kind: AgentKind) -> tuple[int, ...]:
        return tuple(pid for pid, (_, known) in self.harnesses.items() if known is kind)

    def _agent_above(self, pid: int) -> Agent | None:
        """The nearest harness among the ancestors."""
        for _ in range(_ANCESTORS):
            above = self._parent(pid)
            if above is None:
                return None
            pid = above
            if pid in self._named:
                return self._named[pid]
            if pid in self.harnesses:
                return Agent(self.harnesses[pid][1].name, pid)
            facts = self._facts(pid) if pid > 1 and self._everybody else None
            kind = self._registry.harness(facts) if facts is not None else None
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
        if any(tool.child for tool in kind.tools):
            for child in self._children(pid):
                self.look(child)

    def _try(self, pid: int, label: str | None, agent: Agent | None, **known: bool) -> Tree | None:
        """Follow the tree of a process; ``known`` are the fields of a tree that are known of it."""
        try:
            return self._start(pid, label, agent, **known)
        except (OSError, ValueError):
            return None  # it came and went

    def _start(self, pid: int, label: str | None, agent: Agent | None, **known: bool) -> Tree:
        began = self._began.get(pid)
        try:
            stat = proc.stat(self._root, pid)
            identity, parent = ProcessId(pid, stat.start), stat.ppid
        except (OSError, ValueError):
            if began is None:
                raise
            identity, parent = began.identity, began.parent
        there = self.trees.of(pid)
        if there is not None and there.root.pid == pid:
            return there
        self.trees.leave(pid)
        tree = Tree(identity, parent, label, agent, began=began, **known)  # type: ignore[arg-type]
        self.trees.add(tree)
        self._started(tree)
        queue = [pid]
        for parent in queue:
            for child in self._children(parent):
                if child not in tree.members and self._is_ours(child):
                    self.trees.leave(child)
                    self.trees.fork(parent, child, self._identity(child))
                    queue.append(child)
        return tree

    def _is_ours(self, pid: int) -> bool:
        """Not the root of a tree of its own already, nor a shell that lives on."""
        tree = self.trees.of(pid)
        return pid not in self.shells and (tree is None or tree.root.pid != pid)

    def _children(self, pid: int) -> list[int]:
        return [child for parent, child in scan.below(self._root, [pid], ()) if parent == pid]

    def _parent(self, pid: int) -> int | None:
        try:
            return proc.stat(self._root, pid).ppid
        except (OSError, ValueError):
            began = self._began.get(pid)
            return began.parent if began is not None else None

    def _group(self, pid: int) -> int:
        try:
            return proc.stat(self._root, pid).group
        except (OSError, ValueError):
            return 0

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
        """What is known of a process; ``None`` when it is gone and nothing was told of it.

        What the kernel told is of one moment, and what is read of somebody who may go or become another
        program meanwhile is not: only what was cut short is read.
        """
        began = self._began.get(pid)
        if began is not None and began.argv:
            return self._facts_told(began)
        try:
            stat = proc.stat(self._root, pid)
            argv = tuple(proc.arguments(self._root, pid))
        except (OSError, ValueError):
            return None
        stdin = self._stdin(proc.living(self._root, pid), stat.tty)
        return Facts(
            pid=pid,
            ppid=stat.ppid,
            argv=argv,
            exe=proc.link(self._root, pid, "exe"),
            environment=self._environment(pid),
            leads_session=stat.session == pid,
            stdin=stdin,
            first_stdin=self._stdins.setdefault(pid, stdin),
            execs=max(self._execs.get(pid, 0), self._counted(pid)),
        )

    def _facts_told(self, began: Beginning) -> Facts:
        pid = began.identity.pid
        return Facts(
            pid=pid,
            ppid=began.parent,
            argv=began.argv,
            exe=proc.link(self._root, pid, "exe"),
            environment={**self._environment(pid), **began.environment},
            leads_session=began.leads_session,
            stdin=began.stdin,
            first_stdin=self._stdins.setdefault(pid, began.stdin),
            execs=began.execs,
        )

    def _stdin(self, pid: int, tty: int) -> str:
        try:
            held = proc.descriptor(self._root, pid, 0, proc.terminal_key(tty))
        except OSError:
            return ""
        return "socket" if held.target.startswith("socket:") else _STDIN.get(held.kind, "")


class _Shell:
    """A shell that lives on between tool calls; ``latest`` is the newest one below it."""

    def __init__(self, identity: ProcessId, agent: Agent, person: bool) -> None:
        self.id, self.agent, self.person = identity, agent, person
        self.latest: Tree | None = None
        self.forked = 0
        self.group = 0
