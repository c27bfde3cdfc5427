"""Tool calls that are over before anybody can look: known by what the kernel told of their beginning."""

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from .support import BOUND, PRIVATE_TRACEFS, Watcher, end, environment, eventually, need

pytestmark = pytest.mark.kernel

CALLS: Final = 20
AGENT: Final = "brief-agent.py"

# An agent that is there for a while, and makes its calls when a line comes.
EACH_IN_A_SHELL: Final = f"""\
import os, subprocess, sys
sys.stdin.readline()
for _ in range({CALLS}):
    open("f", "w").close()
    subprocess.run(
        ["bash", "-c", sys.argv[1]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True, env={{**os.environ, "BRIEF": "1"}},
    )
sys.stdin.readline()
"""
ALL_IN_ONE_SHELL: Final = f"""\
import os, subprocess, sys
shell = subprocess.Popen(
    ["bash", "--norc"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    stderr=subprocess.STDOUT, start_new_session=True, env={{**os.environ, "BRIEF": "1"}},
)
shell.stdin.write("sleep 1000 &\\n")  # by which one sees that the shell is known
shell.stdin.flush()
sys.stdin.readline()
shell.stdin.write("kill $!; wait\\n")
for _ in range({CALLS}):
    open("f", "w").close()
    shell.stdin.write(sys.argv[1] + "; echo; echo over\\n")
    shell.stdin.flush()
    while shell.stdout.readline() != "over\\n":
        pass
sys.stdin.readline()
shell.communicate()
"""


def told(
    directory: Path, agent: str, shape: str, command: str, known: bytes = b'"agent_found"'
) -> list[dict[str, Any]]:
    """The receipts of as many calls of a command, one after the other, below a known agent.

    ``known`` is what the watcher logs when it knows all that it needs.
    """
    need("unshare", "bash")
    (directory / AGENT).write_text(agent)
    config = directory / "config.toml"
    config.write_text(
        f'[agent.brief]\nharness.path = ["{AGENT}"]\n'
        f'tool = {{ env = {{ BRIEF = "1" }}, session = true, {shape} }}\n'
    )
    options = (
        "--source", "bpf", "--capture", "text", "--socket", "off", "--config", str(config), "-v",
    )  # fmt: skip
    with Watcher(directory, *options, before=PRIVATE_TRACEFS) as watcher:
        process = subprocess.Popen(
            [sys.executable, AGENT, command],
            cwd=directory, env=environment(directory), stdin=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        try:
            eventually(lambda: known in watcher.log, lambda: f"{known!r} in {watcher.log!r}")
            process.stdin.write(b"\n")
            process.stdin.flush()
            eventually(
                lambda: len(watcher.receipts()) >= CALLS,
                lambda: f"{CALLS} receipts: {len(watcher.receipts())}; {watcher.log[-500:]!r}",
            )
            process.stdin.close()
            process.wait(BOUND)
        finally:
            end(process)
        return watcher.receipts()


@pytest.mark.parametrize(
    ("command", "status"),
    [
        pytest.param("rm -i f", 0, id="the shell becomes it"),
        pytest.param("true; rm -i f; exit 3", 0, id="the shell starts it"),
        pytest.param("printf 'Sure? '; read x; exit 3", 3, id="the shell asks"),
    ],
)
def test_every_short_call_that_asks_is_told_once(command: str, status: int, tmp_path: Path) -> None:
    """With all that a receipt has: whose call it was, what was called, who asked what, and how it ended."""
    receipts = told(tmp_path, EACH_IN_A_SHELL, "shell = true", command)
    assert len({r["tree"]["root_pid"] for r in receipts}) == len(receipts) == CALLS
    for receipt in receipts:
        assert receipt["event"] == "eof"
        assert receipt["agent"]["name"] == "brief"
        assert receipt["tree"]["command"] == ["bash", "-c", command]
        assert receipt["tree"]["uid"] == 0
        assert receipt["prompt"]["text"] in ("rm: remove regular empty file 'f'?", "Sure?")
        assert receipt["resolution"]["exit_status"] == status


def test_a_short_command_of_a_persistent_shell_is_told_once(tmp_path: Path) -> None:
    """It is a call of its own; the shell, which reads its commands, is none."""
    receipts = told(
        tmp_path, ALL_IN_ONE_SHELL, "persistent = true", "rm -i f </dev/null", b'"tree_started"'
    )
    assert [r["event"] for r in receipts] == ["eof"] * CALLS
    assert {r["program"]["name"] for r in receipts} == {"rm"}
    assert {tuple(r["tree"]["command"]) for r in receipts} == {("rm", "-i", "f")}
