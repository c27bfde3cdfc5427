"""Who above a tool call holds the other end of its input."""

import pytest
from builders import START, waiter

from receipt_trace.observation import Holder, ProcessId
from receipt_trace.sources.holders import find_holders, writers_above
from receipt_trace.sources.procfs import Procfs
from receipt_trace.trees import Agent, Tree

TTY = waiter(10, key="pts:1")
PIPE = waiter(10, key="pipe:[70]", wiring="pipe", target="pipe:[70]")
SOCKET = waiter(10, key="socket:[80]", wiring="socket", target="socket:[80]")


@pytest.fixture
def family(proc):
    """10 is the root of a tool call; above it stand shell (6), codex (5) and tmux (4)."""
    for pid, ppid, name in ((4, 1, "tmux"), (5, 4, "codex"), (6, 5, "bwrap"), (10, 6, "sh")):
        proc.add(pid, ppid, (name,))
    return proc


def table(proc, peers=dict):
    """What each process has open, as the procfs source tells it."""
    return Procfs(proc.root, "x86_64", peers).table


def found(proc, who, agent=None, peers=dict):
    """Holders of a waiter's input, and whether its terminal is the harness's own."""
    tree = Tree(ProcessId(10, START), parent=6, agent=agent)
    return find_holders(proc.root, table(proc, peers), tree, who)


def master(proc, pid, fd, number, name="/dev/ptmx"):
    """Let a process hold the master of a terminal."""
    proc.hold(pid, {0: "/dev/null", fd: name}, {fd: f"pos:\t0\ntty-index:\t{number}\n"})


# -- terminals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["/dev/ptmx", "/dev/pts/ptmx"])
def test_the_holder_of_a_terminal_has_its_master(family, name):
    """Its number is in fdinfo, for the link of every master is the same."""
    master(family, 5, 12, 1, name)
    assert found(family, TTY) == ((Holder("codex", 5),), False)


def test_a_master_of_another_terminal_holds_nothing(family):
    """Nor does one whose number cannot be read."""
    master(family, 5, 12, 2)
    family.hold(4, {7: "/dev/ptmx"})
    assert found(family, TTY) == ((), False)


def test_all_holders_above_are_told_nearest_first(family):
    """Each once, however many descriptors it has."""
    info = dict.fromkeys((7, 8), "tty-index:\t1\n")
    family.hold(4, {7: "/dev/ptmx", 8: "/dev/ptmx"}, info)
    master(family, 6, 3, 1)
    assert found(family, TTY)[0] == (Holder("bwrap", 6), Holder("tmux", 4))


def test_a_process_beside_the_tree_is_no_holder(family):
    """Only those above it are asked."""
    family.add(20, 1, ("screen",))
    master(family, 20, 3, 1)
    family.add(11, 10, ("script",))
    master(family, 11, 3, 1)
    assert found(family, TTY) == ((), False)


@pytest.mark.parametrize("fd", [0, 1, 2])
def test_a_terminal_that_is_the_harnesss_own_has_a_person_at_it(family, fd):
    """He sees what it shows, and may type there."""
    agent = Agent("codex", 5)
    family.hold(5, {fd: "/dev/pts/1"})
    assert found(family, TTY, agent) == ((), True)


def test_a_terminal_that_the_harness_only_opened_is_not_its_own(family):
    """On another descriptor than its input and output; or it is another terminal."""
    family.hold(5, {0: "/dev/pts/2", 1: "/dev/pts/11", 9: "/dev/pts/1"})
    assert found(family, TTY, Agent("codex", 5)) == ((), False)


def test_the_terminal_of_somebody_else_above_is_not_the_harnesss(family):
    """The shell that the agent was started from may have another one."""
    family.hold(4, {0: "/dev/pts/1"})
    assert found(family, TTY, Agent("codex", 5)) == ((), False)


def test_without_an_agent_whoever_started_the_tree_is_asked(family):
    """A marked tool call has no harness that is known."""
    family.hold(6, {0: "/dev/pts/1"})
    assert found(family, TTY) == ((), True)


# -- pipes and sockets -----------------------------------------------------------------------------


def test_the_holder_of_a_pipe_has_it_open(family):
    """By the name of its link."""
    family.hold(5, {0: "/dev/null", 9: "pipe:[70]"})
    family.hold(4, {9: "pipe:[71]"})
    assert found(family, PIPE) == ((Holder("codex", 5),), False)


def sockets(family, *inodes):
    """Let the waiter read the first of these sockets; all are unix sockets."""
    family.hold(10, {0: f"socket:[{inodes[0]}]"})
    lines = "".join(f"0: 2 0 0 1 3 {inode}\n" for inode in inodes)
    (family.root / "10" / "net").mkdir()
    (family.root / "10" / "net" / "unix").write_text("Num RefCount Protocol Flags\n" + lines)


def test_the_holder_of_a_socket_has_the_other_end(family):
    """The kernel knows the pairs."""
    sockets(family, 80, 81)
    family.hold(4, {3: "socket:[80]"})
    family.hold(5, {3: "socket:[81]"})
    peers = {80: 81, 81: 80}
    assert found(family, SOCKET, peers=lambda: peers) == ((Holder("codex", 5),), False)


def test_a_socket_whose_pair_is_not_known_has_no_holder(family):
    """Another network namespace, or a kernel that does not say."""
    sockets(family, 80)
    family.hold(5, {3: "socket:[80]", 4: "socket:[None]"})
    assert found(family, SOCKET) == ((), False)


def test_writers_are_told_one_by_one(family):
    """The process itself, then those above it; nobody of nothing."""
    for pid in (4, 5, 6):
        family.hold(pid, {3: "pipe:[70]", 4: "pipe:[70]"})
    assert [h.pid for h in writers_above(family.root, table(family), 6, "pipe:[70]")] == [6, 5, 4]
    assert [h.pid for h in writers_above(family.root, table(family), 5, "pipe:[70]")] == [5, 4]
    assert list(writers_above(family.root, table(family), 6, "pipe:[7]")) == []
    assert list(writers_above(family.root, table(family), 6, None)) == []


# -- what may not be seen --------------------------------------------------------------------------


def test_what_may_not_be_looked_into_is_left_out(family):
    """A process without descriptors, one of them gone, a line of parents that breaks off."""
    family.hold(4, {3: "pipe:[70]"})
    family.hold(6, {})
    (family.root / "6" / "fd" / "3").write_text("no link")
    assert found(family, PIPE) == ((Holder("tmux", 4),), False)
    (family.root / "5" / "stat").unlink()
    assert found(family, PIPE) == ((), False)


def test_a_loop_of_parents_ends(proc):
    """What is read while everything changes need not fit together."""
    proc.add(6, 7, ("a",))
    proc.add(7, 6, ("b",))
    proc.hold(7, {3: "pipe:[70]"})
    assert Holder("b", 7) in set(found(proc, PIPE)[0])


def test_a_hostile_name_is_told_as_text(family):
    """It is whatever a process calls itself."""
    family.add(5, 4, ("x",), comm="a) \x1b[31m\n(b")
    family.hold(5, {3: "pipe:[70]"})
    assert found(family, PIPE)[0] == (Holder("a) \x1b[31m\n(b", 5),)
