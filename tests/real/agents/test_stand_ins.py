"""Every agent's commands: those that ask are reported, and nobody else is."""

import pytest

from .table import AGENTS

pytestmark = pytest.mark.kernel

each = pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.key)


@each
def test_every_command_that_asks_is_reported_once(agent, runs):
    """None is missed, none is told twice."""
    asking = [o for o in runs[agent.key].outcomes.values() if o.item.kind]
    assert asking
    assert {o.item.name: len(o.waits) for o in asking} == {o.item.name: 1 for o in asking}


@each
def test_whoever_does_not_ask_is_not_reported(agent, runs):
    """Commands that work, sleep or met a closed input; servers, a hook, an idle shell, itself."""
    run = runs[agent.key]
    said = [w for o in run.outcomes.values() if not o.item.kind for w in o.waits]
    assert [(w["tree"]["cwd"], w["program"]["argv"]) for w in said + run.own] == []


@each
def test_a_receipt_names_the_agent_and_its_process(agent, runs):
    """And its session, where a variable tells that."""
    run = runs[agent.key]
    for outcome in run.outcomes.values():
        for wait in outcome.waits:
            assert wait["agent"] is not None, outcome.item
            assert (wait["agent"]["name"], wait["agent"]["pid"]) == (agent.name, run.pid)


@each
def test_a_receipt_names_the_tool_call(agent, runs):
    """The process that the agent started, or whom its shell that lives on has started."""
    seen, expected = {}, {}
    for outcome in runs[agent.key].outcomes.values():
        for wait in outcome.waits:
            root, name = wait["tree"]["root_pid"], outcome.item.name
            assert outcome.roots[root] is not None, f"{name} has ended though it waits"
            argv, parent = outcome.roots[root]
            # Through BPF it is what it began as, else what it has become.
            command = wait["tree"]["command"]
            began = command == list(outcome.item.argv)
            seen[name] = (command, parent if agent.persistent else root)
            expected[name] = (command if began else argv, outcome.pid)
    assert seen == expected


@each
def test_a_receipt_tells_who_asks_and_for_what(agent, runs):
    """Program, wiring and kind."""
    asking = [o for o in runs[agent.key].outcomes.values() if o.item.kind and o.waits]
    seen, expected = {}, {}
    for outcome in asking:
        item, wait = outcome.item, outcome.waits[0]
        found = (wait["program"]["name"], wait["input"]["wiring"], wait["input"]["kind"])
        # What draws into something else than the terminal has drawn nothing on it.
        drawn = item.kind != "screen" or found[2] != "key" or agent.stdio != ("pty", "")
        wanted = (item.program, item.wiring, item.kind if drawn else "key")
        seen[item.name] = found
        expected[item.name] = tuple(
            f if w == "any" else w for f, w in zip(found, wanted, strict=True)
        )
    assert seen == expected


@each
def test_the_agent_is_among_those_who_can_answer(agent, runs):
    """Whoever gave a command its input holds the other end of it."""
    run = runs[agent.key]
    for outcome in run.outcomes.values():
        for wait in outcome.waits if outcome.item.stdio[0] in ("pty", "open") else ():
            if outcome.item.kind not in ("dead", "any"):
                assert run.pid in [h["pid"] for h in wait["input"]["holders"]], outcome.item


@each
def test_commands_are_followed_and_nothing_else_is(agent, runs):
    """Whoever still runs was a tool call from its start; servers, hooks and terminals never."""
    run = runs[agent.key]
    calls = [
        o
        for o in run.outcomes.values()
        if o.item.call and o.alive and not agent.persistent
        if not (agent.shell_alike and o.item.name == "shell")
    ]
    assert {o.item.name: o.followed for o in calls} == {o.item.name: agent.name for o in calls}
    alike = {"hook"} if agent.hook_alike else set()
    others = [
        o.item.name
        for o in run.outcomes.values()
        if not o.item.call and o.is_followed and o.item.name not in alike
    ]
    assert others == []
