"""Who belongs to which tool call: lifecycle in, membership out."""

from hypothesis import given
from hypothesis import strategies as st

from receipt_trace.observation import Ending, ProcessId
from receipt_trace.trees import Agent, Tree, Trees


def who(pid, start=500):
    """The identity of a process."""
    return ProcessId(pid, start)


def one_tree():
    """A tree with nobody but its root, 10."""
    trees = Trees()
    return trees, trees.add(Tree(who(10), parent=5, label="demo"))


def test_a_new_tree_has_its_root():
    """And nobody else."""
    trees, tree = one_tree()
    assert trees.of(10) is tree
    assert tree.members == {10: who(10)}
    assert (len(trees), list(trees), tree.born) == (1, [tree], 1)


def test_a_child_of_a_member_is_a_member():
    """Of the same tree, however deep."""
    trees, tree = one_tree()
    assert trees.fork(10, 11, who(11)) is tree
    assert trees.fork(11, 12, who(12)) is tree
    assert trees.of(12) is tree
    assert tree.born == 3


def test_a_child_of_somebody_else_is_none():
    """It has no tree, and neither have its children."""
    trees, _ = one_tree()
    assert trees.fork(99, 100, who(100)) is None
    assert trees.of(100) is None


def test_a_double_fork_does_not_leave_the_tree():
    """The one in between is gone; the daemon is still a member."""
    trees, tree = one_tree()
    trees.fork(10, 11, who(11))
    trees.fork(11, 12, who(12))
    trees.exit(11, 0)
    assert trees.of(11) is None
    assert trees.of(12) is tree


def test_members_outlive_their_root():
    """A tree is its processes; their later children belong to it, whoever their parent is now."""
    trees, tree = one_tree()
    trees.fork(10, 11, who(11))
    trees.exit(10, 256)
    assert trees.fork(11, 12, who(12)) is tree
    assert set(tree.members) == {11, 12}
    assert list(trees) == [tree]


def test_an_ending_is_told_once():
    """With the wait status, by the identity of the process."""
    trees, tree = one_tree()
    assert trees.exit(10, 256) is tree
    assert tree.take_ended() == {who(10): Ending(256)}
    assert tree.take_ended() == {}
    assert trees.exit(10, 0) is None


def test_the_end_of_somebody_else_is_nothing():
    """No tree has it."""
    trees, tree = one_tree()
    assert trees.exit(99, 0) is None
    assert tree.take_ended() == {}


def test_a_process_of_unknown_identity_hands_the_tree_on():
    """It came and went too fast to be looked at; its child did not."""
    trees, tree = one_tree()
    trees.fork(10, 11, None)
    assert trees.fork(11, 12, who(12)) is tree
    trees.exit(11, 0)
    assert tree.members == {10: who(10), 12: who(12)}
    assert tree.take_ended() == {}


def test_a_number_used_again_in_another_tree_belongs_to_that():
    """The end of its old owner was not seen; it ended nevertheless."""
    trees, old = one_tree()
    new = trees.add(Tree(who(20)))
    trees.fork(10, 30, who(30, 1))
    assert trees.fork(20, 30, who(30, 2)) is new
    assert trees.of(30) is new
    assert set(old.members) == {10}
    assert old.take_ended() == {who(30, 1): Ending(None)}


def test_a_fork_told_twice_is_one_birth():
    """An event and a scan may both tell it."""
    trees, tree = one_tree()
    trees.fork(10, 11, None)
    trees.fork(10, 11, who(11))
    assert tree.born == 2
    assert tree.members[11] == who(11)


def test_a_root_inside_another_tree_is_no_tree_of_its_own():
    """A tool call inside a tool call belongs to the outer one."""
    trees, tree = one_tree()
    trees.fork(10, 11, who(11))
    assert trees.add(Tree(who(11), label="inner")) is tree
    assert list(trees) == [tree]


def test_a_tree_that_is_removed_is_forgotten():
    """With all its members, and nobody else's."""
    trees, tree = one_tree()
    other = trees.add(Tree(who(20), agent=Agent("codex", 7)))
    trees.fork(10, 11, who(11))
    trees.remove(tree)
    assert (trees.of(10), trees.of(11), trees.of(20)) == (None, None, other)
    assert list(trees) == [other]
    assert trees.fork(11, 12, None) is None


def test_trees_may_be_removed_while_they_are_looped_over():
    """The loop of the service does that."""
    trees, _ = one_tree()
    trees.add(Tree(who(20)))
    for tree in trees:
        trees.remove(tree)
    assert len(trees) == 0


pids = st.integers(1, 8)
events = st.lists(st.tuples(st.sampled_from(["fork", "exit", "add", "remove"]), pids, pids))


@given(events)
def test_a_process_is_in_one_tree_at_most(row):
    """Whatever happens in whatever order: numbers and trees agree with each other."""
    trees = Trees()
    for number, (what, one, two) in enumerate(row):
        if what == "fork":
            trees.fork(one, two, who(two, number))
        elif what == "exit":
            trees.exit(one, 0)
        elif what == "add":
            trees.add(Tree(who(one, number)))
        elif (tree := trees.of(one)) is not None:
            trees.remove(tree)
        for pid in range(1, 9):
            holders = [t for t in trees if pid in t.members]
            assert holders == ([] if trees.of(pid) is None else [trees.of(pid)])


def test_a_process_may_join_a_tree_of_which_nobody_is_its_parent():
    """The next member of a pipeline; where it was before it is no longer."""
    trees, tree = one_tree()
    other = trees.add(Tree(who(20)))
    trees.fork(20, 21, who(21))
    trees.join(tree, 11, who(11))
    trees.join(tree, 21, who(21))
    assert set(tree.members) == {10, 11, 21}
    assert set(other.members) == {20}
    assert (trees.of(21), tree.born) == (tree, 3)
    trees.fork(11, 12, who(12))
    assert trees.of(12) is tree


def test_a_process_may_leave_a_tree_and_has_not_ended():
    """It is about to be the root of its own."""
    trees, tree = one_tree()
    trees.fork(10, 11, who(11))
    trees.leave(11)
    trees.leave(99)
    assert (trees.of(11), tree.members, tree.take_ended()) == (None, {10: who(10)}, {})
    own = trees.add(Tree(who(11)))
    assert trees.of(11) is own


def test_a_tree_says_whether_its_agent_runs_commands_so_and_whether_a_person_sees_it():
    """Neither unless somebody knows."""
    tree = Tree(who(10))
    assert (tree.recognised, tree.person) == (False, False)
