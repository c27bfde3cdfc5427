"""``receipt-trace top`` on a terminal of its own: a private tmux server that types and looks."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(
        shutil.which("tmux") is None, reason="tmux is not installed; install the package tmux"
    ),
]

RECEIPT_TRACE = str(Path(sys.executable).parent / "receipt-trace")
BOUND = 30
HEADER = ["AGENT", "PID", "AGE", "PROCS", "WAITS", "ASKS"]


def eventually(condition, what):
    """Wait for a condition, with a bound; returns what it gave."""
    deadline = time.monotonic() + BOUND
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {BOUND} s: {what()}"
        time.sleep(0.05)
    return value


def environment(**more):
    """That of the tests, in a language that has every character, without marks."""
    kept = {k: v for k, v in os.environ.items() if k not in ("RECEIPT_TRACE", "TMUX", "LC_ALL")}
    return kept | {"LC_ALL": "C.UTF-8"} | more


class Terminal:
    """A shell in a tmux server of its own, at which a test sits."""

    def __init__(self, directory, columns=120, lines=60):
        self._place = f"{directory}/tmux"
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", columns, "-y", lines, "sh",
                  cwd=directory)  # fmt: skip

    def tmux(self, *words, **more):
        """Say something to the server; returns what it says."""
        done = subprocess.run(
            ["tmux", "-S", self._place, *map(str, words)],
            env=environment(), capture_output=True, text=True, timeout=BOUND, check=True, **more,
        )  # fmt: skip
        return done.stdout

    def type(self, text):
        """A line of text."""
        self.tmux("send-keys", "-l", text)
        self.tmux("send-keys", "Enter")

    def press(self, *keys):
        """Keys, by their tmux names."""
        self.tmux("send-keys", *keys)

    def screen(self):
        """The lines on the screen."""
        return self.tmux("capture-pane", "-p").splitlines()

    def shows(self, text):
        """Wait until a text is there; returns the first line that has it."""
        return eventually(
            lambda: next((line for line in self.screen() if text in line), None),
            lambda: f"the screen shows {text!r}: " + "\n".join(self.screen()),
        )

    def state(self):
        """What the terminal is in: alternate screen, cursor, keypad, and the modes of the line."""
        flags = self.tmux(
            "display", "-p", "#{alternate_on} #{cursor_flag} #{keypad_cursor_flag} #{pane_tty}"
        ).split()
        modes = subprocess.run(["stty", "-g", "-F", flags.pop()], capture_output=True, check=True)
        return flags, modes.stdout

    def run(self, *options):
        """Start top; the shell tells its exit status when it has ended."""
        self.type("echo at its prompt")
        eventually(lambda: "at its prompt" in self.screen(), lambda: "\n".join(self.screen()))
        self.before = self.state()
        self.type(f"{RECEIPT_TRACE} top {' '.join(map(str, options))}; echo status=$?")
        eventually(
            lambda: (
                self.screen()[1].split()[:6] == HEADER
                or any(line.startswith("status=") for line in self.screen())
            ),
            lambda: "\n".join(self.screen()),
        )
        assert self.screen()[1].split()[:6] == HEADER, "\n".join(self.screen())

    def row(self, pid):
        """The row of a tool call, when it is there."""
        return self.shows(f" {pid} ")

    def waits(self, pid):
        """The row of a tool call, when it says that it waits."""
        return eventually(
            lambda: next((s for s in self.screen() if f" {pid} " in s and " stream " in s), None),
            lambda: f"{pid} waits: " + "\n".join(self.screen()),
        )

    def order(self, *pids):
        """Those of some tool calls that are shown, from top to bottom."""
        cells = [line.split()[1:2] for line in self.screen()]
        return [pid for cell in cells for pid in pids if cell == [str(pid)]]

    def close(self):
        """End the server and all that runs in it."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self.tmux("kill-server")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._place)


@pytest.fixture
def terminal(tmp_path):
    """A terminal of the usual size and more."""
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


@pytest.fixture
def call(tmp_path):
    """Starts marked tool calls; each is ended."""
    started = []

    def call(text, label=""):
        with (tmp_path / f"output-{len(started)}").open("wb") as out:
            process = subprocess.Popen(
                ["sh", "-c", text], cwd=tmp_path, stdin=subprocess.PIPE, stdout=out, stderr=out,
                env=environment(**({"RECEIPT_TRACE": label} if label else {})),
                start_new_session=True,
            )  # fmt: skip
        started.append(process)
        return process

    yield call
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(BOUND)
        process.stdin.close()


ASK = "printf 'Go on? '; read answer; sleep 60"


def quits(terminal):
    """It has ended with 0, and the terminal is as it was."""
    terminal.shows("status=0")
    assert terminal.state() == terminal.before


# -- the table -------------------------------------------------------------------------------------


def test_a_marked_tool_call_that_asks_is_shown_with_its_question(terminal, call):
    """Its label, its age, how long it waits and for what; an answer ends the wait."""
    label = f"deploy-{os.getpid()}"
    asker = call(ASK, label)
    terminal.run()
    cells = terminal.waits(asker.pid).split()
    assert cells[:2] == [label, str(asker.pid)]
    assert cells[3] == "1"
    assert cells[5:] == ["sh", "stream", "Go", "on?"]
    assert all(cell[-1] == "s" and cell[:-1].isdigit() for cell in (cells[2], cells[4]))
    asker.stdin.write(b"yes\n")
    asker.stdin.flush()
    eventually(lambda: "sleep 60" in terminal.row(asker.pid), lambda: "\n".join(terminal.screen()))
    assert "stream" not in terminal.row(asker.pid)
    terminal.press("q")
    quits(terminal)


def test_what_is_named_is_shown_and_nothing_else(terminal, call):
    """--root: one tree, whoever else works."""
    asker, other = call(ASK), call("sleep 60", "other")
    terminal.run("--root", asker.pid)
    assert "1 tool calls of 0 agents" in terminal.shows("1 waiting")
    assert terminal.order(asker.pid, other.pid) == [asker.pid]
    terminal.press("q")
    quits(terminal)


def test_s_changes_the_order(terminal, call):
    """Waits first, then age, then agent, then waits again."""
    old = call("sleep 60", "zz")
    eventually(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) * 100 > started(old.pid) + 1,
               lambda: "a tick has passed")  # fmt: skip
    asker = call(ASK, "aa")
    terminal.run("--root", old.pid, asker.pid)
    terminal.waits(asker.pid)
    for by, expected in (
        ("waits", [asker, old]), ("age", [old, asker]), ("agent", [asker, old]), ("waits", None),
    ):  # fmt: skip
        assert "1 waiting" in terminal.shows(f"(sorted by {by};")
        if expected:
            pids = [process.pid for process in expected]
            eventually(lambda p=pids: terminal.order(*p) == p,
                       lambda b=by: f"{b}: " + "\n".join(terminal.screen()))  # fmt: skip
        terminal.press("s")
    terminal.press("q")
    quits(terminal)


def started(pid):
    """Start time of a process in ticks since boot."""
    stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return int(stat[19])


def test_enter_shows_the_chosen_one_in_full(terminal, call):
    """And goes back; q leaves the receipt first, then the table."""
    first, second = call(ASK), call("printf 'Really? '; read answer; sleep 60")
    terminal.run("--root", first.pid, second.pid)
    terminal.waits(first.pid)
    terminal.waits(second.pid)
    above, below = terminal.order(first.pid, second.pid)
    for keys, pid in (((), above), (("Down",), below), (("k",), above), (("j",), below)):
        terminal.press(*keys, "Enter")
        assert terminal.shows("program ").split()[:2] == ["program", f"sh[{pid}]"]
        screen = "\n".join(terminal.screen())
        assert f"command   sh -c printf '{'Go on' if pid == first.pid else 'Really'}? '" in screen
        assert f"held by   {Path('/proc/self/comm').read_text().strip()}[{os.getpid()}]" in screen
        assert "input     stream on pipe:[" in screen
        assert "evidence  kernel: read (0=pipe:[" in screen
        assert terminal.screen()[8:9] == ["Go on?" if pid == first.pid else "Really?"]
        terminal.press("q" if keys else "Enter")
        terminal.shows("(sorted by")
    terminal.press("q")
    quits(terminal)


def test_q_quits_though_there_was_nothing_to_show_in_full(terminal, call):
    """Enter on a call that does not ask changes nothing."""
    idle = call("sleep 60")
    terminal.run("--root", idle.pid)
    terminal.row(idle.pid)
    terminal.press("Enter", "q")
    ended = []
    with contextlib.suppress(AssertionError):
        deadline = time.monotonic() + 5
        while not ended and time.monotonic() < deadline:
            ended = [line for line in terminal.screen() if line == "status=0"]
    assert ended


# -- its terminal ----------------------------------------------------------------------------------


def test_an_interrupt_leaves_the_terminal_as_it_was(terminal, call):
    """130, as for every command of ours."""
    asker = call(ASK)
    terminal.run("--root", asker.pid)
    terminal.press("C-c")
    terminal.shows("status=130")
    assert terminal.state() == terminal.before


def test_a_window_that_changes_its_size_is_filled_again(terminal, call):
    """Smaller and larger."""
    asker = call(ASK)
    terminal.run("--root", asker.pid)
    terminal.waits(asker.pid)
    for columns, lines in ((60, 10), (90, 30)):
        terminal.tmux("resize-window", "-x", columns, "-y", lines)
        eventually(
            lambda c=columns: len(terminal.screen()[0]) == c - 1,
            lambda c=columns: f"{c} columns: " + "\n".join(terminal.screen()),
        )
        assert terminal.row(asker.pid)
    terminal.press("q")
    quits(terminal)


def test_a_command_of_wide_characters_fits_on_a_small_screen(tmp_path, call):
    """The last line of the screen is full to its last column."""
    wide = call(f": {'漢字' * 60}; sleep 60")
    terminal = Terminal(tmp_path, columns=80, lines=3)
    try:
        terminal.run("--root", wide.pid)
        assert "漢" in terminal.row(wide.pid)
        terminal.press("q")
        quits(terminal)
    finally:
        terminal.close()


@pytest.mark.parametrize("descriptor", ["0</dev/null", "1>file"])
def test_without_a_terminal_there_is_nothing_to_draw_on(tmp_path, terminal, descriptor):
    """64, with what to use instead."""
    terminal.type(f"{RECEIPT_TRACE} top {descriptor}; echo status=$?")
    terminal.shows("status=64")
    said = [line for line in terminal.screen() if line.startswith("receipt-trace: ")]
    assert said == [
        "receipt-trace: top needs a terminal",
        "receipt-trace: try: receipt-trace watch, or receipt-trace tail",
    ]
