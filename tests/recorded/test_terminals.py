"""What real programs printed when they asked, byte for byte, and the question read off it.

``RECEIPT_TRACE_UPDATE_GOLDEN=1`` writes the golden files again; look at the difference.
"""

import os
from pathlib import Path

import pytest

from receipt_trace.output import Output
from receipt_trace.screen import read_prompt

HERE = Path(__file__).parent / "terminals"
UPDATE = bool(os.environ.get("RECEIPT_TRACE_UPDATE_GOLDEN"))

RECORDED = sorted(path.stem for path in HERE.glob("*.bytes"))
DRAWN = {"git-rebase-vim", "less", "less-search", "whiptail-menu", "whiptail-yesno"}


def seen(name, size=1 << 20):
    """The output of a recording that came in pieces of a size, and the prompt read off it."""
    raw = (HERE / f"{name}.bytes").read_bytes()
    output = Output()
    for start in range(0, len(raw), size):
        output.feed(raw[start : start + size])
    found = read_prompt(
        output.tail, terminal=True, alternate=output.alternate, columns=80, lines=24
    )
    return output, found


@pytest.mark.parametrize("name", RECORDED)
def test_the_question_is_what_a_person_saw(name):
    """It equals its golden text."""
    golden = HERE / f"{name}.txt"
    _, found = seen(name)
    if UPDATE:
        golden.write_text(found.text + "\n", encoding="utf-8")
    assert found.text + "\n" == golden.read_text(encoding="utf-8")
    assert not found.truncated


@pytest.mark.parametrize("name", RECORDED)
def test_a_full_screen_is_told_from_a_question(name):
    """Editors, pagers and dialogs draw one."""
    _, found = seen(name)
    assert found.drawn == (name in DRAWN)


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("size", [1, 7])
def test_it_does_not_matter_how_the_output_was_cut(name, size):
    """A terminal hands it on in pieces of any size."""
    assert seen(name, size)[1] == seen(name)[1]


@pytest.mark.parametrize("name", sorted(set(RECORDED) - DRAWN))
def test_most_questions_stand_on_an_unfinished_line(name):
    """Of those that are no full screen, all of these."""
    assert seen(name)[0].unterminated


def test_every_golden_text_has_its_recording():
    """None is left over."""
    assert sorted(path.stem for path in HERE.glob("*.txt")) == RECORDED
