"""Terminal modes and what they say about the kind of input: termios(3).

A terminal of somebody else is opened without becoming ours (O_NOCTTY), never
read and never written; only its modes are asked for.
"""

import fcntl
import os
import struct
import termios
from enum import StrEnum
from typing import NamedTuple


class InputKind(StrEnum):
    """What sort of answer a program wants."""

    LINE = "line"  # canonical, echo on
    SECRET = "secret"  # noqa: S105  (canonical, echo off)
    KEY = "key"  # not canonical: a line editor, a menu, "press any key"
    SCREEN = "screen"  # not canonical, and it has drawn a full screen
    STREAM = "stream"  # a pipe or socket: no terminal
    DEAD = "dead"  # nobody holds the other end


class Modes(NamedTuple):
    """The two modes that matter, and whether signal keys are live."""

    canonical: bool
    echo: bool
    signals: bool


def modes(fd: int) -> Modes | None:
    """Modes of an open terminal (either side of a pseudo-terminal); ``None`` if it is none."""
    try:
        flags = termios.tcgetattr(fd)[3]
    except (termios.error, OSError):
        return None
    return Modes(
        bool(flags & termios.ICANON), bool(flags & termios.ECHO), bool(flags & termios.ISIG)
    )


def modes_at(path: str) -> Modes | None:
    """Modes of the terminal at a path; ``None`` where it may not be opened."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return modes(fd)
    finally:
        os.close(fd)


def size(fd: int) -> tuple[int, int] | None:
    """(columns, lines) of an open terminal; ``None`` if it is none or does not know."""
    try:
        lines, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8)))
    except OSError:
        return None
    return (columns, lines) if columns and lines else None


def resize(fd: int, columns: int, lines: int) -> None:
    """Set the size; the foreground of the terminal gets SIGWINCH from the kernel if it changed."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


def input_kind(
    wiring: str, dead: bool, canonical: bool | None, echo: bool | None, drawn: bool
) -> InputKind:
    """The kind of input at the moment of confirmation.

    A terminal whose modes could not be read counts as asking for a line: the least
    that can be said of it.
    """
    if dead:
        return InputKind.DEAD
    if wiring != "tty":
        return InputKind.STREAM
    if canonical is False:
        return InputKind.SCREEN if drawn else InputKind.KEY
    return InputKind.SECRET if echo is False else InputKind.LINE
