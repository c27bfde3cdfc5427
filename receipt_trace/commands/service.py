"""What is around a watcher: exporters, the HTTP port, signals, and the service manager."""

import argparse
import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from exporters.dispatch import Dispatcher
from exporters.jsonl import JsonLinesExporter, open_receipts
from exporters.redaction import Prompt, mask
from exporters.stream import StreamExporter, default_path
from exporters.text import TextExporter
from receipt_trace import config, privileges
from receipt_trace.constants import NS
from receipt_trace.errors import UsageError
from receipt_trace.receipt import Receipt
from receipt_trace.sources import proc
from receipt_trace.systemd import Manager
from receipt_trace.table import Row
from receipt_trace.trees import Tree
from receipt_trace.watch import Watch

if TYPE_CHECKING:
    from exporters import http
    from exporters.metrics import MetricsExporter
    from exporters.page import PageExporter

_PROC: Final = Path("/proc")
_DEAF_NS: Final = 20 * NS  # the loop turns every five seconds; without a turn for so long it hangs
_FIXED: Final = ("receipts", "source", "metrics", "socket", "journal", "otlp")


class Service:
    """Takes the receipts of a watcher and runs it. What can fail, fails in ``open``."""

    def __init__(self, options: argparse.Namespace, settings: config.Config) -> None:
        self._options, self._settings = options, settings
        self._log = structlog.get_logger()
        self._manager = Manager(os.environ)
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._dispatcher = Dispatcher(self._gone)
        self._watch: Watch | None = None
        self._stream: StreamExporter | None = None
        self._server: http.Server | None = None
        self._metrics: MetricsExporter | None = None
        self._page: PageExporter | None = None
        self._hung_up = self._broken = self._ready = False
        self._turns = 0
        self._terminal = _has_terminal()
        self._beaten = time.monotonic_ns()

    def export(self, receipt: Receipt) -> None:
        """Where a watcher delivers its receipts."""
        self._dispatcher.export(receipt)

    def open_outputs(self) -> None:
        """Open what receipts are written to. Raises UsageError."""
        options, settings, prompts = self._options, self._settings, self._settings.prompts
        target = options.receipts or settings.receipts
        if target is not None:
            self._dispatcher.add("receipts", open_receipts(target), Prompt(prompts.receipts))
        if target != "-" and not options.quiet:
            out = JsonLinesExporter(1) if options.json else TextExporter(1, prefix="")
            self._dispatcher.add("stdout", out, Prompt(prompts.stdout))
        if settings.journal:
            self._open_journal(Prompt(prompts.journal))

    def open_ports(self, watch: Watch, hostname: str, *, alone: bool) -> None:
        """Open what others connect to. Raises UsageError; ``alone`` if there must not be another
        watcher of the whole host.
        """
        settings = self._settings
        self._watch = watch
        if settings.otlp is not None:
            from exporters.otlp import OtlpExporter  # noqa: PLC0415

            otlp = OtlpExporter(settings.otlp, hostname)
            self._dispatcher.add("otlp", otlp, Prompt(settings.prompts.otlp))
        self._stream = self._open_stream(self._options.socket or settings.socket, alone=alone)
        if self._stream is not None:
            prompt = Prompt(settings.prompts.socket)
            self._dispatcher.add("socket", self._stream, prompt, queued=False)
        where = self._options.metrics or settings.metrics
        if where != "off":
            try:
                self._serve(where, hostname)
            except UsageError:
                self._dispatcher.close()
                raise

    def run(self, done: Callable[[], bool]) -> None:
        """Watch until a signal, the reader of our output, or ``done`` says stop.

        Raises BrokenPipeError if it was the reader.
        """
        watch = self._watch
        assert watch is not None
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: watch.stop())
        signal.signal(signal.SIGHUP, lambda *_: self._hang_up())
        callbacks: dict[int, Callable[[], None]] = {self._reader: self._drain}
        if self._stream is not None:
            callbacks[self._stream.fileno()] = self._stream.serve

        def turned() -> bool:
            self._beat()
            if self._hung_up:
                self._hung_up = False
                self._reload()
            return done()

        self._give_up_privileges()
        self._dispatcher.start()
        if self._server is not None:
            self._server.start()
        timed = self._server is not None or self._manager.watchdog_ns is not None
        try:
            watch.run(turned, callbacks, **({"tick": self._manager.tick_ns} if timed else {}))
            self._manager.stopping()
        finally:
            signal.set_wakeup_fd(-1)
            self.close()
        if self._broken:
            raise BrokenPipeError

    def close(self) -> None:
        """Write what is waiting, and let go of everything."""
        self._ready = False
        self._dispatcher.close()
        if self._server is not None:
            self._server.close()
        os.close(self._reader)
        os.close(self._writer)

    # -- what is opened ----------------------------------------------------------------

    def _open_journal(self, prompt: Prompt) -> None:
        from exporters.journal import SOCKET, JournalExporter  # noqa: PLC0415

        try:
            self._dispatcher.add("journal", JournalExporter(), prompt)
        except OSError as error:
            raise UsageError(
                f"the journal cannot be reached at {SOCKET}: {error.strerror}; "
                f"set journal = false where there is no systemd"
            ) from None

    def _open_stream(self, wanted: str | None, *, alone: bool) -> StreamExporter | None:
        """The socket for `receipt-trace tail`; if it was not asked for, only if nothing stands in
        the way, which another watcher of the whole host does.
        """
        if self._manager.sockets:
            return StreamExporter("", self._manager.sockets[0])
        path = default_path() if wanted is None else wanted
        if path is None or path == "off":
            return None
        try:
            return StreamExporter(path)
        except UsageError as error:
            if wanted is not None:
                raise
            if alone and "another watcher" in str(error):
                raise UsageError(
                    f"another watcher of this host listens at {path!r}: follow it with "
                    f"`receipt-trace tail`, or watch beside it with --socket off"
                ) from None
            self._log.warning("no_stream", path=path, reason=str(error))
            return None

    def _serve(self, where: str, hostname: str) -> None:
        from exporters import http  # noqa: PLC0415
        from exporters.metrics import MetricsExporter  # noqa: PLC0415

        assert self._watch is not None
        address = http.parse_address(where)
        metrics = MetricsExporter(self._watch.health, self._dispatcher.tallies)
        self._metrics = metrics
        self._dispatcher.add("metrics", metrics, queued=False)
        routes: dict[str, http.Route] = {
            "/metrics": lambda headers: http.Answer(*metrics.page(headers.get("Accept", ""))),
            "/healthz": lambda _: self._health(),
            "/readyz": lambda _: self._readiness(),
        }
        if address.loopback:
            routes.update(self._page_routes(hostname))
        self._server = http.Server(address, routes)
        self._log.info("listening", url=self._server.url, page=address.loopback)

    def _page_routes(self, hostname: str) -> "Mapping[str, http.Route]":
        from exporters import http, page  # noqa: PLC0415

        assert self._watch is not None
        shown = page.PageExporter(
            hostname, self._watch.health, self._dispatcher.tallies, self._rows
        )
        shown.prompt = Prompt(self._settings.prompts.page)
        self._page = shown
        self._dispatcher.add("page", shown, shown.prompt, queued=False)
        files = {f"/{name}": _file(page.file(name), kind) for name, kind in page.FILES.items()}
        return {
            "/": lambda _: http.Answer(shown.render(), "text/html; charset=utf-8"),
            **files,
        }

    # -- while it runs -----------------------------------------------------------------

    def _rows(self) -> list[Row]:
        assert self._watch is not None
        assert self._page is not None
        rows = [row_of(tree, None) for tree in self._watch.trees]
        if self._page.prompt is Prompt.FULL:
            return rows
        return [Row(r.agent, r.pid, r.started, r.processes, mask(r.command)) for r in rows]

    def _health(self) -> "http.Answer":
        from exporters import http  # noqa: PLC0415

        late = time.monotonic_ns() - self._beaten
        if late < _DEAF_NS:
            return http.Answer(b"ok\n")
        said = f"the loop has not turned for {late // NS} s\n".encode()
        return http.Answer(said, status=HTTPStatus.SERVICE_UNAVAILABLE)

    def _readiness(self) -> "http.Answer":
        from exporters import http  # noqa: PLC0415

        if self._ready:
            return http.Answer(b"observing\n")
        said = b"not observing yet, or not any more\n"
        return http.Answer(said, status=HTTPStatus.SERVICE_UNAVAILABLE)

    def _beat(self) -> None:
        self._beaten = time.monotonic_ns()
        self._manager.beat(self._beaten)
        self._turns += 1
        if self._turns == 2:  # everybody has been looked at once
            self._ready = True
            self._manager.ready("observing")

    def _give_up_privileges(self) -> None:
        """While there is one thread: each has capabilities of its own."""
        try:
            kept = privileges.drop()
        except OSError as error:
            self._log.warning("privileges_kept", reason=str(error))
        else:
            self._log.info("privileges_dropped", kept=kept)

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)

    def _gone(self) -> None:
        """Whoever read our output has gone (called from the thread of an exporter)."""
        self._broken = True
        assert self._watch is not None
        self._watch.stop()
        with contextlib.suppress(OSError):
            os.write(self._writer, b".")

    def _hang_up(self) -> None:
        """SIGHUP: read the configuration again; but if our terminal has gone, end."""
        if self._terminal and not _has_terminal():
            assert self._watch is not None
            self._watch.stop()
        self._hung_up = True

    def _reload(self) -> None:
        self._manager.reloading()
        self._dispatcher.reopen()
        path = self._options.config
        try:
            new = config.load(None if path is None else Path(path))
        except UsageError as error:
            self._log.error("config_refused", reason=str(error), kept="the one before")
            if self._metrics is not None:
                self._metrics.reloaded(taken=False)
            self._manager.ready("observing; the new configuration was refused, see the log")
            return
        self._take(new)
        if self._metrics is not None:
            self._metrics.reloaded(taken=True)
        self._manager.ready("observing")

    def _take(self, new: config.Config) -> None:
        assert self._watch is not None
        self._watch.discovery.teach(new.registry)
        for name, word in asdict(new.prompts).items():
            self._dispatcher.show(name, Prompt(word))
        if self._page is not None:
            self._page.prompt = Prompt(new.prompts.page)
        fixed = [k for k in _FIXED if getattr(new, k) != getattr(self._settings, k)]
        if fixed:
            self._log.warning("restart_needed", keys=fixed)
        self._log.info("config_taken", agents=len(new.registry.kinds))


def check(options: argparse.Namespace, settings: config.Config) -> None:
    """What else can be wrong with a configuration. Raises UsageError."""
    from exporters.http import parse_address  # noqa: PLC0415

    where = options.metrics or settings.metrics
    if where != "off":
        parse_address(where)


def row_of(tree: Tree, receipt: Receipt | None) -> Row:
    """A tool call as a row of a table."""
    hertz = os.sysconf("SC_CLK_TCK")
    try:
        command = " ".join(proc.arguments(_PROC, tree.root.pid))
    except OSError:
        command = ""
    return Row(
        agent=tree.agent.name if tree.agent else tree.label or "-",
        pid=tree.root.pid,
        started=tree.root.start * NS // hertz,
        processes=len(tree.members),
        command=command,
        waiting_since=None if receipt is None else receipt.evidence.blocked_since,
        receipt=receipt,
    )


def _file(body: bytes, kind: str) -> "http.Route":
    from exporters import http  # noqa: PLC0415

    answer = http.Answer(body, kind)
    return lambda _: answer


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal (that has not hung up)."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True
