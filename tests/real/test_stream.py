"""``receipt-trace watch --socket`` and the subscribers of ``receipt-trace tail``."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.kernel

RECEIPT_TRACE = str(Path(sys.executable).parent / "receipt-trace")
BOUND = 30
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="only root can become another user; run it again: sudo -E pytest -m kernel",
)


def eventually(condition, what):
    """Wait for a condition, with a bound; returns what it gave."""
    deadline = time.monotonic() + BOUND
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {BOUND} s: {what()}"
        time.sleep(0.02)
    return value


class Program:
    """A program of ours whose output goes to a file; leaving the place ends it."""

    def __init__(self, place, *argv, **more):
        self.out = Path(tempfile.mkstemp(dir=place)[1])
        self.err = Path(tempfile.mkstemp(dir=place)[1])
        with self.out.open("wb") as out, self.err.open("wb") as err:
            env = {k: v for k, v in os.environ.items() if k != "RECEIPT_TRACE"}
            self.process = subprocess.Popen(
                argv, cwd=place, env=env, stdout=out, stderr=err,
                **{"stdin": subprocess.DEVNULL} | more,
            )  # fmt: skip

    @property
    def pid(self):
        """Its number."""
        return self.process.pid

    def lines(self):
        """The whole lines it has printed so far."""
        return self.out.read_text().split("\n")[:-1]

    def receipts(self):
        """The same, as receipts."""
        return [json.loads(line) for line in self.lines()]

    def wait(self):
        """Its exit status, at its own end."""
        return self.process.wait(BOUND)

    def end(self):
        """End it, if it has not."""
        self.process.kill()
        self.process.wait(BOUND)
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def __str__(self):
        return f"{self.out.read_text()!r}, {self.err.read_text()!r}, {self.process.poll()}"


class Place:
    """A folder that everybody may look into, and what runs there."""

    def __init__(self, path):
        self.path, self.socket, self._running = path, str(path / "sock"), []

    def start(self, *argv, **more):
        """Start any program."""
        self._running.append(Program(self.path, *argv, **more))
        return self._running[-1]

    def asker(self, *before):
        """A tool call that asks two questions, each when it is told to."""
        text = (
            "until [ -e go-$$ ]; do sleep 0.05; done; printf 'First? '; read a; "
            "printf '\\nSecond? '; read b; sleep 60"
        )
        return self.start(*before, "sh", "-c", text, stdin=subprocess.PIPE)

    def ask(self, *askers):
        """Tell them to."""
        for asker in askers:
            (self.path / f"go-{asker.pid}").touch()

    def watch(self, *options, path=None):
        """A watcher that is ready."""
        watcher = self.start(RECEIPT_TRACE, "watch", "--json", "--socket", path or self.socket,
                             *options)  # fmt: skip
        eventually(lambda: '"watching"' in watcher.err.read_text(), lambda: f"ready: {watcher}")
        return watcher

    def tail(self, *options, before=()):
        """A subscriber who has been let in, before anything else is asked."""
        count = self.connections()
        tail = self.start(*before, RECEIPT_TRACE, "tail", "--socket", self.socket, *options)
        eventually(lambda: self.connections() > count, lambda: f"{tail} is connected")
        return tail

    def connections(self):
        """How many sockets there are at the watcher's place, on his side (proc_pid_net(5))."""
        names = Path("/proc/net/unix").read_text().splitlines()
        return sum(line.endswith(f" {self.socket}") for line in names)

    def close(self):
        """End everything and leave nothing."""
        for program in reversed(self._running):
            program.end()
        shutil.rmtree(self.path)


@pytest.fixture
def place():
    """Short enough for the name of a socket, and open to other users."""
    path = Path(tempfile.mkdtemp(prefix="receipts-"))
    path.chmod(0o755)
    place = Place(path)
    yield place
    place.close()


def heard(tail, count):
    """The lines of a subscriber, when there are so many; he must not end before."""
    eventually(
        lambda: len(tail.lines()) >= count or tail.process.poll() is not None,
        lambda: f"{count} lines of {tail}",
    )
    assert len(tail.lines()) >= count, tail
    return tail.lines()


def answer(asker):
    """Answer its question."""
    asker.process.stdin.write(b"yes\n")
    asker.process.stdin.flush()


# -- subscribers -----------------------------------------------------------------------------------


def test_all_subscribers_get_what_the_watcher_says(place):
    """As it is, or as lines with the time; one comes later and has missed the beginning."""
    asker = place.asker()
    watcher = place.watch("--root", str(asker.pid))
    first, second, text = place.tail("--json"), place.tail("--json"), place.tail()
    place.ask(asker)
    heard(first, 1)
    late = place.tail("--json")
    answer(asker)
    assert heard(first, 3) == heard(second, 3) == heard(watcher, 3)
    assert heard(late, 2) == watcher.lines()[1:]
    assert [(r["event"], r["prompt"]["text"]) for r in first.receipts()] == [
        ("wait", "First?"), ("resolved", "First?"), ("wait", "First?\nSecond?"),
    ]  # fmt: skip
    lines = heard(text, 3)
    times = [r["time"][11:19] for r in first.receipts()]
    assert [line[:8] for line in lines] == times
    target = first.receipts()[0]["input"]["target"]
    assert lines[0][9:] == f"sh[{asker.pid}] reads its input on {target}: “First?”"
    assert lines[1][9:].startswith(f"sh[{asker.pid}] was answered after ")


def test_a_subscriber_who_never_reads_disturbs_nobody(place):
    """Nor does one who was stopped."""
    asker = place.asker()
    watcher = place.watch("--root", str(asker.pid))
    stopped = place.tail("--json")
    with socket.socket(socket.AF_UNIX) as lazy:
        lazy.connect(place.socket)
        eager = place.tail("--json")
        stopped.process.send_signal(signal.SIGSTOP)
        place.ask(asker)
        heard(eager, 1)
        answer(asker)
        assert heard(eager, 3) == heard(watcher, 3)
        stopped.process.send_signal(signal.SIGCONT)
        assert heard(stopped, 3) == eager.lines()
        assert watcher.process.poll() is None


def test_a_subscriber_who_leaves_disturbs_nobody(place):
    """Neither the watcher nor the others."""
    asker = place.asker()
    watcher = place.watch("--root", str(asker.pid))
    tail, leaves = place.tail("--json"), place.tail("--json")
    leaves.end()
    place.ask(asker)
    heard(tail, 1)
    answer(asker)
    assert heard(tail, 3) == heard(watcher, 3)
    assert watcher.process.poll() is None


@needs_root
def test_a_user_sees_only_his_own_tool_calls(place):
    """Root sees all."""
    mine, theirs = place.asker(), place.asker(*NOBODY)
    eventually(
        lambda: os.stat(f"/proc/{theirs.pid}").st_uid == 65534, lambda: f"{theirs} is nobody's"
    )
    place.watch("--root", str(mine.pid), str(theirs.pid))
    root, user = place.tail("--json"), place.tail("--json", before=NOBODY)
    place.ask(mine)
    heard(root, 1)
    (place.path / f"go-{theirs.pid}").touch()
    heard(root, 2)
    heard(user, 1)
    answer(mine)
    heard(root, 4)
    answer(theirs)
    heard(root, 6)
    heard(user, 3)
    assert {r["tree"]["root_pid"] for r in root.receipts()} == {mine.pid, theirs.pid}
    assert user.receipts() == [r for r in root.receipts() if r["tree"]["root_pid"] == theirs.pid]
    assert {(r["tree"]["uid"], r["tree"]["user"]) for r in user.receipts()} == {(65534, "nobody")}


# -- beginnings and ends ---------------------------------------------------------------------------


def test_without_a_watcher_there_is_nothing_to_follow(place):
    """69, with the next step."""
    tail = place.start(RECEIPT_TRACE, "tail", "--socket", place.socket)
    assert tail.wait() == 69
    assert tail.err.read_text() == (
        f"receipt-trace: no watcher listens at {place.socket!r} (No such file or directory); "
        f"start one: receipt-trace watch\n"
    )


def test_a_subscriber_ends_with_the_watcher(place):
    """With everything that was said until then, and 69; the socket is gone."""
    asker = place.asker()
    watcher = place.watch("--root", str(asker.pid), "--once")
    tail = place.tail("--json")
    place.ask(asker)
    assert watcher.wait() == 0
    assert tail.wait() == 69
    assert tail.lines() == watcher.lines()
    assert [(r["event"], (r["resolution"] or {}).get("how")) for r in tail.receipts()] == [
        ("wait", None), ("resolved", "lost"),
    ]  # fmt: skip
    assert tail.err.read_text() == (f"receipt-trace: the watcher at {place.socket!r} has ended\n")
    assert not os.path.exists(place.socket)


def test_a_signal_ends_the_watcher_and_its_subscribers(place):
    """0 for the one, 69 for the others."""
    asker = place.asker()
    watcher = place.watch("--root", str(asker.pid))
    tails = [place.tail(), place.tail("--json")]
    watcher.process.terminate()
    assert watcher.wait() == 0
    assert [tail.wait() for tail in tails] == [69, 69]
    assert not os.path.exists(place.socket)


def test_two_watchers_cannot_speak_at_one_place(place):
    """64 for the second, which says why; the first keeps it."""
    asker = place.asker()
    first = place.watch("--root", str(asker.pid))
    second = place.start(RECEIPT_TRACE, "watch", "--root", str(asker.pid),
                         "--socket", place.socket)  # fmt: skip
    assert second.wait() == 64
    assert second.out.read_text() == ""
    assert second.err.read_text() == (
        f"receipt-trace: the socket {place.socket!r} cannot be made: another watcher listens "
        f"there; give another --socket PATH, or --socket off\n"
    )
    assert first.process.poll() is None
    assert os.path.exists(place.socket)


def test_a_watcher_goes_on_after_another_wanted_its_place(place):
    """Whoever asks whether somebody listens there has been a subscriber for a moment."""
    asker = place.asker()
    watcher = place.watch("--root", str(asker.pid))
    tail = place.tail("--json")
    second = place.start(RECEIPT_TRACE, "watch", "--socket", place.socket)
    assert second.wait() == 64
    place.ask(asker)
    heard(tail, 1)
    answer(asker)
    assert heard(tail, 3) == heard(watcher, 3)
    assert watcher.process.poll() is None


def test_the_place_of_a_killed_watcher_is_taken_over(place):
    """What it left does not stand in the way."""
    asker = place.asker()
    place.watch("--root", str(asker.pid)).end()
    assert os.path.exists(place.socket)
    watcher = place.watch("--root", str(asker.pid))
    tail = place.tail("--json")
    place.ask(asker)
    assert heard(tail, 1) == heard(watcher, 1)


def test_a_watcher_can_keep_to_itself(place):
    """--socket off: nobody is let in, and nothing else changes."""
    asker = place.asker()
    watcher = place.watch("--root", str(asker.pid), path="off")
    place.ask(asker)
    heard(watcher, 1)
    assert not any(path.is_socket() for path in place.path.iterdir())


@pytest.mark.parametrize("options", [["--record", "missing/file"], ["--root", "999999999"]])
def test_a_watcher_that_cannot_start_leaves_no_socket(place, options):
    """It has never listened."""
    watcher = place.start(RECEIPT_TRACE, "watch", "--socket", place.socket, *options)
    assert watcher.wait() == 64
    assert not os.path.exists(place.socket)
