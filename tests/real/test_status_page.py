"""The status page in a real browser, over a real watcher."""

import struct

import pytest

from .browser import Browser
from .daemon import Place
from .support import eventually, waits

pytestmark = pytest.mark.kernel

HOSTILE = "Delete <script>window.evil = 1</script><img src=x onerror='window.evil = 2'>\"? "


@pytest.fixture
def place():
    """A folder, and what runs there."""
    place = Place()
    yield place
    place.close()


@pytest.fixture
def browser():
    """With no page open yet."""
    browser = Browser()
    yield browser
    browser.close()


def test_the_page_shows_what_is_blocked_while_it_happens_and_runs_nothing_of_it(
    place, browser, tmp_path
):
    """Without being loaded again; and it says so when the watcher is gone."""
    daemon = place.daemon(config='[prompt]\npage = "full"\n')
    browser.open(daemon.url)
    browser.value("window.same = true")
    asker = place.ask("<b>label", text=HOSTILE)
    eventually(lambda: waits(daemon.receipts("<b>label")), lambda: f"it asks: {daemon}")

    def shown(selector="main"):
        return browser.value(f"document.querySelector({selector!r}).innerText")

    eventually(lambda: f"sh[{asker.pid}]" in shown(), lambda: f"it is shown: {shown()}")
    assert HOSTILE.strip() in shown()
    assert "<b>label" in shown()
    assert "blocked" in shown(".state")
    assert browser.value("document.title").startswith("(")
    assert browser.value("window.same"), "it was never loaded again"
    assert browser.value("typeof window.evil") == "undefined"
    assert browser.value("document.scripts.length") == 1
    assert browser.value("document.images.length") == 0
    picture = browser.screenshot(tmp_path / "page.png")
    assert struct.unpack(">II", picture[16:24])[0] >= 1000
    assert len(picture) > 20_000, "it is not empty"
    asker.answer()
    eventually(lambda: "was answered" in shown() or "has exited" in shown(), "its end is shown")
    assert browser.complaints() == []
    addresses = browser.requests()
    assert addresses == {f"{daemon.url}{path}" for path in ("", "page.css", "page.js")}
    daemon.stop()
    eventually(
        lambda: (
            browser.value("getComputedStyle(document.querySelector('.gone')).display") != "none"
        ),
        "that the watcher is gone is shown",
    )


def test_the_page_can_be_read_without_its_script(place, browser):
    """It asks for itself again, as pages did before scripts."""
    daemon = place.daemon()
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(daemon.url)
    body = browser.call("DOM.getDocument", depth=-1)["root"]
    html = browser.call("DOM.getOuterHTML", nodeId=body["nodeId"])["outerHTML"]
    assert 'http-equiv="refresh"' in html
    assert "Nothing waits for input." in html or "blocked" in html
