"""Receipts for local subscribers: a socket in a folder of the test's own."""

import json
import os
import select
import socket

import pytest
from builders import NS, START, context, waiter

from exporters import stream
from exporters.stream import StreamExporter, default_path
from receipt_trace.errors import UsageError
from receipt_trace.observation import ProcessId
from receipt_trace.receipt import Clerk, Host
from receipt_trace.rule import Confirmed
from receipt_trace.trees import Tree

ME = os.geteuid()
BACKLOG = stream._BACKLOG


def receipt(pid=10, uid=ME, size=0):
    """A receipt of somebody's process, with so many bytes in its question."""
    tree = Tree(ProcessId(10, START), label="x" * size)
    return Clerk(Host("host", "boot"), "procfs").wait(
        tree, Confirmed(NS, waiter(pid), 0, 0), context(b"Go on? ", uid=uid)
    )


@pytest.fixture
def path(tmp_path):
    """Where the socket is to be."""
    return str(tmp_path / "run" / "stream.sock")


@pytest.fixture
def exporter(path):
    """A watcher's end."""
    exporter = StreamExporter(path)
    yield exporter
    exporter.close()


@pytest.fixture
def subscribe(exporter, path):
    """Subscribes, as a user if one is given; every connection is closed in the end."""
    opened = []

    def subscribe(uid=None):
        connection = socket.socket(socket.AF_UNIX)
        opened.append(connection)
        connection.connect(path)
        exporter.serve()
        if uid is not None:
            next(reversed(exporter._subscribers.values())).uid = uid
        connection.settimeout(10)
        return connection

    yield subscribe
    for connection in opened:
        connection.close()


def read(connection):
    """The numbers of the programs of all receipts there are now."""
    connection.setblocking(False)
    data = b""
    try:
        while part := connection.recv(65536):
            data += part
    except BlockingIOError:
        pass
    assert data.endswith(b"\n") or not data
    return [json.loads(line)["program"]["pid"] for line in data.splitlines()]


def is_ended(connection):
    """Whether the watcher has let go of it, once everything is read."""
    connection.settimeout(10)
    while connection.recv(65536):
        pass
    return True


# -- who gets what ---------------------------------------------------------------------------------


def test_a_subscriber_gets_what_comes_after_him(exporter, subscribe):
    """Each receipt on a line, as it is."""
    exporter.export(receipt(1))
    connection = subscribe()
    exporter.export(receipt(2))
    exporter.export(receipt(3))
    assert read(connection) == [2, 3]
    exporter.export(receipt(4))
    assert connection.recv(65536) == receipt(4).to_json().encode() + b"\n"


def test_everybody_gets_it(exporter, subscribe):
    """And those who left do not disturb the others."""
    first, second, third = subscribe(), subscribe(), subscribe()
    second.close()
    for pid in (1, 2, 3):
        exporter.export(receipt(pid))
    assert read(first) == read(third) == [1, 2, 3]


def test_the_kernel_says_who_connects(exporter, subscribe):
    """Nobody is asked."""
    subscribe()
    assert [s.uid for s in exporter._subscribers.values()] == [ME]


def test_a_user_sees_his_own_processes_and_root_all(exporter, subscribe):
    """What belongs to nobody who is known is for root alone."""
    root, user, other = subscribe(0), subscribe(1000), subscribe(1001)
    for pid, uid in ((1, 0), (2, 1000), (3, 1001), (4, None)):
        exporter.export(receipt(pid, uid))
    assert read(root) == [1, 2, 3, 4]
    assert read(user) == [2]
    assert read(other) == [3]


def test_who_connects_is_let_in_without_waiting(exporter, path):
    """Several at once; and nobody, where it was a mistake."""
    exporter.serve()
    connections = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    for connection in connections:
        connection.connect(path)
    exporter.serve()
    exporter.export(receipt(1))
    assert [read(connection) for connection in connections] == [[1]] * 3
    for connection in connections:
        connection.close()


# -- nobody is waited for --------------------------------------------------------------------------


def test_a_subscriber_who_does_not_read_is_let_go(exporter, subscribe):
    """When his backlog is full; the others do not notice."""
    lazy, eager = subscribe(), subscribe()
    heard = []
    for pid in range(1, 400):
        exporter.export(receipt(pid, size=40_000))
        heard += read(eager)
        if len(exporter._subscribers) == 1:
            break
    assert heard == list(range(1, pid + 1))
    assert len(exporter._subscribers) == 1
    assert 40_000 * pid > BACKLOG
    assert is_ended(lazy)


def test_a_subscriber_who_was_slow_has_missed_nothing(exporter, subscribe):
    """As long as his backlog was not full."""
    connection = subscribe()
    pid = 0
    (subscriber,) = exporter._subscribers.values()
    while not subscriber.waiting:
        pid += 1
        exporter.export(receipt(pid, size=4000))
    exporter.export(receipt(pid + 1, size=4000))
    data = b""
    while data.count(b"\n") < pid + 1:  # and nothing new has to come for it
        data += connection.recv(1 << 20)
        exporter.serve()
    heard = [json.loads(line)["program"]["pid"] for line in data.splitlines()]
    assert heard == list(range(1, pid + 2))
    assert subscriber.waiting == 0
    assert select.select([exporter], [], [], 0)[0] == [], "there is nothing left to do"


def test_there_is_room_for_so_many(exporter, subscribe):
    """One more is turned away at once."""
    connections = [subscribe() for _ in range(stream._SUBSCRIBERS)]
    assert is_ended(subscribe())
    exporter.export(receipt(1))
    assert read(connections[-1]) == [1]


def test_those_who_have_left_make_room(exporter, subscribe):
    """Also where nothing that he may see was written meanwhile."""
    for _ in range(stream._SUBSCRIBERS):
        subscribe(12345).close()
    exporter.export(receipt(1, uid=0))
    connection = subscribe(0)
    exporter.export(receipt(2))
    assert read(connection) == [2]


# -- where it listens ------------------------------------------------------------------------------


def test_everybody_may_connect_and_nobody_may_write_beside_it(exporter, path):
    """The folder is made if it is not there."""
    assert os.stat(path).st_mode & 0o777 == 0o666
    assert os.stat(os.path.dirname(path)).st_mode & 0o022 == 0


def test_the_socket_is_gone_when_the_watcher_is(path):
    """And its subscribers are told."""
    exporter = StreamExporter(path)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        exporter.serve()
        exporter.close()
        assert is_ended(connection)
    assert not os.path.exists(path)


def test_a_socket_that_was_left_is_replaced(path):
    """Its watcher was killed."""
    with socket.socket(socket.AF_UNIX) as left:
        os.mkdir(os.path.dirname(path))
        left.bind(path)
        left.listen()
    assert os.path.exists(path)
    exporter = StreamExporter(path)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        exporter.serve()
    assert len(exporter._subscribers) == 1
    exporter.close()


def test_a_socket_that_is_in_use_is_left_alone(exporter, subscribe, path):
    """Two watchers cannot speak at one place, and the first goes on."""
    with pytest.raises(UsageError) as caught:
        StreamExporter(path)
    assert str(caught.value) == (
        f"the socket {path!r} cannot be made: another watcher listens there; give another "
        f"--socket PATH, or --socket off"
    )
    connection = subscribe()
    exporter.export(receipt(1))
    assert read(connection) == [1]


def test_a_file_that_is_no_socket_is_left_alone(tmp_path):
    """It may be anything."""
    path = tmp_path / "notes"
    path.write_text("keep")
    with pytest.raises(UsageError, match=r"notes' cannot be made: .*; give another --socket PATH"):
        StreamExporter(str(path))
    assert path.read_text() == "keep"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("x" * 120, "too long"), ("file/sock", "(Not a directory|File exists)")],
)
def test_a_place_that_is_none_is_told_with_the_next_step(tmp_path, name, reason):
    """And with the reason."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=f"cannot be made: .*{reason}; give another"):
        StreamExporter(str(tmp_path / name))


def test_a_watcher_has_its_place_by_its_user(monkeypatch):
    """Root's is the same for all; whoever has no place gets none."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_path() == "/run/receipt-trace/stream.sock"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    assert default_path() == "/run/user/1000/receipt-trace.sock"
    for nothing in (lambda: monkeypatch.setenv("XDG_RUNTIME_DIR", ""),
                    lambda: monkeypatch.delenv("XDG_RUNTIME_DIR")):  # fmt: skip
        nothing()
        assert default_path() is None
