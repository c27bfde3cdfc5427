"""``receipt-trace watch`` beside stand-in harnesses of the published process shapes.

What must stay silent is shown beside a witness: a second tool call that asks, started
later, whose receipt says that the watcher has looked at both for long enough.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

import pytest

import receipt_trace

from .support import (
    BOUND,
    RECEIPT_TRACE,
    Watcher,
    descendants,
    end,
    environment,
    eventually,
    gone,
    how,
    kill,
    need,
    never,
    parse,
    state,
    waits,
)

pytestmark = pytest.mark.kernel

# A harness: it starts what it is told over its channel, as it is told, and keeps the other
# ends. Each request is a line of JSON; the answer is the process number.
HARNESS: Final = """\
import json, os, socket, subprocess, sys
kept = []
channel = socket.socket(fileno=int(sys.argv[1]))
for line in channel.makefile("r"):
    asked = json.loads(line)
    stdin = stdout = stderr = theirs = None
    match asked["stdin"]:
        case "socketpair":
            ours, theirs = socket.socketpair()
            stdin = theirs.fileno()
        case "pipe":
            theirs, ours = os.pipe()
            stdin = theirs
        case "pty":
            ours, theirs = os.openpty()
            stdin = stdout = stderr = theirs
        case "inherit":
            ours = None
        case "null":
            stdin, ours = subprocess.DEVNULL, None
    kept.append(ours)
    if stdout is None:
        stdout = stderr = open(asked["output"], "ab") if asked["output"] else subprocess.DEVNULL
    argv = ["setsid", "--ctty", *asked["argv"]] if asked["stdin"] == "pty" else asked["argv"]
    child = subprocess.Popen(
        argv, stdin=stdin, stdout=stdout, stderr=stderr, cwd=asked["cwd"],
        env={**os.environ, **asked["env"]},
        start_new_session=asked["session"] and asked["stdin"] != "pty",
    )
    kept.append(child)
    if isinstance(theirs, int):
        os.close(theirs)
    elif theirs is not None:
        theirs.close()
    channel.sendall(f"{child.pid}\\n".encode())
"""

CLAUDE: Final = {
    "AI_AGENT": "claude-code_2-1-332_agent",
    "CLAUDECODE": "1",
    "CLAUDE_CODE_SESSION_ID": "session-1",
    "CLAUDE_CODE_CHILD_SESSION": "1",
}
CLAUDE_OWN: Final = CLAUDE | {"AI_AGENT": "claude-code_2-1-332_harness"}
CODEX: Final = {"CODEX_CI": "1", "CODEX_THREAD_ID": "thread-1", "TERM": "dumb", "PAGER": "cat"}
GEMINI: Final = {"GEMINI_CLI": "1", "PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}

ASK: Final = "python3 -c 'input(\"name? \")'"


class Harness:
    """A stand-in for an agent: a Python program of that name."""

    def __init__(self, directory: Path, name: str, stdin: int | None = subprocess.DEVNULL) -> None:
        self._directory = directory
        script = directory / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(HARNESS)
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(BOUND)
        with theirs:
            self.process = subprocess.Popen(
                ["python3", str(script), str(theirs.fileno())],
                cwd=directory,
                env=environment(directory),
                stdin=stdin,
                pass_fds=(theirs.fileno(),),
            )

    @property
    def pid(self) -> int:
        """Process number of the harness."""
        return self.process.pid

    def start(
        self,
        *argv: str,
        stdin: str = "socketpair",
        env: dict[str, str] | None = None,
        output: str | None = None,
        session: bool = True,
    ) -> int:
        """Start a process as told; returns its number."""
        asked = {"argv": argv, "stdin": stdin, "env": env or {}, "output": output,
                 "session": session, "cwd": str(self._directory)}  # fmt: skip
        self._channel.sendall(json.dumps(asked).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            answer += self._channel.recv(100)
        return int(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        end(self.process)
        self._channel.close()


@pytest.fixture
def claude(tmp_path: Path) -> Iterator[Harness]:
    """A stand-in for Claude Code."""
    with Harness(tmp_path, "claude") as harness:
        yield harness


def tool(harness: Harness, text: str, **more: Any) -> int:
    """A tool call of Claude Code's shape."""
    text = f"true 2>/dev/null || true && eval '{text}' && pwd -P >| cwd"
    options = {"env": CLAUDE, "output": "output"} | more
    return harness.start("bash", "-c", text, **options)


@contextlib.contextmanager
def mini_with_input(tmp_path: Path) -> Iterator[tuple[Harness, int]]:
    """A stand-in for mini-SWE-agent, and what writes to the input it hands to its tool calls."""
    reader, writer = os.pipe()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, writer)
        mini = stack.enter_context(Harness(tmp_path, "mini", stdin=reader))
        os.close(reader)
        yield mini, writer


# -- the agents ------------------------------------------------------------------------


def test_a_tool_call_of_claude_code(tmp_path: Path, claude: Harness) -> None:
    """A socketpair as input, a regular file as output, a session of its own."""
    (tmp_path / "f").touch()
    with Watcher(tmp_path) as watcher:
        root = tool(claude, "rm -i f")
        receipt = watcher.wait(root)
        assert receipt["agent"] == {
            "name": "claude-code", "pid": claude.pid, "session": "session-1",
        }  # fmt: skip
        assert receipt["program"]["name"] == "rm"
        assert (receipt["input"]["kind"], receipt["input"]["wiring"]) == ("stream", "socket")
        assert receipt["prompt"]["text"] == "rm: remove regular empty file 'f'?"
        assert receipt["tree"]["command"][:2] == ["bash", "-c"]
        assert receipt["tree"]["cwd"] == str(tmp_path)
        assert receipt["tree"]["label"] is None
        assert receipt["evidence"]["grade"] == "kernel"
        kill(root)
        assert watcher.wait(root)["id"] == receipt["id"]


def test_hooks_and_servers_of_claude_code_are_silent(tmp_path: Path, claude: Harness) -> None:
    """A hook that has not been given its JSON, an MCP server and a start-up probe do not ask."""
    with Watcher(tmp_path) as watcher:
        hook = claude.start("/bin/sh", "-c", "cat", env=CLAUDE_OWN)
        server = claude.start("python3", "-c", "input()", env=CLAUDE_OWN, session=False)
        probe = claude.start("bash", "-c", "-l", "read x", env={"CLAUDECODE": "1"})
        watcher.wait(tool(claude, "cat"))
        for root in (hook, server, probe):
            assert not gone(root)
            assert watcher.receipts(root) == []
        assert len({r["tree"]["root_pid"] for r in watcher.receipts()} & {hook, server, probe}) == 0


def test_a_tool_call_of_codex(tmp_path: Path) -> None:
    """A terminal that the harness holds."""
    with Harness(tmp_path, "codex") as codex, Watcher(tmp_path) as watcher:
        root = codex.start("bash", "-lc", f"{ASK}; true", stdin="pty", env=CODEX)
        receipt = watcher.wait(root)
        assert receipt["agent"] == {"name": "codex", "pid": codex.pid, "session": "thread-1"}
        assert receipt["program"]["name"] == "python3"
        assert (receipt["input"]["kind"], receipt["input"]["wiring"]) == ("line", "tty")
        assert receipt["input"]["target"].startswith("/dev/pts/")


def test_a_server_of_codex_is_silent(tmp_path: Path) -> None:
    """An MCP server reads a pipe and has no mark."""
    with Harness(tmp_path, "codex") as codex, Watcher(tmp_path) as watcher:
        server = codex.start("python3", "-c", "input()", stdin="pipe")
        watcher.wait(codex.start("bash", "-lc", ASK, stdin="pty", env=CODEX))
        assert not gone(server)
        assert watcher.receipts(server) == []


def test_a_tool_call_of_gemini(tmp_path: Path) -> None:
    """A shell on a terminal of the harness; its MCP server has the same mark and is no shell."""
    with Harness(tmp_path, "gemini.js") as gemini, Watcher(tmp_path) as watcher:
        server = gemini.start("python3", "-c", "input()", env=GEMINI, session=False)
        root = gemini.start(
            "bash", "-c", f"( {ASK} ); __code=$?; exit $__code", stdin="pty", env=GEMINI
        )
        receipt = watcher.wait(root)
        assert (receipt["agent"]["name"], receipt["agent"]["pid"]) == ("gemini-cli", gemini.pid)
        assert receipt["input"]["kind"] == "line"
        assert not gone(server)
        assert watcher.receipts(server) == []


def test_a_tool_call_of_mini_swe_agent(tmp_path: Path) -> None:
    """It inherits the harness's own input, in a session of its own, and marks nothing."""
    with mini_with_input(tmp_path) as (mini, _writer), Watcher(tmp_path) as watcher:
        root = mini.start("/bin/sh", "-c", f"{ASK}; true", stdin="inherit", output="output")
        receipt = watcher.wait(root)
        assert (receipt["agent"]["name"], receipt["agent"]["pid"]) == ("mini-swe-agent", mini.pid)
        assert (receipt["input"]["kind"], receipt["input"]["wiring"]) == ("stream", "pipe")
        assert receipt["prompt"]["text"] == "name?"


def test_a_shell_that_becomes_its_command_is_a_tool_call(tmp_path: Path) -> None:
    """What a shell does with its last command (bash always, here by exec) hides nobody."""
    with mini_with_input(tmp_path) as (mini, _writer), Watcher(tmp_path) as watcher:
        roots = [mini.start("/bin/sh", "-c", "exec cat", stdin="inherit") for _ in range(3)]
        for root in roots:
            receipt = watcher.wait(root, seconds=10)
            assert receipt["agent"]["name"] == "mini-swe-agent"
            assert receipt["program"]["name"] == "cat"


def test_a_harness_that_waits_for_its_user_is_silent(tmp_path: Path) -> None:
    """The agent's own process reads its input: that is its work."""
    reader, writer = os.pipe()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, writer)
        watcher = stack.enter_context(Watcher(tmp_path))
        script = tmp_path / "mini"
        script.write_text("input('> ')")
        with subprocess.Popen(
            ["python3", str(script)], stdin=reader, stdout=subprocess.DEVNULL,
            cwd=tmp_path, env=environment(tmp_path),
        ) as waiting:  # fmt: skip
            os.close(reader)
            stack.callback(end, waiting)
            with Harness(tmp_path, "claude") as claude:
                watcher.wait(tool(claude, "cat"))
            assert not gone(waiting.pid)
            assert watcher.receipts(waiting.pid) == []
            waiting.kill()


def test_a_tool_call_of_node(tmp_path: Path) -> None:
    """What Node itself makes of stdio: 'pipe', detached, is seen as it is."""
    need("node")
    script = tmp_path / "claude.mjs"
    script.write_text(
        "import {spawn} from 'child_process';\n"
        "import fs from 'fs';\n"
        "const out = fs.openSync('output', 'a');\n"
        "const child = spawn('bash', ['-c', 'rm -i f; true'],\n"
        "  {detached: true, stdio: ['pipe', out, out],\n"
        "   env: {...process.env, AI_AGENT: 'claude-code_2-1-332_agent'}});\n"
        "fs.writeFileSync('pid.new', String(child.pid)); fs.renameSync('pid.new', 'pid');\n"
        "setInterval(() => {}, 1000);\n"
    )
    (tmp_path / "f").touch()
    with Watcher(tmp_path) as watcher, subprocess.Popen(
        ["node", str(script)], cwd=tmp_path, env=environment(tmp_path), stdin=subprocess.DEVNULL
    ) as node:  # fmt: skip
        try:
            pid = tmp_path / "pid"
            root = int(eventually(lambda: pid.exists() and pid.read_text(), "node starts it"))
            receipt = watcher.wait(root)
            assert receipt["agent"] == {"name": "claude-code", "pid": node.pid, "session": None}
            assert receipt["program"]["name"] == "rm"
            assert receipt["input"]["wiring"] == "socket"
            assert "remove regular empty file" in receipt["prompt"]["text"]
        finally:
            end(node)


# -- what is named and what is marked --------------------------------------------------


def test_a_named_agent(tmp_path: Path) -> None:
    """Each child of a process that was named is a tool call, those of before and those of later."""
    with Harness(tmp_path, "something.py") as harness:
        before = harness.start("bash", "-c", f"{ASK}; true")
        with Watcher(tmp_path, "--agent", str(harness.pid)) as watcher:
            after = harness.start("bash", "-c", f"{ASK}; true", stdin="pty")
            for root in (before, after):
                receipt = watcher.wait(root)
                assert receipt["agent"]["pid"] == harness.pid
                assert receipt["program"]["name"] == "python3"
            assert {r["tree"]["root_pid"] for r in watcher.receipts()} == {before, after}


def test_a_named_root(tmp_path: Path) -> None:
    """The tree of a process that was named, and nothing else; without it there is no more to do."""
    with Harness(tmp_path, "something.py") as harness, Harness(tmp_path, "claude") as claude:
        root = harness.start("bash", "-c", f"{ASK}; true")
        with Watcher(tmp_path, "--root", str(root)) as watcher:
            other = tool(claude, "cat")
            program = watcher.wait(root)["program"]["pid"]
            assert not gone(other)
            assert {r["tree"]["root_pid"] for r in watcher.receipts()} == {root}
            kill(root)
            kill(program)
            assert watcher.process.wait(BOUND) == 0
            assert how(watcher.receipts(root)) == ["killed"]


def test_a_root_that_is_not_there(tmp_path: Path) -> None:
    """A number nobody has is a mistake of the person who named it."""
    for option in ("--root", "--agent"):
        done = watch(tmp_path, option, "4194305")
        assert done.returncode == 64
        assert b"4194305" in done.stderr


def test_a_marked_tool_call(tmp_path: Path) -> None:
    """RECEIPT_TRACE=label marks a root; its children, with the same mark, are part of it."""
    with Harness(tmp_path, "something.py") as harness, Watcher(tmp_path) as watcher:
        label = f"deploy-{os.getpid()}"
        text = "bash -c 'bash -c cat; true'; true"
        root = harness.start("bash", "-c", text, env={"RECEIPT_TRACE": label})
        receipt = watcher.wait(root)
        assert receipt["tree"]["label"] == label
        assert {r["tree"]["root_pid"] for r in watcher.receipts()
                if r["tree"]["label"] == label} == {root}  # fmt: skip


def test_a_label_cannot_inject(tmp_path: Path) -> None:
    """A mark with a newline and an escape is one line everywhere."""
    with Harness(tmp_path, "something.py") as harness, Watcher(tmp_path) as watcher:
        label = 'evil\n\x1b[31m{"event":"wait"}\n'
        root = harness.start("bash", "-c", f"{ASK}; true", env={"RECEIPT_TRACE": label})
        assert watcher.wait(root)["tree"]["label"] == label
        eventually(lambda: b"evil" in watcher.log, "the wait is told in a line, too")
        assert b"\x1b" not in watcher.log
        assert not any(line.startswith(b'{"event":"wait"}') for line in watcher.log.splitlines())


# -- trees -----------------------------------------------------------------------------


def test_a_daemon_of_the_tree_belongs_to_it(tmp_path: Path, claude: Harness) -> None:
    """Neither a double fork nor a new session gets anybody out of his tree."""
    (tmp_path / "daemon.py").write_text(
        "import os\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "input('orphan? ')\n"
    )
    with Watcher(tmp_path) as watcher:
        root = tool(claude, "python3 daemon.py; sleep 60")
        receipt = watcher.wait(root)
        assert receipt["program"]["name"] == "python3"
        assert receipt["prompt"]["text"].endswith("orphan?")
        orphan = receipt["program"]["pid"]
        assert orphan not in descendants(claude.pid)
        kill(orphan)
        assert watcher.resolved(root)["resolution"]["how"] == "killed"


def test_a_question_at_the_end_of_a_storm(tmp_path: Path, claude: Harness) -> None:
    """500 short processes do not make the watcher lose the tree."""
    with Watcher(tmp_path) as watcher:
        root = tool(claude, "for i in {1..250}; do (:); (: &); done; cat")
        assert watcher.wait(root)["program"]["name"] == "cat"


def test_a_tool_call_that_was_there_before_the_watcher(tmp_path: Path, claude: Harness) -> None:
    """Who comes late sees what is there."""
    root = tool(claude, "cat")
    eventually(lambda: descendants(claude.pid)[1:], "the command waits")
    with Watcher(tmp_path) as watcher:
        receipt = watcher.wait(root)
        assert receipt["agent"]["pid"] == claude.pid
        later = tool(claude, "cat")
        assert watcher.wait(later)["agent"]["pid"] == claude.pid


def test_several_tool_calls_at_once(tmp_path: Path, claude: Harness) -> None:
    """Each has its own receipt."""
    with Watcher(tmp_path) as watcher:
        roots = [tool(claude, "cat") for _ in range(5)]
        assert len({watcher.wait(root)["id"] for root in roots}) == 5
        for root in roots:
            assert len(waits(watcher.receipts(root))) == 1


def test_a_harness_that_dies(tmp_path: Path, claude: Harness) -> None:
    """Its tool call reads the end of its input, and that is what is written down."""
    with Watcher(tmp_path) as watcher:
        root = tool(claude, "cat; sleep 60")
        watcher.wait(root)
        kill(claude.pid)
        assert watcher.resolved(root)["resolution"]["how"] in {"eof", "exited"}
        with Harness(tmp_path, "codex") as other:
            watcher.wait(other.start("bash", "-lc", ASK, stdin="pty", env=CODEX))
        for pid in [root, *descendants(root)]:
            kill(pid)


def test_an_answer_from_the_harness(tmp_path: Path) -> None:
    """A question that is answered is resolved as that, and the next one is a new wait."""
    text = "printf 'first? '; read a; printf 'second? '; read b; sleep 60"
    with mini_with_input(tmp_path) as (mini, writer), Watcher(tmp_path) as watcher:
        root = mini.start("/bin/sh", "-c", text, stdin="inherit", output="output")
        assert watcher.wait(root)["prompt"]["text"] == "first?"
        os.write(writer, b"yes\n")
        assert watcher.wait(root, 2)["prompt"]["text"].endswith("second?")
        os.write(writer, b"yes\n")
        eventually(lambda: len(how(watcher.receipts(root))) == 2, "both are resolved")
        assert how(watcher.receipts(root)) == ["answered", "answered"]
        assert [r["event"] for r in watcher.receipts(root)] == ["wait", "resolved"] * 2


def test_a_root_that_is_fed_is_silent(tmp_path: Path) -> None:
    """A server that took a request and answered it waits for the next one by design."""
    (tmp_path / "server.py").write_text("import sys\nfor line in sys.stdin: print(line, end='')\n")
    with (tmp_path / "served").open("wb") as served, contextlib.ExitStack() as stack:
        server, witness = (
            subprocess.Popen(
                ["python3", "-u", "server.py"], stdin=subprocess.PIPE, stdout=served,
                cwd=tmp_path, env=environment(tmp_path),
            )
            for _ in range(2)
        )  # fmt: skip
        for process in (server, witness):
            stack.enter_context(process)
            stack.callback(process.kill)
        assert server.stdin is not None
        with Watcher(tmp_path, "--root", str(server.pid)) as watcher:
            watcher.wait(server.pid)  # nobody has fed it yet, so it may as well be a question
            server.stdin.write(b"request\n")
            server.stdin.flush()
            assert watcher.resolved(server.pid)["resolution"]["how"] == "answered"
            with Watcher(tmp_path, "--root", str(witness.pid)) as other:
                other.wait(witness.pid)
            never(lambda: len(waits(watcher.receipts(server.pid))) > 1, "it is reported again", 1)
            assert (tmp_path / "served").read_bytes() == b"request\n"


def test_watched_processes_are_left_alone(tmp_path: Path, claude: Harness) -> None:
    """Nothing is signalled, stopped or traced: not while it is watched and not at the end."""
    (tmp_path / "diary.py").write_text(
        "import os, signal\n"
        "diary = os.open('diary', os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n"
        "for n in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:\n"
        "    signal.signal(n, lambda n, _: os.write(diary, b'%d ' % n))\n"
        "os.write(diary, b'ready ')\n"
        "os.read(0, 1)\n"
    )
    with Watcher(tmp_path) as watcher:
        root = tool(claude, "python3 diary.py; true")
        states = set()

        def reported() -> bool:
            for pid in [root, *descendants(root)]:
                states.add(state(pid))
                with contextlib.suppress(OSError):
                    status = Path(f"/proc/{pid}/status").read_text()
                    assert "\nTracerPid:\t0\n" in status
            return bool(waits(watcher.receipts(root)))

        eventually(reported, "the question is reported")
        assert watcher.stop() == 0
        assert not states & {"T", "t"}
        assert not gone(root)
        assert (tmp_path / "diary").read_text() == "ready "


# -- its own life ----------------------------------------------------------------------


def test_the_end_resolves_what_is_open(tmp_path: Path, claude: Harness) -> None:
    """SIGTERM ends it with 0; what still waits then is lost to us, and that is written down."""
    with Watcher(tmp_path) as watcher:
        root = tool(claude, "cat")
        wait = watcher.wait(root)
        assert watcher.stop() == 0
        last = watcher.receipts(root)[-1]
        assert (last["event"], last["resolution"]["how"]) == ("resolved", "lost")
        assert last["wait"] == wait["id"]
        assert last["effects"]["tree_ended"] is False
        assert not gone(root)


def test_once_ends_after_the_first_receipt(tmp_path: Path) -> None:
    """For a script that only wants to know whether."""
    with Harness(tmp_path, "something.py") as harness:
        root = harness.start("bash", "-c", f"{ASK}; true")
        with Watcher(tmp_path, "--root", str(root), "--once") as watcher:
            assert watcher.process.wait(BOUND) == 0
            assert len(waits(watcher.receipts(root))) == 1


def test_a_trace_replays_to_the_same_receipts(tmp_path: Path) -> None:
    """Byte for byte: waits, answers and what was lost, of several trees."""
    with Harness(tmp_path, "something.py") as harness:
        roots = [
            harness.start("bash", "-c", f"{ASK}; true", stdin=kind, output="output")
            for kind in ("socketpair", "pipe", "pty")
        ]
        options = ["--root", *map(str, roots), "--record", str(tmp_path / "trace")]
        with Watcher(tmp_path, *options) as watcher:
            for root in roots:
                watcher.wait(root)
            (first,) = {r["program"]["pid"] for r in watcher.receipts(roots[0])}
            kill(first)
            watcher.resolved(roots[0])
            assert watcher.stop() == 0
            live = watcher.file.read_bytes()
    done = subprocess.run(
        [RECEIPT_TRACE, "replay", str(tmp_path / "trace")],
        env=environment(tmp_path), stdin=subprocess.DEVNULL, capture_output=True,
        timeout=BOUND, check=True,
    )  # fmt: skip
    assert len(parse(live)) == 6
    assert done.stdout == live
    assert done.stderr == b""


def test_a_killed_watcher_leaves_whole_lines(tmp_path: Path, claude: Harness) -> None:
    """After kill -9 the next one picks up what still waits."""
    root = tool(claude, "cat")
    with Watcher(tmp_path) as watcher:
        watcher.wait(root)
        watcher.stop(signal.SIGKILL)
        assert watcher.file.read_bytes().endswith(b"\n")
    with Watcher(tmp_path) as watcher:
        assert watcher.wait(root, 2)["program"]["name"] == "cat"


def test_a_reader_that_leaves_ends_it(tmp_path: Path, claude: Harness) -> None:
    """Piped into something that ends, it ends too, quietly."""
    with subprocess.Popen(
        [RECEIPT_TRACE, "watch", "--json", "--agent", str(claude.pid)],
        cwd=tmp_path, env=environment(tmp_path), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            root = tool(claude, "cat")
            assert parse(process.stdout.readline())[0]["tree"]["root_pid"] == root
            process.stdout.close()
            tool(claude, "cat")
            process.wait(BOUND)
            assert b"Traceback" not in process.stderr.read()
        finally:
            process.kill()


# -- configuration, doctor -------------------------------------------------------------


def watch(directory: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
    """``receipt-trace watch OPTIONS``, to its end."""
    return ours(directory, "watch", *options)


def ours(directory: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    """``receipt-trace WORDS``, to its end."""
    return subprocess.run(
        [RECEIPT_TRACE, *words],
        cwd=directory, env=environment(directory), stdin=subprocess.DEVNULL,
        capture_output=True, timeout=BOUND, check=False,
    )  # fmt: skip


def test_a_good_configuration_is_fine(tmp_path: Path) -> None:
    """--check says so and exits with 0."""
    path = tmp_path / "config.toml"
    path.write_text(
        'source = "procfs"\n[agent.mine]\nharness.program = ["mine"]\ntool.child = true\n'
    )
    done = watch(tmp_path, "--check", "--config", str(path))
    assert done.returncode == 0, done
    assert str(path).encode() in done.stdout


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("colour = 1", ["colour"]),
        ('source = "guess"', ["source", "guess", "procfs"]),
        ("receipts = 7", ["receipts", "7"]),
        ("[agent.x]\ntool.child = 3", ["agent.x.tool.child", "3", "true or false"]),
        ("[agent.x]\ntool.chlid = true", ["agent.x.tool.chlid", "child"]),
        ("[agent.x]\nharness.program = ['x']", ["agent.x"]),
        ("not toml", ["TOML"]),
        ("x = '\udcff'", ["UTF-8"]),
    ],
)
def test_a_bad_configuration_is_named(tmp_path: Path, text: str, named: Sequence[str]) -> None:
    """File, key, value and what is allowed, and 64."""
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    done = watch(tmp_path, "--check", "--config", str(path))
    assert done.returncode == 64
    message = done.stderr.decode()
    assert all(word in message for word in [str(path), *named]), message
    assert "Traceback" not in message


def test_a_configuration_that_is_not_there(tmp_path: Path) -> None:
    """A file that was named has to be there."""
    done = watch(tmp_path, "--check", "--config", "missing.toml")
    assert done.returncode == 64
    assert b"missing.toml" in done.stderr


def test_an_agent_of_the_configuration_is_found(tmp_path: Path) -> None:
    """A registry entry of one's own is as good as ours."""
    (tmp_path / "config.toml").write_text(
        '[agent.mine]\nharness.program = ["mine"]\ntool.env = { MINE = "yes-*" }\n'
        'session = "MINE_SESSION"\n'
    )
    with (
        Watcher(tmp_path, "--config", str(tmp_path / "config.toml")) as watcher,
        Harness(tmp_path, "mine") as mine,
    ):
        env = {"MINE": "yes-1", "MINE_SESSION": "s"}
        root = mine.start("bash", "-c", f"{ASK}; true", env=env)
        assert watcher.wait(root)["agent"] == {"name": "mine", "pid": mine.pid, "session": "s"}


def test_the_doctor_is_content(tmp_path: Path) -> None:
    """0 where something can be observed, with a line for each finding."""
    done = ours(tmp_path, "doctor")
    assert done.returncode == 0, done
    assert b"source: bpf" in done.stdout
    done = ours(tmp_path, "doctor", "--json")
    assert done.returncode == 0
    report = json.loads(done.stdout)
    assert report["usable"] is True
    assert {c["state"] for c in report["checks"]} <= {"yes", "partly", "no"}
    for check in report["checks"]:
        assert check["seen"]
        assert check["state"] == "yes" or (check["instead"] and check["remedy"])


@pytest.mark.parametrize(
    "words",
    [["--version"], ["--help"], ["run", "--help"], ["watch", "--help"], ["replay", "--help"],
     ["doctor", "--help"], ["watch", "--agents"]],
)  # fmt: skip
def test_help_is_help(tmp_path: Path, words: list[str]) -> None:
    """On stdout, with 0."""
    done = ours(tmp_path, *words)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout
    if words == ["--version"]:
        assert receipt_trace.__version__ in done.stdout.decode()


@pytest.mark.parametrize(
    "words",
    [[], ["dance"], ["watch", "--root", "x"], ["watch", "--root", "0"], ["watch", "extra"],
     ["replay"], ["replay", "missing"], ["replay", "/"], ["replay", "/dev/null"],
     ["replay", sys.executable], ["doctor", "--loud"], ["watch", "--receipts", "missing/file"],
     ["watch", "--record", "missing/file"]],
)  # fmt: skip
def test_bad_usage_is_64(tmp_path: Path, words: list[str]) -> None:
    """In lines of ours, each printable, without a traceback."""
    done = ours(tmp_path, *words)
    assert done.returncode == 64, done
    lines = done.stderr.decode().splitlines()
    assert lines
    assert all(line.startswith("receipt-trace: ") and line.isprintable() for line in lines), lines
