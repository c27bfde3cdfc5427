"""One stage and one watcher for all stand-ins."""

import pytest

from ..support import need  # noqa: TID252  (the ring's own helpers)
from .stage import Stage
from .table import AGENTS

_RUNS = pytest.StashKey[dict]()
TOGETHER = 4  # stand-ins that play at the same time


@pytest.fixture(scope="module")
def stage(tmp_path_factory, nothing_left):
    """Where stand-ins play. Nothing of it is left."""
    for program in ("node", "tmux", "vim", "git"):
        need(program)
    directory = tmp_path_factory.mktemp("stage")
    stage = Stage(directory)
    yield stage
    stage.close()


@pytest.fixture(scope="module")
def runs(stage, request):
    """What came of every stand-in that some test asks for, by its key."""
    wanted = {
        item.callspec.params["agent"].key
        for item in request.session.items
        if "runs" in item.fixturenames and "agent" in item.callspec.params
    }
    agents = [agent for agent in AGENTS if agent.key in wanted]
    played = {}
    for start in range(0, len(agents), TOGETHER):
        batch = [stage.start(agent) for agent in agents[start : start + TOGETHER]]
        stage.perform(batch)
        played |= {run.agent.key: run for run in batch}
    request.config.stash[_RUNS] = played
    return played


def pytest_terminal_summary(terminalreporter, config):
    """Say in one line how well the stand-ins' questions were seen."""
    played = config.stash.get(_RUNS, {})
    outcomes = [outcome for run in played.values() for outcome in run.outcomes.values()]
    if outcomes:
        asked = [bool(o.waits) for o in outcomes if o.item.kind]
        false = sum(len(o.waits) for o in outcomes if not o.item.kind)
        terminalreporter.write_line(
            f"{len(played)} stand-ins: {sum(asked)} of {len(asked)} questions reported, "
            f"{false} false among {len(outcomes) - len(asked)} that ask nothing"
        )
