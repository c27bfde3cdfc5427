"""The emulated terminal: pyte, with what it would show as text taken out of its way.

It also remembers what pyte does not: which lines were wrapped at the edge.
"""

import re
from typing import Final

import pyte
from pyte.modes import LNM

from receipt_trace.output import SEQUENCE

# The sequences pyte knows: those with plain numbers, and the private ones that switch modes
# or erase. Of all others it would print a part (strings, sub-parameters) or raise.
_KNOWN: Final = re.compile(rb"\x1b(?:\[(?:[0-9;]*[@-HJ-MPX`a-gmrsu]|\?[0-9;]*[hlJK])|[^\[\]PX^_])")


class _Screen(pyte.Screen):
    """Notes the rows whose text goes on in the next one because it reached the edge."""

    def __init__(self, columns: int, lines: int) -> None:
        self.wrapped: set[int] = set()
        self._drawing = False
        super().__init__(columns, lines)

    def draw(self, data: str) -> None:
        if self.cursor.x < self.columns:  # else it stands at the edge, about to go on below
            self.wrapped.discard(self.cursor.y)
        self._drawing = True
        super().draw(data)
        self._drawing = False

    def linefeed(self) -> None:
        if self._drawing:
            self.wrapped.add(self.cursor.y)
        else:
            self.wrapped.discard(self.cursor.y)
        super().linefeed()

    def erase_in_line(self, how: int = 0, private: bool = False) -> None:
        self.wrapped.discard(self.cursor.y)
        super().erase_in_line(how, private)

    def erase_in_display(self, how: int = 0, *args: object, **kwargs: object) -> None:
        self.wrapped = {y for y in self.wrapped if how == 0 and y < self.cursor.y}
        super().erase_in_display(how, *args, **kwargs)

    def index(self) -> None:
        top, bottom = self.margins or (0, self.lines - 1)
        if self.cursor.y == bottom:  # everything moves up a row
            self.wrapped = {y - 1 for y in self.wrapped if y > top}
        super().index()


def draw(
    output: bytes, columns: int, lines: int, *, newline_returns: bool
) -> tuple[list[str], int, frozenset[int]]:
    """Feed output to a new screen. Returns its rows, the cursor's row and the wrapped rows.

    ``newline_returns``: a newline also returns to the first column, as it looks in a pipe.
    Raises whatever pyte does for sequences it was not made for.
    """
    screen = _Screen(columns, lines)
    if newline_returns:
        screen.set_mode(LNM)
    known = re.sub(SEQUENCE, lambda m: m[0] if _KNOWN.fullmatch(m[0]) else b"", output)
    pyte.ByteStream(screen).feed(known)
    return list(screen.display), screen.cursor.y, frozenset(screen.wrapped)
