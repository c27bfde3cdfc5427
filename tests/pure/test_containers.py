"""Names of containers, from the files of their engines."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from receipt_trace.sources import containers
from receipt_trace.sources.containers import container_name

ID = "0123456789abcdef" * 4
OTHER = "f" * 64


@pytest.fixture
def engines(tmp_path):
    """Where docker and podman keep their files; nothing is there."""
    return Engines(tmp_path)


class Engines:
    """The files of both engines."""

    def __init__(self, root):
        self.docker, self.podman = root / "docker", root / "podman.json"

    def write_docker(self, identity, text):
        """What docker says of a container."""
        (self.docker / identity).mkdir(parents=True, exist_ok=True)
        (self.docker / identity / "config.v2.json").write_text(text)

    def name(self, identity=ID):
        """What comes of it."""
        return container_name(identity, self.docker, self.podman)


def test_docker_writes_a_name_with_a_slash(engines):
    """Which is not part of it."""
    engines.write_docker(ID, json.dumps({"ID": ID, "Name": "/web-1", "State": {}}))
    assert engines.name() == "web-1"
    assert engines.name(OTHER) is None


def test_podman_lists_names_by_id(engines):
    """The first of them counts."""
    entries = [{"id": OTHER, "names": ["x"]}, {"id": ID, "names": ["db", "database"]}]
    engines.podman.write_text(json.dumps(entries))
    assert engines.name() == "db"
    assert engines.name("0" * 64) is None


def test_without_their_files_there_is_no_name(engines):
    """No engine, or one that may not be read."""
    assert engines.name() is None
    (engines.docker / ID / "config.v2.json").mkdir(parents=True)
    engines.podman.mkdir()
    assert engines.name() is None


NO_NAMES = {
    "nothing": "",
    "half of it": '{"Name": "/we',
    "bytes": "\x00\xff",
    "a number": "7",
    "no name": "{}",
    "a name that is none": json.dumps({"Name": 7}),
    "a list": "[]",
    "null": "null",
    "entries that are none": json.dumps([7, None, "x", []]),
    "an entry without names": json.dumps([{"id": ID}]),
    "an entry with no names": json.dumps([{"id": ID, "names": []}]),
    "names that are none": json.dumps([{"id": ID, "names": [7]}]),
}


@pytest.mark.parametrize("text", NO_NAMES.values(), ids=NO_NAMES)
def test_what_is_no_such_file_has_no_name(engines, text):
    """Whichever of the two it is found in."""
    engines.write_docker(ID, text)
    engines.podman.write_text(text)
    assert engines.name() is None


@pytest.mark.parametrize("names", [7, {"first": "x"}, {"0": "x"}])
def test_names_that_are_no_list_are_no_names(engines, names):
    """Nothing is raised either."""
    engines.podman.write_text(json.dumps([{"id": ID, "names": names}]))
    assert engines.name() is None


def test_garbage_of_one_engine_does_not_hide_the_other(engines):
    """They do not know of each other."""
    engines.write_docker(ID, "{}")
    engines.podman.write_text(json.dumps([7, {"id": ID, "names": ["db"]}]))
    assert engines.name() == "db"


@given(st.binary(max_size=40))
def test_no_bytes_make_it_fail(tmp_path_factory, data):
    """Whatever is in the files."""
    root = tmp_path_factory.mktemp("engines")
    engines = Engines(root)
    engines.write_docker(ID, "")
    (engines.docker / ID / "config.v2.json").write_bytes(data)
    engines.podman.write_bytes(data)
    assert engines.name() is None or isinstance(engines.name(), str)


def test_the_files_are_those_of_the_engines():
    """Where both keep them by default."""
    assert str(containers._DOCKER) == "/var/lib/docker/containers"
    assert str(containers._PODMAN).endswith("/overlay-containers/containers.json")
