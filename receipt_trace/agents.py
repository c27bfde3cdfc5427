"""Which processes are agents, and which of their children are tool calls.

What is known of each agent is data (``agents.toml``, and the configuration). The
functions here are pure: facts about a process go in, an answer comes out.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import PurePath
from typing import Any, Final

from receipt_trace.errors import UsageError

MARK: Final = "RECEIPT_TRACE"
"""The variable with which anybody marks a tool call of his own; its value is the label."""

_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh", "fish", "ksh", "ash"})
_INTERPRETERS: Final = ("node", "nodejs", "bun", "deno", "python", "pypy")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is looked at of a process."""

    pid: int
    ppid: int
    argv: tuple[str, ...] = ()
    exe: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    leads_session: bool = False


@dataclass(frozen=True, slots=True)
class AgentKind:
    """One entry of the registry; the fields are those of ``agents.toml``."""

    name: str
    programs: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    paths: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    shell: bool = False
    session: bool = False
    child: bool = False
    session_variable: str | None = None

    def is_harness(self, facts: Facts) -> bool:
        """Whether a process is this agent itself."""
        names = {PurePath(facts.argv[0]).name} if facts.argv else set()
        if facts.exe:
            names.add(PurePath(facts.exe.removesuffix(" (deleted)")).name)
        interpreted = any(name.startswith(_INTERPRETERS) for name in names)
        if interpreted:
            script, module = _script(facts.argv)
            if module is not None:
                return module in self.modules
            if script is not None:
                names.add(PurePath(script).name)
                if any(fragment in script for fragment in self.paths):
                    return True
        return not names.isdisjoint(self.programs)

    def is_marked(self, facts: Facts) -> bool:
        """Whether a process carries this agent's marks of a tool call."""
        return bool(self.env) and all(
            fnmatchcase(facts.environment.get(name, ""), pattern) and name in facts.environment
            for name, pattern in self.env.items()
        )

    def has_shape(self, facts: Facts) -> bool:
        """Whether a process has the shape of the root of a tool call."""
        if self.session and not facts.leads_session:
            return False
        return not self.shell or is_shell_call(facts.argv)


def is_shell_call(argv: tuple[str, ...]) -> bool:
    """``SHELL -c TEXT``, also ``-lc`` and with other options before it."""
    options, rest = _options(argv)
    return _is_shell(argv) and bool(rest) and any("c" in o for o in options)


def _is_shell(argv: tuple[str, ...]) -> bool:
    return bool(argv) and PurePath(argv[0]).name.lstrip("-") in _SHELLS


def _options(argv: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
    """The short options of a shell's command line, and what comes after all options."""
    short: list[str] = []
    position = 1
    while position < len(argv) and argv[position][:1] in ("-", "+"):
        option = argv[position]
        if not option.startswith("--"):
            short.append(option)
        position += 2 if option[1:] in ("o", "O") else 1  # these two have an argument
    return short, argv[position:]


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
        return next((kind for kind in self.kinds.values() if kind.is_harness(facts)), None)

    def marked(self, facts: Facts) -> AgentKind | None:
        """Whose tool call a process belongs to, by its marks."""
        return next((kind for kind in self.kinds.values() if kind.is_marked(facts)), None)


def load_registry(extra: Mapping[str, Any] | None = None, origin: str = "") -> Registry:
    """The known agents, with those of a configuration added or put in their place.

    Raises UsageError that names the entry, the key and what is allowed.
    """
    text = resources.files("receipt_trace").joinpath("agents.toml").read_text()
    kinds = {
        name: _kind(name, entry, "agents.toml")
        for name, entry in tomllib.loads(text)["agent"].items()
    }
    for name, entry in (extra or {}).items():
        kinds[name] = _kind(name, entry, origin)
    return Registry(kinds)


_ALLOWED: Final[Mapping[str, Mapping[str, type]]] = {
    "harness": {"program": list, "module": list, "path": list},
    "tool": {"env": dict, "shell": bool, "session": bool, "child": bool},
}


def _kind(name: str, entry: object, origin: str) -> AgentKind:
    where = f"{origin}: agent.{name}"
    if not isinstance(entry, dict):
        raise UsageError(f"{where} is {entry!r}; expected a table with harness, tool and session")
    _only(where, entry, {"harness", "tool", "session"})
    for part, allowed in _ALLOWED.items():
        table = entry.get(part, {})
        if not isinstance(table, dict):
            raise UsageError(
                f"{where}.{part} is {table!r}; expected a table of {', '.join(allowed)}"
            )
        _only(f"{where}.{part}", table, set(allowed))
        for key, value in table.items():
            _check(f"{where}.{part}.{key}", value, allowed[key])
    harness, tool = entry.get("harness", {}), entry.get("tool", {})
    session = entry.get("session")
    if session is not None and not isinstance(session, str):
        raise UsageError(f"{where}.session is {session!r}; expected the name of a variable")
    if not tool.get("env") and not tool.get("child"):
        raise UsageError(f"{where} says nothing of its tool calls; expected tool.env or tool.child")
    return AgentKind(
        name=name,
        programs=frozenset(harness.get("program", ())),
        modules=frozenset(harness.get("module", ())),
        paths=tuple(harness.get("path", ())),
        env=dict(tool.get("env", {})),
        shell=tool.get("shell", False),
        session=tool.get("session", False),
        child=tool.get("child", False),
        session_variable=session,
    )


def _only(where: str, table: Mapping[str, object], allowed: set[str]) -> None:
    for key in table:
        if key not in allowed:
            raise UsageError(
                f"{where}.{key} is not known; expected one of {', '.join(sorted(allowed))}"
            )


def _check(where: str, value: object, kind: type) -> None:
    strings = kind is not bool
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not isinstance(value, kind) or (strings and not all(isinstance(v, str) for v in values)):
        expected = {list: "a list of strings", dict: "a table of strings", bool: "true or false"}[
            kind
        ]
        raise UsageError(f"{where} is {value!r}; expected {expected}")
