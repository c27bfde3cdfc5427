"""The question, as a person would see it.

The end of the output is drawn on an emulated screen (pyte) and the question is read
off that, because it may be overwritten, coloured or placed by cursor moves.
"""

import re
from dataclasses import dataclass
from typing import Final

from receipt_trace.constants import PROMPT_BYTES
from receipt_trace.output import ALTERNATE_SCREEN, SEQUENCE

# A full screen is drawn by erasing it and placing the cursor, or by a scroll region.
_ERASE: Final = re.compile(rb"\x1b(?:c|\[[023]?J)")
_PLACE: Final = re.compile(rb"\x1b\[(?:\d+;\d+)?[Hf]|\x1b\[\d+d")
_ROW: Final = re.compile(rb"\x1b\[(\d+)(?:;\d+[Hf]|d)")
_ROWS: Final = 5  # a question is asked on fewer, and seldom on rows that it names
_PIPE_COLUMNS: Final = 512  # a pipe has no width; no question is wider
_PIPE_LINES: Final = 40
_LINES_ABOVE: Final = 12
# A line that asks; and one that surely does, which may stand above a menu and the help for its keys.
_ASKS: Final = re.compile(r"[?:>\])}]\s*$|^\s*\?\s")
_SURELY: Final = re.compile(r"\?\s*$|^\s*\?\s")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is on the screen where the program asks."""

    text: str
    truncated: bool
    drawn: bool  # the program has drawn a full screen


def read_prompt(
    output: bytes,
    *,
    terminal: bool,
    alternate: bool = False,
    begins: bool = True,
    columns: int = 80,
    lines: int = 24,
) -> Prompt:
    """Draw the end of the output and read the question off it.

    ``terminal``: it went to a terminal of that size; else to a pipe or a file, where a
    newline begins a new line by itself (a program that draws a full screen there takes
    it for 80x24). ``begins``: nothing was printed before; else the screen may have been erased
    before what is left, and a program that writes on many rows by their numbers has drawn it.
    Never raises, whatever the bytes are.
    """
    visible = _visible(output, alternate)
    drawn = alternate or bool(_ERASE.search(visible) and _PLACE.search(visible))
    drawn = drawn or (not begins and len(set(_ROW.findall(visible))) >= _ROWS)
    if not terminal and not drawn:
        columns, lines = _PIPE_COLUMNS, _PIPE_LINES
    rows, cursor, wrapped = _draw(visible, terminal, max(2, columns), max(2, lines))
    top, bottom = (0, len(rows)) if drawn else _paragraph(rows, cursor)
    text = "".join(rows[y] if y in wrapped else rows[y].rstrip() + "\n" for y in range(top, bottom))
    return Prompt(*cut(text.strip("\n").rstrip()), drawn)


def _visible(output: bytes, alternate: bool) -> bytes:
    """What belongs to the screen that is shown: the alternate one begins empty, and leaving
    it brings the other one back as it was.
    """
    shown, position, on = [b""], 0, False
    for match in re.finditer(ALTERNATE_SCREEN, output):
        if not on:
            shown.append(output[position : match.start()])
        on = match[1] == b"h"
        position = match.end()
    if alternate:
        return output[position:]
    return b"".join(shown) + output[position:]


def _draw(
    visible: bytes, terminal: bool, columns: int, lines: int
) -> tuple[list[str], int, frozenset[int]]:
    """Rows of the screen, the cursor's row, and the rows that go on in the next one."""
    from receipt_trace.emulator import draw  # noqa: PLC0415  (only a wait needs it)

    for attempt in (visible, re.sub(SEQUENCE, b"", visible).replace(b"\x1b", b"")):
        try:
            return draw(attempt, columns, lines, newline_returns=not terminal)
        except Exception:  # noqa: BLE001, S112  (hostile sequences; the plain text is next)
            continue
    return [], 0, frozenset()


def _paragraph(rows: list[str], cursor: int) -> tuple[int, int]:
    """The lines that belong together around the cursor, or the last ones above it."""
    line = min(cursor, len(rows) - 1)
    while line > 0 and not rows[line].strip():
        line -= 1
    top, bottom = line, line + 1
    while top > 0 and rows[top - 1].strip() and line - top < _LINES_ABOVE:
        top -= 1
    while bottom < len(rows) and rows[bottom].strip():
        bottom += 1
    if not any(_ASKS.search(row) for row in rows[max(top, 0) : bottom]):
        above = range(top - 1, max(-1, top - 1 - _LINES_ABOVE), -1)
        top = next((y for y in above if _SURELY.search(rows[y])), top)
    return max(top, 0), max(bottom, 0)


def cut(text: str) -> tuple[str, bool]:
    """The end of the text that fits into a receipt; control characters left over are dropped."""
    clean = "".join(c for c in text if c == "\n" or c.isprintable())
    raw = clean.encode("utf-8", "replace")
    if len(raw) <= PROMPT_BYTES:
        return raw.decode(), False
    return raw[-PROMPT_BYTES:].decode("utf-8", "ignore"), True
