"""
Promises of quiclab/containers/engine.py.
"""

import gc
import hashlib
import io
import json
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quiclab.containers.engine import (
    ANSWER_TIMEOUT_S,
    DEFAULT_URL,
    EngineAddress,
    EngineFacts,
    check_architecture,
    check_engine_can_trace,
    collect_bounding_set,
    connect_engine,
    find_engine_address,
    find_unknown_capabilities,
    select_security_options,
)
from quiclab.errors import MachineError
from tests.docker_lab import need_engine
from tests.quiclab.fake_engine import serve_engine


def write_context(folder: Path, name: str, endpoint: Mapping[str, Any]) -> None:
    """
    Write a context as the `docker context create` command does.
    """
    digest = hashlib.sha256(name.encode()).hexdigest()
    path = folder / "contexts" / "meta" / digest / "meta.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"Name": name, "Endpoints": {"docker": endpoint}}))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder with two contexts, one of them current."""
    folder = tmp_path / ".docker"
    write_context(folder, "lab", {"Host": "tcp://lab:2376", "SkipTLSVerify": False})
    write_context(folder, "other", {"Host": "unix:///other.sock", "SkipTLSVerify": False})
    (folder / "config.json").write_text('{"currentContext": "lab"}')
    return tmp_path


@pytest.mark.parametrize(
    ("environment", "url", "source", "is_chosen"),
    [
        (
            {"DOCKER_HOST": "tcp://here:1", "DOCKER_CONTEXT": "other"},
            "tcp://here:1",
            "DOCKER_HOST",
            True,
        ),
        ({"DOCKER_CONTEXT": "other"}, "unix:///other.sock", 'context "other"', True),
        ({}, "tcp://lab:2376", 'context "lab"', True),
        ({"DOCKER_CONTEXT": "default"}, DEFAULT_URL, "the default", False),
    ],
    ids=["DOCKER_HOST first", "then DOCKER_CONTEXT", "then the current context", "default is none"],
)
def test_address_is_looked_for_in_the_order_of_the_docker_command(
    home: Path, environment: Mapping[str, str], url: str, source: str, is_chosen: bool
) -> None:
    """DOCKER_HOST, then the context, then the default; the SDK alone knows no context."""
    found = find_engine_address(environment, home=home)
    assert (found.url, found.source, found.is_chosen) == (url, source, is_chosen)


def test_address_without_any_setting_is_the_default_and_nobodys_choice(tmp_path: Path) -> None:
    """Only then may a run go elsewhere when no engine answers."""
    assert find_engine_address({}, home=tmp_path) == EngineAddress(
        DEFAULT_URL, "the default", is_chosen=False
    )


def test_address_takes_certificates_from_the_context(home: Path) -> None:
    """An engine behind TLS is reached with the context's own certificates."""
    digest = hashlib.sha256(b"lab").hexdigest()
    tls_folder = home / ".docker" / "contexts" / "tls" / digest / "docker"
    tls_folder.mkdir(parents=True)
    found = find_engine_address({}, home=home)
    assert (found.tls_folder, found.is_tls_verified) == (tls_folder, True)


def test_address_of_an_unknown_context_is_refused_with_who_named_it(home: Path) -> None:
    """A typing error in a context never ends up at another engine."""
    with pytest.raises(MachineError, match='DOCKER_CONTEXT names the Docker context "labb"'):
        find_engine_address({"DOCKER_CONTEXT": "labb"}, home=home)


def test_address_of_a_damaged_config_is_refused(home: Path) -> None:
    """A config.json that may name a context is not skipped in silence."""
    (home / ".docker" / "config.json").write_text("{")
    with pytest.raises(MachineError, match="cannot be read as JSON"):
        find_engine_address({}, home=home)


def test_engine_behind_a_missing_socket_is_one_line_with_the_address() -> None:
    """What was asked, who asked for it, what is wrong and what to do."""
    address = EngineAddress("unix:///nowhere/docker.sock", "DOCKER_HOST", is_chosen=True)
    with pytest.raises(MachineError) as caught:
        connect_engine(address)
    assert str(caught.value) == (
        "no Docker engine answers at unix:///nowhere/docker.sock (from DOCKER_HOST): "
        "No such file or directory; start one, or use --runner local"
    )


def test_engine_behind_ssh_is_told_how_to_be_reached() -> None:
    """A context of that kind is common; the SDK alone has no words for what it lacks."""
    address = EngineAddress("ssh://me@box", 'context "box"', is_chosen=True)
    with pytest.raises(MachineError, match=r"forward its socket \(ssh .* me@box\) and set DOCKER"):
        connect_engine(address)


def test_engine_that_takes_the_call_and_says_nothing_is_given_up(tmp_path: Path) -> None:
    """A hanging engine is one line too, after a time that is bounded."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen()
        address = EngineAddress(f"unix://{tmp_path}/silent.sock", "DOCKER_HOST", is_chosen=True)
        with pytest.raises(MachineError, match=r"no Docker engine answers at .*timed out"):
            connect_engine(address, timeout_s=0.1)
    assert ANSWER_TIMEOUT_S < 5


def facts(tmp_path: Path, **info: Any) -> EngineFacts:
    """
    What an engine that says this of itself is understood to be.
    """
    with serve_engine(tmp_path, info=info) as fake:
        engine = connect_engine(EngineAddress(fake.url, "test", is_chosen=True))
        engine.close()
        return engine.facts


def test_engine_tells_its_versions_and_architecture(tmp_path: Path) -> None:
    """Architecture is said in the image's words, so that the two can be compared."""
    found = facts(tmp_path)
    assert (found.version, found.api_version, found.architecture) == ("99.1", "1.41", "amd64")
    assert found.components == {"Engine": "99.1", "runc": "1.2"}
    assert (found.has_apparmor, found.has_selinux) == (False, False)
    check_engine_can_trace(found)


@pytest.mark.parametrize(
    ("info", "word"),
    [
        ({"SecurityOptions": ["name=seccomp", "name=rootless"]}, "rootless"),
        ({"SecurityOptions": ["name=userns"]}, "userns-remap"),
        ({"OSType": "windows"}, "windows"),
    ],
    ids=["rootless", "userns-remap", "not Linux"],
)
def test_engine_that_can_never_trace_is_refused_with_that_word(
    tmp_path: Path, info: dict[str, Any], word: str
) -> None:
    """Refused by what the engine says of itself, before anything is created."""
    with pytest.raises(MachineError, match=word):
        check_engine_can_trace(facts(tmp_path, **info))


def test_image_of_another_architecture_is_refused(tmp_path: Path) -> None:
    """Emulated code fires no probe, so such an image never runs."""
    with pytest.raises(MachineError, match="quiclab:x is for arm64 and the engine is amd64"):
        check_architecture(facts(tmp_path), image_architecture="arm64", image_tag="quiclab:x")


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        ([], ["no-new-privileges:true"]),
        (["name=apparmor"], ["no-new-privileges:true", "apparmor=unconfined"]),
        (["name=selinux"], ["no-new-privileges:true", "label=disable"]),
    ],
    ids=["neither", "AppArmor", "SELinux"],
)
def test_security_options_are_passed_only_to_an_engine_that_has_them(
    tmp_path: Path, names: list[str], kept: list[str]
) -> None:
    """apparmor=unconfined and label=disable appear where they mean something, only there."""
    wanted = ["no-new-privileges:true", "apparmor:unconfined", "label:disable"]
    assert select_security_options(wanted, facts(tmp_path, SecurityOptions=names)) == kept


def test_capabilities_an_old_engine_does_not_know_are_found_without_making_anything(
    tmp_path: Path,
) -> None:
    """Each refusal names one; the rest is asked again until all are known."""
    with serve_engine(tmp_path, unknown_capabilities=frozenset({"BPF", "PERFMON"})) as fake:
        engine = connect_engine(EngineAddress(fake.url, "test", is_chosen=True))
        unknown = find_unknown_capabilities(engine, ["BPF", "SYS_ADMIN", "PERFMON"])
        engine.close()
    assert unknown == {"BPF", "PERFMON"}


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # the SDK's, when refused
def test_engine_that_goes_away_before_a_run_is_one_line(tmp_path: Path) -> None:
    """Not a traceback of the SDK."""
    with serve_engine(tmp_path) as fake:
        engine = connect_engine(EngineAddress(fake.url, "test", is_chosen=True))
    (tmp_path / "engine.sock").unlink()
    with pytest.raises(MachineError, match=r"stopped answering \(No such file"):
        find_unknown_capabilities(engine, ["BPF"])
    engine.close()
    gc.collect()


def test_credential_helper_that_is_absent_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build and a pull work although config.json names a helper nobody has installed."""
    config = {"credsStore": "absent", "credHelpers": {"registry.test": "absent-too"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with serve_engine(tmp_path) as fake:
        engine = connect_engine(EngineAddress(fake.url, "test", is_chosen=True))
        list(engine.client.api.build(fileobj=io.BytesIO(b""), custom_context=True, decode=True))
        with pytest.raises(Exception, match="No such image"):
            engine.client.api.pull("debian", tag="trixie-slim")
        engine.close()
    assert [path for path in fake.requests if "/build" in path or "/images/create" in path]


def test_bounding_set_is_that_of_the_process_which_listens(tmp_path: Path) -> None:
    """The kernel tells who holds the socket, and that process's own set is read."""
    status = Path("/proc/self/status").read_text().splitlines()
    own = next(line.split()[1] for line in status if line.startswith("CapBnd:"))
    with serve_engine(tmp_path) as fake:
        found = collect_bounding_set(fake.url)
    assert found is not None
    assert len(found) == min(int(own, 16).bit_count(), 41)


def test_bounding_set_of_an_engine_elsewhere_is_not_known() -> None:
    """Nothing is claimed about an engine whose process cannot be seen."""
    assert collect_bounding_set("tcp://elsewhere:2376") is None


@pytest.mark.docker
def test_real_engine_answers_and_says_what_it_is() -> None:
    """The facts the lab relies on are filled by the engine that runs here."""
    engine = need_engine()
    assert engine.facts.os_type == "linux"
    assert engine.facts.version
    assert engine.facts.kernel
    assert find_unknown_capabilities(engine, ["SYS_ADMIN", "SYS_PTRACE", "NET_ADMIN"]) == set()
    assert replace(engine.facts, version="7").summary == "engine 7 answers"
