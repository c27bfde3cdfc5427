"""``receipt-trace watch``: the service on the command line."""

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import TextIO

import structlog

from exporters import Exporter
from exporters.jsonl import JsonLinesExporter, open_receipts
from exporters.stream import StreamExporter, default_path
from exporters.text import TextExporter
from receipt_trace import config, doctor, log
from receipt_trace.errors import PermissionDeniedError, UnobservableError, UsageError
from receipt_trace.receipt import Receipt
from receipt_trace.recording import Recorder
from receipt_trace.sources.choice import choose
from receipt_trace.tracer import this_host
from receipt_trace.watch import Watch


def main(options: argparse.Namespace) -> int:
    """Watch until a signal says stop, or ``--once`` is satisfied."""
    if options.agents:
        sys.stdout.write(resources.files("receipt_trace").joinpath("agents.toml").read_text())
        return 0
    settings = config.load(None if options.config is None else Path(options.config))
    if options.check:
        return _check(options, settings)
    named = bool(options.root or options.agent)
    log.configure(options.verbose)
    exporters = _exporters(options, settings)
    recording = _open_recording(options.record)
    report = doctor.examine(bpf=False)
    if not report.usable and (options.source or settings.source) != "bpf":
        raise UnobservableError(
            f"nothing can be observed: {report.reason}\ntry: receipt-trace doctor"
        )
    host = this_host()
    choice = choose(options.source or settings.source, options.attach, options.capture)
    everybody = not named or options.all
    watch = Watch(
        settings.registry,
        host,
        _deliver_to(exporters),
        None if recording is None else Recorder(recording, host, choice.source.name),
        everybody=everybody,
        choice=choice,
    )
    name_trees(watch, options)
    logger = structlog.get_logger()
    for limit in report.limits if choice.source.name == "procfs" else ():
        logger.warning("limited", what=limit)
    stream = _stream(options.socket)  # the last thing that can fail: nothing is left behind
    if stream is not None:
        exporters.append(stream)
    logger.info(
        "watching", source=choice.source.name, attach=choice.source.attach, discover=everybody
    )
    with contextlib.ExitStack() as stack:
        for exporter in exporters:
            stack.callback(exporter.close)
        if recording is not None:
            stack.enter_context(recording)
        listeners = {} if stream is None else {stream.fileno(): stream.accept}
        _run(watch, options, named, listeners)
    return 0


def drain(fd: int) -> None:
    """Forget what a wake-up descriptor holds."""
    os.read(fd, 512)


def _run(
    watch: Watch,
    options: argparse.Namespace,
    named: bool,
    listeners: Mapping[int, Callable[[], None]],
) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: watch.stop())
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    def done() -> bool:
        if options.once and watch.receipts:
            return True
        return named and not options.all and not options.agent and not len(watch.trees)

    try:
        watch.run(done, {reader: lambda: drain(reader), **listeners})
    finally:
        signal.set_wakeup_fd(-1)
        os.close(reader)
        os.close(writer)


def name_trees(watch: Watch, options: argparse.Namespace) -> None:
    """Follow what ``--root`` and ``--agent`` name. Raises when there is no such process."""
    for pids, name in (
        (options.root, watch.discovery.name_root),
        (options.agent, watch.discovery.name_agent),
    ):
        for pid in pids:
            try:
                name(pid)
            except PermissionError:
                raise PermissionDeniedError(
                    f"process {pid} may not be looked at; run as its user or as root"
                ) from None
            except (OSError, ValueError):
                raise UsageError(f"there is no process {pid}; look for it: ps -e") from None


def _exporters(options: argparse.Namespace, settings: config.Config) -> list[Exporter]:
    target = options.receipts or settings.receipts
    exporters: list[Exporter] = []
    if target is not None:
        exporters.append(open_receipts(target))
    if target != "-":
        exporters.append(JsonLinesExporter(1) if options.json else TextExporter(1, prefix=""))
    return exporters


def _stream(wanted: str | None) -> StreamExporter | None:
    """The socket for `receipt-trace tail`; without --socket only if nothing stands in the way."""
    path = default_path() if wanted is None else wanted
    if path is None or path == "off":
        return None
    try:
        return StreamExporter(path)
    except UsageError as error:
        if wanted is not None:
            raise
        structlog.get_logger().warning("no_stream", path=path, reason=str(error))
        return None


def _deliver_to(exporters: list[Exporter]) -> Callable[[Receipt], None]:
    def deliver(receipt: Receipt) -> None:
        for exporter in exporters:
            try:
                exporter.export(receipt)
            except BrokenPipeError:
                raise
            except OSError as error:
                name = type(exporter).__name__
                structlog.get_logger().error(
                    "not_exported", exporter=name, error=str(error), receipt=receipt.to_json()
                )

    return deliver


def _open_recording(path: str | None) -> TextIO | None:
    if path is None:
        return None
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(
            f"the trace cannot be written to {path!r}: {error.strerror}; give another --record FILE"
        ) from None
    return os.fdopen(fd, "w", encoding="ascii")


def _check(options: argparse.Namespace, settings: config.Config) -> int:
    report = doctor.examine()
    where = options.config or (
        config.DEFAULT_PATH if config.DEFAULT_PATH.exists() else "the defaults"
    )
    print(f"configuration: {where}: fine, {len(settings.registry.kinds)} agents are known")
    print(f"source: {report.source or 'none'}")
    if not report.usable:
        raise UnobservableError(
            f"nothing can be observed: {report.reason}\ntry: receipt-trace doctor"
        )
    return 0
