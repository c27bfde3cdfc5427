"""``receipt-trace run`` from outside: what passes through, what it exits with, whom it touches."""

import os
import re
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any, Final

import pytest

import receipt_trace

from .support import (
    BOUND,
    RECEIPT_TRACE,
    Terminal,
    briefly,
    descendants,
    environment,
    eventually,
    gone,
    how,
    kill,
    missing,
    need,
    never,
    parse,
    receipts_in,
    run,
    started,
    state,
    waits,
)

pytestmark = pytest.mark.kernel

WIRINGS: Final = ("tty", "pipe", "null")

# Notes every signal it gets, and how its input ended, in the file it is given.
DIARY: Final = """\
import os, signal, sys, time
diary = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note(text):
    os.write(diary, text.encode() + b"\\n")
def noted(number, _frame):
    note(signal.Signals(number).name if number < 32 else str(number))
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, noted)
note("ready")
print("question? ", end="", flush=True)
try:
    data = os.read(0, 100)
except OSError:
    note("hung up")
else:
    note(f"read {data.decode().strip()}" if data else "end of input")
    if data:
        sys.exit()
for _ in range(100):  # a signal that comes with the end of the input may be a little later
    time.sleep(0.02)
"""

# Ignores whatever can be ignored, and says when it does.
STUBBORN: Final = """\
import os, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_IGN)
open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
while True:
    time.sleep(60)
"""


@pytest.fixture
def diary(tmp_path: Path) -> Path:
    """Where the diary of the program goes; the program is ``python3 diary.py DIARY``."""
    (tmp_path / "diary.py").write_text(DIARY)
    return tmp_path / "diary"


def entries(diary: Path) -> list[str]:
    """What the program wrote down so far."""
    return diary.read_text().splitlines() if diary.exists() else []


def written_pid(path: Path) -> int:
    """The process number in a file, when it is there."""
    return int(eventually(lambda: path.exists() and path.read_text(), f"{path.name} is written"))


# -- output ----------------------------------------------------------------------------


def test_every_byte_of_both_streams_passes_under_a_pipe(tmp_path: Path) -> None:
    """All 256 values arrive as they were, and stdout and stderr stay apart."""
    text = "import os; b = bytes(range(256)); os.write(1, b * 99); os.write(2, b[::-1] * 99)"
    done = run(tmp_path, "python3", "-c", text, options=("--wiring", "pipe"))
    assert done.returncode == 0
    assert done.stdout == bytes(range(256)) * 99
    assert done.stderr == bytes(range(255, -1, -1)) * 99


def test_every_byte_passes_from_a_terminal(tmp_path: Path) -> None:
    """What the terminal hands out arrives unchanged, control bytes too; both streams are one."""
    text = (
        "stty raw; python3 -c 'import os; os.write(1, bytes(range(256)) * 99)'; "
        "printf '\\033[31mred\\377' >&2"
    )
    done = run(tmp_path, "bash", "-c", text, options=("--wiring", "tty"))
    assert done.stdout == bytes(range(256)) * 99 + b"\x1b[31mred\xff"
    assert done.stderr == b""


@pytest.mark.parametrize("wiring", WIRINGS)
def test_output_keeps_its_order(tmp_path: Path, wiring: str) -> None:
    """Each stream arrives in the order it was written, however the two are mixed."""
    text = "for i in {1..2000}; do echo out $i; echo err $i >&2; done"
    done = run(tmp_path, "bash", "-c", text, options=("--wiring", wiring))
    out, err = done.stdout.replace(b"\r", b"").split(b"\n"), done.stderr.split(b"\n")
    if wiring == "tty":
        assert out[:-1] == [b"%s %d" % (s, i) for i in range(1, 2001) for s in (b"out", b"err")]
    else:
        assert out[:-1] == [b"out %d" % i for i in range(1, 2001)]
        assert err[:-1] == [b"err %d" % i for i in range(1, 2001)]


@pytest.mark.parametrize(("wiring", "size"), [("tty", 50_000_000), ("pipe", 200_000_000)])
def test_much_output_takes_little_memory(tmp_path: Path, wiring: str, size: int) -> None:
    """It passes through a process that holds little of it; a terminal is slow, so it gets less."""
    seen = peak = 0
    with started(
        tmp_path,
        *("bash", "-c", f"stty raw 2>&-; head -c {size} /dev/zero"),
        options=("--wiring", wiring),
        stdout=subprocess.PIPE,
    ) as command:
        assert command.process.stdout is not None
        status = Path(f"/proc/{command.process.pid}/status")
        for chunk in iter(lambda: os.read(command.process.stdout.fileno(), 1 << 20), b""):
            seen += len(chunk)
            found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
            peak = max(peak, int(found[1])) if found else peak
        assert command.end() == 0
    assert seen == size
    assert 0 < peak < 100_000  # kB


def test_a_reader_that_leaves_ends_an_endless_writer(tmp_path: Path) -> None:
    """When nobody reads our output any more the command finds out, as it would without us."""
    with started(tmp_path, "yes", options=("--wiring", "pipe"), stdout=subprocess.PIPE) as command:
        assert command.process.stdout is not None
        assert os.read(command.process.stdout.fileno(), 2) == b"y\n"
        command.process.stdout.close()
        assert command.end() == 128 + signal.SIGPIPE
        assert command.receipts == []


# -- exit status -----------------------------------------------------------------------


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize(
    ("text", "status"),
    [("true", 0), ("exit 7", 7), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -KILL $$", 137),
     ("kill -SEGV $$", 139), ("kill -HUP $$", 129)],
)  # fmt: skip
def test_it_exits_as_the_command_did(tmp_path: Path, wiring: str, text: str, status: int) -> None:
    """The status is handed on; a signal is 128 plus its number."""
    done = run(tmp_path, "bash", "-c", f"ulimit -c 0; {text}", options=("--wiring", wiring))
    assert done.returncode == status
    assert done.receipts == []


def test_a_command_that_does_not_exist_is_127(tmp_path: Path) -> None:
    """As a shell says it, with its name and what to look at."""
    done = run(tmp_path, "no-such-command-here")
    assert done.returncode == 127
    assert b"no-such-command-here" in done.stderr
    assert b"not found" in done.stderr


@pytest.mark.parametrize("name", ["./text", "/"])
def test_a_command_that_cannot_be_executed_is_126(tmp_path: Path, name: str) -> None:
    """A file without the bit, and a directory."""
    (tmp_path / "text").write_text("#!/bin/sh\n")
    done = run(tmp_path, name)
    assert done.returncode == 126
    assert name.encode() in done.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((), "COMMAND"),
        (("--",), "COMMAND"),
        (("--nonsense", "--", "true"), "--nonsense"),
        (("--wiring", "telegraph", "--", "true"), "telegraph"),
        (("--timeout", "soon", "--", "true"), "soon"),
        (("--timeout", "0", "--", "true"), "0"),
        (("--on-wait", "panic", "--", "true"), "panic"),
        (("--", ""), "COMMAND"),
    ],
)
def test_bad_usage_is_64(tmp_path: Path, words: tuple[str, ...], named: str) -> None:
    """Every mistake names itself and the next step, in lines of ours, without a traceback."""
    done = subprocess.run(
        [RECEIPT_TRACE, "run", *words],
        cwd=tmp_path, env=environment(tmp_path), stdin=subprocess.DEVNULL,
        capture_output=True, timeout=BOUND, check=False,
    )  # fmt: skip
    assert done.returncode == 64
    assert named in done.stderr.decode()
    assert all(line.startswith("receipt-trace: ") for line in done.stderr.decode().splitlines())


@pytest.mark.parametrize("target", ["missing/receipts", ".", "fd:99", "fd:x", "fd:0"])
def test_receipts_that_cannot_be_written_stop_everything(tmp_path: Path, target: str) -> None:
    """Bad usage is found out before the command is started."""
    with open(os.devnull, "rb") as reading:
        done = subprocess.run(
            [RECEIPT_TRACE, "run", "--receipts", target, "--", "touch", "ran"],
            cwd=tmp_path, env=environment(tmp_path), stdin=reading,
            capture_output=True, timeout=BOUND, check=False,
        )  # fmt: skip
    assert done.returncode == 64
    assert target in done.stderr.decode()
    assert not (tmp_path / "ran").exists()


# -- where receipts go -----------------------------------------------------------------


def asking(tmp_path: Path, *options: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a command that asks and is interrupted, with these options."""
    return subprocess.run(
        [RECEIPT_TRACE, "run", "--on-wait", "interrupt", *options, "--", "bash", "-c",
         "echo out; echo err >&2; sleep 0.3; printf 'go? '; read x"],
        cwd=tmp_path, env=environment(tmp_path), stdin=subprocess.DEVNULL,
        capture_output=True, timeout=BOUND, check=False, **more,
    )  # fmt: skip


def test_people_get_a_line_on_stderr(tmp_path: Path) -> None:
    """A sentence with the program and its question; stdout is the command's alone."""
    done = asking(tmp_path)
    assert done.stdout == b"out\ngo? "
    lines = done.stderr.decode().splitlines()
    assert lines[0] == "err"
    assert re.fullmatch(r"receipt-trace: bash\[\d+\] reads its input on \S+: “go\?”", lines[1])
    assert re.match(r"receipt-trace: bash\[\d+\] was ended by receipt-trace after", lines[2])


def test_json_goes_to_stderr(tmp_path: Path) -> None:
    """With --json the same place, one object a line."""
    done = asking(tmp_path, "--json")
    assert done.stdout == b"out\ngo? "
    first, _, rest = done.stderr.partition(b"\n")
    assert first == b"err"
    assert [r["event"] for r in parse(rest)] == ["wait", "resolved"]


def test_a_dash_is_stdout(tmp_path: Path) -> None:
    """Receipts are mixed into the output, each a line by itself."""
    done = asking(tmp_path, "--receipts", "-")
    assert done.stderr == b"err\n"
    assert done.stdout.startswith(b"out\ngo? ")
    assert [r["event"] for r in parse(done.stdout.removeprefix(b"out\ngo? "))] == [
        "wait",
        "resolved",
    ]


def test_an_open_descriptor_gets_the_receipts(tmp_path: Path) -> None:
    """fd:N is one that the caller opened; both streams are the command's alone."""
    with (tmp_path / "there").open("wb") as file:
        done = asking(tmp_path, "--receipts", f"fd:{file.fileno()}", pass_fds=(file.fileno(),))
    assert (done.stdout, done.stderr) == (b"out\ngo? ", b"err\n")
    assert [r["event"] for r in receipts_in(tmp_path / "there")] == ["wait", "resolved"]


def test_a_file_is_appended_to_and_is_private(tmp_path: Path) -> None:
    """Prompts may hold what programs print: nobody else reads them."""
    asking(tmp_path, "--receipts", "there")
    asking(tmp_path, "--receipts", "there", "--label", "second")
    receipts = receipts_in(tmp_path / "there")
    assert [r["tree"]["label"] for r in receipts] == [None, None, "second", "second"]
    assert len({r["id"] for r in receipts}) == 4
    assert [r["id"] for r in receipts] == sorted(r["id"] for r in receipts)
    assert (tmp_path / "there").stat().st_mode & 0o777 == 0o600


def test_a_full_disk_does_not_lose_the_receipt(tmp_path: Path) -> None:
    """Where the file cannot be written any more the receipt follows on stderr."""
    done = asking(tmp_path, "--receipts", "/dev/full")
    assert done.returncode == 75
    lines = [line for line in done.stderr.splitlines(keepends=True) if line.startswith(b"{")]
    assert [r["event"] for r in parse(b"".join(lines))] == ["wait", "resolved"]


# -- input -----------------------------------------------------------------------------


def test_piped_input_is_passed_on_with_its_end(tmp_path: Path) -> None:
    """A given answer answers, and the end of the given input is the command's."""
    (tmp_path / "f").touch()
    done = run(tmp_path, "rm", "-i", "f", input=b"y\n")
    assert done.returncode == 0
    assert done.receipts == []
    assert not (tmp_path / "f").exists()
    done = run(tmp_path, "sha256sum", input=bytes(range(256)) * 5000)
    assert done.returncode == 0
    expected = subprocess.run(["sha256sum"], input=bytes(range(256)) * 5000, capture_output=True, check=True)  # fmt: skip
    assert done.stdout == expected.stdout


def test_an_answer_and_its_end_reach_a_terminal(tmp_path: Path) -> None:
    """Under tty a piped answer is typed, and its end is the terminal's end-of-file."""
    (tmp_path / "f").touch()
    done = run(tmp_path, "rm", "-i", "f", input=b"y\n", options=("--wiring", "tty"))
    assert (done.returncode, (tmp_path / "f").exists()) == (0, False)
    done = run(tmp_path, "cat", input=b"some words\n", options=("--wiring", "tty"))
    assert done.returncode == 0
    assert done.stdout.count(b"some words") == 2  # the echo, and cat


def test_a_regular_file_is_passed_on(tmp_path: Path) -> None:
    """A file as input is given to the command to its last byte."""
    (tmp_path / "given").write_bytes(b"0123456789" * 50_000)
    with (tmp_path / "given").open("rb") as file:
        done = run(tmp_path, "cat", stdin=file.fileno())
    assert (done.returncode, done.stdout) == (0, b"0123456789" * 50_000)


@pytest.mark.parametrize(
    ("wiring", "closing"),
    [("tty", "<&-"), ("pipe", "</dev/null"), ("pipe", "<&-"), ("tty", "<&- >&- 2>&-"),
     ("pipe", "<&- >&- 2>&-")],
)  # fmt: skip
def test_an_input_that_is_closed_from_the_start_is_nobody(
    tmp_path: Path, wiring: str, closing: str
) -> None:
    """The command's own input stays open, so that its question is seen, not answered by chance."""
    (tmp_path / "f").touch()
    with started(
        tmp_path,
        *("rm", "-i", "f"),
        options=("--wiring", wiring),
        before=("setsid", "--wait", "bash", "-c", f'exec "$0" "$@" {closing}'),
    ) as command:
        assert command.wait()["program"]["name"] == "rm"
        never(lambda: command.process.poll() is not None, "it has ended", 0.5)
    assert (tmp_path / "f").exists()


def test_under_null_the_command_reads_the_end(tmp_path: Path) -> None:
    """A closed input is what was asked for: the command goes on, nothing is reported."""
    done = run(tmp_path, "bash", "-c", "read x || echo closed", options=("--wiring", "null"))
    assert (done.returncode, done.stdout, done.receipts) == (0, b"closed\n", [])


# -- what it does to the command -------------------------------------------------------


@pytest.mark.parametrize("wiring", ["tty", "pipe"])
def test_reporting_never_signals(tmp_path: Path, diary: Path, wiring: str) -> None:
    """A program that notes every signal has noted none when it was reported and answered."""
    with started(
        tmp_path,
        *("python3", "diary.py", str(diary)),
        options=("--wiring", wiring),
        stdin=subprocess.PIPE,
    ) as command:
        command.wait()
        assert command.process.stdin is not None
        command.process.stdin.write(b"yes\n")
        command.process.stdin.flush()
        assert command.end() == 0
        assert how(command.receipts) == ["answered"]
    assert entries(diary) == ["ready", "read yes"]


def test_an_answer_just_before_the_end_is_an_answer(tmp_path: Path) -> None:
    """A program that works for a moment after the answer and then ends was answered."""
    text = "import time; input('go? '); end = time.time() + 0.15\nwhile time.time() < end: pass"
    with started(tmp_path, "python3", "-c", text, stdin=subprocess.PIPE) as command:
        command.wait()
        assert command.process.stdin is not None
        command.process.stdin.write(b"yes\n")
        command.process.stdin.flush()
        assert command.end() == 0
        assert how(command.receipts) == ["answered"]


def test_interrupting_ends_the_whole_tree(tmp_path: Path) -> None:
    """Also a child in the background that ignores SIGINT and SIGTERM; the record says so."""
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    text = (
        "python3 stubborn.py pid & until [ -e pid ]; do sleep 0.1; done; "
        "read -p 'go? ' x; touch went"
    )
    done = run(tmp_path, "bash", "-c", text, options=("--wiring", "tty", "--on-wait", "interrupt"))
    assert done.returncode == 75
    assert gone(written_pid(tmp_path / "pid"))
    assert [r["event"] for r in done.receipts] == ["wait", "resolved"], briefly(done.receipts)
    resolved = done.receipts[1]
    assert resolved["resolution"]["how"] == "interrupted"
    assert resolved["effects"]["tree_ended"] is True
    assert resolved["effects"]["ended_by"] == "receipt-trace"
    assert done.receipts[0]["effects"]["tree_ended"] is False
    assert not (tmp_path / "went").exists()


def test_interrupting_asks_politely_first(tmp_path: Path) -> None:
    """A program that cleans up on SIGINT gets the time to do it."""
    text = "trap 'touch cleaned; exit 3' INT; read -p 'go? ' x"
    done = run(tmp_path, "bash", "-c", text, options=("--wiring", "tty", "--on-wait", "interrupt"))
    assert done.returncode == 75
    assert (tmp_path / "cleaned").exists()


def test_interrupting_leaves_a_busy_command_alone(tmp_path: Path) -> None:
    """Without a wait there is nothing to interrupt."""
    done = run(tmp_path, "sleep", "2.5", options=("--on-wait", "interrupt"))
    assert (done.returncode, done.receipts) == (0, [])


@pytest.mark.parametrize("wiring", WIRINGS)
def test_the_time_is_up(tmp_path: Path, wiring: str) -> None:
    """--timeout ends the whole tree, whatever it ignores, and exits with 124."""
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    done = run(
        tmp_path,
        *("bash", "-c", "python3 stubborn.py pid & sleep 60"),
        options=("--wiring", wiring, "--timeout", "1.5"),
    )
    assert (done.returncode, done.receipts) == (124, [])
    assert gone(written_pid(tmp_path / "pid"))


def test_the_time_is_not_up(tmp_path: Path) -> None:
    """A command that ends in time is not touched."""
    done = run(tmp_path, "bash", "-c", "sleep 0.3; exit 5", options=("--timeout", "30"))
    assert done.returncode == 5


@pytest.mark.parametrize("wiring", ["tty", "pipe"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP])
def test_signals_are_handed_on(
    tmp_path: Path, diary: Path, wiring: str, number: signal.Signals
) -> None:
    """What receipt-trace is sent, its command gets, once, and decides itself what it means."""
    with started(
        tmp_path, "python3", "diary.py", str(diary), options=("--wiring", wiring)
    ) as command:
        eventually(lambda: "ready" in entries(diary), "the program is ready")
        kill(command.process.pid, number)
        eventually(lambda: number.name in entries(diary), f"{number.name} arrived")
        never(lambda: command.process.poll() is not None, "receipt-trace has ended", 0.3)
        assert entries(diary) == ["ready", number.name]


def test_an_interrupt_reaches_the_foreground_of_the_terminal(tmp_path: Path, diary: Path) -> None:
    """As a ^C would: the job in the foreground gets it, the shell around it does not."""
    with started(
        tmp_path,
        *("bash", "-c", f"set -m; python3 diary.py {diary}; echo status $?"),
        options=("--wiring", "tty"),
    ) as command:
        eventually(lambda: "ready" in entries(diary), "the program is ready")
        kill(command.process.pid, signal.SIGINT)
        eventually(lambda: "SIGINT" in entries(diary), "SIGINT arrived")
        assert state(command.command) == "S"


def test_a_helper_that_is_started_late_by_an_agent_that_ran_before_is_found(tmp_path: Path) -> None:
    """A pinentry is no descendant of gpg then, and nothing in gpg's tree runs when it comes or goes."""
    need("gpg", "gpgconf", "pinentry-curses")
    home = tmp_path / "g"
    home.mkdir(0o700)
    slow = tmp_path / "pinentry"
    slow.write_text('#!/bin/sh\nsleep 2\nexec pinentry-curses "$@"\n')
    slow.chmod(0o755)
    (home / "gpg-agent.conf").write_text(f"pinentry-program {slow}\n")
    (tmp_path / "f").write_text("x")
    set_home = ("env", f"GNUPGHOME={home}")
    subprocess.run(
        [*set_home, "gpgconf", "--launch", "gpg-agent"], env=environment(tmp_path), check=True
    )
    try:
        asks = (*set_home, "gpg", "-c", "f")
        with started(tmp_path, *asks, options=("--wiring", "tty")) as command:
            receipt = command.wait()
            assert receipt["program"]["name"].startswith("pinentry")
            kill(receipt["program"]["pid"])
            assert command.end() != 0
            assert how(command.receipts) == ["exited"]
    finally:
        subprocess.run(
            [*set_home, "gpgconf", "--kill", "gpg-agent"], env=environment(tmp_path), check=True
        )


def test_stopping_and_going_on(tmp_path: Path) -> None:
    """SIGTSTP stops the command and receipt-trace together, SIGCONT lets both go on."""
    with started(tmp_path, "bash", "-c", "sleep 60; true", options=("--wiring", "tty")) as command:
        below = eventually(lambda: (d := descendants(command.process.pid))[1:] and d, "it runs")
        kill(command.process.pid, signal.SIGTSTP)
        everybody = [command.process.pid, *below]
        eventually(lambda: {state(p) for p in everybody} == {"T"}, "all are stopped", 10)
        kill(command.process.pid, signal.SIGCONT)
        eventually(lambda: "T" not in {state(p) for p in everybody}, "all go on")
        assert command.process.poll() is None


@pytest.mark.parametrize("wiring", ["tty", "pipe"])
def test_killing_receipt_trace_hangs_up_on_the_command(
    tmp_path: Path, diary: Path, wiring: str
) -> None:
    """As when a terminal window is closed: SIGHUP, and the end of the input."""
    with started(
        tmp_path, "python3", "diary.py", str(diary), options=("--wiring", wiring)
    ) as command:
        eventually(lambda: "ready" in entries(diary), "the program is ready")
        command.wait()
        program = command.command
        kill(command.process.pid)
        ends = {"end of input", "hung up"}
        eventually(lambda: ends & set(entries(diary)), lambda: f"the input ended: {entries(diary)}")
        eventually(lambda: "SIGHUP" in entries(diary), lambda: f"SIGHUP arrived: {entries(diary)}")
        eventually(lambda: gone(program), "the program has ended")


def test_nobody_is_left_unburied(tmp_path: Path) -> None:
    """Orphans of the command come to us, and are buried while it still runs."""
    text = "for i in {1..20}; do (sleep 0.$i &); done; (true &); printf 'go? '; read x"
    with started(tmp_path, "bash", "-c", text) as command:
        command.wait()

        def zombies() -> list[int]:
            return [p for p in descendants(command.process.pid) if state(p) == "Z"]

        below = command.command
        eventually(lambda: descendants(command.process.pid) == [below], "the orphans have ended")
        assert zombies() == []


@pytest.mark.parametrize("wiring", ["tty", "pipe"])
def test_what_runs_on_in_the_background_is_left_alone(tmp_path: Path, wiring: str) -> None:
    """The command has ended, so receipt-trace ends: a daemon it started goes on."""
    text = "setsid bash -c 'echo $$ > pid; exec sleep 60' & until [ -s pid ]; do :; done; exit 4"
    done = run(tmp_path, "bash", "-c", text, options=("--wiring", wiring))
    daemon = written_pid(tmp_path / "pid")
    try:
        assert done.returncode == 4
        assert not gone(daemon)
    finally:
        kill(daemon)
        eventually(lambda: gone(daemon), "the daemon has ended")


# -- at a terminal ---------------------------------------------------------------------


def at_terminal(tmp_path: Path, *argv: str, **more: Any) -> Terminal:
    """A terminal with ``receipt-trace run`` on it; receipts go to a file."""
    words = [RECEIPT_TRACE, "run", "--receipts", "receipts", "--", *argv]
    return Terminal(tmp_path, *words, **more)


def test_the_size_is_handed_on(tmp_path: Path) -> None:
    """The command's terminal has the size of the caller's, and follows it."""
    text = "trap 'stty size' WINCH; stty size; while :; do sleep 0.1; done"
    with at_terminal(tmp_path, "bash", "-c", text, columns=101, lines=31) as terminal:
        terminal.shows(b"31 101")
        terminal.resize(77, 19)
        terminal.shows(b"19 77")


def test_without_a_terminal_the_size_is_the_usual_one(tmp_path: Path) -> None:
    """80x24, as programs expect where nobody knows better."""
    done = run(tmp_path, "stty", "size", options=("--wiring", "tty"))
    assert done.stdout.split() == [b"24", b"80"]


def test_a_person_answers(tmp_path: Path) -> None:
    """What is typed outside is typed inside; the record says that it was answered."""
    (tmp_path / "f").touch()
    with at_terminal(tmp_path, "rm", "-i", "f") as terminal:
        eventually(lambda: waits(receipts_in(tmp_path / "receipts")), "the question is reported")
        terminal.type(b"y\r")
        assert terminal.end() == 0
        assert not (tmp_path / "f").exists()
        receipts = receipts_in(tmp_path / "receipts")
        assert [r["event"] for r in receipts] == ["wait", "resolved"], briefly(receipts)
        assert how(receipts) == ["answered"]
        assert receipts[1]["wait"] == receipts[0]["id"]
        assert terminal.modes == terminal.before


def test_two_questions_are_two_receipts(tmp_path: Path) -> None:
    """A new question after an answer is a new wait."""
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()
    with at_terminal(tmp_path, "rm", "-i", "a", "b") as terminal:
        for count in (1, 2):
            eventually(
                lambda n=count: len(waits(receipts_in(tmp_path / "receipts"))) == n,
                f"question {count} is reported",
            )
            terminal.type(b"y\r")
        assert terminal.end() == 0
    receipts = receipts_in(tmp_path / "receipts")
    assert [r["event"] for r in receipts] == ["wait", "resolved"] * 2, briefly(receipts)
    assert ["'a'" in receipts[0]["prompt"]["text"], "'b'" in receipts[2]["prompt"]["text"]] == [
        True,
        True,
    ]
    assert how(receipts) == ["answered", "answered"]


@pytest.mark.parametrize("wiring", ["tty", "pipe"])
def test_two_questions_of_one_program_that_is_fed(tmp_path: Path, wiring: str) -> None:
    """An answer on the caller's input, and the next question is seen too."""
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()
    with started(
        tmp_path, "rm", "-i", "a", "b", options=("--wiring", wiring), stdin=subprocess.PIPE
    ) as command:
        assert command.process.stdin is not None
        for count, name in ((1, "'a'"), (2, "'b'")):
            assert name in command.wait(count)["prompt"]["text"]
            command.process.stdin.write(b"y\n")
            command.process.stdin.flush()
        assert command.end() == 0
        assert how(command.receipts) == ["answered", "answered"]


def test_typed_secrets_stay_secret(tmp_path: Path) -> None:
    """What a person types is in no record, not even when the terminal echoes it."""
    text = "read -s -p 'Password: ' x; echo; read -p 'Name: ' y; read -p 'Sure? ' z"
    with at_terminal(tmp_path, "bash", "-c", text) as terminal:
        for count, answer in ((1, b"hunter2\r"), (2, b"Rumpelstilz\r"), (3, b"y\r")):
            eventually(
                lambda n=count: len(waits(receipts_in(tmp_path / "receipts"))) == n,
                f"question {count} is reported",
            )
            terminal.type(answer)
        assert terminal.end() == 0
        assert b"hunter2" not in terminal.output
    assert b"hunter2" not in (tmp_path / "receipts").read_bytes()
    assert [r["input"]["kind"] for r in waits(receipts_in(tmp_path / "receipts"))] == [
        "secret",
        "line",
        "line",
    ]


def test_an_interrupt_key_interrupts_the_command_only(tmp_path: Path) -> None:
    """^C goes to the command's own terminal, which makes a signal of it."""
    text = "trap 'echo interrupted' INT; echo ready; while :; do sleep 0.1; done"
    with at_terminal(tmp_path, "bash", "-c", text) as terminal:
        terminal.shows(b"ready")
        eventually(lambda: terminal.raw, "keys go through")
        terminal.type(b"\x03")
        terminal.shows(b"interrupted")
        assert terminal.process.poll() is None


def test_a_suspend_key_stops_both(tmp_path: Path) -> None:
    """^Z stops the command and us, and the terminal is the caller's again until SIGCONT."""
    with at_terminal(tmp_path, "bash", "-c", "echo ready; sleep 60; true") as terminal:
        terminal.shows(b"ready")
        eventually(lambda: terminal.raw, "keys go through")
        below = eventually(lambda: (d := descendants(terminal.process.pid))[1:] and d, "it runs")
        everybody = [terminal.process.pid, *below]
        terminal.type(b"\x1a")
        eventually(lambda: {state(p) for p in everybody} == {"T"}, "all are stopped", 10)
        assert terminal.modes == terminal.before
        kill(terminal.process.pid, signal.SIGCONT)
        eventually(lambda: "T" not in {state(p) for p in everybody}, "all go on")
        eventually(lambda: terminal.raw, "keys go through again")


@pytest.mark.parametrize("end_it", ["true", "kill -KILL $$", "read x", "stty raw -echo; exit 3"])
def test_the_terminal_is_given_back_as_it_was(tmp_path: Path, end_it: str) -> None:
    """Whatever the command did to its own, and however it ended."""
    with at_terminal(tmp_path, "bash", "-c", f"echo ready; sleep 0.5; {end_it}") as terminal:
        eventually(lambda: terminal.raw, "keys go through")
        if end_it == "read x":
            terminal.shows(b"ready")
            (command,) = descendants(terminal.process.pid)[:1]
            kill(command)
        terminal.end()
        assert terminal.modes == terminal.before


def test_a_full_screen_is_not_scribbled_on(tmp_path: Path) -> None:
    """What people are told about an editor is said when it has left the screen."""
    need("vim")
    with Terminal(tmp_path, RECEIPT_TRACE, "run", "--", "vim", "-u", "NONE", "f") as terminal:
        terminal.shows(b"\x1b[?1049h")
        command = eventually(lambda: descendants(terminal.process.pid), "vim runs")[0]
        never(lambda: b"receipt-trace" in terminal.read(), "it is told too early", 3)
        assert not gone(command)
        terminal.type(b":q!\r")
        assert terminal.end() == 0
        told = terminal.output[terminal.output.rindex(b"\x1b[?1049l") :]
        assert b"receipt-trace: vim[" in told
        assert terminal.modes == terminal.before


def test_in_the_background_it_does_not_touch_the_terminal(tmp_path: Path) -> None:
    """A job in the background neither reads the terminal nor changes it, and is not stopped."""
    text = f"set -m; {RECEIPT_TRACE} run --receipts receipts -- rm -i f & echo job $!; sleep 60"
    (tmp_path / "f").touch()
    with Terminal(tmp_path, "bash", "-c", text) as terminal:
        eventually(lambda: waits(receipts_in(tmp_path / "receipts")), "the question is reported")
        job = int(re.search(rb"job (\d+)", terminal.read())[1])  # type: ignore[index]
        assert state(job) == "S"
        assert terminal.modes == terminal.before


# -- hostile commands ------------------------------------------------------------------


HOSTILE: Final = """\
import ctypes, sys
ctypes.CDLL(None).prctl(15, b"a\\n\\x1b[31m\\xff\\x07b", 0, 0, 0)  # PR_SET_NAME
input("line\\x1b[2J one\\r\\n\\x1b]0;title\\x07two? \\x1b[31m")
"""


@pytest.mark.parametrize("wiring", ["tty", "pipe"])
def test_hostile_names_are_harmless(tmp_path: Path, wiring: str) -> None:
    """A name with a newline, an escape and half a character acts on no terminal and no parser."""
    (tmp_path / "hostile.py").write_text(HOSTILE)
    argv = ("python3", "hostile.py", b"x\xff\n\x1b[2J\r\x9b1m", "\U0001f4a5")
    done = run(tmp_path, *argv, options=("--wiring", wiring, "--on-wait", "interrupt"))
    assert done.returncode == 75
    receipt = waits(done.receipts)[0]
    assert receipt["program"]["name"] == "a\n\x1b[31m\\xff\x07b"
    assert "\U0001f4a5" in receipt["program"]["argv"]
    assert "two?" in receipt["prompt"]["text"]
    assert "\x1b" not in receipt["prompt"]["text"]


def test_hostile_names_are_escaped_for_people(tmp_path: Path) -> None:
    """The line on stderr is one line of printable text."""
    (tmp_path / "hostile.py").write_text(HOSTILE)
    done = subprocess.run(
        [RECEIPT_TRACE, "run", "--wiring", "tty", "--on-wait", "interrupt", "--label", "l\x1b[1m\n",
         "--", "python3", "hostile.py", b"x\xff\n\x1b[2J"],
        cwd=tmp_path, env=environment(tmp_path), stdin=subprocess.DEVNULL,
        capture_output=True, timeout=BOUND, check=False,
    )  # fmt: skip
    assert done.returncode == 75
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 2
    assert all(line.startswith("receipt-trace: ") and line.isprintable() for line in lines), lines


@pytest.mark.parametrize("word", [b"no-such-\xff\x1b[31m\n-command", b"x" * 5000])
def test_a_hostile_command_word_is_harmless(tmp_path: Path, word: bytes) -> None:
    """An error about a word shows it escaped."""
    done = run(tmp_path, word)
    assert done.returncode in {126, 127, 64}
    text = done.stderr.decode()
    assert all(
        line.isprintable() and line.startswith("receipt-trace: ") for line in text.splitlines()
    )


@pytest.mark.parametrize("wiring", ["tty", "pipe"])
def test_a_storm_of_processes_ends_in_one_receipt(tmp_path: Path, wiring: str) -> None:
    """2,000 short processes, orphans among them, then a question."""
    text = "for i in {1..700}; do (:); (: &); done; printf 'done? '; read x"
    with started(tmp_path, "bash", "-c", text, options=("--wiring", wiring)) as command:
        assert command.wait()["prompt"]["text"].endswith("done?")
        never(lambda: len(command.receipts) > 1, "there is another receipt", 1.5)
        assert briefly(command.receipts).count("wait bash") == 1
        only = command.command
        eventually(lambda: descendants(command.process.pid) == [only], "all are buried")


def test_a_crowd_of_threads_asks_once(tmp_path: Path) -> None:
    """200 threads that sleep beside one that asks."""
    text = (
        "import threading\n"
        "for _ in range(200): threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "input('one? ')\n"
    )
    (tmp_path / "s.py").write_text(text)
    with started(tmp_path, "python3", "s.py") as command:
        assert command.wait()["prompt"]["text"] == "one?"


def test_descriptors_are_not_inherited(tmp_path: Path) -> None:
    """The command has three descriptors, as it would without us, and those of the caller."""
    text = "ls -l /proc/self/fd"
    done = run(tmp_path, "bash", "-c", text)
    fds = re.findall(rb" (\d+) -> ", done.stdout)
    assert sorted(fds) == [b"0", b"1", b"2", b"3"]  # the last one is the listing's own


def test_signal_dispositions_are_those_of_the_caller(tmp_path: Path) -> None:
    """A nohup stays one: what the caller ignores the command ignores, nothing else."""
    text = "grep -E 'SigIgn|SigBlk' /proc/self/status"
    plain = subprocess.run(["bash", "-c", text], capture_output=True, check=True).stdout
    assert run(tmp_path, "bash", "-c", text).stdout == plain
    done = run(tmp_path, "bash", "-c", text, before=("bash", "-c", 'trap "" HUP; exec "$0" "$@"'))
    ignored = int(re.search(rb"SigIgn:\s*(\w+)", done.stdout)[1], 16)  # type: ignore[index]
    assert ignored & 1


# -- other users -----------------------------------------------------------------------


@pytest.fixture
def unprivileged(tmp_path: Path) -> tuple[str, ...]:
    """Words in front of a command that make it run as nobody; none if we are nobody special."""
    if os.geteuid() != 0:
        return ()
    need("setpriv")
    words = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    tried = subprocess.run(
        [*words, RECEIPT_TRACE, "--version"],
        cwd="/", env=environment(tmp_path), capture_output=True, timeout=BOUND, check=False,
    )  # fmt: skip
    if tried.returncode:
        missing(
            f"nobody may not execute {RECEIPT_TRACE}",
            "put checkout and environment where every user may read them: chmod o+rX",
        )
    return words


def as_nobody(
    words: tuple[str, ...], tmp_path: Path, *argv: str, options: tuple[str, ...] = ()
) -> tuple[subprocess.CompletedProcess[bytes], list[dict[str, Any]]]:
    """``receipt-trace run --json`` as nobody; he may not write into our directory."""
    done = subprocess.run(
        [*words, RECEIPT_TRACE, "run", "--json", *options, "--", *argv],
        cwd="/", env=environment(tmp_path, HOME="/nonexistent"), stdin=subprocess.DEVNULL,
        capture_output=True, timeout=BOUND, check=False,
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines(keepends=True) if line.startswith(b"{")]
    return done, parse(b"".join(lines))


@pytest.mark.parametrize(("program", "question"), [("su", "Password:"), ("passwd", "password:")])
def test_a_set_uid_program_asks_for_a_secret(
    tmp_path: Path, unprivileged: tuple[str, ...], program: str, question: str
) -> None:
    """It may not be looked into, so its own terminal speaks, and the grade says so."""
    need(program)
    options = ("--wiring", "tty", "--timeout", "3")
    done, receipts = as_nobody(unprivileged, tmp_path, program, options=options)
    assert len(waits(receipts)) == 1, done
    receipt = receipts[0]
    assert receipt["program"]["name"] == program
    assert receipt["evidence"]["grade"] == "terminal"
    assert receipt["input"]["kind"] == "secret"
    assert question in receipt["prompt"]["text"]
    assert done.returncode == 124
    eventually(lambda: gone(receipt["program"]["pid"]), "the program has ended")


def test_a_set_uid_program_that_reads_a_pipe_asks_too(
    tmp_path: Path, unprivileged: tuple[str, ...]
) -> None:
    """What it has printed speaks, and that nothing is left in its pipe."""
    need("su")
    options = ("--wiring", "pipe", "--timeout", "3", "--receipts", "-")
    done, _ = as_nobody(unprivileged, tmp_path, "su", options=options)
    receipts = parse(done.stdout)
    assert len(waits(receipts)) == 1, done
    assert receipts[0]["evidence"]["grade"] == "terminal"
    assert receipts[0]["input"]["kind"] == "stream"
    assert "Password:" in receipts[0]["prompt"]["text"]


def test_the_doctor_tells_an_unprivileged_user_what_is_missing(
    tmp_path: Path, unprivileged: tuple[str, ...]
) -> None:
    """It still works, with less, and says how to get more."""
    done = subprocess.run(
        [*unprivileged, RECEIPT_TRACE, "doctor"], cwd="/", env=environment(tmp_path),
        stdin=subprocess.DEVNULL, capture_output=True, timeout=BOUND, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    assert b"to get more:" in done.stdout


def test_an_own_program_is_looked_into_without_privileges(
    tmp_path: Path, unprivileged: tuple[str, ...]
) -> None:
    """The same evidence as root gets."""
    for wiring in ("tty", "pipe"):
        options = ("--wiring", wiring, "--on-wait", "interrupt")
        done, receipts = as_nobody(
            unprivileged, tmp_path, "python3", "-c", "input('name? ')", options=options
        )
        assert done.returncode == 75, done
        assert [r["evidence"]["grade"] for r in receipts] == ["syscall", "syscall"]
        assert receipts[0]["prompt"]["text"] == "name?"


# -- the Python API --------------------------------------------------------------------


def test_run_tells_what_became_of_a_command() -> None:
    """Status, output in the order it came, and no receipts where nobody waited."""
    result = receipt_trace.run(["bash", "-c", "echo out; echo err >&2; exit 3"])
    assert result.returncode == 3
    assert sorted(result.output.split()) == [b"err", b"out"]
    assert result.receipts == ()
    assert result.survivors == ()


def test_run_gives_input(tmp_path: Path) -> None:
    """An answer given beforehand is taken, also one that is longer than a pipe."""
    (tmp_path / "f").touch()
    result = receipt_trace.run(["rm", "-i", "f"], input=b"y\n", cwd=str(tmp_path))
    assert (result.returncode, result.receipts) == (0, ())
    assert not (tmp_path / "f").exists()
    result = receipt_trace.run(["wc", "-c"], input=b"x" * 1_000_000)
    assert result.output.strip() == b"1000000"


def test_run_interrupts() -> None:
    """75, and both records of the one wait."""
    result = receipt_trace.run(
        ["bash", "-c", "read -p 'go? ' x"], wiring="tty", on_wait="interrupt"
    )
    assert result.returncode == 75
    assert result.output.startswith(b"go? ")
    wait, resolved = result.receipts
    assert (wait.event, wait.prompt.text, wait.input.kind) == ("wait", "go?", "line")
    assert resolved.resolution is not None
    assert (resolved.resolution.how, resolved.wait) == ("interrupted", wait.id)
    for receipt in result.receipts:
        parse(receipt.to_json() + "\n")


def test_run_takes_an_environment_and_a_time_limit(tmp_path: Path) -> None:
    """As subprocess.run does."""
    result = receipt_trace.run(
        ["bash", "-c", "pwd; echo $WORD; exec sleep 60"],
        cwd=str(tmp_path), env={**os.environ, "WORD": "given"}, timeout=0.5,
    )  # fmt: skip
    assert result.returncode == 124
    assert result.output.split() == [str(tmp_path).encode(), b"given"]


def test_a_command_that_cannot_be_started_raises() -> None:
    """The errors of the command line, as exceptions of one family."""
    for argv in (["no-such-command-here"], ["/"], [], ["true", "a\0b"]):
        with pytest.raises(receipt_trace.ReceiptTraceError):
            receipt_trace.run(argv)
    with pytest.raises(receipt_trace.ReceiptTraceError):
        receipt_trace.run(["true"], cwd="/no/such/directory")
    with pytest.raises(receipt_trace.ReceiptTraceError):
        receipt_trace.run(["true"], timeout=0)


@pytest.mark.usefixtures("descriptors")
def test_receipts_come_while_the_command_runs() -> None:
    """The iterator gives the wait at once, and leaving the block ends the command."""
    with receipt_trace.Run(["bash", "-c", "read -p 'go? ' x"], wiring="tty") as command:
        receipt = next(iter(command))
        assert receipt.event == "wait"
        assert not gone(command.pid)
        with pytest.raises(RuntimeError):
            _ = command.returncode
        pid = command.pid
    assert gone(pid)


@pytest.mark.usefixtures("descriptors")
def test_many_runs_leave_nothing_behind() -> None:
    """No descriptor, no thread and no child is left of them."""
    threads = threading.active_count()
    for wiring in ("tty", "pipe", "null"):
        for _ in range(5):
            assert receipt_trace.run(["true"], wiring=wiring).returncode == 0  # type: ignore[arg-type]
    with pytest.raises(receipt_trace.ReceiptTraceError):
        receipt_trace.run(["no-such-command-here"], wiring="tty")
    eventually(lambda: threading.active_count() == threads, "helper threads have ended")
    assert descendants(os.getpid()) == []


def test_runs_in_threads_do_not_mix() -> None:
    """Several commands at once, each with its own receipts."""
    results: dict[int, receipt_trace.Result] = {}

    def one(number: int) -> None:
        results[number] = receipt_trace.run(
            ["bash", "-c", f"printf 'question {number}? '; read x"], on_wait="interrupt"
        )

    threads = [threading.Thread(target=one, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    for number in range(4):
        assert [r.event for r in results[number].receipts] == ["wait", "resolved"]
        assert results[number].receipts[0].prompt.text == f"question {number}?"


def test_a_host_application_keeps_its_own_children() -> None:
    """The API neither reaps nor adopts what is not its own."""
    with subprocess.Popen(["bash", "-c", "exit 6"]) as own:
        eventually(lambda: state(own.pid) == "Z", "our own child has ended")
        result = receipt_trace.run(["bash", "-c", "(sleep 0.2 &); read x"], on_wait="interrupt")
        assert result.returncode == 75
        assert own.wait(BOUND) == 6
