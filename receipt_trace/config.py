"""The configuration file: one TOML file, checked to the last key."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from receipt_trace.agents import Registry, load_registry
from receipt_trace.constants import SOURCES
from receipt_trace.errors import UsageError

DEFAULT_PATH: Final = Path("/etc/receipt-trace/config.toml")

_KEYS: Final = {
    "receipts": "a path, - for stdout, or fd:N",
    "source": f"one of {', '.join(SOURCES)}",
    "agent": "tables [agent.NAME], as in `receipt-trace watch --agents`",
}


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of ``receipt-trace watch``; the command line goes before them."""

    receipts: str | None = None
    source: str = "auto"
    registry: Registry = field(default_factory=load_registry)


def load(path: Path | None) -> Config:
    """Read a configuration; without a path the default one, if there is one.

    Raises UsageError that names file, key, value and what is allowed.
    """
    if path is None:
        if not DEFAULT_PATH.exists():
            return Config()
        path = DEFAULT_PATH
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
    receipts, source = values.get("receipts"), values.get("source", "auto")
    if receipts is not None and (not isinstance(receipts, str) or not receipts):
        raise UsageError(f"{path}: receipts is {receipts!r}; expected {_KEYS['receipts']}")
    if source not in SOURCES:
        raise UsageError(f"{path}: source is {source!r}; expected {_KEYS['source']}")
    agents = values.get("agent", {})
    if not isinstance(agents, dict):
        raise UsageError(f"{path}: agent is {agents!r}; expected {_KEYS['agent']}")
    return Config(receipts, source, load_registry(agents, path))
