"""Which source is used, and what is told where it is not the one that was wanted."""

import errno

import pytest

from receipt_trace.errors import UnobservableError, UsageError
from receipt_trace.kernel import loader
from receipt_trace.kernel.objects import Objects
from receipt_trace.sources import choice
from receipt_trace.sources.choice import choose


class Connector:
    """The kernel's process events, where we may have them."""

    name = "connector"


class Kernel:
    """One that takes our programs."""

    def __init__(self, *, calls, text):
        self.calls, self.text = calls, text
        self.kinds, self.pipes = {}, 0
        self.objects = Objects({}, {}, {}, ("the weather",), kept=True)


def refusing(**_):
    """One that does not."""
    raise UnobservableError("bpf(2) is refused")


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """A machine on which everything can be used."""
    monkeypatch.setattr(choice, "Connector", Connector)
    monkeypatch.setattr(loader, "Kernel", Kernel)
    monkeypatch.setattr(choice.calls, "machine", lambda: "x86_64")


def test_auto_takes_bpf_where_it_can():
    """With its own events; and what this kernel does not tell is told."""
    found = choose()
    assert (found.source.name, found.events.name) == ("bpf", "bpf")
    assert found.shortcomings == ("this kernel does not tell the weather",)


def test_auto_falls_back_and_tells_why(monkeypatch):
    """Nobody has to look for the reason."""
    monkeypatch.setattr(loader, "Kernel", refusing)
    found = choose()
    assert (found.source.name, found.events.name) == ("procfs", "connector")
    assert found.shortcomings == ("BPF cannot be used: bpf(2) is refused",)


@pytest.mark.parametrize(
    "asked", [{"wanted": "bpf"}, {"attach": "syscalls"}, {"capture": "text"}], ids=str
)
def test_what_only_bpf_can_do_and_cannot_be_is_an_error(monkeypatch, asked):
    """With the reason, and what to try next."""
    monkeypatch.setattr(loader, "Kernel", refusing)
    with pytest.raises(UnobservableError) as error:
        choose(**asked)
    assert "bpf(2) is refused" in str(error.value)
    assert "--source procfs" in str(error.value)
    assert "receipt-trace doctor" in str(error.value)


@pytest.mark.parametrize("asked", [{"attach": "syscalls"}, {"capture": "text"}], ids=str)
def test_proc_cannot_do_what_only_the_kernel_sees(asked):
    """It is no use to start."""
    with pytest.raises(UsageError, match="leave out --source procfs"):
        choose("procfs", **asked)


def test_modes_reach_the_kernel():
    """Both of them."""
    source = choose("bpf", "syscalls", "text").source
    assert (source.attach, source.kernel.calls, source.kernel.text) == ("syscalls", True, True)
    assert choose("bpf").source.attach == "snapshot"


def test_another_machine_is_told(monkeypatch):
    """The programs know one; the other source works on all."""
    monkeypatch.setattr(choice.calls, "machine", lambda: "aarch64")
    assert choose().source.name == "procfs"
    assert "aarch64" in choose().shortcomings[0]
    with pytest.raises(UnobservableError, match="aarch64"):
        choose("bpf")


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (PermissionError(errno.EPERM, "no"), "needs CAP_NET_ADMIN"),
        (OSError(errno.EPROTONOSUPPORT, "no"), "Protocol not supported"),
    ],
    ids=["not allowed", "not there"],
)
def test_without_events_everybody_is_looked_at(monkeypatch, refusal, told):
    """A shortcoming, and no error."""

    def connector():
        raise refusal

    monkeypatch.setattr(choice, "Connector", connector)
    found = choose("procfs")
    assert found.events is None
    assert told in found.shortcomings[0]
    assert found.shortcomings[0].endswith("everybody is looked at every second")
