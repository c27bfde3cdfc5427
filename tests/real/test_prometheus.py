"""Dashboard, alerts and recording rules against a real Prometheus that scrapes a real watcher."""

import contextlib
import json
import re
import socket
import subprocess
import urllib.parse
import urllib.request
from importlib.resources import files
from pathlib import Path

import pytest

from .daemon import Place
from .support import eventually, need, resolutions, waits

pytestmark = pytest.mark.kernel

HERE = files("exporters").joinpath("prometheus")
RULES = ("alerts.yml", "recording.yml")
DASHBOARD = json.loads(HERE.joinpath("dashboard.json").read_text())
VARIABLES = {"$instance": ".*", "$__rate_interval": "10s", "$__range": "1m"}


def expressions():
    """(panel, expression) of every query on the dashboard."""
    return [
        (panel["title"], target["expr"])
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
    ]


def promtool(*words, **more):
    """Its verdict."""
    return subprocess.run(["promtool", *words], capture_output=True, check=False, **more)


def filled(expression):
    """As Grafana sends it."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    assert "$" not in expression, expression
    return expression


class Prometheus:
    """Debian's, with a folder of its own, scraping one target every half second."""

    def __init__(self, place, target):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        config = place / "prometheus.yml"
        rules = [str(HERE.joinpath(name)) for name in RULES]
        config.write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms",
                               "evaluation_interval": "500ms"},
                    "rule_files": rules,
                    "scrape_configs": [
                        {"job_name": "receipt-trace", "static_configs": [{"targets": [target]}]}
                    ],
                }
            )
        )  # fmt: skip
        log = (place / "prometheus.log").open("wb")
        with log:
            place.start(
                ["prometheus", f"--config.file={config}", f"--web.listen-address={self._address}",
                 f"--storage.tsdb.path={place / 'data'}", "--log.level=warn"],
                stdout=log, stderr=log, cwd=place.path,
            )  # fmt: skip

    def ask(self, path, **parameters):
        """One call of its interface; what is under ``data``."""
        query = urllib.parse.urlencode(parameters)
        url = f"http://{self._address}/api/v1/{path}?{query}"
        with urllib.request.urlopen(url, timeout=10) as answer:  # (loopback)
            return json.load(answer)["data"]

    def query(self, expression):
        """The result of an expression now."""
        return self.ask("query", query=expression)["result"]

    def up(self):
        """Whether it answers and has scraped often enough for a rate."""
        with contextlib.suppress(OSError):
            seen = self.query("count_over_time(up[1m]) > 6 and up == 1")
            return bool(seen)
        return False


@pytest.fixture(scope="module")
def scene():
    """A watcher, Prometheus, and commands that ask: one answered, one that waits on."""
    need("prometheus", "promtool")
    place = Place()
    daemon = place.daemon()
    prometheus = Prometheus(place, urllib.parse.urlsplit(daemon.url).netloc)
    answered, waiting = (
        place.ask("answered", program="asks-1"),
        place.ask("waits", program="asks-2"),
    )
    eventually(lambda: len(waits(daemon.receipts("answered", "waits"))) == 2, "both ask")
    eventually(prometheus.up, f"it scrapes; see {place / 'prometheus.log'}")
    answered.answer()
    eventually(lambda: resolutions(daemon.receipts("answered")), "one is answered")
    eventually(
        lambda: prometheus.query("sum(increase(receipt_trace_wait_seconds_count[10s])) > 0"),
        "its end was scraped",
    )
    yield prometheus, daemon, waiting
    place.close()


def test_every_expression_on_the_dashboard_returns_data(scene):
    """While real commands ask."""
    prometheus, _, _ = scene
    empty = [
        (title, expression)
        for title, expression in expressions()
        if not prometheus.query(filled(expression))
    ]
    assert empty == []
    assert len(expressions()) >= 25


def test_the_numbers_are_those_of_the_commands(scene):
    """Blocked right now, by whom, for how long; what it costs."""
    prometheus, _, _ = scene

    def number(expression):
        (one,) = prometheus.query(expression)
        return float(one["value"][1])

    eventually(
        lambda: number('sum(receipt_trace_waits_total{program="asks-1"})') == 1, "one is counted"
    )
    assert (
        number('sum(receipt_trace_waits_total{program="asks-2",kind="stream",wiring="pipe"})') == 1
    )
    assert number("sum(receipt_trace_waits_active)") >= 1
    assert number("receipt_trace_oldest_wait_seconds") > 1
    assert number("sum(receipt_trace_wait_seconds_sum)") > 1
    assert number('count({__name__=~"receipt_trace_.*"})') < 1000
    assert 5e6 < number("process_resident_memory_bytes") < 1e9


def test_every_rule_is_evaluated_without_error_and_nothing_is_alarmed(scene):
    """Ten seconds of a question alarm nobody."""
    prometheus, _, _ = scene

    def rules():
        return [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]

    eventually(lambda: all(rule["health"] != "unknown" for rule in rules()), "all are evaluated")
    assert {rule["health"] for rule in rules()} == {"ok"}
    assert [rule["name"] for rule in rules() if rule.get("state") == "firing"] == []
    recorded = [rule["name"] for rule in rules() if rule["type"] == "recording"]
    assert [name for name in recorded if not prometheus.query(name)] == []
    assert len(recorded) >= 4


def test_the_page_of_metrics_is_clean(scene):
    """Names, units and help as Prometheus wants them."""
    _, daemon, _ = scene
    page = daemon.get("/metrics")[1].encode()
    said = promtool("check", "metrics", input=page)
    assert (said.returncode, said.stdout + said.stderr) == (0, b"")


def test_the_rules_are_valid_and_each_alert_fires_when_it_should():
    """And only then: promtool runs them over series made up for it."""
    need("promtool")
    paths = [str(HERE.joinpath(name)) for name in RULES]
    said = promtool("check", "rules", *paths)
    assert said.returncode == 0, said
    tests = Path(__file__).parent.parent / "recorded" / "alerts.test.yml"
    said = promtool("test", "rules", str(tests))
    assert said.returncode == 0, said.stdout.decode() + said.stderr.decode()
    alerts = set(re.findall(r"- alert: (\w+)", HERE.joinpath("alerts.yml").read_text()))
    assert set(re.findall(r"alertname: (\w+)", tests.read_text())) == alerts


def test_the_dashboard_asks_for_no_metric_that_is_not_there(scene):
    """A name that was changed shows here, also where a sum of nothing is fine."""
    _, daemon, _ = scene
    page = daemon.get("/metrics")[1]
    there = set(re.findall(r"^(\w+)", page, re.MULTILINE))
    text = HERE.joinpath("dashboard.json").read_text() + HERE.joinpath("alerts.yml").read_text()
    asked = set(re.findall(r"\b(?:receipt_trace|process)_\w+", text))
    recorded = set(re.findall(r"record: \w+:(\w+):", HERE.joinpath("recording.yml").read_text()))
    assert asked - recorded <= there
