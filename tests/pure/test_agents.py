"""Which processes are agents, and which of their children are tool calls."""

import pytest

from receipt_trace.agents import Facts, is_bare_shell, is_shell_call, load_registry
from receipt_trace.errors import UsageError

CLAUDE = {"AI_AGENT": "claude-code_2-1-332_agent", "CLAUDECODE": "1"}


@pytest.fixture(scope="module")
def registry():
    """The agents that are known."""
    return load_registry()


def facts(*argv, exe=None, env=(), leads=True, stdin="", execs=0):
    """Facts of a process."""
    return Facts(10, 5, argv, exe, dict(env), leads, stdin, execs=execs)


def name(kind):
    """The name of a kind, or nothing."""
    return kind and kind.name


# -- who is an agent -------------------------------------------------------------------------------

HARNESSES = [
    ("claude-code", facts("claude")),
    ("claude-code", facts("/home/user/.local/bin/claude", "-p", "hello")),
    ("claude-code", facts("x", exe="/opt/node_modules/@anthropic-ai/claude-code/bin/claude.exe")),
    ("claude-code", facts("x", exe="/usr/bin/claude (deleted)")),
    ("claude-code", facts("node", "/usr/lib/node_modules/@anthropic-ai/claude-code/cli.js")),
    ("codex", facts("codex", "exec")),
    ("codex", facts("node", "--no-warnings", "/usr/lib/node_modules/@openai/codex/bin/codex.js")),
    ("gemini-cli", facts("node", "/usr/bin/gemini")),
    ("gemini-cli", facts("/usr/bin/node", "/opt/gemini-cli/bundle/gemini.js")),
    ("gemini-cli", facts("bun", "/x/@google/gemini-cli/dist/index.js")),
    ("qwen-code", facts("node", "/usr/bin/qwen")),
    ("qwen-code", facts("node", "--expose-gc", "/x/@qwen-code/qwen-code/cli.js")),
    ("opencode", facts("/x/bin/opencode.exe", "serve")),
    ("copilot-cli", facts("node", "/usr/bin/copilot")),
    ("copilot-cli", facts("node", "/x/@github/copilot/npm-loader.js")),
    ("cursor", facts("/home/user/.local/share/cursor-agent/versions/1/cursor-agent")),
    ("cursor", facts("node", "/home/user/.local/share/cursor-agent/versions/1/index.js")),
    ("droid", facts("droid")),
    ("goose", facts("goosed", "agent")),
    ("crush", facts("crush")),
    ("cline", facts("node", "/usr/bin/cline")),
    ("kimi-cli", facts("Kimi Code", exe="/usr/bin/python3.12")),
    ("kimi-cli", facts("python", "-m", "kimi_cli.cli", "__background-task-worker")),
    ("aider", facts("python3", "/usr/local/bin/aider")),
    ("swe-rex", facts("python3", "/usr/local/bin/swerex-remote")),
    ("terminus-2", facts("tmux", "new-session", "-d", "-s", "terminus-2", "bash --login")),
    ("gptme", facts("python3", "/usr/local/bin/gptme")),
    ("gptme", facts("python3", "/usr/local/bin/gptme-server", "serve")),
    ("open-interpreter", facts("python3", "/usr/local/bin/interpreter")),
    ("open-interpreter", facts("python3", "-m", "interpreter")),
    ("amp", facts("amp")),
    ("antigravity", facts("agy")),
    ("mini-swe-agent", facts("python3.11", "/usr/local/bin/mini")),
    ("mini-swe-agent", facts("python", "-m", "minisweagent")),
    ("mini-swe-agent", facts("python", "-u", "-m", "minisweagent.run.mini", "-t", "x")),
]


@pytest.mark.parametrize(("expected", "seen"), HARNESSES)
def test_an_agent_is_known_by_what_it_runs(registry, expected, seen):
    """Its program, its script below an interpreter, or its module."""
    assert name(registry.harness(seen)) == expected


@pytest.mark.parametrize(
    "seen",
    [
        facts(),
        facts("bash", "-c", "claude"),
        facts("vim", "claude"),
        facts("node", "/srv/server.js", "claude"),
        facts("python", "-m", "http.server"),
        facts("python", "-m", "pytest", "minisweagent"),
        facts("python", "-c", "import minisweagent"),
        facts("python", "/home/user/mini.py"),
        facts("cat", "/x/@anthropic-ai/claude-code/cli.js"),
        facts("claudette"),
        facts("tmux"),
        facts("tmux", "new-session", "-d", "-s", "work"),
        facts("tmux", "attach", "-t", "terminus-2"),
        facts("node", "/home/user/.vscode-server/out/server-main.js"),
    ],
)
def test_a_program_that_only_mentions_an_agent_is_none(registry, seen):
    """An argument is not a name."""
    assert registry.harness(seen) is None


@pytest.mark.parametrize(
    "seen",
    [
        facts("rg", "--no-config", "x", exe="/home/user/.local/share/claude/versions/claude"),
        facts("codex-linux-sandbox", "--", "bash", "-lc", "x", exe="/usr/bin/codex"),
    ],
    ids=["a search of claude's", "the sandbox of codex"],
)
def test_a_helper_that_is_the_same_executable_is_no_agent(registry, seen):
    """By its first argument it is another program."""
    assert registry.harness(seen) is None


# -- what is a tool call ---------------------------------------------------------------------------


def tool(registry, seen, parent=None, of=None):
    """The agent whose tool call the facts show; ``of``: the name of the agent its parent is."""
    found = registry.tool(seen, parent or facts("harness"), of and registry.kinds[of])
    return found and found[0].name


CALL, WITH_PERSON = (False, False), (False, True)
SHELL, SHELL_WITH_PERSON = (True, False), (True, True)
NOTHING = None
TTY, PIPE, NULL, SOCKET = ({"stdin": s} for s in ("tty", "pipe", "null", "socket"))
INSIDE = {"leads": False}  # in the session of whoever started it
TEXT = ("bash", "-c", "git commit")

CLAUDE_OWN = CLAUDE | {"AI_AGENT": "claude-code_2-1-332_harness"}
CODEX = {"CODEX_CI": "1", "CODEX_THREAD_ID": "t-1"}
CODEX_OWN = {"CODEX_MANAGED_BY_NPM": "1"}
GEMINI = {"GEMINI_CLI": "1"}
QWEN = {"QWEN_CODE": "1"}
OPENCODE = {"OPENCODE": "1", "AGENT": "1", "OPENCODE_PID": "5"}
COPILOT = {"COPILOT_CLI": "1", "COPILOT_AGENT_SESSION_ID": "s"}
VSCODE = {"AI_AGENT": "github_copilot_vscode_agent"}
CRUSH = {"CRUSH": "1", "AGENT": "crush", "AI_AGENT": "crush"}
KIMI = {"GIT_TERMINAL_PROMPT": "0"}
OPENHANDS = {"PS1": "\\n###PS1JSON###\\n{}\\n###PS1END###\\n"}
SWE_REX = {"PS1": "SHELLPS1PREFIX", "PS2": "", "PS0": ""}
INTERPRETER = {"PYTHONIOENCODING": "utf-8"}
SERVER = ("node", "server.js")

# What each agent starts, and what that is to us: an agent, what it is about, the facts, and
# (persistent, person) of a tool call, or nothing. The parent is the agent's own process.
STARTED = [
    ("claude-code", "a tool shell", facts("bash", "-c", "-l", "eval x", env=CLAUDE, **SOCKET), CALL),
    ("claude-code", "a tool shell in its sandbox", facts("bwrap", "bash", "-c", "x", env=CLAUDE), CALL),
    ("claude-code", "a hook", facts("/bin/sh", "-c", "hook", env=CLAUDE_OWN, **SOCKET), NOTHING),
    ("claude-code", "an MCP server", facts(*SERVER, env=CLAUDE_OWN, **SOCKET, **INSIDE), NOTHING),
    ("claude-code", "an MCP server by way of a shell",
     facts("/bin/sh", "-c", 'exec "$@"', "/cg", "x", env=CLAUDE_OWN, **SOCKET, **INSIDE), NOTHING),
    ("claude-code", "the start-up probe", facts(*TEXT, env={"CLAUDECODE": "1"}, **SOCKET), NOTHING),
    ("codex", "a tool shell", facts("bash", "-lc", "x", env=CODEX, **NULL), CALL),
    ("codex", "a tool shell on a terminal", facts("zsh", "-lc", "x", env=CODEX, **TTY), CALL),
    ("codex", "a tool shell of its group only", facts(*TEXT, env=CODEX, **NULL, **INSIDE), CALL),
    ("codex", "its sandbox", facts("codex-linux-sandbox", "bash", "-lc", "x", env=CODEX), CALL),
    ("codex", "a hook", facts("bash", "-lc", "hook", env=CODEX_OWN, **PIPE), NOTHING),
    ("codex", "an MCP server", facts(*SERVER, env=CODEX_OWN, **PIPE), NOTHING),
    ("gemini-cli", "a tool shell", facts(*TEXT, env=GEMINI, **TTY), WITH_PERSON),
    ("gemini-cli", "a tool shell without a terminal", facts(*TEXT, env=GEMINI, **NULL), WITH_PERSON),
    ("gemini-cli", "what its shell has become", facts("git", "commit", env=GEMINI, **TTY, execs=2), WITH_PERSON),
    ("gemini-cli", "a hook", facts(*TEXT, **SOCKET, **INSIDE), NOTHING),
    ("gemini-cli", "an MCP server", facts(*SERVER, env=GEMINI, **SOCKET, **INSIDE), NOTHING),
    ("gemini-cli", "an MCP server in a shell", facts(*TEXT, env=GEMINI, **SOCKET, **INSIDE), NOTHING),
    ("qwen-code", "a tool shell", facts(*TEXT, env=QWEN, **TTY), WITH_PERSON),
    ("qwen-code", "a tool shell without a terminal", facts(*TEXT, env=QWEN, **NULL), WITH_PERSON),
    ("qwen-code", "an MCP server", facts(*SERVER, **SOCKET, **INSIDE), NOTHING),
    ("qwen-code", "a whole agent of its own", facts("node", "/x/@qwen-code/qwen-code/cli.js", env=QWEN, **INSIDE), NOTHING),
    ("opencode", "a tool shell", facts(*TEXT, env=OPENCODE, **NULL), CALL),
    ("opencode", "a command of the user", facts("bash", "-l", "-c", "x", "opencode", "/", env=OPENCODE, **NULL), CALL),
    ("opencode", "a terminal of its own", facts("bash", "-l", env=OPENCODE | {"OPENCODE_TERMINAL": "1"}, **TTY), NOTHING),
    ("opencode", "an MCP server", facts(*SERVER, env=OPENCODE, **SOCKET, **INSIDE), NOTHING),
    ("opencode", "an MCP server in a shell", facts(*TEXT, env=OPENCODE, **SOCKET, **INSIDE), NOTHING),
    ("copilot-cli", "a tool shell", facts("bash", "--norc", "--noprofile", "-c", "x", env=COPILOT, **TTY), CALL),
    ("copilot-cli", "a shell that lives on", facts("bash", "--norc", env=COPILOT, **TTY), SHELL),
    ("copilot-cli", "a server", facts(*SERVER, env=COPILOT, **SOCKET), NOTHING),
    ("vscode", "a tool shell", facts("bash", env=VSCODE, **TTY), SHELL_WITH_PERSON),
    ("vscode", "an older tool shell", facts("zsh", "-i", env={"COPILOT_AGENT": "1"}, **TTY), SHELL_WITH_PERSON),
    ("vscode", "a terminal of the user", facts("bash", "-l", **TTY), NOTHING),
    ("vscode", "a program below its agent host", facts(*SERVER, env=VSCODE, **SOCKET, **INSIDE), NOTHING),
    ("cursor", "a tool shell", facts("zsh", "-c", "x", env={"CURSOR_AGENT": "1"}), CALL),
    ("cursor", "a worker", facts("node", "index.js", "worker-server", env={"CURSOR_AGENT": "1"}), NOTHING),
    ("cursor", "a terminal of the editor", facts("zsh", "-c", "x", env={"CURSOR_TRACE_ID": "t"}), NOTHING),
    ("droid", "its supervisor", facts("bash", "-c", "x", "factory-execute-supervisor", "5", "bash", "ls", **NULL), CALL),
    ("droid", "another shell", facts(*TEXT, **NULL), NOTHING),
    ("droid", "a server", facts(*SERVER, **SOCKET), NOTHING),
    ("goose", "a tool shell", facts(*TEXT, **NULL, **INSIDE), CALL),
    ("goose", "an extension", facts(*SERVER, env={"AGENT_SESSION_ID": "s"}, **PIPE), NOTHING),
    ("goose", "an extension in a shell", facts(*TEXT, env={"AGENT_SESSION_ID": "s"}, **PIPE), NOTHING),
    ("crush", "a program", facts("git", "commit", env=CRUSH), CALL),
    ("crush", "a shell", facts(*TEXT, env=CRUSH), CALL),
    ("crush", "an MCP server", facts(*SERVER, **PIPE), NOTHING),
    ("cline", "a tool shell", facts("/bin/bash", "-c", "x", **SOCKET), CALL),
    ("cline", "an MCP server", facts(*SERVER, **SOCKET, **INSIDE), NOTHING),
    ("cline", "an MCP server in a shell", facts(*TEXT, **SOCKET, **INSIDE), NOTHING),
    ("cline-vscode", "a tool shell", facts("bash", env={"CLINE_ACTIVE": "true"}, **TTY), SHELL_WITH_PERSON),
    ("cline-vscode", "a hook", facts(*TEXT, env={"CLINE_ACTIVE": "true"}, **SOCKET), NOTHING),
    ("roo-code", "a tool shell", facts("zsh", "-i", env={"ROO_ACTIVE": "true"}, **TTY), SHELL_WITH_PERSON),
    ("roo-code", "a tool shell without a terminal", facts(*TEXT, **NULL, **INSIDE), NOTHING),
    ("kimi-cli", "a tool shell", facts(*TEXT, env=KIMI, **PIPE, **INSIDE), CALL),
    ("kimi-cli", "a background task", facts(*TEXT, env=KIMI, **NULL), CALL),
    ("kimi-cli", "a shell of the user", facts(*TEXT, env=KIMI, **TTY, **INSIDE), NOTHING),
    ("kimi-cli", "a server", facts(*SERVER, **PIPE, **INSIDE), NOTHING),
    ("aider", "a shell on the user's terminal", facts("zsh", "-i", "-c", "x", **TTY), WITH_PERSON),
    ("aider", "a shell with its own input", facts("/bin/sh", "-c", "x", **PIPE, **INSIDE), WITH_PERSON),
    ("aider", "its git", facts("git", "status", **NULL, **INSIDE), NOTHING),
    ("mini-swe-agent", "a tool shell", facts("/bin/sh", "-c", "x", **TTY), CALL),
    ("mini-swe-agent", "a program of its own", facts("git", "status", **NULL, execs=1), NOTHING),
    ("mini-swe-agent", "a shell of its session", facts("/bin/sh", "-c", "x", **TTY, **INSIDE), NOTHING),
    ("mini-swe-agent", "what its shell has become", facts("git", "commit", **TTY, execs=2), CALL),
    ("openhands", "its shell", facts("bash", "-i", env=OPENHANDS, **TTY), SHELL),
    ("openhands", "a shell of somebody else", facts("bash", "-i", env={"PS1": "$ "}, **TTY), NOTHING),
    ("swe-rex", "its shell", facts("bash", env=SWE_REX, **TTY), SHELL),
    ("swe-rex", "a check of syntax", facts("bash", "-n", env=SWE_REX, **PIPE), NOTHING),
    ("terminus-2", "its shell", facts("bash", "--login", **TTY), SHELL),
    ("terminus-2", "its log", facts("sh", "-c", "cat > log", **PIPE), NOTHING),
    ("gptme", "its shell", facts("bash", **PIPE), SHELL),
    ("gptme", "a command that needs a terminal", facts("bash", "-c", "sudo x", **TTY, **INSIDE), CALL),
    ("gptme", "a server", facts(*SERVER, **PIPE), NOTHING),
    ("open-interpreter", "its shell", facts("/bin/bash", env=INTERPRETER, **PIPE, **INSIDE), SHELL),
    ("open-interpreter", "another language", facts("python3", "-i", env=INTERPRETER, **PIPE, **INSIDE), NOTHING),
    ("amp", "a tool shell", facts(*TEXT, env={"AMP_CURRENT_THREAD_ID": "T-1"}), CALL),
    ("amp", "a server", facts(*SERVER, env={"AMP_CURRENT_THREAD_ID": "T-1"}), NOTHING),
    ("antigravity", "a tool shell", facts(*TEXT, env={"ANTIGRAVITY_AGENT": "1"}), CALL),
    ("antigravity", "a server", facts(*SERVER, env={"ANTIGRAVITY_AGENT": "1"}), NOTHING),
    ("pi", "a tool shell", facts(*TEXT, env={"PI_CODING_AGENT": "true"}), CALL),
    ("pi", "a server", facts(*SERVER, env={"PI_CODING_AGENT": "true"}), NOTHING),
    ("auggie", "a tool shell", facts(*TEXT, env={"AUGMENT_AGENT": "1"}), CALL),
    ("auggie", "a server", facts(*SERVER, env={"AUGMENT_AGENT": "1"}), NOTHING),
    ("other", "a tool shell", facts(*TEXT, env={"AI_AGENT": "house-bot"}), CALL),
    ("other", "a shell of its session", facts(*TEXT, env={"AI_AGENT": "house-bot"}, **INSIDE), NOTHING),
    ("other", "a server", facts(*SERVER, env={"AI_AGENT": "house-bot"}, **INSIDE), NOTHING),
]  # fmt: skip


@pytest.mark.parametrize(
    ("agent", "seen", "expected"),
    [(agent, seen, expected) for agent, _, seen, expected in STARTED],
    ids=[f"{agent}: {what}" for agent, what, _, _ in STARTED],
)
def test_of_all_an_agent_starts_only_tool_calls_are_taken_for_them(registry, agent, seen, expected):
    """Whose they are, whether they live on, and whether a person may type there as well."""
    found = registry.tool(seen, facts(agent), registry.kinds[agent])
    if expected is NOTHING:
        assert found is None
    else:
        kind, shape = found
        assert kind.name == agent
        assert (shape.persistent, shape.person) == expected


def test_every_agent_is_in_the_table(registry):
    """With at least one thing that is a tool call and one that is none, where one is known."""
    calls = {agent for agent, _, _, expected in STARTED if expected is not NOTHING}
    others = {agent for agent, _, _, expected in STARTED if expected is NOTHING}
    assert calls == others == set(registry.kinds)


@pytest.mark.parametrize(
    ("agent", "seen"),
    [(a, s) for a, _, s, expected in STARTED if expected is not NOTHING],
    ids=[f"{a}: {what}" for a, what, _, expected in STARTED if expected is not NOTHING],
)
def test_below_a_tool_call_its_like_is_none(registry, agent, seen):
    """Marks are inherited, and a shell in a shell is no second call."""
    assert registry.tool(seen, seen, None) is None


@pytest.mark.parametrize("agent", ["droid", "goose", "crush", "cline", "kimi-cli", "aider",
                                   "mini-swe-agent", "gptme", "opencode", "open-interpreter"])  # fmt: skip
def test_of_an_agent_that_marks_nothing_or_everything_only_children_count(registry, agent):
    """The same process below anybody else is nobody's."""
    (seen, *_) = (s for a, _, s, expected in STARTED if a == agent and expected is not NOTHING)
    assert tool(registry, seen, of=agent) == agent
    assert tool(registry, seen) is None


def test_a_tool_call_is_known_though_its_agent_is_not(registry):
    """By its mark, if its parent does not have that too."""
    assert tool(registry, facts(*TEXT, env=CODEX)) == "codex"
    assert tool(registry, facts(*TEXT, env=CODEX), parent=facts("x", env=CODEX)) is None
    assert tool(registry, facts(*TEXT, env=CODEX), parent=facts("x", env=CODEX), of="codex") == (
        "codex"
    )


def test_a_mark_has_exactly_its_value(registry):
    """Or one that fits its pattern."""
    assert tool(registry, facts(*TEXT, env={"CODEX_CI": "10"})) is None
    assert tool(registry, facts(*TEXT, env={"CODEX_CI": ""})) is None
    assert tool(registry, facts(*TEXT, env={"AI_AGENT": "claude-code_agent"})) is None
    assert tool(registry, facts(*TEXT, env={"AI_AGENT": "xclaude-code_1_agent"})) == "other"


def test_without_a_mark_nobody_is_a_tool_call(registry):
    """An empty environment has no mark."""
    assert tool(registry, facts(*TEXT)) is None
    assert not registry.marks(facts(*TEXT))
    assert registry.marks(facts(*SERVER, env=GEMINI))


def test_a_child_of_one_agent_is_no_call_of_another(registry):
    """The shape alone says nothing."""
    assert tool(registry, facts(*TEXT, **NULL), of="codex") is None
    assert tool(registry, facts(*TEXT, env=CODEX, **NULL), of="goose") == "codex"


def test_what_belongs_to_a_known_agent_is_not_somebody_elses(registry):
    """Hooks and servers carry AI_AGENT too."""
    for env in (CLAUDE_OWN, CRUSH, VSCODE | {"COPILOT_AGENT": "1"}):
        assert tool(registry, facts(*TEXT, env=env, **SOCKET)) is None


def test_whoever_follows_the_convention_names_himself(registry):
    """In at most 64 characters."""
    kind = registry.kinds["other"]
    assert kind.name_of(facts(env={"AI_AGENT": "house-bot"})) == "house-bot"
    assert kind.name_of(facts(env={"AI_AGENT": "x" * 100})) == "x" * 64
    assert kind.name_of(facts(env={"AI_AGENT": ""})) == kind.name_of(facts()) == "other"
    assert registry.kinds["codex"].name_of(facts(env={"AI_AGENT": "house-bot"})) == "codex"


# -- shells --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("sh", "-c", "ls"), True),
        (("/bin/bash", "-lc", "ls"), True),
        (("-bash", "-c", "ls"), True),
        (("bash", "-c", "-l", "ls"), True),
        (("bash", "--norc", "-c", "ls"), True),
        (("bash", "-o", "pipefail", "-c", "ls"), True),
        (("bash", "-O", "extglob", "-c", "ls"), True),
        (("bash", "+x", "-c", "ls"), True),
        (("zsh", "-e", "-c", "ls", "name", "argument"), True),
        (("bash",), False),
        (("bash", "-c"), False),
        (("bash", "-i", "-l"), False),
        (("bash", "script.sh", "argument"), False),
        (("bash", "--rcfile", "x"), False),
        (("python3", "-c", "print()"), False),
        ((), False),
    ],
)
def test_a_shell_call_is_a_shell_that_was_given_its_text(argv, expected):
    """Wherever its options stand."""
    assert is_shell_call(argv) is expected


def test_a_script_with_such_an_option_of_its_own_is_no_shell_call():
    """`bash serve.sh -c conf`: the option is the script's, not the shell's."""
    assert is_shell_call(("bash", "serve.sh", "-c", "conf")) is False


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("bash",), True),
        (("-zsh",), True),
        (("/usr/bin/fish",), True),
        (("bash", "-i"), True),
        (("bash", "--login"), True),
        (("bash", "--norc", "--noprofile", "-i"), True),
        (("bash", "-o", "pipefail"), True),
        (("sh", "-s"), True),
        (("bash", "-c", "ls"), False),
        (("bash", "-lc", "ls"), False),
        (("bash", "-c"), False),
        (("bash", "script.sh"), False),
        (("bash", "-e", "script.sh", "-i"), False),
        (("nice", "-n", "10", "bash", "-i"), False),
        (("/usr/bin/env", "bash"), False),
        (("python3",), False),
        ((), False),
    ],
)
def test_a_bare_shell_is_one_that_was_given_nothing_to_run(argv, expected):
    """Options at most; a wrapper before it is not yet the shell."""
    assert is_bare_shell(argv) is expected
    assert not (is_bare_shell(argv) and is_shell_call(argv))


@pytest.mark.parametrize(
    "argv",
    [
        ("bash", "-euo", "pipefail", "-c", "ls"),
        ("bash", "--rcfile", "x", "-c", "ls"),
        ("bash", "--init-file", "x", "-ic", "ls"),
    ],
)
def test_a_shell_call_may_have_options_with_words_of_their_own(argv):
    """The text comes after them."""
    assert is_shell_call(argv)


@pytest.mark.parametrize(
    "argv",
    [
        ("bash", "--init-file", "/x/shellIntegration-bash.sh"),
        ("fish", "--init-command", "source x"),
        ("bash", "--rcfile", "x", "-i"),
        ("bash", "-eo", "pipefail"),
    ],
)
def test_a_bare_shell_may_have_options_with_words_of_their_own(argv):
    """An editor gives its shells a file to begin with."""
    assert is_bare_shell(argv)


# -- what a configuration may say --------------------------------------------------------------


def mine(shape, **entry):
    """A registry with an agent of the user's own."""
    return load_registry({"mine": {"tool": shape, **entry}}, "config.toml")


def test_an_agent_can_be_added():
    """Every field of an entry has its effect."""
    registry = mine(
        {"env": {"MINE": "v*"}, "shell": True, "session": True},
        harness={"program": ["mine"], "module": ["mine.main"], "path": ["/mine/"]},
        session="MINE_SESSION",
        name_from="MINE_NAME",
    )
    assert name(registry.harness(facts("mine"))) == "mine"
    assert name(registry.harness(facts("python", "-m", "mine.main"))) == "mine"
    assert name(registry.harness(facts("python", "/opt/mine/run.py"))) == "mine"
    assert tool(registry, facts("sh", "-c", "ls", env={"MINE": "v2"})) == "mine"
    assert tool(registry, facts("sh", "-c", "ls", env={"MINE": "2"})) is None
    assert tool(registry, facts("sh", "-c", "ls", env={"MINE": "v2"}, leads=False)) is None
    assert tool(registry, facts("ls", env={"MINE": "v2"})) is None
    kind = registry.kinds["mine"]
    assert kind.session_variable == "MINE_SESSION"
    assert kind.name_of(facts(env={"MINE_NAME": "the second"})) == "the second"


def test_a_harness_may_need_arguments():
    """All of them, wherever they stand."""
    registry = mine({"child": True}, harness={"program": ["x"], "argument": ["serve", "-v"]})
    assert name(registry.harness(facts("x", "-v", "serve"))) == "mine"
    assert registry.harness(facts("x", "serve")) is None
    assert registry.harness(facts("serve", "-v")) is None


def test_a_harness_may_be_without_something():
    """The same file plays another part, by its first argument or by any."""
    registry = mine({"child": True}, harness={"program": ["x"], "without": ["rg", "--helper"]})
    assert name(registry.harness(facts("x", "serve"))) == "mine"
    assert name(registry.harness(facts("y", exe="/usr/bin/x"))) == "mine"
    assert registry.harness(facts("/opt/rg", exe="/usr/bin/x")) is None
    assert registry.harness(facts("x", "serve", "--helper")) is None


def test_a_shell_that_has_become_its_last_command_is_still_a_call():
    """If it was seen to, and is a child of the agent or leads a session of its own."""
    registry = mine({"child": True, "shell": True})
    assert tool(registry, facts("git", execs=2), of="mine") == "mine"
    assert tool(registry, facts("git", execs=1), of="mine") is None
    assert tool(registry, facts("git"), of="mine") is None
    env = {"A": "1"}
    registry = mine({"env": env, "shell": True, "session": True})
    assert tool(registry, facts("git", env=env, execs=2)) == "mine"
    assert tool(registry, facts("git", env=env, execs=2, leads=False)) is None
    assert tool(mine({"env": env, "shell": True}), facts("git", env=env, execs=2)) is None


def test_a_value_may_be_one_of_several():
    """Patterns with | between them; also of what it may not be."""
    registry = mine({"env": {"A": "x*|y"}, "unless": {"B": "1|2"}})
    assert [tool(registry, facts("ls", env={"A": a})) for a in ("x1", "y", "y1", "")] == (
        ["mine", "mine", None, None]
    )
    assert [tool(registry, facts("ls", env={"A": "y", "B": b})) for b in "123"] == (
        [None, None, "mine"]
    )


def test_all_marks_of_an_agent_are_needed():
    """One of two is not enough."""
    registry = mine({"env": {"ONE": "1", "TWO": "*"}})
    assert tool(registry, facts("ls", env={"ONE": "1"})) is None
    assert tool(registry, facts("ls", env={"ONE": "1", "TWO": ""})) == "mine"


def test_one_mark_too_many_is_enough_against_it():
    """Unless: none of those may be there with a value that fits."""
    registry = mine({"env": {"A": "1"}, "unless": {"B": "x*", "C": "*"}})
    assert tool(registry, facts("ls", env={"A": "1"})) == "mine"
    assert tool(registry, facts("ls", env={"A": "1", "B": "y"})) == "mine"
    assert tool(registry, facts("ls", env={"A": "1", "B": "xy"})) is None
    assert tool(registry, facts("ls", env={"A": "1", "C": ""})) is None


def test_a_parent_that_is_marked_otherwise_is_not_marked():
    """What an agent's own process may not have does not hide its children."""
    registry = mine({"env": {"A": "1"}, "unless": {"B": "*"}})
    parent = facts("x", env={"A": "1", "B": "1"})
    assert tool(registry, facts("ls", env={"A": "1"}), parent) == "mine"


def test_a_child_needs_its_agent_as_parent():
    """Whatever marks it has."""
    registry = mine({"env": {"A": "1"}, "child": True})
    assert tool(registry, facts("ls", env={"A": "1"})) is None
    assert tool(registry, facts("ls", env={"A": "1"}), of="mine") == "mine"
    assert tool(registry, facts("ls"), of="mine") is None


def test_an_argument_is_a_whole_one():
    """Anywhere in the command line."""
    registry = mine({"child": True, "argument": "--tool"})
    assert tool(registry, facts("x", "a", "--tool"), of="mine") == "mine"
    assert tool(registry, facts("x", "--tool=a"), of="mine") is None
    assert tool(registry, facts("x"), of="mine") is None


def test_an_input_is_any_of_those_that_are_listed():
    """What cannot be seen is none of them."""
    registry = mine({"child": True, "stdin": ["tty", "file"]})
    assert tool(registry, facts("x", stdin="file"), of="mine") == "mine"
    assert tool(registry, facts("x", stdin="tty"), of="mine") == "mine"
    assert tool(registry, facts("x", stdin="pipe"), of="mine") is None
    assert tool(registry, facts("x"), of="mine") is None


def test_marks_that_leak_do_not_hide_the_first_of_its_shape():
    """A parent may have them if it does not look like a tool call itself."""
    shape = {"env": {"A": "1"}, "shell": True}
    server, shell = facts("node", "x.js", env={"A": "1"}), facts(*TEXT, env={"A": "1"})
    assert tool(mine(shape), shell, server) is None
    assert tool(mine({**shape, "leaks": True}), shell, server) == "mine"
    assert tool(mine({**shape, "leaks": True}), shell, shell) is None


def test_tool_calls_may_come_in_several_shapes():
    """The first that fits says what it is."""
    registry = mine(
        [
            {"env": {"A": "1"}, "bare": True, "persistent": True},
            {"env": {"A": "1"}, "shell": True, "person": True},
        ]
    )
    found = [
        registry.tool(facts(*argv, env={"A": "1"}), facts("x"), None)
        for argv in (("bash",), TEXT, ("ls",))
    ]
    assert [f and (f[1].persistent, f[1].person) for f in found] == [SHELL, WITH_PERSON, None]


def test_an_agent_can_be_replaced():
    """The configuration's word is the last one, and the others stay."""
    registry = load_registry({"codex": {"tool": {"env": {"MINE": "1"}}}}, "config.toml")
    assert tool(registry, facts("ls", env={"CODEX_CI": "1"})) is None
    assert tool(registry, facts("ls", env={"MINE": "1"})) == "codex"
    assert "gemini-cli" in registry.kinds


def test_an_agent_of_the_users_goes_before_the_known_ones():
    """Also where one of those would fit."""
    registry = mine({"env": {"AI_AGENT": "house-*"}}, harness={"program": ["codex"]})
    assert tool(registry, facts(*TEXT, env={"AI_AGENT": "house-bot"})) == "mine"
    assert tool(registry, facts(*TEXT, env={"AI_AGENT": "other-bot"})) == "other"
    assert name(registry.harness(facts("codex"))) == "mine"
    assert next(iter(registry.kinds)) == "mine"


FINE = {"env": {"A": "1"}}
SHAPE = (
    "env, unless, child, shell, bare, argument, session, stdin, leaks, ended, persistent, person"
)
WRONG = [
    (7, ["agent.mine is 7", "a table with harness, tool and session"]),
    ({"tools": FINE}, ["agent.mine.tools", "harness, tool, session, name_from"]),
    ({"tool": "x"}, ["agent.mine.tool is 'x'", "a table"]),
    ({"tool": [FINE, 1]}, ["agent.mine.tool is 1", "a table"]),
    ({"tool": FINE, "harness": []}, ["agent.mine.harness is []", "a table"]),
    (
        {"tool": FINE, "harness": {"name": ["x"]}},
        ["agent.mine.harness.name", "program, module, path, argument, without"],
    ),
    ({"tool": {"envs": {}}}, ["agent.mine.tool.envs", SHAPE]),
    ({"tool": {"env": ["A"]}}, ["agent.mine.tool.env is ['A']", "a table of strings"]),
    ({"tool": {"env": {"A": 1}}}, ["agent.mine.tool.env is {'A': 1}", "a table of strings"]),
    ({"tool": {**FINE, "unless": "B"}}, ["agent.mine.tool.unless is 'B'", "a table of strings"]),
    ({"tool": {**FINE, "argument": ["x"]}}, ["agent.mine.tool.argument is ['x']", "a string"]),
    ({"tool": {**FINE, "argument": ""}}, ["agent.mine.tool.argument is ''", "a string"]),
    ({"tool": {**FINE, "stdin": "tty"}}, ["agent.mine.tool.stdin is 'tty'", "a list of strings"]),
    (
        {"tool": {**FINE, "stdin": ["tyt"]}},
        ["agent.mine.tool.stdin", "'tyt'", "null, pipe, socket, tty, file"],
    ),
    *(
        ({"tool": {**FINE, key: value}}, [f"agent.mine.tool.{key} is {value!r}", "true or false"])
        for key, value in [
            ("shell", 1), ("bare", "yes"), ("session", []), ("child", "no"), ("leaks", 0), ("ended", 1),
            ("persistent", "x"), ("person", 2),
        ]
    ),
    (
        {"tool": FINE, "harness": {"program": "mine"}},
        ["agent.mine.harness.program is 'mine'", "a list of strings"],
    ),
    (
        {"tool": FINE, "harness": {"path": [1]}},
        ["agent.mine.harness.path is [1]", "a list of strings"],
    ),
    ({"tool": FINE, "session": 3}, ["agent.mine.session is 3", "the name of a variable"]),
    ({"tool": FINE, "name_from": {}}, ["agent.mine.name_from is {}", "the name of a variable"]),
    ({"harness": {"program": ["mine"]}}, ["agent.mine has no tool", "how a tool call"]),
    ({"tool": []}, ["agent.mine has no tool", "how a tool call"]),
    ({"tool": {}}, ["agent.mine.tool fits anything", "env (marks) or child = true"]),
    ({"tool": {"shell": True}}, ["agent.mine.tool fits anything", "env (marks) or child = true"]),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "said"), WRONG)
def test_a_wrong_entry_is_named_with_what_is_allowed(entry, said):
    """File, key, value, and what is expected instead."""
    with pytest.raises(UsageError) as caught:
        load_registry({"mine": entry}, "config.toml")
    message = str(caught.value)
    assert message.startswith("config.toml: agent.mine")
    assert [part for part in said if part not in message] == []
