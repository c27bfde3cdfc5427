"""Runs stand-ins below one watcher, and tells who was reported."""

import contextlib
import fcntl
import json
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from .kit import lay_out, make_kit
from .table import Agent, Item, items

HERE = Path(__file__).parent
WINDOW = 6.0  # seconds for which what must stay silent is watched: six times the quiet time
PATIENCE = 15.0  # seconds until what must be reported is missed
_START = 30.0


def until(condition, seconds, what):
    """Wait for a condition; its value. Fails when the time is over."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.05)
    return value


class Drain:
    """Reads everything that is said on the terminals and pipes we hold, so that nobody blocks."""

    def __init__(self):
        self._selector = selectors.DefaultSelector()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._fds = set()

    def add(self, fd):
        """Read one from now on."""
        self._fds.add(fd)
        self._selector.register(fd, selectors.EVENT_READ)

    def _run(self):
        while not self._stopped.wait(0.02):
            for key, _ in self._selector.select(0.1):
                try:
                    said = os.read(key.fd, 65536)
                except OSError:
                    said = b""
                if not said:
                    self._selector.unregister(key.fd)

    def close(self):
        """Stop, and hang up."""
        self._stopped.set()
        self._thread.join()
        for fd in self._fds:
            os.close(fd)
        self._selector.close()


class Watcher:
    """One ``receipt-trace watch``."""

    def __init__(self, directory, *options, user=None):
        directory.mkdir()
        if user is not None:
            os.chown(directory, user, user)
        self.receipts_path, self.log_path = directory / "receipts", directory / "log"
        program = (sys.executable, "-m", "receipt_trace")
        installed = Path(sys.executable).parent / "receipt-trace"
        if installed.exists():
            program = (str(installed),)
        arguments = ("--receipts", str(self.receipts_path), "--socket", "off", "-v", *options)
        with open(self.log_path, "wb") as log:
            self._process = subprocess.Popen(
                (*program, "watch", *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=() if user is not None else None,
            )
        until(lambda: self.logged("watching") or self._ended(), _START, "the watcher starts")
        assert not self._ended(), self.log_path.read_text()

    def _ended(self):
        return self._process.poll() is not None

    def receipts(self):
        """All waits reported so far."""
        with contextlib.suppress(FileNotFoundError):
            return [
                receipt
                for line in self.receipts_path.read_text().splitlines(keepends=True)
                if line.endswith("\n") and (receipt := json.loads(line))["event"] == "wait"
            ]
        return []

    def logged(self, event):
        """All lines of the log about an event."""
        lines = self.log_path.read_text().splitlines(keepends=True)
        return [
            entry
            for line in lines
            if line.startswith("{")
            and line.endswith("\n")
            and (entry := json.loads(line))["event"] == event
        ]

    def followed(self):
        """Root process and agent of every tree that was followed."""
        return {entry["root_pid"]: entry["agent"] for entry in self.logged("tree_started")}

    def close(self):
        """Stop it as a service manager would."""
        self._process.terminate()
        try:
            assert self._process.wait(10) == 0, self.log_path.read_text()[-4000:]
        finally:
            self._process.kill()
            self._process.wait()


@dataclass
class Outcome:
    """What became of one item."""

    item: Item
    directory: Path
    pid: int
    waits: list = field(default_factory=list)
    roots: dict = field(default_factory=dict)
    alive: bool = False
    followed: str | None = None
    is_followed: bool = False


@dataclass
class Run:
    """One stand-in that was started. ``pid`` is the agent's own (the inner of two)."""

    agent: Agent
    directory: Path
    process: subprocess.Popen | None
    items: list
    pid: int = 0
    outcomes: dict = field(default_factory=dict)
    own: list = field(default_factory=list)


class Stage:
    """Where the stand-ins play."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.home = directory / "home"
        self.home.mkdir()
        self.bin = directory / "bin"  # python3 and node themselves: no shims of version managers
        self.bin.mkdir()
        for name, path in (("python3", sys.executable), ("node", shutil.which("node"))):
            os.symlink(os.path.realpath(path), self.bin / name)
        self.environment = {
            "PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "SHELL": "/bin/bash",
            "TERM": "xterm-256color",
        }
        self.kit = directory / "kit"
        make_kit(self.kit, self.environment)
        (self.kit / "shellIntegration-bash.sh").write_text("PS1='$ '\n")
        self.drain = Drain()
        self.watcher = Watcher(directory / "watcher")

    def close(self):
        """End everybody, and give back what is large."""
        try:
            self.watcher.close()
        finally:
            self.sweep()
            self.drain.close()
            shutil.rmtree(self.bin)

    # -- programs ------------------------------------------------------------------------------

    def native(self, runtime, name):
        """An executable of that name: a hard link of an interpreter, or a copy, once."""
        path = self.bin / name
        if path.exists():
            return path
        source = Path(shutil.which("node" if runtime == "node" else sys.executable)).resolve()
        copy = self.bin / f"copy-of-{runtime}"
        try:
            os.link(copy if copy.exists() else source, path)
        except OSError:  # another file system
            shutil.copy(source, copy)
            os.link(copy, path)
        return path

    def program(self, agent, spec, where):
        """(command line, variables) of a stand-in's process."""
        form, _, name = spec.partition(":")
        script = HERE / ("harness.js" if agent.runtime == "node" else "harness.py")
        if form == "native":
            binary = self.native(agent.runtime, name)
            home = {} if agent.runtime == "node" else {"PYTHONHOME": sys.base_prefix}
            return (str(binary), str(script)), home
        if form == "module":
            path = where.joinpath("lib", *name.split(".")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            (path.parent / "__init__.py").touch()
            shutil.copy(script, path)
            return ("python3", "-m", name), {"PYTHONPATH": str(where / "lib")}
        path = where / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / ("harness.js" if form == "node" else "harness.py"), path)
        return ("node" if form == "node" else "python3", str(path)), {}

    # -- playing -------------------------------------------------------------------------------

    def start(self, agent, chosen=None, place=None):
        """Start a stand-in with all its items, or those that are ``chosen``."""
        where = self.directory / "runs" / (place or agent.key)
        run = Run(agent, where, None, list(items(agent) if chosen is None else chosen))
        self.lay(where, run.items)
        if agent.runtime == "tmux":
            self._start_tmux(run)
        else:
            self._start_harness(run)
        return run

    def lay(self, where, chosen):
        """Make the directories of a stand-in and its items."""
        where.mkdir(parents=True)
        for item in chosen:
            lay_out(where / item.name, self.kit, item.name)

    def plan(self, agent, chosen, where):
        """Write the plan of a stand-in; (command line, variables) that play it."""
        plan = {
            "report": str(where / "report"),
            "python": sys.executable,
            "pty_start": str(HERE / "pty_start.py"),
            "title": agent.title,
            "becomes": agent.becomes and str(self.native(agent.runtime, agent.becomes)),
            "ipc": agent.name == "gemini-cli",
            "items": [
                {
                    "id": item.name,
                    "argv": item.argv,
                    "cwd": str(where / item.name),
                    "env": {**self.environment, **agent.own, **item.marks},
                    "stdio": item.stdio,
                    "session": item.session,
                    "feed": item.feed,
                }
                for item in chosen
            ],
        }
        path = where / "plan.json"
        argv, variables = self.program(agent, agent.program, where)
        if agent.relaunch:
            inner, plan["relaunch_env"] = self.program(agent, agent.relaunch, where)
            plan["relaunch"] = (*inner, str(path))
        path.write_text(json.dumps(plan))
        return (*argv, str(path)), {**self.environment, **agent.own, **variables}

    def _start_harness(self, run):
        argv, environment = self.plan(run.agent, run.items, run.directory)
        if run.agent.terminal:
            run.process, master = on_terminal(argv, run.directory, environment)
            self.drain.add(master)
        else:
            with open(run.directory / "errors", "wb") as errors:
                run.process = subprocess.Popen(
                    argv,
                    cwd=run.directory,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=errors,
                    stderr=errors,
                    start_new_session=True,
                )

    def _start_tmux(self, run):
        """A server with one pane for each item; keys are sent as soon as its shell has spoken."""
        socket = str(run.directory / "socket")

        def tmux(*arguments):
            return subprocess.run(
                ("tmux", "-S", socket, *arguments),
                cwd=run.directory,
                env=self.environment,
                check=True,
                capture_output=True,
                text=True,
            ).stdout

        panes = [item for item in run.items if item.stdio[0] == "pty"]
        shell = shlex.join(run.agent.shell(""))
        for position, item in enumerate(panes):
            place = ("-c", str(run.directory / item.name), shell)
            if position == 0:
                tmux("new-session", "-x", "160", "-y", "40", "-d", "-s", "terminus-2", *place)
                tmux("pipe-pane", "-t", "terminus-2", f"cat > {run.directory}/terminal.log")
            else:
                tmux("new-window", "-d", "-t", f"terminus-2:{position}", *place)
        for position, item in enumerate(panes):
            pane = f"terminus-2:{position}"
            until(lambda p=pane: tmux("capture-pane", "-p", "-t", p).strip(), _START, "a prompt")
            tmux("send-keys", "-t", pane, "-l", item.feed.rstrip("\n"))
            tmux("send-keys", "-t", pane, "Enter")
        pids = tmux("list-panes", "-s", "-t", "terminus-2", "-F", "#{pid} #{pane_pid}").split("\n")
        with open(run.directory / "report", "w") as report:
            report.write(json.dumps({"id": "self", "pid": int(pids[0].split()[0])}) + "\n")
            for item, line in zip(panes, pids, strict=False):
                report.write(json.dumps({"id": item.name, "pid": int(line.split()[1])}) + "\n")
        run.items = panes

    def pids(self, where):
        """The numbers of what a stand-in has started so far, and its own."""
        with contextlib.suppress(FileNotFoundError):
            lines = (where / "report").read_text().splitlines(keepends=True)
            return {e["id"]: e["pid"] for e in map(json.loads, filter(_is_whole, lines))}
        return {}

    def reported(self, run):
        """Whether a stand-in has started everything."""
        return len(self.pids(run.directory)) == len(run.items) + 1

    def know(self, run):
        """Take down the numbers of what a stand-in has started."""
        pids = self.pids(run.directory)
        run.pid = pids["self"]
        run.outcomes = {i.name: Outcome(i, run.directory / i.name, pids[i.name]) for i in run.items}

    def perform(self, runs):
        """Wait until everything started, and then until all is seen that there will be."""
        for run in runs:
            until(lambda r=run: self.reported(r), _START, f"{run.agent.key} starts all")
            self.know(run)
        watched_from = time.monotonic()
        asking = [o.directory for r in runs for o in r.outcomes.values() if o.item.kind]

        def all_seen():
            receipts = self.watcher.receipts()
            return all(any(is_of(r, place) for r in receipts) for place in asking)

        while time.monotonic() < watched_from + PATIENCE and not all_seen():
            time.sleep(0.1)
        time.sleep(max(0.0, watched_from + WINDOW - time.monotonic()))
        self._collect(runs)
        for run in runs:
            self.finish(run)

    def _collect(self, runs):
        receipts, followed = self.watcher.receipts(), self.watcher.followed()
        for run in runs:
            for outcome in run.outcomes.values():
                outcome.waits = [r for r in receipts if is_of(r, outcome.directory)]
                outcome.alive = os.path.exists(f"/proc/{outcome.pid}/cwd")
                outcome.is_followed = outcome.pid in followed
                outcome.followed = followed.get(outcome.pid)
                for wait in outcome.waits:
                    pid = wait["tree"]["root_pid"]
                    outcome.roots[pid] = facts(pid)
            run.own = [r for r in receipts if r["tree"]["cwd"] == str(run.directory)]

    def finish(self, run):
        """End a stand-in and everything it started."""
        if run.process is not None:
            run.process.kill()
            if run.process.stdin is not None:
                run.process.stdin.close()
            run.process.wait()
        self.sweep(run.directory)

    def sweep(self, directory=None):
        """Kill whoever works in a directory of ours; each and every command does."""
        place = str(directory or self.directory)

        def all_gone():
            found = [pid for pid in processes() if is_below(working_directory(pid), place)]
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not found

        until(all_gone, 20, f"everybody below {place} has ended")


def _take_terminal():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _is_whole(line):
    return line.endswith("\n")


def on_terminal(argv, cwd, environment):
    """Start a program as the leader of a session on a terminal; (process, master)."""
    master, slave = os.openpty()
    process = subprocess.Popen(
        argv,
        cwd=cwd,
        env=environment,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=_take_terminal,  # noqa: PLW1509  (one system call, which takes no lock)
    )
    os.close(slave)
    return process, master


def processes():
    """The numbers of all processes but our own."""
    return [int(n) for n in os.listdir("/proc") if n.isdigit() and int(n) != os.getpid()]


def working_directory(pid):
    """Where a process works; empty where that cannot be seen, or it is a zombie."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def is_of(receipt, directory):
    """Whether a receipt is about a tool call that was started in a directory (git goes below it)."""
    return is_below(receipt["tree"]["cwd"] or "", str(directory))


def is_below(path, place):
    """Whether a path is a directory, or in it."""
    return path == place or path.startswith(f"{place}/")


def facts(pid):
    """(command line, parent) of a process."""
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return argv, int(stat.rpartition(b")")[2].split()[1])
