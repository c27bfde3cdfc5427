"""The command line: arguments in, exit code out. Each command loads only what it needs."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from receipt_trace import __version__
from receipt_trace.constants import ATTACH, CAPTURE, SOURCES
from receipt_trace.errors import ReceiptTraceError, UsageError

_EXIT_CODES = """\
exit codes:
  0 fine   64 bad usage or configuration   69 nothing could be observed
  70 our own fault   77 permission denied
  run: the command's own; 75 ended because of a wait, 124 by --timeout, 126 it cannot be
  executed, 127 it was not found
"""

_RUN = """\
Run a command with an input that stays open, pass its output through unchanged, and
write a receipt when it waits for input that nobody gives.

The command gets a session of its own. Under `tty` it gets a terminal of its own (of
the size of the caller's, or 80x24); what a person types at the caller's terminal is
passed on unread. Under `pipe` its input is a pipe that stays open: what comes on the
caller's input is passed on, and so is its end once something came; an input closed
from the start (</dev/null) is nobody, and the command's stays open. Under `null` its
input is closed.

The command is signalled only when --on-wait interrupt or --timeout asks for it, and when
receipt-trace gets a signal: those (INT, TERM, QUIT, HUP, TSTP, CONT, WINCH) are handed on. If
receipt-trace itself is killed, the command is hung up on (SIGHUP, and the end of its
input), as when a terminal window is closed. When the command ends, receipt-trace ends; what
it left in the background goes on with nobody to write to (under `tty` it is hung up on).
"""
_RUN_END = """\
exit status:
  that of the command (128+N for signal N); 75 when --on-wait interrupt ended it, 124
  when --timeout did, 126 when it cannot be executed, 127 when it is not found, 64 for
  bad usage

examples:
  receipt-trace run -- apt-get remove nano
  receipt-trace run --wiring tty --on-wait interrupt -- git rebase -i HEAD~3
  receipt-trace run --receipts fd:3 -- make deploy 3>receipts.jsonl
"""

_WATCH = """\
Watch the tool calls of every agent on this host and report the ones that wait for
input. Reports only: no process is signalled, stopped, traced or written to.

Agents are found by what they are known to look like (`receipt-trace watch --agents`
lists them). Anybody can mark a tool call: a process with RECEIPT_TRACE=<label> in its
environment, whose parent has not the same, is the root of one.

With --root or --agent nothing else is followed, unless --all is given too.

Receipts are readable lines on stdout and, with --receipts, JSON Lines; logs go to stderr.
A slow or failing place for receipts delays neither the others nor the watcher.

SIGHUP opens the receipts file again and reads the configuration again; a wrong one is
refused, and the one before stays.
"""
_WATCH_END = """\
examples:
  receipt-trace watch                               every agent this user may look at
  receipt-trace watch --receipts /var/log/receipt-trace.jsonl
  receipt-trace watch --root 4711 --once            one tree, until its first receipt
  receipt-trace watch --metrics 127.0.0.1:9737      also metrics, and a page for a browser
  receipt-trace watch --record trace.jsonl          and later: receipt-trace replay trace.jsonl
  RECEIPT_TRACE=deploy make deploy                  a marked tool call
"""

_TOP = """\
Watch this host like `receipt-trace watch` and show a live table: every tool call, its
agent, how long it has run, and what it waits for. Reports only.

keys:
  q quit   s sort (waits first, age, agent)   ↑ ↓ or k j choose   enter show one in full
"""

_TAIL = """\
Follow the receipts of a running `receipt-trace watch` over its socket. You see the tool
calls of your own user; root sees all. Ends with 69 when there is no watcher, or it ends.
Without --socket it is the watcher of this user, or, where there is none, that of the host.
"""

_REPLAY = """\
Run the rule over a trace that `receipt-trace watch --record FILE` wrote, and write the
receipts it gives: the same ones, with the same ids, as long as the rule is the same.
"""

_DOCTOR = """\
Tell what this host allows, what is used instead where it does not, and how to get more.
Exits with 69 when nothing could be observed at all.
"""

_LITMUS = """\
Measure how good detection is, on a catalogue of commands that ask for input and of
controls that do not: each under a closed input, an open pipe and a silent terminal, through
`receipt-trace run` and under `receipt-trace watch` below a stand-in agent. An oracle of
its own says who really waits, and an answer proves it.
"""
_LITMUS_LIST = """\
List the cases: what each asks for on a terminal (or that it is a control), the wirings in
which it is run, its command, and which of its packages are missing here.
"""
_LITMUS_INSTALL = """\
Install the programs that cases need and that are missing here: Debian packages with apt-get (as
root), Python and Node packages into a cache of the suite's own. What could not be installed
is named, and the exit code is then 1; its cases are counted as absent in a run.
"""
_LITMUS_RUN = """\
Run cases and write one line of JSON for each trial. What is missing here is installed only
with --install; a case that could not run is counted as such. Commands run in a fresh
directory with a bare environment, some as the user nobody (for which root is needed), and
talk to servers on loopback only. Everything they leave running is ended.

A summary goes to stderr: every wait that was missed, every false report, every place where
the catalogue and the oracle differ. Exits with 0 whatever the figures are.

With --harness the commands that ask run through your own command line, which gets an open
pipe for its input; what is told is the input that it gives them, who does not end, and who
ends with status 0 without having done what was asked for.
"""
_LITMUS_REPORT = """\
Make the page of docs/litmus.md from results: rates, latencies, baselines, closed input,
and every miss, false report and doubt by name.
"""
_LITMUS_END = """\
examples:
  receipt-trace litmus list
  receipt-trace litmus install --quick              what the representative subset needs
  receipt-trace litmus run --quick                  that subset
  receipt-trace litmus run --install coreutils 'git/*'
  receipt-trace litmus run --harness 'timeout 60 bash -c {} </dev/null'
  receipt-trace litmus report litmus.jsonl --plot litmus.svg
"""


class _Parser(argparse.ArgumentParser):
    """argparse, with our exit code and a next step in every complaint."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}\ntry: {self.prog} --help")


def build_parser(first: str = "") -> argparse.ArgumentParser:
    """The command line; if its first word is known to be a command, only with that one."""
    parser = _Parser(
        prog="receipt-trace",
        description="See from the kernel that a command waits for input nobody gives.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"receipt-trace {__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", parser_class=_Parser, required=True, prog="receipt-trace"
    )
    adders = {
        "run": _add_run,
        "watch": _add_watch,
        "top": _add_top,
        "tail": _add_tail,
        "replay": _add_replay,
        "doctor": _add_doctor,
        "litmus": _add_litmus,
    }
    for add in [adders[first]] if first in adders else adders.values():
        add(commands)
    return parser


def _command(
    commands: "argparse._SubParsersAction[_Parser]", name: str, summary: str, text: str, end: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=summary,
        description=text,
        epilog=end,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(handler=f"receipt_trace.commands.{name}")
    return parser


def _add_run(commands: "argparse._SubParsersAction[_Parser]") -> None:
    parser = _command(commands, "run", "run one command under observation", _RUN, _RUN_END)
    parser.usage = "receipt-trace run [OPTION…] [--] COMMAND [ARG…]"
    parser.add_argument(
        "--wiring",
        choices=("tty", "pipe", "null"),
        help="the command's input (default: tty if the caller has a terminal, else pipe)",
    )
    parser.add_argument(
        "--on-wait",
        choices=("report", "interrupt"),
        default="report",
        help="report: only write the receipt (default); interrupt: look once more, then end "
        "the command's whole tree (SIGINT, SIGTERM, SIGKILL) and exit with 75",
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        metavar="S",
        help="end the command after S seconds (SIGTERM, then SIGKILL) and exit with 124",
    )
    parser.add_argument(
        "--receipts",
        metavar="PATH|-|fd:N",
        help="write receipts there as JSON Lines, and nothing to stderr",
    )
    parser.add_argument(
        "--json", action="store_true", help="write receipts to stderr as JSON Lines"
    )
    parser.add_argument("--label", help="name this tool call in its receipts (tree.label)")
    _add_source(parser, "procfs, which starts at once")
    parser.add_argument(
        "argv",
        nargs=argparse.REMAINDER,
        metavar="COMMAND [ARG…]",
        help="the command and its arguments",
    )


def _add_watch(commands: "argparse._SubParsersAction[_Parser]") -> None:
    parser = _command(commands, "watch", "watch every agent on this host", _WATCH, _WATCH_END)
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="configuration (default: /etc/receipt-trace/config.toml if it exists)",
    )
    parser.add_argument(
        "--root",
        type=_pid,
        nargs="+",
        action="extend",
        default=[],
        metavar="PID",
        help="follow the tree of this process",
    )
    parser.add_argument(
        "--agent",
        type=_pid,
        nargs="+",
        action="extend",
        default=[],
        metavar="PID",
        help="this process is a harness: each child of it is a tool call",
    )
    parser.add_argument(
        "--all", action="store_true", help="with --root or --agent: every agent that is found, too"
    )
    parser.add_argument("--receipts", metavar="PATH|-|fd:N", help="also write JSON Lines there")
    parser.add_argument(
        "--json", action="store_true", help="JSON Lines on stdout instead of readable lines"
    )
    parser.add_argument(
        "--record",
        metavar="FILE",
        help="write everything that was observed, for `receipt-trace replay`",
    )
    parser.add_argument(
        "--socket",
        metavar="PATH|off",
        help="stream receipts to local subscribers there (default: /run/receipt-trace/stream.sock "
        "for root, $XDG_RUNTIME_DIR/receipt-trace.sock for others); they see their own processes, "
        "root sees all",
    )
    parser.add_argument(
        "--metrics",
        metavar="ADDRESS:PORT|off",
        help="serve metrics for Prometheus there (/metrics, /healthz, /readyz) and, on loopback, a "
        "status page (/); port 0: any that is free, the log says which (default: off)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="write no receipts to stdout")
    parser.add_argument("--once", action="store_true", help="end after the first receipt")
    parser.add_argument(
        "--check",
        action="store_true",
        help="check the configuration and what the host allows, then exit",
    )
    parser.add_argument(
        "--agents", action="store_true", help="list the agents that are known, then exit"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="log every tree too")
    _add_source(parser, "bpf where the host allows it, else procfs")


def _add_top(commands: "argparse._SubParsersAction[_Parser]") -> None:
    parser = _command(commands, "top", "live table of agents, tool calls and waits", _TOP, "")
    parser.add_argument(
        "--root", type=_pid, nargs="+", action="extend", default=[], metavar="PID",
        help="only the tree of this process",
    )  # fmt: skip
    parser.add_argument(
        "--agent", type=_pid, nargs="+", action="extend", default=[], metavar="PID",
        help="only the tool calls of this harness",
    )  # fmt: skip
    parser.add_argument("--config", metavar="FILE", help="configuration, as for watch")


def _add_tail(commands: "argparse._SubParsersAction[_Parser]") -> None:
    parser = _command(commands, "tail", "follow the receipts of a running watcher", _TAIL, "")
    parser.add_argument(
        "--socket", metavar="PATH", help="the watcher's socket (default: see above)"
    )
    parser.add_argument("--json", action="store_true", help="JSON Lines instead of readable lines")


def _add_replay(commands: "argparse._SubParsersAction[_Parser]") -> None:
    parser = _command(commands, "replay", "run the rule over a recorded trace", _REPLAY, "")
    parser.add_argument("file", metavar="FILE", help="what `watch --record` wrote, - for stdin")
    parser.add_argument("--text", action="store_true", help="readable lines instead of JSON Lines")


def _add_doctor(commands: "argparse._SubParsersAction[_Parser]") -> None:
    parser = _command(commands, "doctor", "what this host allows", _DOCTOR, "")
    parser.add_argument("--json", action="store_true", help="the same as one JSON object")


def _add_litmus(commands: "argparse._SubParsersAction[_Parser]") -> None:
    parser = _command(commands, "litmus", "how good detection is, measured", _LITMUS, _LITMUS_END)
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", required=True, parser_class=_Parser
    )
    listing = _action(actions, "list", "the cases", _LITMUS_LIST)
    installing = _action(actions, "install", "what cases need", _LITMUS_INSTALL)
    running = _action(actions, "run", "run cases and write results", _LITMUS_RUN)
    for action in (listing, installing, running):
        action.add_argument(
            "pattern", nargs="*", metavar="CASE",
            help="FAMILY or FAMILY/NAME, with * and ? (default: all)",
        )  # fmt: skip
        action.add_argument("--quick", action="store_true", help="only the representative subset")
    listing.add_argument("--json", action="store_true", help="one JSON object for each case")
    running.add_argument(
        "--through", action="append", choices=("run", "watch"),
        help="through `receipt-trace run`, or under `watch` below a stand-in agent; may be given "
        "again (default: both)",
    )  # fmt: skip
    running.add_argument(
        "--wiring", action="append", choices=("tty", "pipe", "null"),
        help="only this input; may be given again (default: all that apply)",
    )  # fmt: skip
    running.add_argument(
        "--harness", metavar="'CMD {}'",
        help="run the commands through this command line instead; {} becomes the command",
    )  # fmt: skip
    running.add_argument(
        "--install", action="store_true",
        help="install what is missing first, as `litmus install` does",
    )  # fmt: skip
    running.add_argument(
        "--parallel", type=_count, default=8, metavar="N",
        help="so many at once (default: 8; fewer give truer latencies)",
    )  # fmt: skip
    running.add_argument(
        "--out", default="litmus.jsonl", metavar="FILE",
        help="write the results there (default: litmus.jsonl)",
    )  # fmt: skip
    _add_source(running, "as of run and watch")
    reporting = _action(actions, "report", "tables from results", _LITMUS_REPORT)
    reporting.add_argument("file", nargs="+", metavar="FILE", help="what `litmus run` wrote")
    reporting.add_argument(
        "--timing", action="append", default=[], metavar="FILE",
        help="take latencies from these results, of a run with fewer at once",
    )  # fmt: skip
    reporting.add_argument("--json", action="store_true", help="figures as JSON, not Markdown")
    reporting.add_argument("--out", metavar="FILE", help="write there (default: stdout)")
    reporting.add_argument("--plot", metavar="FILE", help="also draw them: .svg or .png")


def _action(
    actions: "argparse._SubParsersAction[_Parser]", name: str, summary: str, text: str
) -> argparse.ArgumentParser:
    return actions.add_parser(
        name,
        help=summary,
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _add_source(parser: argparse.ArgumentParser, auto: str) -> None:
    parser.add_argument(
        "--source",
        choices=SOURCES,
        help=f"where observations come from (auto: {auto})",
    )
    parser.add_argument(
        "--attach",
        choices=ATTACH,
        default="snapshot",
        help="how BPF sees calls: snapshot hooks nobody (default); syscalls attaches to the calls "
        "that read and wait, reacts sooner, and makes every such call on the host slower",
    )
    parser.add_argument(
        "--capture",
        choices=CAPTURE,
        default="waits",
        help="text: BPF also sees what tool calls print into pipes and sockets, and questions that "
        "met a closed input; it attaches to the calls that read and write (default: waits)",
    )


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def _count(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) <= 256:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 256")
    return int(text)


def _pid(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a process number")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. Never raises for a person's mistake."""
    words = sys.argv[1:] if argv is None else argv
    parser = build_parser(words[0] if words else "")
    try:
        options, unknown = parser.parse_known_args(words)
        if unknown:
            raise UsageError(
                f"{' '.join(unknown)}: no such option\ntry: receipt-trace {options.command} --help"
            )
        code: int = import_module(options.handler).main(options)
        return code
    except ReceiptTraceError as error:
        lines = str(error).splitlines()
        print("\n".join(f"receipt-trace: {_safe(line)}" for line in lines), file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        return 141  # 128 + SIGPIPE: whoever read our output is gone
    except KeyboardInterrupt:
        return 130
    except Exception:  # noqa: BLE001  (a fault of ours is told as one, with all there is to report)
        import traceback  # noqa: PLC0415

        print("receipt-trace: a fault of our own; please report this:", file=sys.stderr)
        print("\n".join(map(_safe, traceback.format_exc().splitlines())), file=sys.stderr)
        return ReceiptTraceError.exit_code


def _safe(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def entry() -> NoReturn:
    """The console script: run, and leave at once.

    Taking the interpreter down in good order takes as long as ``run`` itself does for a
    short command, and there is nothing left to do in it.
    """
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
