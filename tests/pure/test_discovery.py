"""Finding tool calls: events and a /proc in, trees out."""

import pytest
from builders import NS, START

from receipt_trace.agents import MARK, load_registry
from receipt_trace.discovery import Discovery
from receipt_trace.observation import Beginning, Ending, Exec, Exit, Fork, ProcessId, Resync
from receipt_trace.trees import Agent, Trees

SHELL = ("bash", "-c", "make deploy")
GEMINI = {"GEMINI_CLI": "1"}
CLAUDE = {"AI_AGENT": "claude-code_2-1-332_agent", "CLAUDE_CODE_SESSION_ID": "s-1"}
COPILOT = {"COPILOT_CLI": "1"}
PERSISTENT = {"ROO_ACTIVE": "true"}
CODEX = {"CODEX_CI": "1", "CODEX_THREAD_ID": "t-1"}


class World:
    """A host: what happens is written to its /proc and told as events."""

    def __init__(self, proc, registry):
        self.proc = proc
        self.started, self.found = [], []
        self.now = 0
        self.counted = {}  # what the kernel says of who became another program
        self.discovery = Discovery(
            proc.root,
            Trees(),
            registry or load_registry(),
            self.started.append,
            self.found.append,
            lambda: self.now,
            everybody=registry is not None,
            execs=lambda pid: self.counted.get(pid, 0),
        )

    def fork(self, parent, child, *, stdin=None, **more):
        """Somebody is born, and looks like his parent."""
        self.proc.add(child, parent, **more)
        if stdin is not None:
            self.proc.hold(child, {0: stdin})
        return self.discovery.take([Fork(parent, child)])

    def spawn(self, parent, child, argv, env=(), *, stdin=None, **more):
        """Somebody is born and becomes a program."""
        self.fork(parent, child)
        return self.exec(child, argv, env, stdin=stdin, **more)

    def exec(self, pid, argv, env=(), *, stdin=None, **more):
        """Somebody becomes another program."""
        self.proc.add(pid, self.proc.parents[pid], argv, env, **more)
        if stdin is not None:
            self.proc.hold(pid, {0: stdin})
        return self.discovery.take([Exec(pid)])

    def later(self, seconds=1):
        """Time passes."""
        self.now += round(seconds * NS)

    def shell(self, parent=1, pid=10, env=PERSISTENT):
        """A shell on a terminal that lives on between tool calls."""
        self.spawn(parent, pid, ("bash", "-i"), env, stdin="/dev/pts/3")
        self.later()

    def members(self):
        """The members of every tree that was found, in that order."""
        return [set(tree.members) for tree in self.started]

    def exit(self, pid, status):
        """Somebody ends and is reaped."""
        self.proc.remove(pid)
        return self.discovery.take([Exit(pid, status)])

    def roots(self):
        """The numbers of the roots of all trees, in the order they were found."""
        return [tree.root.pid for tree in self.started]


@pytest.fixture
def world(proc):
    """A host whose known agents are followed."""
    return World(proc, load_registry())


@pytest.fixture
def quiet(proc):
    """A host where only what is named is followed."""
    return World(proc, None)


# -- marks -----------------------------------------------------------------------------------------


def test_a_marked_process_is_the_root_of_a_tree(world):
    """It carries its label, and knows who started it."""
    world.spawn(1, 10, ("make",), {MARK: "demo"})
    (tree,) = world.started
    assert (tree.root, tree.label, tree.parent) == (ProcessId(10, START), "demo", 1)
    assert tree.agent is None
    assert world.discovery.trees.of(10) is tree


def test_whoever_inherits_the_mark_is_a_member_and_no_root(world):
    """The mark is in every environment below."""
    world.spawn(1, 10, ("make",), {MARK: "demo"})
    world.spawn(10, 11, ("cc",), {MARK: "demo"})
    assert world.roots() == [10]
    assert set(world.started[0].members) == {10, 11}


def test_a_mark_is_looked_at_with_the_parents(world):
    """Where no events came, a sweep still takes the topmost."""
    world.proc.add(10, 1, ("make",), {MARK: "demo"})
    world.proc.add(11, 10, ("cc",), {MARK: "demo"})
    world.discovery.sweep()
    assert world.roots() == [10]
    assert set(world.started[0].members) == {10, 11}


def test_another_label_outside_is_another_tree(world):
    """A shell that marks two commands has two tool calls."""
    world.spawn(1, 10, ("make",), {MARK: "one"})
    world.spawn(1, 11, ("make",), {MARK: "two"})
    assert [tree.label for tree in world.started] == ["one", "two"]


def test_another_label_inside_a_tree_is_a_tree_of_its_own(world):
    """A tool call inside a tool call."""
    world.spawn(1, 10, ("make",), {MARK: "one"})
    world.spawn(10, 11, ("make",), {MARK: "two"})
    assert world.roots() == [10, 11]


def test_an_empty_mark_is_none(world):
    """RECEIPT_TRACE= switches nothing on."""
    world.spawn(1, 10, ("make",), {MARK: ""})
    assert world.roots() == []


def test_nothing_is_followed_unless_it_is_named(quiet):
    """Without a registry marks mean nothing."""
    quiet.spawn(1, 10, ("make",), {MARK: "demo"})
    quiet.spawn(1, 11, SHELL, CODEX)
    assert quiet.roots() == []


# -- agents ----------------------------------------------------------------------------------------


def test_an_agent_is_found_once(world):
    """However often it is looked at."""
    world.spawn(1, 5, ("codex",))
    world.discovery.take([Exec(5)])
    world.discovery.sweep()
    assert world.found == [Agent("codex", 5)]
    assert world.roots() == []


# -- what is gone before anybody looks ---------------------------------------------------------------


def began(argv, env=(), *, pid=10, parent=5, start=START, **more):
    """What the kernel told of the root of a tree."""
    more = {"stdin": "null", "leads_session": True, "uid": 7, **more}
    return Beginning(ProcessId(pid, start), parent, argv[0], tuple(argv), dict(env), **more)


def test_a_call_that_is_gone_already_is_a_tree(world):
    """By what the kernel told of its beginning; its children and its end come as always."""
    world.spawn(1, 5, ("codex",))
    told = began(SHELL, CODEX)
    world.discovery.take(
        [
            Fork(5, 10, told.identity),
            Exec(10, told),
            Fork(10, 11, ProcessId(11, START + 1)),
            Exit(11, 0),
            Exit(10, 256),
        ]
    )
    (tree,) = world.started
    assert (tree.root, tree.parent, tree.agent) == (told.identity, 5, Agent("codex", 5, "t-1"))
    assert tree.began is told
    assert tree.recognised
    assert tree.members == {}
    assert tree.ended == {
        told.identity: Ending(256),
        ProcessId(11, START + 1): Ending(0),
    }


def test_a_zombie_is_what_the_kernel_told(world):
    """Its own arguments and environment are gone with its memory."""
    world.spawn(1, 5, ("codex",))
    world.proc.add(10, 5, (), state="Z")
    world.discovery.take([Exec(10, began(SHELL, CODEX))])
    assert world.roots() == [10]


def test_what_is_gone_and_has_no_shape_of_a_call_is_none(world):
    """An agent starts other things, too."""
    world.spawn(1, 5, ("codex",))
    world.discovery.take([Exec(10, began(("git", "status"), leads_session=False)), Exit(10, 0)])
    assert world.roots() == []


def test_what_was_told_is_completed_by_who_is_there(world):
    """Of a large environment only the last was told."""
    world.spawn(1, 5, ("codex",))
    world.fork(5, 10)
    world.proc.add(10, 5, SHELL, CODEX)
    world.discovery.take([Exec(10, began(SHELL))])
    assert world.roots() == [10]


def test_who_has_become_something_else_meanwhile_is_what_was_told_first(world):
    """And is named so, though he is looked at when he is another one."""
    world.spawn(1, 5, ("codex",))
    world.fork(5, 10)
    world.proc.add(10, 5, ("make", "deploy"), {})
    first, second = began(SHELL, CODEX), began(("make", "deploy"), CODEX)
    world.discovery.take([Exec(10, first), Exec(10, second)])
    (tree,) = world.started
    assert tree.began is first
    assert tree.recognised


def test_how_often_somebody_became_another_program_is_of_that_moment(world):
    """What starts an agent's shell on a terminal is none yet, though it is the shell by now."""
    world.spawn(1, 5, ("goose", "run"))
    world.fork(5, 10)
    world.proc.add(10, 5, SHELL)
    world.counted[10] = 2
    world.discovery.take([Exec(10, began(("python3", "start.py", *SHELL), execs=1))])
    assert world.roots() == []
    world.discovery.take([Exec(10, began(SHELL, execs=2))])
    assert world.started[0].began.argv == SHELL


def test_what_was_told_is_of_the_last_program(world):
    """One that is told of no more, or after a loss, is looked at."""
    world.spawn(1, 5, ("codex",))
    world.fork(5, 10)
    for event in (Exec(10), Resync()):
        world.discovery.take([Exec(10, began(("git", "status"), leads_session=False))])
        world.proc.add(10, 5, SHELL, CODEX)
        world.discovery.take([event])
        world.discovery.sweep()
        assert world.roots() == [10]
        world.exit(10, 0)
        world.started.clear()
        world.fork(5, 10)


def test_the_first_input_is_what_the_kernel_saw(world):
    """Whoever has moved it elsewhere by the time of the first look was given that all the same."""
    world.spawn(1, 5, ("goose", "run"))
    shell = ("bash", "-c", "exec </dev/tty; vi f")
    world.fork(5, 10)
    world.proc.add(10, 5, shell, {"GOOSE_TERMINAL": "1", "AGENT": "goose"}, session=10)
    world.proc.hold(10, {0: "/dev/pts/3"})
    told = began(shell, {"GOOSE_TERMINAL": "1", "AGENT": "goose"})
    world.discovery.take([Exec(10, told)])
    assert world.roots() == [10]


def test_a_command_below_a_persistent_shell_may_be_gone_at_its_birth(world):
    """Its identity came with that; what it became is told later."""
    world.shell()
    identity = ProcessId(11, START + 3)
    told = began(("rm", "-i", "f"), pid=11, parent=10, start=START + 3)
    world.discovery.take([Fork(10, 11, identity)])
    (tree,) = world.started
    assert (tree.root, tree.parent) == (identity, 10)
    world.discovery.take([Exec(11, told), Exit(11, 0)])
    assert tree.began is told
    assert tree.ended == {identity: Ending(0)}


def test_a_number_that_is_used_again_is_somebody_new(world):
    """Though the end of the one before was never told."""
    world.spawn(1, 5, ("codex",))
    world.discovery.take([Exec(10, began(("git", "status"), leads_session=False))])
    world.discovery.take([Fork(1, 10, ProcessId(10, START + 9)), Exec(10)])
    world.discovery.take([Exec(10)])
    assert world.roots() == []
    with pytest.raises(FileNotFoundError):
        world.discovery.name_root(10)


def test_a_marked_call_of_an_agent_is_a_tree(world):
    """It knows its agent and the agent's session."""
    world.spawn(1, 5, ("codex",))
    world.spawn(5, 10, SHELL, CODEX)
    (tree,) = world.started
    assert (tree.root.pid, tree.agent) == (10, Agent("codex", 5, "t-1"))


def test_an_agent_is_found_through_its_tool_call(world):
    """It was there before us and has never been looked at."""
    world.proc.add(5, 1, ("codex",))
    world.proc.add(6, 5, ("bwrap",))
    world.spawn(6, 10, SHELL, CODEX)
    assert world.started[0].agent == Agent("codex", 5, "t-1")
    assert world.found == [Agent("codex", 5)]


def test_a_call_of_an_agent_that_cannot_be_found_names_its_parent(world):
    """The mark says whose it is."""
    world.proc.add(6, 1, ("something",))
    world.spawn(6, 10, SHELL, CODEX)
    assert world.started[0].agent == Agent("codex", 6, "t-1")


def test_only_the_topmost_of_the_marked_is_a_root(world):
    """Also where its birth was missed and only the exec of its child is told."""
    world.spawn(1, 5, ("node", "/usr/bin/gemini"))
    world.proc.add(10, 5, SHELL, GEMINI)
    world.spawn(10, 11, ("bash", "-c", "inner"), GEMINI)
    assert world.roots() == []
    world.discovery.sweep()
    assert world.roots() == [10]
    assert set(world.started[0].members) == {10, 11}


def test_an_mcp_server_is_no_tool_call(world):
    """Nor are the shells below it, which inherit the mark."""
    world.spawn(1, 5, ("node", "/usr/bin/gemini"))
    world.spawn(5, 10, ("node", "server.js"), GEMINI, session=5)
    world.spawn(10, 11, SHELL, GEMINI)
    assert world.roots() == []


def test_a_child_of_an_agent_that_marks_nothing_is_a_tree(world):
    """If it has the shape of a call."""
    world.spawn(1, 5, ("python", "-m", "minisweagent"))
    world.spawn(5, 10, SHELL, session=10)
    world.spawn(5, 11, SHELL, session=5)
    world.spawn(5, 12, ("git", "status"), session=5)
    world.fork(5, 13)  # a shell that has become its command before it is looked at
    world.proc.add(13, 5, ("rm", "-i", "f"), session=13)
    world.discovery.take([Exec(13), Exec(13)])
    assert world.roots() == [10, 13]
    assert world.started[0].agent == Agent("mini-swe-agent", 5)


def test_a_call_older_than_the_discovery_of_its_agent_is_found(world):
    """The children of an agent are looked at when it is found."""
    world.proc.add(5, 1, ("python", "-m", "minisweagent"))
    world.proc.add(10, 5, SHELL, session=10)
    world.discovery.take([Exec(5)])
    assert world.roots() == [10]


def test_a_grandchild_of_such_an_agent_is_none(world):
    """Only its own children are its calls."""
    world.spawn(1, 5, ("python", "-m", "minisweagent"))
    world.spawn(5, 6, ("helper",), session=5)
    world.spawn(6, 10, SHELL, session=10)
    assert world.roots() == []


def test_an_agent_that_has_ended_has_no_calls(world):
    """Its number may be anybody's now."""
    world.spawn(1, 5, ("python", "-m", "minisweagent"))
    world.exit(5, 0)
    world.fork(1, 5)
    world.spawn(5, 10, SHELL, session=10)
    assert world.roots() == []


# -- what the caller names -------------------------------------------------------------------------


def test_a_named_root_brings_everybody_below_it(quiet):
    """Those who live now, and those who are born later."""
    for pid, ppid in ((10, 1), (11, 10), (12, 11), (20, 1)):
        quiet.proc.add(pid, ppid)
    tree = quiet.discovery.name_root(10)
    assert set(tree.members) == {10, 11, 12}
    quiet.fork(12, 13)
    assert set(tree.members) == {10, 11, 12, 13}
    assert tree.members[13] == ProcessId(13, START)


def test_naming_a_root_twice_is_naming_it_once(quiet):
    """The second gives the same tree."""
    quiet.proc.add(10)
    assert quiet.discovery.name_root(10) is quiet.discovery.name_root(10)
    assert quiet.roots() == [10]


def test_a_root_that_is_gone_cannot_be_named(quiet):
    """Whoever asked is told."""
    with pytest.raises(OSError):
        quiet.discovery.name_root(99)


def test_each_child_of_a_named_agent_is_a_tree(quiet):
    """Now and later, whatever it looks like; what the children start is theirs."""
    quiet.proc.add(5, 1, ("harness",))
    quiet.proc.add(10, 5)
    quiet.proc.add(11, 5)
    quiet.discovery.name_agent(5)
    quiet.fork(5, 12)
    quiet.fork(12, 13)
    assert quiet.roots() == [10, 11, 12]
    assert {tree.agent for tree in quiet.started} == {Agent("harness", 5)}
    assert set(quiet.started[2].members) == {12, 13}


def test_of_a_named_agent_that_is_known_only_its_tool_calls_count(world):
    """Those that are there and those that come; its hooks and servers are nobody's."""
    world.proc.add(5, 1, ("node", "/usr/bin/gemini"))
    world.proc.add(10, 5, SHELL, GEMINI)
    world.proc.add(11, 5, ("node", "server.js"), GEMINI, session=5)
    world.discovery.name_agent(5)
    assert world.roots() == [10]
    world.spawn(5, 12, ("node", "server.js"), GEMINI, session=5)
    world.spawn(5, 13, SHELL, GEMINI)
    assert world.roots() == [10, 13]
    assert {tree.agent for tree in world.started} == {Agent("gemini-cli", 5)}
    assert world.found == [Agent("gemini-cli", 5)]


def test_of_a_named_agent_that_is_not_known_every_child_counts(world):
    """Also where the known ones are looked for."""
    world.proc.add(5, 1, ("house-bot",))
    world.proc.add(10, 5, ("node", "server.js"))
    world.discovery.name_agent(5)
    world.fork(5, 11)
    assert world.roots() == [10, 11]
    assert {tree.agent for tree in world.started} == {Agent("house-bot", 5)}


def test_an_agent_that_is_gone_cannot_be_named(world):
    """Whoever asked is told."""
    with pytest.raises(OSError):
        world.discovery.name_agent(99)


def test_the_root_of_a_named_agent_knows_it(quiet):
    """A named root below a named agent."""
    quiet.proc.add(5, 1, ("harness",))
    quiet.discovery.name_agent(5)
    quiet.proc.add(6, 5)
    quiet.proc.add(10, 6)
    assert quiet.discovery.name_root(10).agent == Agent("harness", 5)


# -- shells that live on ---------------------------------------------------------------------------


def test_a_shell_that_lives_on_is_no_tool_call_but_its_commands_are(world):
    """Each command for itself, however long the shell lives."""
    world.shell()
    assert world.roots() == []
    world.spawn(10, 11, ("git", "status"), PERSISTENT)
    world.spawn(11, 12, ("less",), PERSISTENT)
    world.exit(12, 0)
    world.exit(11, 0)
    world.later()
    world.spawn(10, 13, ("make",), PERSISTENT)
    assert world.roots() == [11, 13]
    assert world.members() == [set(), {13}]
    assert all(tree.recognised and tree.person for tree in world.started)
    assert {tree.agent for tree in world.started} == {Agent("roo-code", 1)}


def test_two_commands_at_once_are_two_trees_if_time_lies_between(world):
    """One of them was sent to the background."""
    world.shell()
    world.fork(10, 11)
    world.later(0.2)
    world.fork(10, 12)
    assert world.members() == [{11}, {12}]


def test_a_pipeline_is_one_tree(world):
    """Its members are forked in one go; the first is the root."""
    world.shell()
    world.fork(10, 11, group=11)
    world.later(0.09)
    world.fork(10, 12, group=11)
    world.later(0.09)
    world.fork(10, 13, group=11)
    assert world.members() == [{11, 12, 13}]
    assert world.started[0].root == ProcessId(11, START)
    assert world.started[0].born == 3
    world.exit(11, 0)
    world.fork(12, 14)
    assert world.members() == [{12, 13, 14}]


def test_a_command_right_after_another_has_ended_is_a_tree_of_its_own(world):
    """Nobody is left whom it could belong to."""
    world.shell()
    world.fork(10, 11)
    world.exit(11, 0)
    world.later(0.01)
    world.fork(10, 12)
    assert world.roots() == [11, 12]
    assert world.members() == [set(), {12}]


def test_what_is_below_a_shell_when_it_is_found_is_told_apart_by_its_jobs(world):
    """A process group is a job, and a job is a command."""
    world.proc.add(10, 1, ("bash", "-i"), PERSISTENT)
    world.proc.hold(10, {0: "/dev/pts/3"})
    for pid, ppid, group in ((11, 10, 11), (12, 10, 11), (13, 10, 13), (14, 13, 13)):
        world.proc.add(pid, ppid, ("x",), PERSISTENT, group=group)
    world.discovery.take([Exec(10)])
    assert world.members() == [{11, 12}, {13, 14}]


def test_a_shell_is_found_once(world):
    """A sweep finds it again and changes nothing."""
    world.shell()
    world.fork(10, 11)
    world.discovery.sweep()
    world.discovery.take([Exec(10)])
    assert world.members() == [{11}]
    assert list(world.discovery.shells) == [10]


def test_a_shell_that_has_ended_has_no_commands(world):
    """Its number may be anybody's now."""
    world.shell()
    world.exit(10, 0)
    world.fork(1, 10)
    world.fork(10, 11)
    assert world.roots() == []


def test_a_sweep_drops_a_shell_whose_number_is_used_again(world):
    """Its successor's children are nobody's calls."""
    world.shell()
    world.proc.add(10, 1, ("sleep",), start=START + 1)
    world.proc.hold(10, {})
    world.discovery.sweep()
    world.fork(10, 11)
    assert world.roots() == []


def test_a_shell_inside_a_tool_call_leaves_it(world):
    """An agent that was started by an agent keeps its shell there."""
    world.spawn(1, 5, ("codex",))
    world.spawn(5, 6, SHELL, CODEX)
    world.spawn(6, 7, ("python3", "/usr/bin/roo"), CODEX)
    world.shell(7, 10, {**CODEX, **PERSISTENT})
    world.spawn(10, 11, ("make",), {**CODEX, **PERSISTENT})
    assert world.members() == [{6, 7}, {11}]
    assert [tree.agent.name for tree in world.started] == ["codex", "roo-code"]


def test_a_shell_within_a_command_of_the_shell_is_no_second_one(world):
    """`bash` typed at the prompt: what it runs belongs to that command."""
    world.shell()
    world.spawn(10, 11, ("bash",), PERSISTENT, stdin="/dev/pts/3")
    world.later()
    world.spawn(11, 12, ("make",), PERSISTENT)
    assert world.members() == [{11, 12}]


def test_a_label_names_a_command_of_the_shell(world):
    """RECEIPT_TRACE=deploy make: the tree is there when the program gets its mark."""
    world.shell()
    world.spawn(10, 11, ("make",), {**PERSISTENT, MARK: "deploy"})
    (tree,) = world.started
    assert (tree.root.pid, tree.label, tree.agent.name) == (11, "deploy", "roo-code")


def test_whose_children_are_of_interest_can_be_asked(world):
    """Who sees no events looks for them himself, and does not tell the known again."""
    world.proc.add(5, 1, ("house-bot",))
    world.discovery.name_agent(5)
    world.shell()
    world.fork(10, 11)
    assert sorted(world.discovery.parents()) == [5, 10]
    assert [world.discovery.known(pid) for pid in (5, 10, 11, 12)] == [False, True, True, False]


def test_what_an_agent_forked_is_the_agent_still(world):
    """The server of tmux is its client, forked: the shell in its pane is a child of that."""
    world.spawn(1, 5, ("tmux", "new-session", "-d", "-s", "terminus-2", "bash --login"))
    world.fork(5, 6)
    world.exit(5, 0)
    world.spawn(6, 10, ("bash", "--login"), stdin="/dev/pts/3")
    world.spawn(10, 11, ("make",))
    assert world.roots() == [11]
    assert world.started[0].agent.name == "terminus-2"


def test_what_an_agent_forked_is_something_else_once_it_has_become_that(world):
    """A helper's children are nobody's."""
    world.spawn(1, 5, ("python", "-m", "minisweagent"))
    world.fork(5, 6)
    world.exec(6, ("helper",))
    world.spawn(6, 10, SHELL, session=10)
    assert world.roots() == []


def test_an_agent_that_has_become_something_else_is_none(world):
    """Its children are nobody's."""
    world.spawn(1, 5, ("python", "-m", "minisweagent"))
    world.exec(5, ("make",))
    world.spawn(5, 10, SHELL, session=10)
    assert world.roots() == []


def test_of_some_agents_the_input_of_a_call_is_at_its_end_from_the_start(world):
    """Whoever waits there has been given nothing yet: a hook of the same looks."""
    world.spawn(1, 5, ("kimi",))
    world.spawn(5, 10, SHELL, stdin="pipe:[7]")
    world.spawn(1, 6, ("python", "-m", "minisweagent"))
    world.spawn(6, 20, SHELL, session=20)
    assert [(tree.agent.name, tree.ended_input) for tree in world.started] == [
        ("kimi-cli", True),
        ("mini-swe-agent", False),
    ]


# -- agents inside tool calls ----------------------------------------------------------------------


def nested(world, *, inner=("claude", "-p", "hello")):
    """An agent that was started by a tool call of another."""
    world.spawn(1, 5, ("codex",))
    world.spawn(5, 10, ("bash", "-lc", "true; claude -p hello"), CODEX)
    world.spawn(10, 11, inner, CODEX)


def test_a_tool_call_of_an_agent_inside_a_tool_call_is_a_tree_of_its_own(world):
    """It belongs to the inner agent; the inner agent itself to the outer call."""
    nested(world)
    world.spawn(11, 12, SHELL, {**CODEX, **CLAUDE})
    world.spawn(12, 13, ("git",), {**CODEX, **CLAUDE})
    assert world.members() == [{10, 11}, {12, 13}]
    assert [tree.agent for tree in world.started] == [
        Agent("codex", 5, "t-1"),
        Agent("claude-code", 11, "s-1"),
    ]


def test_an_inner_agent_of_the_same_kind_has_its_own_calls(world):
    """Its process carries the outer one's mark, and is an agent all the same."""
    world.spawn(1, 5, ("claude",))
    world.spawn(5, 10, ("bash", "-c", "true; claude -p hello"), CLAUDE)
    world.spawn(10, 11, ("claude", "-p", "hello"), CLAUDE)
    world.spawn(11, 12, SHELL, CLAUDE)
    assert world.members() == [{10, 11}, {12}]
    assert [tree.agent.pid for tree in world.started] == [5, 11]


def test_an_inner_agent_that_marks_nothing_has_its_own_calls(world):
    """They are known by their shape and their parent."""
    nested(world, inner=("python", "-m", "minisweagent"))
    world.spawn(11, 12, SHELL, CODEX, session=12)
    assert world.members() == [{10, 11}, {12}]
    assert world.started[1].agent == Agent("mini-swe-agent", 11)


def test_hooks_and_servers_of_an_inner_agent_belong_to_the_outer_call(world):
    """They are part of what it started."""
    nested(world)
    own = {"AI_AGENT": "claude-code_2-1-332_harness"}
    world.spawn(11, 12, ("sh", "-c", "hook"), {**CODEX, **own})
    assert world.members() == [{10, 11, 12}]


@pytest.mark.parametrize(
    ("program", "env"),
    [
        pytest.param(("claude", "-p", "x"), {**CODEX, **CLAUDE}, id="with marks"),
        pytest.param(("python", "-m", "minisweagent"), CODEX, id="without"),
    ],
)
def test_a_tool_call_that_becomes_an_agent_has_that_agents_calls_below(world, program, env):
    """`bash -lc mini`: the shell makes way for its only command."""
    world.spawn(1, 5, ("codex",))
    world.spawn(5, 10, SHELL, CODEX)
    world.exec(10, program, CODEX)
    world.spawn(10, 12, SHELL, env, session=12)
    assert world.members() == [{10}, {12}]


@pytest.mark.parametrize(("times", "members"), [(2, [{12}]), (1, []), (0, [])])
def test_a_call_whose_events_were_lost_is_found_by_how_often_it_became_a_program(
    world, times, members
):
    """The shell has made way for its command before anybody could look: the kernel has counted."""
    world.proc.add(10, 1, ("newcomer",))
    world.proc.add(12, 10, ("cookiecutter", "t"), {"AI_AGENT": "newcomer"}, session=12)
    world.counted[12] = times
    world.discovery.sweep()
    assert world.members() == members


def test_a_claude_that_was_started_by_a_claude_in_place_has_its_own_calls(world):
    """Its process has the outer one's mark, and is the root of the outer one's call."""
    world.spawn(1, 5, ("claude",))
    world.spawn(5, 10, SHELL, CLAUDE)
    world.exec(10, ("claude", "-p", "x"), CLAUDE)
    world.spawn(10, 12, SHELL, CLAUDE)
    assert world.members() == [{10}, {12}]


def test_a_shell_deep_in_a_tool_call_is_part_of_it(world):
    """Make starts `sh -c` for each recipe; marks that leak make no calls of those."""
    world.spawn(1, 5, ("node", "/usr/bin/copilot"))
    world.spawn(5, 10, SHELL, COPILOT)
    world.spawn(10, 11, ("make",), COPILOT)
    world.spawn(11, 12, ("/bin/sh", "-c", "recipe"), COPILOT)
    assert world.members() == [{10, 11, 12}]


# -- birth and death -------------------------------------------------------------------------------


def test_a_child_too_fast_to_be_seen_hands_the_tree_on(world):
    """It was gone before it was looked at; its child was not."""
    world.spawn(1, 10, ("make",), {MARK: "demo"})
    world.discovery.take([Fork(10, 11)])
    world.fork(11, 12)
    assert world.started[0].members == {
        10: ProcessId(10, START),
        11: None,
        12: ProcessId(12, START),
    }


def test_a_number_used_again_is_somebody_else(world):
    """Its exit was put off or never told, and it was never looked at: the new one is no member."""
    world.spawn(1, 10, ("make",), {MARK: "demo"})
    world.discovery.take([Fork(10, 11)])  # gone before it was looked at
    world.spawn(1, 11, ("cat",))
    assert world.members() == [{10}]


def test_a_birth_told_late_changes_nothing(world):
    """Who was found below a root before his birth was told is the same one."""
    world.proc.add(11, 10, ("cc",))
    world.spawn(1, 10, ("make",), {MARK: "demo"})
    assert world.members() == [{10, 11}]
    world.discovery.take([Fork(10, 11)])
    assert world.members() == [{10, 11}]
    assert world.started[0].take_ended() == {}


def test_an_exit_takes_a_member_away(world):
    """With its wait status."""
    world.spawn(1, 10, ("make",), {MARK: "demo"})
    world.spawn(10, 11, ("cc",))
    world.exit(11, 256)
    (tree,) = world.started
    assert set(tree.members) == {10}
    assert tree.take_ended() == {ProcessId(11, START): Ending(256)}


def test_a_zombie_has_ended(world):
    """Nobody has reaped it yet."""
    world.spawn(1, 10, ("make",), {MARK: "demo"})
    world.proc.add(10, 1, ("make",), {MARK: "demo"}, state="Z")
    world.discovery.take([Exit(10, 0)])
    assert world.started[0].members == {}


@pytest.mark.parametrize("state", ["S", "Z"])
def test_a_leader_that_leaves_its_threads_is_still_there(world, state):
    """The process ends with its last thread; until then its leader may be a zombie."""
    world.spawn(1, 10, ("make",), {MARK: "demo"})
    world.proc.add(10, 1, ("make",), {MARK: "demo"}, threads=2, state=state)
    world.discovery.take([Exit(10, 0)])
    assert set(world.started[0].members) == {10}
    assert world.started[0].take_ended() == {}


def test_an_exit_told_late_does_not_take_the_next_one_of_that_number(world):
    """When it is told, the number already belongs to somebody else."""
    world.spawn(1, 10, ("make",), {MARK: "demo"})
    world.fork(10, 11)
    world.proc.add(11, 1, start=START + 7)
    world.discovery.take([Exit(11, 256)])
    (tree,) = world.started
    assert set(tree.members) == {10}
    assert tree.take_ended() == {ProcessId(11, START): Ending(256)}


def test_an_exit_status_told_early_is_kept_until_the_process_is_gone(world):
    """It is told once, while the process still looks alive."""
    world.spawn(1, 10, ("make",), {MARK: "demo"})
    world.fork(10, 11)
    world.discovery.take([Exit(11, 256)])
    (tree,) = world.started
    assert set(tree.members) == {10, 11}
    world.proc.remove(11)
    world.discovery.gone(11, None)
    assert tree.take_ended() == {ProcessId(11, START): Ending(256)}


def test_a_status_that_was_put_off_is_not_that_of_the_next_program(world):
    """A thread called exec: its leader's end was not the end of the process."""
    world.spawn(1, 10, ("make",), {MARK: "demo"})
    world.fork(10, 11)
    world.discovery.take([Exit(11, 256), Exec(11)])
    world.proc.remove(11)
    world.discovery.gone(11, None)
    assert world.started[0].take_ended() == {ProcessId(11, START): Ending(None)}


# -- after a loss ----------------------------------------------------------------------------------


def test_a_loss_of_events_is_told(world):
    """And the events beside it are still taken."""
    assert world.fork(1, 10) is False
    world.proc.add(10, 1, ("make",), {MARK: "demo"})
    assert world.discovery.take([Resync(), Exec(10)]) is True
    assert world.roots() == [10]


def test_a_sweep_adopts_whoever_was_born_unseen(world):
    """Everybody below a member is a member, however deep."""
    world.spawn(1, 10, ("make",), {MARK: "demo"})
    for pid, ppid in ((11, 10), (12, 11), (13, 12), (20, 1)):
        world.proc.add(pid, ppid)
    world.discovery.sweep()
    (tree,) = world.started
    assert set(tree.members) == {10, 11, 12, 13}
    assert tree.members[13] == ProcessId(13, START)


def test_a_sweep_drops_whoever_ended_unseen(world):
    """Nobody knows how."""
    world.spawn(1, 10, ("make",), {MARK: "demo"})
    world.fork(10, 11)
    world.proc.remove(11)
    world.discovery.sweep()
    (tree,) = world.started
    assert set(tree.members) == {10}
    assert tree.take_ended() == {ProcessId(11, START): Ending(None)}


def test_a_sweep_tells_a_number_used_again(world):
    """The new owner is not a member, and is looked at for what it is."""
    world.spawn(1, 10, ("make",), {MARK: "one"})
    world.fork(10, 11)
    world.proc.add(11, 1, ("make",), {MARK: "two"}, start=START + 1)
    world.discovery.sweep()
    first, second = world.started
    assert set(first.members) == {10}
    assert (second.root, second.label) == (ProcessId(11, START + 1), "two")


def test_a_sweep_drops_an_agent_whose_number_is_used_again(world):
    """Its successor's children are nobody's calls."""
    world.spawn(1, 5, ("python", "-m", "minisweagent"))
    world.proc.add(5, 1, ("bash",), start=START + 1)
    world.discovery.sweep()
    world.spawn(5, 10, SHELL, session=10)
    assert world.roots() == []


def test_a_sweep_looks_only_at_the_new_where_that_is_asked_for(world):
    """The known were looked at before."""
    world.proc.add(10, 1, ("make",), {MARK: "one"})
    world.proc.add(11, 1, ("make",), {MARK: "two"})
    world.discovery.sweep(known=[10])
    assert [tree.label for tree in world.started] == ["two"]


def test_processes_that_cannot_be_read_do_not_stop_a_sweep(world):
    """A file that is gone, a line that is none."""
    for pid, content in ((8, b""), (9, b"nonsense")):
        (world.proc.add(pid) / "stat").write_bytes(content)
    world.proc.add(10, 1, ("make",), {MARK: "demo"})
    (world.proc.root / "7").mkdir()
    world.discovery.sweep()
    assert world.roots() == [10]


def test_a_loop_of_parents_does_not_hang_a_sweep(world):
    """What is read while everything changes need not fit together."""
    world.proc.add(10, 11)
    world.proc.add(11, 10)
    world.discovery.sweep()
    assert world.roots() == []
