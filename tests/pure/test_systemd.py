"""What a service and its manager tell each other."""

import os
import socket

import pytest

from receipt_trace.systemd import Manager

NS = 1_000_000_000


@pytest.fixture
def manager(tmp_path):
    """Makes one that is heard; returns it, and what it said so far."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hears:
        hears.bind(str(tmp_path / "notify"))
        hears.setblocking(False)

        def heard():
            said = []
            try:
                while True:
                    said.append(hears.recv(4096).decode())
            except BlockingIOError:
                return said

        def make(**more):
            environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "PATH": "/bin", **more}
            made = Manager(environ)
            assert environ == {"PATH": "/bin"}, "nothing of ours reaches anybody we start"
            return made, heard

        yield make


def test_every_step_is_told(manager):
    """In the words of sd_notify(3)."""
    made, heard = manager()
    made.ready("observing")
    made.status("fine")
    made.stopping()
    assert heard() == ["READY=1\nSTATUS=observing", "STATUS=fine", "STOPPING=1"]
    made.reloading()
    (said,) = heard()
    assert said.startswith("RELOADING=1\nMONOTONIC_USEC=")


def test_an_abstract_address_is_understood():
    """A leading @ stands for a zero byte."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hears:
        hears.bind(f"\0receipt-trace-test-{os.getpid()}")
        hears.settimeout(10)
        Manager({"NOTIFY_SOCKET": f"@receipt-trace-test-{os.getpid()}"}).stopping()
        assert hears.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("address", ["", "/nowhere/notify", "@nobody-listens-there"])
def test_without_a_manager_nothing_happens(address):
    """Also where it is gone."""
    made = Manager({"NOTIFY_SOCKET": address} if address else {})
    made.ready("observing")
    made.beat(0)
    assert made.watchdog_ns is None
    assert made.sockets == []
    assert made.tick_ns == 5 * NS


def test_the_watchdog_is_told_three_times_as_often_as_it_wants(manager):
    """And not at every turn of a busy loop."""
    made, heard = manager(WATCHDOG_USEC="3000000", WATCHDOG_PID=str(os.getpid()))
    assert made.tick_ns == NS
    for tenth in range(10, 52):
        made.beat(tenth * NS // 10)
    assert heard() == ["WATCHDOG=1"] * 5


def test_what_was_meant_for_another_process_is_not_ours(manager):
    """The variables are inherited by mistake at times."""
    other = str(os.getpid() + 1)
    made, _ = manager(WATCHDOG_USEC="3000000", WATCHDOG_PID=other, LISTEN_FDS="1", LISTEN_PID=other)
    assert made.watchdog_ns is None
    assert made.sockets == []


@pytest.mark.parametrize("nonsense", ["x", "-1", "", "1.5", "9" * 400])
def test_nonsense_in_the_environment_harms_nobody(manager, nonsense):
    """It is as if it were not there, or a very long time."""
    made, _ = manager(WATCHDOG_USEC=nonsense, LISTEN_FDS="x", LISTEN_PID=str(os.getpid()))
    assert made.tick_ns == 5 * NS
    assert made.sockets == []
