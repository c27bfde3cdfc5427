"""Three detectors of the kind harnesses have, over what was printed when. Pure.

They see what a harness sees: each chunk of output with its time, until the command was
answered or ended. They are written as their users write them, with the thresholds those
choose, and get the same runs as the product.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

PATTERN_SILENCE_S: Final = 0.5
LINE_SILENCE_S: Final = 1.0
WATCHDOG_S: Final = 1.0

_PROMPTS: Final = re.compile(
    r"""
    [\[(]\s*y(?:es)?\s*[/|]\s*n(?:o)?\b.*$       # [y/N], (yes/no)
    | \(y/n/.*\?\s*$
    | (?:pass(?:word|phrase|\ ?code)|user(?:\ ?name)?|login|token|otp|pin)\b[^\n]*:\s*$
    | \b(?:press|hit)\s+(?:any\s+key|enter|return|\[?enter\]?)
    | \b(?:continue|proceed|overwrite|replace|confirm|are\ you\ sure|do\ you\ want)\b[^\n]*\?
    | \b(?:enter|choose|select|type)\b[^\n]*[:>]\s*$
    | \?\s*(?:\[[^\]]*\]|\([^)]*\))?\s*:?\s*$      # a question mark, and its default
    | (?:[>$\#:]|--More--|\(END\))\s*$
    """,
    re.IGNORECASE | re.VERBOSE,
)

BASELINES: Final = ("prompt patterns", "unterminated line", "silence watchdog")


def verdicts(record: Mapping[str, Any]) -> dict[str, float | None]:
    """When each of them would have spoken, in seconds; ``None``: never."""
    return {
        "prompt patterns": _first(record, PATTERN_SILENCE_S, "last", _PROMPTS.search),
        "unterminated line": _first(record, LINE_SILENCE_S, "open", str.strip),
        "silence watchdog": _first(record, WATCHDOG_S, "last", lambda _: True),
    }


def _first(record: Mapping[str, Any], silence: float, which: str, fits: Any) -> float | None:
    """The first pause of at least ``silence`` at which a line fits."""
    for begun, until, lines in _pauses(record):
        if until - begun >= silence and fits(lines[which]):
            return begun + silence
    return None


def _pauses(record: Mapping[str, Any]) -> Iterator[tuple[float, float, Mapping[str, str]]]:
    """(from, to, the lines then) of every pause, that before the first output too."""
    end = min(t for t in (record["answered"], record["ended"], record["lasted"]) if t is not None)
    before, lines = record["begun"] or 0.0, {"last": "", "open": ""}
    for time, last, unfinished in record["lines"]:
        if time > end:
            break
        yield before, time, lines
        before, lines = time, {"last": last, "open": unfinished}
    yield before, end, lines
