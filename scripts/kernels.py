"""Boot other kernels under emulation, and check our BPF programs inside each.

Each kernel is the newest of its series in the Debian registry that this machine installs from
(cloud flavour, x86-64). It is booted by qemu, without any hardware support, from a root file
system of Debian 12, with this checkout inside. There the programs are built and loaded, and
what they tell is compared with what is known (scripts/guest.py): where saved registers lie, who
waits at terminals, pipes and sockets and who does not, fork, exec and exit, what is printed
on a terminal, receipts from end to end; and the first of it again with no more than
CAP_BPF, CAP_PERFMON and CAP_SYSLOG.
"""

import argparse
import contextlib
import gzip
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
import debian

_ROOT: Final = Path(__file__).resolve().parents[1]
_DEFAULT: Final = ("5.10", "6.1", "6.12", "6.18")
_PACKAGES: Final = {
    "qemu-system-x86_64": "qemu-system-x86",
    "debootstrap": "debootstrap",
    "mke2fs": "e2fsprogs",
    "cpio": "cpio",
    "zstd": "zstd",
    "lz4": "lz4",
}
"""Command to the package it is in."""
_QUIET_S: Final = 900.0  # between two checks; on an idle machine all of them take two minutes
_GUEST_SUITE: Final = "bookworm"
_GUEST_PACKAGES: Final = "busybox-static,python3,python3-bpfcc"
_GUEST_PYTHON: Final = "3.11"
_MODULES: Final = (
    "virtio", "virtio_ring", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci",
    "virtio_blk",
)  # fmt: skip
_PAYLOAD: Final = ("receipt_trace", "exporters", "bpf", "scripts/guest.py")
_ALIVE: Final = "receipt-trace: the guest is up"

# The first program: load what the disks need, in whatever order, and go over to the root.
_INIT: Final = f"""#!/bin/busybox sh
/bin/busybox mkdir -p /proc /dev /root
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
for again in 1 2 3; do
  for module in /modules/*; do /bin/busybox insmod $module 2>/dev/null; done
done
/bin/busybox mount -t ext4 /dev/vda /root
/bin/busybox mount --move /dev /root/dev
/bin/busybox mount -t tmpfs tmpfs /root/mnt
/bin/busybox tar x -f /root/dev/vdb -C /root/mnt
echo "{_ALIVE}"
exec /bin/busybox switch_root /root /bin/bash /mnt/start
"""

# What runs as process 1 of the root. Its last line tells that every check has been run.
_START: Final = """
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mkdir -p /dev/pts && mount -t devpts devpts /dev/pts
mount -t tracefs tracefs /sys/kernel/tracing
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up 2>/dev/null
exec </dev/null
stty -F /dev/ttyS1 raw -echo
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp TERM=xterm-256color LC_ALL=C.UTF-8
export PYTHONPATH=/mnt:/mnt/wheels XDG_CACHE_HOME=/run/cache
check() { setsid "${@:3}" python3 /mnt/scripts/guest.py /dev/ttyS1 "$1" "$2" || torn=yes; }
few() { check "$1" "$2" setpriv --inh-caps=-all --bounding-set=-all,+bpf,+perfmon,+syslog; }
check everything ''
ulimit -l unlimited  # counted before 5.11
few capabilities 'with 3 capabilities:'
echo 2 >/proc/sys/kernel/perf_event_paranoid
few tracepoints 'with 3 capabilities:'
[[ $torn ]] || echo '{"check": null}' >/dev/ttyS1
sleep 1
echo b >/proc/sysrq-trigger
sleep 60
"""


class KernelsError(Exception):
    """It cannot be done here: the reason, and the next command."""


class Check(NamedTuple):
    """How one check went in one kernel."""

    name: str
    ok: bool
    detail: str
    seconds: float


class Outcome(NamedTuple):
    """One kernel: what was checked, and what was wrong with all of it (empty: nothing)."""

    release: str
    checks: tuple[Check, ...]
    fault: str
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether it was booted, and every check passed."""
        return not self.fault and bool(self.checks) and all(check.ok for check in self.checks)


# -- preparing -----------------------------------------------------------------------


def install() -> None:
    """Install what is missing, as root; anybody else is told the command."""
    missing = [package for command, package in _PACKAGES.items() if not shutil.which(command)]
    if not missing:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    if os.geteuid() or not shutil.which("apt-get"):
        raise KernelsError(f"missing: {', '.join(missing)}; as root: {' '.join(command)}")
    say(f"installing {' '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update"], env=environment)
    run(command, env=environment)


class Root(NamedTuple):
    """The guest's root file system, and the static shell out of it that it is started from."""

    image: Path
    shell: Path


def make_root(registry: debian.Registry, cache: Path) -> Root:
    """The guest's root file system, made once."""
    recipe = f"{_GUEST_SUITE}: {_GUEST_PACKAGES}"
    folder = cache / f"root-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    made = Root(folder / "root.img", folder / "busybox")
    if folder.exists():
        return made
    if os.geteuid():
        raise KernelsError(
            "only root can make the guest's root file system; as root: scripts/kernels"
        )
    say(f"making the guest's root file system, {recipe}")
    with tempfile.TemporaryDirectory(prefix="making-", dir=cache) as making:
        tree, fresh = Path(making, "tree"), Path(making, "root")
        fresh.mkdir()
        # In namespaces of its own, so that no mount and no process of it can be left behind.
        run(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child",
             "debootstrap", "--variant=minbase", f"--include={_GUEST_PACKAGES}", _GUEST_SUITE,
             str(tree), registry.base]
        )  # fmt: skip
        for unwanted in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc"):
            shutil.rmtree(tree / unwanted, ignore_errors=True)
        shutil.copy(tree / "bin/busybox", fresh / made.shell.name)
        run(
            ["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", str(tree),
             str(fresh / made.image.name), "1G"]
        )  # fmt: skip
        keep(fresh, folder)
    return made


def keep(fresh: Path, folder: Path) -> None:
    """Move what was made to its place; another run may have been there first."""
    try:
        fresh.rename(folder)
    except OSError:
        if not folder.exists():
            raise


def wheels(folder: Path) -> None:
    """The Python packages the project needs, for the guest's Python."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
         "--target", str(folder), "--python-version", _GUEST_PYTHON, "--only-binary", ":all:",
         "--no-compile", *project["dependencies"]]
    )  # fmt: skip


def payload(folder: Path) -> Path:
    """The second disk: an archive of the project and what it needs, and what the guest starts."""
    wheels(folder / "wheels")
    path = folder / "payload.tar"
    with tarfile.open(path, "w") as tar:
        for name in _PAYLOAD:
            tar.add(_ROOT / name, name, filter=_plain)
        tar.add(folder / "wheels", "wheels", filter=_plain)
        start = tarfile.TarInfo("start")
        start.size = len(_START.encode())
        tar.addfile(start, io.BytesIO(_START.encode()))
    return path


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if member.name.endswith("__pycache__") else member


def boot_files(registry: debian.Registry, kernel: debian.Kernel, cache: Path) -> tuple[Path, Path]:
    """(kernel, folder of its modules for disks), fetched once; older ones of the series go."""
    folder = cache / kernel.release
    if not folder.exists():
        say(f"fetching {kernel.release}")
        with tempfile.TemporaryDirectory(prefix="making-", dir=cache) as making:
            packages = registry.download(kernel.packages, Path(making))
            fresh = Path(making, "kernel")
            (fresh / "modules").mkdir(parents=True)
            (fresh / "vmlinuz").write_bytes(debian.image(packages))
            for name, content in debian.modules(packages, _MODULES):
                (fresh / "modules" / name).write_bytes(content)
            keep(fresh, folder)
        for older in cache.glob(f"{kernel.series}.*"):
            if older.is_dir() and older != folder:
                shutil.rmtree(older, ignore_errors=True)
    return folder / "vmlinuz", folder / "modules"


def initramfs(shell: Path, modules: Path, folder: Path) -> Path:
    """What the kernel starts from: a shell, and the modules that disks need."""
    tree = folder / "initramfs"
    shutil.rmtree(tree, ignore_errors=True)
    (tree / "bin").mkdir(parents=True)
    shutil.copy(shell, tree / "bin/busybox")
    shutil.copytree(modules, tree / "modules")
    (tree / "init").write_text(_INIT)
    (tree / "init").chmod(0o755)
    names = "".join(f"{path.relative_to(tree)}\n" for path in sorted(tree.rglob("*")))
    packed = run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=tree, input=names.encode()).stdout
    path = folder / "initramfs.gz"
    path.write_bytes(gzip.compress(packed, 1))
    return path


# -- running ------------------------------------------------------------------------------


def boot(kernel: Path, start: Path, root: Path, disk: Path, folder: Path) -> Iterator[str]:
    """Run one guest to its end; gives the lines of its results as they come.

    Writes ``console.log`` into the folder. Raises KernelsError when nothing comes any more.
    """
    results = folder / "results"
    results.write_bytes(b"")
    command = [
        "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1", "-m", "1536",
        "-nodefaults", "-no-reboot", "-display", "none",
        "-serial", f"file:{folder / 'console.log'}", "-serial", f"file:{results}",
        "-kernel", str(kernel), "-initrd", str(start),
        # A starved emulator fails the test of its timer, and looks hung to a watchdog.
        "-append", "console=ttyS0 quiet panic=-1 no_timer_check nowatchdog",
        "-drive", f"file={root},if=virtio,format=raw,snapshot=on",
        "-drive", f"file={disk},if=virtio,format=raw,readonly=on",
    ]  # fmt: skip
    deadline = time.monotonic() + _QUIET_S
    with (
        (folder / "emulator.log").open("wb") as said,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said) as guest,
        results.open(encoding="ascii", errors="replace") as lines,
    ):
        try:
            rest = ""
            while True:
                ended = guest.poll() is not None
                rest += lines.read()
                *whole, rest = rest.split("\n")
                if whole:
                    yield from whole
                    deadline = time.monotonic() + _QUIET_S
                if ended:
                    return
                if time.monotonic() > deadline:
                    raise KernelsError(f"nothing came of the guest for {_QUIET_S:.0f} s")
                time.sleep(0.2)
        finally:
            guest.kill()


def examine(
    registry: debian.Registry, kernel: debian.Kernel, root: Root, disk: Path, folder: Path
) -> Outcome:
    """Boot one kernel and have it checked; once more if it did not come up at all."""
    began = time.monotonic()
    checks: list[Check] = []
    fault = ""
    try:
        image, modules = boot_files(registry, kernel, debian.cache_folder())
        start = initramfs(root.shell, modules, folder)
        for last in (False, True):
            lines: list[str] = []
            say(f"booting {kernel.release}")
            for line in boot(image, start, root.image, disk, folder):
                lines.append(line)
                checks += told(line)
            fault = verdict(lines)
            if last or not fault or _ALIVE in (folder / "console.log").read_text(errors="replace"):
                break
            (folder / "console.log").rename(folder / "first-console.log")
            say(f"{kernel.release} did not come up; once more")
    except (KernelsError, debian.DebianError) as error:
        fault = str(error)
    return Outcome(kernel.release, tuple(checks), fault, time.monotonic() - began)


def told(line: str) -> list[Check]:
    """The check that a line of results tells of, if any; it is shown as it comes."""
    check = parse(line)
    if check is None:
        return []
    say(f"  {'ok  ' if check.ok else 'FAIL'} {check.seconds:5.1f} s  {check.name}  {check.detail}")
    return [check]


def parse(line: str) -> Check | None:
    """One line of results; ``None``: it tells of no check. What the guest writes is not trusted."""
    try:
        found: dict[str, Any] = json.loads(line)
        if found["check"] is None:
            return None
        name, detail = (
            str(found[key]).encode("unicode_escape").decode() for key in ("check", "detail")
        )
        return Check(name, found["ok"] is True, detail, float(found["seconds"]))
    except (ValueError, KeyError, TypeError):
        return None


def verdict(lines: list[str]) -> str:
    """What is wrong with a guest's results as a whole; empty: nothing."""
    if not any(parse(line) for line in lines):
        return "the guest told of no check: it did not come up"
    if not any(line.strip() == '{"check": null}' for line in lines):
        return "the guest ended before its checks did"
    return ""


# -- telling ----------------------------------------------------------------------------


def table(outcomes: list[Outcome]) -> str:
    """A line for each check, a column for each kernel; below, what failed and why."""
    names = list(dict.fromkeys(check.name for outcome in outcomes for check in outcome.checks))
    heads = [outcome.release.partition("-cloud")[0] for outcome in outcomes]
    rows = [("", heads)]
    for name in names:
        found = [[c.ok for c in outcome.checks if c.name == name] for outcome in outcomes]
        rows.append((name, ["-" if not oks else "ok" if all(oks) else "FAILED" for oks in found]))
    rows.append(("time", [f"{outcome.seconds:.0f} s" for outcome in outcomes]))
    width = max(len(name) for name, _ in rows)
    columns = [max(len(row[n]) for _, row in rows) for n in range(len(outcomes))]
    lines = [
        "  ".join([f"{name:<{width}}", *(f"{c:>{w}}" for c, w in zip(row, columns, strict=True))])
        for name, row in rows
    ]
    lines.append("")
    for outcome in outcomes:
        failed = [check for check in outcome.checks if not check.ok]
        lines += [f"{outcome.release}: {check.name}: {check.detail}" for check in failed]
        lines += [f"{outcome.release}: {outcome.fault}"] if outcome.fault else []
        passed = len(outcome.checks) - len(failed)
        lines.append(f"{outcome.release}: {passed} of {len(outcome.checks)} checks passed")
    return "\n".join(lines)


_BEGAN: Final = time.monotonic()


def say(text: str) -> None:
    """Progress, with the time since the start."""
    print(f"kernels: {time.monotonic() - _BEGAN:5.0f} s  {text}", file=sys.stderr, flush=True)


def run(command: list[str], **options: Any) -> "subprocess.CompletedProcess[bytes]":
    """Run a command. Raises KernelsError with the end of what it said."""
    options.setdefault("input", b"")
    done = subprocess.run(command, capture_output=True, check=False, **options)
    if done.returncode:
        lines = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()[-5:]
        raise KernelsError("\n".join([f"{command[0]} failed (status {done.returncode}):", *lines]))
    return done


# -- all of it ----------------------------------------------------------------------------


_EPILOG: Final = f"""
progress, with the seconds since the start, goes to standard error; the table goes to
standard output: a line for each check, a column for each kernel, and what failed and why.

exit status:
  0   every check passed in every kernel
  1   a check failed, or a kernel could not be fetched or booted
  2   bad usage

files:
  $XDG_CACHE_HOME/receipt-trace/kernels (default: ~/.cache/…): kernels (20 MB each) and
  the root file system (400 MB), kept for the next time; may be removed at any time.
  A temporary folder holds everything else. It is removed at the end, unless something
  failed: then what the consoles said stays in it, and its name is told.

environment:
  Packages that are missing ({", ".join(_PACKAGES.values())}) are installed, for
  which root is needed, as it is for making the root file system. Emulators run one at a time, at
  low priority (nice 10), and one that tells nothing for {_QUIET_S / 60:.0f} minutes is ended.
  Nothing is left running.

examples:
  scripts/kernels                the oldest kernels that are supported, and newer ones
  scripts/kernels 6.18           one of them
  scripts/kernels 6.16 7         others by name; 7 is the newest 7.x
  scripts/kernels --list         what the registry has
"""


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    found = argparse.ArgumentParser(
        prog="scripts/kernels",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument(
        "series", nargs="*", metavar="VERSION",
        help=f"the kernels: a series, or the beginning of one (default: {' '.join(_DEFAULT)})",
    )  # fmt: skip
    found.add_argument("--list", action="store_true", help="list the kernels there are, and stop")
    found.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    return found


def main() -> int:
    """Examine the kernels that are named."""
    options = parser().parse_args()
    os.nice(10)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    folder = Path(tempfile.mkdtemp(prefix="receipt-trace-kernels-"))
    passed = False
    try:
        cache = debian.cache_folder()
        cache.mkdir(parents=True, exist_ok=True)
        registry = debian.Registry(cache / "registry")
        if options.list:
            for kernel in registry.kernels.values():
                print(f"{kernel.series:<6}  {kernel.release}")
            passed = True
            return 0
        outcomes = examine_all(registry, options.series or list(_DEFAULT), folder)
        passed = all(outcome.ok for outcome in outcomes)
        print(json.dumps([as_json(o) for o in outcomes]) if options.json else table(outcomes))
        return 0 if passed else 1
    except (KernelsError, debian.DebianError) as error:
        print(f"kernels: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        clear(folder, keep_logs=not passed)


def examine_all(registry: debian.Registry, wanted: list[str], folder: Path) -> list[Outcome]:
    """One after the other."""
    chosen = {series: debian.choose(registry.kernels, series) for series in wanted}
    absent = [series for series, kernel in chosen.items() if kernel is None]
    if absent:
        raise KernelsError(
            f"the registry has no kernel {', '.join(absent)}; it has {', '.join(registry.kernels)}"
        )
    install()
    root = make_root(registry, debian.cache_folder())
    disk = payload(folder)
    outcomes = []
    for kernel in filter(None, chosen.values()):
        logs = folder / kernel.release
        logs.mkdir()
        outcomes.append(examine(registry, kernel, root, disk, logs))
    return outcomes


def as_json(outcome: Outcome) -> dict[str, Any]:
    """An outcome with its checks as objects."""
    return {
        **outcome._asdict(),
        "ok": outcome.ok,
        "checks": [check._asdict() for check in outcome.checks],
    }


def clear(folder: Path, *, keep_logs: bool) -> None:
    """Remove the temporary folder; but what was logged stays where something failed."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if keep_logs and path.suffix == ".log" and path.stat().st_size:
            continue
        with contextlib.suppress(OSError):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    try:
        folder.rmdir()
    except OSError:
        say(f"what the consoles said: {folder}")


if __name__ == "__main__":
    sys.exit(main())
