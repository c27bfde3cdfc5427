"""Pure tests: values in, values out; a ``/proc`` only where the test wrote it itself."""

import pytest
from builders import FakeProc
from hypothesis import settings

settings.register_profile("any machine", deadline=None)  # it may be busy
settings.load_profile("any machine")


@pytest.fixture
def proc(tmp_path):
    """A ``/proc`` with nobody but init in it."""
    fake = FakeProc(tmp_path / "proc")
    fake.add(1, 0, ("init",))
    return fake
