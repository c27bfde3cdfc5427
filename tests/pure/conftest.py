"""Pure tests: values in, values out; a ``/proc`` only where the test wrote it itself."""

import pytest
from builders import FakeProc


@pytest.fixture
def proc(tmp_path):
    """A ``/proc`` with nobody but init in it."""
    fake = FakeProc(tmp_path / "proc")
    fake.add(1, 0, ("init",))
    return fake
