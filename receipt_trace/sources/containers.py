"""Names of containers, where the engine's own files can be read. Nobody is asked."""

import json
from pathlib import Path
from typing import Any, Final

_DOCKER: Final = Path("/var/lib/docker/containers")
_PODMAN: Final = Path("/var/lib/containers/storage/overlay-containers/containers.json")


def container_name(identity: str, docker: Path = _DOCKER, podman: Path = _PODMAN) -> str | None:
    """The name of a container by its 64-digit id; ``None`` where it cannot be read."""
    entry = _load(docker / identity / "config.v2.json")
    if isinstance(entry, dict) and isinstance(entry.get("Name"), str):
        return str(entry["Name"]).removeprefix("/")
    entries = _load(podman)
    for entry in entries if isinstance(entries, list) else []:
        names = entry.get("names") if isinstance(entry, dict) else None
        if isinstance(names, list) and entry.get("id") == identity:
            return next((name for name in names if isinstance(name, str)), None)
    return None


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
