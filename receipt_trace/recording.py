"""Recorded traces: what was observed, as JSON Lines, and the rule run over it again.

A trace holds observations, not conclusions: trees, samples, and the context that
was read for each wait. Replaying gives the same receipts with the same ids.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any, Final, TextIO

from receipt_trace import __version__
from receipt_trace.constants import RELAPSE_NS, SAMPLE_PERIOD_NS
from receipt_trace.errors import UsageError
from receipt_trace.observation import (
    Context,
    Ending,
    Holder,
    ProcessId,
    Program,
    Sample,
    Waiter,
    WaiterKey,
)
from receipt_trace.receipt import Clerk, Host, Receipt
from receipt_trace.rule import How, Resolved, Rule
from receipt_trace.trees import Agent, Tree

FORMAT: Final = 1
_AFTER: Final = 2 * RELAPSE_NS // SAMPLE_PERIOD_NS
"""Samples after which the rule has surely forgotten a candidate: twice as many as it takes."""


class Recorder:
    """Writes a trace to an open text file, a line at a time.

    Samples without a waiter are left out, but for the first few after one with a
    waiter: the rule would not do anything with them.
    """

    def __init__(self, file: TextIO, host: Host, source: str, attach: str | None = None) -> None:
        self._file = file
        self._wanted: dict[ProcessId, int] = {}
        self._put(
            {
                "trace": FORMAT,
                "version": __version__,
                "source": source,
                "attach": attach,
                "host": asdict(host),
            }
        )

    def tree(self, tree: Tree) -> None:
        """A tree is followed from now on."""
        agent = None if tree.agent is None else asdict(tree.agent)
        self._put({"tree": list(tree.root), "label": tree.label, "agent": agent})

    def context(self, tree: ProcessId, waiter: Waiter, context: Context) -> None:
        """What was read for the wait that the next sample confirms."""
        values = asdict(context)
        values["output"] = base64.b64encode(context.output).decode()
        self._put({"context": values, "of": list(tree), "waiter": list(waiter.key)})

    def sample(self, tree: ProcessId, sample: Sample, wall: int) -> None:
        """One sample of a tree."""
        wanted = _AFTER if sample.waiters else self._wanted.get(tree, 0) - 1
        self._wanted[tree] = wanted
        if wanted < 0:
            return
        values = asdict(sample)
        values["waiters"] = [asdict(w) | {"key": list(w.key)} for w in sample.waiters]
        values["running"] = sorted(sample.running)
        values["ended"] = [[*who, ending.status] for who, ending in sample.ended.items()]
        values["answered"], values["closed"] = sorted(sample.answered), sorted(sample.closed)
        self._put({"sample": values, "of": list(tree), "wall": wall})

    def stop(self, tree: ProcessId, time: int, how: How, wall: int) -> None:
        """A tree is no longer followed."""
        self._wanted.pop(tree, None)
        self._put({"stop": time, "of": list(tree), "how": how.value, "wall": wall})

    def _put(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
        self._file.flush()


def replay(lines: Iterable[str], name: str) -> Iterator[Receipt]:
    """Run the rule over a trace. Raises UsageError that names the line which is not one of a trace."""
    player: _Player | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if player is None:
                player = _Player(record)
                continue
            receipts = player.take(record)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{name}, line {number}: not a line of a trace ({type(error).__name__}: {error}); "
                f"expected what `receipt-trace watch --record FILE` writes (format {FORMAT})"
            ) from None
        yield from receipts
    if player is None:
        raise UsageError(
            f"{name} is empty; expected what `receipt-trace watch --record FILE` writes"
        )


class _Player:
    """The state of a replay."""

    def __init__(self, header: dict[str, Any]) -> None:
        if header["trace"] != FORMAT:
            raise ValueError(f"format {header['trace']}, this version reads {FORMAT}")
        self._host = Host(**header["host"])
        self._source = str(header["source"])
        self._attach = header.get("attach")  # traces of before have none
        self._cases: dict[ProcessId, tuple[Tree, Rule, Clerk]] = {}
        self._contexts: dict[tuple[ProcessId, WaiterKey], Context] = {}

    def take(self, record: dict[str, Any]) -> list[Receipt]:
        """Take one line; returns the receipts it gives."""
        if "tree" in record:
            root = ProcessId(*record["tree"])
            agent = None if record["agent"] is None else Agent(**record["agent"])
            tree = Tree(root, label=record["label"], agent=agent)
            self._cases[root] = (tree, Rule(), Clerk(self._host, self._source, self._attach))
            return []
        root = ProcessId(*record["of"])
        if "context" in record:
            self._contexts[root, WaiterKey(*record["waiter"])] = _context(record["context"])
            return []
        tree, rule, clerk = self._cases[root]
        if "sample" in record:
            transitions = rule.step(_sample(record["sample"]))
        else:
            transitions = rule.stop(int(record["stop"]), How(record["how"]))
            del self._cases[root]
        receipts: list[Receipt | None] = []
        for transition in transitions:
            if isinstance(transition, Resolved):
                receipts.append(clerk.resolution(transition, record["wall"]))
            else:
                context = self._contexts.pop((root, transition.waiter.key))
                receipts.append(clerk.wait(tree, transition, context))
        return [r for r in receipts if r is not None]


def _context(values: dict[str, Any]) -> Context:
    output = base64.b64decode(values.pop("output"))
    program, root = _program(values.pop("program")), _program(values.pop("root"))
    holders = tuple(Holder(**holder) for holder in values.pop("holders"))
    return Context(program=program, root=root, output=output, holders=holders, **values)


def _program(values: dict[str, Any]) -> Program:
    return Program(values["comm"], values["exe"], tuple(values["argv"]), values["cwd"])


def _sample(values: dict[str, Any]) -> Sample:
    waiters = tuple(
        Waiter(
            **w
            | {
                "key": WaiterKey(*w["key"]),
                "wait_set": tuple(w["wait_set"]),
                "relays": tuple(w["relays"]),
            }
        )
        for w in values["waiters"]
    )
    return Sample(
        **values
        | {
            "waiters": waiters,
            "running": frozenset((p, s, t) for p, s, t in values["running"]),
            "ended": {ProcessId(p, s): Ending(status) for p, s, status in values["ended"]},
            "answered": frozenset(values["answered"]),
            "closed": frozenset(values["closed"]),
        }
    )
