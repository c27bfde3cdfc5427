"""Who may import whom: read off the source, not off a running program."""

import ast
from importlib.resources import files

import pytest

CORE = files("receipt_trace")
COMMANDS = "commands/"


def sources(directory=CORE, prefix=""):
    """(path inside the package, source) of every module."""
    for entry in sorted(directory.iterdir(), key=lambda e: e.name):
        if entry.is_dir() and not entry.name.startswith((".", "_")):
            yield from sources(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".py"):
            yield f"{prefix}{entry.name}", entry.read_text()


def imports(source, *, top=False):
    """Every module that is imported, anywhere or only at the top."""
    tree = ast.parse(source)
    found = set()
    for node in tree.body if top else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def names(modules):
    """The first part of each."""
    return {module.partition(".")[0] for module in modules}


MODULES = dict(sources())


def test_the_modules_are_found():
    """Or the tests below would say nothing."""
    assert {"rule.py", "sources/proc.py", "commands/run.py"} <= set(MODULES)


@pytest.mark.parametrize("path", [path for path in MODULES if not path.startswith(COMMANDS)])
def test_the_core_never_imports_the_exporters(path):
    """Only the commands connect the two."""
    assert "exporters" not in names(imports(MODULES[path]))


@pytest.mark.parametrize("path", [path for path in MODULES if not path.startswith(COMMANDS)])
def test_nobody_below_imports_the_commands(path):
    """They are on top, and loaded by name."""
    assert [m for m in imports(MODULES[path]) if m.startswith("receipt_trace.commands")] == []


PURE = {
    "observation.py": set(),
    "constants.py": set(),
    "errors.py": set(),
    "trees.py": {"receipt_trace.observation"},
    "descriptors.py": {"receipt_trace.observation", "receipt_trace.constants"},
    "rule.py": {"receipt_trace.observation", "receipt_trace.constants"},
    "table.py": {"receipt_trace.constants", "receipt_trace.receipt"},
}
HARMLESS = {"collections", "dataclasses", "enum", "typing", "receipt_trace"}


@pytest.mark.parametrize("path", PURE)
def test_the_pure_modules_touch_nothing(path):
    """No clock, no file, no process: only values."""
    allowed = HARMLESS | ({"os"} if path == "rule.py" else set())
    assert names(imports(MODULES[path])) <= allowed


@pytest.mark.parametrize("path", PURE)
def test_the_pure_modules_stand_at_the_bottom(path):
    """They know only each other, downwards."""
    ours = {m for m in imports(MODULES[path], top=True) if m in PURE_MODULES}
    assert ours == PURE[path]


PURE_MODULES = {"receipt_trace." + path.removesuffix(".py").replace("/", ".") for path in MODULES}


def test_the_rule_takes_only_the_meaning_of_a_wait_status_from_os():
    """It asks whether a process was killed, which is arithmetic."""
    used = {
        node.attr
        for node in ast.walk(ast.parse(MODULES["rule.py"]))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    }
    assert used == {"WIFSIGNALED"}


def test_only_the_wiring_and_the_builder_start_programs():
    """And the commands and the core nowhere else; litmus runs what it measures."""
    found = [
        path
        for path, source in MODULES.items()
        if "subprocess" in names(imports(source)) and not path.startswith("litmus/")
    ]
    assert sorted(found) == ["kernel/objects.py", "wiring.py"]


def test_what_is_slow_to_load_is_loaded_where_it_is_needed():
    """Nothing at the top of a module leads to it, but for the one module that is about it."""
    slow = {"pyroute2", "pyte", "receipt_trace.emulator"}
    found = {p: imports(s, top=True) & slow for p, s in MODULES.items()}
    assert {p: m for p, m in found.items() if m} == {"emulator.py": {"pyte"}}


def test_the_exporters_know_only_the_receipt():
    """And plain values: errors, constants, the health of a watcher, rows of a table."""
    for path, source in sources(files("exporters")):
        ours = {m for m in imports(source) if m.startswith("receipt_trace.")}
        assert {".".join(m.split(".")[:2]) for m in ours} <= {
            "receipt_trace.receipt",
            "receipt_trace.errors",
            "receipt_trace.output",
            "receipt_trace.constants",
            "receipt_trace.health",
            "receipt_trace.table",
            "receipt_trace.__version__",
        }, path


def test_nothing_that_is_read_can_reach_a_shell_or_an_interpreter():
    """But the wiring, which runs what the caller gives, the builder, which runs a Python on a text
    of our own, and litmus, which measures commands, no module can start or evaluate anything.
    """
    modules = {"subprocess", "pty", "pickle", "marshal", "shelve", "multiprocessing", "code"}
    builtins = {"eval", "exec", "compile", "__import__"}
    starts = ("os.system", "os.popen", "os.spawn", "os.posix_spawn", "os.exec", "os.fork")
    everything = {**MODULES, **{f"exporters/{p}": s for p, s in sources(files("exporters"))}}
    del everything["wiring.py"], everything["kernel/objects.py"]
    for path, source in everything.items():
        if path.startswith("litmus/"):
            continue
        assert not names(imports(source)) & modules, path
        called = {
            ast.unparse(n.func) for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call)
        }
        assert not called & builtins, path
        assert not [name for name in called if name.startswith(starts)], path
