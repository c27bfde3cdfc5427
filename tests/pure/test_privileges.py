"""Giving up what a watcher of root does not need."""

import json
import os
import subprocess
import sys

import pytest

from receipt_trace.privileges import KEPT

CODE = """
import json, os
from receipt_trace import privileges
def status():
    return dict(line.split(":\\t", 1) for line in open("/proc/thread-self/status").read().splitlines())
def why(do):
    try: do()
    except OSError as error: return error.strerror
before = status()
kept = privileges.drop()
after = status()
print(json.dumps({
    "before": before["CapEff"], "kept": kept, "new": after["NoNewPrivs"],
    "after": [after[n] for n in ("CapEff", "CapPrm")], "empty": [after[n] for n in ("CapInh", "CapAmb")],
    "chown": why(lambda: os.chown("/proc/self/fd/1", 12345, 12345)),
    "kill": why(lambda: os.setuid(12345)),
}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are of Linux; run it there")
def test_of_what_there_was_only_what_is_needed_is_left():
    """Root keeps what is named; somebody who had none has none; neither gains any again."""
    said = subprocess.run([sys.executable, "-c", CODE], capture_output=True, check=True, text=True)
    seen = json.loads(said.stdout)
    wanted = int(seen["before"], 16) & sum(1 << number for number in KEPT.values())
    assert {int(word, 16) for word in seen["after"]} == {wanted}
    assert {int(word, 16) for word in seen["empty"]} == {0}
    assert seen["kept"] == [name for name, number in KEPT.items() if wanted >> number & 1]
    assert seen["new"] == "1"
    assert seen["chown"] == seen["kill"] == "Operation not permitted"
    if os.geteuid() == 0 and int(seen["before"], 16) >> 21 & 1:
        assert seen["kept"] == list(KEPT)
