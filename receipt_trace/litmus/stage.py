"""Where a case is run: a fresh directory, a bare environment, a user, and what is installed."""

import contextlib
import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from receipt_trace.litmus.catalogue import Case, Family

MARK: Final = "RECEIPT_TRACE_LITMUS"
"""The variable that marks every process of a run."""

_SETUP_S: Final = 120
_INSTALL_S: Final = 900
_APT: Final = ("-o", "DPkg::Lock::Timeout=300")  # somebody else may be installing


def cache() -> Path:
    """Where what is installed for the cases is kept between runs."""
    if os.geteuid() == 0:
        return Path("/var/cache/receipt-trace-litmus")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base, "receipt-trace-litmus")


@dataclass(frozen=True)
class Place:
    """The directory of one trial, and everything to start a command there."""

    work: Path
    env: Mapping[str, str]
    prefix: tuple[str, ...] = ()

    def shell(self, script: str, seconds: float) -> tuple[int, str]:
        """Run a script there; returns (status, what it printed). 124: it took too long."""
        process = subprocess.Popen(
            [*self.prefix, "bash", "-ec", script],
            cwd=self.work,
            env=dict(self.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
            return 124, said.decode(errors="replace")
        return process.returncode, said.decode(errors="replace")


class NotSetUpError(Exception):
    """A case could not be prepared; says why."""


@dataclass
class Stage:
    """Prepares the places of a run below one directory."""

    root: Path
    token: str
    services: Callable[[Iterable[str]], Mapping[str, str]]
    _numbers: Iterable[int] = field(default_factory=lambda: iter(range(1 << 30)))
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _kits: dict[str, str] = field(default_factory=dict)

    def place(self, case: Case, family: Family) -> Place:
        """A fresh directory with the files of a case, its set-up done. Raises NotSetUpError."""
        user = _user(case)
        with self._lock:
            top = self.root / str(next(iter(self._numbers)))
            kit = self._kit(family)
        for directory in (top, top / "home", top / "work", top / "run"):
            directory.mkdir(parents=True)
        (top / "run").chmod(0o700)
        work = top / "work"
        for name, text in case.files.items():
            path = work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        modules = _node(family.name) / "node_modules"
        # Only for those that want some: npm itself may empty what it finds there.
        if any(package.startswith("npm:") for package in case.packages) and modules.exists():
            (work / "node_modules").symlink_to(modules)
        if user is not None:
            for path in (top, *top.rglob("*")):
                os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
        env = {
            "PATH": os.pathsep.join(_path(family.name)),
            "HOME": str(top / "home"),
            "TMPDIR": str(top),
            "XDG_RUNTIME_DIR": str(top / "run"),
            "USER": user.pw_name if user else pwd.getpwuid(os.geteuid()).pw_name,
            "SHELL": "/bin/bash",
            "TERM": "xterm-256color",
            "LC_ALL": "C.UTF-8",
            "GIT_CONFIG_NOSYSTEM": "1",
            "KIT": kit,
            MARK: self.token,
            **self.services(case.services),
            **case.env,
        }
        prefix = () if user is None else _become(user)
        place = Place(work, env, prefix)
        if case.setup:
            status, said = place.shell(case.setup, _SETUP_S)
            if status:
                raise NotSetUpError(f"its set-up ended with {status}: {said[-300:].strip()}")
        return place

    def _kit(self, family: Family) -> str:
        """Run a family's kit, once for each text of it."""
        if not family.kit:
            return ""
        if family.name not in self._kits:
            key = hashlib.sha256(family.kit.encode()).hexdigest()[:16]
            kit = cache() / "kits" / f"{family.name}-{key}"
            if not kit.exists():
                making = kit.with_name(f"{kit.name}.making")
                shutil.rmtree(making, ignore_errors=True)
                making.mkdir(parents=True)
                env = {
                    **os.environ,
                    "KIT": str(making),
                    "PATH": os.pathsep.join(_path(family.name)),
                }
                status, said = Place(making, env).shell(family.kit, _INSTALL_S)
                if status:
                    raise NotSetUpError(
                        f"the family's kit ended with {status}: {said[-300:].strip()}"
                    )
                for folder in (making, *making.parents[:2]):  # for every user of a case
                    folder.chmod(0o755)
                making.rename(kit)
            self._kits[family.name] = str(kit)
        return self._kits[family.name]


def _user(case: Case) -> pwd.struct_passwd | None:
    if not case.user:
        return None
    if os.geteuid():
        raise NotSetUpError(f"it is run as {case.user}, which only root can do")
    try:
        return pwd.getpwnam(case.user)
    except KeyError:
        raise NotSetUpError(f"there is no user {case.user}") from None


def _become(user: pwd.struct_passwd) -> tuple[str, ...]:
    return (
        "setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--",
    )  # fmt: skip


def _path(family: str) -> list[str]:
    own = [_python(family) / "bin", _node(family) / "node_modules/.bin"]
    return [
        *(str(path) for path in own if path.exists()),
        "/usr/local/sbin",
        "/usr/local/bin",
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
        "/usr/games",
    ]


def sweep(token: str) -> None:
    """End whatever still carries the mark of a run: daemons that a set-up has started."""
    mark = f"{MARK}={token}".encode()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    os.kill(int(name), signal.SIGKILL)


# -- packages --------------------------------------------------------------------------


def missing(packages: Iterable[str], family: str) -> tuple[str, ...]:
    """Those of the packages that are not there."""
    debian = _installed()
    return tuple(p for p in packages if not _is_there(p, family, debian))


def absent(cases: Iterable[Case]) -> dict[str, tuple[str, ...]]:
    """Family to those packages of its cases that are not there; families that lack nothing are left out."""
    wanted: dict[str, set[str]] = {}
    for case in cases:
        wanted.setdefault(case.family, set()).update(case.packages)
    found = {family: missing(sorted(packages), family) for family, packages in wanted.items()}
    return {family: packages for family, packages in found.items() if packages}


def install(cases: Iterable[Case], tell: Callable[[str], None]) -> None:
    """Install what cases lack; ``tell`` hears what is installed, and what could not be."""
    lacking = absent(cases)
    debian = sorted({p for packages in lacking.values() for p in packages if ":" not in p})
    if debian and os.geteuid():
        tell(f"only root can install Debian packages: {' '.join(debian)}")
    elif debian:
        _install("apt", debian, "", tell)
    for family, packages in lacking.items():
        for manager in ("pip", "npm"):
            prefix = f"{manager}:"
            names = [p.removeprefix(prefix) for p in packages if p.startswith(prefix)]
            if names:
                _install(manager, names, family, tell)


def _install(manager: str, names: list[str], family: str, tell: Callable[[str], None]) -> None:
    tell(f"installing{family and ' for '}{family}: {' '.join(names)}")
    trouble = _run(_commands(manager, names, family))
    if trouble and len(names) > 1:  # one that is not to be had must not keep the others away
        troubles = (_run(_commands(manager, [name], family)) for name in names)
        trouble = "; ".join(filter(None, troubles))
    if trouble:
        tell(trouble)


def _run(commands: Iterable[list[str]]) -> str:
    """Run commands until one fails; returns what went wrong, empty if nothing did."""
    for command in commands:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            timeout=_INSTALL_S,
            check=False,
        )
        if done.returncode:
            said = done.stdout.decode(errors="replace").strip().splitlines()[-2:]
            return f"{' '.join(command)}: {' '.join(said)}"
    return ""


def _commands(manager: str, names: list[str], family: str) -> Iterable[list[str]]:
    match manager:
        case "apt":
            new = ["apt-get", "install", "-y", "--no-install-recommends", *_APT, *names]
            return [["apt-get", "update"], new]
        case "pip":
            venv = _python(family)
            made = [] if venv.exists() else [[_interpreter(), "-m", "venv", str(venv)]]
            return [*made, [str(venv / "bin/pip"), "install", "--quiet", *names]]
        case _:
            folder = _node(family)
            folder.mkdir(parents=True, exist_ok=True)
            return [["npm", "install", "--no-audit", "--no-fund", f"--prefix={folder}", *names]]


def _is_there(package: str, family: str, debian: set[str]) -> bool:
    manager, _, name = package.rpartition(":")
    match manager:
        case "pip":
            plain = name.partition("=")[0].partition("[")[0].replace("-", "_").lower()
            folders = _python(family).glob("lib/python3*/site-packages/*.dist-info")
            return any(
                f.name.partition("-")[0].replace(".", "_").lower() == plain.replace(".", "_")
                for f in folders
            )
        case "npm":
            plain = name if name.rfind("@") <= 0 else name[: name.rfind("@")]
            return (_node(family) / "node_modules" / plain).exists()
        case _:
            return name in debian or shutil.which(name) is not None


def _installed() -> set[str]:
    """The Debian packages that are installed; none where there is no dpkg."""
    try:
        done = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except OSError:
        return set()
    lines = (line.split() for line in done.stdout.decode().splitlines())
    return {words[0] for words in lines if words[1:] == ["installed"]}


def _python(family: str) -> Path:
    return cache() / "python" / family


def _node(family: str) -> Path:
    return cache() / "node" / family


def _interpreter() -> str:
    return getattr(sys, "_base_executable", sys.executable)
