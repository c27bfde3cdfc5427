r"""The catalogue: one TOML file for each family of programs, checked to the last key.

A family is what its cases share, and a list of cases::

    about = "what these programs are"       # one line
    packages = ["zip", "pip:click"]         # of every case: Debian's, pip:NAME, npm:NAME
    services = ["http"]                     # loopback servers of every case: see services.py
    kit = '''cc -o "$KIT/ask" ask.c'''      # run once, in a folder $KIT that all cases share

    [[case]]
    name = "rm -i"                          # unique within the family
    command = "rm -i f"                     # given to bash -c, in a fresh directory
    files = { f = "" }                      # written there before
    setup = "chmod 444 f"                   # shell text, run before
    env = { EDITOR = "vi" }
    user = "nobody"                         # run as this user; root without it
    lock = "dpkg"                           # one case at a time of those with this lock
    wirings = ["tty", "pipe"]               # where it waits (null: its input is closed)
    kind = "line"                           # on a terminal; or a table by wiring
    program = "rm"                          # the name of the process that reads
    question = "remove regular empty file"  # what can be seen of it; or a table by wiring
    answer = "y\n"                          # on this it goes on
    after = "test ! -e f"                   # shell text that succeeds once that has been done
    patience = 40                           # it has asked after so many seconds (20 without it)
    miss = "why it is known to be missed"   # shown in the report; nothing is judged by it
    quick = true                            # in the representative subset

A control says ``asks = false``, and instead of a kind: ``why`` it looks like a question though
a thread reads the input, what is written to its input at the start (``feed``), and what proves
that it ran: a text that is ``shown``, and an exit ``status`` where it ends by itself.

On a pipe the kind is ``stream`` and with a closed input ``dead``, where a case says nothing else.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Final

from receipt_trace.errors import UsageError

WIRINGS: Final = ("tty", "pipe", "null")
KINDS: Final = ("line", "secret", "key", "screen", "stream", "dead")

_TEXT: Final = "a text"
_TEXTS: Final = "a list of texts"
_TABLE: Final = "a table of texts"
_FAMILY_KEYS: Final = {
    "about": _TEXT,
    "packages": _TEXTS,
    "kit": _TEXT,
    "services": _TEXTS,
    "case": "a list of tables [[case]]",
}
_CASE_KEYS: Final = {
    "name": _TEXT,
    "command": _TEXT,
    "asks": "true or false",
    "why": _TEXT,
    "packages": _TEXTS,
    "setup": _TEXT,
    "files": _TABLE,
    "env": _TABLE,
    "user": _TEXT,
    "services": _TEXTS,
    "lock": _TEXT,
    "wirings": f"a list of {', '.join(WIRINGS)}",
    "kind": f"one of {', '.join(KINDS)}, or a table of them by wiring",
    "program": "a text, or a table of texts by wiring",
    "question": "a text, or a table of texts by wiring",
    "answer": _TEXT,
    "after": _TEXT,
    "feed": _TEXT,
    "shown": _TEXT,
    "status": "an exit status",
    "patience": "a number of seconds",
    "miss": _TEXT,
    "quick": "true or false",
}
_ASKING_ONLY: Final = ("kind", "program", "question", "answer", "after", "patience", "miss")
_CONTROL_ONLY: Final = ("feed", "shown", "status", "why")


@dataclass(frozen=True, slots=True)
class Expected:
    """What is expected of a wait under one wiring. An empty ``question``: none can be seen."""

    kind: str
    program: str
    question: str


@dataclass(frozen=True)
class Case:
    """One command.

    ``wirings``: where it waits (a control: where it is run). ``feed``: given to a control at
    the start. ``answer``: what makes a waiting command go on. ``after``: shell text that
    succeeds once the asked-for action has happened. ``shown`` and ``status`` (``None``: it
    goes on) prove that a control really ran. ``lock`` names what only one case at a time may
    use. ``patience``: seconds until it has asked at the latest. ``miss``: the reason where it is
    known that the product does not report it; nothing is judged by it.
    """

    family: str
    name: str
    command: str
    asks: bool = True
    why: str = ""
    packages: tuple[str, ...] = ()
    setup: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    services: tuple[str, ...] = ()
    lock: str = ""
    wirings: tuple[str, ...] = ("tty", "pipe")
    kind: Mapping[str, str] = field(default_factory=dict)
    program: Mapping[str, str] = field(default_factory=dict)
    question: Mapping[str, str] = field(default_factory=dict)
    answer: str = "\n"
    after: str = ""
    feed: str = ""
    shown: str = ""
    status: int | None = None
    patience: float = 20.0
    miss: str = ""
    quick: bool = False

    @property
    def id(self) -> str:
        """Unique in the whole catalogue."""
        return f"{self.family}/{self.name}"

    def expected(self, wiring: str) -> Expected:
        """What is expected of its wait under a wiring."""
        return Expected(self.kind[wiring], self.program[wiring], self.question[wiring])


@dataclass(frozen=True)
class Family:
    """One file of the catalogue. ``kit`` is run once, with ``$KIT`` as its directory."""

    name: str
    about: str
    cases: tuple[Case, ...]
    packages: tuple[str, ...] = ()
    kit: str = ""


@dataclass(frozen=True)
class Catalogue:
    """All families."""

    families: tuple[Family, ...]

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        """All cases, family by family."""
        return tuple(case for family in self.families for case in family.cases)

    def family(self, name: str) -> Family:
        """A family by its name; one without a kit where there is none."""
        empty = Family(name, "", ())
        return next((family for family in self.families if family.name == name), empty)

    def select(self, patterns: Iterable[str] = (), *, quick: bool = False) -> tuple[Case, ...]:
        """The cases that any pattern fits (``FAMILY``, ``FAMILY/NAME``, with * and ?); all without one.

        Raises UsageError for a pattern that fits none.
        """
        chosen: dict[str, Case] = {}
        for pattern in list(patterns) or ["*"]:
            fitting = [c for c in self.cases if pattern == c.family or fnmatchcase(c.id, pattern)]
            if not fitting:
                names = ", ".join(family.name for family in self.families)
                raise UsageError(
                    f"{pattern!r} fits no case; expected FAMILY or FAMILY/NAME, with * and ?, of "
                    f"the families {names}\ntry: receipt-trace litmus list"
                )
            chosen.update((case.id, case) for case in fitting if case.quick or not quick)
        return tuple(case for case in self.cases if case.id in chosen)


def load(folder: Path | None = None) -> Catalogue:
    """Read every ``*.toml`` of a folder (without one: those of the package).

    Raises UsageError that names file, case, key, value and what is allowed.
    """
    source = resources.files("receipt_trace.litmus") if folder is None else folder
    files = sorted((f for f in source.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    if not files:
        raise UsageError(f"{source} holds no catalogue; expected files FAMILY.toml")
    families = []
    for file in files:
        try:
            families.append(parse_family(file.name, file.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{file} cannot be read: {error}; expected TOML in UTF-8") from None
    return Catalogue(tuple(families))


def parse_family(file: str, text: str) -> Family:
    """One file of the catalogue. Raises UsageError as :func:`load` does."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file} is not TOML: {error}") from None
    name = file.removesuffix(".toml")
    _check(values, _FAMILY_KEYS, file, ("about", "case"))
    shared = tuple(values.get("packages", ()))
    services = tuple(values.get("services", ()))
    cases: list[Case] = []
    for number, table in enumerate(values["case"], 1):
        where = f"{file}: case {number}"
        if not isinstance(table, dict):
            raise UsageError(f"{where} is {table!r}; expected a table [[case]]")
        where += f" ({table.get('name', 'without a name')!s})"
        case = _parse_case(name, table, where, shared, services)
        if any(case.name == other.name for other in cases):
            raise UsageError(f"{where}: name {case.name!r} is taken by a case before it")
        cases.append(case)
    return Family(name, values["about"], tuple(cases), shared, values.get("kit", ""))


def _parse_case(
    family: str,
    table: dict[str, Any],
    where: str,
    packages: tuple[str, ...],
    services: tuple[str, ...],
) -> Case:
    asks = table.get("asks", True)
    required = ("name", "command", *(("kind", "program") if asks is True else ()))
    _check(table, _CASE_KEYS, where, required)
    out_of_place = _CONTROL_ONLY if asks else _ASKING_ONLY
    for key in out_of_place:
        if key in table:
            other = "a control (asks = false)" if asks else "a case that asks"
            raise UsageError(f"{where}: {key} is only for {other}; leave it out")
    values = dict(table)
    for key in ("packages", "services", "wirings"):
        if key in values:
            values[key] = tuple(values[key])
    values["packages"] = (*packages, *values.get("packages", ()))
    values["services"] = (*services, *values.get("services", ()))
    if asks:
        values["kind"] = _by_wiring(values["kind"], {"pipe": "stream", "null": "dead"})
        values["program"] = _by_wiring(values["program"], {})
        values["question"] = _by_wiring(values.get("question", ""), {})
    return Case(family=family, **values)


def _by_wiring(value: str | Mapping[str, str], usual: Mapping[str, str]) -> dict[str, str]:
    """A value for each wiring: a plain one is the terminal's, and everybody's without a usual one."""
    if isinstance(value, str):
        return {wiring: usual.get(wiring, value) for wiring in WIRINGS}
    first = next(iter(value.values()))
    return {w: value.get(w, usual.get(w, value.get("tty", first))) for w in WIRINGS}


def _check(
    values: Mapping[str, Any], keys: Mapping[str, str], where: str, required: Iterable[str]
) -> None:
    for key, value in values.items():
        if key not in keys:
            raise UsageError(f"{where}: {key} is not known; expected one of {', '.join(keys)}")
        if not _fits(key, value):
            raise UsageError(f"{where}: {key} is {value!r}; expected {keys[key]}")
    for key in required:
        if not values.get(key):
            raise UsageError(f"{where}: {key} is missing; expected {keys[key]}")


def _fits(key: str, value: Any) -> bool:
    match key:
        case "case":
            return isinstance(value, list)
        case "asks" | "quick":
            return isinstance(value, bool)
        case "status":
            return isinstance(value, int) and 0 <= value < 256
        case "patience":
            return isinstance(value, int | float) and 0 < value <= 120
        case "wirings":
            return isinstance(value, list) and bool(value) and set(value) <= set(WIRINGS)
        case "kind":
            return _by_wiring_fits(value) and set(_values(value)) <= set(KINDS)
        case "program" | "question":
            return _by_wiring_fits(value)
        case "files" | "env":
            return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
        case "packages" | "services":
            return isinstance(value, list) and all(isinstance(v, str) for v in value)
        case _:
            return isinstance(value, str)


def _by_wiring_fits(value: Any) -> bool:
    if isinstance(value, dict):
        return bool(value) and set(value) <= set(WIRINGS) and _all_texts(value.values())
    return isinstance(value, str)


def _values(value: Any) -> Iterable[str]:
    return value.values() if isinstance(value, dict) else (value,)


def _all_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)
