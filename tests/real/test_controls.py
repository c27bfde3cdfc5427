"""Commands that do not ask: none of them ever gives a receipt.

The commands run side by side (see ``Batch``), each for at least four seconds of
observation or to its own end; each test reads the result of its own.
"""

import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from .support import Batch, Started, Trial, descendants, need

pytestmark = pytest.mark.kernel

WATCHED: Final = 4.0
"""Seconds a control is watched: three chances to be taken for a wait."""

GOES_ON: Final = None


@dataclass(frozen=True)
class Control:
    """A command that does not ask.

    ``status`` is its exit status where it ends by itself; a control that goes on has to
    be running when the time is over, else it has not shown anything. ``shown`` is a
    part of its output, for the same reason.
    """

    name: str
    command: str
    wirings: tuple[str, ...] = ("tty", "pipe")
    status: int | None = GOES_ON
    shown: str = ""
    needs: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    setup: str = ""
    feed: bytes | None = None


def python(name: str, text: str, **more: Any) -> Control:
    """A Python script that does not ask."""
    return Control(name, "exec python3 -u s.py", files={"s.py": text}, **more)


CASES: Final = (
    # interactive shells idle at their prompt, and an agent's persistent shell between two calls
    Control("idle bash", "exec bash --norc -i", shown="bash"),
    Control("idle dash", "exec dash -i", shown="#"),
    Control("idle bash after a command", "exec bash --norc -i", ("tty",), shown="hello",
            feed=b"echo hel''lo\n"),
    Control("idle bash with a background job", "exec bash --norc -i", ("tty",), shown="hello",
            feed=b"sleep 60 & echo hel''lo\n"),
    Control("idle bash below script", "script -qec 'bash --norc -i' /dev/null", shown="bash",
            needs=("script",)),
    Control("idle persistent bash", "exec bash", ("pipe",), shown="hello", feed=b"echo hello\n"),
    Control("persistent bash at work", "exec bash", ("pipe",), shown="begun",
            feed=b"echo begun; sleep 60\n"),
    # roots that are fed: they have read from their channel and owe no answer
    Control("stdio server", "exec python3 -u s.py", ("pipe",), shown='{"id":1}',
            feed=b'{"id":1}\n', files={"s.py": "import sys\nfor l in sys.stdin: print(l)\n"}),
    Control("stdio server in node", "exec node s.js", ("pipe",), shown='{"id":1}',
            feed=b'{"id":1}\n', needs=("node",),
            files={"s.js": "process.stdin.on('data', d => process.stdout.write(d));\n"}),
    Control("stdio server with asyncio", "exec python3 s.py", ("pipe",), shown='{"id":1}',
            feed=b'{"id":1}\n',
            files={"s.py": "import asyncio, sys\n"
                           "async def main():\n"
                           "    reader = asyncio.StreamReader()\n"
                           "    loop = asyncio.get_running_loop()\n"
                           "    await loop.connect_read_pipe(\n"
                           "        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)\n"
                           "    while line := await reader.readline():\n"
                           "        print(line.decode(), end='', flush=True)\n"
                           "asyncio.run(main())\n"}),
    # slow, quiet or sleeping
    Control("sleep", "exec sleep 60"),
    Control("quiet compile", "gcc -O2 -c big.c -o big.o && sleep 60", needs=("gcc",),
            setup="{ echo 'int f(int x){'; for i in {1..4000}; do "
                  "echo \"x=x*$((i % 97 + 3))+(x>>$((i % 7 + 1)));\"; done; echo 'return x;}'; "
                  "} > big.c"),
    python("quiet computation", "while True: pass\n"),
    Control("poll loop", "while :; do sleep 0.2; done"),
    python("busy end of file", "while True: open('/dev/null').read()\n"),
    Control("tail -f", "exec tail -f f", files={"f": "log\n"}, shown="log"),
    Control("tail -f /dev/null", "exec tail -f /dev/null"),
    Control("watch", "exec watch -n 5 date", ("tty",), needs=("watch",), shown="Every 5"),
    Control("flock", "flock l sleep 60 & until ! flock -n l true; do :; done; exec flock l true",
            needs=("flock",)),
    Control("wait for a job", "sleep 60 & wait"),
    python("signal.pause", "import signal\nsignal.pause()\n"),
    python("futex", "import threading\nthreading.Event().wait(60)\n"),
    python("waits for a child", "import subprocess\nsubprocess.run(['sleep', '60'])\n"),
    # readers whose producer is in the tree
    Control("slow producer", "(sleep 60; echo x) | cat"),
    Control("slow producer that answers", "(sleep 2.5; echo x) | cat", status=0, shown="x"),
    Control("tee", "(sleep 60; echo x) | tee log"),
    Control("xargs", "(sleep 60; echo x) | xargs echo"),
    Control("process substitution", "exec cat < <(sleep 60)"),
    Control("coprocess", "coproc { sleep 60; }; read x <&${COPROC[0]}"),
    Control("fifo", "mkfifo p; (sleep 60 > p) & exec cat p"),
    Control("fifo without a writer", "mkfifo p; exec cat p"),
    Control("make jobserver", "make -j2 -s", needs=("make",),
            files={"Makefile": "all: a b c\na b c:\n\t@sleep 60\n"}),
    Control("command substitution", "x=$(sleep 60; echo y)"),
    python("socketpair to a child",
           "import socket, subprocess\na, b = socket.socketpair()\n"
           "subprocess.Popen(['sleep', '60'], stdin=b); b.close(); a.recv(1)\n"),
    # a program that keeps its input in the wait set while it works
    python("watches its input while a child works",
           "import select, subprocess, sys\n"
           "p = subprocess.Popen(['sleep', '60'], stdout=-1, stdin=-3)\n"
           "print('building...')\n"
           "while p.poll() is None: select.select([0, p.stdout], [], [], 1)\n",
           shown="building..."),
    Control("node watches its input while a child sleeps", "exec node s.js", needs=("node",),
            files={"s.js": "process.stdin.resume();\n"
                           "require('child_process').spawn('sleep', ['60']);\n"}),
    python("watches its input while a thread works",
           "import asyncio, time\nasync def main():\n"
           "    asyncio.get_running_loop().add_reader(0, lambda: None)\n"
           "    print('building...')\n    await asyncio.to_thread(time.sleep, 60)\n"
           "asyncio.run(main())\n", shown="building..."),
    Control("node watches its input while its thread pool works", "mkfifo p; exec node s.js",
            needs=("node",), files={"s.js": "process.stdin.resume();\n"
                                            "require('fs').readFile('p', () => {});\n"}),
    Control("script that sleeps", "script -qec 'sleep 60' /dev/null", needs=("script",)),
    Control("expect that answers after a while",
            "expect -c 'spawn bash -c {read -p Name: x; echo got-$x}; sleep 2.5; "
            "send y\\r; expect eof'", status=0, shown="got-y", needs=("expect",)),
    # outside descriptors
    python("web server", "import http.server\n"
           "http.server.HTTPServer(('127.0.0.1', 0), None).serve_forever()\n"),
    Control("web server in node", "exec node -e "
            "\"require('http').createServer().listen(0, '127.0.0.1')\"", needs=("node",)),
    python("dev server that listens to keys",
           "import select, socket\ns = socket.create_server(('127.0.0.1', 0))\n"
           "print('press h to show help')\nselect.select([0, s], [], [])\n", shown="press h"),
    python("accept", "import socket\nsocket.create_server(('127.0.0.1', 0)).accept()\n"),
    python("silent network server",
           "import os, socket\n"
           "socket.create_connection(('127.0.0.1', int(os.environ['PORT']))).recv(1)\n"),
    python("relay between its input and the network",
           "import os, select, socket\n"
           "s = socket.create_connection(('127.0.0.1', int(os.environ['PORT'])))\n"
           "print('password: ', end='')\nselect.select([0, s], [], [])\n", shown="password: "),
    python("silent local server",
           "import os, socket\ns = socket.socket(socket.AF_UNIX)\n"
           "s.connect(os.environ['LOCAL']); s.recv(1)\n"),
    python("relay between its input and a local server",
           "import os, select, socket\ns = socket.socket(socket.AF_UNIX)\n"
           "s.connect(os.environ['LOCAL']); select.select([0, s], [], [])\n"),
    python("inotify beside its input",
           "import ctypes, select\nfd = ctypes.CDLL(None).inotify_init1(0)\n"
           "ctypes.CDLL(None).inotify_add_watch(fd, b'.', 0x100)  # IN_CREATE\n"
           "print('watching, rs to restart: ', end='')\nselect.select([0, fd], [], [])\n",
           shown="watching"),
    # output that looks like a question
    Control("unfinished line", "printf 'Checking database connection: '; exec sleep 60",
            shown="connection: "),
    Control("line that ends in a question mark", "echo 'Continue? [y/N]'; exec sleep 60",
            shown="[y/N]"),
    python("spinner", "import itertools, time\nfor c in itertools.cycle('|/-'):\n"
           "    print('\\r' + c + ' working? ', end='', flush=True); time.sleep(0.1)\n",
           shown="working?"),
    python("progress bar", "import time\nfor n in range(600):\n"
           "    print(f'\\r{n} % [#####     ]', end='', flush=True); time.sleep(0.3)\n",
           shown="%"),
    # echo switched off without a blocked reader
    Control("echo off", "stty -echo; printf 'Password: '; exec sleep 60", ("tty",),
            shown="Password: "),
    Control("raw terminal without a reader", "stty raw -echo; exec sleep 60", ("tty",)),
    # readers that get what they wait for
    Control("closed input", "exec cat < /dev/null", ("tty", "pipe", "null"), status=0),
    Control("reads a file", "exec sort f", ("tty", "pipe", "null"), status=0, files={"f": "b\na\n"}),
    python("short time-outs that act",
           "import select, time\nwhile True:\n"
           "    select.select([0], [], [], 0.2); print('.', end='', flush=True)\n", shown="..."),
)  # fmt: skip


def _trials() -> Iterator[Any]:
    for case in CASES:
        for wiring in case.wirings:
            trial = Trial(case.name, case.command, wiring, case.files, case.setup, feed=case.feed)
            yield pytest.param(case, trial, id=f"{case.name} - {wiring}")


def _long_enough() -> Callable[[Started], bool]:
    since: list[float] = []

    def enough(command: Started) -> bool:
        if not since and descendants(command.process.pid):  # the command was started
            since.append(time.monotonic())
        return bool(since and time.monotonic() - since[0] > WATCHED)

    return enough


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Two servers that take connections and say nothing: a network one and a local one."""
    path = Path(tmp_path_factory.mktemp("s"), "local")
    with socket.create_server(("127.0.0.1", 0)) as network, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(path))
        local.listen()
        yield {"PORT": str(network.getsockname()[1]), "LOCAL": str(path)}


@pytest.fixture(scope="module")
def batch(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    silent: dict[str, str],
) -> Iterator[Batch]:
    """All controls that were selected, running."""
    running = Batch(env=silent)
    for item in request.session.items:
        if not isinstance(item, pytest.Function) or item.module is not request.module:
            continue
        case, trial = item.callspec.params["case"], item.callspec.params["trial"]
        if all(map(shutil.which, case.needs)):
            running.add(trial, tmp_path_factory.mktemp("c"), _long_enough)
    yield running
    running.close()


@pytest.mark.parametrize(("case", "trial"), list(_trials()))
def test_a_command_that_does_not_ask_gives_no_receipt(
    case: Control, trial: Trial, batch: Batch
) -> None:
    """Nothing at all is written, and the command was really there to be misjudged."""
    need(*case.needs)
    seen = batch[trial]
    assert seen.receipts == [], seen
    assert seen.status == case.status, seen
    assert case.shown in seen.output.decode(errors="replace"), seen
