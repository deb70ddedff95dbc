"""
Promises of the Docker runner that the contract of all runners does not cover.

They are kept on the engine that runs here. What an engine elsewhere would say is
told by changing what this one said of itself.
"""

import gc
import json
import platform
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from quiclab.argv import server_command
from quiclab.containers.capabilities import CAPABILITIES
from quiclab.containers.compose import load_compose
from quiclab.containers.engine import Engine, EngineAddress, connect_engine
from quiclab.containers.image import Image
from quiclab.errors import MachineError, RoleExitedError, RunError
from quiclab.interrupts import Interruption
from quiclab.runner.base import CLIENT, SERVER, TRACER, Runner
from quiclab.runner.docker import DockerRunner, find_runs
from quiclab.runner.docker_place import (
    HOST_LABEL,
    MOST_PROCESSES,
    MTU_OPTION,
    RUN_LABEL,
    DockerPlace,
    compute_host_id,
    remove_run,
)
from tests.conftest import need
from tests.docker_lab import need_engine, need_image
from tests.quiclab.engine_relay import Relay, relay_engine
from tests.quiclab.runner.contract import SCENARIO, PlaceContract

pytestmark = pytest.mark.docker

ALL = frozenset(CAPABILITIES)
SLEEP = ["python", "-c", "import time; time.sleep(60)"]
FIRE_COUNT = 1000
# A server in miniature: it loads the probes as the real one does, and fires one when told.
FIRING = f"""
import pathlib, sys, time
from server.probes import IO_TX_WRITE, load_provider
provider = load_provider(pathlib.Path(sys.argv[1]))
print(provider.path, flush=True)
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.01)
for _ in range({FIRE_COUNT}):
    provider.fire(IO_TX_WRITE, 1, 2, 3, 4)
print("fired", flush=True)
time.sleep(60)
"""
COUNTING = """
BEGIN { printf("begun\\n"); }
usdt:$1:s2n_quic_platform__socket__io__tx__write { @writes = count(); }
"""


def make_runner(**changes: Any) -> DockerRunner:
    """
    A runner on the real engine with the real settings.
    """
    return DockerRunner(need_engine(), need_image(), load_compose({}), **changes)


def make_run_id() -> str:
    """
    A name that no other run has.
    """
    return f"test-{uuid.uuid4().hex[:8]}"


def pretend(engine: Engine, **facts: Any) -> Engine:
    """
    The same engine, saying something else of itself.
    """
    return replace(engine, facts=replace(engine.facts, **facts))


def list_made(run_id: str) -> list[str]:
    """
    Everything on the engine that carries a run's label.
    """
    client = need_engine().client
    filters: dict[str, str | list[str] | bool] = {"label": f"{RUN_LABEL}={run_id}"}
    return [
        *(str(made.name) for made in client.containers.list(all=True, filters=filters)),
        *(str(made.name) for made in client.networks.list(filters=filters)),
    ]


def await_text(place: DockerPlace, role: str, name: str, text: str) -> None:
    """
    Wait until a file of a role holds a text.
    """
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        try:
            if text in place.read(role, name).decode():
                return
        except FileNotFoundError:
            pass  # not yet
        assert place.exit_status(role) is None, place.output(role)
        time.sleep(0.05)
    pytest.fail(f"{role} did not write {text!r}: {place.output(role)}")


def await_output(place: DockerPlace, role: str, text: str) -> str:
    """
    Wait until a role printed a text; all it printed.
    """
    deadline_s = time.monotonic() + 20
    while text not in (printed := place.output(role)[0]):
        assert time.monotonic() < deadline_s, place.output(role)
        assert place.exit_status(role) is None, place.output(role)
        time.sleep(0.05)
    return printed


@pytest.mark.real
@pytest.mark.slow
class TestDockerPlace(PlaceContract):
    """The contract, in containers."""

    @pytest.fixture
    def runner(self) -> DockerRunner:
        """Use the engine that answers here."""
        return make_runner()

    def find_remains(self, runner: Runner, run_id: str) -> list[str]:
        """Name containers and networks with the run's label."""
        del runner
        return list_made(run_id)


@pytest.fixture(scope="module")
def place() -> Iterator[DockerPlace]:
    """A place with its server asleep, shared by the tests that only look."""
    with make_runner().open(make_run_id(), max_mtu_bytes=8000, tracer_count=1) as place:
        place.start(SERVER, SLEEP, environment={})
        yield place


@pytest.fixture(scope="module")
def inspected(place: DockerPlace) -> Mapping[str, Any]:
    """What the engine says of the server's container."""
    made = need_engine().client.containers.get(f"{place.facts.details['network']}-server")
    attributes: Mapping[str, Any] = made.attrs
    return attributes


def test_container_may_do_what_compose_yaml_says_and_no_more(
    inspected: Mapping[str, Any],
) -> None:
    """The settings of compose.yaml arrive at the engine."""
    settings = load_compose({}).roles[SERVER]
    host = inspected["HostConfig"]
    assert host["CapDrop"] == list(settings.dropped_capabilities)
    assert host["CapAdd"] == list(settings.capabilities)
    assert host["Tmpfs"] == settings.tmpfs
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    assert not host["Privileged"]


# Bits of <linux/capability.h>.
_NET_ADMIN, _SYS_PTRACE, _SYS_ADMIN = 1 << 12, 1 << 19, 1 << 21
_FILTERED = "2"  # SECCOMP_MODE_FILTER


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "most"),
    [(SERVER, _NET_ADMIN), (CLIENT, _NET_ADMIN), (TRACER, _SYS_ADMIN | _SYS_PTRACE)],
    ids=["server", "client", "tracer"],
)
def test_process_of_a_role_holds_these_capabilities_and_no_others(
    place: DockerPlace, role: str, most: int
) -> None:
    """By the kernel's own word: effective and bounding set, no new privileges, seccomp on."""
    container = need_engine().client.containers.get(f"{place.facts.details['network']}-{role}")
    output = container.exec_run(["cat", "/proc/self/status"]).output
    assert isinstance(output, bytes)
    status = output.decode()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert (most, most) == (int(fields["CapEff"], 16), int(fields["CapBnd"], 16))
    assert ("1", _FILTERED) == (fields["NoNewPrivs"], fields["Seccomp"])
    assert MOST_PROCESSES == container.attrs["HostConfig"]["PidsLimit"]


def test_container_shares_nothing_with_the_caller(inspected: Mapping[str, Any]) -> None:
    """No folder is mounted, no port is published, and proxies stay out."""
    assert not inspected["HostConfig"]["Binds"]
    assert [m["Type"] for m in inspected["Mounts"] if m["Type"] != "tmpfs"] == []
    assert not inspected["HostConfig"]["PortBindings"]
    assert [v for v in inspected["Config"]["Env"] if "proxy" in v.lower()] == []


def test_environment_of_a_role_reaches_its_process(place: DockerPlace) -> None:
    """The limit of keys per map is told to bpftrace this way."""
    code = "import os; print(os.environ['SAID'])"
    place.start(TRACER, ["python", "-c", code], environment={"SAID": "yes"})
    assert place.wait(TRACER, timeout_s=20) == 0
    assert place.output(TRACER)[0] == "yes\n"


def test_container_and_network_are_labelled_with_run_and_host(
    place: DockerPlace, inspected: Mapping[str, Any]
) -> None:
    """Whatever a dead run leaves can be told from what others own."""
    network = need_engine().client.networks.get(place.facts.details["network"])
    for labels in (inspected["Config"]["Labels"], network.attrs["Labels"]):
        assert f"quiclab-{labels[RUN_LABEL]}" == place.facts.details["network"]
        assert labels[HOST_LABEL] == compute_host_id()


def test_network_has_the_mtu_and_no_way_out(place: DockerPlace) -> None:
    """Full datagrams of the scenario pass unfragmented, and nothing leaves."""
    network = need_engine().client.networks.get(place.facts.details["network"])
    assert network.attrs["Internal"]
    assert network.attrs["Options"][MTU_OPTION] == "8000"
    server = need_engine().client.containers.get(f"{network.name}-server")
    assert server.exec_run(["cat", "/sys/class/net/eth0/mtu"]).output == b"8000\n"


def test_server_has_the_address_that_the_place_tells(
    place: DockerPlace, inspected: Mapping[str, Any]
) -> None:
    """It can bind it, and the client can call it."""
    network = inspected["NetworkSettings"]["Networks"][place.facts.details["network"]]
    assert network["IPAddress"] == place.server_address()


def test_facts_name_engine_image_and_tools(place: DockerPlace) -> None:
    """A manifest can say what a run was made with."""
    engine, image = need_engine(), need_image()
    assert place.facts.summary.startswith(f"docker (engine {engine.facts.version} answers), image ")
    assert place.facts.details["image_id"] == image.image_id
    assert {"bpftrace", "python", "aioquic", "engine", "runc"} <= set(place.facts.versions)


@pytest.mark.real
@pytest.mark.slow
def test_tracer_counts_exactly_what_the_server_fires_from_its_tmpfs() -> None:
    """Across containers, by /proc/PID/root and with two capabilities: none missed or doubled."""
    with make_runner().open(make_run_id(), max_mtu_bytes=1500, tracer_count=1) as place:
        go = place.path(SERVER, "go")
        argv = ["python", "-c", FIRING, place.probe_directory(), go]
        place.start(SERVER, argv, environment={})
        server_path = await_output(place, SERVER, ".so").strip()
        assert server_path.startswith(f"{place.probe_directory()}/")
        place.write(TRACER, "count.bt", COUNTING.encode())
        trace = place.path(TRACER, "trace.jsonl")
        argv = ["bpftrace", "-f", "json", "-o", trace, place.path(TRACER, "count.bt")]
        argv.append(place.provider_path_for_tracer(server_path))
        place.start(TRACER, argv, environment={})
        await_text(place, TRACER, "trace.jsonl", "begun")
        place.write(SERVER, "go", b"")
        await_output(place, SERVER, "fired")
        place.interrupt(TRACER)
        assert place.wait(TRACER, timeout_s=10) == 0
        lines = place.read(TRACER, "trace.jsonl").decode().splitlines()
    records = [json.loads(line) for line in lines if line]
    assert {"type": "map", "data": {"@writes": FIRE_COUNT}} in records


def test_line_longer_than_the_engines_chunks_comes_back_whole(place: DockerPlace) -> None:
    """Engines cut log records at 16 KiB; a role's one JSON line may be longer."""
    place.start(CLIENT, ["python", "-c", "print('x' * 40_000)"], environment={})
    assert place.wait(CLIENT, timeout_s=20) == 0
    assert place.output(CLIENT)[0] == "x" * 40_000 + "\n"


def test_role_that_cannot_be_started_leaves_nothing_behind() -> None:
    """Its container waits in vain for words; leaving the place removes it."""
    run_id = make_run_id()
    with (
        pytest.raises(RunError, match=r"the server container cannot be started: .*no-such-program"),
        make_runner().open(run_id, max_mtu_bytes=1500, tracer_count=1) as place,
    ):
        place.start(SERVER, ["no-such-program"], environment={})
    assert list_made(run_id) == []


def test_question_to_a_role_that_died_is_answered_by_its_last_words() -> None:
    """Not by a time-out, and not by the engine's own words."""
    with make_runner().open(make_run_id(), max_mtu_bytes=1500, tracer_count=1) as place:
        dying = "import sys; print('first', file=sys.stderr); sys.exit('no room')"
        place.start(SERVER, ["python", "-c", dying], environment={})
        with pytest.raises(RoleExitedError) as caught:
            place.request(SERVER, "describe")
    assert (caught.value.exit_status, caught.value.last_words) == (1, "no room")


@pytest.mark.slow
def test_question_that_was_broken_off_leaves_its_answer_to_nobody() -> None:
    """After a signal in the middle of one question the next one gets its own answer."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Interruption(signal.Signals(number).name)

    with make_runner().open(make_run_id(), max_mtu_bytes=9000, tracer_count=1) as place:
        place.start(SERVER, server_command(SCENARIO, place), environment={})
        previous = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(Interruption):
                place.request(SERVER, "describe")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, previous)
        assert "rings_empty" in place.request(SERVER, "report")


def test_leftovers_of_a_dead_run_are_removed_and_those_of_others_stay() -> None:
    """Removed: this host's run whose process is known to be dead. Live, unknown, elsewhere: not."""
    client = need_engine().client
    dead, live, unknown, elsewhere = (make_run_id() for _ in range(4))
    alive: dict[str, bool | None] = {dead: False, live: True, elsewhere: False}
    try:
        for run_id in (dead, live, unknown, elsewhere):
            host = "another" if run_id == elsewhere else compute_host_id()
            labels = {RUN_LABEL: run_id, HOST_LABEL: host}
            client.containers.create(need_image().image_id, name=f"quiclab-{run_id}", labels=labels)
            client.networks.create(f"quiclab-{run_id}", labels=labels, internal=True)
        assert {dead, live, unknown} <= set(find_runs(need_engine()))
        said = make_runner(is_run_alive=alive.get).remove_leftovers()
        assert [line for line in said if dead in line] == [
            f"removed container quiclab-{dead}",
            f"removed network quiclab-{dead}",
        ]
        assert list_made(dead) == []
        for run_id in (live, unknown, elsewhere):
            assert list_made(run_id) == [f"quiclab-{run_id}"] * 2
    finally:
        for run_id in (dead, live, unknown, elsewhere):
            remove_run(need_engine(), run_id)


@pytest.mark.slow
def test_run_of_a_killed_process_is_removed_by_the_next_one() -> None:
    """SIGKILL leaves containers and a network; the registry of runs tells that nobody owns them."""
    need_engine()
    run_id = make_run_id()
    code = f"""
import os, signal
from tests.quiclab.runner.test_docker import SERVER, SLEEP, make_runner
with make_runner().open({run_id!r}, max_mtu_bytes=1500, tracer_count=1) as place:
    place.start(SERVER, SLEEP, environment={{}})
    os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(__file__).resolve().parents[3]
    killed = subprocess.run([sys.executable, "-c", code], cwd=root, timeout=120, check=False)
    assert killed.returncode == -9
    assert len(list_made(run_id)) == len(("server", "client", "tracer", "network"))
    make_runner().remove_leftovers()
    assert list_made(run_id) == []


def test_capability_that_the_engine_lacks_is_refused_by_name_before_anything_is_made() -> None:
    """The engine's own message, "unable to apply caps", names none."""
    engine = pretend(need_engine(), bounding_set=ALL - {"SYS_PTRACE"})
    runner = DockerRunner(engine, need_image(), load_compose({}))
    with pytest.raises(MachineError, match="the tracer needs CAP_SYS_PTRACE"):
        runner.preflight()


def test_privileged_on_an_engine_that_lacks_a_capability_falls_back_to_the_list() -> None:
    """The engine would refuse a privileged container; the run works, and says what it has."""
    engine = pretend(need_engine(), bounding_set=ALL - {"SYS_RESOURCE"})
    runner = DockerRunner(engine, need_image(), load_compose({}), is_privileged=True)
    with runner.open(make_run_id(), max_mtu_bytes=1500, tracer_count=1) as place:
        said = "\n".join(place.facts.notes)
        assert said == (
            "tracer: not privileged but with SYS_ADMIN, SYS_PTRACE; "
            "the engine has no CAP_SYS_RESOURCE to give"
        )
        place.start(TRACER, ["python", "-c", "pass"], environment={})
        assert place.wait(TRACER, timeout_s=20) == 0


def test_image_that_is_gone_is_one_line_and_leaves_nothing() -> None:
    """Somebody pruned it between two runs."""
    gone = Image("quiclab:gone", "sha256:" + "0" * 64, need_image().architecture, is_cached=True)
    run_id = make_run_id()
    runner = DockerRunner(need_engine(), gone, load_compose({}))
    with (
        pytest.raises(MachineError, match="the engine has no image quiclab:gone any more"),
        runner.open(run_id, max_mtu_bytes=1500, tracer_count=1),
    ):
        pytest.fail("the place opened")
    assert list_made(run_id) == []


def test_header_folder_that_the_host_lacks_is_left_out_and_not_made(tmp_path: Path) -> None:
    """An engine asked in the old way makes the missing folder, owned by root."""
    absent = tmp_path / "modules"
    settings = replace(load_compose({}), header_folders=(str(absent), str(tmp_path)))
    runner = DockerRunner(need_engine(), need_image(), settings, has_host_headers=True)
    with runner.open(make_run_id(), max_mtu_bytes=1500, tracer_count=1) as place:
        assert place.facts.details["header_folders"] == [str(tmp_path)]
        assert place.facts.notes == (f"tracer: the engine's host has no {absent}",)
    assert not absent.exists()


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # the SDK's, when refused
def test_engine_that_goes_away_is_an_error_of_the_run_and_the_next_one_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback of the SDK: a line that says what could not be done, also when leaving."""
    engine = need_engine()
    need_image()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    need(engine.address.url.startswith("unix://"), "an engine behind a Unix socket")
    run_id = make_run_id()

    def lose_the_engine(runner: DockerRunner, relay: Relay) -> None:
        with runner.open(run_id, max_mtu_bytes=1500, tracer_count=1) as place:
            place.start(SERVER, SLEEP, environment={})
            relay.cut()
            with pytest.raises(RunError, match="does not say how the server container ended"):
                place.wait(SERVER, timeout_s=20)
            for ask in (place.output, place.interrupt, lambda role: place.read(role, "x")):
                with pytest.raises(RunError, match="the server container"):
                    ask(SERVER)

    with relay_engine(tmp_path, engine.address.url) as relay:
        cuttable = connect_engine(EngineAddress(relay.url, "test", is_chosen=True))
        runner = DockerRunner(cuttable, need_image(), load_compose({}))
        with pytest.raises(RunError, match=f"what run {run_id} made cannot be listed for removal"):
            lose_the_engine(runner, relay)
        cuttable.close()
    gc.collect()
    assert len(list_made(run_id)) == len(("server", "client", "tracer", "network"))
    try:
        make_runner().remove_leftovers()
        assert list_made(run_id) == []
    finally:
        remove_run(engine, run_id)


def test_host_has_a_name_of_its_own() -> None:
    """Short enough for a label, and no plain machine id."""
    assert len(compute_host_id()) == 16
    assert platform.node() not in compute_host_id()
