"""The HTTP port, over real connections to loopback."""

import contextlib
import http.client
import os
import socket
import threading
import time

import pytest

from exporters import http as module
from exporters.http import Answer, Server, parse_address
from receipt_trace.errors import UsageError

BOUND = 10


@pytest.fixture
def server():
    """A port of our own with two paths."""
    routes = {
        "/": lambda headers: Answer(b"<p>page", "text/html; charset=utf-8"),
        "/accept": lambda headers: Answer(headers.get("Accept", "").encode()),
    }
    server = Server(parse_address("127.0.0.1:0"), routes)
    server.start()
    yield server
    server.close()


@pytest.fixture
def ask(server):
    """Sends bytes; returns the whole answer."""

    def ask(data, *, end=True):
        with socket.create_connection(("127.0.0.1", server.port), BOUND) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(data)
                if end:
                    connection.shutdown(socket.SHUT_WR)
            answer = b""
            with contextlib.suppress(ConnectionError):
                while part := connection.recv(65536):
                    answer += part
        return answer

    return ask


def get(server, method="GET", path="/", headers=()):
    """One request by a well-behaved client."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=BOUND)
    connection.request(method, path, headers=dict(headers))
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_a_path_gives_its_answer_whatever_its_query(server):
    """With its type, its length, and headers that forbid everything else."""
    for path in ("/", "/?a=b"):
        answer, body = get(server, path=path)
        assert (answer.status, body) == (200, b"<p>page")
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        assert answer.headers["Content-Length"] == "7"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "unsafe" not in answer.headers["Content-Security-Policy"]


def test_head_is_get_without_the_body(server):
    """All headers are the same."""
    got, _ = get(server)
    headed, body = get(server, "HEAD")
    assert body == b""
    drop = {"Date"}
    assert {k: v for k, v in headed.headers.items() if k not in drop} == {
        k: v for k, v in got.headers.items() if k not in drop
    }


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "CONNECT", "get", "X" * 50]
)
def test_no_other_method_is_answered(server, method):
    """Whether HTTP knows it or not."""
    answer, body = get(server, method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
    assert body == b"405 Method Not Allowed\n"


def test_what_was_asked_is_never_repeated(server):
    """Neither a path nor a header."""
    answer, body = get(server, path="/<script>alert(1)</script>")
    assert (answer.status, body) == (404, b"404 Not Found\n")
    assert b"alert" not in str(answer.headers).encode()


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1", 200), ("127.0.0.1:80", 200), ("localhost:9737", 200), ("[::1]:1", 200),
     ("[::1]", 200), ("evil.example", 421), ("evil.example:80", 421), ("10.0.0.1", 421),
     ("localhost.evil.example", 421), ("", 421)],
)  # fmt: skip
def test_on_loopback_only_names_of_loopback_are_answered(server, host, status):
    """A page on the web may point a name of its own at us, and would read the answer."""
    assert get(server, headers={"Host": host})[0].status == status


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 5000, b"GET /" + b"a" * 20000, b"\0" * 20000,
     b"GET / HTTP/1.1\r\nX: " + b"y" * 20000 + b"\r\n\r\n", b"", b"GET"],
)  # fmt: skip
def test_a_head_that_is_too_large_or_unfinished_is_no_request(ask, data):
    """The connection is closed, without an answer."""
    assert b"200" not in ask(data)


def test_nonsense_is_told_and_harms_nobody(server, ask):
    """And the next request is answered."""
    assert ask(b"nonsense nonsense nonsense nonsense\r\n\r\n") == b"400 Bad Request\n"
    assert ask(b"GET / HTTP/9.9\r\n\r\n") == b"505 HTTP Version Not Supported\n"
    assert get(server)[0].status == 200


def test_one_connection_is_one_request(ask):
    """What else was sent on it is not read."""
    answer = ask(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)
    assert answer.count(b"200 OK") == 1


def test_who_dawdles_is_cut_off_though_he_says_something_now_and_then(server, monkeypatch):
    """The bound is on the whole request."""
    monkeypatch.setattr(module, "_PATIENCE_S", 0.3)
    with socket.create_connection(("127.0.0.1", server.port), BOUND) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < BOUND:
                connection.sendall(b"X")
                time.sleep(0.05)
        assert time.monotonic() - began < BOUND / 2


def test_connections_are_bounded_and_those_that_end_make_room(server):
    """One more is closed at once; nobody who was let in is disturbed."""
    held = [
        socket.create_connection(("127.0.0.1", server.port), BOUND)
        for _ in range(module._CONNECTIONS)
    ]
    end = time.monotonic() + BOUND
    while True:  # they are let in one by one
        with socket.create_connection(("127.0.0.1", server.port), BOUND) as extra:
            extra.settimeout(0.2)
            try:
                assert extra.recv(1) == b""
                break
            except TimeoutError:
                assert time.monotonic() < end
    held[0].sendall(b"GET / HTTP/1.0\r\n\r\n")
    assert held[0].recv(12) == b"HTTP/1.0 200"
    for connection in held:
        connection.close()
    while True:
        with contextlib.suppress(ConnectionError, http.client.BadStatusLine):
            if get(server)[0].status == 200:
                break
        assert time.monotonic() < end


def test_a_client_that_hangs_up_ends_neither_the_server_nor_the_process(server, capfd):
    """Writing to it raises a signal where nobody minds it; and nothing is printed."""
    for _ in range(20):
        connection = socket.create_connection(("127.0.0.1", server.port), BOUND)
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
    assert get(server)[0].status == 200
    assert capfd.readouterr() == ("", "")


def test_headers_reach_the_route(server):
    """Content negotiation needs one."""
    assert get(server, path="/accept", headers={"Accept": "text/x"})[1] == b"text/x"


def test_it_ends_when_it_is_closed():
    """Its thread, and its port; at once."""
    server = Server(parse_address("127.0.0.1:0"), {})
    server.start()
    before = threading.active_count()
    began = time.monotonic()
    server.close()
    assert time.monotonic() - began < BOUND / 2
    assert threading.active_count() < before
    again = Server(parse_address(f"127.0.0.1:{server.port}"), {})
    again.close()


def test_no_descriptor_is_left(server):
    """However many come and go."""
    get(server)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        get(server)
    end = time.monotonic() + BOUND
    while len(os.listdir("/proc/self/fd")) > before + 1:
        assert time.monotonic() < end


@pytest.mark.parametrize(
    ("text", "host", "loopback"),
    [("127.0.0.1:9737", "127.0.0.1", True), ("[::1]:9737", "::1", True),
     ("127.9.9.9:9737", "127.9.9.9", True), ("0.0.0.0:9737", "0.0.0.0", False),
     ("[::]:9737", "::", False)],
)  # fmt: skip
def test_an_address_has_a_host_and_a_port(text, host, loopback):
    """Only loopback has the status page."""
    address = parse_address(text)
    assert (address.host, address.port, address.loopback) == (host, 9737, loopback)


@pytest.mark.parametrize(
    "text", ["", "9737", ":9737", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000",
             "127.0.0.1:-1", "no such host:1", "\0:1", "unix:/run/x"],
)  # fmt: skip
def test_a_place_that_is_none_is_told_with_an_example(text):
    """Before anything is opened."""
    with pytest.raises(UsageError, match=r"expected ADDRESS:PORT, such as 127\.0\.0\.1:9737"):
        parse_address(text)


def test_a_port_that_is_taken_is_told_with_the_next_step(server):
    """The first goes on."""
    with pytest.raises(UsageError, match=f"port {server.port} cannot be .*in use; give another"):
        Server(parse_address(f"127.0.0.1:{server.port}"), {})
    assert get(server)[0].status == 200
