"""`receipt-trace tail`: what a watcher sends, and what is made of it."""

import socket
import threading

import pytest
from builders import NS, START, context, waiter

from receipt_trace.cli import main
from receipt_trace.observation import ProcessId
from receipt_trace.receipt import Clerk, Host
from receipt_trace.rule import Confirmed, How, Resolved
from receipt_trace.trees import Agent, Tree


def receipts():
    """A wait and its end."""
    clerk = Clerk(Host("host", "boot"), "procfs")
    tree = Tree(ProcessId(10, START), agent=Agent("codex", 5))
    begun = clerk.wait(tree, Confirmed(NS, waiter(), 0, 0), context(b"Go on? "))
    end = Resolved(3 * NS, waiter(), 0, How.ANSWERED, None)
    return [begun, clerk.resolution(end, 1_700_000_002 * NS)]


LINES = b"".join(r.to_json().encode() + b"\n" for r in receipts())


@pytest.fixture
def watcher(tmp_path):
    """Something that listens, sends what it is told to whoever comes, and ends."""
    threads = []

    def watcher(data):
        path = str(tmp_path / "sock")
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(path)
        listening.listen(1)

        def serve():
            with listening, listening.accept()[0] as connection:
                connection.sendall(data)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return path

    yield watcher
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_receipts_are_read_as_lines_with_their_time(watcher, capsys):
    """UTC, as in the receipt; it ends when the watcher does."""
    path = watcher(LINES)
    assert main(["tail", "--socket", path]) == 69
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "22:13:20 asks[10] of codex asks for a line on /dev/pts/1: “Go on?”",
        "22:13:22 asks[10] of codex was answered after 3.0 s",
    ]
    assert err == f"receipt-trace: the watcher at '{path}' has ended\n"


def test_receipts_can_be_had_as_they_are(watcher, capsys):
    """Byte for byte."""
    assert main(["tail", "--json", "--socket", watcher(LINES)]) == 69
    assert capsys.readouterr().out == LINES.decode()


def test_nobody_is_there(tmp_path, capsys):
    """69 with the next step: nothing at the place, or what a killed watcher left."""
    path = str(tmp_path / "sock")
    assert main(["tail", "--socket", path]) == 69
    assert capsys.readouterr().err == (
        f"receipt-trace: no watcher listens at '{path}' (No such file or directory); "
        f"start one: receipt-trace watch\n"
    )
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    assert main(["tail", "--socket", path]) == 69
    assert "(Connection refused); start one" in capsys.readouterr().err


def test_where_no_watcher_of_his_own_listens_a_user_follows_that_of_the_host(
    watcher, monkeypatch, capsys
):
    """He sees his own processes there."""
    monkeypatch.setattr("exporters.stream.os.geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nonexistent")
    monkeypatch.setattr("receipt_trace.commands.tail.HOST_PATH", watcher(LINES))
    assert main(["tail"]) == 69
    assert "asks[10] of codex asks for a line" in capsys.readouterr().out


def test_a_user_without_a_place_has_to_name_it(monkeypatch, capsys):
    """Where XDG_RUNTIME_DIR is not set, and the host has no watcher either."""
    monkeypatch.setattr("receipt_trace.commands.tail.HOST_PATH", "/nonexistent/stream.sock")
    monkeypatch.setattr("exporters.stream.os.geteuid", lambda: 1000)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert main(["tail"]) == 64
    assert "XDG_RUNTIME_DIR is not set; give the watcher's socket with --socket PATH" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("cut", [1, len(LINES) // 4])
def test_a_line_that_was_cut_is_no_receipt(watcher, capsys, cut):
    """The watcher was killed, or let go of a subscriber who was too slow."""
    assert main(["tail", "--socket", watcher(LINES + LINES[:cut])]) == 69
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert "Traceback" not in err


def test_a_path_that_is_too_long_is_told_as_that(tmp_path, capsys):
    """The kernel takes 107 bytes."""
    assert main(["tail", "--socket", str(tmp_path / ("x" * 120))]) in (64, 69)
    assert "too long" in capsys.readouterr().err
