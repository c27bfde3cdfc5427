"""The reference pages say what the code says."""

import runpy
from pathlib import Path

import pytest

REFERENCE = runpy.run_path(str(Path(__file__).parents[2] / "scripts/reference.py"))


@pytest.mark.parametrize("path", REFERENCE["pages"](), ids=lambda path: path.name)
def test_a_page_is_current(path):
    """After a change: .venv/bin/python scripts/reference.py."""
    assert path.read_text() == REFERENCE["pages"]()[path]


def test_every_field_and_metric_is_described():
    """In words of its own."""
    for text in (REFERENCE["fields"](), REFERENCE["metrics"]()):
        rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
        assert len(rows) > 20
        assert all(len(row[-1].strip(" |")) > 3 for row in rows), rows
