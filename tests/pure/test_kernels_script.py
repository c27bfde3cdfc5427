"""`scripts/kernels`: what guests tell, and the table that is made of it. Nothing is booted here."""

import json
import subprocess
import sys
from pathlib import Path

import kernels
import pytest
from hypothesis import given
from hypothesis import strategies as st

LAST = '{"check": null}'


def line(name="load", *, ok=True, detail="", seconds=1.5):
    """What a guest writes of a check."""
    return json.dumps({"check": name, "ok": ok, "detail": detail, "seconds": seconds})


def outcome(release, *checks, fault=""):
    """One kernel; checks are (name, whether it passed, detail)."""
    return kernels.Outcome(release, tuple(kernels.Check(*c, 1.0) for c in checks), fault, 61.4)


def test_a_line_tells_how_a_check_went():
    """Its name, whether it passed, what it found, how long it took."""
    assert kernels.parse(line("load", ok=False, detail="refused")) == kernels.Check(
        "load", ok=False, detail="refused", seconds=1.5
    )


@pytest.mark.parametrize("text", [LAST, "", "{", "[]", "3", '{"check": "a"}', line(seconds="x")])
def test_other_lines_tell_nothing(text):
    """The last line, torn lines, and what the kernel itself may write there."""
    assert kernels.parse(text) is None


@given(st.text())
def test_what_a_guest_writes_never_breaks_the_table(text):
    """Nor does any of it reach the terminal as it is."""
    kernels.parse(text)
    check = kernels.parse(line(text, detail=text))
    assert check is not None
    assert (check.name + check.detail).isascii()
    assert (check.name + check.detail).isprintable()


def test_a_guest_that_ran_its_checks_to_the_end_is_fine():
    """Its last line says so."""
    assert kernels.verdict([line(), LAST]) == ""


@pytest.mark.parametrize("lines", [[], ["boot noise"], [LAST], [line()], [line(), "{"]])
def test_a_guest_that_stopped_midway_is_no_success(lines):
    """Whatever had passed by then."""
    assert kernels.verdict(lines)


def test_a_kernel_passes_when_it_was_checked_and_every_check_passed():
    """No checks are no success."""
    assert outcome("6.1", ("load", True, "")).ok
    assert not outcome("6.1").ok
    assert not outcome("6.1", ("load", True, ""), ("text", False, "no")).ok
    assert not outcome("6.1", ("load", True, ""), fault="ended before").ok


def test_the_table_has_a_line_for_each_check_and_a_column_for_each_kernel():
    """A check that was not run is told from one that failed, and why it failed stands below."""
    told = kernels.table(
        [
            outcome("5.10.0-46-cloud-amd64", ("load", False, "refused"), fault="ended early"),
            outcome("6.1.0-57-cloud-amd64", ("load", True, ""), ("text", True, "")),
        ]
    )
    assert told.splitlines() == [
        "      5.10.0-46  6.1.0-57",
        "load     FAILED        ok",
        "text          -        ok",
        "time       61 s      61 s",
        "",
        "5.10.0-46-cloud-amd64: load: refused",
        "5.10.0-46-cloud-amd64: ended early",
        "5.10.0-46-cloud-amd64: 0 of 1 checks passed",
        "6.1.0-57-cloud-amd64: 2 of 2 checks passed",
    ]


def test_logs_stay_where_something_failed(tmp_path):
    """And nothing else does."""
    for name in ("6.1/console.log", "6.1/initramfs/init", "payload.tar", "6.1/empty.log"):
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_text("" if "empty" in name else "said")
    kernels.clear(tmp_path / "run", keep_logs=True)
    assert [p for p in (tmp_path / "run").rglob("*") if p.is_file()] == [
        tmp_path / "run/6.1/console.log"
    ]
    kernels.clear(tmp_path / "run", keep_logs=False)
    assert not (tmp_path / "run").exists()


def test_the_payload_is_what_a_guest_needs():
    """Every path in it is there."""
    root = Path(kernels.__file__).resolve().parents[1]
    assert all((root / name).exists() for name in kernels._PAYLOAD)


def test_help_tells_all_there_is_to_know():
    """Options, exit status, files, examples; nothing is fetched for it."""
    said = subprocess.run(
        [sys.executable, kernels.__file__, "--help"], capture_output=True, text=True, check=True
    ).stdout
    for part in ("--list", "--json", "exit status:", "files:", "examples:", "scripts/kernels 6.18"):
        assert part in said
