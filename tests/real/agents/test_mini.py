"""The real mini-SWE-agent, driven by its own deterministic model."""

import json
import os
import sys

import pytest

from ..support import missing  # noqa: TID252  (the ring's own helpers)
from .stage import is_of, on_terminal, until

pytestmark = pytest.mark.kernel

_MINI = "RECEIPT_TRACE_MINI"
_COMMANDS = ("rm -i kit/victim", "sleep 4; echo done", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
_LATEST = 120.0  # it imports for long


@pytest.fixture
def mini():
    """The program."""
    path = os.environ.get(_MINI) or f"{sys.prefix}/agents/bin/mini"
    if not os.access(path, os.X_OK):
        missing(f"mini-SWE-agent is not at {path}", f"scripts/setup --test, or name it: {_MINI}=…")
    return path


def test_mini_swe_agent_itself_is_recognised(mini, stage):
    """Its commands have its terminal for their input: one asks, and is ended by its time-out."""
    place = stage.directory / "runs" / "real-mini"
    stage.lay(place, ())
    os.symlink(stage.kit, place / "kit")
    outputs = [
        {
            "role": "assistant",
            "content": "next",
            "extra": {"cost": 0.0, "actions": [{"command": command}]},
        }
        for command in _COMMANDS
    ]
    config = {  # JSON is YAML
        "model": {"model_class": "deterministic", "model_name": "none", "outputs": outputs},
        "environment": {"timeout": 6},
    }
    (place / "config.yaml").write_text(json.dumps(config))
    environment = {
        **stage.environment,
        "MSWEA_CONFIGURED": "true",
        "MSWEA_SILENT_STARTUP": "1",
        "MSWEA_GLOBAL_CONFIG_DIR": str(place / "settings"),
    }
    options = ("-c", "default", "-c", "config.yaml", "--agent-class", "default")
    argv = (mini, *options, "-t", "remove the victim", "-o", "trajectory.json")
    process, master = on_terminal(argv, place, environment)
    stage.drain.add(master)
    try:
        until(lambda: process.poll() is not None, _LATEST, "mini-SWE-agent is done")
    finally:
        process.kill()
        process.wait()
        stage.sweep(place)
    (wait,) = [r for r in stage.watcher.receipts() if is_of(r, place)]
    assert (wait["agent"]["name"], wait["agent"]["pid"]) == ("mini-swe-agent", process.pid)
    assert wait["program"]["name"] == "rm"
    assert wait["input"]["wiring"] == "tty"
    assert "Submitted" in (place / "trajectory.json").read_text()
