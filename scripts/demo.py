"""The demonstration: a watcher, a stand-in agent, and whether the right commands are reported."""

import argparse
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

_DURATION_S: Final = 8.0  # the slow build speaks after six: it must have been left alone till then
_READY_S: Final = 5.0

_WIRING: Final = {
    "tty": "a terminal of its own",
    "file": "an open pipe, output to a file",
    "socket": "an open socket, output to a file",
    "pipes": "pipes, and a request now and then",
}


def main() -> int:
    """Run it; 0 if exactly the commands that ask were reported."""
    argparse.ArgumentParser(prog="scripts/watch --demo", description=__doc__).parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="receipt-trace-demo-") as folder:
        try:
            return _demonstrate(Path(folder))
        except KeyboardInterrupt:
            return 130
        except BrokenPipeError:  # nobody reads us any more, and Python would try once again
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return 141


def _demonstrate(folder: Path) -> int:
    receipts, log = folder / "receipts.jsonl", folder / "watch.log"
    with contextlib.ExitStack() as stack:
        with log.open("wb") as stderr:
            watcher = _start(
                Path(sys.prefix, "bin/receipt-trace"),
                "watch",
                *("--config", os.devnull, "--socket", "off"),  # beside the service of the host
                *("--receipts", receipts),
                stderr=stderr,
            )
        stack.callback(_stop, watcher)
        _await(watcher, receipts, log)
        agent = _start(sys.executable, Path(__file__).with_name("demo_agent.py"))
        stack.callback(_stop, agent)
        assert agent.stdout is not None
        calls = json.loads(agent.stdout.readline() or b"[]")
        if not calls:
            return _failed("the stand-in agent ended before it had started anything, see above")
        _legend(calls)
        if not _follow(watcher):
            return _failed(f"the watcher ended by itself; its log:\n{log.read_text()}")
        _stop(watcher)
        heard = json.loads(agent.communicate()[0])  # closes its input, which ends it
        right = _summary(calls, _waits(receipts), heard)
        if not right:
            print(f"\nthe watcher's log:\n{log.read_text()}\ntry: receipt-trace doctor")
        return 0 if right else 1


def _start(*argv: str | Path, stderr: Any = None) -> "subprocess.Popen[bytes]":
    """A session of its own: Ctrl-C reaches us alone, and we end everything in order."""
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        bufsize=0,
        start_new_session=True,
    )


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _await(watcher: "subprocess.Popen[bytes]", receipts: Path, log: Path) -> None:
    """Until the watcher has opened its file: it looks at everybody right after that."""
    end = time.monotonic() + _READY_S
    while not receipts.exists():
        if watcher.poll() is not None or time.monotonic() > end:
            sys.exit(_failed(f"the watcher did not start; its log:\n{log.read_text()}"))
        time.sleep(0.02)


def _failed(what: str) -> int:
    print(f"demo: {what}\ntry: receipt-trace doctor", file=sys.stderr)
    return 1


def _legend(calls: list[dict[str, Any]]) -> None:
    print(f"A stand-in agent runs {len(calls)} commands, and nobody answers any of them.\n")
    for heading, asks in (("These ask:", True), ("These only look as if they asked:", False)):
        print(heading)
        for call in calls:
            if call["asks"] == asks:
                print(f"  {call['label']:<13}{call['text']:<45}{_WIRING[call['wiring']]}")
    print("\nWhat the watcher says:", flush=True)


def _follow(watcher: "subprocess.Popen[bytes]") -> bool:
    """Show the watcher's lines as they come; returns whether it is still there at the end."""
    assert watcher.stdout is not None
    began = time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(watcher.stdout, selectors.EVENT_READ)
        while (left := began + _DURATION_S - time.monotonic()) > 0:
            for _ in selector.select(left):
                line = watcher.stdout.readline()  # it writes whole lines
                if not line:
                    return False
                passed = time.monotonic() - began
                print(f"  {passed:4.1f} s  {line.decode(errors='replace').rstrip()}", flush=True)
    return True


def _waits(receipts: Path) -> dict[str, dict[str, Any]]:
    """The first receipt of each label."""
    waits: dict[str, dict[str, Any]] = {}
    for line in receipts.read_text().splitlines():
        receipt = json.loads(line)
        if receipt["event"] == "wait":
            waits.setdefault(receipt["tree"]["label"], receipt)
    return waits


def _summary(
    calls: list[dict[str, Any]], waits: dict[str, dict[str, Any]], heard: dict[str, int]
) -> bool:
    """The closing table. ``after`` counts from what the agent last heard of one that asks."""
    print(f"\n{'command':<13}{'asks':<6}{'reported':<10}{'kind':<8}{'after':<8}question")
    reported = {True: 0, False: 0}
    for call in calls:
        label, asks = call["label"], call["asks"]
        receipt = waits.get(label)
        row = f"{label:<13}{_yes(asks):<6}{_yes(receipt is not None):<10}"
        if receipt is not None:
            reported[asks] += 1
            since = (heard[label] if asks else 0) or call["started"]
            after = (receipt["monotonic_ns"] - since) / 1e9
            row += f"{receipt['input']['kind']:<8}{f'{after:.1f} s':<8}{_question(receipt)}"
        print(row.rstrip())
    asking = sum(call["asks"] for call in calls)
    others = len(calls) - asking
    print(
        f"\n{reported[True]} of {asking} asked and were reported, "
        f"{reported[False]} of {others} others were."
    )
    return reported == {True: asking, False: 0}


def _question(receipt: dict[str, Any]) -> str:
    """The last line of the prompt. What is on a terminal is not read from outside of it."""
    lines = receipt["prompt"]["text"].strip().splitlines()
    return repr(lines[-1]) if lines else f"(on {receipt['input']['target']})"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


if __name__ == "__main__":
    sys.exit(main())
