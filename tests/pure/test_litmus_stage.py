"""Where cases of litmus are run, what is there, and the servers they talk to."""

import http.client
import socket
import stat

import pytest

from receipt_trace.errors import UsageError
from receipt_trace.litmus import stage
from receipt_trace.litmus.catalogue import Case, Family
from receipt_trace.litmus.services import Services
from receipt_trace.litmus.stage import MARK, NotSetUpError, Stage


@pytest.fixture
def scene(tmp_path, monkeypatch):
    """A stage without services, with a cache of its own."""
    monkeypatch.setattr(stage, "cache", lambda: tmp_path / "cache")
    return Stage(tmp_path / "root", "token", lambda _names: {})


def case(**more):
    """A control that does nothing."""
    return Case("f", "c", "true", asks=False, **more)


def test_a_case_gets_its_files_its_set_up_and_a_bare_environment(scene):
    """And every process of it carries the mark of the run."""
    chosen = case(files={"d/f": "text"}, setup="cp d/f g", env={"EDITOR": "vi"})
    place = scene.place(chosen, Family("f", "", ()))
    assert (place.work / "g").read_text() == "text"
    assert place.env["EDITOR"] == "vi"
    assert place.env[MARK] == "token"
    assert "VIRTUAL_ENV" not in place.env
    assert place.shell("pwd; echo $HOME", 10)[1].splitlines() == [
        str(place.work),
        str(place.work.parent / "home"),
    ]


def test_no_two_trials_share_a_directory(scene):
    """They run side by side."""
    first, second = (scene.place(case(), Family("f", "", ())) for _ in range(2))
    assert first.work != second.work


def test_a_set_up_that_fails_says_what_it_said(scene):
    """So that the case can be mended."""
    with pytest.raises(NotSetUpError, match="ended with 3: no disk"):
        scene.place(case(setup="echo no disk; exit 3"), Family("f", "", ()))


def test_a_user_that_is_not_there_is_told(scene, monkeypatch):
    """And so is that only root may become another."""
    monkeypatch.setattr(stage.os, "geteuid", lambda: 0)
    with pytest.raises(NotSetUpError, match="there is no user nobody-there"):
        scene.place(case(user="nobody-there"), Family("f", "", ()))
    monkeypatch.setattr(stage.os, "geteuid", lambda: 1000)
    with pytest.raises(NotSetUpError, match="which only root can do"):
        scene.place(case(user="nobody"), Family("f", "", ()))


def test_a_kit_is_made_once_and_shared(scene):
    """It may compile something."""
    family = Family("f", "", (), kit="echo made >> count; chmod 600 count")
    for _ in range(2):
        place = scene.place(case(), family)
    kit = place.env["KIT"]
    status, said = place.shell("cat $KIT/count", 10)
    assert (status, said) == (0, "made\n")
    assert stat.S_IMODE(stage.os.stat(kit).st_mode) == 0o755


def test_a_script_that_takes_too_long_is_ended(scene):
    """As timeout(1) would say it."""
    assert scene.place(case(), Family("f", "", ())).shell("sleep 60", 0.2)[0] == 124


def test_a_package_is_there_if_a_program_of_its_name_is(scene):
    """Not every machine has it from the distribution."""
    assert stage.missing(["sh", "no-such-package-at-all"], "f") == ("no-such-package-at-all",)


def test_packages_of_other_managers_are_looked_for_in_the_familys_own_folders(tmp_path, scene):
    """Whatever its version and spelling."""
    wanted = ["pip:Prompt-Toolkit==3.0", "pip:click", "npm:@inquirer/prompts@7", "npm:prompts"]
    site = tmp_path / "cache/python/f/lib/python3.11/site-packages"
    (site / "prompt_toolkit-3.0.dist-info").mkdir(parents=True)
    (tmp_path / "cache/node/f/node_modules/@inquirer/prompts").mkdir(parents=True)
    assert stage.missing(wanted, "f") == ("pip:click", "npm:prompts")
    assert stage.missing(wanted, "other") == tuple(wanted)


def test_only_who_wants_a_node_package_is_given_the_family_s(tmp_path, scene):
    """They are shared: `npm ci` would empty them."""
    modules = tmp_path / "cache/node/f/node_modules"
    modules.mkdir(parents=True)
    wants = scene.place(case(packages=("npm:prompts",)), Family("f", "", ()))
    assert (wants.work / "node_modules").resolve() == modules
    assert not (scene.place(case(), Family("f", "", ())).work / "node_modules").exists()


class Manager:
    """Stands for apt, pip and npm: what may be had, and what was asked of them."""

    def __init__(self, *unknown):
        self.unknown, self.asked, self.said = unknown, [], []

    def run(self, commands):
        """All commands, as they would be run."""
        for command in commands:
            self.asked.append(" ".join(command))
            if any(name in command for name in self.unknown):
                return f"no {' '.join(self.unknown)}"
        return ""


@pytest.fixture
def manager(monkeypatch):
    """Nothing is installed, and one package is not to be had."""
    manager = Manager("b-gone")
    monkeypatch.setattr(stage, "_run", manager.run)
    monkeypatch.setattr(stage, "_installed", set)
    monkeypatch.setattr(stage.os, "geteuid", lambda: 0)
    return manager


def test_a_package_that_is_not_to_be_had_keeps_no_other_away(scene, manager):
    """All Debian packages go in one turn; if that fails, each in its own."""
    cases = [case(packages=("a-new", "b-gone")), Case("g", "c", "true", asks=False,
             packages=("c-new", "pip:click"))]  # fmt: skip
    stage.install(cases, manager.said.append)
    installs = [line for line in manager.asked if "apt-get install" in line]
    assert [line.split("DPkg::Lock::Timeout=300 ")[1] for line in installs] == [
        "a-new b-gone c-new", "a-new", "b-gone", "c-new",
    ]  # fmt: skip
    assert manager.asked[0] == "apt-get update"
    assert manager.asked[-1].endswith("python/g/bin/pip install --quiet click")
    assert manager.said == [
        "installing: a-new b-gone c-new", "no b-gone", "installing for g: click",
    ]  # fmt: skip


def test_without_root_the_debian_packages_are_named(scene, manager, monkeypatch):
    """And the others installed."""
    monkeypatch.setattr(stage.os, "geteuid", lambda: 1000)
    stage.install([case(packages=("a-new", "npm:prompts"))], manager.said.append)
    assert manager.said == [
        "only root can install Debian packages: a-new", "installing for f: prompts",
    ]  # fmt: skip
    assert not any("apt-get" in line for line in manager.asked)


def test_the_servers_answer_and_end(tmp_path):
    """Each on a port of its own, and gone afterwards."""
    with Services(tmp_path) as services:
        env = services(["http", "silent", "talk", "ftp"])
        assert services(["http"])["HTTP_PORT"] == env["HTTP_PORT"]
        ports = {name: int(env[f"{name}_PORT"]) for name in ("HTTP", "SILENT", "TALK", "FTP")}
        pages = http.client.HTTPConnection("127.0.0.1", ports["HTTP"])
        for path, status in (("/", 200), ("/auth/x", 401)):
            pages.request("GET", path)
            answer = pages.getresponse()
            answer.read()
            assert answer.status == status
        pages.close()
        for name, greeting in (("TALK", b"login: "), ("FTP", b"220 litmus\r\n")):
            with socket.create_connection(("127.0.0.1", ports[name]), 5) as client:
                assert client.recv(99) == greeting
        with socket.create_connection(("127.0.0.1", ports["SILENT"]), 5) as client:
            client.settimeout(0.2)
            with pytest.raises(TimeoutError):
                client.recv(1)
    for port in ports.values():
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)


def test_a_service_that_does_not_exist_is_told(tmp_path):
    """With those that do."""
    with Services(tmp_path) as services, pytest.raises(UsageError, match="'x' is no service"):
        services(["x"])
