"""Who has been born below the processes we know, by looking."""

import pytest
from builders import FakeProc

from receipt_trace.sources.scan import below, children


@pytest.fixture(params=[True, False], ids=["children listed", "parents asked"])
def family(request, tmp_path):
    """10 has 11 and 12, 11 has 13; 20 is somebody else's. Kernels list children or do not."""
    proc = FakeProc(tmp_path / "proc", lists_children=request.param)
    for pid, ppid in ((1, 0), (10, 1), (11, 10), (12, 10), (13, 11), (20, 1)):
        proc.add(pid, ppid)
    return proc


def test_everybody_below_is_found(family):
    """Each with its parent, parents first."""
    found = below(family.root, [10], [10])
    assert sorted(found) == [(10, 11), (10, 12), (11, 13)]
    assert found.index((10, 11)) < found.index((11, 13))


def test_the_known_are_not_told_again(family):
    """Only who is new."""
    assert below(family.root, [10, 11, 12], [10, 11, 12]) == [(11, 13)]
    assert below(family.root, [10, 11, 12, 13], [10, 11, 12, 13]) == []


def test_a_process_that_is_gone_has_nobody_below(family):
    """The others are still found."""
    assert below(family.root, [99], [99]) == []
    assert sorted(below(family.root, [99, 11], [99, 11])) == [(11, 13)]


def test_the_children_of_all_threads_count(tmp_path):
    """A thread that forks is the parent of its child."""
    proc = FakeProc(tmp_path / "proc")
    proc.add(10)
    second = proc.root / "10" / "task" / "15"
    second.mkdir()
    (second / "children").write_text("16 17 ")
    proc.add(11, 10)
    assert sorted(children(proc.root, 10)) == [11, 16, 17]


def test_a_thread_that_just_ended_does_not_hide_the_others(tmp_path):
    """Its directory is listed and its file is gone, as when it ends between two reads."""
    proc = FakeProc(tmp_path / "proc")
    proc.add(10)
    proc.add(11, 10)
    (proc.root / "10" / "task" / "15").symlink_to("nowhere")
    assert children(proc.root, 10) == [11]


def test_who_is_gone_and_who_is_not_listed_are_told_apart(tmp_path):
    """The first is normal, the second needs another way of looking."""
    proc = FakeProc(tmp_path / "proc", lists_children=False)
    proc.add(10)
    with pytest.raises(ProcessLookupError):
        children(proc.root, 99)
    with pytest.raises(FileNotFoundError):
        children(proc.root, 10)
