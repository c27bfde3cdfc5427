"""What a receipt tells of a program and its tool call, from a /proc of our own."""

import os
import pwd

import pytest
from builders import START, waiter

from receipt_trace.observation import Beginning, Holder, ProcessId, Program
from receipt_trace.sources import context as module
from receipt_trace.sources.context import read_context
from receipt_trace.sources.procfs import Procfs
from receipt_trace.trees import Agent, Tree

ID = "0123456789abcdef" * 4
PIPE = waiter(11, key="pipe:[70]", wiring="pipe", target="pipe:[70]")


@pytest.fixture
def call(proc):
    """Codex (5) has a tool call: a shell (10) with a program in it (11)."""
    proc.add(5, 1, ("codex",))
    proc.hold(5, {7: "pipe:[70]"})
    proc.add(10, 5, ("bash", "-c", "rm -i x"))
    proc.add(11, 10, ("rm", "-i", "x"))
    return proc


def context(proc, who=PIPE, **more):
    """What is read for a wait of 11."""
    values = {"parent": 5, "agent": Agent("codex", 5)} | more
    return read_context(
        Procfs(proc.root, "x86_64", dict), Tree(ProcessId(10, START), **values), who, 42
    )


def status(proc, pid, text):
    """What the status file of a process says."""
    (proc.root / str(pid) / "status").write_text(text)


def test_who_asks_and_in_whose_call_is_told(call):
    """With the one who holds the other end."""
    seen = context(call)
    assert (seen.program.argv, seen.root.argv) == (("rm", "-i", "x"), ("bash", "-c", "rm -i x"))
    assert seen.holders == (Holder("codex", 5),)
    assert (seen.wall, seen.person) == (42, False)


SHELL = ("bash", "-c", "rm -i x; exit")


@pytest.mark.parametrize(
    ("now", "told", "want"),
    [
        (None, SHELL, SHELL),  # it is gone
        (("make",), SHELL, SHELL),  # it has become something else
        ((*SHELL[:2], "rm -i x; exit 3"), SHELL, (*SHELL[:2], "rm -i x; exit 3")),  # cut short
        (SHELL, SHELL, SHELL),
        (None, (), ("rm", "-i", "x")),  # only its birth was told
        (("make",), (), ("make",)),
    ],
)
def test_the_root_is_what_it_began_as(call, now, told, want):
    """As the kernel told, for one that is gone or another program now."""
    call.remove(10)
    if now is not None:
        call.add(10, 5, now)
    began = Beginning(ProcessId(10, START), 5, told[0] if told else "", told, uid=7)
    seen = context(call, began=began)
    assert seen.root.argv == want
    assert seen.program.argv == ("rm", "-i", "x")


def test_of_a_root_that_is_gone_all_that_was_told_is_known(call):
    """It was itself the one that asked."""
    call.remove(10)
    began = Beginning(ProcessId(10, START), 5, "rm", ("rm", "-i", "x"), uid=7)
    seen = context(call, waiter(10, comm="rm", key="null", wiring="null"), began=began)
    assert (seen.uid, seen.root, seen.program) == (7, seen.program, Program("rm", argv=began.argv))


def test_the_user_has_the_name_of_this_host(call, monkeypatch):
    """Or none, where nobody has that number."""
    assert context(call).user == pwd.getpwuid(os.geteuid()).pw_name

    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.setattr(module.pwd, "getpwuid", unknown)
    seen = context(call)
    assert (seen.uid, seen.user) == (os.geteuid(), None)


def test_numbers_inside_a_pid_namespace_are_told(call):
    """The innermost one; for the program and for the root."""
    status(call, 11, "Name:\trm\nNSpid:\t11\t8\t3\n")
    status(call, 10, "Name:\tbash\nNSpid:\t10\t1\n")
    seen = context(call)
    assert (seen.inner_pid, seen.root_inner_pid) == (3, 1)


@pytest.mark.parametrize("text", ["Name:\tx\nNSpid:\t11\n", "Name:\tx\n", "NSpid:\n", ""])
def test_who_is_in_no_namespace_of_his_own_has_one_number(call, text):
    """Also on a kernel that does not say."""
    status(call, 11, text)
    assert context(call).inner_pid is None


def test_a_container_has_its_id_and_its_name(call, monkeypatch):
    """The id is in the cgroup; the engine's files are asked for the name."""
    (call.root / "10" / "cgroup").write_text(f"0::/system.slice/docker-{ID}.scope\n")
    monkeypatch.setattr(module, "container_name", lambda identity: f"name of {identity[:4]}")
    seen = context(call)
    assert (seen.container, seen.container_name) == (ID, "name of 0123")


def test_without_a_container_nobody_is_asked(call, monkeypatch):
    """There is no id."""
    (call.root / "10" / "cgroup").write_text("0::/user.slice\n")
    monkeypatch.setattr(module, "container_name", pytest.fail)
    seen = context(call)
    assert (seen.cgroup, seen.container, seen.container_name) == ("/user.slice", None, None)


def test_a_person_may_answer_where_he_sees_it(call):
    """By what is known of the agent, or because it is the harness's own terminal."""
    tty = waiter(11, key="pts:99999")
    assert context(call, tty).person is False
    assert context(call, tty, person=True).person is True
    call.hold(5, {0: "/dev/pts/99999"})
    assert context(call, tty).person is True
