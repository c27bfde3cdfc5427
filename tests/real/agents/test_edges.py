"""What happens around tool calls: nesting, leaving, starting late, and what cannot be seen."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from .kit import SILENT
from .stage import WINDOW, Watcher, is_below, is_of, until
from .table import AGENTS, MARKED, Agent, Item, items

pytestmark = pytest.mark.kernel

_AGENTS = {agent.key: agent for agent in AGENTS}
_CLAUDE, _CODEX = _AGENTS["claude-code-open"], _AGENTS["codex-terminal"]
_BEFORE = (
    "claude-code-open", "codex-terminal", "gemini-cli", "gptme", "kimi-cli", "mini-swe-agent",
    "openhands", "terminus-2",
)  # fmt: skip
_EARLY = ("read", "wrong-end", "read-reopened", "make", "pipeline", "wait", "mcp", "lsp", "idle")
_LATEST = 8.0  # until a question that comes after two seconds is missed
_NOBODY = 65534


def item(agent: Agent, name: str, text: str) -> Item:
    """A command of an agent."""
    return Item(name, agent.shell(text), agent.stdio, agent.session, agent.marks, kind="any")


@dataclass
class Scene:
    """One stand-in of this module, and what the watcher knows of it."""

    run: object
    watcher: Watcher

    def waits(self, name=""):
        """The waits reported of one command, or of all."""
        place = self.run.directory / name if name else self.run.directory
        return [r for r in self.watcher.receipts() if is_of(r, place)]

    def pid(self, name):
        """The process that the agent started for a command."""
        return self.run.outcomes[name].pid


class Scenes:
    """All stand-ins of this module: they play at the same time."""

    def __init__(self, stage):
        self.stage = stage
        self.scenes = {}
        self._watchers = []

    def start(self, place, agent, chosen, watcher=None):
        """Start one; it is there when this returns."""
        run = self.stage.start(agent, chosen, place)
        until(lambda: self.stage.reported(run), 30, f"{place} starts all")
        self.stage.know(run)
        scene = self.scenes[place] = Scene(run, watcher or self.stage.watcher)
        return scene

    def watcher(self, directory, *options, **more):
        """One more watcher."""
        watcher = Watcher(directory, *options, **more)
        self._watchers.append(watcher)
        return watcher

    def close(self):
        """End all."""
        for scene in self.scenes.values():
            self.stage.finish(scene.run)
        for watcher in self._watchers:
            watcher.close()


@pytest.fixture(scope="module")
def scenes(stage):
    """Everything that the tests of this module look at, when nothing new comes any more."""
    made = Scenes(stage)
    try:
        _start_all(made)
        time.sleep(WINDOW)
        yield made
    finally:
        made.close()


def _start_all(made):
    directory = made.stage.directory
    for key in _BEFORE:  # these play before their watcher is there
        agent = _AGENTS[key]
        made.start(f"before-{key}", agent, [i for i in items(agent) if i.name in _EARLY])
    time.sleep(1.5)  # their servers answer their first request, their commands ask
    late = made.watcher(directory / "late-watcher")
    for key in _BEFORE:
        made.scenes[f"before-{key}"].watcher = late
    for starter in (_nested, _leaving, _unusual, _own):
        starter(made)


def _nested(made):
    inner = replace(_CLAUDE, relaunch="", terminal=False)
    where = made.stage.directory / "runs" / "inner"
    asking = item(inner, "inner-asks", "rm -i kit/victim; true")
    made.stage.lay(where, [asking])
    argv, variables = made.stage.plan(inner, [asking], where)
    text = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    alone = made.stage.directory / "runs" / "alone"
    alone.mkdir(parents=True)
    codex = replace(_AGENTS["codex-terminal"], relaunch="", program="native:codex")
    lonely, more = made.stage.plan(codex, [], alone)
    words = " ".join(f"{name}={shlex.quote(value)}" for name, value in more.items())
    made.start(
        "outer",
        _CODEX,
        [
            item(_CODEX, "starts-claude", f"{text} {shlex.join(argv)}; true"),
            item(_CODEX, "starts-codex", f"{words} {shlex.join(lonely)}; true"),
        ],
    )
    until((where / "report").exists, 20, "the inner agent starts")


def _leaving(made):
    made.start("leaving", _CLAUDE, [item(_CLAUDE, "window", "python3 kit/window.py; true")])
    aider = _AGENTS["aider-piped"]
    scene = made.start("killed", aider, [item(aider, "asks", "rm -i kit/victim; true")])
    until(lambda: scene.waits("asks"), _LATEST, "the question is reported")
    os.kill(scene.run.pid, signal.SIGKILL)
    # It is goose for a moment, and then somebody else, who starts what looks like its tool call.
    goose = replace(_AGENTS["goose"], program="native:goose", becomes="nobody-in-particular")
    made.start("becomes", goose, [item(goose, "asks", "read answer </dev/tty; true")])


def _unusual(made):
    long = f"rm -i kit/victim; : '{'x' * 100_000}'"
    made.start("long", _CODEX, [item(_CODEX, "asks", long)])
    for name, marks in MARKED:
        marked = replace(_AGENTS["qwen-code"], key=name, name=name, own={}, marks=marks)
        marked = replace(marked, program=f"native:{name}-stand-in", relaunch="")
        silent = [item(marked, c.name, c.text) for c in SILENT[:4]]
        asking = item(marked, "asks", "rm -i kit/victim; true")
        made.start(f"marked-{name}", marked, [asking, *(replace(i, kind="") for i in silent)])


def _own(made):
    config = made.stage.directory / "config.toml"
    config.write_text(
        "[agent.my-agent]\n"
        'harness.program = ["my-agent"]\n'
        "tool.child = true\n"
        "tool.shell = true\n"
        'session = "MY_SESSION"\n'
    )
    watcher = made.watcher(made.stage.directory / "own-watcher", "--config", str(config))
    mine = replace(
        _AGENTS["mini-swe-agent"], key="my-agent", program="native:my-agent",
        marks={"MY_SESSION": "number one"}, own={},
    )  # fmt: skip
    silent = item(mine, "sleeps", "sleep 300; true")
    made.start("own", mine, [item(mine, "asks", "rm -i kit/victim; true"), silent], watcher)


# -- nesting ---------------------------------------------------------------------------------------


def test_a_tool_call_of_an_inner_agent_is_the_inner_agents(scenes):
    """The innermost counts: Claude Code started by Codex, and its command asks."""
    inner = scenes.stage.directory / "runs" / "inner"
    (wait,) = [r for r in scenes.stage.watcher.receipts() if is_of(r, inner)]
    assert wait["agent"]["name"] == "claude-code"
    pids = scenes.stage.pids(inner)
    assert (wait["agent"]["pid"], wait["tree"]["root_pid"]) == (pids["self"], pids["inner-asks"])


def test_an_inner_agent_that_waits_for_its_user_is_asking(scenes):
    """Codex started by Codex reads its input, which is the outer one's to give."""
    outer = scenes.scenes["outer"]
    (wait,) = outer.waits("starts-codex")
    assert wait["agent"]["name"] == "codex"
    assert wait["agent"]["pid"] == outer.run.pid
    assert wait["tree"]["root_pid"] == outer.pid("starts-codex")


# -- leaving ---------------------------------------------------------------------------------------


_MINI = """
import subprocess, time
call = "exec 3<&0; bash -c 'sleep 1; read answer <&3; true' & echo $$ > root; sleep 0.3"
subprocess.run(call, shell=True, start_new_session=True)
time.sleep(60)
"""


def test_a_command_in_the_background_is_still_the_tool_call_that_started_it(stage):
    """It asks when the call has long returned."""
    place = stage.directory / "behind"
    place.mkdir()
    (place / "mini").write_text(_MINI)
    reader, writer = os.pipe()  # nobody writes
    command = [sys.executable, "mini"]
    harness = subprocess.Popen(command, cwd=place, stdin=reader, stdout=subprocess.PIPE)
    try:
        waits = lambda: [r for r in stage.watcher.receipts() if is_of(r, place)]  # noqa: E731
        until(waits, _LATEST, "the question in the background")
        (wait,) = waits()
        assert wait["agent"]["name"] == "mini-swe-agent"
        assert wait["tree"]["root_pid"] == int((place / "root").read_text())
        assert wait["program"]["name"] == "bash"
    finally:
        os.close(writer)
        harness.kill()
        harness.communicate()
        os.close(reader)


def test_a_terminal_window_that_was_opened_by_a_tool_call_is_its_users(scenes):
    """It has left by a double fork and has all the marks: an idle shell in it asks nothing."""
    scene = scenes.scenes["leaving"]
    shell = int((scene.run.directory / "window" / "shell").read_text())
    assert is_below(os.readlink(f"/proc/{shell}/cwd"), str(scene.run.directory))
    assert b"AI_AGENT=claude-code" in Path(f"/proc/{shell}/environ").read_bytes()
    assert scene.waits("window") == []


def test_a_question_outlives_the_agent_and_is_told_once(scenes):
    """The agent was killed, its command still waits."""
    scene = scenes.scenes["killed"]
    (wait,) = scene.waits()
    assert (wait["agent"]["name"], wait["agent"]["pid"]) == ("aider", scene.run.pid)


def test_who_was_an_agent_and_became_something_else_is_none(scenes):
    """exec(2) keeps the number, and nothing else of what it was."""
    assert scenes.scenes["becomes"].waits() == []


# -- starting late ---------------------------------------------------------------------------------


@pytest.mark.parametrize("key", _BEFORE)
def test_who_was_there_before_the_watcher_is_seen_as_well(key, scenes):
    """Commands that ask are reported, and servers that have had their first request are not."""
    scene, agent = scenes.scenes[f"before-{key}"], _AGENTS[key]
    seen = {i.name: len(scene.waits(i.name)) for i in scene.run.items}
    assert seen == {i.name: int(bool(i.kind)) for i in scene.run.items}
    assert {r["agent"]["name"] for r in scene.waits()} == {agent.name}


# -- unusual ---------------------------------------------------------------------------------------


def test_a_command_line_of_a_hundred_kilobytes_is_cut(scenes):
    """The receipt holds no more than 4 KiB of it, and says that it was cut."""
    (wait,) = scenes.scenes["long"].waits()
    command = wait["tree"]["command"]
    assert wait["agent"]["name"] == "codex"
    assert command[:2] == ["/bin/bash", "-lc"]
    assert sum(len(word.encode()) + 1 for word in command) <= 4096
    assert command[-1].endswith("…")


@pytest.mark.parametrize("name", [name for name, _ in MARKED])
def test_an_agent_of_which_only_its_mark_is_known_is_named(name, scenes):
    """Whatever it does to run a command, as long as that is a shell."""
    scene = scenes.scenes[f"marked-{name}"]
    (wait,) = scene.waits()
    assert (wait["agent"]["name"], wait["tree"]["root_pid"]) == (name, scene.pid("asks"))


def test_an_agent_of_ones_own_takes_five_lines(scenes):
    """In a configuration file; the session is told as well."""
    scene = scenes.scenes["own"]
    until(scene.waits, _LATEST, "the question is reported")
    (wait,) = scene.waits()
    assert wait["agent"] == {"name": "my-agent", "pid": scene.run.pid, "session": "number one"}
    assert wait["tree"]["root_pid"] == scene.pid("asks")


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed: run the tests as root")
def test_who_may_not_look_says_nothing(scenes):
    """An unprivileged watcher sees neither marks nor inputs of others; it guesses nothing."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    try:
        watcher = Watcher(directory / "watcher", user=_NOBODY)
        try:
            time.sleep(3)  # three sweeps, all over questions that are open
            assert scenes.stage.watcher.receipts() != []
            assert watcher.receipts() == []
        finally:
            watcher.close()
    finally:
        shutil.rmtree(directory)
