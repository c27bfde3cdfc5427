"""The units: what systemd says of them, and the service under their restrictions."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from receipt_trace import privileges

from . import sandbox
from .daemon import NOBODY, Place
from .support import BOUND, RECEIPT_TRACE, Terminal, environment, eventually, need, waits

pytestmark = pytest.mark.kernel

PROJECT = Path(__file__).parents[2]
UNITS = PROJECT / "systemd"
SERVICE = UNITS / "receipt-trace.service"

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="mounts and capabilities need root; run it again: sudo -E pytest"
)


@pytest.fixture
def place():
    """A folder, and what runs there."""
    place = Place()
    yield place
    place.close()


def run(*words, **more):
    """Run a command to its end."""
    return subprocess.run(
        list(map(str, words)), capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, **more,
    )  # fmt: skip


# -- what systemd says ------------------------------------------------------------------------------


def test_the_units_are_valid(tmp_path):
    """Not one complaint."""
    need("systemd-analyze")
    for name in ("receipt-trace.service", "receipt-trace.socket"):
        text = (UNITS / name).read_text().replace("/usr/local/bin/receipt-trace", RECEIPT_TRACE)
        (tmp_path / name).write_text(text)
    said = run("systemd-analyze", "verify", *tmp_path.iterdir())
    assert (said.returncode, said.stdout + said.stderr) == (0, "")


def test_the_service_is_exposed_to_little():
    """2.5 of 10 at most, by systemd's own measure."""
    need("systemd-analyze")
    said = run("systemd-analyze", "security", "--offline=true", SERVICE, "--threshold=25")
    exposure = float(re.search(r"exposure level.*: ([\d.]+)", said.stdout)[1])
    assert exposure <= 2.5
    assert said.returncode == 0, said.stderr


def test_every_setting_is_tried_here_or_has_a_reason_why_not():
    """A new one has to be thought of."""
    named = set(sandbox.settings(SERVICE))
    assert named - sandbox.APPLIED - set(sandbox.ELSEWHERE) == set()
    assert (sandbox.APPLIED | set(sandbox.ELSEWHERE)) - named == set()


def test_the_rotation_and_the_user_are_what_their_programs_expect(tmp_path):
    """systemd-sysusers makes the user in an image."""
    need("systemd-sysusers")
    (tmp_path / "etc").mkdir()
    said = run("systemd-sysusers", f"--root={tmp_path}", UNITS / "receipt-trace.sysusers")
    assert said.returncode == 0, said.stderr
    (line,) = [
        line
        for line in (tmp_path / "etc/passwd").read_text().splitlines()
        if line.startswith("receipt-trace:")
    ]
    assert line.endswith(":/:/usr/sbin/nologin")


# -- under their restrictions -----------------------------------------------------------------------


def boxed(place, *keep):
    """What comes before a command to have it under the restrictions of the service."""
    need("setpriv", "systemd-analyze", "mount")
    kept = [str(PROJECT), *sorted({sys.prefix, sys.base_prefix}), str(place.path), *keep]
    kept = [path for path in dict.fromkeys(kept) if not path.startswith(("/usr", "/lib"))]
    return (sys.executable, sandbox.__file__, "mounts", str(SERVICE), *kept, "--")


PROBE = r"""
import ctypes, errno, json, mmap, os, socket
def why(do):
    try: do()
    except OSError as error: return errno.errorcode[error.errno]
    return "done"
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({
    "etc": why(lambda: open("/etc/receipt-trace-probe", "w")),
    "usr": why(lambda: open("/usr/receipt-trace-probe", "w")),
    "sys": why(lambda: open("/proc/sys/kernel/hostname", "w")),
    "log": why(lambda: open(os.environ["LOGS"] + "/probe", "w")),
    "packet": why(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
    "netlink": why(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM)),
    "executable": why(lambda: mmap.mmap(-1, 4096, prot=7)),
    "chroot": why(lambda: os.chroot("/")),
    "disk": why(lambda: os.mknod("/dev/probe", 0o600 | 0o060000, os.makedev(8, 0))),
    "tmp": sorted(os.listdir("/tmp")),
    "caps": int(status["CapEff"], 16), "bound": int(status["CapBnd"], 16),
    "new": status["NoNewPrivs"], "seccomp": status["Seccomp"], "uid": os.geteuid(),
}))
"""


@pytest.fixture
def logs(place):
    """The one folder that the service may write to."""
    logs = place / "logs"
    logs.mkdir(mode=0o750)
    os.chown(logs, NOBODY, NOBODY)
    return logs


@needs_root
def test_the_restrictions_are_real(place, logs):
    """Or the next test would say nothing."""
    said = run(*boxed(place, f"+{logs}"), sys.executable, "-c", PROBE,
               env={**environment(place.path), "LOGS": str(logs)})  # fmt: skip
    assert said.returncode == 0, said.stderr
    seen = json.loads(said.stdout)
    assert seen["etc"] == seen["usr"] == seen["sys"] == "EROFS"
    assert seen["log"] == "done"
    assert seen["netlink"] == "done"
    assert {seen[n] for n in ("packet", "chroot", "disk")} <= {"EPERM", "EACCES"}
    assert seen["executable"] in {"EACCES", "EPERM"}
    wanted = sum(1 << number for number in privileges.KEPT.values())
    assert seen["caps"] == seen["bound"] == wanted
    assert (seen["new"], seen["seccomp"], seen["uid"]) == ("1", "2", NOBODY)
    assert not [n for n in seen["tmp"] if n not in (place.path.name, *PROJECT.parts, "pytest")]


@needs_root
def test_under_them_the_service_sees_what_it_should(place, logs):
    """Processes of other users, the modes of their terminals, and questions in their files, in
    folders that it does not even have.
    """
    options = ("--receipts", logs / "receipts.jsonl", "--socket", "off")  # (systemd makes that)
    cache = place / "cache"
    cache.mkdir(mode=0o700)
    os.chown(cache, NOBODY, NOBODY)
    before = ("env", f"CACHE_DIRECTORY={cache}", *boxed(place, f"+{logs}", f"+{cache}"))
    daemon = place.daemon(*options, before=before)
    daemon.receipts_path = logs / "receipts.jsonl"
    elsewhere = Place()
    try:
        elsewhere.ask("asks", text="Really? ", output=elsewhere / "output")
        secret = "stty -echo; printf 'Password: '; read a"
        env = environment(elsewhere.path, RECEIPT_TRACE="secret")
        with Terminal(elsewhere.path, "sh", "-c", secret, env=env):
            eventually(
                lambda: len(waits(daemon.receipts("asks", "secret"))) == 2,
                lambda: f"both are told: {daemon.receipts()} {daemon}",
            )
    finally:
        elsewhere.close()
    told = {r["tree"]["label"]: r for r in waits(daemon.receipts())}
    assert told["asks"]["prompt"]["text"] == "Really?"
    assert told["secret"]["input"]["kind"] == "secret"
    assert {r["tree"]["uid"] for r in told.values()} == {0}
    assert daemon.metric("receipt_trace_source_info", source="bpf", lifecycle="bpf") == 1
    assert daemon.metric("receipt_trace_blind_processes") == 0
    assert [line["what"] for line in daemon.log() if line["event"] == "limited"] == []
    daemon.hang_up()
    eventually(lambda: "config_taken" in daemon.events(), lambda: str(daemon))
    assert "not_reopened" not in daemon.events()
    assert daemon.receipts_path.stat().st_mode & 0o777 == 0o600
    assert daemon.stop() == 0


# -- what the manager and the service tell each other ----------------------------------------------


def test_the_manager_is_told_every_step_and_hears_that_it_is_alive(place):
    """Type=notify and WatchdogSec."""
    address = str(place / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(BOUND)
        env = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "600000"}
        daemon = place.daemon(env=env)

        def hear(expected):
            while True:
                said = manager.recv(4096).decode()
                if said.startswith(expected):
                    return said

        assert "STATUS=observing" in hear("READY=1")
        began = time.monotonic()
        for _ in range(3):
            hear("WATCHDOG=1")
        assert time.monotonic() - began < 3
        daemon.hang_up()
        assert "MONOTONIC_USEC=" in hear("RELOADING=1")
        hear("READY=1")
        daemon.stop()
        hear("STOPPING=1")


def test_a_socket_that_the_manager_made_is_used_and_stays(place):
    """So that subscribers are not turned away while the service starts again."""
    need("systemd-socket-activate")
    path = str(place / "given.sock")
    before = ("systemd-socket-activate", f"--listen={path}", "--setenv=RING_OF_TESTS",
              "--setenv=PATH", "--setenv=HOME", "--setenv=LC_ALL")  # fmt: skip
    import threading

    poke = threading.Timer(0, connect, (path,))
    poke.start()
    daemon = place.daemon(before=before)
    poke.join()
    with socket.socket(socket.AF_UNIX) as subscriber:
        subscriber.settimeout(BOUND)
        subscriber.connect(path)
        place.ask("asks")
        assert b'"event":"wait"' in subscriber.recv(65536)
    assert not Path(daemon.socket).exists(), "it made none of its own"
    assert daemon.stop() == 0
    assert Path(path).is_socket()


def connect(path):
    """Connect as soon as that goes: systemd-socket-activate starts the service for it."""
    eventually(lambda: Path(path).is_socket(), "the socket is there")
    with socket.socket(socket.AF_UNIX) as first:
        first.connect(path)


# -- installing -------------------------------------------------------------------------------------


def test_installing_twice_and_taking_it_away_leaves_what_is_the_operators(tmp_path):
    """His configuration stays, until he wants it gone."""
    install, uninstall = PROJECT / "scripts/install", PROJECT / "scripts/uninstall"
    below = ("--root", tmp_path)

    def there():
        found = (p for p in tmp_path.rglob("*") if p.is_symlink() or p.is_file())
        return {str(p.relative_to(tmp_path)) for p in found}

    assert run(install, *below).returncode == 1
    assert there() == set()
    given = (*below, "--program", RECEIPT_TRACE)
    said = run(install, *given)
    assert said.returncode == 0, said.stderr
    files = {
        "etc/systemd/system/receipt-trace.service", "etc/systemd/system/receipt-trace.socket",
        "etc/sysusers.d/receipt-trace.conf", "etc/logrotate.d/receipt-trace",
        "etc/receipt-trace/config.toml", "usr/local/bin/receipt-trace",
    }  # fmt: skip
    assert there() == files
    config = tmp_path / "etc/receipt-trace/config.toml"
    config.write_text("# mine\n")
    assert run(install, *given).returncode == 0
    assert config.read_text() == "# mine\n"
    assert there() == files | {"etc/receipt-trace/config.toml.sample"}
    assert run(uninstall, *below).returncode == 0
    assert there() == {"etc/receipt-trace/config.toml"}
    assert run(uninstall, "--purge", *below).returncode == 0
    assert there() == set()


@pytest.mark.parametrize("script", ["install", "uninstall"])
def test_a_wrong_word_is_told_with_the_next_step(script):
    """Nothing is done."""
    said = run(PROJECT / "scripts" / script, "--rot")
    assert said.returncode == 1
    assert f"{script}: unknown argument '--rot'\ntry: scripts/{script} --help\n" == said.stderr
    assert "usage: scripts/" in run(PROJECT / "scripts" / script, "--help").stdout
