"""The rule: candidate, confirmed, resolved. A pure state machine.

Samples of one tree go in, in the order of their times; transitions come out.
It reads no clock and no file: the live tracer, a recorded trace and a property
test drive the same object and get the same answer. ``docs/rule.md`` says why
each condition is there.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from receipt_trace.constants import (
    LAPSE_NS,
    MAX_CPU_TICKS,
    NS,
    PATIENCE_NS,
    QUIET_NS,
    RELAPSE_NS,
    SAMPLE_PERIOD_NS,
)
from receipt_trace.observation import Ending, ProcessId, Sample, Waiter, WaiterKey


class How(StrEnum):
    """How a wait ended."""

    ANSWERED = "answered"  # the thread took input and went on
    EOF = "eof"  # the input was closed
    EXPIRED = "expired"  # the call's own time-out passed and the program went on
    INTERRUPTED = "interrupted"  # by us
    KILLED = "killed"  # the process died of somebody's signal
    EXITED = "exited"  # the process ended, and nobody saw it take input
    LOST = "lost"  # we stopped looking


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A wait: the waiter stayed one for the whole quiet time."""

    time: int
    waiter: Waiter
    since: int
    cpu_ticks: int


@dataclass(frozen=True, slots=True)
class Resolved:
    """The end of a wait. ``status`` is the wait status of the process, if it ended and is known."""

    time: int
    waiter: Waiter
    since: int
    how: How
    status: int | None = None


Transition = Confirmed | Resolved


@dataclass(slots=True)
class _Candidate:
    waiter: Waiter
    since: int
    seen: int
    output: int
    cpu_ticks: int
    patience: int
    missed: int | None = None  # the first sample since then that did not show it


@dataclass(slots=True)
class Rule:
    """The rule over one tree.

    ``quiet`` and ``max_ticks`` are arguments so that a test can show what each is
    for; nothing in the product changes them.
    """

    quiet: int = QUIET_NS
    max_ticks: int = MAX_CPU_TICKS
    _candidates: dict[WaiterKey, _Candidate] = field(default_factory=dict)
    _active: dict[str, _Candidate] = field(default_factory=dict)

    @property
    def due(self) -> int | None:
        """The earliest time at which a candidate can be confirmed (``None``: no candidate)."""
        waiting = [self._due(c) for k, c in self._candidates.items() if k.input not in self._active]
        return min(waiting, default=None)

    @property
    def active(self) -> tuple[Waiter, ...]:
        """The waits that are confirmed and not resolved."""
        return tuple(c.waiter for c in self._active.values())

    @property
    def restless(self) -> bool:
        """Whether something may change from one moment to the next: a candidate that is not
        confirmed, or a program that leaves its call again and again.
        """
        return any(
            c.waiter.timeout is not None or k.input not in self._active
            for k, c in self._candidates.items()
        )

    def step(self, sample: Sample) -> list[Transition]:
        """Take one sample. Returns what changed, resolutions before confirmations."""
        seen = {w.key: w for w in sample.waiters}
        return self._resolve(sample, seen) + self._confirm(sample, seen)

    def stop(self, time: int, how: How = How.LOST) -> list[Transition]:
        """End every wait because we end: stopped looking, or ended the tree ourselves."""
        ended: list[Transition] = [
            Resolved(time, c.waiter, c.since, how) for c in self._active.values()
        ]
        self._active.clear()
        self._candidates.clear()
        return ended

    def _confirm(self, sample: Sample, seen: Mapping[WaiterKey, Waiter]) -> list[Transition]:
        confirmed: list[Transition] = []
        for key, waiter in seen.items():
            candidate = self._candidates.get(key)
            if candidate is None or self._broken(candidate, waiter, sample):
                self._candidates[key] = _Candidate(
                    waiter,
                    self._since(candidate, sample),
                    sample.time,
                    sample.output,
                    sample.cpu_ticks,
                    self._patience(waiter),
                )
                continue
            candidate.seen, candidate.waiter, candidate.missed = sample.time, waiter, None
            candidate.patience = max(candidate.patience, self._patience(waiter))
            quiet = sample.time >= self._due(candidate)
            if quiet and key.input not in self._active:  # one receipt for each input
                self._active[key.input] = candidate
                spent = sample.cpu_ticks - candidate.cpu_ticks
                confirmed.append(Confirmed(sample.time, waiter, candidate.since, spent))
        for key in [k for k in self._candidates if k not in seen]:
            if not self._lapses(key, self._candidates[key], sample):
                del self._candidates[key]
        return confirmed

    def _since(self, broken: _Candidate | None, sample: Sample) -> int:
        """When the quiet time of a new candidate began: when the tree was last seen to go still.

        Of one that was broken though nobody ran (somebody else wrote): now.
        """
        if sample.still is None or (broken is not None and sample.still <= broken.seen):
            return sample.time
        return min(sample.time, sample.still)

    def _due(self, candidate: _Candidate) -> int:
        """When a candidate has been quiet for long enough."""
        return candidate.since + max(self.quiet, candidate.patience)

    def _patience(self, waiter: Waiter) -> int:
        """How long it takes until a call with a short time-out has come back from it."""
        timeout = int((waiter.timeout or 0) * NS)
        return timeout + 2 * SAMPLE_PERIOD_NS if self.quiet <= timeout <= PATIENCE_NS else 0

    def _broken(self, candidate: _Candidate, waiter: Waiter, sample: Sample) -> bool:
        active = self._active.get(waiter.key.input) is candidate
        if candidate.waiter.consumed != waiter.consumed:
            return True
        if active:  # confirmed already: an echo on the screen does not end it
            return False
        return (
            sample.output != candidate.output
            or sample.cpu_ticks - candidate.cpu_ticks > self.max_ticks
        )

    def _lapses(self, key: WaiterKey, candidate: _Candidate, sample: Sample) -> bool:
        """On a processor for a moment, on its way back into the same call."""
        if key[:3] not in sample.running:
            return False
        if self._active.get(key.input) is not candidate:
            return sample.time - candidate.seen <= LAPSE_NS
        # On a busy host samples are far apart: the first one decides nothing.
        if candidate.missed is None:
            candidate.missed = sample.time
        return sample.time - candidate.missed <= RELAPSE_NS

    def _resolve(self, sample: Sample, seen: Mapping[WaiterKey, Waiter]) -> list[Transition]:
        resolved: list[Transition] = []
        for name, candidate in list(self._active.items()):
            key = candidate.waiter.key
            waiter = seen.get(key)
            if waiter is not None and waiter.consumed == candidate.waiter.consumed:
                continue
            taken = key.input in sample.answered
            if waiter is None and not taken and self._lapses(key, candidate, sample):
                continue
            how, status = self._how(candidate.waiter, waiter, sample)
            resolved.append(Resolved(sample.time, candidate.waiter, candidate.since, how, status))
            del self._active[name]
        return resolved

    def _how(self, was: Waiter, now: Waiter | None, sample: Sample) -> tuple[How, int | None]:
        process = ProcessId(was.key.pid, was.key.start)
        ending = sample.ended.get(process, None if sample.alive else Ending())
        status = ending.status if ending is not None else None
        if now is not None or was.key.input in sample.answered:
            return How.ANSWERED, status
        if status is not None and os.WIFSIGNALED(status):
            return How.KILLED, status
        if was.key.input in sample.closed:
            return How.EOF, status
        if ending is not None:
            return How.EXITED, status
        # It lives, and nobody saw it take anything.
        return (How.ANSWERED if was.timeout is None else How.EXPIRED), None
