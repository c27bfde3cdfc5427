"""Questions that met a closed input. Pure.

A program asks, reads the end of its input at once, takes a default and goes on: the false
success in the making. Nothing waits, so there is no wait to see; what is seen is that the
same process had just printed a question when it read the end.
"""

import re
from typing import Final

from receipt_trace.observation import InputEnd
from receipt_trace.output import SEQUENCE

# What a question ends with, once the blanks after it are gone.
_ENDS: Final = "?:>])}‣›❯»"
# Forms in which people ask for a yes or no, even where a line end follows.
_FORMS: Final = re.compile(
    r"[\[(]\s*(y(es)?\s*[/|,]\s*n(o)?|n(o)?\s*[/|,]\s*y(es)?)\b[^\])]*[\])]|\?\s*$", re.IGNORECASE
)
# What a prompt library leaves behind that has drawn a question and a menu below it: the cursor is
# hidden, or moved back. The question stands above, ends like one or begins with the library's mark.
_DRAWN: Final = re.compile(rb"\x1b\[(\?25l|[\d;]*[A-Hf])\Z")
_MARKED: Final = re.compile(r"\?\s+\S")
_DRAWN_LINES: Final = 12
_LETTER: Final = re.compile(r"[^\W\d_]")


def question(end: InputEnd) -> str | None:
    """The question that went unanswered, if there was one.

    Nobody asked who reads data (it has read some before, or the input is none of the harness's), nor
    who did not print what stands last: a progress line before ``grep -q x`` is no question of grep's.
    """
    if not end.given or end.took or not end.own:
        return None
    said = re.sub(SEQUENCE, b"", end.said)
    text = said.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    unterminated = not text.endswith("\n")
    lines = [line for line in text.split("\n") if line.strip()]
    last = lines[-1].rstrip() if lines else ""
    if _LETTER.search(last) and (_FORMS.search(last) or (unterminated and last[-1] in _ENDS)):
        return last.strip()
    above = reversed(lines[-_DRAWN_LINES:]) if _DRAWN.search(end.said) else ()
    drawn = (line.strip() for line in above if _LETTER.search(line))
    return next((line for line in drawn if _MARKED.match(line) or _FORMS.search(line)), None)
