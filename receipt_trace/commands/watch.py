"""``receipt-trace watch``: the service on the command line."""

import argparse
import contextlib
import os
import sys
from importlib import resources
from pathlib import Path
from typing import TextIO

import structlog

from receipt_trace import config, doctor, log
from receipt_trace.commands import service as around
from receipt_trace.commands.service import Service
from receipt_trace.errors import PermissionDeniedError, UnobservableError, UsageError
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
    log.configure(options.verbose)
    service = Service(options, settings)
    service.open_outputs()
    recording = _open_recording(options.record)
    report = doctor.examine(bpf=False)
    if not report.usable and (options.source or settings.source) != "bpf":
        raise UnobservableError(
            f"nothing can be observed: {report.reason}\ntry: receipt-trace doctor"
        )
    host = this_host()
    named = bool(options.root or options.agent)
    choice = choose(options.source or settings.source, options.attach, options.capture)
    everybody = not named or options.all
    watch = Watch(
        settings.registry,
        host,
        service.export,
        None
        if recording is None
        else Recorder(recording, host, choice.source.name, choice.source.attach),
        everybody=everybody,
        choice=choice,
    )
    name_trees(watch, options)
    logger = structlog.get_logger()
    for limit in report.limits if choice.source.name == "procfs" else ():
        logger.warning("limited", what=limit)
    service.open_ports(watch, host.hostname, alone=everybody)  # the last thing that can fail
    logger.info(
        "watching", source=choice.source.name, attach=choice.source.attach, discover=everybody
    )

    def done() -> bool:
        if options.once and watch.receipts:
            return True
        return named and not options.all and not options.agent and not len(watch.trees)

    with contextlib.ExitStack() as stack:
        if recording is not None:
            stack.enter_context(recording)
        service.run(done)
    return 0


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
    around.check(options, settings)
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
