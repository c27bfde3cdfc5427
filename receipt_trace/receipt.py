"""Receipts: what is published about a wait. Version 1, ``receipt.schema.json``.

Pure: a transition of the rule and the context that was read for it go in, a
receipt comes out. Adding a field is compatible; changing one is a new version.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from importlib import resources
from typing import Any, Final

from receipt_trace.constants import ARGV_BYTES, NS
from receipt_trace.errors import exit_status
from receipt_trace.observation import Context, Holder, InputEnd, Waiter
from receipt_trace.rule import Confirmed, How, Resolved
from receipt_trace.screen import cut, read_prompt
from receipt_trace.terminal import InputKind, input_kind
from receipt_trace.trees import Tree

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Host:
    """Where it was seen."""

    hostname: str
    boot_id: str


@dataclass(frozen=True, slots=True)
class AgentPart:
    """The harness, or nobody known."""

    name: str
    pid: int
    session: str | None


@dataclass(frozen=True, slots=True)
class TreePart:
    """The tool call."""

    label: str | None
    root_pid: int
    root_start: int
    command: tuple[str, ...]
    cwd: str | None
    uid: int | None
    user: str | None
    cgroup: str | None
    container_id: str | None
    container_name: str | None
    root_inner_pid: int | None


@dataclass(frozen=True, slots=True)
class ProgramPart:
    """The program that asks; ``relays`` only pass its input on, outermost first."""

    name: str
    exe: str | None
    pid: int
    tid: int
    inner_pid: int | None
    argv: tuple[str, ...]
    relays: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InputPart:
    """What it wants, from where, and who can give it. ``fd`` is -1 where it cannot be seen."""

    kind: str
    wiring: str
    fd: int
    target: str
    holders: tuple[Holder, ...]
    person: bool


@dataclass(frozen=True, slots=True)
class PromptPart:
    """The question, as a person would see it."""

    text: str
    truncated: bool
    source: str
    redacted: bool


@dataclass(frozen=True, slots=True)
class EvidencePart:
    """How it is known. ``blocked_since`` is CLOCK_MONOTONIC in nanoseconds."""

    grade: str
    syscall: str
    wait_set: tuple[str, ...]
    timeout_s: float | None
    quiet_s: float
    cpu_ticks: int
    blocked_since: int
    source: str
    attach: str | None


@dataclass(frozen=True, slots=True)
class EffectsPart:
    """What became of the tree, and what is known of what it did before it asked."""

    tree_ended: bool
    ended_by: str
    prior: str


@dataclass(frozen=True, slots=True)
class ResolutionPart:
    """How the wait ended. ``exit_status`` as a shell tells it (128+N for a signal)."""

    how: str
    waited_s: float
    exit_status: int | None


@dataclass(frozen=True, slots=True)
class Receipt:
    """One receipt. ``wait`` is the id of the wait it belongs to: its own, or the one it resolves."""

    version: int
    id: str
    wait: str
    event: str
    time: str
    monotonic_ns: int
    host: Host
    agent: AgentPart | None
    tree: TreePart
    program: ProgramPart
    input: InputPart
    prompt: PromptPart
    evidence: EvidencePart
    effects: EffectsPart
    advice: str
    resolution: ResolutionPart | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain values, in the order of the schema."""
        return asdict(self)

    def to_json(self) -> str:
        """One line of JSON, ASCII only: nothing in it can act on a terminal or a log."""
        return json.dumps(self.to_dict(), ensure_ascii=True, separators=(",", ":"))


def from_dict(values: Mapping[str, Any]) -> Receipt:
    """A receipt from its plain values; fields of a later version are left out.

    Raises KeyError or TypeError when it is not one.
    """

    def build(kind: type, part: Mapping[str, Any]) -> Any:
        known = {f.name: part[f.name] for f in fields(kind)}
        return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in known.items()})

    parts = {
        "host": Host, "agent": AgentPart, "tree": TreePart, "program": ProgramPart,
        "input": InputPart, "prompt": PromptPart, "evidence": EvidencePart,
        "effects": EffectsPart, "resolution": ResolutionPart,
    }  # fmt: skip
    holders = [build(Holder, holder) for holder in values["input"]["holders"]]
    values = {**values, "input": {**values["input"], "holders": holders}}
    built = {n: None if values[n] is None else build(k, values[n]) for n, k in parts.items()}
    receipt: Receipt = build(Receipt, {**values, **built})
    return receipt


def schema() -> dict[str, Any]:
    """The published JSON Schema of a receipt."""
    text = resources.files("receipt_trace").joinpath("receipt.schema.json").read_text()
    loaded: dict[str, Any] = json.loads(text)
    return loaded


class Clerk:
    """Writes the receipts of one tree, and remembers which wait each resolution belongs to.

    ``source`` and ``attach`` name who observed.
    """

    def __init__(self, host: Host, source: str, attach: str | None = None) -> None:
        self._host, self._source, self._attach = host, source, attach
        self._open: dict[str, Receipt] = {}
        self._echoed: dict[str, int] = {}

    def without_answer(self, waiter: Waiter, context: Context) -> Context:
        """The context without what was typed at the last question of the same terminal.

        In line mode the kernel puts it on the screen itself, up to its line end: it is on the
        output side, and no program has printed it.
        """
        if not context.terminal_output:
            return context
        before = self._echoed.pop(waiter.key.input, None)
        if context.canonical and context.echo and context.output_total:
            self._echoed[waiter.key.input] = context.output_total
        fresh = 0 if before is None else context.output_total - before
        if fresh <= 0:
            return context
        said = context.output[-fresh:]
        _, ended, after = said.partition(b"\n")
        return replace(context, output=after if ended else said)

    def wait(self, tree: Tree, confirmed: Confirmed, context: Context) -> Receipt:
        """The receipt of a confirmed wait."""
        waiter = confirmed.waiter
        prompt = read_prompt(
            context.output,
            terminal=context.terminal_output,
            alternate=context.alternate,
            begins=context.output_total <= len(context.output),
            columns=context.columns,
            lines=context.lines,
        )
        kind = input_kind(waiter.wiring, waiter.dead, context.canonical, context.echo, prompt.drawn)
        known = context.output_source != "none" and bool(prompt.text)
        identity = _identity(self._host, waiter, confirmed.since, context.wall)
        receipt = Receipt(
            version=VERSION,
            id=identity,
            wait=identity,
            event="wait",
            time=_rfc3339(context.wall),
            monotonic_ns=confirmed.time,
            host=self._host,
            agent=_agent(tree),
            tree=TreePart(
                label=tree.label,
                root_pid=tree.root.pid,
                root_start=tree.root.start,
                command=_short(context.root.argv or (context.root.comm,)),
                cwd=context.root.cwd,
                uid=context.uid,
                user=context.user,
                cgroup=context.cgroup,
                container_id=context.container,
                container_name=context.container_name,
                root_inner_pid=context.root_inner_pid,
            ),
            program=_program(waiter, context),
            input=InputPart(
                kind.value, waiter.wiring, waiter.fd, waiter.target, context.holders, context.person
            ),
            prompt=PromptPart(
                text=prompt.text if known else "",
                truncated=prompt.truncated and known,
                source=context.output_source if known else "none",
                redacted=False,
            ),
            evidence=EvidencePart(
                grade=waiter.grade,
                syscall=waiter.syscall,
                wait_set=waiter.wait_set,
                timeout_s=waiter.timeout,
                quiet_s=round((confirmed.time - confirmed.since) / NS, 3),
                cpu_ticks=confirmed.cpu_ticks,
                blocked_since=confirmed.since,
                source=self._source,
                attach=self._attach,
            ),
            effects=EffectsPart(False, "none", "unverified" if context.busy else "none-seen"),
            advice=_advice(kind, waiter),
        )
        self._open[waiter.key.input] = receipt
        return receipt

    def unanswered(
        self,
        tree: Tree,
        end: InputEnd,
        asked: str,
        context: Context,
        ended: tuple[int, int | None],
        wall: int,
    ) -> Receipt:
        """The receipt of a question that met a closed input.

        ``asked`` is the question, ``ended`` are the time until which its program was followed
        (CLOCK_MONOTONIC, ns) and its wait status, if it has ended.
        """
        time, status = ended
        receipt = self.wait(tree, Confirmed(end.time, end.waiter, end.time, 0), context)
        del self._open[end.target]
        return replace(
            receipt,
            event="eof",
            time=_rfc3339(wall),
            monotonic_ns=time,
            input=replace(receipt.input, kind=InputKind.STREAM.value, holders=(), person=False),
            prompt=PromptPart(*cut(asked), "syscall", False),
            advice=_UNANSWERED,
            resolution=ResolutionPart(
                how=How.EOF.value,
                waited_s=round((time - end.time) / NS, 3),
                exit_status=None if status is None else exit_status(status),
            ),
        )

    def resolution(self, resolved: Resolved, wall: int) -> Receipt | None:
        """The record that ends a wait; ``None`` if its receipt was never written."""
        receipt = self._open.pop(resolved.waiter.key.input, None)
        if receipt is None:
            return None
        status = resolved.status
        ended = resolved.how is How.INTERRUPTED
        return replace(
            receipt,
            id=_identity(self._host, resolved.waiter, resolved.time, wall),
            event="resolved",
            time=_rfc3339(wall),
            monotonic_ns=resolved.time,
            effects=replace(
                receipt.effects,
                tree_ended=ended,
                ended_by="receipt-trace" if ended else "none",
            ),
            resolution=ResolutionPart(
                how=resolved.how.value,
                waited_s=round((resolved.time - resolved.since) / NS, 3),
                exit_status=None if status is None else exit_status(status),
            ),
        )


def _identity(host: Host, waiter: Waiter, moment: int, wall: int) -> str:
    """Sorts by time, and is the same whenever the same trace is replayed."""
    seed = f"{host.boot_id}/{waiter.key}/{moment}"
    return f"{wall // 1_000_000:012x}-{hashlib.blake2b(seed.encode(), digest_size=6).hexdigest()}"


def _rfc3339(wall: int) -> str:
    seconds, rest = divmod(wall, NS)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest // 1_000_000:03d}Z"


def _short(argv: tuple[str, ...]) -> tuple[str, ...]:
    """A command line of at most ``ARGV_BYTES``, ends of arguments included; an ellipsis where
    it was cut.
    """
    if sum(len(argument.encode()) + 1 for argument in argv) <= ARGV_BYTES:
        return argv
    kept: list[str] = []
    room = ARGV_BYTES - len("…".encode()) - 1
    for argument in argv:
        raw = argument.encode()
        if len(raw) + 1 > room:
            kept.append(raw[:room].decode("utf-8", "ignore") + "…")
            break
        kept.append(argument)
        room -= len(raw) + 1
    return tuple(kept)


def _agent(tree: Tree) -> AgentPart | None:
    agent = tree.agent
    return None if agent is None else AgentPart(agent.name, agent.pid, agent.session)


def _program(waiter: Waiter, context: Context) -> ProgramPart:
    return ProgramPart(
        name=waiter.comm,
        exe=context.program.exe,
        pid=waiter.key.pid,
        tid=waiter.key.tid,
        inner_pid=context.inner_pid,
        argv=_short(context.program.argv),
        relays=waiter.relays,
    )


_UNANSWERED: Final = (
    "It asked, read the end of its input, and went on with a default, whatever its exit status "
    "says: check what was done, or run the command again with the option that answers in advance."
)
_ADVICE: Final[Mapping[InputKind, str]] = {
    InputKind.LINE: "It asks for a line of input: answer it, or run the command again with the "
    "option that answers in advance.",
    InputKind.SECRET: "It asks for a password or another secret: do not guess one; use a "
    "credential the program can find by itself, or ask the user.",
    InputKind.KEY: "It waits for a key or a choice: send one, or run the command again with the "
    "option that makes it non-interactive.",
    InputKind.SCREEN: "It shows a full-screen program (an editor, a pager, a menu): leave it with "
    "its own key, or run the command again without it.",
    InputKind.STREAM: "It reads its standard input and nobody writes there: give it its input, or "
    "run the command again with the option that answers in advance.",
    InputKind.DEAD: "Nobody can ever answer it, since no one holds the other end of what it reads: "
    "end the command and run it non-interactively.",
}


def _advice(kind: InputKind, waiter: Waiter) -> str:
    if waiter.grade == "terminal" and kind is not InputKind.SECRET:
        return (
            "It seems to ask for input on the terminal: answer it, or run the command again "
            "with the option that answers in advance."
        )
    return _ADVICE[kind]
