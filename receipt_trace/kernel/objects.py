"""The built programs: made once for a kernel, kept for the next start.

What is kept is loaded into the kernel as it is, so it is taken only from a folder and a
file that belong to this user and that nobody else may write to.
"""

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from receipt_trace.errors import UnobservableError
from receipt_trace.sources import proc

PROGRAMS: Final = Path(__file__).resolve().parents[2] / "bpf"
"""The folder of the C programs, beside the packages in a checkout and in a wheel alike."""

_PACKAGES: Final = Path(__file__).resolve().parents[2]
_NOTES: Final = Path("/sys/kernel/notes")  # holds the build id of the running kernel
_BUILD_S: Final = 60.0
_KEPT: Final = 8  # of other kernels and versions
_ENTER: Final = (
    "import sys; sys.path.append(sys.argv.pop()); "
    "from receipt_trace.kernel.build import main; sys.exit(main())"
)
_SYSTEM_PYTHON: Final = "/usr/bin/python3"


class Program(NamedTuple):
    """Instructions, and the map each of its references goes to (by instruction)."""

    code: bytes
    maps: dict[int, str]

    def linked(self, maps: dict[str, int]) -> bytes:
        """The instructions with the descriptors of maps in them."""
        code = bytearray(self.code)
        for place, name in self.maps.items():
            struct.pack_into("=i", code, 8 * place + 4, maps[name])
        return bytes(code)


class Objects(NamedTuple):
    """Everything :func:`receipt_trace.kernel.build.build` makes, and whether it was kept."""

    programs: dict[str, Program]
    maps: dict[str, tuple[int, int, int, int, int]]
    functions: dict[str, int]
    lost: tuple[str, ...]
    kept: bool


def get_objects(folder: Path | None = None) -> Objects:
    """The programs for this kernel, built if need be.

    Raises UnobservableError, with the reason, where they cannot be.
    """
    folder = cache_folder() if folder is None else folder
    path = folder / f"programs-{_key()}.json"
    found = _kept(path)
    if found is None:
        with _alone(folder):  # many may start at once; one builds
            found = _kept(path)
            if found is None:
                built = _build(folder)
                found = _parse(built, kept=False)
                _keep(path, built)
    return found


def _kept(path: Path) -> Objects | None:
    content = _read(path)
    try:
        return None if content is None else _parse(content, kept=True)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None  # not what we wrote: make it again


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; without it where the folder may not be written to."""
    lock = -1
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:
        pass
    try:
        yield
    finally:
        if lock >= 0:
            os.close(lock)


def cache_folder() -> Path:
    """Where programs are kept: the system's cache for root, the user's own for anybody else."""
    given = os.environ.get("CACHE_DIRECTORY")  # set by systemd
    if given:
        return Path(given.split(":")[0])
    if os.geteuid() == 0:
        return Path("/var/cache/receipt-trace")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "receipt-trace"


def _key() -> str:
    """Changes with the kernel and with everything the programs are made from."""
    digest = hashlib.sha256(os.uname().release.encode() + os.uname().version.encode())
    try:
        digest.update(_NOTES.read_bytes())
    except OSError:
        digest.update(b"no notes")
    here = Path(__file__).parent
    made_from = [*PROGRAMS.glob("*.[ch]"), here / "build.py", here / "fields.py", here / "btf.py"]
    for path in sorted(made_from):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


def _read(path: Path) -> str | None:
    try:
        folder = os.stat(path.parent)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        for status in (folder, os.fstat(fd)):
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return None
        return file.read().decode("ascii", "replace")


def _keep(path: Path, content: str) -> None:
    """Write it for the next time; where that is refused, the next start takes longer."""
    fresh = path.with_suffix(f".{os.getpid()}")
    try:
        for old in sorted(path.parent.glob("programs-*.json"), key=os.path.getmtime)[:-_KEPT]:
            old.unlink()
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(content)
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()


def _build(folder: Path) -> str:
    """Have them built by an interpreter that has bcc: ours, or the system's.

    What it needs for a moment goes into the folder, where that may be written to.
    """
    import subprocess  # noqa: PLC0415  (only where nothing is kept)

    reasons: list[str] = []
    for python in dict.fromkeys((sys.executable, _SYSTEM_PYTHON)):
        if not os.access(python, os.X_OK):
            continue
        argv = [python, "-I", "-c", _ENTER, str(PROGRAMS), str(_PACKAGES)]
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_BUILD_S, check=False,
                env={**os.environ, **({"TMPDIR": str(folder)} if os.access(folder, os.W_OK) else {})},
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            reasons.append(f"{python}: {error}")
            continue
        if done.returncode == 0:
            return done.stdout.decode("ascii", "replace")
        lines = proc.text(done.stderr).strip().splitlines()
        reason = lines[-1] if lines else f"{python} ended with {done.returncode} and said nothing"
        if "No module named 'bcc'" not in reason or not reasons:
            reasons.append(reason)
    told = reasons[-1] if reasons else "there is no python3 to run bcc with"
    if "No module named 'bcc'" in told:
        told = "bcc is not installed; on Debian: apt-get install python3-bpfcc"
    raise UnobservableError(told)


def _parse(content: str, *, kept: bool) -> Objects:
    """Raises ValueError, KeyError or TypeError when it is not what ``build`` writes."""
    built: dict[str, Any] = json.loads(content)
    programs = {
        name: Program(
            base64.b64decode(program["code"]),
            {int(place): target for place, target in program["maps"].items()},
        )
        for name, program in built["programs"].items()
    }
    maps = {name: tuple(map(int, numbers)) for name, numbers in built["maps"].items()}
    return Objects(programs, maps, built["functions"], tuple(built["lost"]), kept)  # type: ignore[arg-type]
