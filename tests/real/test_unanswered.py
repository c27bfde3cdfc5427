"""Questions that meet a closed input: told once each, and nothing else is.

The commands run below a ``run`` of their own, and marked, before the eyes of one ``watch``. There
they are held back (a lock is not an input) until the watcher follows them.
"""

import contextlib
import fcntl
import functools
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from .support import (
    BOUND,
    PRIVATE_TRACEFS,
    Watcher,
    briefly,
    descendants,
    environment,
    eventually,
    kill,
    need,
    run,
    write,
)

pytestmark = pytest.mark.kernel

SOURCE: Final = ("--source", "bpf", "--capture", "text")
PARALLEL: Final = 6
GATE: Final = "flock -s gate true\n"

GIT: Final = """\
git init -q .; git config user.email dev@example.invalid; git config user.name dev
echo 1 > a; git add a; git commit -qm first
"""


@dataclass(frozen=True, eq=False)
class Case:
    """A command, what it is given to read, and where it prints.

    ``given``: ``null``, ``pipe`` and ``socket`` are closed at the other end; ``data`` is a pipe
    that gives ``text`` first, ``tty`` a terminal on which that was typed; ``script`` and ``file`` give the command itself to a shell.
    ``printed``: ``pipe``, ``socket`` or ``tty``.
    """

    name: str
    command: str
    program: str = ""
    question: str = ""
    given: str = "null"
    printed: str = "pipe"
    text: bytes = b""
    needs: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    setup: str = ""
    runs: bool = True

    @property
    def ways(self) -> tuple[str, ...]:
        """``run`` gives its commands one closed input only, and pipes to print to."""
        plain = self.given == "null" and self.printed == "pipe" and self.runs
        return ("run", "watch") if plain else ("watch",)


def asks(name: str, command: str, program: str, question: str, **more: Any) -> Case:
    """A command whose question meets the end of its input."""
    return Case(name, command, program, question, **more)


def python(name: str, text: str, question: str = "Proceed?", **more: Any) -> Case:
    """A Python script that does."""
    return asks(name, "python3 s.py", "python3", question, files={"s.py": text}, **more)


QUESTIONS: Final = (
    # real programs
    asks("rm -i", "rm -i f", "rm", "rm: remove regular empty file 'f'?", files={"f": ""}),
    asks("cp -i", "cp -i a b", "cp", "cp: overwrite 'b'?", files={"a": "1", "b": "2"}),
    asks("mv -i", "mv -i a b", "mv", "mv: overwrite 'b'?", files={"a": "1", "b": "2"}),
    asks("apt-get remove",
         "apt-get -o Debug::NoLocking=1 -o Dir::Bin::dpkg=/bin/false remove less",
         "apt-get", "Do you want to continue? [Y/n]", needs=("apt-get", "less")),
    asks("ssh-keygen", "ssh-keygen -t ed25519", "ssh-keygen",
         "Enter file in which to save the key", needs=("ssh-keygen",)),
    asks("openssl req", "openssl req -new -newkey rsa:512 -nodes -keyout k -out c", "openssl",
         "Country Name (2 letter code) [AU]:", needs=("openssl",)),
    asks("find -ok", "find . -name f -ok echo {} ';'", "find", "< echo ... ./f > ?",
         files={"f": ""}, needs=("find",)),
    asks("unzip", "unzip a.zip", "unzip", "replace f? [y]es, [n]o, [A]ll, [N]one, [r]ename:",
         files={"f": ""}, setup="zip -q a.zip f", needs=("zip", "unzip")),
    asks("git clean -i", "git clean -i", "git", "What now>", setup=GIT + "touch new",
         needs=("git",)),
    asks("git add -p", "git add -p", "git", "Stage this hunk", setup=GIT + "echo 2 > a",
         needs=("git",)),
    asks("npm init", "npm init", "npm", "package name:", needs=("npm",), runs=False),
    asks("node readline", "node s.mjs", "node", "Deploy?", needs=("node",), runs=False,
         files={"s.mjs": "import rl from 'readline';\n"
                         "const r = rl.createInterface({input: process.stdin, "
                         "output: process.stdout});\n"
                         "r.question('Deploy? ', () => process.exit(0));\n"}),
    asks("perl", "perl -e '$|=1; print \"Submit? \"; <STDIN>'", "perl", "Submit?",
         needs=("perl",)),
    asks("dash read", "dash -c 'printf \"sure? \"; read x'", "dash", "sure?"),
    asks("bash read", "printf 'go on? '; read x; exit 3", "bash", "go on?"),
    asks("read -t loop", "printf 'go? '; while ! read -t 0.3 x; do [ $? -gt 128 ] || exit; done",
         "bash", "go?"),
    asks("ends itself by a signal", "printf 'go on? '; read x; kill -KILL $$", "bash", "go on?"),
    # how it is printed
    asks("python input", "python3 -c 'input(\"name? \")'", "python3", "name?"),
    python("on stderr", "import sys\nprint('Proceed? ', end='', file=sys.stderr, flush=True)\n"
           "sys.stdin.readline()\n"),
    python("a line of its own", "print('Proceed? [y/N]', flush=True)\ninput()\n", "[y/N]"),
    python("in two writes",
           "import os\nos.write(1, b'Proceed')\nos.write(1, b'? ')\nos.read(0, 1)\n"),
    python("a writev", "import os\nos.writev(1, [b'done\\n', b'Proceed? '])\nos.read(0, 1)\n"),
    python("a writev as musl's",
           "import os\nos.writev(1, [b'Proceed? ', b''])\nos.read(0, 1)\n"),
    python("a question over two parts",
           "import os\nos.writev(1, [b'Proc', b'eed? '])\nos.read(0, 1)\n"),
    python("in colours", "import os\nos.write(1, b'\\x1b[1mProceed?\\x1b[0m \\x1b[K')\nos.read(0, 1)\n"),
    python("asks three times", "for n in range(3):\n  try: input('Proceed? ')\n"
                               "  except EOFError: pass\n"),
    python("takes the default and goes on", "import time\ntry: input('Proceed? ')\n"
           "except EOFError: time.sleep(1)\n"),
    python("readv", "import os\nos.write(1, b'Proceed? ')\nos.readv(0, [bytearray(9)])\n"),
    python("to a terminal", "input('Proceed? ')", printed="tty"),
    python("send", "import os, socket\nsocket.socket(fileno=1).send(b'Proceed? ')\nos.read(0, 1)\n",
           printed="socket"),
    python("sendmsg", "import os, socket\n"
           "socket.socket(fileno=1).sendmsg([b'done\\n', b'Proceed? '])\nos.read(0, 1)\n",
           printed="socket"),
    # what is closed
    asks("closed by the command itself", "rm -i f </dev/null; true", "rm",
         "remove regular empty file 'f'?", files={"f": ""}),
    python("a closed pipe", "input('Proceed? ')", given="pipe"),
    python("a closed socket", "input('Proceed? ')", given="socket"),
    python("a closed socket, recv",
           "import os, socket\nos.write(1, b'Proceed? ')\nsocket.socket(fileno=0).recv(1)\n",
           given="socket"),
    python("a closed socket, both ways", "input('Proceed? ')", given="socket", printed="socket"),
    asks("rm below a shell, closed pipe", "rm -i f; true", "rm", "remove regular empty file 'f'?",
         files={"f": ""}, given="pipe"),
)  # fmt: skip

QUESTION: Final = asks("the last of all", "printf 'last? '; read x", "bash", "last?")

CONTROLS: Final = (
    # readers of data
    Case("cat", "cat"),
    Case("sort", "sort"),
    Case("wc", "wc -l"),
    Case("head", "head -1"),
    Case("xargs", "xargs echo did:"),
    Case("xargs after a line", "printf 'Files:\\n'; xargs -r echo"),
    Case("tar", "tar -xf - 2>&1", needs=("tar",)),
    Case("patch", "patch -p1", needs=("patch",)),
    Case("patch that cannot ask", "patch -p1 -i p", needs=("patch",),
         files={"p": "--- a/none\n+++ b/none\n@@ -1 +1 @@\n-a\n+b\n"}),
    Case("git commit -F -", "git commit --allow-empty -F -", setup=GIT, needs=("git",)),
    Case("yes", "yes | head -100 | tail -1"),
    Case("a question that is data", "printf 'abc?' | cat"),
    Case("nobody reads the answer", "printf 'Proceed? '"),
    Case("data after a log line", "python3 -uc 'import sys; print(\"Reading:\"); sys.stdin.read()'"),
    Case("data that ends with a question", "python3 -c 'import sys; print(sys.stdin.read())'",
         given="data", text=b"Proceed? "),
    Case("took something before the end", "printf 'Proceed? '; read x; printf 'Sure? '; read y",
         given="data", text=b"yes\n"),
    Case("a client without input", "python3 s.py",
         files={"s.py": "import os, socket\n"
                        "a, b = socket.socketpair()\n"
                        "while data := os.read(0, 99): a.send(data)\n"
                        "b.send(b'remote: really? ')\n"
                        "os.write(1, a.recv(99))\n"}),
    # a terminal that is there
    Case("a person presses ^D", "printf 'Proceed? '; read x", given="tty", text=b"\x04"),
    Case("a key, without waiting", "python3 s.py", given="tty",
         files={"s.py": "import os, termios, tty\ntty.setraw(0)\nm = termios.tcgetattr(0)\n"
                        "m[6][termios.VMIN] = m[6][termios.VTIME] = 0\n"
                        "termios.tcsetattr(0, termios.TCSANOW, m)\n"
                        "os.write(1, b'Press a key? ')\nos.read(0, 1)\n"}),
    # somebody else has printed it
    Case("progress before grep", "printf 'progress... '; grep -q x"),
    Case("a check", "printf 'Checking: '; grep -q x </dev/null"),
    Case("a check of the user's", "printf 'Is it there? '; cat | grep -q x; echo no"),
    # loops and shells
    Case("while read", 'while read x; do echo "$x: "; done'),
    Case("while read, data", "while read x; do printf '%s? ' \"$x\"; done", given="data",
         text=b"a\nb\n"),
    Case("while read from a command", "printf 'Users: '; while read x; do echo $x; done < <(true)"),
    Case("while read from null", "printf 'Users: '; while read x; do echo $x; done </dev/null"),
    Case("mapfile", "printf 'Changed: '; mapfile -t x < <(true); echo ${#x[@]}"),
    Case("a shell at the end of its script", "printf 'Result: '", given="script"),
    Case("and it has read something else", "x=$(echo 1)\nprintf 'Result: '", given="script"),
    Case("a script from a file", "x=$(echo 1)\nprintf 'Result: '", given="file"),
    Case("sh < script", "sh < i.sh", files={"i.sh": "x=$(echo 1)\nprintf 'Result: '"}),
    Case("a shell in a pipe", "cat i.sh | sh", files={"i.sh": "x=$(echo 1)\nprintf 'Result: '"}),
    Case("a prompt with its answer", "python3 s.py",
         files={"s.py": "import subprocess\nprint('Version: ', end='', flush=True)\n"
                        "subprocess.run('true', stdout=subprocess.PIPE)\n"}),
)  # fmt: skip


class Told(NamedTuple):
    """What came of a case; ``status`` as a shell tells it."""

    receipts: list[dict[str, Any]]
    status: int
    output: bytes

    def __str__(self) -> str:
        return f"{briefly(self.receipts)}\nstatus {self.status}, output {self.output[-300:]!r}"


class Held:
    """A marked command that stands before its gate. ``_drain`` takes what it prints."""

    def __init__(self, case: Case, directory: Path) -> None:
        _prepare(case, directory)
        self.label = f"case {case.name}"
        self._gate = (directory / "gate").open("w")
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        (directory / "script").write_text(GATE + case.command)
        argv = ["bash"] if case.given in ("script", "file") else ["bash", "-c", GATE + case.command]
        self._ours = -1
        if case.given == "tty":
            self._ours, given = os.openpty()
            os.write(self._ours, case.text)
        else:
            given = _given(case, directory)
        kept, printed = _printed(case)
        self.process = subprocess.Popen(
            argv, stdin=given, stdout=printed, stderr=printed, cwd=directory,
            env=environment(directory, RECEIPT_TRACE=self.label),
        )  # fmt: skip
        os.close(given)
        os.close(printed)
        self.output: list[bytes] = []
        self._reader = threading.Thread(target=_drain, args=(kept, self.output))
        self._reader.start()

    def release(self) -> int:
        """Let it run to its end; returns its exit status, as a shell tells it."""
        self._gate.close()
        status = self.process.wait(3 * BOUND)
        return status if status >= 0 else 128 - status

    def close(self) -> None:
        """End it, if it has not."""
        kill(self.process.pid)
        self.process.wait(BOUND)
        self._gate.close()
        self._reader.join()
        if self._ours >= 0:
            os.close(self._ours)


class Pen:
    """Where the cases run, some at a time; those of ``watch`` once the watcher follows them all."""

    def __init__(self, watcher: Watcher, held: Mapping[Case, Held], last: Held) -> None:
        self._watcher, self._held, self._last = watcher, held, last
        self._pool = ThreadPoolExecutor(PARALLEL)
        self._told: dict[tuple[Case, str], Future[Told]] = {}

    def add(self, case: Case, way: str, directory: Path) -> None:
        """Put one in the queue."""
        under = self._watched if way == "watch" else self._run
        self._told[case, way] = self._pool.submit(under, case, directory)

    def __getitem__(self, key: tuple[Case, str]) -> Told:
        told = self._told[key].result()
        if key[1] != "watch":
            return told
        label = self._held[key[0]].label
        return told._replace(receipts=[r for r in self._all if r["tree"]["label"] == label])

    @functools.cached_property
    def _all(self) -> list[dict[str, Any]]:
        """What the watcher has told, complete: receipts come in order, and one more has come."""
        for future in self._told.values():
            future.exception()
        self._last.release()
        eventually(lambda: self._watcher.receipts(self._last.process.pid), "the last of all")
        return self._watcher.receipts()

    def close(self) -> None:
        """Wait for what runs; forget what does not yet."""
        self._pool.shutdown(cancel_futures=True)

    def _run(self, case: Case, directory: Path) -> Told:
        _prepare(case, directory)
        done = run(
            directory, "bash", "-c", case.command,
            options=(*SOURCE, "--wiring", "null"), before=PRIVATE_TRACEFS,
        )  # fmt: skip
        return Told(done.receipts, done.returncode, done.stdout + done.stderr)

    def _watched(self, case: Case, _directory: Path) -> Told:
        held = self._held[case]
        status = held.release()
        said(self._watcher, "tree_ended", held.process.pid)
        return Told([], status, b"".join(held.output))


def said(watcher: Watcher, event: str, *pids: int) -> None:
    """Wait until the watcher has logged that of the trees of some roots."""

    def missing() -> list[int]:
        lines = [line for line in watcher.log.splitlines() if f'"{event}"'.encode() in line]
        return [pid for pid in pids if not any(b'"root_pid": %d,' % pid in line for line in lines)]

    eventually(lambda: not missing(), lambda: f"{event} of {missing()}: {watcher.log[-500:]!r}")


def _prepare(case: Case, directory: Path) -> None:
    write(directory, case.files)
    if case.setup:
        subprocess.run(
            ["bash", "-ec", case.setup], cwd=directory, env=environment(directory),
            stdin=subprocess.DEVNULL, capture_output=True, timeout=BOUND, check=True,
        )  # fmt: skip


def _given(case: Case, directory: Path) -> int:
    """What the command has to read."""
    if case.given == "null":
        return os.open(os.devnull, os.O_RDONLY)
    if case.given == "file":
        return os.open(directory / "script", os.O_RDONLY)
    if case.given == "socket":
        ours, theirs = socket.socketpair()
        ours.close()
        return theirs.detach()
    theirs_end, our_end = os.pipe()
    script = (directory / "script").read_bytes() if case.given == "script" else case.text
    os.write(our_end, script)
    os.close(our_end)
    return theirs_end


def _printed(case: Case) -> tuple[int, int]:
    """Our end and the command's of where it prints."""
    if case.printed == "tty":
        return os.openpty()
    if case.printed == "socket":
        ours, theirs = socket.socketpair()
        return ours.detach(), theirs.detach()
    return os.pipe()


def _drain(fd: int, output: list[bytes]) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(fd, 65536):
            output.append(data)
    os.close(fd)


@pytest.fixture(scope="module")
def pen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pen]:
    """One watcher, and all cases that were selected."""
    need("unshare", "flock")
    chosen = [
        (item.callspec.params["case"], item.callspec.params["way"])
        for item in request.session.items
        if getattr(item, "module", None) is request.module and hasattr(item, "callspec")
    ]
    chosen = [(case, way) for case, way in chosen if all(map(shutil.which, case.needs))]
    where = {pair: tmp_path_factory.mktemp("u") for pair in chosen}
    options = (*SOURCE, "--socket", "off", "-v")
    with contextlib.ExitStack() as stack:
        watcher = stack.enter_context(
            Watcher(tmp_path_factory.mktemp("w"), *options, before=PRIVATE_TRACEFS)
        )
        held = {case: Held(case, where[case, way]) for case, way in chosen if way == "watch"}
        for one in held.values():
            stack.callback(one.close)
        last = Held(QUESTION, tmp_path_factory.mktemp("u"))
        stack.callback(last.close)
        after = Held(Case("after them", "true"), tmp_path_factory.mktemp("u"))
        stack.callback(after.close)
        roots = [one.process.pid for one in (*held.values(), last, after)]
        said(watcher, "tree_started", *roots)
        after.release()
        said(watcher, "tree_ended", after.process.pid)  # so the others have been looked at
        running = Pen(watcher, held, last)
        stack.callback(running.close)
        for case, way in chosen:
            running.add(case, way, where[case, way])
        yield running


def _params(cases: tuple[Case, ...], every: int = 1) -> list[Any]:
    """All cases under ``watch``; below a ``run``, which each needs a start of, every so many-th."""
    return [
        pytest.param(case, way, id=f"{case.name} - {way}")
        for number, case in enumerate(cases)
        for way in case.ways
        if way == "watch" or number % every == 0
    ]


@pytest.mark.parametrize(("case", "way"), _params(QUESTIONS))
def test_a_question_that_meets_a_closed_input_is_told_once(case: Case, way: str, pen: Pen) -> None:
    """One receipt: who asked what, and how it then ended."""
    need(*case.needs)
    told = pen[case, way]
    assert [r["event"] for r in told.receipts] == ["eof"], told
    receipt = told.receipts[0]
    assert receipt["program"]["name"] == case.program, told
    assert case.question in receipt["prompt"]["text"], told
    assert receipt["prompt"]["text"].count("\n") == 0, told
    assert receipt["prompt"]["source"] == "syscall", told
    assert receipt["input"]["wiring"] == case.given, told
    assert receipt["evidence"]["grade"] == "kernel", told
    assert receipt["resolution"]["how"] == "eof", told
    assert receipt["resolution"]["exit_status"] == told.status, told
    assert case.question.encode() in told.output, told


@pytest.mark.parametrize(("case", "way"), _params(CONTROLS, every=2))
def test_what_asks_nobody_is_not_told(case: Case, way: str, pen: Pen) -> None:
    """Not a word of it."""
    need(*case.needs)
    told = pen[case, way]
    assert told.receipts == [], told


def test_who_asks_for_ever_keeps_nobody_else_from_being_seen(tmp_path: Path) -> None:
    """It meets the end of its input many thousand times a second: told once, and no event is lost."""
    need("unshare")
    spin = (
        "import os, time\ntime.sleep(1)\nos.write(1, b'again? '); os.read(0, 1); time.sleep(1)\n"
        "while True: os.write(1, b'again? '); os.read(0, 1)\n"
    )
    write(tmp_path, {"s.py": spin})
    with (
        Watcher(tmp_path, *SOURCE, before=PRIVATE_TRACEFS) as watcher,
        contextlib.ExitStack() as stack,
    ):

        def start(text: str, stdin: int) -> "subprocess.Popen[bytes]":
            env = environment(tmp_path, RECEIPT_TRACE=text)
            words = ["bash", "-c", text]
            return stack.enter_context(subprocess.Popen(words, stdin=stdin, cwd=tmp_path, env=env))

        spins = start("python3 s.py | cat >/dev/null", subprocess.DEVNULL)
        calm = start("for n in {1..300}; do /bin/true; done; cat; true", subprocess.PIPE)
        try:
            assert watcher.wait(calm.pid)["program"]["name"] == "cat"
            eventually(lambda: watcher.receipts(spins.pid), "the question is told")
        finally:
            for root in (spins.pid, calm.pid):
                for pid in (root, *descendants(root)):
                    kill(pid)
        assert [r["event"] for r in watcher.receipts(spins.pid)] == ["eof"]
        assert b'"events_lost"' not in watcher.log
