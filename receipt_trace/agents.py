"""Which processes are agents, and which of their children are tool calls.

What is known of each agent is data (``agents.toml``, and the configuration). The
functions here are pure: facts about a process go in, an answer comes out.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import PurePath
from typing import Any, Final

from receipt_trace.errors import UsageError

MARK: Final = "RECEIPT_TRACE"
"""The variable with which anybody marks a tool call of his own; its value is the label."""

_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "fish", "ksh", "ash"})
_INTERPRETERS: Final = ("node", "nodejs", "bun", "deno", "python", "pypy")
_WITH_WORD: Final = frozenset({"--rcfile", "--init-file", "--init-command"})
_STDIN: Final = ("null", "pipe", "socket", "tty", "file")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is looked at of a process. ``stdin`` is one of null, pipe, socket, tty, file, or empty.

    ``first_stdin`` is what it was when it first became a program: one may have closed or replaced
    it since (vim takes its error output for it). ``execs`` counts how often it was seen to become another program (0: not known).
    """

    pid: int
    ppid: int
    argv: tuple[str, ...] = ()
    exe: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    leads_session: bool = False
    stdin: str = ""
    first_stdin: str = ""
    execs: int = 0


@dataclass(frozen=True, slots=True)
class Harness:
    """How the agent itself is known; the fields are those of ``harness`` in ``agents.toml``."""

    program: tuple[str, ...] = ()
    module: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    argument: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def matches(self, facts: Facts) -> bool:
        """Whether a process is this agent."""
        if not all(argument in facts.argv for argument in self.argument):
            return False
        names = {PurePath(facts.argv[0]).name} if facts.argv else set()
        if not {*names, *facts.argv}.isdisjoint(self.without):
            return False
        if facts.exe:
            names.add(PurePath(facts.exe.removesuffix(" (deleted)")).name)
        if any(name.startswith(_INTERPRETERS) for name in names):
            script, module = _script(facts.argv)
            if module is not None:
                return module in self.module
            if script is not None:
                names.add(PurePath(script).name)
                if any(fragment in script for fragment in self.path):
                    return True
        return not names.isdisjoint(self.program)


@dataclass(frozen=True, slots=True)
class Tool:
    """One shape of the root of a tool call; the fields are those of ``tool`` in ``agents.toml``."""

    env: Mapping[str, str] = field(default_factory=dict)
    unless: Mapping[str, str] = field(default_factory=dict)
    child: bool = False
    shell: bool = False
    bare: bool = False
    argument: str = ""
    session: bool = False
    stdin: tuple[str, ...] = ()
    leaks: bool = False
    ended: bool = False
    persistent: bool = False
    person: bool = False

    def is_marked(self, facts: Facts) -> bool:
        """Whether a process carries the marks."""
        return all(_has(facts, *pair) for pair in self.env.items()) and not any(
            _has(facts, *pair) for pair in self.unless.items()
        )

    def has_shape(self, facts: Facts, *, of_harness: bool = False) -> bool:
        """Whether a process looks like the root of a tool call, marks apart.

        A shell may become its last command within a millisecond. Of those that the agent
        itself starts, or gives a session of their own, nobody but a shell or another
        wrapper becomes a second program.
        """
        trusted = self.child or self.session or of_harness
        became = trusted and facts.execs > 1
        return (
            (not self.session or facts.leads_session)
            and (not self.argument or self.argument in facts.argv)
            and (not self.stdin or not {facts.stdin, facts.first_stdin}.isdisjoint(self.stdin))
            and (not self.shell or is_shell_call(facts.argv) or became)
            and (not self.bare or is_bare_shell(facts.argv))
        )

    def is_sure(self, facts: Facts) -> bool:
        """Whether a root of this shape can be no server that only came the same way."""
        return self.session or self.ended or not self.shell or is_shell_call(facts.argv)

    def is_root(self, facts: Facts, parent: Facts, *, of_harness: bool) -> bool:
        """Whether a process is the root of a tool call, given its parent.

        ``of_harness``: the parent is the agent itself. Marks are inherited, so a process
        is a root only if its parent is not marked as well, or is the agent.
        """
        if self.child and not of_harness:
            return False
        if not self.is_marked(facts) or not self.has_shape(facts, of_harness=of_harness):
            return False
        if not self.env or of_harness:
            return True
        return not self.is_marked(parent) or (self.leaks and not self.has_shape(parent))


@dataclass(frozen=True, slots=True)
class AgentKind:
    """One entry of the registry."""

    name: str
    harness: Harness = field(default_factory=Harness)
    tools: tuple[Tool, ...] = ()
    session_variable: str | None = None
    name_variable: str | None = None

    def tool(self, facts: Facts, parent: Facts, *, of_harness: bool) -> Tool | None:
        """The shape of tool call that a process is the root of, if any."""
        roots = (t for t in self.tools if t.is_root(facts, parent, of_harness=of_harness))
        return next(roots, None)

    def name_of(self, facts: Facts) -> str:
        """The agent's name: its own, or what a variable says."""
        said = facts.environment.get(self.name_variable, "") if self.name_variable else ""
        return said[:64] or self.name


def is_shell_call(argv: tuple[str, ...]) -> bool:
    """``SHELL -c TEXT``, also ``-lc`` and with other options before it."""
    options, rest = _options(argv)
    return _is_shell(argv) and bool(rest) and any("c" in o for o in options)


def is_bare_shell(argv: tuple[str, ...]) -> bool:
    """A shell with options at most: it takes its commands from its input. What may stand before it
    (``nice -n 10 bash -i``, ``/usr/bin/env bash``) does so only until it has become it.
    """
    options, rest = _options(argv)
    return _is_shell(argv) and not rest and not any("c" in o for o in options)


def _is_shell(argv: tuple[str, ...]) -> bool:
    return bool(argv) and PurePath(argv[0]).name.lstrip("-") in _SHELLS


def _options(argv: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
    """The short options of a shell's command line, and what comes after all options."""
    short: list[str] = []
    position = 1
    while position < len(argv) and argv[position][:1] in ("-", "+"):
        option = argv[position]
        long = option.startswith("--")
        if not long:
            short.append(option)
        with_word = option in _WITH_WORD if long else option[-1] in "oO"
        position += 2 if with_word else 1
    return short, argv[position:]


def _has(facts: Facts, name: str, pattern: str) -> bool:
    value = facts.environment.get(name)
    return value is not None and any(fnmatchcase(value, p) for p in pattern.split("|"))


def _script(argv: tuple[str, ...]) -> tuple[str | None, str | None]:
    """(script, module) that an interpreter was given."""
    arguments = iter(argv[1:])
    for argument in arguments:
        if argument == "-m":
            return None, next(arguments, "")
        if not argument.startswith("-"):
            return argument, None
    return None, None


class Registry:
    """All agents that are known."""

    def __init__(self, kinds: Mapping[str, AgentKind]) -> None:
        self.kinds = dict(kinds)

    def harness(self, facts: Facts) -> AgentKind | None:
        """Which agent a process is, if any."""
        return next((kind for kind in self.kinds.values() if kind.harness.matches(facts)), None)

    def marks(self, facts: Facts) -> bool:
        """Whether a process carries marks of anybody's tool calls."""
        return any(t.env and t.is_marked(facts) for k in self.kinds.values() for t in k.tools)

    def tool(
        self, facts: Facts, parent: Facts, harness: AgentKind | None
    ) -> tuple[AgentKind, Tool] | None:
        """The agent and the shape of the tool call that a process is the root of.

        ``harness`` is the agent that the parent is, if it is one.
        """
        for kind in self.kinds.values():
            tool = kind.tool(facts, parent, of_harness=kind is harness)
            if tool is not None:
                return kind, tool
        return None


def load_registry(extra: Mapping[str, Any] | None = None, origin: str = "") -> Registry:
    """The known agents, with those of a configuration added or put in their place.

    A user's own agents are asked before those known here. Raises UsageError that names
    the entry, the key and what is allowed.
    """
    text = resources.files("receipt_trace").joinpath("agents.toml").read_text()
    known = tomllib.loads(text)["agent"]
    kinds = {name: _kind(name, entry, origin) for name, entry in (extra or {}).items()}
    for name, entry in known.items():
        kinds.setdefault(name, _kind(name, entry, "agents.toml"))
    return Registry(kinds)


def _kind(name: str, entry: object, origin: str) -> AgentKind:
    where = f"{origin}: agent.{name}"
    if not isinstance(entry, dict):
        raise UsageError(f"{where} is {entry!r}; expected a table with harness, tool and session")
    _only(where, entry, ("harness", "tool", "session", "name_from"))
    for key in ("session", "name_from"):
        if key in entry and not isinstance(entry[key], str):
            raise UsageError(f"{where}.{key} is {entry[key]!r}; expected the name of a variable")
    tables = entry.get("tool", [])
    tables = tables if isinstance(tables, list) else [tables]
    if not tables:
        raise UsageError(f"{where} has no tool; expected how a tool call of it looks")
    return AgentKind(
        name=name,
        harness=Harness(**_table(f"{where}.harness", entry.get("harness", {}), Harness)),
        tools=tuple(_tool(f"{where}.tool", table) for table in tables),
        session_variable=entry.get("session"),
        name_variable=entry.get("name_from"),
    )


def _tool(where: str, table: object) -> Tool:
    tool = Tool(**_table(where, table, Tool))
    if not tool.env and not tool.child:
        raise UsageError(f"{where} fits anything; expected env (marks) or child = true")
    for word in tool.stdin:
        if word not in _STDIN:
            raise UsageError(f"{where}.stdin holds {word!r}; expected any of {', '.join(_STDIN)}")
    return tool


def _table(where: str, table: object, kind: type) -> dict[str, Any]:
    """The values of a table, each of the type of the field that it is for."""
    if not isinstance(table, dict):
        raise UsageError(f"{where} is {table!r}; expected a table")
    types = {f.name: str(f.type) for f in fields(kind)}
    _only(where, table, tuple(types))
    values = {}
    for key, value in table.items():
        wanted = (
            "list"
            if "tuple" in types[key]
            else "table"
            if "Mapping" in types[key]
            else "bool"
            if "bool" in types[key]
            else "string"
        )
        if not _fits(value, wanted):
            raise UsageError(f"{where}.{key} is {value!r}; expected {_EXPECTED[wanted]}")
        values[key] = tuple(value) if wanted == "list" else value
    return values


_EXPECTED: Final = {
    "list": "a list of strings",
    "table": "a table of strings",
    "bool": "true or false",
    "string": "a string",
}


def _fits(value: object, wanted: str) -> bool:
    match wanted:
        case "list":
            return isinstance(value, list) and all(isinstance(v, str) for v in value)
        case "table":
            return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
        case "bool":
            return isinstance(value, bool)
        case _:
            return isinstance(value, str) and bool(value)


def _only(where: str, table: Mapping[str, object], allowed: tuple[str, ...]) -> None:
    for key in table:
        if key not in allowed:
            raise UsageError(f"{where}.{key} is not known; expected one of {', '.join(allowed)}")
