"""The question, as a person would see it; and the end of the output it is read off."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from receipt_trace.constants import OUTPUT_TAIL_BYTES, PROMPT_BYTES
from receipt_trace.output import Output
from receipt_trace.screen import Prompt, read_prompt


def on_terminal(output, **more):
    """What is asked on a terminal of 80x24."""
    return read_prompt(output, terminal=True, **more).text


def on_pipe(output):
    """What is asked on a pipe."""
    return read_prompt(output, terminal=False).text


# -- the question ------------------------------------------------------------------------------


TERMINAL = {
    "a plain question": (b"Proceed? [y/N] ", "Proceed? [y/N]"),
    "nothing": (b"", ""),
    "a question on a line that is ended": (b"Your name?\r\n", "Your name?"),
    "a spinner that was overwritten": (
        b"| working\r/ working\r- working\r\x1b[KOverwrite? ", "Overwrite?"),
    "a spinner wiped with blanks": (b"working 10%\r           \rGo on? ", "Go on?"),
    "an erased typing mistake": (b"Nane\b\bme: ", "Name:"),
    "colours": (b"\x1b[1;32m?\x1b[0m \x1b[38;5;12mPick\x1b[m one: ", "? Pick one:"),
    "a title of the window": (b"\x1b]0;root@host: ~\x07Password: ", "Password:"),
    "a title ended the other way": (b"\x1b]2;title\x1b\\Password: ", "Password:"),
    "a link": (b"\x1b]8;;http://x\x1b\\here\x1b]8;;\x1b\\? ", "here?"),
    "the lines that belong to it": (
        b"1) one\r\n2) two\r\n#? ", "1) one\n2) two\n#?"),
    "not the lines before an empty one": (
        b"Reading lists... Done\r\n\r\nContinue? ", "Continue?"),
    "empty lines between text and cursor": (b"Press a key\r\n\r\n\r\n", "Press a key"),
    "a line moved up to and written over": (
        b"question one? yes\r\n\x1b[A\r\x1b[2Kquestion two? ", "question two?"),
    "a menu drawn below the cursor": (
        b"? Pick\r\n> a\r\n  b\r\x1b[2A\x1b[7C", "? Pick\n> a\n  b"),
    "bracketed paste": (b"\x1b[?2004h>>> ", ">>>"),
    "tabs": (b"a\tb? ", "a       b?"),
    "another alphabet": ("Weiter? Größe: ".encode(), "Weiter? Größe:"),
}  # fmt: skip


@pytest.mark.parametrize(("output", "expected"), TERMINAL.values(), ids=TERMINAL)
def test_a_terminal_shows(output, expected):
    """What a person would see where the cursor stands."""
    assert on_terminal(output) == expected


def test_a_question_wider_than_the_terminal_is_one_line():
    """The terminal wrapped it, the program did not."""
    question = "Remove-these-3-packages? [y/N]"
    assert on_terminal(question.encode(), columns=10) == question


def test_a_question_wrapped_at_a_blank_is_one_line_too():
    """The last column of a full line may be a blank."""
    assert on_terminal(b"Go on with it? [y/N]", columns=6) == "Go on with it? [y/N]"


def test_lines_that_just_fill_the_terminal_are_joined_only_there():
    """On another width the same output has no wrapped line."""
    output = b"0123456789\r\n? "
    assert on_terminal(output, columns=20) == "0123456789\n?"


def test_only_the_lines_next_to_the_question_belong_to_it():
    """A log of a hundred lines before it does not."""
    text = on_terminal(b"".join(b"line %d\r\n" % n for n in range(100)) + b"Go on? ")
    assert text.splitlines()[-1] == "Go on?"
    assert len(text.splitlines()) == 13


@pytest.mark.parametrize(
    ("said", "want"),
    [
        ("old\n\n? Which one?\n> a\n  b\n\nup/down move", "? Which one?\n> a\n  b\n\nup/down move"),
        ("? Enter your token\n\nctrl+t shows it", "? Enter your token\n\nctrl+t shows it"),
        ("Which one?\n\n 1\n\n 2\n\nchoose", "Which one?\n\n 1\n\n 2\n\nchoose"),
        ("Done. Why not?\n\nName: ", "Name:"),  # it asks by itself
        ("Is it so?\n" + "\n" * 14 + "keys", "keys"),  # too far
        ("no question\n\nkeys", "keys"),
    ],
)
def test_the_question_above_a_menu_and_its_help_belongs_to_it(said, want):
    """Where the lines at the cursor do not ask."""
    assert read_prompt(said.encode(), terminal=False).text == want


def test_a_pipe_needs_no_carriage_returns():
    """A newline begins a new line there."""
    assert on_pipe(b"1) one\n2) two\n#? ") == "1) one\n2) two\n#?"
    assert on_pipe(b"one\r\ntwo? ") == "one\ntwo?"


def test_a_terminal_in_raw_mode_needs_them():
    """There a newline only goes down."""
    assert on_terminal(b"one\ntwo? ") == "one\n   two?"


def test_a_pipe_has_no_width():
    """A question of 300 characters is one line."""
    question = "x" * 299 + "?"
    assert on_pipe(question.encode()) == question


# -- full screens ----------------------------------------------------------------------------------


def test_the_alternate_screen_is_shown_while_it_is_on():
    """What was printed before is not on it."""
    output = b"$ git rebase\r\n\x1b[?1049h\x1b[H\x1b[2Jpick 1234 one\r\n~\r\n~"
    found = read_prompt(output, terminal=True, alternate=True)
    assert found == Prompt("pick 1234 one\n~\n~", truncated=False, drawn=True)


def test_the_first_screen_comes_back_as_it_was():
    """What was drawn on the alternate one is gone."""
    output = b"Save? \x1b[?1049h\x1b[H\x1b[2Jeditor\x1b[?1049l"
    assert read_prompt(output, terminal=True) == Prompt("Save?", truncated=False, drawn=False)


@pytest.mark.parametrize("number", [b"47", b"1047", b"1049", b"1;1049", b"1049;2004"])
def test_every_way_onto_the_alternate_screen_is_known(number):
    """Xterm has three, and they may come among other modes."""
    switched = b"before\x1b[?%bh\x1b[Hon" % number
    assert on_terminal(switched, alternate=True) == "on"
    assert on_terminal(switched + b"\x1b[?%bl" % number) == "before"


def test_a_screen_whose_beginning_is_lost_is_still_the_alternate_one():
    """The tail of the output no longer holds the switch."""
    found = read_prompt(b"\x1b[H(END)", terminal=True, alternate=True)
    assert (found.text, found.drawn) == ("(END)", True)


@pytest.mark.parametrize(
    ("output", "drawn"),
    [
        (b"\x1b[2J\x1b[Hmenu", True),
        (b"\x1b[H\x1b[J\x1b[3;1Hmenu", True),
        (b"\x1bc\x1b[5dmenu", True),
        (b"\x1b[2Jmenu", False),
        (b"\x1b[3;1Hmenu", False),
        (b"\x1b[1Kmenu", False),
        (b"plain", False),
    ],
)
def test_a_screen_is_drawn_by_erasing_and_placing(output, drawn):
    """Neither alone makes a full screen."""
    assert read_prompt(output, terminal=True).drawn is drawn


@pytest.mark.parametrize(
    ("rows", "begins", "drawn"), [(5, False, True), (4, False, False), (5, True, False)]
)
def test_a_screen_that_was_erased_before_what_is_left_is_known_by_its_rows(rows, begins, drawn):
    """A menu whose beginning no longer is in the buffer; nobody asks a question on so many rows."""
    output = b"".join(b"\x1b[%d;3Hentry %d\x1b[%dd" % (row, row, row) for row in range(1, rows + 1))
    assert read_prompt(output, terminal=True, begins=begins).drawn is drawn


def test_of_a_drawn_screen_all_is_shown():
    """Also what stands above an empty line, whatever line the cursor is on."""
    output = b"\x1b[2J\x1b[1;1Htop\x1b[5;3Hmiddle\x1b[9;1Hbottom\x1b[5;3H"
    assert on_terminal(output) == "top\n\n\n\n  middle\n\n\n\nbottom"


def test_a_screen_drawn_into_a_pipe_is_80_by_24():
    """The program took it for that; it placed its lines."""
    found = read_prompt(b"\x1b[2J\x1b[3;5Hmenu", terminal=False)
    assert (found.text, found.drawn) == ("    menu", True)


# -- bounds and hostile bytes ----------------------------------------------------------------------


def test_a_long_prompt_is_cut_at_its_beginning():
    """The question stands at the end; at most 2 KiB."""
    line = b"x" * 400 + b"\n"
    found = read_prompt(line * 10 + b"Go on? ", terminal=False)
    assert len(found.text.encode()) == PROMPT_BYTES
    assert found.text.endswith("x\nGo on?")
    assert found.truncated


def test_a_prompt_that_just_fits_is_whole():
    """2 KiB are allowed; a byte more is cut."""

    def ask(size):
        lines = [b"x" * 500] * (size // 501)
        return read_prompt(
            b"\n".join([*lines, b"x" * (size - 501 * len(lines))]), terminal=False
        )  # fmt: skip

    assert (len(ask(PROMPT_BYTES).text), ask(PROMPT_BYTES).truncated) == (PROMPT_BYTES, False)
    assert (len(ask(PROMPT_BYTES + 1).text), ask(PROMPT_BYTES + 1).truncated) == (
        PROMPT_BYTES, True,
    )  # fmt: skip


def test_a_cut_does_not_split_a_character():
    """Three bytes each: 2 KiB is no multiple of it."""
    found = read_prompt(("€" * 500 + "\n").encode() * 3, terminal=False)
    assert found.truncated
    assert set(found.text) == {"€", "\n"}
    assert PROMPT_BYTES - 3 < len(found.text.encode()) <= PROMPT_BYTES


def test_invalid_utf8_does_not_hide_the_question():
    """What cannot be read stands as replacement characters."""
    assert on_terminal(b"\xff\xfe Name? ").endswith("Name?")


HOSTILE = {
    "a place beyond every screen": b"\x1b[99999999999;99999999999H",
    "a huge repetition": b"\x1b[999999999b\x1b[999999999@\x1b[999999999L",
    "a question to the terminal": b"\x1b[6n\x1b[c\x1b[?25$p\x1b]11;?\x07",
    "a title that never ends": b"\x1b[31m" + b"\x1b]0;",
    "a device string": b"\x1bPq#0;2;0;0;0\x1b\\",
    "C1 controls": b"\x9b31m\x9d0;x\x9c",
    "half a sequence": b"\x1b[38;5",
    "odd parameters": b"\x1b[;;;m\x1b[?;h\x1b[1:2:3m\x1b[=1h\x1b[>c",
    "a scroll region upside down": b"\x1b[20;3r\x1b[0;0r\x1b[r",
    "shifts and charsets": b"\x0e\x0f\x1b(0\x1b)B\x1b%G\x1b%@",
    "nothing but controls": bytes(range(32)) + b"\x7f",
}


@pytest.mark.parametrize("output", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("terminal", [True, False])
def test_hostile_sequences_are_drawn_and_not_obeyed(output, terminal):
    """The text holds nothing that could act on a terminal."""
    text = read_prompt(b"before " + output + b" after? ", terminal=terminal).text
    assert [c for c in text if c != "\n" and not c.isprintable()] == []


SEQUENCES = {
    "a colour by name": b"\x1b[31m",
    "a colour by numbers": b"\x1b[38;2;1;2;3m",
    "a colour by numbers with colons": b"\x1b[38:2::1:2:3m",
    "a curly underline": b"\x1b[4:3m",
    "vim asking for keys": b"\x1b[>4;2m\x1b[?4m",
    "vim asking for the terminal": b"\x1b[>c\x1b]10;?\x07\x1b]11;?\x1b\\",
    "a device string": b"\x1bP+q544e\x1b\\",
    "an application string": b"\x1b_Ga=q;AAAA\x1b\\",
    "a private string": b"\x1b^note\x1b\\",
    "a string of text": b"\x1bXnote\x1b\\",
    "the keyboard protocol pushed": b"\x1b[>1u",
    "the keyboard protocol set": b"\x1b[=1u",
    "the keyboard protocol popped": b"\x1b[<u",
    "a soft reset": b"\x1b[!p",
    "the shape of the cursor": b"\x1b[2 q",
    "an update in one piece": b"\x1b[?2026h\x1b[?2026$p",
    "where the cursor stands": b"\x1b[6n\x1b[?6n",
    "the title kept": b"\x1b[22;0;0t",
    "a charset": b"\x1b(B",
}


@pytest.mark.parametrize("sequence", SEQUENCES.values(), ids=SEQUENCES)
def test_a_sequence_that_shows_nothing_leaves_nothing(sequence):
    """Neither its own letters, nor a line that is drawn without the other sequences."""
    assert on_terminal(b"wrong\x1b[5DGo " + sequence + b"on?") == "Go on?"


def test_a_sequence_that_cannot_be_drawn_does_not_hide_the_question():
    """The plain text is taken instead."""
    assert on_terminal(b"\x1b[1;2;3;4;5;6;7HGo on? ").endswith("Go on?")


pieces = st.sampled_from(
    [
        b"\x1b[", b"\x1b]", b"\x1bP", b"\x1b\\", b"\x1b(", b"?", b";", b"1049h", b"1049l", b"H", b"J",
        b"K", b"m", b"r", b"A", b"B", b"C", b"D", b"@", b"L", b"M", b"P", b"X", b"d", b"G", b"h", b"l",
        b"0", b"9", b"99999", b"\r", b"\n", b"\b", b"\t", b"\a", b"\x0e", b"\x7f", b"\xff", b"word ",
        "größe".encode(), "漢字".encode(), "e\u0301\u200b\u202e".encode(), b"\x9b", b"\x00",
    ]
)  # fmt: skip
outputs = st.lists(pieces | st.binary(max_size=6), max_size=40).map(b"".join)


@given(outputs, st.booleans(), st.booleans(), st.integers(0, 130), st.integers(0, 60))
@example(b"\x1b[?1049h", True, True, 0, 0)
def test_any_output_gives_a_harmless_text(output, terminal, alternate, columns, lines):
    """Whatever a program prints and however large its terminal says it is."""
    found = read_prompt(
        output, terminal=terminal, alternate=alternate, columns=columns, lines=lines
    )
    assert all(c == "\n" or c.isprintable() for c in found.text)
    assert len(found.text.encode()) <= PROMPT_BYTES
    assert found.text == found.text.strip("\n").rstrip()


# -- the end of the output -------------------------------------------------------------------------


def fed(*chunks):
    """Output that came in pieces."""
    output = Output()
    for chunk in chunks:
        output.feed(chunk)
    return output


def test_the_tail_is_the_end_of_the_output():
    """All of it while it is short."""
    output = fed(b"one ", b"two")
    assert (output.tail, output.total) == (b"one two", 7)


def test_the_tail_is_bounded():
    """By OUTPUT_TAIL_BYTES, whether it came in many pieces or in one; all bytes are counted."""
    block = bytes(range(256)) * 16
    for chunks in ([block] * 100, [block * 100]):
        output = fed(*chunks)
        assert output.tail == (block * 100)[-OUTPUT_TAIL_BYTES:]
        assert output.total == 409_600
        assert len(output._tail) <= 2 * OUTPUT_TAIL_BYTES + len(block)


SWITCH = b"\x1b[?1049h"


@pytest.mark.parametrize("cut", range(len(SWITCH) + 1))
def test_a_switch_split_over_two_pieces_is_seen(cut):
    """A pipe cuts where it likes."""
    output = fed(b"x" * 50 + SWITCH[:cut], SWITCH[cut:] + b"y" * 50)
    assert output.alternate
    output.feed(b"\x1b[?10")
    output.feed(b"49l")
    assert not output.alternate


def test_the_last_switch_counts():
    """On, off, on within one piece."""
    assert fed(b"\x1b[?1049h\x1b[?1049l\x1b[?47h").alternate
    assert not fed(b"\x1b[?1049h..\x1b[?1049l").alternate


def test_an_old_switch_does_not_come_back():
    """What is kept for a split one is not taken twice in the wrong order."""
    output = fed(b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25l")
    assert not output.alternate


@pytest.mark.parametrize("text", [b"\x1b[?25h", b"\x1b[?2004h", b"[?1049h", b"\x1b[1049h"])
def test_other_modes_are_not_the_alternate_screen(text):
    """A cursor shown, a paste bracketed, the same digits without their sequence."""
    assert not fed(text).alternate


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (b"Name: ", True),
        (b"log\nName: ", True),
        (b"log\r\nName:\x1b[K", True),
        (b"old\rnew", True),
        (b"", False),
        (b"log\n", False),
        (b"log\r\n", False),
        (b"log\n   ", False),
        (b"log\n\x1b[0m\x1b[K", False),
        (b"log\n\x1b]0;title\x07", False),
        (b"50%\r", False),
        (b"50%\r    ", False),
        (b"Content-Length: 2\r\n\r\n{}", False),
        (b"log\nContent-Length: 2\r\nContent-Type: x\r\n\r\n{}", False),
        (b'Content-Length: 9\r\n\r\n{"half": {}', True),
        (b"Content-Length: x\r\n\r\n{}", True),
        (b"Overwrite {}", True),
    ],
)
def test_a_line_is_unfinished_when_it_shows_something(output, expected):
    """Most questions look like that."""
    assert fed(output).unterminated is expected


@given(st.lists(outputs, max_size=5))
def test_any_pieces_are_kept(chunks):
    """The tail is what came, whatever it is and wherever it was cut."""
    output = fed(*chunks)
    whole = b"".join(chunks)
    assert output.tail == whole
    assert output.total == len(whole)
    assert output.alternate == fed(whole).alternate
    assert output.unterminated == fed(whole).unterminated
