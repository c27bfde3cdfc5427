"""The configuration file."""

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from receipt_trace.agents import load_registry
from receipt_trace.config import Config, Prompts, load
from receipt_trace.errors import UsageError


@pytest.fixture
def write(tmp_path):
    """Writes a configuration; returns its path."""

    def write(text):
        path = tmp_path / "config.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_an_empty_file_is_the_defaults(write):
    """Nothing has to be said."""
    config = load(write(""))
    assert (config.receipts, config.source) == (None, "auto")
    assert config.registry.kinds == load_registry().kinds


def test_every_key_has_its_place(write):
    """What is written is what counts."""
    path = write(
        'receipts = "/var/log/receipts.jsonl"\nsource = "procfs"\n'
        '[agent.mine]\ntool.env = { MINE = "1" }\n'
    )
    config = load(path)
    assert (config.receipts, config.source) == ("/var/log/receipts.jsonl", "procfs")
    assert [tool.env for tool in config.registry.kinds["mine"].tools] == [{"MINE": "1"}]
    assert "codex" in config.registry.kinds


def test_without_a_word_what_leaves_the_host_is_redacted_and_the_page_shows_nothing(write):
    """What its own user asked for he gets in full."""
    assert load(write("")).prompts == Prompts(
        stdout="full", receipts="full", socket="full", journal="redacted", otlp="redacted",
        page="off",
    )  # fmt: skip


def test_one_word_is_for_all_but_the_page(write):
    """Which has to be asked by name."""
    prompts = load(write('prompt = "full"')).prompts
    assert (prompts.journal, prompts.otlp, prompts.page) == ("full", "full", "off")
    prompts = load(write('[prompt]\npage = "full"\notlp = "off"')).prompts
    assert (prompts.journal, prompts.otlp, prompts.page) == ("redacted", "off", "full")


def test_the_sample_is_right_and_says_the_defaults(write):
    """What is commented out in it changes nothing when it is not."""
    text = (Path(__file__).parents[2] / "systemd/config.toml").read_text()
    given = load(write(text))
    assert (given.metrics, given.journal) == ("127.0.0.1:9737", True)
    assert given.receipts == "/var/log/receipt-trace/receipts.jsonl"
    commented = re.sub(r"^#((?!\[agent|harness|tool)[a-z]+ = )", r"\1", text, flags=re.MULTILINE)
    assert commented.count("\n#") < text.count("\n#") - 8
    without = re.sub(r"^(otlp|socket) = .*", "", commented, flags=re.MULTILINE)
    assert replace(load(write(without)), registry=given.registry) == given
    assert load(write(commented)).socket == "/run/receipt-trace/stream.sock"
    named = set(re.findall(r"^#?([a-z]+) = ", text, re.MULTILINE))
    assert {f.name for f in fields(Prompts)} <= named
    assert {f.name for f in fields(Config)} - {"prompts", "registry"} <= named


WRONG = {
    "an unknown key": ('receits = "x"', ["receits", "expected one of receipts, source, metrics"]),
    "receipts that are no text": ("receipts = 3", ["receipts", "3", "a path, - for stdout"]),
    "receipts to nowhere": ('receipts = ""', ["receipts", "''", "fd:N"]),
    "an unknown source": ('source = "ebpf"', ["source", "'ebpf'", "auto, bpf, procfs"]),
    "a source that is no text": ("source = [1]", ["source", "[1]", "auto, bpf, procfs"]),
    "agents that are no tables": ('agent = "codex"', ["agent", "'codex'", "[agent.NAME]"]),
    "an agent that is no table": ("agent.mine = 1", ["agent.mine", "1", "a table"]),
    "a wrong entry": ("agent.mine.tool.shell = 1", ["agent.mine.tool.shell", "1", "true or false"]),
    "one of several shapes": (
        "agent.mine.tool = [{ child = true }, { child = 0 }]",
        ["agent.mine.tool.child", "0", "true or false"],
    ),
    "metrics that are no text": ("metrics = 9737", ["metrics", "9737", "127.0.0.1:9737, or off"]),
    "a journal that is neither": ('journal = "yes"', ["journal", "'yes'", "true or false"]),
    "an empty socket": ('socket = ""', ["socket", "''", "a path, or off"]),
    "a collector that is no text": ("otlp = 1", ["otlp", "1", "http://127.0.0.1:4318"]),
    "a prompt that is nothing": ('prompt = "some"', ["prompt", "'some'", "full, redacted, off"]),
    "a prompt that is a number": ("prompt = 1", ["prompt", "1", "full, redacted, off"]),
    "a prompt of nobody": ('prompt.syslog = "off"', ["prompt.syslog", "stdout, receipts, socket"]),
    "a prompt of one that is nothing": (
        "prompt.page = true",
        ["prompt.page", "True", "full, redacted, off"],
    ),
    "no TOML": ("receipts = oops\n", ["not TOML", "line 1"]),
    "no UTF-8": (b'receipts = "\xff"', ["not UTF-8", "byte 12"]),
}


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_file_is_told_with_key_value_and_what_is_allowed(write, text, said):
    """The name of the file comes first."""
    path = write(text)
    with pytest.raises(UsageError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert [part for part in said if part not in message] == []


def test_a_missing_file_is_told_with_the_next_step(tmp_path):
    """It was asked for, so it is not passed over."""
    with pytest.raises(UsageError, match=r"nothere\.toml cannot be read: No such file.*--config"):
        load(tmp_path / "nothere.toml")


def test_a_directory_is_no_configuration(tmp_path):
    """The reason is the system's own."""
    with pytest.raises(UsageError, match="Is a directory"):
        load(tmp_path)


@pytest.mark.parametrize(("user", "goes"), [(0, "/var/log/r.jsonl"), (1000, None)])
def test_of_the_hosts_own_file_only_root_takes_where_things_go(write, monkeypatch, user, goes):
    """A user's watcher cannot write there, and must not listen on the service's port."""
    text = (
        'receipts = "/var/log/r.jsonl"\nmetrics = "127.0.0.1:9737"\njournal = true\n'
        'prompt = "off"\n[agent.mine]\ntool.env = { MINE = "1" }\n'
    )
    path = write(text)
    monkeypatch.setattr("receipt_trace.config.DEFAULT_PATH", path)
    monkeypatch.setattr("os.geteuid", lambda: user)
    config = load(None)
    assert config.receipts == goes
    assert config.journal is (config.metrics != "off") is (user == 0)
    assert config.prompts.stdout == "off"
    assert "mine" in config.registry.kinds
    assert load(path).receipts == "/var/log/r.jsonl", "what he names is what he wants"
