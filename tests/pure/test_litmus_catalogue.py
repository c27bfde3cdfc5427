"""The catalogue of litmus: what it holds, and what a mistake in it is told."""

import pytest

from receipt_trace.errors import UsageError
from receipt_trace.litmus.catalogue import load, parse_family
from receipt_trace.litmus.services import SERVICES

CATALOGUE = load()
ASKING = [case for case in CATALOGUE.cases if case.asks]
CONTROLS = [case for case in CATALOGUE.cases if not case.asks]

FAMILY = 'about = "x"\n'
CASE = '[[case]]\nname = "n"\ncommand = "c"\nkind = "line"\nprogram = "p"\n'


def test_it_asks_broadly():
    """Many commands of many programs, and as many controls."""
    assert len(ASKING) >= 160
    assert len({program for case in ASKING for program in case.program.values()}) >= 80
    assert len(CONTROLS) >= 160


def test_the_subset_is_representative():
    """Some of nearly every family."""
    quick = CATALOGUE.select(quick=True)
    assert sum(case.asks for case in quick) >= 60
    assert sum(not case.asks for case in quick) >= 60


def test_every_case_has_a_name_of_its_own():
    """Results are joined to cases by it."""
    assert len({case.id for case in CATALOGUE.cases}) == len(CATALOGUE.cases)


def test_every_service_exists():
    """Or a case would fail at the end of its set-up."""
    assert {name for case in CATALOGUE.cases for name in case.services} <= set(SERVICES)


def test_a_closed_input_that_waits_waits_for_ever():
    """Nobody can write into /dev/null: only a dead wait is one there."""
    waiting = [case for case in ASKING if "null" in case.wirings]
    assert waiting
    assert {case.kind["null"] for case in waiting} <= {"dead", "screen", "line", "secret", "key"}


def test_a_plain_kind_is_the_terminals_and_a_pipe_is_a_stream():
    """So that most cases need say one word."""
    case = parse_family("f.toml", FAMILY + CASE).cases[0]
    assert case.kind == {"tty": "line", "pipe": "stream", "null": "dead"}
    assert case.program == {"tty": "p", "pipe": "p", "null": "p"}
    assert case.expected("pipe").kind == "stream"


def test_what_a_family_shares_is_in_each_case():
    """Packages and services."""
    text = FAMILY + 'packages = ["a"]\nservices = ["http"]\n' + CASE + 'packages = ["b"]\n'
    case = parse_family("f.toml", text).cases[0]
    assert case.packages == ("a", "b")
    assert case.services == ("http",)
    assert case.id == "f/n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = = 1", "f.toml is not TOML"),
        (FAMILY, "f.toml: case is missing; expected a list of tables"),
        (FAMILY + "colour = 1\n" + CASE, "f.toml: colour is not known; expected one of about"),
        (FAMILY + CASE + "colour = 1\n", "f.toml: case 1 (n): colour is not known"),
        (FAMILY + CASE + 'wirings = ["tape"]\n', "wirings is ['tape']; expected a list of tty"),
        (FAMILY + CASE + "patience = 0\n", "patience is 0; expected a number of seconds"),
        (FAMILY + CASE + 'quick = "yes"\n', "quick is 'yes'; expected true or false"),
        (FAMILY + CASE + CASE, "case 2 (n): name 'n' is taken"),
        (FAMILY + CASE + 'shown = "x"\n', "shown is only for a control"),
        (FAMILY + CASE.replace('"line"', '"loud"'), "kind is 'loud'; expected one of line"),
        (FAMILY + CASE.replace('kind = "line"\n', ""), "kind is missing"),
        (FAMILY + CASE + "asks = false\n", "kind is only for a case that asks"),
        ("about = 1\n" + CASE, "about is 1; expected a text"),
        (FAMILY + "case = [1]\n", "case 1 is 1; expected a table"),
    ],
)
def test_a_mistake_is_told_with_its_place_and_what_is_allowed(text, said):
    """File, case, key, value, and what was expected."""
    with pytest.raises(UsageError) as told:
        parse_family("f.toml", text)
    assert said in str(told.value)


def test_a_pattern_chooses_families_and_cases():
    """By name, with * and ?; one that fits nothing is told so."""
    assert {case.family for case in CATALOGUE.select(["git"])} == {"git"}
    assert [case.id for case in CATALOGUE.select(["coreutils/rm -?"])] == ["coreutils/rm -i"]
    with pytest.raises(UsageError, match="'nothing' fits no case"):
        CATALOGUE.select(["nothing"])


def test_a_folder_without_a_catalogue_is_told_so(tmp_path):
    """Rather than a run of nothing."""
    with pytest.raises(UsageError, match="holds no catalogue"):
        load(tmp_path)


def test_a_file_that_is_no_text_is_told_so(tmp_path):
    """And not a fault of ours."""
    (tmp_path / "f.toml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="cannot be read"):
        load(tmp_path)
