"""Debian's kernels, as their own types describe them, and what our programs make of them.

The kernels come from the registry this machine installs from (scripts/debian.py) and are kept in
the user's cache; none is booted. ``RECEIPT_TRACE_UPDATE_GOLDEN=1`` writes the golden file
again, with the releases of today; look at the difference.
"""

import base64
import json
import os
import re
import struct
import subprocess
from pathlib import Path

import debian
import pytest

import receipt_trace
from receipt_trace.kernel.btf import Btf
from receipt_trace.kernel.build import PROGRAMS
from receipt_trace.kernel.fields import FIELDS, resolve

CACHE = debian.cache_folder()  # the caller's own: later the home is another
GOLDEN = Path(__file__).parent / "kernels.json"
ROOT = Path(receipt_trace.__file__).resolve().parents[1]
UPDATE = bool(os.environ.get("RECEIPT_TRACE_UPDATE_GOLDEN"))

SERIES = ("5.10", "6.1", "6.12", "6.16", "6.18", "7")
"""Between each and the next a field that we read has moved or changed its name; 7: the newest."""

TOLD = (  # of what moved most between kernels
    "task_struct.__state", "task_struct.state", "task_struct.stack", "task_struct.pid",
    "task_struct.on_cpu", "file.f_inode", "file.f_op", "file.private_data",
    "tty_struct.ctrl.pgrp", "tty_struct.pgrp", "tty_struct.read_wait", "tty_struct.disc_data",
    "tty_struct.link", "tty_driver.type", "pipe_inode_info.rd_wait", "pipe_inode_info.head",
    "pipe_inode_info.bufs", "pipe_inode_info.tmp_page", "eppoll_entry.wait", "eppoll_entry.base",
    "epitem.ep", "epitem.event", "eventpoll.wq", "poll_table_entry.key",
)  # fmt: skip
SIZES = ("n_tty_data", "pipe_buffer", "pt_regs")
TRACEPOINTS = (
    "sched_switch", "sched_process_fork", "sched_process_exec", "sched_process_exit",
)  # fmt: skip


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """The registry; without one there is nothing to be tested here."""
    try:
        found = debian.Registry(tmp_path_factory.mktemp("registry"))
        assert found.kernels
    except debian.DebianError as error:
        pytest.skip(str(error))
    return found


@pytest.fixture(scope="module")
def kernels(registry):
    """(release, types) by series, or the reason why one is not there."""
    found = {}
    for series in SERIES:
        kernel = debian.choose(registry.kernels, series)
        if kernel is None:
            found[series] = f"the registry has no kernel {series}"
            continue
        try:
            found[series] = (kernel.release, Btf(debian.fetch_btf(registry, kernel, CACHE)))
        except debian.DebianError as error:
            found[series] = str(error)
    return found


@pytest.fixture(params=SERIES)
def kernel(request, kernels):
    """One of them."""
    found = kernels[request.param]
    if isinstance(found, str):
        pytest.skip(found)
    return found


def test_the_registry_that_answers_gives_a_kernel(kernels):
    """Else all that follows would be skipped, and nobody would notice."""
    assert any(isinstance(found, tuple) for found in kernels.values()), kernels


def test_everything_is_found_in_every_kernel(kernel):
    """Every field, by one of its names; no field is lost; every argument and iterator."""
    _, btf = kernel
    layout = resolve(btf)
    assert layout.missing == ()
    assert layout.lost == ()
    assert all(number > 0 for number in layout.functions.values())


def values():
    """The fields that the C programs read as a value: whatever stands last in a GET(…, field)."""
    found = set()
    for path in (ROOT / "bpf").glob("*.[ch]"):
        text = path.read_text()
        for start in re.finditer(r"(?<!define )\bGET\(", text):
            depth, end = 1, start.end()
            while depth:
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                end += 1
            found.add(re.search(r"(\w+)\)$", text[:end])[1])
    return found


def test_every_field_has_a_size_the_programs_can_read(kernel):
    """They read a value into 8 bytes, and walk the entries of a poll one after the other."""
    _, btf = kernel
    found = resolve(btf).definitions
    sizes = {need.name: found[f"BYTES_{need.name}"] for need in FIELDS}
    read = values()
    assert len(read) > 50
    assert read <= set(sizes)
    assert {name: sizes[name] for name in read if sizes[name] not in {1, 2, 4, 8}} == {}
    assert sizes["task_comm"] == 16
    assert sizes["ldisc_buffer"] == 4096
    assert sizes["watched_events"] == 4
    assert sizes["signal_pids"] >= 4 * 8
    assert sizes["sighand_action"] == 64 * found["SIZE_k_sigaction"]
    assert sizes["poll_inline"] > 0
    assert sizes["poll_inline"] % found["SIZE_poll_table_entry"] == 0
    assert found["SIZE_pt_regs"] == 168


def test_prototypes_tell_where_the_tasks_are(kernel):
    """By type; the number of arguments differs."""
    _, btf = kernel
    found = resolve(btf).definitions
    for name in TRACEPOINTS:
        assert "task_struct*" in btf.tracepoint(name)
    for name, tracepoint in (
        ("exec_task", "sched_process_exec"),
        ("exit_task", "sched_process_exit"),
    ):
        assert btf.tracepoint(tracepoint)[found[f"ARG_{name}"]] == "task_struct*"
    assert found["ARG_fork_parent"] < found["ARG_fork_child"]


def told(btf):
    """What the golden file keeps of a kernel."""
    places = {path: (found := btf.field(path)) and f"{found.at}/{found.size}" for path in TOLD}
    return {
        **{path: place for path, place in places.items() if place},
        **{f"sizeof {name}": btf.size(name) for name in SIZES},
        **{name: ", ".join(btf.tracepoint(name)) for name in TRACEPOINTS},
    }


def test_what_is_read_is_what_was_read_before(kernel, request):
    """Places, sizes and prototypes are those of the golden file, exactly in the same release."""
    series = request.node.callspec.params["kernel"]
    release, btf = kernel
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if UPDATE:
        golden[series] = {"release": release, **told(btf)}
        GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")
    expected = dict(golden[series])
    before = expected.pop("release")
    if release != before and told(btf) != expected:
        pytest.skip(f"fields have moved between {before} and {release}; update the golden file")
    assert told(btf) == expected


# -- the programs, compiled for kernels that are older than most machines' own ------------------

IN_CI = os.environ.get("CI", "").lower() not in {"", "0", "false"}
SYSTEM_PYTHON = "/usr/bin/python3"  # bcc is a package of the distribution
BUILD = """
import json, pathlib, sys
sys.path.append(sys.argv[1])
from receipt_trace.kernel.build import build
folder, btf = map(pathlib.Path, sys.argv[2:])
json.dump(build(folder, btf.read_bytes()), sys.stdout)
"""
JUMP, CALL, EXIT = 0x00, 0x80, 0x90  # the upper half of an operation of the classes 5 and 6


def compiled(kernel):
    """The instructions of every program, compiled for a kernel that does not run here."""
    if os.geteuid():
        pytest.skip("only root may create the maps that bcc compiles against")
    release, _ = kernel
    argv = [SYSTEM_PYTHON, "-I", "-c", BUILD, ROOT, ROOT / "bpf", CACHE / f"{release}.btf"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    if "No module named 'bcc'" in done.stderr:
        reason = "bcc is not installed; scripts/setup --test"
        (pytest.fail if IN_CI else pytest.skip)(reason)
    assert done.returncode == 0, done.stderr
    programs = json.loads(done.stdout)["programs"]
    return {name: base64.b64decode(program["code"]) for name, program in programs.items()}


def falls_back(code):
    """Where a loop falls through into its own beginning, without a jump.

    The walk is that of check_cfg in kernel/bpf/verifier.c before 6.7 (10e14e9652bf): it takes a loop for one that
    ends only when a jump closes it, and says of others "back-edge from insn 677 to 678".
    """
    ways = []
    for at, (operation, _, offset, _) in enumerate(struct.iter_unpack("=BBhi", code)):
        kind, jump = operation & 0xF0, operation & 7 in {5, 6}
        if not jump or kind == CALL:
            ways.append([(at + 1, False)])
        elif kind == EXIT:
            ways.append([])
        else:
            ways.append([(at + 1, True)] * (kind != JUMP) + [(at + 1 + offset, True)])
    found, entered, left = [], {0}, set()
    path = [(0, iter(ways[0]))]
    while path:
        at, rest = path[-1]
        for to, jump in rest:
            if to not in entered:
                entered.add(to)
                path.append((to, iter(ways[to])))
                break
            if to not in left and not jump:
                found.append((at, to))
        else:
            left.add(at)
            path.pop()
    return found


@pytest.mark.parametrize("kernel", ["5.10", "6.1"], indirect=True)
def test_programs_compile_to_loops_that_older_kernels_take(kernel):
    """A kernel that refuses one of them runs nowhere near; its rule is known."""
    programs = compiled(kernel)
    assert set(programs) == set(PROGRAMS)
    assert {name: found for name, code in programs.items() if (found := falls_back(code))} == {}


def instruction(operation, offset=0):
    """One instruction, as far as its way matters."""
    return struct.pack("=BBhi", operation, 0, offset, 0)


def test_the_rule_of_older_kernels_is_known():
    """A loop closed by a jump is fine, one that falls through is not."""
    move, jump, branch, leave = 0xB7, 0x05, 0x15, 0x95
    closed = [(move, 0), (move, 0), (branch, -2), (leave, 0)]
    falls = [(jump, 2), (branch, 3), (move, 0), (move, 0), (jump, -4), (leave, 0)]
    assert falls_back(b"".join(instruction(*one) for one in closed)) == []
    assert falls_back(b"".join(instruction(*one) for one in falls)) == [(2, 3)]
