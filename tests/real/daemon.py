"""A real watcher as a service has it, and real commands that ask; shared by the tests of both."""

import contextlib
import http.client
import json
import shutil
import signal
import socket
import subprocess
import tempfile
import urllib.parse
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from .support import BOUND, RECEIPT_TRACE, environment, eventually, kill, parse

NOBODY = 65534


class Asker:
    """A tool call that asks one question on a pipe, with a program name of its own."""

    def __init__(self, place, label, *, text="Go on? ", program="sh", output=None, uid=None):
        self.output = output or place / f"output-{label}"
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [place.program(program), "-c", f"printf '%s' {shell(text)}; read a; exit 3"],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                cwd=place.path,
                env=environment(place.path, RECEIPT_TRACE=label),
                user=uid,
                group=uid,
                extra_groups=None if uid is None else [],
            )

    @property
    def pid(self):
        """Its number."""
        return self.process.pid

    def answer(self):
        """Give it what it waits for; returns its exit status."""
        self.process.stdin.write(b"y\n")
        self.process.stdin.close()
        return self.process.wait(BOUND)

    def end(self):
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait(BOUND)
        with contextlib.suppress(OSError):
            self.process.stdin.close()


def shell(text):
    """A word for the shell."""
    return "'" + text.replace("'", "'\\''") + "'"


class Daemon:
    """``receipt-trace watch`` with everything on."""

    def __init__(self, place, *options, config="", before=(), name="daemon", env=(),
                 socket="named"):  # fmt: skip
        self.place = place
        self.config = place / f"{name}.toml"
        self.config.write_text(config)
        self.receipts_path = place / f"{name}.jsonl"
        self.socket = str(place / f"{name}.sock")
        self.log_path = place / f"{name}.log"
        words = [
            *before, RECEIPT_TRACE, "watch", "--quiet", "--config", self.config,
            *([] if "--metrics" in options else ["--metrics", "127.0.0.1:0"]),
            *([] if socket is None or "--socket" in options else ["--socket", self.socket]),
            *([] if "--receipts" in options else ["--receipts", self.receipts_path]),
            *options,
        ]  # fmt: skip
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                list(map(str, words)),
                cwd=place.path,
                env=environment(place.path) | dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # no terminal: a hang-up means: read it all again
            )

    @property
    def pid(self):
        """Its number."""
        return self.process.pid

    def ready(self):
        """Itself, when it observes."""
        eventually(
            lambda: "watching" in self.events() or self.process.poll() is not None, str(self)
        )
        assert self.process.poll() is None, str(self)
        return self

    def log(self):
        """The lines of its log so far."""
        lines = self.log_path.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines if line.startswith("{")]

    def events(self):
        """The names of the events in its log."""
        return [line["event"] for line in self.log()]

    def receipts(self, *labels, path=None):
        """The receipts in its file, of some tool calls or of all."""
        path = path or self.receipts_path
        found = parse(path.read_bytes()) if path.exists() else []
        return [r for r in found if not labels or r["tree"]["label"] in labels]

    @property
    def url(self):
        """Where it serves."""
        (url,) = [line["url"] for line in self.log() if line["event"] == "listening"]
        return url

    def get(self, path="/", method="GET"):
        """(status, body) of a request."""
        connection = http.client.HTTPConnection(
            urllib.parse.urlsplit(self.url).netloc, timeout=BOUND
        )
        with contextlib.closing(connection):
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def metric(self, name, **labels):
        """The sum of the samples of a name that have these labels."""
        status, page = self.get("/metrics")
        assert status == 200
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def hang_up(self):
        """Have it read everything again."""
        kill(self.pid, signal.SIGHUP)

    def subscribe(self):
        """A connection to its socket, let in."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(BOUND)
        eventually(lambda: Path(self.socket).is_socket(), f"the socket is there, {self}")
        connection.connect(self.socket)
        return connection

    def stop(self):
        """End it as a service manager does; returns its exit status."""
        kill(self.pid, signal.SIGTERM)
        return self.process.wait(BOUND)

    def end(self):
        """End it, whatever it does."""
        kill(self.pid, signal.SIGKILL)
        self.process.wait(BOUND)

    def __str__(self):
        return f"status {self.process.poll()}: {self.log_path.read_text()[-2000:]}"


class Program:
    """Any program of a test."""

    def __init__(self, argv, **more):
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, **more)

    def end(self):
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait(BOUND)


class Place:
    """A folder of a test, with what runs there; leaving it ends all of that."""

    def __init__(self):
        self.path, self._running = Path(tempfile.mkdtemp(prefix="service-")), []
        self.path.chmod(0o755)  # other users are let in

    def __truediv__(self, name):
        return self.path / name

    def program(self, name):
        """A shell by another name, so that counts are ours alone."""
        if name == "sh":
            return "/bin/sh"
        path = self.path / name
        if not path.exists():
            shutil.copy("/bin/sh", path)
        return str(path)

    def daemon(self, *options, **more):
        """A watcher that observes."""
        self._running.append(Daemon(self, *options, **more))
        return self._running[-1].ready()

    def start(self, argv, **more):
        """Start any program."""
        self._running.append(Program(argv, **more))
        return self._running[-1].process

    def refused(self, *options, **more):
        """(exit status, output) of a watcher that must not start."""
        daemon = Daemon(self, *options, **more)
        self._running.append(daemon)
        status = daemon.process.wait(BOUND)
        return status, daemon.log_path.read_text()

    def ask(self, label, **more):
        """A tool call that asks."""
        self._running.append(Asker(self, label, **more))
        return self._running[-1]

    def close(self):
        """End everything."""
        for one in reversed(self._running):
            one.end()
        shutil.rmtree(self.path)


def in_own_mounts(script):
    """What comes before a command to have it in a mount namespace of its own, prepared by a script."""
    return (
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-ec",
        f'{script}; exec "$@"',
        "sh",
    )
