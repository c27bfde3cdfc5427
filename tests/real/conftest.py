"""The third ring leaves the host as it found it."""

import os
from collections.abc import Iterator

import pytest

from .support import MARK, TOKEN, eventually, kill, leftovers


@pytest.fixture(scope="session", autouse=True)
def mark() -> Iterator[None]:
    """What the Python API starts carries the mark, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, TOKEN)
        yield


@pytest.fixture(scope="module", autouse=True)
def nothing_left() -> Iterator[None]:
    """No process started by a module outlives it."""
    yield
    try:
        eventually(lambda: not leftovers(), "everything that was started has ended", 5)
    except AssertionError:
        left = leftovers()
        for pid in left:
            kill(pid)
        if left:
            pytest.fail(f"still running, now killed: {left}")


@pytest.fixture
def descriptors() -> Iterator[None]:
    """A test with this fixture closes every descriptor it opened."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    left = set(os.listdir("/proc/self/fd")) - before
    assert len(left) <= 1, left  # the listing itself
