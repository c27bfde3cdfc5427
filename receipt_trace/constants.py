"""The physical constants, each with its unit and its reason.

Everything that decides *when* something is believed stands here, so that the
rule, the sources and the documentation cannot disagree about it.
"""

from typing import Final

NS: Final = 1_000_000_000
"""Nanoseconds in a second: every time inside the package is an ``int`` of these."""

SAMPLE_PERIOD_NS: Final = 100_000_000
"""Time between two samples of a tree. Ten samples fit into one quiet time, so a
single late sample (a busy host) does not decide anything."""

QUIET_NS: Final = 1_000_000_000
"""How long a candidate must stay one, without output, before it is a wait.
Shorter catches programs between two steps; longer costs the agent time."""

PATIENCE_NS: Final = 3_000_000_000
"""A wait whose call has a time-out of up to this is believed only once that has passed and
the program came back without a word: a monitor that redraws every three seconds (top) also
waits for a key meanwhile. Longer ones (vim 4 s, mutt 30 s, certbot 10 h) are not waited for."""

MAX_CPU_TICKS: Final = 5
"""CPU time the whole tree may use within the quiet time, in ticks. Redrawing a
cursor or waking on a timer stays below it, work does not."""

TICK_MS: Final = 10
"""Length of one tick in milliseconds (``USER_HZ`` is 100 on every Linux ABI)."""

LAPSE_NS: Final = 250_000_000
"""How long a thread may be seen *running* inside a wait before the wait is
broken: two samples and some jitter. A loop that re-enters its call every 100 ms
is caught on the processor now and then."""

RELAPSE_NS: Final = 1_000_000_000
"""The same for a wait that is confirmed: on a host with more work than processors a loop waits
for its turn, and nothing is lost by telling a little later that it left for good."""

PROMPT_BYTES: Final = 2048
"""Longest prompt in a receipt, in UTF-8 bytes."""

OUTPUT_TAIL_BYTES: Final = 64 * 1024
"""How much of the latest output is kept for the prompt. A full-screen program
redraws a large terminal in well under this."""

ARGV_BYTES: Final = 4096
"""Longest command line in a receipt, in bytes; the rest is cut and said to be."""

POLL_SET_MAX: Final = 4096
"""Largest poll or select set that is read from a process. A larger one is
*unknown*, which never becomes a receipt."""

INTERRUPT_GRACE_NS: Final = (("SIGINT", 2 * NS), ("SIGTERM", 2 * NS), ("SIGKILL", 1 * NS))
"""``--on-wait interrupt``: the signals in order, and how long the tree has after each."""

SOURCES: Final = ("auto", "bpf", "procfs")
"""Where observations come from; ``auto`` decides by what the host allows."""

ATTACH: Final = ("snapshot", "syscalls")
"""How the BPF source sees calls: by looking from time to time, or as they happen."""

CAPTURE: Final = ("waits", "text")
"""What the BPF source sees: who waits, or also what is printed and what meets a closed input."""
