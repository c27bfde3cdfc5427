"""How each agent shows itself: the data that the stand-ins are made of.

Sources are the published packages and repositories of each agent. What is not published
is not guessed: such agents are in ``MARKED``, with no more than their mark.
"""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from .kit import ASKS, LSP_REQUEST, MCP_REQUEST, SILENT, WRONG_END, Command

_HOOK = ("/bin/sh", "-c", 'read -r json; echo "$json"')


@dataclass(frozen=True)
class Agent:
    """One stand-in.

    ``program`` is ``native:NAME`` (an executable of that name), ``node:PATH`` or ``python:PATH``
    (scripts), or ``module:NAME``; ``relaunch`` is the inner of two such processes, ``becomes`` a
    program that it turns into. ``runtime``
    decides what its pipes are: Node and Bun make socket pairs, the others real pipes.

    ``wiring`` decides which of the commands ask:

    - ``terminal``: each has a terminal of its own; all ask
    - ``shared``: all have the agent's terminal, which is not their controlling one, and write
      into a pipe: all but the pager ask
    - ``stream``: an open pipe or socket: all but the pager ask
    - ``channel``: the same, and commands are typed into it: so the line after the command,
      which ends it, answers the first question, and only the second is waited for
    - ``closed``: nobody asks; but who takes a pipe that it writes into for its input waits for ever
    - ``reopened``: closed, but the agent's terminal can be opened again as /dev/tty

    ``persistent`` shells get their commands typed. A builtin that asks would then run in the
    shell itself, which looks as idle as ever: those commands are all programs.
    """

    key: str
    name: str
    runtime: str
    program: str
    shell: Callable[[str], tuple[str, ...]]
    stdio: tuple[str, str]
    wiring: str
    session: bool = True
    persistent: bool = False
    terminal: bool = False
    title: str = ""
    relaunch: str = ""
    becomes: str = ""
    own: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)
    server: Mapping[str, str] = field(default_factory=dict)
    hook: Mapping[str, str] | None = None
    hook_session: bool = False
    hook_alike: bool = False  # nothing tells it from a tool call, which has no input to wait for
    shell_alike: bool = False  # a call that becomes an idle shell looks like its persistent one
    person: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Item:
    """Something that a stand-in starts, and what is to be said of it (``kind`` is empty: nothing)."""

    name: str
    argv: tuple[str, ...]
    stdio: tuple[str, str]
    session: bool
    marks: Mapping[str, str] = field(default_factory=dict)
    feed: str = ""
    kind: str = ""
    wiring: str = ""
    program: str = ""
    call: bool = True


def items(agent: Agent) -> list[Item]:
    """Everything a stand-in starts."""
    made = [_asking(agent, c) for c in (*ASKS, WRONG_END) if not _is_unjudged(agent, c)]
    if agent.wiring == "reopened":
        again = [replace(c, name=f"{c.name}-reopened", text=c.reopened) for c in ASKS if c.reopened]
        made += [
            _item(agent, command, kind="any", wiring="tty", program=command.program)
            for command in again
        ]
    made += [_item(agent, command) for command in SILENT]
    if agent.wiring == "terminal" and not agent.persistent:
        made.append(_item(agent, Command("shell", "bash")))
    return made + _others(agent)


def _is_unjudged(agent: Agent, command: Command) -> bool:
    """An editor that takes a socket which it writes into for its input: it may be said to wait
    there, since the agent could write into that, and need not, since none ever does.
    """
    closed = agent.wiring == "closed" and agent.stdio[1] == "pipe"
    return command.name == "vim" and closed and agent.runtime == "node"


def _asking(agent: Agent, command: Command) -> Item:
    kind, wiring = _expected(agent, command)
    program = command.program if kind else ""
    if agent.wiring == "channel" and command.name == "git":
        program = "any"  # the line that answers it begins with an e: it starts an editor
    if agent.wiring == "channel" and command is not WRONG_END:
        command = replace(command, text=f"{command.text}; {command.text}")
    return _item(agent, command, kind=kind, wiring=wiring, program=program)


def _expected(agent: Agent, command: Command) -> tuple[str, str]:
    """(kind, wiring) of what a command asks for below an agent."""
    pipes = agent.runtime == "python" and agent.stdio[1] in ("pipe", "merged")
    if command is WRONG_END:
        return "dead", "pipe"
    if agent.wiring == "terminal":
        return command.kind, "tty"
    if command.name == "openssl" and agent.terminal and not agent.session:
        return "any", "tty"  # it opens the controlling terminal by itself
    if agent.wiring in ("closed", "reopened"):
        return ("dead", "pipe") if command.name == "vim" and pipes else ("", "")
    if command.name == "less":
        return "", ""
    if agent.wiring == "shared":
        return "any", "tty"
    return "stream", "socket" if agent.runtime == "node" else "pipe"


def _item(agent: Agent, command: Command, kind="", wiring="", program="") -> Item:
    feed = ""
    argv = agent.shell(command.text)
    if agent.persistent:
        feed = f"{command.text}\n"
        if agent.wiring == "channel":
            end = "" if "<" in command.text else " < /dev/null"
            feed = f"{command.text}; true{end}\necho ReturnCode:$? END_OF_OUTPUT\n"
    return Item(
        command.name, argv, agent.stdio, agent.session, agent.marks, feed, kind, wiring, program
    )


def _others(agent: Agent) -> list[Item]:
    """Servers, a hook, and a shell at which nobody types: no tool calls."""
    streams = ("open", "pipe")
    made = [
        Item(
            "mcp", ("python3", "kit/mcp.py"), streams, False, agent.server, MCP_REQUEST, call=False
        ),
        Item(
            "lsp",
            ("python3", "kit/lsp.py", "--stdio"),
            streams,
            False,
            agent.server,
            LSP_REQUEST,
            call=False,
        ),
    ]
    if agent.hook is not None:
        made.append(Item("hook", _HOOK, streams, agent.hook_session, agent.hook, call=False))
    idle = Item("idle", ("bash", "-i"), ("pty", ""), True, agent.person, "echo hello\n", call=False)
    if agent.persistent:
        idle = replace(
            idle, argv=agent.shell(""), stdio=agent.stdio, session=agent.session, marks=agent.marks
        )
    return [*made, idle]


# -- how they run a command ------------------------------------------------------------------------


def _bash(text):
    return ("bash", "-c", text)


def _sh(text):
    return ("/bin/sh", "-c", text)


def _claude(text, stdin=""):
    chain = (
        "source kit/snapshot-bash.sh 2>/dev/null || true",
        "shopt -u extglob 2>/dev/null || true",
        f"eval {shlex.quote(text)}{stdin}",
        "pwd -P >| output-cwd",
    )
    return ("/bin/bash", "-c", " && ".join(chain))


def _claude_closed(text):
    return _claude(text, " < /dev/null")


def _claude_open(text):
    """A ``<`` in the text, and the input is left open."""
    return _claude(f"{text}; : 'Co-Authored-By: N <mail>'")


def _gemini(text):
    wrapped = (
        "shopt -u promptvars nullglob extglob nocaseglob dotglob; _bgpids_file=bgpids.tmp; "
        f"(\ntrap 'jobs -p > \"$_bgpids_file\"' EXIT\n{text}\n); __code=$?; exit $__code"
    )
    return ("bash", "-c", wrapped)


def _droid(text):
    script = (
        '"$2" -c "$3" & command=$!; '
        '(while ps -p "$1" >/dev/null; do sleep 2; done; kill -- -$$) & '
        "wait $command"
    )
    return ("bash", "-c", script, "factory-execute-supervisor", "@harness", "bash", text)


def _crush(text):
    """No shell of its own: it parses the text and starts each program itself."""
    return ("bash", "-c", text) if set("|;(<>&$") & set(text) else tuple(shlex.split(text))


def _always(*argv):
    return lambda _text: argv


_VSCODE = _always("/bin/bash", "--init-file", "kit/shellIntegration-bash.sh")
_CLAUDE = {
    "CLAUDECODE": "1",
    "CLAUDE_CODE_SESSION_ID": "5e55-10",
    "CLAUDE_PID": "1",
    "GIT_EDITOR": "true",
}
_CLAUDE_HARNESS = {"AI_AGENT": "claude-code_2-1-332_harness"}
_CODEX = {
    "CODEX_CI": "1",
    "CODEX_THREAD_ID": "thread-1",
    "NO_COLOR": "1",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
}
_GEMINI = {"GEMINI_CLI": "1", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}
_QWEN = {"QWEN_CODE": "1", "QWEN_CODE_SESSION_ID": "q-1", "PAGER": "cat"}
_OPENCODE = {"OPENCODE": "1", "AGENT": "1", "OPENCODE_PID": "1"}
_COPILOT = {"COPILOT_CLI": "1", "COPILOT_AGENT_SESSION_ID": "c-1"}
_CRUSH = {"CRUSH": "1", "AGENT": "crush", "AI_AGENT": "crush", "PAGER": "cat"}
_MODULES = "lib/node_modules"

_CLAUDE_CODE = Agent(
    "claude-code-closed", "claude-code", "node", "native:claude", _claude_closed,
    ("open", "file"), "closed", title="claude", terminal=True,
    marks={**_CLAUDE, "CLAUDE_CODE_CHILD_SESSION": "1", "AI_AGENT": "claude-code_2-1-332_agent"},
    server={**_CLAUDE, **_CLAUDE_HARNESS, "CLAUDE_CODE_LAUNCHED_BY_SESSION_IDS": "5e55-10"},
    hook={**_CLAUDE, **_CLAUDE_HARNESS, "CLAUDE_CODE_CHILD_SESSION": "1"}, hook_session=True,
)  # fmt: skip
_CODEX_CLI = Agent(
    "codex-closed", "codex", "python", "node:lib/node_modules/@openai/codex/bin/codex.js",
    lambda text: ("/bin/bash", "-lc", text), ("null", "pipe"), "closed",
    relaunch="native:codex", terminal=True,
    own={"CODEX_MANAGED_BY_NPM": "1"}, marks=_CODEX, hook={},
)  # fmt: skip
_GEMINI_CLI = Agent(
    "gemini-cli", "gemini-cli", "node", f"node:{_MODULES}/@google/gemini-cli/bundle/gemini.js",
    _gemini, ("pty", ""), "terminal", terminal=True,
    relaunch=f"node:{_MODULES}/@google/gemini-cli/bundle/gemini.js",
    marks=_GEMINI, server={"GEMINI_CLI": "1"},
    hook={"GEMINI_PROJECT_DIR": "/", "GEMINI_SESSION_ID": "g-1"},
)  # fmt: skip
_QWEN_CODE = Agent(
    "qwen-code", "qwen-code", "node", f"node:{_MODULES}/@qwen-code/qwen-code/cli-entry.js",
    _bash, ("pty", ""), "terminal", terminal=True,
    relaunch=f"node:{_MODULES}/@qwen-code/qwen-code/cli.js",
    own={"QWEN_CODE_CLI": "/qwen"}, marks=_QWEN, hook={},
)  # fmt: skip
_COPILOT_CLI = Agent(
    "copilot-cli", "copilot-cli", "node", f"node:{_MODULES}/@github/copilot/npm-loader.js",
    lambda text: ("bash", "--norc", "--noprofile", "-c", text), ("pty", ""), "terminal",
    relaunch="native:copilot", terminal=True, own=_COPILOT, shell_alike=True,
)  # fmt: skip
_VSCODE_AGENT = Agent(
    "vscode", "vscode", "node", "native:code", _VSCODE, ("pty", ""), "terminal",
    persistent=True, hook={},
    marks={"AI_AGENT": "github_copilot_vscode_agent", "COPILOT_AGENT": "1", "GIT_PAGER": "cat"},
)  # fmt: skip
_KIMI = Agent(
    "kimi-cli", "kimi-cli", "python", "python:bin/kimi", _bash, ("closed", "pipe"), "reopened",
    session=False, terminal=True, title="Kimi Code",
    own={"GIT_TERMINAL_PROMPT": "0", "SHELL": "/bin/bash"}, hook={}, hook_alike=True,
)  # fmt: skip
_AIDER = Agent(
    "aider", "aider", "python", "python:bin/aider",
    lambda text: ("/bin/bash", "-i", "-c", text), ("pty", ""), "terminal", terminal=True,
)  # fmt: skip

AGENTS = (
    _CLAUDE_CODE,
    replace(_CLAUDE_CODE, key="claude-code-open", shell=_claude_open, wiring="stream"),
    _CODEX_CLI,
    replace(_CODEX_CLI, key="codex-terminal", stdio=("pty", ""), wiring="terminal"),
    _GEMINI_CLI,
    replace(_GEMINI_CLI, key="gemini-cli-fallback", stdio=("null", "pipe"), wiring="closed"),
    _QWEN_CODE,
    replace(_QWEN_CODE, key="qwen-code-prompt", stdio=("null", "pipe"), wiring="closed"),
    Agent(
        "opencode", "opencode", "node", "native:opencode", _bash, ("null", "pipe"), "closed",
        terminal=True, own=_OPENCODE, hook={}, person={"OPENCODE_TERMINAL": "1"},
    ),
    _COPILOT_CLI,
    replace(
        _COPILOT_CLI, key="copilot-cli-session", persistent=True,
        shell=_always("bash", "--norc", "--noprofile"),
    ),
    _VSCODE_AGENT,
    replace(
        _VSCODE_AGENT, key="cline-vscode", name="cline-vscode",
        marks={"CLINE_ACTIVE": "true"}, hook_session=True,
    ),
    replace(
        _VSCODE_AGENT, key="roo-code", name="roo-code", hook=None,
        marks={"ROO_ACTIVE": "true", "PAGER": "cat", "VTE_VERSION": "0"},
    ),
    Agent(
        "droid", "droid", "node", "native:droid", _droid, ("null", "file"), "closed", terminal=True,
        marks={"TERM": "dumb", "PS1": "", "DEBIAN_FRONTEND": "noninteractive"}, hook={},
    ),
    Agent(
        "goose", "goose", "python", "native:goose", _bash, ("null", "pipe"), "reopened",
        session=False, terminal=True,
        marks={"AGENT_SESSION_ID": "s-1"}, server={"AGENT_SESSION_ID": "s-1"},
    ),
    Agent(
        "crush", "crush", "python", "native:crush", _crush, ("null", "pipe"), "closed",
        terminal=True, marks=_CRUSH, hook=_CRUSH, hook_session=True, hook_alike=True,
    ),
    Agent(
        "cline", "cline", "node", "native:cline", lambda text: ("/bin/bash", "-c", text),
        ("closed", "pipe"), "closed", terminal=True, hook={}, hook_session=True, hook_alike=True,
    ),
    _KIMI,
    replace(
        _KIMI, key="kimi-cli-background", program="module:kimi_cli.cli", title="",
        stdio=("null", "pipe"), wiring="closed", session=True, terminal=False, hook=None,
    ),
    _AIDER,
    replace(
        _AIDER, key="aider-piped", shell=_sh, stdio=("inherit", "merged"), wiring="stream",
        session=False, terminal=False,
    ),
    Agent(
        "mini-swe-agent", "mini-swe-agent", "python", "python:bin/mini", _sh,
        ("inherit", "merged"), "shared", terminal=True, own={"PAGER": "cat", "TQDM_DISABLE": "1"},
    ),
    Agent(
        "openhands", "openhands", "python", "python:bin/agent-server",
        _always("nice", "-n", "10", "bash", "-i"), ("pty", ""), "terminal", persistent=True,
        marks={"PS1": "\n###PS1JSON###\n{}\n###PS1END###\n", "PAGER": "cat", "GIT_PAGER": "cat"},
    ),
    Agent(
        "swe-rex", "swe-rex", "python", "python:bin/swerex-remote", _always("/usr/bin/env", "bash"),
        ("pty", ""), "terminal", persistent=True,
        marks={"PS1": "SHELLPS1PREFIX", "PS2": "", "PS0": ""},
    ),
    Agent(
        "terminus-2", "terminus-2", "tmux", "tmux", _always("bash", "--login"), ("pty", ""),
        "terminal", persistent=True,
    ),
    Agent(
        "gptme", "gptme", "python", "python:bin/gptme", _always("bash"), ("open", "pipe"),
        "channel", persistent=True, terminal=True,
    ),
    Agent(
        "open-interpreter", "open-interpreter", "python", "python:bin/interpreter",
        _always("/bin/bash"), ("open", "pipe"), "channel", persistent=True, session=False,
        terminal=True, marks={"PYTHONIOENCODING": "utf-8"},
    ),
    Agent(
        "convention", "newcomer", "node", "native:newcomer", _bash, ("open", "pipe"), "stream",
        marks={"AI_AGENT": "newcomer"}, hook={},
    ),
)  # fmt: skip

MARKED = (
    ("cursor", {"CURSOR_AGENT": "1"}),
    ("amp", {"AGENT": "amp", "AMP_CURRENT_THREAD_ID": "T-1"}),
    ("antigravity", {"ANTIGRAVITY_AGENT": "1"}),
    ("pi", {"PI_CODING_AGENT": "true"}),
    ("auggie", {"AUGMENT_AGENT": "1"}),
)
"""Agents of which nothing but a variable on their shells is published."""
