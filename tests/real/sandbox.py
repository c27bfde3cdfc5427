"""Runs a program under the restrictions of a unit, as far as that goes without systemd.

``sandbox.py UNIT KEEP… -- COMMAND…`` as root: mounts, then user and capabilities, then the filter
of system calls. Folders named by KEEP stay visible and, those with a ``+`` before them, writable.
"""

import configparser
import ctypes
import ctypes.util
import errno
import os
import subprocess
import sys

APPLIED = {
    "AmbientCapabilities", "CapabilityBoundingSet", "LimitCORE", "LimitNOFILE", "LockPersonality",
    "CacheDirectory", "LogsDirectory", "MemoryDenyWriteExecute", "NoNewPrivileges", "PrivateDevices",
    "PrivateMounts", "PrivateTmp", "ProtectClock", "ProtectControlGroups", "ProtectHome",
    "ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables",
    "ProtectSystem", "RestrictAddressFamilies", "RestrictNamespaces", "RestrictRealtime",
    "RestrictSUIDSGID", "SystemCallArchitectures", "SystemCallErrorNumber", "SystemCallFilter",
    "UMask", "User", "Group",
}  # fmt: skip
ELSEWHERE = {
    "Type": "a test of its own speaks sd_notify(3)",
    "NotifyAccess": "of the manager",
    "ExecStart": "the command is given",
    "ExecReload": "other tests hang up",
    "WatchdogSec": "a test of its own listens for it",
    "Restart": "of the manager",
    "RestartSec": "of the manager",
    "RestartPreventExitStatus": "of the manager",
    "TimeoutStopSec": "of the manager",
    "ConfigurationDirectory": "of the manager; only read by the service",
    "LogsDirectoryMode": "of the manager",
    "CacheDirectoryMode": "of the manager",
    "LimitMEMLOCK": "only kernels before 5.11 count what we use",
    "DeviceAllow": "needs the device controller of a cgroup",
    "IPAddressDeny": "needs BPF programs on a cgroup",
    "IPAddressAllow": "needs BPF programs on a cgroup",
    "KeyringMode": "the service uses no keys",
    "RemoveIPC": "the service has no IPC objects",
    "MemoryHigh": "needs the memory controller of a cgroup",
    "MemoryMax": "needs the memory controller of a cgroup",
    "TasksMax": "needs the pids controller of a cgroup",
    "CPUQuota": "needs the cpu controller of a cgroup",
}
_NOBODY = "65534"
_LIBC = ctypes.CDLL(None, use_errno=True)
_SYSCALL, _MS_BIND = _LIBC.syscall, 4096
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _RDONLY = 442, -100, 0x8000, 1
_PR_SET_MDWE, _CLONE_NEWNS = 65, 0x00020000
_CLONE_NEW = 0x7E020080  # every CLONE_NEW*
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


class Settings(dict):
    """Settings of a section; a name may come again, and its values then belong together."""

    def __setitem__(self, key, value):
        if key in self and isinstance(value, list):
            value = [*self[key], *value]
        super().__setitem__(key, value)


def settings(path):
    """What ``[Service]`` says."""
    parser = configparser.RawConfigParser(dict_type=Settings, strict=False)
    parser.optionxform = str
    parser.read(path)
    return {name: value.splitlines() for name, value in parser["Service"].items()}


def check(result, what):
    """Whether the kernel did it."""
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def read_only(path, *, wanted=True):
    """Everything mounted there and below becomes read-only, or writable again (mount_setattr(2))."""
    bits = (ctypes.c_uint64 * 4)(*((_RDONLY, 0) if wanted else (0, _RDONLY)), 0, 0)
    args = (_AT_FDCWD, path.encode(), _AT_RECURSIVE, ctypes.byref(bits), 32)
    check(_SYSCALL(_MOUNT_SETATTR, *args), f"read-only {path}")


def mount(*words):
    """Mount something, by the system's own program."""
    subprocess.run(["mount", *words], check=True)


def mounts(unit, keep):
    """A view of the files as the unit has it."""
    check(_SYSCALL(272 if os.uname().machine == "x86_64" else 97, _CLONE_NEWNS), "unshare")
    mount("--make-rprivate", "/")
    kept = [(path.lstrip("+"), os.open(path.lstrip("+"), os.O_PATH)) for path in keep]
    if "yes" in unit["PrivateTmp"]:
        for place in ("/tmp", "/var/tmp"):
            mount("-t", "tmpfs", "-o", "mode=1777", "none", place)
    for path, fd in kept:
        os.makedirs(path, exist_ok=True)
        source = f"/proc/self/fd/{fd}".encode()  # mount(8) would look up the name
        check(_LIBC.mount(source, path.encode(), None, _MS_BIND, None), f"bind {path}")
        os.close(fd)
    if "yes" in unit["PrivateDevices"]:
        devices()
    if "strict" in unit["ProtectSystem"]:
        read_only("/")
        for place in ("/dev", "/proc", "/tmp", "/var/tmp", *(p[1:] for p in keep if p[0] == "+")):
            read_only(place, wanted=False)
    if "yes" in unit["ProtectKernelTunables"]:
        for place in ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/sys"):
            if os.path.exists(place):
                mount("--bind", place, place)
                read_only(place)
        mount("--bind", "/dev/null", "/proc/kallsyms")
    if "yes" in unit["ProtectKernelModules"] and os.path.isdir("/usr/lib/modules"):
        mount("-t", "tmpfs", "-o", "mode=000,ro", "none", "/usr/lib/modules")


def devices():
    """A /dev with nothing but what every program may have."""
    new = "/tmp/dev"
    os.makedirs(new)
    mount("-t", "tmpfs", "-o", "mode=755", "none", new)
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        open(f"{new}/{name}", "w").close()
        mount("--bind", f"/dev/{name}", f"{new}/{name}")
    for name in ("pts", "shm"):
        os.mkdir(f"{new}/{name}")
        if os.path.isdir(f"/dev/{name}"):
            mount("--bind", f"/dev/{name}", f"{new}/{name}")
    os.symlink("pts/ptmx", f"{new}/ptmx")
    os.symlink("/proc/self/fd", f"{new}/fd")
    mount("--move", new, "/dev")
    os.rmdir(new)


def become(unit, command):
    """The words that start a command as the user of the unit, with its capabilities."""
    caps = [cap.removeprefix("CAP_").lower() for cap in unit["CapabilityBoundingSet"][0].split()]
    assert unit["AmbientCapabilities"] == unit["CapabilityBoundingSet"]
    chosen = ",".join(["-all", *(f"+{cap}" for cap in caps)])
    return [
        "setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups",
        f"--inh-caps={chosen}", f"--ambient-caps={chosen}", f"--bounding-set={chosen}",
        "--no-new-privs", *command,
    ]  # fmt: skip


def names(group):
    """The system calls of a group, as systemd knows them; a call by itself."""
    if not group.startswith("@"):
        return {group}
    said = subprocess.run(
        ["systemd-analyze", "syscall-filter", group], check=True, capture_output=True, text=True
    ).stdout
    found = set()
    for line in said.splitlines():
        word = line.strip()
        if word.startswith("@") and line.startswith(" "):
            found |= names(word)
        elif line.startswith(" ") and word and not word.startswith("#"):
            found.add(word)
    return found


def allowed(unit):
    """The system calls that the unit allows."""
    found = set()
    for line in unit["SystemCallFilter"]:
        groups = set().union(*(names(group) for group in line.lstrip("~").split()))
        found = found - groups if line.startswith("~") else found | groups
    return found


class Compare(ctypes.Structure):
    """struct scmp_arg_cmp of libseccomp."""

    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64),
                ("b", ctypes.c_uint64)]  # fmt: skip


def filter_calls(unit, calls):
    """Refuse every other system call (seccomp(2) by libseccomp)."""
    library = ctypes.CDLL(ctypes.util.find_library("seccomp") or "libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    add = library.seccomp_rule_add_array
    add.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p]
    context = ctypes.c_void_p(library.seccomp_init(_ERRNO | errno.EPERM))
    families = {
        getattr(__import__("socket"), name) for name in unit["RestrictAddressFamilies"][0].split()
    }
    equal, masked = 4, 7
    for call in calls - {"socket", "clone", "unshare", "setns"}:
        number = library.seccomp_syscall_resolve_name(call.encode())
        if number >= 0:
            assert add(context, _ALLOW, number, 0, None) == 0, call
    socket_number = library.seccomp_syscall_resolve_name(b"socket")
    for family in families:
        rule = (Compare * 1)(Compare(0, equal, family, 0))
        assert add(context, _ALLOW, socket_number, 1, rule) == 0
    clone = library.seccomp_syscall_resolve_name(b"clone")
    rule = (Compare * 1)(Compare(0, masked, _CLONE_NEW, 0))
    assert add(context, _ALLOW, clone, 1, rule) == 0
    assert library.seccomp_load(context) == 0


def main():
    """Both stages: as root, and as the user of the unit."""
    stage, path, *rest = sys.argv[1:]
    unit = settings(path)
    cut = rest.index("--")
    keep, command = rest[:cut], rest[cut + 1 :]
    if stage == "mounts":
        calls = ",".join(sorted(allowed(unit)))
        text = os.path.abspath(__file__)
        mounts(unit, keep)
        os.umask(int(unit["UMask"][0], 8))
        words = become(unit, [sys.executable, text, "filter", path, calls, "--", *command])
        os.execvp(words[0], words)
    if "yes" in unit["MemoryDenyWriteExecute"]:
        check(_SYSCALL(157 if os.uname().machine == "x86_64" else 167, _PR_SET_MDWE, 1, 0, 0, 0),
              "PR_SET_MDWE")  # fmt: skip
    filter_calls(unit, set(keep[0].split(",")))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
