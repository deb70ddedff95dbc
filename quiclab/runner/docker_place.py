"""
One run's network and containers.

Everything made carries the label `quiclab=<run id>`, and leaving the place
removes whatever has that label: also containers that could not be started.
"""

import contextlib
import hashlib
import itertools
import json
import platform
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Self

from docker.errors import NotFound
from docker.types import IPAMConfig, IPAMPool, LogConfig, Mount, Ulimit

from quiclab import leftovers
from quiclab.containers.compose import NetworkSettings, RoleSettings
from quiclab.containers.engine import SDK_ERRORS, Engine, engine_errors, find_reason
from quiclab.containers.image import Image
from quiclab.errors import MachineError, RunError
from quiclab.runner.base import CLIENT, SERVER, TRACER, PlaceFacts
from quiclab.runner.container import Container
from quiclab.runner.drops import parse_udp_counters, parse_udp_sockets, summarize_drops

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
CONTROL_SOCKET = "control.sock"
CONTROL_WAIT_S = 15.0  # until a role listens: Python's imports take 1 s, more on a busy machine
_NOBODY_THERE = 4  # exit status of server.control
_REMOVAL_TRIES = 10
_REMOVAL_PAUSE_S = 0.3
_SUBNET_TRIES = 3
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
    Where one run lives, in containers. Entering makes its network, roles come as they start.
    """

    facts: PlaceFacts
    _record: leftovers.LiveRun

    def __init__(self, blueprint: Blueprint, run_id: str, *, mtu_bytes: int) -> None:
        self._blueprint = blueprint
        self._engine = blueprint.engine
        self._run_id = run_id
        self._mtu_bytes = mtu_bytes
        self._network = f"quiclab-{run_id}"
        self._addresses: dict[str, str] = {}
        self._containers: dict[str, Container] = {}
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
            with ThreadPoolExecutor(max_workers=1) as pool:
                versions = pool.submit(self._collect_versions)
                with self._record.creation():
                    self._addresses = self._create_network()
            self.facts = self._describe(versions.result())
            self._undo = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._undo.close()

    def _remove_all(self) -> None:
        with self._record.removal():
            remove_run(self._engine, self._run_id)

    # Files and names -----------------------------------------------------------------

    def path(self, role: str, name: str) -> str:  # noqa: ARG002  each role has a container of its own
        """In the container's own layer, so that it outlives the role."""
        return f"{WORK_FOLDER}/{name}"

    def probe_directory(self) -> str:
        """The server's tmpfs: an inode of its own, shared with no other container."""
        return PROBE_FOLDER

    def provider_path_for_tracer(self, server_path: str) -> str:
        """Through the server's root folder, as the tracer with the host's PIDs sees it."""
        return f"/proc/{self._role(SERVER).host_pid()}/root{server_path}"

    def server_address(self) -> str:
        """An address on the run's network that is the server's alone."""
        return self._addresses[SERVER]

    def write(self, role: str, name: str, data: bytes) -> None:
        """Put a file there; before the role starts it is kept here until then."""
        if role in self._containers:
            self._containers[role].put(WORK_FOLDER, {name: data})
        else:
            self._early_files.setdefault(role, {})[name] = data

    def read(self, role: str, name: str) -> bytes:
        """Fetch a file from the container, which need not run any more."""
        if role not in self._containers:
            try:
                return self._early_files[role][name]
            except KeyError as error:
                raise FileNotFoundError(f"{name}: {role} was not started") from error
        return self._containers[role].get(self.path(role, name))

    # Roles ---------------------------------------------------------------------------

    def start(self, role: str, argv: Sequence[str], *, environment: Mapping[str, str]) -> None:
        """Create the role's container, put its files in, start it."""
        if role in self._containers:
            raise RunError(f"{role} was already started; a place starts each role once")
        command = [PYTHON if argv[0] == "python" else argv[0], *argv[1:]]
        if role.startswith(TRACER):
            command = [TRACER_ENTRY, *command]
        container = self._create(role, command, environment=environment)
        self._containers[role] = container
        files = self._early_files.pop(role, {})
        if files:
            container.put(WORK_FOLDER, files)
        container.start()

    def request(self, role: str, op: str, **arguments: Any) -> Mapping[str, Any]:
        """Ask by running `python -m server.control` beside the role."""
        container = self._role(role)
        socket_path = self.path(role, CONTROL_SOCKET)
        argv = [PYTHON, "-m", "server.control", socket_path, "--wait", f"{CONTROL_WAIT_S:g}", op]
        if arguments:
            argv.append(json.dumps(arguments))
        answered = container.run(argv)
        if answered.exit_status == _NOBODY_THERE and container.exit_status() is None:
            raise RunError(f"{role} did not listen for questions within {CONTROL_WAIT_S:g} s")
        if answered.exit_status not in {0, 1}:
            # The command ended with the container, or found nobody because it is ending.
            raise container.exited()
        return _parse_answer(role, op, answered.stdout, answered.stderr)

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

    def socket_drops(self) -> Mapping[str, Any]:
        """Read in the server's network namespace, which nobody else uses."""
        server = self._role(SERVER)
        # One command for all three: snmp's first line begins with Ip, and udp6 may be absent.
        said = server.run(["cat", *(f"/proc/net/{name}" for name in ("udp", "udp6", "snmp"))])
        sockets, _, counters = said.stdout.partition("Ip: ")
        return summarize_drops(parse_udp_sockets(sockets), parse_udp_counters(counters))

    def _role(self, role: str) -> Container:
        try:
            return self._containers[role]
        except KeyError as error:
            raise RunError(f"{role} was not started") from error

    # What is made --------------------------------------------------------------------

    def _labels(self, role: str) -> dict[str, str]:
        return {RUN_LABEL: self._run_id, HOST_LABEL: compute_host_id(), ROLE_LABEL: role}

    def _create_network(self) -> dict[str, str]:
        """
        Make the network twice: the engine chooses a free subnet, then is asked for that one.

        Only in a subnet that was asked for may a container have a chosen address,
        and the server's must be known before it starts.
        """
        networks = self._engine.client.networks
        settings = self._blueprint.network
        asked: dict[str, Any] = {
            "driver": settings.driver,
            "check_duplicate": True,  # containers name it, and old engines allow a name twice
            "options": {**settings.options, MTU_OPTION: str(self._mtu_bytes)},
            "internal": settings.is_internal,
            "labels": self._labels("network"),
        }
        reason = ""
        for _ in range(_SUBNET_TRIES):
            try:
                trial = networks.create(self._network, **asked)
                trial.reload()
                subnet = trial.attrs["IPAM"]["Config"][0]["Subnet"]
                trial.remove()
                # The first address is the host's own on the bridge, also where none is said.
                gateway, server, client = itertools.islice(ip_network(subnet).hosts(), 3)
                chosen = IPAMPool(subnet=subnet, gateway=str(gateway))
                networks.create(self._network, ipam=IPAMConfig(pool_configs=[chosen]), **asked)
            except SDK_ERRORS as error:
                reason = find_reason(error)
                continue  # another program took the subnet in between
            return {SERVER: str(server), CLIENT: str(client)}
        raise RunError(f"the engine makes no network with an MTU of {self._mtu_bytes}: {reason}")

    def _collect_versions(self) -> dict[str, str]:
        """
        Read what the image holds from a file in it that its build wrote.

        The container for that is never started; creating it also shows which
        header folders the engine's host has.
        """
        container = self._create(TRACER, [PYTHON], environment={}, suffix="-versions")
        try:
            versions: dict[str, str] = json.loads(container.get(VERSIONS_FILE))
        except FileNotFoundError as error:
            raise MachineError(
                f"image {self._blueprint.image.tag} holds no {VERSIONS_FILE}, so this project did "
                "not build it; run invoke build"
            ) from error
        finally:
            _remove_container(self._engine, container.container_id)
        return versions

    def _create(
        self, role: str, argv: Sequence[str], *, environment: Mapping[str, str], suffix: str = ""
    ) -> Container:
        api: Any = self._engine.client.api
        networking = None
        if role in self._addresses and self._blueprint.plan(role).settings.is_networked:
            endpoint = api.create_endpoint_config(ipv4_address=self._addresses[role])
            networking = api.create_networking_config({self._network: endpoint})
        while True:
            try:
                with self._record.creation():
                    made = api.create_container(
                        self._blueprint.image.image_id,
                        command=list(argv),
                        name=f"quiclab-{self._run_id}-{role}{suffix}",
                        hostname=role,
                        environment=dict(environment),
                        labels=self._labels(role),
                        host_config=api.create_host_config(**self._host_config(role)),
                        networking_config=networking,
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
            return Container(self._engine, made["Id"], role)

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


def _parse_answer(role: str, op: str, stdout: str, stderr: str) -> Mapping[str, Any]:
    try:
        answer = json.loads(stdout)
    except ValueError as error:
        words = (stderr or stdout).strip().splitlines()
        raise RunError(
            f"{role} did not answer {op!r} in JSON: {words[-1] if words else 'no words at all'}"
        ) from error
    if not isinstance(answer, dict):
        raise RunError(f"{role} answered {op!r} with {stdout.strip()!r}; expected a JSON object")
    if "error" in answer:
        raise RunError(f"{role} refused {op!r}: {answer['error']}")
    return answer


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
