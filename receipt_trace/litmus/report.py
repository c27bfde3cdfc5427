"""The report: figures as Markdown, and a picture of them."""

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from receipt_trace.errors import UsageError

_INTRO = """\
# Litmus

How good is detection, on commands nobody tuned it for? The catalogue
(`receipt_trace/litmus/*.toml`) has commands that ask for input and controls that do not. Each
runs under a closed input (`null`), an open pipe that nobody writes to (`pipe`) and a terminal at
which nobody types (`tty`); through `receipt-trace run`, and under `receipt-trace watch` below a
stand-in agent that is there for half a second before its call.

- **Who really waits** is said by an oracle that shares no code with the product: it reads which
  call each thread is blocked in and on what. Then an answer is written to the command's input; a
  wait is *proved* when the command takes it and goes on.
- **Latency** is from the last moment at which the oracle saw the thread not yet blocked (or the
  last output, whichever is later) to the receipt: never less than the truth, at most 0.05 s more.
- **A false report** is a receipt about a control, or about a command that the oracle does not see waiting.
- **Prompts.** The source `procfs` cannot read what was written to somebody else's terminal or pipe:
  under `watch` its receipts show no question, and a full screen is a `key`.
- **Baselines** get the output of the same runs, with its times.

Made by one command, which installs what is missing: `scripts/litmus`; `run` sees through `/proc`, as it
does by default, and `watch` with BPF and `--capture text`. A part of it:
`receipt-trace litmus run git 'shells/*'`. Your own harness: `receipt-trace litmus run --harness 'my-agent exec {}'`.
"""


def markdown(found: Mapping[str, Any], picture: str = "") -> str:
    """The figures as a page."""
    parts = [
        _INTRO,
        _this_run(found["catalogue"], found["load"]),
        _rates("Overall", found["overall"]),
    ]
    if picture:
        parts.append(f"![report rate by family, and latency]({picture})\n")
    for way, blocks in found["by_wiring"].items():
        parts.append(_rates(f"By wiring: {way}", blocks))
    parts += [
        _latency(found["latency"]),
        _baselines(found["baselines"]),
        _closed(found["closed_input"]),
        _families(found["by_family"]),
        _missed(found["missed"]),
        _listing("False reports", found["false"], "Every receipt where nobody waited."),
        _wrong(found["wrong"]),
        _listing(
            "False successes that were not flagged",
            found["unflagged"],
            "Under `watch`, with the last that was printed.",
        ),
        _listing(
            "Did not wait",
            found["did_not_wait"],
            "The catalogue expects a wait, and this machine gave none; not in the rates.",
        ),
        _listing(
            "Not shown",
            found["not_shown"],
            "Controls that did not do what makes them one; not in the rates.",
        ),
        _listing("Doubts", found["doubts"], "Where catalogue and oracle differ."),
        _unproved(found["unproved"]),
        _absent(found["absent"]),
    ]
    return "\n".join(part for part in parts if part)


def _this_run(c: Mapping[str, Any], load: Mapping[str, Any]) -> str:
    busy = ""
    if load["median"] is not None:
        busy = (
            f" {os.cpu_count()} processors; load average meanwhile {load['median']:.0f} (median), "
            f"{load['max']:.0f} (highest)."
        )
    return (
        f"## This run\n\n{c['commands']} commands of {c['programs']} programs that ask, of which "
        f"{c['waited']} of {c['programs_waited']} programs waited here; {c['controls']} controls, of "
        f"which {c['controls_shown']} did what makes them one; {c['families']} families, "
        f"{c['trials']} trials. Linux {platform.release()}, {platform.machine()}.{busy}\n"
    )


def _rates(title: str, blocks: Mapping[str, Mapping[str, Any]]) -> str:
    head = ["", "waits", "reported", "rate", "kind right", "program right", "question shown",
            "proved", "controls", "false reports"]  # fmt: skip
    rows = [
        [name, b["waits"], b["reported"], _percent(b["rate"]), _percent(b["kind"]),
         _percent(b["program"]), _percent(b["question"]), b["proved"], b["controls"], b["false"]]
        for name, b in blocks.items()
    ]  # fmt: skip
    return f"## {title}\n\n{_table(head, rows)}"


def _latency(found: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        [way, b["waits"], _seconds(b["median"]), _seconds(b["p95"]), _seconds(b["max"])]
        for way, b in found.items()
    ]
    head = ["", "waits", "median", "p95", "slowest"]
    return f"## From blocking to receipt\n\n{_table(head, rows)}"


def _families(families: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    rows = []
    for family, blocks in families.items():
        for way, b in blocks.items():
            if b["waits"] or b["controls"]:
                share = f"{b['reported']} of {b['waits']}" if b["waits"] else ""
                rows.append([family, way, share, _percent(b["rate"]), b["controls"], b["false"]])
    head = ["family", "through", "reported", "rate", "controls", "false reports"]
    return f"## By family\n\n{_table(head, rows)}"


def _baselines(found: Mapping[str, Mapping[str, Any]]) -> str:
    ours = found["receipt-trace"]["rate"]
    rows = [
        [name, b["reported"], _percent(b["rate"]),
         f"{b['rate'] / ours:.2f}" if ours and b["rate"] is not None else "", b["false"],
         b["controls_disturbed"]]
        for name, b in found.items()
    ]  # fmt: skip
    return (
        "## Baselines on the same runs\n\n"
        "Prompt patterns: a pause of 0.5 s after a last line that looks like a prompt. Unterminated "
        "line: 1 s of silence after a line without an end. Silence watchdog: 1 s without output, and "
        "the command is killed; its false reports are killed controls.\n\n"
        + _table(
            [
                "detector",
                "waits reported",
                "rate",
                "ratio to receipt-trace",
                "false reports",
                "controls disturbed",
            ],
            rows,
        )
    )


def _closed(found: Mapping[str, Mapping[str, int]]) -> str:
    rows = [[way, b["trials"], b["hangs"], b["checked"], b["false_success"], b["flagged"]]
            for way, b in found.items()]  # fmt: skip
    return (
        "## Closed input\n\nCommands that ask, with `/dev/null` for input, and that did not wait. A false "
        "success: exit status 0, and the asked-for action has not happened (where that can be checked). "
        "Flagged: reported as an unanswered question (BPF with `--capture text` does); what prints "
        "no question, or asks a terminal that is not there, is none.\n\n"
        + _table(["", "trials", "hang or spin", "checked", "false successes", "flagged"], rows)
    )


def _wrong(found: Sequence[Mapping[str, str]]) -> str:
    if not found:
        return ""
    rows = [
        [x["case"], x["wiring"], x["through"], x["part"], _code(x["expected"]), _code(x["said"])]
        for x in found
    ]
    return f"## Wrong or incomplete receipts\n\n{_table(['case', 'wiring', 'through', 'part', 'expected', 'said'], rows)}"


def _missed(found: Sequence[Mapping[str, str]]) -> str:
    if not found:
        return "## Missed\n\nNone.\n"
    rows = [
        [x["case"], x["wiring"], x["through"], x["reason"] or "not known", _code(x["why"])]
        for x in found
    ]
    return (
        "## Missed\n\nEvery wait that the oracle saw and that got no receipt, with the reason and "
        "what the oracle saw. What the reasons mean is in [rule.md](rule.md#what-is-missed).\n\n"
        + _table(["case", "wiring", "through", "reason", "seen"], rows)
    )


def _listing(title: str, found: Sequence[Mapping[str, str]], about: str) -> str:
    if not found:
        return f"## {title}\n\nNone.\n" if title == "False reports" else ""
    rows = [[x["case"], x["wiring"], x["through"], _code(x["why"])] for x in found]
    return f"## {title}\n\n{about}\n\n{_table(['case', 'wiring', 'through', 'seen'], rows)}"


def _unproved(found: Sequence[Mapping[str, str]]) -> str:
    if not found:
        return ""
    rows = [[x["case"], x["wiring"], x["through"]] for x in found]
    return (
        "## Not proved\n\nThe oracle saw a wait, and the answer was not seen to move the command on "
        "within the time.\n\n" + _table(["case", "wiring", "through"], rows)
    )


def _absent(found: Mapping[str, str]) -> str:
    if not found:
        return ""
    return f"## Not run\n\n{_table(['case', 'reason'], [[k, _code(v)] for k, v in found.items()])}"


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(str(cell) for cell in line)} |\n" for line in lines)


def _code(text: str) -> str:
    """Text that a program wrote, made harmless for a table."""
    safe = (
        text.encode("unicode_escape").decode("ascii")
        if not text.isascii() or not text.isprintable()
        else text
    )
    return f"`{safe.replace('`', chr(39)).replace('|', '¦')[:240]}`" if safe else ""


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


def plot(found: Mapping[str, Any], latencies: Mapping[str, Sequence[float]], path: str) -> None:
    """Draw report rate by family and the distribution of latencies.

    Raises UsageError where matplotlib is missing or the file cannot be written.
    """
    try:
        matplotlib = import_module("matplotlib")
        figure_module = import_module("matplotlib.figure")
    except ImportError:
        raise UsageError(
            "drawing needs matplotlib\ntry: pip install 'receipt-trace[litmus]'"
        ) from None
    matplotlib.rcParams.update({"svg.hashsalt": "litmus", "svg.fonttype": "none", "font.size": 8})
    families = {
        name: blocks for name, blocks in found["by_family"].items()
        if any(b["waits"] for b in blocks.values())
    }  # fmt: skip
    figure = figure_module.Figure(
        figsize=(9, 1.5 + 0.25 * max(len(families), 8)), layout="constrained"
    )
    left, right = figure.subplots(1, 2)
    ways = list(found["overall"])
    height = 0.8 / max(len(ways), 1)
    for n, way in enumerate(ways):
        rates = [100 * (b.get(way, {}).get("rate") or 0) for b in families.values()]
        left.barh([y + n * height for y in range(len(families))], rates, height, label=way)
    left.set_yticks([y + 0.4 - height / 2 for y in range(len(families))], list(families))
    left.invert_yaxis()
    left.set_xlim(0, 100)
    left.set_xlabel("waits reported, %")
    if latencies:
        right.hist(
            list(latencies.values()),
            bins=[0.9 + 0.025 * n for n in range(33)],
            label=list(latencies),
        )
    right.set_xlabel("from blocking to receipt, s")
    right.set_ylabel("waits")
    right.legend(frameon=False)
    try:
        figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path!r} cannot be drawn: {error}; give a path that ends in .svg or .png"
        ) from None
