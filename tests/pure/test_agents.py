"""Which processes are agents, and which of their children are tool calls."""

import pytest

from receipt_trace.agents import Facts, is_shell_call, load_registry
from receipt_trace.errors import UsageError

CLAUDE = {"AI_AGENT": "claude-code_2-1-332_agent", "CLAUDECODE": "1"}


@pytest.fixture(scope="module")
def registry():
    """The agents that are known."""
    return load_registry()


def facts(*argv, exe=None, env=(), leads=True):
    """Facts of a process."""
    return Facts(10, 5, argv, exe, dict(env), leads)


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
    ],
)
def test_a_program_that_only_mentions_an_agent_is_none(registry, seen):
    """An argument is not a name."""
    assert registry.harness(seen) is None


# -- what is a tool call ---------------------------------------------------------------------------


def tool(registry, seen):
    """The agent whose tool call the facts show."""
    kind = registry.marked(seen)
    return kind.name if kind is not None and kind.has_shape(seen) else None


def test_a_tool_call_of_claude_code_has_its_mark(registry):
    """Hooks, MCP servers and the start-up probe carry another, or none."""
    shell = "bash", "-c", "ls"
    assert tool(registry, facts(*shell, env=CLAUDE)) == "claude-code"
    harness = {"AI_AGENT": "claude-code_2-1-332_harness", "CLAUDECODE": "1"}
    assert tool(registry, facts(*shell, env=harness)) is None
    assert tool(registry, facts(*shell, env={"CLAUDECODE": "1"})) is None
    assert tool(registry, facts(*shell, env={"AI_AGENT": "github_copilot_vscode_agent"})) is None


def test_a_tool_call_of_codex_has_its_mark(registry):
    """With exactly its value."""
    assert tool(registry, facts("bash", "-lc", "ls", env={"CODEX_CI": "1"})) == "codex"
    assert tool(registry, facts("bash", "-lc", "ls", env={"CODEX_CI": "10"})) is None
    assert tool(registry, facts("bash", "-lc", "ls", env={"CODEX_CI": ""})) is None


def test_an_mcp_server_of_gemini_is_no_tool_call(registry):
    """It has the same variable, and is started without a shell."""
    mark = {"GEMINI_CLI": "1"}
    assert tool(registry, facts("bash", "-c", "ls", env=mark)) == "gemini-cli"
    assert tool(registry, facts("node", "server.js", env=mark)) is None
    assert tool(registry, facts("bash", "run-server.sh", env=mark)) is None


def test_a_tool_call_of_mini_swe_agent_is_known_by_its_shape(registry):
    """It marks nothing: whatever its shell has become leads a session of its own."""
    kind = registry.kinds["mini-swe-agent"]
    assert kind.child
    assert kind.has_shape(facts("bash", "-c", "ls"))
    assert not kind.has_shape(facts("bash", "-c", "ls", leads=False))
    assert kind.has_shape(facts("git", "status"))
    assert not kind.is_marked(facts("bash", "-c", "ls", env=CLAUDE))


def test_without_a_mark_nobody_is_a_tool_call(registry):
    """An empty environment has no mark."""
    assert registry.marked(facts("bash", "-c", "ls")) is None


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("sh", "-c", "ls"), True),
        (("/bin/bash", "-lc", "ls"), True),
        (("-bash", "-c", "ls"), True),
        (("bash", "-c", "-l", "ls"), True),
        (("bash", "--norc", "-c", "ls"), True),
        (("bash", "-o", "pipefail", "-c", "ls"), True),
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


# -- what a configuration may say --------------------------------------------------------------


def test_an_agent_can_be_added():
    """Every field of an entry has its effect."""
    entry = {
        "harness": {"program": ["mine"], "module": ["mine.main"], "path": ["/mine/"]},
        "tool": {"env": {"MINE": "v*"}, "shell": True, "session": True},
        "session": "MINE_SESSION",
    }
    registry = load_registry({"mine": entry}, "config.toml")
    assert name(registry.harness(facts("mine"))) == "mine"
    assert name(registry.harness(facts("python", "-m", "mine.main"))) == "mine"
    assert name(registry.harness(facts("python", "/opt/mine/run.py"))) == "mine"
    assert tool(registry, facts("sh", "-c", "ls", env={"MINE": "v2"})) == "mine"
    assert tool(registry, facts("sh", "-c", "ls", env={"MINE": "2"})) is None
    assert tool(registry, facts("sh", "-c", "ls", env={"MINE": "v2"}, leads=False)) is None
    assert tool(registry, facts("ls", env={"MINE": "v2"})) is None
    assert registry.kinds["mine"].session_variable == "MINE_SESSION"


def test_all_marks_of_an_agent_are_needed():
    """One of two is not enough."""
    registry = load_registry({"mine": {"tool": {"env": {"ONE": "1", "TWO": "*"}}}}, "x")
    assert tool(registry, facts("ls", env={"ONE": "1"})) is None
    assert tool(registry, facts("ls", env={"ONE": "1", "TWO": ""})) == "mine"


def test_an_agent_can_be_replaced():
    """The configuration's word is the last one, and the others stay."""
    registry = load_registry({"codex": {"tool": {"env": {"MINE": "1"}}}}, "config.toml")
    assert registry.marked(facts("ls", env={"CODEX_CI": "1"})) is None
    assert name(registry.marked(facts("ls", env={"MINE": "1"}))) == "codex"
    assert "gemini-cli" in registry.kinds


FINE = {"env": {"A": "1"}}
WRONG = [
    (7, ["agent.mine", "7", "a table with harness, tool and session"]),
    ({"tools": FINE}, ["agent.mine.tools", "harness, session, tool"]),
    ({"tool": "x"}, ["agent.mine.tool", "'x'", "env, shell, session, child"]),
    ({"tool": FINE, "harness": []}, ["agent.mine.harness", "[]", "program, module, path"]),
    ({"tool": {"envs": {}}}, ["agent.mine.tool.envs", "child, env, session, shell"]),
    ({"tool": {"env": ["A"]}}, ["agent.mine.tool.env", "['A']", "a table of strings"]),
    ({"tool": {"env": {"A": 1}}}, ["agent.mine.tool.env", "{'A': 1}", "a table of strings"]),
    ({"tool": {**FINE, "shell": 1}}, ["agent.mine.tool.shell", "1", "true or false"]),
    ({"tool": {**FINE, "child": "no"}}, ["agent.mine.tool.child", "'no'", "true or false"]),
    (
        {"tool": FINE, "harness": {"program": "mine"}},
        ["agent.mine.harness.program", "'mine'", "a list of strings"],
    ),
    (
        {"tool": FINE, "harness": {"path": [1]}},
        ["agent.mine.harness.path", "[1]", "a list of strings"],
    ),
    ({"tool": FINE, "session": 3}, ["agent.mine.session", "3", "the name of a variable"]),
    ({"harness": {"program": ["mine"]}}, ["agent.mine", "tool.env or tool.child"]),
]


@pytest.mark.parametrize(("entry", "said"), WRONG)
def test_a_wrong_entry_is_named_with_what_is_allowed(entry, said):
    """File, key, value, and what is expected instead."""
    with pytest.raises(UsageError) as caught:
        load_registry({"mine": entry}, "config.toml")
    message = str(caught.value)
    assert message.startswith("config.toml: agent.mine")
    assert [part for part in said if part not in message] == []
