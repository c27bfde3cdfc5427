"""The status page: everything is there, and nothing acts."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from builders import NS, many, receipt, resolved
from hypothesis import given, settings
from hypothesis import strategies as st

from exporters.dispatch import Tally
from exporters.page import FILES, LATEST, PageExporter, file
from exporters.redaction import Prompt
from receipt_trace.health import Health, SourceHealth
from receipt_trace.table import Row

HEALTH = Health(SourceHealth("procfs", fallback="no BTF"), "connector", 1, 2, 3, 0, 4, 5, 6)


def page(rows=(), prompt=Prompt.FULL, host="host"):
    """A page that knows a watcher of the test's own."""
    made = PageExporter(host, lambda: HEALTH, lambda: {"stdout": Tally(3)}, lambda: list(rows),
                        lambda: 91 * NS)  # fmt: skip
    made.prompt = prompt
    return made


class Reader(HTMLParser):
    """What a browser makes of it: elements, their attributes, and text."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.attributes, self.text = [], [], ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        """Remember an element."""
        self.elements.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        """Remember text."""
        self.text += data


def read(page):
    """The page as a browser sees it."""
    return Reader(page.render().decode())


def test_what_is_blocked_is_on_top_with_its_question_and_since_when():
    """The longest first; the title counts them."""
    shown = page()
    shown.export(receipt(7, b"Delete? [y/N] ", comm="rm", agent="codex"))
    text = read(shown).text
    assert text.index("1 blocked") < text.index("Blocked now") < text.index("1m30codex")
    assert "rm[7]line on /dev/pts/1sh -c asks --twiceDelete? [y/N]" in text
    assert b"<title>(1) receipt-trace</title>" in shown.render()


def test_what_is_answered_is_blocked_no_more_but_still_told():
    """With how it ended."""
    shown = page()
    wait = receipt(7, comm="rm")
    shown.export(wait)
    shown.export(resolved(wait, "killed", 75))
    text = read(shown).text
    assert "Nothing waits for input." in text
    assert "was killed after 1m15" in text
    assert text.count("rm[7]") == 2


def test_no_more_than_the_latest_are_kept():
    """However many there were."""
    shown = page()
    for wait in many(1000):
        shown.export(wait)
        shown.export(resolved(wait))
    assert read(shown).text.count("asks[") == LATEST


def test_tool_calls_that_run_are_listed_with_their_agents():
    """Up to a bound, with the number of the rest."""
    rows = [Row("codex", n, 90 * NS, 2, f"make {n}") for n in range(250)]
    text = read(page(rows)).text
    assert "codex71s2make 7" in text
    assert "and 50 more" in text
    assert "No tool call is running." in read(page()).text


def test_source_health_and_exporters_are_told():
    """Blind spots, too."""
    text = read(page()).text
    assert "procfs; processes by connector" in text
    assert "no BTF" in text
    assert "5 processes not looked into, 4 threads" not in text
    assert "4 processes not looked into, 0 threads suspected" in text
    assert "3 exported, 0 waiting, 0 lost, 0 errors" in text


def test_a_page_without_questions_says_so():
    """So that nobody takes a missing one for an empty one."""
    assert "question (not shown)" not in read(_with_one(page())).text
    assert "question (not shown)" in read(_with_one(page(prompt=Prompt.OFF))).text


def _with_one(shown):
    shown.export(receipt())
    return shown


HOSTILE = [
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</pre></td></table><h1>x",
    "<!--", "]]>", "&lt;b&gt;", "javascript:alert(1)", "\x00\x1b[2J\u202e", "'\"`=<>&",
    "</title><script>", "\ud800", "<noscript><meta http-equiv=refresh content=0>",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_text(text):
    """In every place that a process, an agent or a host can fill."""
    innocent, hostile = everywhere("x"), everywhere(text)
    assert hostile.elements == innocent.elements
    assert hostile.attributes == innocent.attributes


@settings(max_examples=40, deadline=None)  # each makes two receipts
@given(st.text(max_size=40))
def test_any_text_is_text(text):
    """Not only what somebody thought of."""
    assert everywhere(text).elements == everywhere("x").elements


def everywhere(text):
    """A page with the text in every place there is."""
    text = f"x{text}"
    shown = page([Row(text, 1, 0, 1, text)], host=text)
    wait = receipt(7, agent="x")
    shown.export(
        replace(
            wait,
            agent=replace(wait.agent, name=text),
            program=replace(wait.program, name=text),
            prompt=replace(wait.prompt, text=text),
            tree=replace(wait.tree, command=(text, text)),
            input=replace(wait.input, target=text),
        )
    )
    other = receipt(8)
    shown.export(replace(other, tree=replace(other.tree, label=text)))
    return read(shown)


def test_the_page_runs_no_script_but_its_own_file_and_loads_nothing_from_elsewhere():
    """The policy in the headers would stop it; there is nothing to stop."""
    html = page().render().decode()
    assert re.findall(r"<script[^>]*>([^<]*)", html) == [""]
    assert re.findall(r"(?:src|href)=\"([^\"]*)", html) == ["/page.css", "/page.js"]
    assert not re.search(r"\son\w+=|style=|https?:", html)


def test_the_script_builds_nothing_from_data():
    """What the server wrote is put in whole."""
    script = file("page.js").decode()
    assert not re.search(
        r"innerHTML|outerHTML|document\.write|eval\(|insertAdjacent|https?:", script
    )
    assert set(FILES) == {"page.css", "page.js"}
