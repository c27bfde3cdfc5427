"""It survives, and lets nobody in: a real watcher on bad days, and what was lost, counted.

Nothing that was confirmed is ever lost, but where a bound on memory says so; then it is counted.
"""

import contextlib
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from .daemon import NOBODY, Place, in_own_mounts
from .support import BOUND, descendants, eventually, kill, need, resolutions, state, waits

pytestmark = pytest.mark.kernel

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="mounts and other users need root; run it again: sudo -E pytest"
)


@pytest.fixture
def place():
    """A folder, and what runs there."""
    place = Place()
    yield place
    place.close()


def pids(receipts):
    """The programs that receipts are about."""
    return sorted(r["program"]["pid"] for r in receipts)


def told(daemon, askers, kind=waits):
    """Wait until the receipts of all of these are in the file, each once."""
    expected = sorted(asker.pid for asker in askers)
    eventually(
        lambda: set(expected) <= set(pids(kind(daemon.receipts()))),
        lambda: f"{kind.__name__} of {expected}: {pids(kind(daemon.receipts()))}, {daemon}",
    )
    mine = [r for r in kind(daemon.receipts()) if r["program"]["pid"] in expected]
    assert pids(mine) == expected


# -- a long stop, that goes on while the other tests run ------------------------------------------


@pytest.fixture(scope="module")
def stopped():
    """A watcher that was stopped half a minute ago at least, with what happened meanwhile."""
    place = Place()
    daemon = place.daemon()
    before = [place.ask(f"before-{n}") for n in range(3)]
    told(daemon, before)
    kill(daemon.pid, signal.SIGSTOP)
    eventually(lambda: state(daemon.pid) == "T", "it is stopped")
    yield place, daemon, before, time.monotonic()
    place.close()


@pytest.fixture(autouse=True)
def begins_with_it(stopped):
    """So that the half minute passes beside the other tests."""


# -- killed, stopped, doubled ----------------------------------------------------------------------


def test_killed_in_the_middle_of_waits_and_started_again_it_sees_them_again(place):
    """Everything confirmed is in the file, whole; running tool calls are picked up."""
    daemon = place.daemon()
    askers = [place.ask(f"call-{n}") for n in range(4)]
    told(daemon, askers)
    kill(daemon.pid)
    daemon.process.wait(BOUND)
    with daemon.receipts_path.open("ab") as file:
        file.write(b'{"torn')  # as a write that was cut would leave it
    again = place.daemon()
    assert os.path.exists(again.socket), "the socket that was left did not stand in the way"
    eventually(
        lambda: all(pids(waits(lines(again))).count(a.pid) == 2 for a in askers),
        lambda: f"each is told once more: {again}",
    )
    assert [asker.answer() for asker in askers] == [3] * 4
    eventually(lambda: len(resolutions(lines(again))) >= 4, lambda: f"all are resolved: {again}")
    assert {r["resolution"]["how"] for r in resolutions(lines(again))} <= {"answered", "exited"}
    assert again.stop() == 0


def lines(daemon):
    """The receipts in a file that has one torn line, which must stand alone."""
    raw = daemon.receipts_path.read_bytes().split(b"\n")[:-1]
    torn = [line for line in raw if not line.endswith(b"}")]
    assert torn in ([], [b'{"torn'])
    return [json.loads(line) for line in raw if line not in torn]


def test_a_second_watcher_says_so_and_leaves(place):
    """Whether it is the socket or the port; the first does not notice."""
    first = place.daemon()
    port = first.url.rpartition(":")[2].strip("/")
    for options, reason in (
        (("--socket", first.socket), "another watcher listens there"),
        (("--metrics", f"127.0.0.1:{port}"), f"port {port} cannot be listened on"),
    ):
        status, said = place.refused(*options, name=f"second{options[0]}")
        assert status == 64, said
        assert reason in said
    place.ask("still")
    eventually(lambda: waits(first.receipts("still")), lambda: f"the first goes on: {first}")


def test_a_second_watcher_of_the_host_leaves_also_where_nobody_named_a_socket(place):
    """Two would tell everything twice. Beside a named tree it may stay."""
    need("setpriv")
    run = place / "run"
    run.mkdir()
    options = ("--metrics", "off", "--receipts", "-")
    env = {"XDG_RUNTIME_DIR": str(run)}
    before = ()
    if os.geteuid() == 0:
        os.chown(run, NOBODY, NOBODY)
        before = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
                  "--inh-caps=-all")  # fmt: skip

    first = place.daemon(*options, socket=None, before=before, env=env)
    assert (run / "receipt-trace.sock").is_socket()
    again = {"socket": None, "before": before, "env": env, "name": "second"}
    status, said = place.refused(*options, **again)
    assert status == 64, said
    assert "another watcher of this host listens" in said
    assert "receipt-trace tail" in said
    named = place.daemon(*options, "--root", str(first.pid), **again | {"name": "third"})
    assert "no_stream" in named.events()
    assert first.process.poll() is None


def test_a_socket_path_that_is_something_else_is_left_alone(place):
    """It says so and leaves."""
    (place / "daemon.sock").write_text("notes")
    status, said = place.refused()
    assert status == 64
    assert "cannot be made" in said
    assert (place / "daemon.sock").read_text() == "notes"


# -- disks ---------------------------------------------------------------------------------------


@needs_root
def test_a_full_disk_loses_nothing(place):
    """What waits is in memory, and in the file when there is room again: whole, once, in order."""
    (place / "logs").mkdir()
    mounts = in_own_mounts(f"mount -t tmpfs -o size=64k none {place / 'logs'}")
    daemon = place.daemon("--receipts", place / "logs/r.jsonl", before=mounts)
    inside = f"/proc/{daemon.pid}/root{place / 'logs'}"
    daemon.receipts_path = place.path.__class__(f"{inside}/r.jsonl")
    first = place.ask("first")
    told(daemon, [first])
    with open(f"{inside}/filler", "wb", buffering=0) as filler, contextlib.suppress(OSError):
        filler.writelines(b"x" * 1000 for _ in range(100))
        filler.write(b"x")
    askers = [place.ask(f"full-{n}") for n in range(12)]
    eventually(
        lambda: daemon.metric("receipt_trace_exporter_queue", exporter="receipts") >= 8,
        lambda: f"they wait in memory (the last page has room for a few): {daemon}",
    )
    assert daemon.metric("receipt_trace_exporter_errors_total", exporter="receipts") >= 1
    assert daemon.metric("receipt_trace_exporter_lost_receipts_total") == 0
    assert daemon.metric("receipt_trace_exported_receipts_total", exporter="metrics") >= 13
    os.unlink(f"{inside}/filler")
    told(daemon, [first, *askers])
    assert daemon.receipts_path.read_bytes().endswith(b"}\n")
    failed = [line for line in daemon.log() if line["event"] == "export_failed"]
    assert "No space left on device" in failed[0]["error"]
    assert daemon.metric("receipt_trace_exporter_lost_receipts_total") == 0


@needs_root
def test_a_log_directory_that_became_read_only_keeps_the_file_that_is_open(place):
    """The log and a count tell it; nothing is lost. At the start it is an error."""
    logs = place / "logs"
    logs.mkdir()
    daemon = place.daemon("--receipts", logs / "r.jsonl", before=in_own_mounts("true"))
    daemon.receipts_path = logs / "r.jsonl"
    read_only = f"mount --bind {logs} {logs}; mount -o remount,bind,ro {logs}"
    os.system(f"nsenter --target {daemon.pid} --mount sh -ec '{read_only}'")
    daemon.hang_up()
    eventually(lambda: "not_reopened" in daemon.events(), lambda: f"it is told: {daemon}")
    asker = place.ask("kept")
    told(daemon, [asker])
    assert daemon.metric("receipt_trace_exporter_lost_receipts_total") == 0
    status, said = place.refused(
        "--receipts", logs / "other.jsonl", before=in_own_mounts(read_only), name="second"
    )
    assert status == 64
    assert "Read-only file system" in said


# -- many ------------------------------------------------------------------------------------------


def test_fifty_subscribers_of_whom_ten_never_read_cost_nobody_a_receipt(place):
    """Whoever reads gets every receipt, while somebody scrapes ten times a second."""
    daemon = place.daemon()
    lazy = [daemon.subscribe() for _ in range(10)]
    eager = [daemon.subscribe() for _ in range(40)]
    statuses, done = [], threading.Event()

    def scrape():
        while not done.wait(0.1):
            statuses.append(daemon.get("/metrics")[0])

    scraper = threading.Thread(target=scrape)
    scraper.start()
    try:
        askers = [place.ask(f"many-{n}") for n in range(40)]
        told(daemon, askers)
        for asker in askers:
            asker.answer()
        told(daemon, askers, resolutions)
    finally:
        done.set()
        scraper.join()
    written = [r["id"] for r in daemon.receipts()]
    for connection in eager:
        heard = b""
        while heard.count(b"\n") < len(written):
            heard += connection.recv(1 << 20)
        assert [json.loads(line)["id"] for line in heard.splitlines()] == written
    assert len(written) >= 80
    assert set(statuses) == {200}
    assert daemon.metric("receipt_trace_exporter_lost_receipts_total") == 0
    for connection in (*lazy, *eager):
        connection.close()


def test_a_storm_of_hang_ups_and_rotations_loses_nothing(place):
    """Every receipt is in one of the files, once."""
    daemon = place.daemon()
    askers = [place.ask(f"storm-{n}") for n in range(6)]
    expected = sorted(asker.pid for asker in askers)
    rotated = []

    def written():
        files = [daemon.receipts_path, *rotated]
        return [r for path in files for r in daemon.receipts(path=path)]

    def storm():
        for _ in range(50):
            daemon.hang_up()
            time.sleep(0.004)
        if daemon.receipts_path.exists():
            rotated.append(place / f"rotated-{len(rotated)}")
            daemon.receipts_path.rename(rotated[-1])
        return set(expected) <= set(pids(waits(written())))

    eventually(storm, lambda: f"all are told, in the middle of it: {daemon}")
    for asker in askers:
        asker.answer()
    assert len(rotated) >= 3
    eventually(
        lambda: set(expected) <= set(pids(resolutions(written()))),
        lambda: f"all are resolved: {daemon}",
    )
    mine = [r for r in written() if r["program"]["pid"] in expected]
    assert pids(waits(mine)) == pids(resolutions(mine)) == expected
    assert daemon.metric("receipt_trace_config_reloads_total", result="taken") >= 1
    assert daemon.process.poll() is None


def test_a_configuration_of_garbage_is_refused_and_the_one_before_stays(place):
    """Then one that is right is taken, and what needs a restart is said."""
    daemon = place.daemon(config='[agent.mine]\ntool.env = { MINE = "1" }\n')
    for garbage in (b"\x00\xff garbage", b"prompt = 3", b'receits = "x"', b"[agent.a]\nb = 1"):
        before = daemon.events().count("config_refused")
        daemon.config.write_bytes(garbage)
        daemon.hang_up()
        eventually(
            lambda before=before: daemon.events().count("config_refused") > before,
            lambda: f"it is refused: {daemon}",
        )
    assert daemon.metric("receipt_trace_config_reloads_total", result="refused") == 4
    asker = place.ask("old")
    told(daemon, [asker])
    daemon.config.write_text('prompt = "off"\njournal = true\nsource = "procfs"\n')
    daemon.hang_up()
    eventually(lambda: "config_taken" in daemon.events(), lambda: f"it is taken: {daemon}")
    (said,) = [line for line in daemon.log() if line["event"] == "restart_needed"]
    assert said["keys"] == ["source", "journal"]
    told(daemon, [place.ask("new")])
    assert daemon.receipts("old")[0]["prompt"]["text"] == "Go on?"
    assert daemon.receipts("new")[0]["prompt"] == {
        "text": "", "truncated": False, "source": "output", "redacted": True,
    }  # fmt: skip


# -- it lets nobody in -----------------------------------------------------------------------------


@needs_root
def test_a_subscriber_sees_his_own_processes_and_root_all(place):
    """The kernel says who he is."""
    need("setpriv")
    daemon = place.daemon()
    need("socat")
    heard = {}
    for name, uid in (("nobody", NOBODY), ("root", 0)):
        heard[name] = place / name
        with heard[name].open("wb") as out:
            place.start(["socat", "-u", f"UNIX-CONNECT:{daemon.socket}", "-"], stdout=out,
                        user=uid, group=uid, extra_groups=[])  # fmt: skip
    eventually(lambda: connections(daemon.socket) == 3, "both are connected")
    told(daemon, [place.ask("nobodys", uid=NOBODY), place.ask("roots")])
    for label in (b"nobodys", b"roots"):
        eventually(lambda label=label: label in heard["root"].read_bytes(), "root hears of both")
    eventually(lambda: b"nobodys" in heard["nobody"].read_bytes(), "he hears of his own")
    assert b"roots" not in heard["nobody"].read_bytes()


def connections(path):
    """How many sockets there are at a place, that of who listens included (proc_pid_net(5))."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return sum(line.endswith(f" {path}") for line in lines)


def test_no_page_shows_a_question_unless_it_was_asked_to(place):
    """And what the program printed stays text where it is shown."""
    text = "Delete <script>alert(1)</script>? "
    daemon = place.daemon()
    told(daemon, [place.ask("one", text=text)])
    for path in ("/", "/metrics", "/healthz", "/readyz"):
        status, body = daemon.get(path)
        assert status == 200
        assert "Delete" not in body or path == "/"
    page = daemon.get("/")[1]
    shown = page.partition("Latest receipts")[2]
    assert "question (not shown)" in shown
    assert "alert(1)" not in shown
    daemon.config.write_text('[prompt]\npage = "full"\n')
    daemon.hang_up()
    eventually(lambda: "config_taken" in daemon.events(), "it is taken")
    told(daemon, [place.ask("two", text=text)])
    page = daemon.get("/")[1]
    assert "<pre>Delete &lt;script&gt;alert(1)&lt;/script&gt;?</pre>" in page
    assert page.count("<script") == 1


def test_the_port_answers_get_and_head_only_and_files_are_for_their_owner(place):
    """Neither needs a configuration."""
    daemon = place.daemon()
    assert daemon.get("/metrics", "HEAD") == (200, "")
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
        assert daemon.get("/metrics", method)[0] == 405
    assert daemon.receipts_path.stat().st_mode & 0o777 == 0o600
    outside = place.daemon("--metrics", "0.0.0.0:0", name="outside")
    (line,) = [line for line in outside.log() if line["event"] == "listening"]
    assert line["page"] is False
    port = int(line["url"].rpartition(":")[2].strip("/"))
    with socket.create_connection(("127.0.0.1", port), BOUND) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.0 404"


def test_neither_a_configuration_nor_what_programs_print_reaches_a_shell(place):
    """The watcher never starts anything at all."""
    evil = f"$(touch {place / 'evil'}); `touch {place / 'evil'}`\n| touch {place / 'evil'} #"
    quoted = json.dumps(evil)
    daemon = place.daemon()
    daemon.config.write_text(f"receipts = {quoted}\notlp = {quoted}\nsocket = {quoted}\n")
    daemon.hang_up()
    eventually(lambda: "config_taken" in daemon.events(), lambda: str(daemon))
    told(daemon, [place.ask("evil", text=evil, output=place / "out; touch evil")])
    assert descendants(daemon.pid) == []
    assert daemon.stop() == 0
    assert not (place / "evil").exists()
    assert not [p for p in place.path.iterdir() if p.name.startswith("$(")]


# -- and the stop ----------------------------------------------------------------------------------


def test_stopped_for_half_a_minute_it_has_lost_nothing(stopped):
    """What asked, was answered or began meanwhile is told when it goes on."""
    place, daemon, before, since = stopped
    during = [place.ask(f"during-{n}") for n in range(3)]
    before[0].answer()
    kill(before[1].pid, signal.SIGTERM)
    while time.monotonic() - since < 30:
        time.sleep(0.1)
    kill(daemon.pid, signal.SIGCONT)
    told(daemon, during)
    told(daemon, before[:2], resolutions)
    told(daemon, before)
    assert daemon.get("/healthz") == (200, "ok\n")
    assert daemon.metric("receipt_trace_exporter_lost_receipts_total") == 0
