"""The command line: arguments in, exit code and a next step out."""

import subprocess
import sys
import tomllib

import pytest

import receipt_trace
from receipt_trace.cli import build_parser, main

COMMANDS = ["run", "watch", "top", "tail", "replay", "doctor"]


@pytest.mark.parametrize("argv", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_is_help(argv, capsys):
    """On stdout, with exit code 0, and names what it is about."""
    with pytest.raises(SystemExit) as left:
        main(argv)
    out, err = capsys.readouterr()
    assert left.value.code == 0
    assert out.startswith("usage: receipt-trace")
    assert err == ""


def test_the_help_names_every_command_and_exit_code(capsys):
    """Nothing has to be guessed."""
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    assert [name for name in COMMANDS if f"\n    {name} " not in out] == []
    assert [code for code in ("64", "69", "70", "75", "77") if code not in out] == []


def test_the_version_is_that_of_the_package(capsys):
    """In one place."""
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"receipt-trace {receipt_trace.__version__}\n"


BAD = {
    "no command": ([], "receipt-trace --help"),
    "an unknown command": (["wtach"], "receipt-trace --help"),
    "an unknown flag": (["watch", "--rot", "1"], "receipt-trace"),
    "a shortened flag": (["watch", "--verb"], "receipt-trace"),
    "an unknown wiring": (["run", "--wiring", "tyt", "true"], "receipt-trace run --help"),
    "an unknown reaction": (["run", "--on-wait", "kill", "true"], "receipt-trace run --help"),
    "no time": (["run", "--timeout", "soon", "true"], "receipt-trace run --help"),
    "a time of nothing": (["run", "--timeout", "0", "true"], "receipt-trace run --help"),
    "a time that is no number": (["run", "--timeout", "nan", "true"], "receipt-trace run --help"),
    "an endless time": (["run", "--timeout", "inf", "true"], "receipt-trace run --help"),
    "an unknown source": (["run", "--source", "ebpf", "true"], "receipt-trace run --help"),
    "nothing to run": (["run"], "receipt-trace run --help"),
    "nothing to run after the dashes": (["run", "--"], "receipt-trace run --help"),
    "a process that is no number": (["watch", "--root", "x"], "receipt-trace watch --help"),
    "process 0": (["watch", "--root", "0"], "receipt-trace watch --help"),
    "a negative process": (["watch", "--agent", "-5"], "receipt-trace"),
    "a process of top that is no number": (["top", "--root", "x"], "receipt-trace top --help"),
    "no socket": (["tail", "--socket"], "receipt-trace tail --help"),
    "an argument of tail": (["tail", "receipts"], "receipt-trace"),
    "no terminal": (["top"], "receipt-trace watch, or receipt-trace tail"),
    "no file": (["replay"], "receipt-trace replay --help"),
    "an argument too many": (["doctor", "now"], "receipt-trace"),
}


@pytest.mark.parametrize(("argv", "step"), BAD.values(), ids=BAD)
def test_bad_usage_is_64_with_a_next_step(argv, step, capsys):
    """On stderr, every line with our name, the last one a command to try."""
    assert main(argv) == 64
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert all(line.startswith("receipt-trace: ") for line in lines)
    assert lines[-1].startswith(f"receipt-trace: try: {step}")


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "1e12"])
def test_a_wrong_value_is_repeated(value, capsys):
    """What was seen, and what is expected."""
    main(["run", f"--timeout={value}", "true"])
    assert f"'{value}' is not a number of seconds above 0" in capsys.readouterr().err


def test_the_options_of_the_command_are_its_own():
    """What stands after the command is not looked at."""
    options = build_parser().parse_args(["run", "--json", "--", "ls", "--wiring", "x", "--json"])
    assert options.argv in (
        ["ls", "--wiring", "x", "--json"],
        ["--", "ls", "--wiring", "x", "--json"],
    )
    assert (options.json, options.wiring) == (True, None)
    options = build_parser().parse_args(["run", "ls", "--json"])
    assert (options.argv, options.json) == (["ls", "--json"], False)


def test_processes_may_be_named_in_both_ways():
    """Several after one flag, or the flag again."""
    options = build_parser().parse_args(["watch", "--root", "1", "2", "--root", "3"])
    assert options.root == [1, 2, 3]


def test_a_trace_that_is_not_there_is_64_with_a_next_step(capsys, tmp_path):
    """It names the file and how one is made."""
    assert main(["replay", str(tmp_path / "nothere")]) == 64
    err = capsys.readouterr().err
    assert "nothere' cannot be read: No such file or directory" in err
    assert "watch --record" in err


def test_what_a_message_repeats_cannot_act_on_the_terminal(capsys):
    """A file name may hold anything."""
    assert main(["replay", "\x1b[31mred\n\u202e"]) == 64
    err = capsys.readouterr().err
    assert [c for c in err if not c.isprintable() and c != "\n"] == []
    assert "red" in err


def test_a_wrong_configuration_is_64(capsys, tmp_path):
    """Before anything is watched."""
    path = tmp_path / "config.toml"
    path.write_text("receits = 1")
    assert main(["watch", "--config", str(path)]) == 64
    assert main(["watch", "--check", "--config", str(path)]) == 64
    assert capsys.readouterr().err.count(f"{path}: receits is not known") == 2


def test_receipts_that_cannot_be_written_are_64(capsys, tmp_path):
    """Before the command is started."""
    made = tmp_path / "made"
    argv = ["run", "--receipts", str(tmp_path / "no" / "receipts"), "--", "touch", str(made)]
    assert main(argv) == 64
    assert not made.exists()
    assert "mkdir -p" in capsys.readouterr().err


def test_the_known_agents_are_printed_as_configuration(capsys):
    """Each entry can be copied from there."""
    assert main(["watch", "--agents"]) == 0
    printed = tomllib.loads(capsys.readouterr().out)["agent"]
    assert {"claude-code", "codex", "gemini-cli", "mini-swe-agent"} <= set(printed)


@pytest.mark.parametrize(
    "module", ["receipt_trace", "receipt_trace.cli", "receipt_trace.commands.run"]
)
def test_starting_loads_nothing_heavy(module):
    """A command that is short should not pay for what it does not need."""
    code = (
        f"import sys, {module}\n"
        "print([m for m in ('pyroute2', 'pyte', 'structlog', 'asyncio') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_the_package_can_be_run():
    """Python -m receipt_trace is the command line."""
    found = subprocess.run(
        [sys.executable, "-m", "receipt_trace", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == f"receipt-trace {receipt_trace.__version__}\n"


def test_every_public_name_is_there():
    """And nothing else is promised."""
    assert [name for name in receipt_trace.__all__ if getattr(receipt_trace, name) is None] == []
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = receipt_trace.nothing
