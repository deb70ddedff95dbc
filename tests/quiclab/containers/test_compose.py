"""
Promises of quiclab/containers/compose.py, and of compose.yaml itself.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from quiclab.containers.compose import (
    COMPOSE_FILE,
    ComposeError,
    Ulimit,
    load_compose,
    parse_compose,
)
from tests.conftest import need
from tests.docker_lab import need_image

SMALL = """
services:
  server: &role
    image: quiclab:latest
    build: {context: ., target: lab}
    networks: [lab]
  client: *role
  tracer: *role
networks:
  lab: {}
"""


def parse(text: str) -> object:
    """
    Read a text with an empty environment.
    """
    return parse_compose(text, {}, name="compose.yaml")


def test_compose_gives_the_tracer_two_capabilities_and_the_hosts_pids() -> None:
    """The list that was measured to be enough, everything else dropped first."""
    tracer = load_compose({}).roles["tracer"]
    assert tracer.dropped_capabilities == ("ALL",)
    assert tracer.capabilities == ("SYS_ADMIN", "SYS_PTRACE")
    assert tracer.pid_mode == "host"
    assert not tracer.is_networked


@pytest.mark.parametrize("role", ["server", "client"])
def test_compose_gives_both_ends_net_admin_alone_and_optional(role: str) -> None:
    """They are granted the socket buffers they ask for, and work where they are not."""
    settings = load_compose({}).roles[role]
    assert settings.dropped_capabilities == ("ALL",)
    assert settings.capabilities == settings.optional_capabilities == ("NET_ADMIN",)
    assert settings.pid_mode is None


def test_compose_puts_the_servers_probe_folder_on_an_executable_tmpfs() -> None:
    """The provider file is mapped as code, and its inode is shared with no other container."""
    options = load_compose({}).roles["server"].tmpfs["/run/quiclab"]
    assert "exec" in options.split(",")


def test_compose_network_has_no_way_out() -> None:
    """The pair talks on a network of its own."""
    assert load_compose({}).network.is_internal


def test_compose_publishes_no_port_and_mounts_nothing_of_the_caller() -> None:
    """Neither key is there, and the reader would refuse both."""
    services = yaml.safe_load(COMPOSE_FILE.read_text())["services"]
    assert not [key for service in services.values() for key in service if key in _FORBIDDEN]


_FORBIDDEN = {"ports", "volumes", "privileged"}


@pytest.mark.parametrize("key", sorted(_FORBIDDEN))
def test_compose_with_an_unknown_key_is_refused_by_name(key: str) -> None:
    """A setting that the lab would not pass on is never lost in silence."""
    text = SMALL.replace("    networks: [lab]", f"    networks: [lab]\n    {key}: []")
    with pytest.raises(ComposeError, match=rf"compose.yaml: services.server.{key} is not a key"):
        parse(text)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("  tracer: *role\n", "", "services are server, client; expected client, server, tracer"),
        ("  lab: {}", "  lab: {}\n  other: {}", "2 networks; expected one"),
        ("    image: quiclab:latest\n", "", "services.server.image is missing"),
        ("networks: [lab]", "pid: container", "services.server.pid: Input should be 'host'"),
        ("networks: [lab]", "init: maybe", "services.server.init: Input should be a valid bool"),
        (
            "networks: [lab]",
            "x-optional-capabilities: [BPF]",
            "x-optional-capabilities not in cap_add: BPF",
        ),
        ("quiclab:latest", "quiclab:${TAG}", "${TAG} is not set and has no default"),
        ("quiclab:latest", "quiclab:$TAG", "holds a $ that is no"),
        ("services:", "services: [", "compose.yaml is no YAML"),
    ],
    ids=[
        "role missing",
        "second network",
        "image missing",
        "bad value",
        "bad flag",
        "optional but not asked for",
        "variable without a value",
        "bare dollar",
        "no YAML",
    ],
)
def test_compose_that_cannot_be_acted_on_is_refused_with_place_and_reason(
    before: str, after: str, words: str
) -> None:
    """One line says where and what."""
    assert before in SMALL
    with pytest.raises(ComposeError) as caught:
        parse(SMALL.replace(before, after))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "driver"),
    [({}, "bridge"), ({"DRIVER": "macvlan"}, "macvlan"), ({"DRIVER": ""}, "bridge")],
    ids=["default", "given", "empty"],
)
def test_compose_fills_variables_as_docker_compose_does(
    environment: dict[str, str], driver: str
) -> None:
    """`${X:-d}` is d where X is unset or empty."""
    text = SMALL.replace("lab: {}", 'lab: {driver: "${DRIVER:-bridge}"}')
    assert parse_compose(text, environment, name="x").network.driver == driver


def test_compose_reads_limits_in_both_spellings() -> None:
    """One figure is soft and hard limit at once."""
    text = SMALL.replace(
        "    networks: [lab]",
        "    networks: [lab]\n    ulimits: {memlock: -1, nofile: {soft: 1, hard: 2}}",
    )
    roles = parse_compose(text, {}, name="x").roles
    assert roles["server"].ulimits == (Ulimit("memlock", -1, -1), Ulimit("nofile", 1, 2))


def test_compose_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """The path and the reason."""
    with pytest.raises(ComposeError, match=r"compose\.yaml cannot be read: No such file"):
        load_compose({}, tmp_path / "compose.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["--profile", "trace"]], ids=["pair", "with tracer"])
def test_docker_compose_accepts_the_file(arguments: list[str]) -> None:
    """The old docker-compose (1.29) takes it too, where it is installed."""
    program = shutil.which("docker-compose")
    need(program is not None, "docker-compose")
    asked = [str(program), "--file", str(COMPOSE_FILE), *arguments, "config", "--quiet"]
    answered = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
    assert (answered.returncode, answered.stderr) == (0, "")


@pytest.mark.docker
@pytest.mark.slow
def test_pair_by_hand_moves_bytes() -> None:
    """`docker-compose up` shows server and client, with the image that `invoke build` made."""
    program = shutil.which("docker-compose")
    need(program is not None, "docker-compose")
    environment = {**os.environ, "QUICLAB_IMAGE": need_image().tag, "QUICLAB_DURATION": "1"}
    compose = [str(program), "--file", str(COMPOSE_FILE), "--project-name", "quiclab-by-hand-test"]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*compose, *words],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=environment,
        )

    try:
        shown = run("up", "--no-build", "--exit-code-from", "client")
        assert shown.returncode == 0, shown.stdout + shown.stderr
        assert '"ok": true' in shown.stdout
    finally:
        run("down")
