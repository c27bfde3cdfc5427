"""Receipts as JSON Lines, and where they go."""

import json
import os
import resource
import threading

import pytest
from builders import NS, START, context, waiter

from exporters.jsonl import JsonLinesExporter, open_receipts
from receipt_trace.errors import UsageError
from receipt_trace.observation import ProcessId
from receipt_trace.output import write_all
from receipt_trace.receipt import Clerk, Host
from receipt_trace.rule import Confirmed
from receipt_trace.trees import Tree


def receipt(pid=10):
    """Any receipt."""
    return Clerk(Host("host", "boot"), "procfs").wait(
        Tree(ProcessId(10, START)), Confirmed(NS, waiter(pid), 0, 0), context(b"Go on? ")
    )


def test_a_file_gets_one_line_for_each_receipt(tmp_path):
    """Each ended, each an object."""
    exporter = open_receipts(str(tmp_path / "receipts"))
    exporter.export(receipt(10))
    exporter.export(receipt(11))
    exporter.close()
    text = (tmp_path / "receipts").read_text()
    assert text == receipt(10).to_json() + "\n" + receipt(11).to_json() + "\n"
    assert [json.loads(line)["program"]["pid"] for line in text.splitlines()] == [10, 11]


def test_a_file_is_appended_to(tmp_path):
    """What was there stays."""
    path = tmp_path / "receipts"
    path.write_text("before\n")
    exporter = open_receipts(str(path))
    exporter.export(receipt())
    exporter.close()
    assert path.read_text().splitlines()[0] == "before"


def test_a_new_file_is_for_its_owner_only(tmp_path):
    """Prompts can hold what others should not read."""
    open_receipts(str(tmp_path / "receipts")).close()
    assert (tmp_path / "receipts").stat().st_mode & 0o077 == 0


def test_it_is_opened_again_where_it_was_moved_away(tmp_path):
    """As logrotate does; what comes until then goes to the old one."""
    path, moved = tmp_path / "receipts", tmp_path / "receipts.1"
    exporter = open_receipts(str(path))
    exporter.export(receipt(1))
    path.rename(moved)
    exporter.export(receipt(2))
    exporter.reopen()
    exporter.export(receipt(3))
    exporter.close()
    assert moved.read_text() == receipt(1).to_json() + "\n" + receipt(2).to_json() + "\n"
    assert path.read_text() == receipt(3).to_json() + "\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_where_it_cannot_be_opened_again_the_old_one_is_kept(tmp_path):
    """Somebody put a folder there."""
    path, moved = tmp_path / "receipts", tmp_path / "receipts.1"
    exporter = open_receipts(str(path))
    path.rename(moved)
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        exporter.reopen()
    exporter.export(receipt(1))
    exporter.close()
    assert moved.read_text() == receipt(1).to_json() + "\n"


def test_a_line_that_was_torn_by_a_crash_is_ended_first(tmp_path):
    """So that it costs no other receipt."""
    path = tmp_path / "receipts"
    path.write_text('{"torn')
    exporter = open_receipts(str(path))
    exporter.export(receipt(1))
    exporter.export(receipt(2))
    exporter.close()
    assert path.read_text().splitlines() == ['{"torn', receipt(1).to_json(), receipt(2).to_json()]


def test_of_a_line_that_did_not_fit_nothing_stays(tmp_path):
    """A limit on the size of files stands for the full disk: the kernel takes only a part."""
    path = tmp_path / "receipts"
    exporter = open_receipts(str(path))
    exporter.export(receipt(1))
    whole = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 100, hard))
    try:
        for _ in range(3):
            with pytest.raises(OSError, match="File too large"):
                exporter.export(receipt(2))
            assert path.read_bytes() == whole
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    exporter.export(receipt(2))
    exporter.close()
    assert path.read_bytes() == whole + receipt(2).to_json().encode() + b"\n"


def test_a_part_that_cannot_be_taken_back_is_ended_as_a_line(tmp_path, monkeypatch):
    """The file may only be appended to."""
    path = tmp_path / "receipts"
    exporter = open_receipts(str(path))
    real = os.write

    def short(fd, data):
        real(fd, data[:10])
        raise OSError(28, "No space left on device")

    def refuse(fd, length):
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", refuse)
        patch.setattr(os, "write", short)
        with pytest.raises(OSError, match="No space"):
            exporter.export(receipt(1))
    exporter.export(receipt(1))
    exporter.close()
    first, second = path.read_bytes().splitlines()
    assert (len(first), second) == (10, receipt(1).to_json().encode())


def test_a_descriptor_of_the_caller_is_written_to_and_left_open():
    """fd:N: it is his to close."""
    reader, writer = os.pipe()
    exporter = open_receipts(f"fd:{writer}")
    exporter.export(receipt())
    exporter.close()
    os.write(writer, b"still open\n")
    os.close(writer)
    with open(reader, "rb") as out:
        lines = out.read().splitlines()
    assert lines == [receipt().to_json().encode(), b"still open"]


def test_a_dash_is_standard_output(capfd):
    """Not a file of that name."""
    exporter = open_receipts("-")
    exporter.export(receipt())
    exporter.close()
    assert capfd.readouterr().out == receipt().to_json() + "\n"


def test_a_directory_that_is_missing_is_told_with_the_next_step(tmp_path):
    """Before anything else has happened."""
    path = tmp_path / "not there" / "receipts"
    with pytest.raises(UsageError) as caught:
        open_receipts(str(path))
    message = str(caught.value)
    assert f"'{path}': No such file or directory" in message
    assert f"mkdir -p '{path.parent}'" in message


def test_a_directory_is_no_file(tmp_path):
    """What else can be given is said."""
    with pytest.raises(UsageError, match=r"Is a directory; give a file .* - for stdout, or fd:N"):
        open_receipts(str(tmp_path))


def test_a_pipe_that_nobody_reads_does_not_hang(tmp_path):
    """Opening it would wait for its reader."""
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match="No such device or address"):
        open_receipts(str(tmp_path / "fifo"))


@pytest.mark.parametrize("target", ["fd:999", "fd:x", "fd:", "fd:-1", "fd:1.5", "fd:" + "9" * 30])
def test_a_descriptor_that_is_not_open_is_told_with_an_example(target):
    """What was given, what was expected."""
    with pytest.raises(UsageError) as caught:
        open_receipts(target)
    message = str(caught.value)
    assert message.startswith(f"--receipts {target}: no open descriptor '{target[3:]}'")
    assert "3>receipts" in message


def test_a_descriptor_that_can_only_be_read_is_refused():
    """The first receipt would fail."""
    reader, writer = os.pipe()
    try:
        with pytest.raises(UsageError, match=f"descriptor {reader} is open for reading only"):
            open_receipts(f"fd:{reader}")
    finally:
        os.close(reader)
        os.close(writer)


def test_everything_is_written_to_a_descriptor_that_does_not_block():
    """Far more than a pipe holds at once."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    data = bytes(range(256)) * 4096
    taken = []
    with open(reader, "rb") as out:
        consumer = threading.Thread(target=lambda: taken.append(out.read()))
        consumer.start()
        write_all(writer, data)
        os.close(writer)
        consumer.join()
    assert taken == [data]


def test_a_reader_that_is_gone_is_an_os_error():
    """Whoever exports decides what becomes of it."""
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        JsonLinesExporter(writer).export(receipt())
    os.close(writer)
