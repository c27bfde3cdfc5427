"""Receipts for the journal, read as journald reads them."""

import os
import socket
import struct
from dataclasses import replace

import pytest
from builders import receipt, resolved
from hypothesis import given, settings
from hypothesis import strategies as st

from exporters.journal import MESSAGE_ID, JournalExporter, encode


def parse(entry):
    """The fields of an entry by https://systemd.io/JOURNAL_NATIVE_PROTOCOL/."""
    fields = {}
    while entry:
        line, _, rest = entry.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            (size,) = struct.unpack("<Q", rest[:8])
            value, rest = rest[8 : 8 + size], rest[8 + size :]
            assert rest[:1] == b"\n"
            rest = rest[1:]
        assert name.decode() not in fields
        assert name.isascii()
        assert name.decode().replace("_", "").isalnum()
        fields[name.decode()] = value.decode()
        entry = rest
    return fields


@pytest.fixture
def journald(tmp_path):
    """A socket where entries arrive."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.settimeout(10)
        yield listener


def test_a_wait_has_fields_to_search_for(journald, tmp_path):
    """And one line for people; an entry is one datagram."""
    exporter = JournalExporter(str(tmp_path / "socket"))
    wait = receipt(7, b"1\r\n2\r\nDelete? ", comm="rm", agent="codex", label="x")
    exporter.export(wait)
    exporter.close()
    fields = parse(journald.recv(1 << 20))
    assert fields["MESSAGE"] == "rm[7] of codex asks for a line on /dev/pts/1: “Delete?”"
    assert fields["RECEIPT_PROMPT"] == "1\n2\nDelete?"
    assert fields["RECEIPT_JSON"] == wait.to_json()
    told = {
        n: fields[f"RECEIPT_{n}"] for n in ("PROGRAM", "AGENT", "KIND", "EVENT", "PID", "LABEL")
    }
    assert told == {"PROGRAM": "rm", "AGENT": "codex", "KIND": "line", "EVENT": "wait", "PID": "7",
                    "LABEL": "x"}  # fmt: skip
    assert (fields["PRIORITY"], fields["SYSLOG_IDENTIFIER"]) == ("5", "receipt-trace")
    assert fields["MESSAGE_ID"] == MESSAGE_ID
    assert "RECEIPT_RESOLUTION" not in fields


def test_the_end_of_a_wait_says_how_and_after_how_long():
    """With less priority."""
    fields = parse(encode(resolved(receipt(), "killed", 12.5)))
    assert fields["RECEIPT_RESOLUTION"] == "killed"
    assert fields["RECEIPT_WAITED_SECONDS"] == "12.500"
    assert (fields["PRIORITY"], fields["RECEIPT_EVENT"]) == ("6", "resolved")


@settings(max_examples=30, deadline=None)  # each makes two receipts
@given(st.text(max_size=60), st.text(max_size=60))
def test_no_text_can_add_a_field(output, name):
    """Line ends, equal signs and lengths of its own are part of the value."""
    names = set(parse(encode(receipt(output=b"x", comm="x", label="x", argv=("x",)))))
    hostile = receipt(comm=name + "\n_UID=0", label=name + "\n" + "MESSAGE=x", argv=(name,))
    text = output + "\nPRIORITY=0\n\x07"
    hostile = replace(hostile, prompt=replace(hostile.prompt, text=text))
    assert set(parse(encode(hostile))) == names


def test_a_journald_that_was_started_again_is_found_again(journald, tmp_path):
    """Its socket is another one at the same place."""
    path = str(tmp_path / "socket")
    exporter = JournalExporter(path)
    journald.close()
    os.unlink(path)
    with pytest.raises(OSError, match=r"."):
        exporter.export(receipt(1))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as again:
        again.bind(path)
        exporter.export(receipt(2))
        assert parse(again.recv(1 << 20))["RECEIPT_PID"] == "2"
    exporter.close()


def test_a_journald_that_does_not_read_does_not_hang_us_for_ever(journald, tmp_path, monkeypatch):
    """It is an error, and the queue tries again."""
    monkeypatch.setattr("exporters.journal._PATIENCE_S", 0.05)
    exporter = JournalExporter(str(tmp_path / "socket"))
    wait = receipt()

    def fill():
        while True:
            exporter.export(wait)

    with pytest.raises(TimeoutError):
        fill()
    exporter.close()


def test_without_a_journal_it_is_told_at_once(tmp_path):
    """Before anything else has happened."""
    with pytest.raises(FileNotFoundError):
        JournalExporter(str(tmp_path / "nothing"))
