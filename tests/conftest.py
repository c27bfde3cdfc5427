"""What all rings share: a clean environment, and a line about what this host allows."""

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# How long something takes says what else this host does; it is measured, never asserted.
settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any")

_UNWANTED = (
    "CI",  # programs stop asking when they see it; the tests keep it for themselves
    "EDITOR",
    "VISUAL",
    "PAGER",
    "MANPAGER",
    "GIT_EDITOR",
    "GIT_PAGER",
    "GIT_TERMINAL_PROMPT",
    "LESS",
    "RECEIPT_TRACE",
)


def pytest_report_header() -> str:
    """Say what the third ring has to work with."""
    if sys.platform != "linux":
        return "kernel ring: not on Linux, every test of it is skipped"
    from receipt_trace import doctor

    report = doctor.examine()
    limits = "; ".join(report.limits) or "none"
    return f"kernel ring: Linux {os.uname().release}, source {report.source}, limits: {limits}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The third ring needs Linux, whoever runs it."""
    if sys.platform == "linux":
        return
    reason = pytest.mark.skip(reason="needs a Linux kernel; run it in a Linux machine or container")
    for item in items:
        if item.get_closest_marker("kernel"):
            item.add_marker(reason)


@pytest.fixture(scope="session", autouse=True)
def clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of the caller's taste reaches a program under test, and nothing of it his home."""
    with pytest.MonkeyPatch.context() as patch:
        for name in _UNWANTED:
            patch.delenv(name, raising=False)
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("TERM", "xterm-256color")
        patch.setenv("LC_ALL", "C.UTF-8")
        patch.setenv("PATH", f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
        yield
