"""The configuration file: one TOML file, checked to the last key."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from receipt_trace.agents import Registry, load_registry
from receipt_trace.constants import SOURCES
from receipt_trace.errors import UsageError

DEFAULT_PATH: Final = Path("/etc/receipt-trace/config.toml")
PROMPTS: Final = ("full", "redacted", "off")

_KEYS: Final = {
    "receipts": "a path, - for stdout, or fd:N",
    "source": f"one of {', '.join(SOURCES)}",
    "metrics": "ADDRESS:PORT, such as 127.0.0.1:9737, or off",
    "socket": "a path, or off",
    "journal": "true or false",
    "otlp": "the address of a collector, such as http://127.0.0.1:4318",
    "prompt": f"one of {', '.join(PROMPTS)}, or a table [prompt] of exporters",
    "agent": "tables [agent.NAME], as in `receipt-trace watch --agents`",
}


@dataclass(frozen=True, slots=True)
class Prompts:
    """How much of a question each exporter gets: ``full``, ``redacted`` or ``off``.

    What leaves the host, or is read by more people than may read the receipts, gets it redacted.
    """

    stdout: str = "full"
    receipts: str = "full"
    socket: str = "full"
    journal: str = "redacted"
    otlp: str = "redacted"
    page: str = "off"


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of ``receipt-trace watch``; the command line goes before them."""

    receipts: str | None = None
    source: str = "auto"
    metrics: str = "off"
    socket: str | None = None
    journal: bool = False
    otlp: str | None = None
    prompts: Prompts = field(default_factory=Prompts)
    registry: Registry = field(default_factory=load_registry)


def load(path: Path | None) -> Config:
    """Read a configuration; without a path the default one, if there is one.

    Of the default one only root takes where things go: a user's own watcher must not want the
    files and ports of the host's service. Raises UsageError that names file, key, value and what
    is allowed.
    """
    if path is not None:
        return _read(path)
    if not DEFAULT_PATH.exists():
        return Config()
    host = _read(DEFAULT_PATH)
    if os.geteuid() == 0:
        return host
    return Config(source=host.source, prompts=host.prompts, registry=host.registry)


def _read(path: Path) -> Config:
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}; give another file with --config FILE"
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start}); expected TOML") from None
    try:
        return _parse(tomllib.loads(text), str(path))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}") from None


def _parse(values: Mapping[str, Any], path: str) -> Config:
    for key in values:
        if key not in _KEYS:
            raise UsageError(f"{path}: {key} is not known; expected one of {', '.join(_KEYS)}")

    def take(key: str, default: Any, right: type) -> Any:
        value = values.get(key, default)
        if value is default or (isinstance(value, right) and value != ""):
            return value
        raise UsageError(f"{path}: {key} is {value!r}; expected {_KEYS[key]}")

    source = values.get("source", "auto")
    if source not in SOURCES:
        raise UsageError(f"{path}: source is {source!r}; expected {_KEYS['source']}")
    return Config(
        receipts=take("receipts", None, str),
        source=source,
        metrics=take("metrics", "off", str),
        socket=take("socket", None, str),
        journal=take("journal", False, bool),
        otlp=take("otlp", None, str),
        prompts=_prompts(values.get("prompt", {}), path),
        registry=load_registry(take("agent", {}, dict), path),
    )


def _prompts(value: Any, path: str) -> Prompts:
    """One word for all exporters but the page, which has to be asked for by name; or a table."""
    names = [f.name for f in fields(Prompts)]
    if isinstance(value, str):
        value = {name: value for name in names if name != "page"}
        where = dict.fromkeys(names, "prompt")
    elif isinstance(value, dict):
        where = {name: f"prompt.{name}" for name in names}
    else:
        raise UsageError(f"{path}: prompt is {value!r}; expected {_KEYS['prompt']}")
    for name, word in value.items():
        if name not in names:
            raise UsageError(
                f"{path}: prompt.{name} is not known; expected one of {', '.join(names)}"
            )
        if word not in PROMPTS:
            raise UsageError(
                f"{path}: {where[name]} is {word!r}; expected one of {', '.join(PROMPTS)}"
            )
    return Prompts(**value)
