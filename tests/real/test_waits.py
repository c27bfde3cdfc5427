"""Commands that ask: each gives exactly one receipt, and it says who asks what and how.

The commands run side by side (see ``Batch``); each test reads the result of its own.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from .support import Batch, Started, Trial, need, resolutions, waits

pytestmark = pytest.mark.kernel

AFTER: Final = 1.5
"""Seconds a command is watched after its receipt: a second one would come within these."""

GIT: Final = """\
git init -q .; git config user.email dev@example.invalid; git config user.name dev
for i in 1 2 3; do echo $i > a; git add a; git commit -qm "change $i"; done
"""
PYTHON_ASK: Final = "python3 -c 'input(\"name? \")'"


@dataclass(frozen=True)
class Want:
    """What the receipt says. ``reads`` is its wiring where that is not the command's own."""

    kind: str
    question: str = ""
    reads: str | None = None


@dataclass(frozen=True)
class Ask:
    """A command that asks; a wiring without expectation is one where it does not wait.

    ``piped`` is the question under a pipe, where there the program shows another one.
    """

    name: str
    command: str
    program: str
    tty: Want | None
    pipe: Want | None
    null: Want | None = None
    needs: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    setup: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    relays: tuple[str, ...] = ()
    feed: bytes | None = None


def asks(name: str, command: str, program: str, tty: str, **more: Any) -> Ask:
    """A command that asks the same question on a terminal ("KIND: QUESTION") and on a pipe."""
    kind, _, question = tty.partition(": ")
    piped = more.pop("piped", question)
    return Ask(name, command, program, Want(kind, question), Want("stream", piped), **more)


def only_tty(name: str, command: str, program: str, tty: str, **more: Any) -> Ask:
    """A command that asks on a terminal only."""
    kind, _, question = tty.partition(": ")
    return Ask(name, command, program, Want(kind, question), None, **more)


def only_pipe(name: str, command: str, program: str, question: str = "", **more: Any) -> Ask:
    """A command that waits on a pipe only."""
    return Ask(name, command, program, None, Want("stream", question), **more)


def python(name: str, question: str, text: str, **more: Any) -> Ask:
    """A Python script that asks for a line."""
    return asks(name, "python3 s.py", "python3", f"line: {question}", files={"s.py": text}, **more)


CASES: Final = (
    # plain questions
    asks("rm -i", "rm -i f", "rm", "line: remove regular empty file 'f'?", files={"f": ""}),
    asks("cp -i", "cp -i a b", "cp", "line: overwrite 'b'?", files={"a": "1", "b": "2"}),
    asks("python input", PYTHON_ASK, "python3", "line: name?"),
    asks("read -p", "read -p 'go on? ' x", "bash", "line: go on?", piped=""),
    asks("dash read", "exec dash -c 'printf \"sure? \"; read x'", "dash", "line: sure?"),
    asks("select menu", "select x in a b; do break; done", "bash", "line: #?"),
    asks("perl", "perl -e '$|=1; print \"Submit? \"; <STDIN>'", "perl", "line: Submit?",
         needs=("perl",)),
    asks("grep reads its input", "grep -c x", "grep", "line: "),
    asks("cat reads its input", "cat", "cat", "line: "),
    asks("read -t loop", "printf 'Go? '; while ! read -t 0.3 x; do :; done", "bash", "line: Go?"),
    asks("read beside a background job", "sleep 60 & read -p 'go? ' x", "bash", "line: go?",
         piped=""),
    asks("asks after a while", "sleep 1.5; read -p 'later? ' x", "bash", "line: later?", piped=""),
    asks("asks behind tee", "python3 -u -c 'input(\"go? \")' | tee log", "python3", "line: go?"),
    asks("ssh-keygen", "ssh-keygen -t ed25519", "ssh-keygen",
         "line: Enter file in which to save the key", needs=("ssh-keygen",)),
    asks("apt-get remove", "apt-get -o Debug::NoLocking=1 -o Dir::Bin::dpkg=/bin/false remove less",
         "apt-get", "line: Do you want to continue? [Y/n]", needs=("apt-get", "less")),
    asks("git add -p", "git add -p", "git", "line: Stage this hunk", setup=GIT + "echo 4 > a",
         needs=("git",)),
    asks("git clean -i", "git clean -i", "git", "line: What now>", setup=GIT + "touch new",
         needs=("git",)),
    asks("make", "make", "bash", "line: Deploy?", piped="", needs=("make",),
         files={"Makefile": "SHELL=/bin/bash\nall:\n\t@read -p 'Deploy? ' x\n"}),
    asks("make -j", "make -j2 deploy", "bash", "line: Deploy?", piped="", needs=("make",),
         files={"Makefile": "SHELL=/bin/bash\ndeploy: a b\n\t@read -p 'Deploy? ' x\n"
                            "a b:\n\t@sleep 0.2\n"}),
    # keys and menus
    asks("read -n", "read -n1 -p 'press a key ' x", "bash", "key: press a key", piped=""),
    asks("python readline", "python3 -c 'import readline; input(\"name? \")'", "python3",
         "key: name?"),
    asks("python -i", "python3 -iq", "python3", "key: >>>"),
    asks("gdb", "gdb -q /bin/true", "gdb", "key: (gdb)", needs=("gdb",)),
    asks("sqlite3", "sqlite3", "sqlite3", "key: sqlite>", piped="", needs=("sqlite3",)),
    asks("npm init", "npm init", "npm init", "key: package name:", needs=("npm",)),
    asks("node readline", "node s.mjs", "node", "key: Deploy to production?", needs=("node",),
         files={"s.mjs": "import rl from 'readline';\n"
                         "const r = rl.createInterface({input: process.stdin, "
                         "output: process.stdout});\n"
                         "r.question('Deploy to production? ', () => process.exit(0));\n"}),
    # secrets
    asks("openssl", "openssl genrsa -aes256 -out k 2048", "openssl",
         "secret: Enter PEM pass phrase", needs=("openssl",)),
    asks("getpass", "python3 -c 'import getpass; getpass.getpass()'", "python3",
         "secret: Password:"),
    asks("read -s", "read -s -p 'Token: ' x", "bash", "secret: Token:", piped=""),
    only_tty("gpg below its agent", "GNUPGHOME=$PWD/g gpg -c f", "pinentry-curses",
             "screen: Passphrase:", needs=("gpg", "pinentry-curses"), files={"f": "x"},
             setup="mkdir -m 700 g; command -v pinentry-curses | "
                   "sed 's/^/pinentry-program /' > g/gpg-agent.conf"),
    # full screens
    Ask("vim", "vim f", "vim", Want("screen", "hello vim"), Want("stream", "hello vim"),
        Want("dead"), needs=("vim",), files={"f": "hello vim\n"}),
    Ask("git commit with vi", "git commit --allow-empty", "vi",
        Want("screen", "Please enter the commit message"), Want("stream"), Want("dead"),
        setup=GIT, env={"EDITOR": "vi"}, needs=("git", "vi")),
    asks("git rebase -i", "git rebase -i HEAD~2", "vim", "screen: change 3", setup=GIT,
         env={"GIT_SEQUENCE_EDITOR": "vim"}, needs=("git", "vim")),
    only_tty("less", "less f", "less", "screen: line 7", needs=("less",),
             files={"f": "".join(f"line {n}\n" for n in range(500))}),
    only_tty("man", "man ./page.1", "pager", "screen: Manual page", needs=("man", "nroff"),
             files={"page.1": ".TH PAGE 1\n" + "".join(f".SH PART {n}\ntext\n" for n in range(90))}),
    asks("whiptail", "whiptail --yesno 'all good?' 8 40", "whiptail", "screen: all good?",
         needs=("whiptail",)),
    asks("dialog", "dialog --yesno 'all good?' 8 40", "dialog", "screen: all good?",
         needs=("dialog",)),
    # who asks is not who was started, or asks from somewhere else
    asks("timeout in the background", f"timeout 60 {PYTHON_ASK}", "python3", "line: name?"),
    Ask("script relays", "script -qec \"bash -c 'read -p Name: x'\" /dev/null", "bash",
        Want("line", "Name:"), Want("line", "Name:", "tty"), needs=("script",),
        relays=("script",)),
    Ask("expect that never answers",
        "expect -c 'set timeout -1; spawn bash -c {read -p Name: x}; expect never'", "bash",
        Want("dead", "Name:"), Want("dead", "Name:", "tty"), needs=("expect",)),
    only_tty("read from /dev/tty", "read -p 'Proceed? ' x < /dev/tty", "bash", "line: Proceed?"),
    only_tty("piped installer", "cat i.sh | bash", "bash", "line: Proceed?",
             files={"i.sh": "read -p 'Proceed? ' x < /dev/tty\n"}),
    only_tty("xargs -p", "echo f | xargs -p rm", "xargs", "line: rm f?..."),
    asks("a thread asks", "python3 s.py", "python3", "line: thread?",
         files={"s.py": "import threading\n"
                        "t = threading.Thread(target=lambda: input('thread? '))\n"
                        "t.start(); t.join()\n"}),
    asks("another session asks", "python3 s.py; sleep 60", "python3", "line: orphan?",
         files={"s.py": "import os\n"
                        "if os.fork() == 0:\n"
                        "    os.setsid()\n"
                        "    if os.fork() == 0:\n"
                        "        input('orphan? ')\n"
                        "    os._exit(0)\n"
                        "os.wait()\n"}),
    asks("asks within a substitution", "x=$(read -p 'which? ' y; echo $y)", "bash", "line: which?",
         piped=""),
    # unusual calls and wait sets
    python("spinner before the question", "Remove 3 files?",
           "import sys, time\n"
           "for n in range(20):\n"
           "    sys.stdout.write('\\r' + '|/-\\\\'[n % 4] + ' resolving'); sys.stdout.flush()\n"
           "    time.sleep(0.08)\n"
           "input('\\rRemove 3 files? ')\n"),
    python("select", "select?",
           "import select\nprint('select? ', end='', flush=True)\nselect.select([0], [], [])\n"),
    python("select again and again", "again?",
           "import select\nprint('again? ', end='', flush=True)\n"
           "while not select.select([0], [], [], 0.1)[0]: pass\n"),
    python("poll beside an eventfd", "poll?",
           "import os, select\nprint('poll? ', end='', flush=True)\n"
           "p = select.poll()\n"
           "p.register(0, select.POLLIN); p.register(os.eventfd(0), select.POLLIN)\n"
           "p.poll()\n"),
    python("epoll beside a self-pipe", "epoll?",
           "import os, select, socket\nprint('epoll? ', end='', flush=True)\n"
           "p = select.epoll(); r, w = os.pipe(); a, b = socket.socketpair()\n"
           "for fd in (0, r, a, os.eventfd(0)): p.register(fd, select.EPOLLIN)\n"
           "while not p.poll(0.5): pass\n"),
    python("asyncio", "async?",
           "import asyncio\n"
           "async def main():\n"
           "    asked = asyncio.Event()\n"
           "    asyncio.get_running_loop().add_reader(0, asked.set)\n"
           "    print('async? ', end='', flush=True)\n"
           "    await asked.wait()\n"
           "asyncio.run(main())\n"),
    python("a thread whose first one has left", "leader?",
           "import ctypes, os, threading\nleave = ctypes.CDLL(None).syscall\n"
           "def work():\n    os.write(1, b'leader? ')\n    os.read(0, 10)\n"
           "threading.Thread(target=work).start()\nleave(60, 0)\n"),
    python("standard input moved elsewhere at once", "moved?",
           "import os\nos.dup2(0, 19); os.dup2(os.open('/dev/null', 0), 0)\n"
           "print('moved? ', end='', flush=True)\nos.read(19, 9)\n"),
    python("readv", "vector?",
           "import os\nprint('vector? ', end='', flush=True)\nos.readv(0, [bytearray(9)])\n"),
    # a child of a shell that is fed over a pipe would eat the next command
    only_pipe("a fed shell starts one that asks", "exec bash", "rm", "remove regular empty file",
              files={"f": ""}, feed=b"rm -i f\n"),
    only_pipe("a fed shell starts a reader", "exec bash", "cat", "started",
              feed=b"printf started; cat > o\n"),
)  # fmt: skip


def _trials() -> Iterator[Any]:
    for case in CASES:
        for wiring in ("tty", "pipe", "null"):
            want = getattr(case, wiring)
            if want is not None:
                trial = Trial(
                    case.name, case.command, wiring, case.files, case.setup, case.env, case.feed
                )
                yield pytest.param(case, want, trial, id=f"{case.name} - {wiring}")


def _a_while_after_the_first() -> Callable[[Started], bool]:
    first: list[float] = []

    def enough(command: Started) -> bool:
        found = len(waits(command.receipts))
        if found and not first:
            first.append(time.monotonic())
        return found > 1 or bool(first and time.monotonic() - first[0] > AFTER)

    return enough


@pytest.fixture(scope="module")
def batch(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Batch]:
    """All commands that were selected, running."""
    running = Batch()
    for item in request.session.items:
        if not isinstance(item, pytest.Function) or item.module is not request.module:
            continue
        case, trial = item.callspec.params["case"], item.callspec.params["trial"]
        if all(map(shutil.which, case.needs)):
            running.add(trial, tmp_path_factory.mktemp("w"), _a_while_after_the_first)
    yield running
    running.close()


@pytest.mark.parametrize(("case", "want", "trial"), list(_trials()))
def test_a_command_that_asks_gives_one_receipt(
    case: Ask, want: Want, trial: Trial, batch: Batch
) -> None:
    """One wait, and the program, the kind of input and the question are right."""
    need(*case.needs)
    seen = batch[trial]
    found = waits(seen.receipts)
    assert len(found) == 1, seen
    receipt = found[0]
    assert receipt["program"]["name"] == case.program[:15], seen
    assert tuple(receipt["program"]["relays"]) == case.relays, seen
    assert receipt["input"]["kind"] == want.kind, seen
    assert receipt["input"]["wiring"] == (want.reads or trial.wiring.replace("null", "pipe")), seen
    assert want.question in receipt["prompt"]["text"], seen
    assert receipt["evidence"]["grade"] == "syscall", seen
    assert receipt["evidence"]["quiet_s"] >= 1.0, seen
    assert receipt["evidence"]["cpu_ticks"] <= 5, seen
    assert receipt["effects"]["tree_ended"] is False, seen
    assert all(r["wait"] == receipt["id"] for r in resolutions(seen.receipts)), seen
    assert seen.status is None, seen
