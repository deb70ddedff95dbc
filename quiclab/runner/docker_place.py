"""
One run's network and containers.

Everything made carries the label `quiclab=<run id>`, and leaving the place
removes whatever has that label: also containers that could not be started.
"""

import contextlib
import hashlib
import json
import platform
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from docker.errors import NotFound
from docker.types import LogConfig, Mount, Ulimit

from quiclab import leftovers
from quiclab.containers.compose import NetworkSettings, RoleSettings
from quiclab.containers.engine import SDK_ERRORS, Engine, engine_errors, find_reason
from quiclab.containers.image import Image
from quiclab.errors import MachineError, RunError
from quiclab.runner.base import CLIENT, SERVER, TRACER, PlaceFacts
from quiclab.runner.container import Container, Words
from quiclab.runner.look import Watched, take_reading
from quiclab.runner.reading import Reading

RUN_LABEL = "quiclab"
HOST_LABEL = "quiclab.host"
ROLE_LABEL = "quiclab.role"
MTU_OPTION = "com.docker.network.driver.mtu"
# Places inside the image, see the Dockerfile.
WORK_FOLDER = "/var/lib/quiclab"
PROBE_FOLDER = "/run/quiclab"
PYTHON = "/opt/venv/bin/python"
VERSIONS_FILE = "/opt/venv/versions.json"
TRACER_ENTRY = "/opt/quiclab/docker/tracer-entry"
TIMED = "/opt/quiclab/docker/timed"
CONTROL_SOCKET = "control.sock"
HELD = "/opt/quiclab/docker/held"
# A server of 256 workers and what looks after it; a fork bomb ends here (cgroups, pids.max).
MOST_PROCESSES: Final = 1024
CONTROL_WAIT_S = 15.0  # until a role listens: Python's imports take 1 s, more on a busy machine
# What the held client imports while it waits for its words, beside the server's start: 0.3 s
# of a run. The server gains nothing by it, and is started as anybody would.
_IMPORTED: Final = "client.load"
_MOST_AT_ONCE = 4  # requests to the engine; on two cores three starts take half of their time
_REMOVAL_TRIES = 10
_REMOVAL_PAUSE_S = 0.3
_MISSING_SOURCE = re.compile(r"bind source path does not exist: (\S+)")


Filters = dict[str, str | list[str] | bool]
"""How the SDK wants to be told which containers to list."""


@dataclass(frozen=True, slots=True)
class RolePlan:
    """
    What one role asks of the engine, after it was compared with what the engine has.
    """

    settings: RoleSettings
    capabilities: tuple[str, ...]
    security_options: tuple[str, ...]
    is_privileged: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Blueprint:
    """
    All that a place is made from.
    """

    engine: Engine
    image: Image
    network: NetworkSettings
    plans: Mapping[str, RolePlan]
    header_folders: tuple[str, ...]
    notes: tuple[str, ...]

    def plan(self, role: str) -> RolePlan:
        """
        What a role may do; every tracer may do the same.
        """
        return self.plans[TRACER if role.startswith(TRACER) else role]


class DockerPlace:
    """
    Where one run lives, in containers. Entering makes its network and starts all of them at
    once, each held by docker/held until `start` says what it shall become.
    """

    facts: PlaceFacts
    _record: leftovers.LiveRun

    def __init__(
        self, blueprint: Blueprint, run_id: str, *, mtu_bytes: int, roles: Sequence[str]
    ) -> None:
        self._blueprint = blueprint
        self._roles = roles
        self._engine = blueprint.engine
        self._run_id = run_id
        self._mtu_bytes = mtu_bytes
        self._network = f"quiclab-{run_id}"
        self._addresses: dict[str, str] = {}
        self._containers: dict[str, Container] = {}
        self._timed: set[str] = set()
        self._early_files: dict[str, dict[str, bytes]] = {}
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            # On record first and forgotten last: what a killed process leaves can be told.
            self._record = stack.enter_context(
                leftovers.register(self._run_id, runner_name="docker")
            )
            self._record.note_engine(self._engine.address.url)
            stack.callback(self._remove_all)
            versions = self._make_all()
            self._addresses = {role: self._find_address(role) for role in (SERVER, CLIENT)}
            self.facts = self._describe(versions)
            self._undo = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._undo.close()

    def _make_all(self) -> dict[str, str]:
        """
        Network and containers, as much as possible at once; what the image says of itself.
        """
        with self._record.creation(), ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
            network = pool.submit(self._create_network)
            # One tracer after the other: the first one finds out which header folders there are.
            tracers = [self._create(role) for role in self._roles if role.startswith(TRACER)]
            early = [pool.submit(self._read_versions, tracer) for tracer in tracers[:1]]
            network.result()
            starts = []
            for role in self._roles:
                made = self._containers.get(role) or self._create(role)
                starts.append(pool.submit(made.start))
            for start in starts:
                start.result()
            if early:
                return early[0].result()
            return self._read_versions(self._containers[SERVER])  # nobody traces this run

    def _remove_all(self) -> None:
        with self._record.removal(), contextlib.ExitStack() as stack:
            stack.callback(remove_run, self._engine, self._run_id)  # whatever closing says
            for container in self._containers.values():
                container.close()

    # Files and names -----------------------------------------------------------------

    def path(self, role: str, name: str) -> str:  # noqa: ARG002  each role has a container of its own
        """In the container's own layer, so that it outlives the role."""
        return f"{WORK_FOLDER}/{name}"

    def probe_directory(self) -> str:
        """The server's tmpfs: an inode of its own, shared with no other container."""
        return PROBE_FOLDER

    def provider_path_for_tracer(self, server_path: str) -> str:
        """Through the server's root folder, as the tracer with the host's PIDs sees it."""
        server = self._role(SERVER)
        pid = int(server.inspect()["State"]["Pid"])
        if pid == 0:
            raise server.exited()
        return f"/proc/{pid}/root{server_path}"

    def server_address(self) -> str:
        """An address on the run's network that is the server's alone."""
        return self._addresses[SERVER]

    def write(self, role: str, name: str, data: bytes) -> None:
        """Put a file there; before the role starts it is kept here until then."""
        if self._containers[role].is_told:
            self._containers[role].put(WORK_FOLDER, {name: data})
        else:
            self._early_files.setdefault(role, {})[name] = data

    def read(self, role: str, name: str) -> bytes:
        """Fetch a file from the container, which need not run any more."""
        if not self._containers[role].is_told:
            try:
                return self._early_files[role][name]
            except KeyError as error:
                raise FileNotFoundError(f"{name}: {role} was not started") from error
        return self._containers[role].get(self.path(role, name))

    # Roles ---------------------------------------------------------------------------

    def start(self, role: str, argv: Sequence[str], *, environment: Mapping[str, str]) -> None:
        """Tell the role's container what to become, and give it its files."""
        container = self._containers[role]
        if container.is_told:
            raise RunError(f"{role} was already started; a place starts each role once")
        match argv[0]:
            case "python":
                command = [PYTHON, *argv[1:]]
            case "bpftrace":
                command = [TRACER_ENTRY, *argv]
            case "timed":
                command = [PYTHON, "-IS", TIMED, TRACER_ENTRY, *argv[1:]]
                self._timed.add(role)
            case program:
                raise RunError(
                    f"the {role} container cannot be started: it is made for python and bpftrace, "
                    f"not for {program}"
                )
        container.tell(Words(command, environment, self._early_files.pop(role, {})))

    def request(self, role: str, op: str, **arguments: Any) -> Mapping[str, Any]:
        """Ask by the courier in the role's container."""
        socket_path = self.path(role, CONTROL_SOCKET)
        answer = self._role(role).ask(socket_path, op, arguments, wait_s=CONTROL_WAIT_S)
        if "error" in answer:
            raise RunError(f"{role} refused {op!r}: {answer['error']}")
        return answer

    def exit_status(self, role: str) -> int | None:
        """As the engine says: 128 + n when signal n ended it."""
        return self._role(role).exit_status()

    def wait(self, role: str, *, timeout_s: float) -> int:
        """Wait for the container's end."""
        return self._role(role).wait(timeout_s=timeout_s)

    def interrupt(self, role: str) -> None:
        """Send SIGINT to the container's main process."""
        self._role(role).signal("SIGINT")

    def terminate(self, role: str) -> None:
        """Send SIGTERM to the container's main process."""
        self._role(role).signal("SIGTERM")

    def kill(self, role: str) -> None:
        """Send SIGKILL to the container's main process, and with it to all others."""
        self._role(role).signal("SIGKILL")

    def output(self, role: str) -> tuple[str, str]:
        """Read from the engine's log of the container."""
        return self._role(role).output()

    def uptime_s(self, role: str) -> float:
        """By the engine's own times once it ended."""
        return self._role(role).uptime_s()

    def read_costs(self) -> Reading:
        """Look at `/proc` in each container; the server's network namespace is its alone."""
        watched = {
            role: Watched(container.look, self._find_pid(role), is_timed=role in self._timed)
            for role, container in self._containers.items()
            if container.is_told and container.exit_status() is None
        }
        return take_reading(watched, at_s=time.monotonic(), is_namespace_shared=False)

    def _find_pid(self, role: str) -> int:
        """A role's first process, as processes in its container see it."""
        if self._blueprint.plan(role).settings.pid_mode != "host":
            return 1
        return int(self._containers[role].inspect()["State"]["Pid"])

    def _role(self, role: str) -> Container:
        container = self._containers.get(role)
        if container is None or not container.is_told:
            raise RunError(f"{role} was not started")
        return container

    # What is made --------------------------------------------------------------------

    def _labels(self, role: str) -> dict[str, str]:
        return {RUN_LABEL: self._run_id, HOST_LABEL: compute_host_id(), ROLE_LABEL: role}

    def _create_network(self) -> None:
        settings = self._blueprint.network
        try:
            self._engine.client.networks.create(
                self._network,
                driver=settings.driver,
                check_duplicate=True,  # containers name it, and old engines allow a name twice
                options={**settings.options, MTU_OPTION: str(self._mtu_bytes)},
                internal=settings.is_internal,
                labels=self._labels("network"),
            )
        except SDK_ERRORS as error:
            raise RunError(
                f"the engine makes no network with an MTU of {self._mtu_bytes}: "
                f"{find_reason(error)}"
            ) from error

    def _find_address(self, role: str) -> str:
        """The engine chose it when the container started."""
        networks = self._containers[role].inspect()["NetworkSettings"]["Networks"]
        address: str = networks[self._network]["IPAddress"]
        return address

    def _read_versions(self, container: Container) -> dict[str, str]:
        """
        Read what the image holds from a file in it that its build wrote.
        """
        try:
            versions: dict[str, str] = json.loads(container.unpack(VERSIONS_FILE))
        except FileNotFoundError as error:
            raise MachineError(
                f"image {self._blueprint.image.tag} holds no {VERSIONS_FILE}, so this project did "
                "not build it; run invoke build"
            ) from error
        return versions

    def _create(self, role: str) -> Container:
        api: Any = self._engine.client.api
        held = [PYTHON, HELD, "--folder", WORK_FOLDER, *([_IMPORTED] if role == CLIENT else [])]
        while True:
            try:
                made = api.create_container(
                    self._blueprint.image.image_id,
                    command=held,
                    name=f"quiclab-{self._run_id}-{role}",
                    hostname=role,
                    stdin_open=True,
                    labels=self._labels(role),
                    host_config=api.create_host_config(**self._host_config(role)),
                    use_config_proxy=False,
                )
            except NotFound as error:
                raise MachineError(
                    f"the engine has no image {self._blueprint.image.tag} any more; "
                    "run invoke build"
                ) from error
            except SDK_ERRORS as error:
                if self._drop_missing_headers(find_reason(error)):
                    continue
                raise RunError(
                    f"the {role} container cannot be created: {find_reason(error)}"
                ) from error
            container = Container(self._engine, made["Id"], role, python=PYTHON)
            self._containers[role] = container
            return container

    def _drop_missing_headers(self, explanation: str) -> bool:
        """
        Go without a header folder that the engine's host does not have.
        """
        match = _MISSING_SOURCE.search(explanation)
        folders = self._blueprint.header_folders
        if match is None or match[1] not in folders:
            return False
        self._blueprint = replace(
            self._blueprint,
            header_folders=tuple(folder for folder in folders if folder != match[1]),
            notes=(*self._blueprint.notes, f"tracer: the engine's host has no {match[1]}"),
        )
        return True

    def _host_config(self, role: str) -> dict[str, Any]:
        plan = self._blueprint.plan(role)
        settings = plan.settings
        folders = self._blueprint.header_folders if role.startswith(TRACER) else ()
        config: dict[str, Any] = {
            "network_mode": self._network if settings.is_networked else "none",
            "pid_mode": settings.pid_mode,
            "init": settings.has_init,
            "tmpfs": dict(settings.tmpfs),
            "ulimits": [
                Ulimit(name=limit.name, soft=limit.soft, hard=limit.hard)
                for limit in settings.ulimits
            ],
            "security_opt": list(plan.security_options),
            "pids_limit": MOST_PROCESSES,
            "mounts": [Mount(f, f, type="bind", read_only=True) for f in folders],
            # Whatever the engine's default is: what a role says must be readable afterwards.
            "log_config": LogConfig(type=LogConfig.types.JSON),
        }
        if plan.is_privileged:
            return {**config, "privileged": True}
        return {
            **config,
            "cap_drop": list(settings.dropped_capabilities),
            "cap_add": list(plan.capabilities),
        }

    def _describe(self, versions: Mapping[str, str]) -> PlaceFacts:
        engine, image = self._engine.facts, self._blueprint.image
        plans = self._blueprint.plans
        components = {name.lower(): v for name, v in engine.components.items() if name != "Engine"}
        return PlaceFacts(
            runner_name="docker",
            summary=f"docker ({engine.summary}), {image.summary}",
            versions={
                **versions,
                "bpftrace": versions["bpftrace"].partition("-")[0],  # without Debian's revision
                "bpftrace-package": versions["bpftrace"],
                "engine": engine.version,
                **components,
            },
            details={
                "image": image.tag,
                "image_id": image.image_id,
                "network": self._network,
                "mtu_bytes": self._mtu_bytes,
                "addresses": dict(self._addresses),
                "engine": {
                    "address": self._engine.address.url,
                    "api_version": engine.api_version,
                    "storage_driver": engine.storage_driver,
                    "cgroup_version": engine.cgroup_version,
                    "kernel": engine.kernel,
                    "operating_system": engine.operating_system,
                    "architecture": engine.architecture,
                },
                "capabilities": {
                    role: ["ALL"] if plan.is_privileged else list(plan.capabilities)
                    for role, plan in plans.items()
                },
                "security_options": {r: list(plan.security_options) for r, plan in plans.items()},
                "header_folders": list(self._blueprint.header_folders),
            },
            notes=self._blueprint.notes,
        )


def compute_host_id() -> str:
    """
    Name this host, so that the runs of other hosts on a shared engine are left alone.
    """
    try:
        machine = Path("/etc/machine-id").read_text().strip()
    except OSError:
        machine = ""
    return hashlib.sha256(f"quiclab {machine or platform.node()}".encode()).hexdigest()[:16]


def remove_run(engine: Engine, run_id: str) -> list[str]:
    """
    Remove every container and network of a run; says what, one line each.

    Raises:
        RunError: Something is left all the same; the line says how to find it.
    """
    filters: Filters = {"label": f"{RUN_LABEL}={run_id}"}
    removed: dict[str, None] = {}
    reasons: list[str] = []
    for _ in range(_REMOVAL_TRIES):
        with engine_errors(f"what run {run_id} made cannot be listed for removal"):
            containers = engine.client.containers.list(
                all=True, filters=filters, ignore_removed=True
            )
            networks = engine.client.networks.list(filters=filters)
        if not containers and not networks:
            return list(removed)
        with ThreadPoolExecutor(max_workers=4) as pool:
            reasons = list(
                pool.map(lambda made: _remove_container(engine, str(made.id)), containers)
            )
        reasons += [_remove_network(engine, str(network.id)) for network in networks]
        removed |= {f"removed container {made.name}": None for made in containers}
        removed |= {f"removed network {network.name}": None for network in networks}
        if any(reasons):
            time.sleep(_REMOVAL_PAUSE_S)  # a removal by somebody else may be under way
    raise RunError(
        f"run {run_id} left something that cannot be removed: {' / '.join(filter(None, reasons))}; "
        f"see `docker ps --all --filter label={RUN_LABEL}={run_id}`"
    )


def _remove_container(engine: Engine, container_id: str) -> str:
    """
    Remove one container, running or not; the reason when that fails.
    """
    try:
        engine.client.api.remove_container(container_id, force=True, v=True)
    except NotFound:
        pass  # it is gone, which is what was asked for
    except SDK_ERRORS as error:
        return find_reason(error)
    return ""


def _remove_network(engine: Engine, network_id: str) -> str:
    try:
        engine.client.api.remove_network(network_id)
    except NotFound:
        pass  # it is gone, which is what was asked for
    except SDK_ERRORS as error:
        return find_reason(error)
    return ""
