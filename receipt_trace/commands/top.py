"""``receipt-trace top``: a live table of what ``watch`` sees."""

import argparse
import contextlib
import curses
import os
import sys
import time
from pathlib import Path

from receipt_trace import config, doctor, log
from receipt_trace.commands.service import row_of
from receipt_trace.commands.watch import name_trees
from receipt_trace.constants import NS
from receipt_trace.errors import UnobservableError, UsageError
from receipt_trace.observation import ProcessId
from receipt_trace.receipt import Receipt
from receipt_trace.sources.choice import choose
from receipt_trace.table import SORTS, Row, details, render, sort_rows
from receipt_trace.tracer import this_host
from receipt_trace.watch import Watch

_REDRAW_NS = NS // 2


def main(options: argparse.Namespace) -> int:
    """Show the table until somebody says q."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("top needs a terminal\ntry: receipt-trace watch, or receipt-trace tail")
    settings = config.load(None if options.config is None else Path(options.config))
    report = doctor.examine(bpf=False)
    if not report.usable:
        raise UnobservableError(
            f"nothing can be observed: {report.reason}\ntry: receipt-trace doctor"
        )
    log.silence()
    top = _Top()
    named = bool(options.root or options.agent)
    choice = choose(settings.source)
    watch = Watch(settings.registry, this_host(), top.take, everybody=not named, choice=choice)
    name_trees(watch, options)
    os.environ.setdefault("ESCDELAY", "25")
    curses.wrapper(top.show, watch)
    return 0


class _Top:
    """What is on the screen, and the receipts of the waits that are open."""

    def __init__(self) -> None:
        self._open: dict[str, Receipt] = {}
        self._sort = 0
        self._chosen = 0
        self._full = False
        self._asks = False
        self._drawn = 0

    def take(self, receipt: Receipt) -> None:
        """Remember the receipt of an open wait; forget it when that is resolved."""
        if receipt.event == "wait":
            self._open[receipt.wait] = receipt
        else:
            self._open.pop(receipt.wait, None)
        self._drawn = 0

    def show(self, screen: "curses.window", watch: Watch) -> None:
        """Draw until q."""
        curses.curs_set(0)
        screen.nodelay(True)
        screen.keypad(True)

        def keys() -> None:
            while (key := screen.getch()) != -1:
                self._press(key, watch)
            self._drawn = 0

        def done() -> bool:
            now = time.monotonic_ns()
            if now - self._drawn >= _REDRAW_NS:
                self._draw(screen, self._rows(watch), now)
                self._drawn = now
            return False

        watch.run(done, {0: keys}, tick=_REDRAW_NS)

    def _press(self, key: int, watch: Watch) -> None:
        if key in (ord("q"), 27):
            if self._full:
                self._full = False
            else:
                watch.stop()
        elif key == ord("s"):
            self._sort = (self._sort + 1) % len(SORTS)
        elif key in (curses.KEY_UP, ord("k")):
            self._chosen = max(0, self._chosen - 1)
        elif key in (curses.KEY_DOWN, ord("j")):
            self._chosen += 1
        elif key in (10, 13, curses.KEY_ENTER):
            self._full = not self._full and self._asks

    def _rows(self, watch: Watch) -> list[Row]:
        waits = {ProcessId(r.tree.root_pid, r.tree.root_start): r for r in self._open.values()}
        rows = [row_of(tree, waits.get(tree.root)) for tree in watch.trees]
        return sort_rows(rows, SORTS[self._sort])

    def _draw(self, screen: "curses.window", rows: list[Row], now: int) -> None:
        height, width = screen.getmaxyx()
        self._chosen = min(self._chosen, max(0, len(rows) - 1))
        receipt = rows[self._chosen].receipt if rows else None
        chosen = -1
        self._asks = receipt is not None
        if self._full and receipt is not None:
            lines = details(receipt, width - 1)
        else:
            lines = render(rows, now, width - 1, SORTS[self._sort])
            first = max(0, self._chosen - (height - 3))
            lines = lines[:2] + lines[2 + first :]
            chosen = 2 + self._chosen - first
        screen.erase()
        for y, line in enumerate(lines[:height]):
            look = curses.A_REVERSE if y == chosen else curses.A_BOLD if y == 0 else curses.A_NORMAL
            with contextlib.suppress(curses.error):  # wide characters did not all fit
                screen.addnstr(y, 0, line, width - 1, look)
        screen.refresh()
