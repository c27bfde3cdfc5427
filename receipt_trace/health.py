"""How an observer is: plain values that it gives of itself when it is asked.

What is published of them (metrics, the status page) never asks a source for anything else.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceHealth:
    """What only the source itself knows.

    ``name`` as in receipts. ``attach`` is the attach mode of a source that has one. ``fallback``
    says why a better source is not used; ``None`` if this is the best there is, or the one that
    was asked for. ``lost`` counts records that the kernel had to drop. ``run_seconds`` is the time
    that programs of ours ran in the kernel; 0 for a source that has none. Both only grow.
    """

    name: str
    attach: str | None = None
    fallback: str | None = None
    lost: int = 0
    run_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Health:
    """The whole watcher at one moment.

    ``lifecycle`` says how processes come to be known: ``bpf``, ``connector`` or ``scan``. ``agents``,
    ``trees`` and ``processes`` are those followed now; ``suspected`` threads and ``blind``
    processes (those that may not be looked into) are of the last look at each tree.
    ``events`` counts lifecycle events since the start, ``overflows`` how often some were lost: the
    kernel does not say how many.
    """

    source: SourceHealth
    lifecycle: str
    agents: int
    trees: int
    processes: int
    suspected: int
    blind: int
    events: int
    overflows: int
