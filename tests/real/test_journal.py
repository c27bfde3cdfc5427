"""Receipts in a real journal: a journald of the test's own, in a mount namespace of its own."""

import json
import os
import subprocess

import pytest

from .daemon import Place, in_own_mounts
from .support import BOUND, descendants, eventually, gone, kill, need, waits

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(
        os.geteuid() != 0, reason="mounts need root; run it again: sudo -E pytest -m kernel"
    ),
]

JOURNALD = "/lib/systemd/systemd-journald"
PREPARE = f"""
mount -t tmpfs none /run
mkdir -p /run/systemd/journal /run/systemd/journald.conf.d
printf '[Journal]\\nStorage=volatile\\nReadKMsg=no\\nAudit=\\n' > /run/systemd/journald.conf.d/test.conf
{JOURNALD} >/dev/null 2>&1 &
until [ -S /run/systemd/journal/socket ]; do sleep 0.05; done
"""


def test_receipts_are_found_by_their_fields():
    """Journalctl RECEIPT_PROGRAM=…; the question is redacted, the agent's words are not for all."""
    need("journalctl", JOURNALD, "nsenter")
    place = Place()
    daemon = None
    try:
        daemon = place.daemon(config="journal = true\n", before=in_own_mounts(PREPARE.strip()))

        def found(*fields):
            said = subprocess.run(
                ["nsenter", f"--target={daemon.pid}", "--mount", "journalctl", "-o", "json", *fields],
                capture_output=True, check=False, timeout=BOUND, text=True,
            )  # fmt: skip
            return [json.loads(line) for line in said.stdout.splitlines()]

        asker = place.ask("x", program="asks-7", text="password: hunter2\nGo on? ")
        other = place.ask("y", program="asks-8")
        eventually(lambda: found("RECEIPT_PROGRAM=asks-7"), lambda: f"it is there: {daemon}")
        (entry,) = found("RECEIPT_PROGRAM=asks-7")
        assert entry["RECEIPT_PROMPT"] == "password: [redacted]\nGo on?"
        assert entry["RECEIPT_PID"] == str(asker.pid)
        assert "asks-7" in entry["MESSAGE"]
        assert "hunter2" not in json.dumps(entry)
        (receipt,) = waits(daemon.receipts("x"))
        assert receipt["prompt"]["text"] == "password: hunter2\nGo on?"
        assert receipt["id"] == entry["RECEIPT_ID"] == json.loads(entry["RECEIPT_JSON"])["id"]
        asker.answer()
        eventually(lambda: len(found("RECEIPT_PROGRAM=asks-7")) == 2, "its end is there")
        assert found("RECEIPT_PROGRAM=asks-7", "RECEIPT_EVENT=resolved")[0]["PRIORITY"] == "6"
        eventually(lambda: found(f"RECEIPT_PID={other.pid}"), "so is another")
    finally:
        for pid in descendants(daemon.pid) if daemon is not None else ():
            kill(pid)
            eventually(lambda pid=pid: gone(pid), "journald has ended")
        place.close()


def test_without_a_journal_it_says_so_and_leaves():
    """The configuration asked for it."""
    place = Place()
    try:
        hide = in_own_mounts("mount -t tmpfs none /run")
        status, said = place.refused(config="journal = true\n", before=hide)
        assert status == 64
        assert "the journal cannot be reached at /run/systemd/journal/socket" in said
        assert "journal = false" in said
    finally:
        place.close()
