"""The store of built programs: what is trusted, what is made again, what is told."""

import base64
import json
import os
import shutil
import struct
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from receipt_trace.errors import UnobservableError
from receipt_trace.kernel import objects
from receipt_trace.kernel.objects import Program, get_objects

NOBODY = 65534
BUILT = json.dumps(
    {
        "programs": {
            "on_fork": {"code": base64.b64encode(bytes(16)).decode(), "maps": {0: "marks"}}
        },
        "maps": {"marks": [1, 4, 4, 65536, 0]},
        "functions": {"bpf_iter_task": 77},
        "lost": ["something"],
    }
)


@pytest.fixture
def folder(tmp_path):
    """Where they are kept."""
    folder = tmp_path / "cache"
    folder.mkdir(0o700)
    return folder


@pytest.fixture
def builds(monkeypatch):
    """Every build that was made; none takes a compiler."""
    made = []

    def build(_folder):
        made.append(BUILT)
        return BUILT

    monkeypatch.setattr(objects, "_build", build)
    return made


def kept(folder):
    """The files in the store."""
    return sorted(folder.glob("programs-*"))


def test_what_is_kept_is_used(folder, builds):
    """And is the same as what was built."""
    first, second = get_objects(folder), get_objects(folder)
    assert len(builds) == 1
    assert (first.kept, second.kept) == (False, True)
    assert first._replace(kept=True) == second
    assert second.programs == {"on_fork": Program(bytes(16), {0: "marks"})}
    assert second.maps == {"marks": (1, 4, 4, 65536, 0)}
    assert [p.stat().st_mode & 0o777 for p in kept(folder)] == [0o600]


@pytest.mark.parametrize(
    "torn",
    ["", BUILT[:-20], "null", "[]", '{"programs": []}', '{"programs": {"a": 1}}',
     BUILT.replace("==", "")],
    ids=["empty", "cut", "null", "list", "no mapping", "number", "no base64"],
)  # fmt: skip
def test_a_torn_file_is_made_again(folder, builds, torn):
    """Whatever is in it; and it is whole then."""
    get_objects(folder)
    (path,) = kept(folder)
    path.write_text(torn)
    assert get_objects(folder).kept is False
    assert path.read_text() == BUILT
    assert get_objects(folder).kept is True


@pytest.mark.parametrize("bits", [0o020, 0o002], ids=["group", "everybody"])
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_others_may_write_to_is_not_trusted(folder, builds, what, bits):
    """Whoever can write there could bring a program of his own into the kernel."""
    get_objects(folder)
    path = folder if what == "folder" else kept(folder)[0]
    path.chmod(path.stat().st_mode | bits)
    assert get_objects(folder).kept is False


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_belongs_to_somebody_else_is_not_trusted(folder, builds, what):
    """Not even if only he may write to it."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    get_objects(folder)
    os.chown(folder if what == "folder" else kept(folder)[0], NOBODY, -1)
    assert get_objects(folder).kept is False


def test_a_symbolic_link_is_not_followed(folder, builds, tmp_path):
    """It is replaced by a file, and where it led is left alone."""
    get_objects(folder)
    (path,) = kept(folder)
    elsewhere = tmp_path / "elsewhere.json"
    path.replace(elsewhere)
    path.symlink_to(elsewhere)
    assert get_objects(folder).kept is False
    assert not path.is_symlink()
    assert elsewhere.read_text() == BUILT


def test_a_place_that_is_no_folder_is_no_error(builds, tmp_path):
    """Then every start builds."""
    (tmp_path / "file").write_text("")
    assert get_objects(tmp_path / "file" / "cache").kept is False
    assert len(builds) == 1


def test_a_folder_that_cannot_be_written_to_is_no_error(folder, builds, monkeypatch):
    """A read-only file system refuses everything that would change it, even removing nothing."""

    def refuse(path, *more, **others):
        raise OSError(30, "Read-only file system", str(path))

    opens = os.open

    def only_reads(path, flags, *more, **others):
        return refuse(path) if flags & os.O_CREAT else opens(path, flags, *more, **others)

    monkeypatch.setattr(os, "open", only_reads)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert get_objects(folder).kept is False
    assert kept(folder) == []


def test_a_changed_program_is_built_again(folder, builds, monkeypatch, tmp_path):
    """The key of what is kept changes with every source that it is made from."""
    sources = tmp_path / "bpf"
    shutil.copytree(objects.PROGRAMS, sources)
    monkeypatch.setattr(objects, "PROGRAMS", sources)
    for path in sorted(sources.glob("*.[ch]")):
        get_objects(folder)
        before = len(builds)
        path.write_text(path.read_text() + "\n")
        assert get_objects(folder).kept is False, path.name
        assert len(builds) == before + 1


def test_of_many_that_start_at_once_one_builds(folder, builds, monkeypatch):
    """The others wait and take what it made."""
    many = 6
    looked = []
    read = objects._read

    def looking(path):
        found = read(path)
        looked.append(path)
        return found

    def build(_folder):
        builds.append(BUILT)
        deadline = time.monotonic() + 10
        while len(looked) < many:  # everybody has seen that there is nothing
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return BUILT

    monkeypatch.setattr(objects, "_read", looking)
    monkeypatch.setattr(objects, "_build", build)
    start = threading.Barrier(many)

    def one(_):
        start.wait(10)
        return get_objects(folder).kept

    with ThreadPoolExecutor(many) as pool:
        assert sorted(pool.map(one, range(many))) == [False] + [True] * (many - 1)
    assert len(builds) == 1


def test_of_other_kernels_and_versions_eight_are_kept(folder, builds):
    """The latest; ours comes beside them."""
    for age in range(12):
        path = folder / f"programs-{age:024}.json"
        path.write_text("")
        os.utime(path, (1000 - age, 1000 - age))
    get_objects(folder)
    others = [p.name for p in kept(folder) if p.read_text() == ""]
    assert others == [f"programs-{age:024}.json" for age in range(8)]
    assert get_objects(folder).kept is True


# -- building ------------------------------------------------------------------------------


@pytest.fixture
def interpreters(monkeypatch):
    """What each interpreter says on standard error when it builds, first ours, then the system's."""
    said = []
    monkeypatch.setattr(os, "access", lambda *_: True)
    monkeypatch.setattr(objects, "_SYSTEM_PYTHON", "/system/python3")

    def run(argv, **_):
        return subprocess.CompletedProcess(argv, 1, b"", said.pop(0))

    monkeypatch.setattr(subprocess, "run", run)
    return said


NO_BCC = b"No module named 'bcc'\n"


def test_without_bcc_the_package_is_named(folder, interpreters):
    """As Debian calls it."""
    interpreters += [NO_BCC, NO_BCC]
    with pytest.raises(UnobservableError, match="apt-get install python3-bpfcc"):
        get_objects(folder)
    assert kept(folder) == []


@pytest.mark.parametrize("first", [True, False])
def test_the_interpreter_that_has_bcc_tells_the_reason(folder, interpreters, first):
    """What the other one lacks is not why."""
    interpreters += [b"warning\nthis kernel has no x\n", NO_BCC][:: 1 if first else -1]
    with pytest.raises(UnobservableError, match=r"^this kernel has no x$"):
        get_objects(folder)


def test_a_silent_end_of_the_builder_is_told(folder, interpreters):
    """With its status."""
    interpreters += [b"", b""]
    with pytest.raises(UnobservableError, match="ended with 1 and said nothing"):
        get_objects(folder)


# -- the rest ------------------------------------------------------------------------------


def test_descriptors_are_put_where_maps_are_meant():
    """In the last four bytes of each instruction that refers to one, and nowhere else."""
    code = bytes(range(8)) * 3
    linked = Program(code, {0: "marks", 2: "events"}).linked({"marks": 7, "events": 9, "said": 11})
    assert [linked[at : at + 4] for at in (0, 8, 16)] == [code[:4]] * 3
    assert struct.unpack_from("=i", linked, 4) == (7,)
    assert linked[12:16] == code[12:16]
    assert struct.unpack_from("=i", linked, 20) == (9,)


@pytest.mark.parametrize(
    ("uid", "env", "want"),
    [
        (0, {"CACHE_DIRECTORY": "/var/cache/one:/var/cache/two"}, "/var/cache/one"),
        (0, {"XDG_CACHE_HOME": "/home/user/c"}, "/var/cache/receipt-trace"),
        (1000, {"XDG_CACHE_HOME": "/home/user/c"}, "/home/user/c/receipt-trace"),
        (1000, {"XDG_CACHE_HOME": ""}, "/home/user/.cache/receipt-trace"),
    ],
)
def test_where_they_are_kept(monkeypatch, uid, env, want):
    """Where systemd says; else it is the system's place for root, and the user's own."""
    for name in ("CACHE_DIRECTORY", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/user", **env}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert objects.cache_folder() == Path(want)
