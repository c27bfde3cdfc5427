"""Passing input on to a command: copied, never looked at."""

import contextlib
import fcntl
import os
import selectors
import struct
import termios
from typing import Final

from receipt_trace.wiring import Child

_CHUNK: Final = 65536


class Forward:
    """Copies what comes on ``source`` to a command's input, as fast as it is taken.

    ``source`` is ``None`` when nobody answers. Its end is passed on once something came;
    a source that ends at once was nobody, and the command's input stays open. ``count`` is
    how many bytes the command's input has been given.
    """

    def __init__(self, selector: selectors.BaseSelector, source: int | None, child: Child) -> None:
        self.count = 0
        self._selector, self._child = selector, child
        self._source = source if child.input is not None else None
        self._held_back = b""
        self._listen()

    @property
    def taken(self) -> bool:
        """Whether the command has read all it was given (a pipe tells; a terminal does not)."""
        if self._child.input is None or self._child.master is not None or self._held_back:
            return False
        return not struct.unpack("i", fcntl.ioctl(self._child.input, termios.FIONREAD, bytes(4)))[0]

    def tick(self) -> None:
        """Try again to give a terminal what it had no room for; a pipe says by itself when it has."""
        if self._held_back and self._child.master is not None:
            self._flush()

    def stop(self) -> None:
        """Copy nothing more."""
        if self._source is not None:
            self._deafen()
            self._source = None

    def _listen(self) -> None:
        """Take more from the source: when it has some, or all at once from a regular file."""
        if self._source is None:
            return
        try:
            self._selector.register(self._source, selectors.EVENT_READ, self._copy)
        except PermissionError:  # epoll_ctl(2): a regular file is always ready
            while self._source is not None and not self._held_back:
                self._copy(self._source)

    def _deafen(self) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._source)  # type: ignore[arg-type]

    def _copy(self, source: int) -> None:
        try:
            data = os.read(source, _CHUNK)
        except BlockingIOError:
            return
        except OSError:  # a terminal that was hung up
            data = b""
        if data:
            self._give(data)
            return
        self.stop()
        if self.count and self._child.master is not None:
            self._give(_end_of_file(self._child.master))
        elif self.count:
            self._child.close_input()

    def _give(self, data: bytes) -> None:
        if self._child.input is None:
            return
        try:
            written = os.write(self._child.input, data)
        except BlockingIOError:
            written = 0
        except OSError:  # the command has closed its input
            self.stop()
            return
        self.count += written
        if written < len(data):
            self._hold_back(data[written:])

    def _hold_back(self, rest: bytes) -> None:
        self._held_back = rest
        if self._source is not None:
            self._deafen()
        if self._child.input is not None and self._child.master is None:
            self._selector.register(
                self._child.input, selectors.EVENT_WRITE, lambda _: self._flush()
            )

    def _flush(self) -> None:
        data, self._held_back = self._held_back, b""
        if self._child.input is not None and self._child.master is None:
            self._selector.unregister(self._child.input)
        self._give(data)
        if not self._held_back:
            self._listen()


def _end_of_file(master: int) -> bytes:
    """What the terminal takes for the end of input in line mode (VEOF)."""
    try:
        return bytes(termios.tcgetattr(master)[6][termios.VEOF])
    except (termios.error, OSError, TypeError):
        return b"\x04"
