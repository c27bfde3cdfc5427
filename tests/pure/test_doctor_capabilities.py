"""Who may look into processes of others: a capability decides, not a user number."""

import os

import pytest

from receipt_trace import doctor

PTRACE = 1 << 19


@pytest.fixture
def host(tmp_path):
    """A /proc with a process of certain capabilities, and Yama."""

    def host(capabilities, scope):
        (tmp_path / "self").mkdir()
        (tmp_path / "self/status").write_text(f"Name:\tx\nCapEff:\t{capabilities:016x}\n")
        (tmp_path / "sys/kernel/yama").mkdir(parents=True)
        (tmp_path / "sys/kernel/yama/ptrace_scope").write_text(f"{scope}\n")
        return tmp_path

    return host


@pytest.mark.parametrize("user", [0, 990])
@pytest.mark.parametrize("scope", [0, 1, 2])
def test_whoever_has_the_capability_may_look(host, monkeypatch, user, scope):
    """Root as a rule, and the user of a service that was given it."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    root = host(PTRACE, scope)
    checks = (doctor._others(root), doctor._yama(root), doctor._setuid(root))
    assert [check.state for check in checks] == ["yes"] * 3


@pytest.mark.parametrize(
    ("user", "said"), [(0, "root without"), (990, "uid 990 may look into its")]
)
def test_whoever_has_it_not_may_not(host, monkeypatch, user, said):
    """Also root, in a container that took it away."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    root = host(~PTRACE & (1 << 41) - 1, 1)
    assert doctor._others(root).state == doctor._yama(root).state == "partly"
    assert said in doctor._others(root).seen


def test_where_yama_forbids_it_to_everybody_the_capability_is_no_help(host):
    """ptrace_scope 3."""
    assert doctor._yama(host(PTRACE, 3)).state == "partly"
