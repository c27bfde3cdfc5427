"""What a command prints: passed on, and the end of it kept. Nothing typed ever comes here."""

import os
import re
import select
from typing import Final

from receipt_trace.constants import OUTPUT_TAIL_BYTES

# Patterns, not compiled ones: most commands never print a control sequence.
ALTERNATE_SCREEN: Final = rb"\x1b\[\?(?:\d+;)*(?:1049|1047|47)(?:;\d+)*([hl])"
"""xterm's three ways onto the alternate screen (``h``) and back (``l``), alone or among other modes."""

SEQUENCE: Final = rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])"
"""Any control sequence (ECMA-48)."""

_LONGEST_SWITCH: Final = 32


class Output:
    """The latest output of a command, and marks of it.

    ``total`` counts every byte. Memory is bounded by ``OUTPUT_TAIL_BYTES``.
    """

    def __init__(self) -> None:
        self.total = 0
        self.alternate = False
        self._tail = bytearray()
        self._carry = b""

    def feed(self, data: bytes) -> None:
        """Take output as it passes."""
        self.total += len(data)
        seen = self._carry + data
        if b"\x1b[?" in seen:
            for match in re.finditer(ALTERNATE_SCREEN, seen):
                self.alternate = match[1] == b"h"
        self._carry = seen[-_LONGEST_SWITCH:]
        self._tail += data[-OUTPUT_TAIL_BYTES:]
        if len(self._tail) > 2 * OUTPUT_TAIL_BYTES:
            del self._tail[:-OUTPUT_TAIL_BYTES]

    @property
    def tail(self) -> bytes:
        """The end of the output, at most ``OUTPUT_TAIL_BYTES``."""
        return bytes(self._tail[-OUTPUT_TAIL_BYTES:])

    @property
    def unterminated(self) -> bool:
        """Whether the last line shows something and is not ended: how most questions look.

        A message of the base protocol of language servers never ends in a newline; its header
        tells where it ends instead.
        """
        if self._tail.endswith(b"}") and _is_message(self.tail):
            return False
        last = self.tail[-4096:].replace(b"\r\n", b"\n").rpartition(b"\n")[2]
        return bool(re.sub(SEQUENCE, b"", last).rpartition(b"\r")[2].strip())


def _is_message(data: bytes) -> bool:
    """Whether a message with its length in a header (LSP 3.17, base protocol) ends just here."""
    header = data.rfind(b"Content-Length:")
    end = data.find(b"\r\n\r\n", header)
    length = data[header + 15 : data.find(b"\r\n", header)].strip() if header >= 0 <= end else b""
    return length.isdigit() and len(length) < 10 and len(data) - end - 4 == int(length)


def write_all(fd: int, data: bytes) -> None:
    """Write all of it, also to a descriptor that somebody made non-blocking."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [])
