"""The commands that agents run here: some ask, some do not.

Every one runs in a directory of its own, where ``kit`` leads to the files below.
"""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

_FILES = {
    "victim": "",
    "notes": "".join(f"line {n}\n" for n in range(400)),
    "ask.mk": "all:\n\t@printf 'Overwrite the old build? '; read answer\n",
    "jobs.mk": "all: a b c\na b c:\n\t@sleep 300\n",
    "outer.sh": "sh kit/inner.sh\necho done\n",
    "inner.sh": "printf 'Deploy now? '\nread answer\necho deploying\n",
    # It watches its input while its child works.
    "busy.py": "import select, subprocess, sys\n"
    "child = subprocess.Popen(['sleep', '300'], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)\n"
    "poll = select.poll()\n"
    "poll.register(0, select.POLLIN)\n"
    "poll.register(child.stdout, select.POLLIN)\n"
    "while True:\n"
    "    for fd, _ in poll.poll():\n"
    "        poll.unregister(fd)\n",
    # A terminal window with an idle shell, which leaves the command that opened it.
    "window.py": "import os, pty\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        pid, master = pty.fork()\n"
    "        if pid == 0:\n"
    "            os.execvp('bash', ['bash', '-i'])\n"
    "        print(pid, file=open('shell', 'w'), flush=True)\n"
    "        os.write(master, b'echo hello\\n')\n"
    "        while os.read(master, 4096):\n"
    "            pass\n",
    # One reads lines of JSON (MCP), one headers and bodies (LSP); both answer and wait.
    "mcp.py": "import json, sys\n"
    "for line in sys.stdin:\n"
    "    request = json.loads(line)\n"
    "    print(json.dumps({'jsonrpc': '2.0', 'id': request['id'], 'result': {}}), flush=True)\n",
    "lsp.py": "import json, sys\n"
    "while header := sys.stdin.buffer.readline():\n"
    "    length = int(header.split(b':')[1])\n"
    "    sys.stdin.buffer.readline()\n"
    "    request = json.loads(sys.stdin.buffer.read(length))\n"
    "    body = json.dumps({'jsonrpc': '2.0', 'id': request['id'], 'result': {}})\n"
    "    print(f'Content-Length: {len(body)}\\r\\n\\r\\n{body}', end='', flush=True)\n",
}

_REQUEST = '{"jsonrpc": "2.0", "id": 1, "method": "initialize"}'
MCP_REQUEST = f"{_REQUEST}\n"
LSP_REQUEST = f"Content-Length: {len(_REQUEST)}\r\n\r\n{_REQUEST}"


@dataclass(frozen=True)
class Command:
    """One command line. ``kind`` is what it asks for on a terminal, empty if it never asks.

    ``program`` is who asks. ``reopened`` asks at the controlling terminal where the standard
    input is closed; empty where the command does so by itself, or cannot.
    """

    name: str
    text: str
    kind: str = ""
    program: str = ""
    reopened: str = ""


def _asks(name, text, program, kind="line"):
    return Command(name, text, kind, program, f"{text} </dev/tty")


ASKS = (
    _asks("rm", "rm -i kit/victim", "rm"),
    _asks("input", "python3 -c 'input(\"Your name: \")'", "python3"),
    _asks("read", "bash -c 'read -p \"Continue? [y/N] \" answer; echo $answer'", "bash"),
    _asks("git", "git -C repo add -p", "git"),
    Command("openssl", "openssl genrsa -aes256 512", "secret", "openssl"),
    Command("vim", "vim -u NONE -n kit/notes", "screen", "vim"),
    Command("less", "less kit/notes", "screen", "less"),
    _asks("make", "make -f kit/ask.mk", "sh"),
    _asks("grandchild", "sh kit/outer.sh", "sh"),
    _asks("select", "bash -c 'select fruit in apple pear; do break; done; echo $fruit'", "bash"),
    _asks("late", "bash -c 'sleep 1.5; printf \"Really? \"; read answer; echo $answer'", "bash"),
)

WRONG_END = Command(
    "wrong-end", "vim -u NONE -n kit/notes </dev/null 2>&1 | cat", kind="dead", program="vim"
)
"""An editor whose output is taken for its input: nobody can ever answer it, whatever the wiring."""

SILENT = (
    Command("sleep", "sleep 300"),
    Command("work", "nice -n 19 timeout 9 python3 -c 'while True: pass'"),
    Command("follow", "tail -f kit/notes"),
    Command("pipeline", "(sleep 300; echo x) | cat"),
    Command("http", "python3 -m http.server --bind 127.0.0.1 0"),
    Command("jobs", "make -j4 -f kit/jobs.mk"),
    Command("progress", "printf 'Downloading 41%%... '; sleep 300"),
    Command("wait", "bash -c 'sleep 300 & wait'"),
    Command("lock", "bash -c 'flock lock sleep 300 & sleep 0.3; flock lock true; echo x'"),
    Command("substitution", "bash -c 'cat <(sleep 300)'"),
    Command("loop", "bash -c 'while [ ! -e never ]; do sleep 0.5; done'"),
    Command("busy", "python3 kit/busy.py"),
    Command("event", "python3 -c 'import threading; threading.Event().wait()'"),
)


def make_kit(directory: Path, environment) -> Path:
    """Write the files; returns a repository with a change that is not staged."""
    directory.mkdir()
    for name, text in _FILES.items():
        (directory / name).write_text(text)
    repository = directory / "repo"
    repository.mkdir()

    def git(*arguments):
        who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
        subprocess.run(
            ("git", *who, *arguments),
            cwd=repository,
            env=environment,
            check=True,
            capture_output=True,
        )

    git("init", "-q", "--template=")
    (repository / "file").write_text("old\n")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    (repository / "file").write_text("new\n")
    return repository


def lay_out(directory: Path, kit: Path, name: str) -> None:
    """Make the directory of one command."""
    directory.mkdir(parents=True)
    os.symlink(kit, directory / "kit")
    if name.startswith("git"):
        subprocess.run(("cp", "-r", str(kit / "repo"), str(directory)), check=True)
