"""Logs of the service: structlog to stderr, readable on a terminal, JSON elsewhere.

Event names are short and stable, details are fields; ``docs/logs.md`` lists them.
Names of processes are hostile bytes: both renderings escape them.
"""

import logging
import sys
from typing import Any

import structlog


def configure(verbose: bool) -> None:
    """Set up logging for this process."""
    renderer: Any = structlog.processors.JSONRenderer(ensure_ascii=True)
    if sys.stderr.isatty():
        renderer = structlog.dev.ConsoleRenderer(
            colors=True, exception_formatter=structlog.dev.plain_traceback
        )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _escape,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.DEBUG if verbose else logging.INFO
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def silence() -> None:
    """Log nothing: something else has the terminal."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())


def _escape(_logger: object, _name: str, event: Any) -> Any:
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[key] = value.encode("unicode_escape").decode()
    return event
