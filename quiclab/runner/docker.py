"""
Runs in Docker containers: what they may do is settled here, before anything is created.

`quiclab/runner/docker_place.py` then makes the network and the containers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from quiclab import leftovers
from quiclab.containers.capabilities import find_missing_for_privileged, plan_capabilities
from quiclab.containers.compose import LabSettings, RoleSettings
from quiclab.containers.engine import (
    Engine,
    check_architecture,
    check_engine_can_trace,
    engine_errors,
    find_unknown_capabilities,
    select_security_options,
)
from quiclab.containers.image import Image
from quiclab.runner.base import CLIENT, SERVER, TRACER, tracer_roles
from quiclab.runner.docker_place import (
    HOST_LABEL,
    RUN_LABEL,
    Blueprint,
    DockerPlace,
    Filters,
    RolePlan,
    compute_host_id,
    remove_run,
)


@dataclass(slots=True)
class DockerRunner:
    """
    Opens places on one engine, from one image.

    Args:
        engine: Where the containers run.
        image: What they run.
        settings: What they may do (compose.yaml).
        is_privileged: Ask for a privileged tracer where the engine can start one.
        has_host_headers: Mount the kernel headers of the engine's host into the tracer.
        is_run_alive: Whether the process behind a run lives; None when that is not known here.
    """

    engine: Engine
    image: Image
    settings: LabSettings
    is_privileged: bool = False
    has_host_headers: bool = False
    is_run_alive: Callable[[str], bool | None] = leftovers.is_run_alive
    name: str = "docker"
    _blueprint: Blueprint | None = field(default=None, init=False)

    def preflight(self, *, is_traced: bool = True) -> None:
        """
        Compare what the roles need with what the engine has.

        Raises:
            MachineError: The engine cannot trace, or lacks a capability; named.
        """
        self._blueprint = self._draw(is_traced=is_traced)

    def _draw(self, *, is_traced: bool = True) -> Blueprint:
        facts = self.engine.facts
        if is_traced:
            check_engine_can_trace(facts)
        check_architecture(
            facts, image_architecture=self.image.architecture, image_tag=self.image.tag
        )
        roles = self.settings.roles
        wanted = dict.fromkeys(name for role in roles.values() for name in role.capabilities)
        unknown = find_unknown_capabilities(self.engine, list(wanted))
        plans = {name: self._plan(name, role, unknown) for name, role in roles.items()}
        return Blueprint(
            engine=self.engine,
            image=self.image,
            network=self.settings.network,
            plans=plans,
            header_folders=self.settings.header_folders if self.has_host_headers else (),
            notes=tuple(note for plan in plans.values() for note in plan.notes),
        )

    def _plan(self, name: str, role: RoleSettings, unknown: frozenset[str]) -> RolePlan:
        facts = self.engine.facts
        capabilities = plan_capabilities(
            name,
            role.capabilities,
            optional=role.optional_capabilities,
            unknown=unknown,
            bounding_set=facts.bounding_set,
        )
        notes = list(capabilities.notes)
        is_privileged = self.is_privileged and name == TRACER
        missing = find_missing_for_privileged(facts.bounding_set) if is_privileged else []
        if missing:
            notes.append(
                f"tracer: not privileged but with {', '.join(capabilities.granted)}; the engine "
                f"has no {', '.join(f'CAP_{name}' for name in missing)} to give"
            )
        return RolePlan(
            settings=role,
            capabilities=capabilities.granted,
            security_options=tuple(select_security_options(role.security_options, facts)),
            is_privileged=is_privileged and not missing,
            notes=tuple(notes),
        )

    def open(self, run_id: str, *, max_mtu_bytes: int, tracer_count: int) -> DockerPlace:
        """
        Open a place on this engine; network and containers are made on entering it.
        """
        if self._blueprint is None:
            self._blueprint = self._draw()
        return DockerPlace(
            self._blueprint,
            run_id,
            mtu_bytes=max_mtu_bytes,
            roles=[SERVER, CLIENT, *tracer_roles(tracer_count)],
        )

    def remove_leftovers(self) -> list[str]:
        """
        Remove what runs left whose process on this host is dead; runs of other hosts stay.
        """
        said: list[str] = []
        settled = leftovers.find_settled_runs(self.name, engine_url=self.engine.address.url)
        for run_id in find_runs(self.engine):
            if self.is_run_alive(run_id) is False:
                said += remove_run(self.engine, run_id)
        # Only now: the records are what tells a dead run from an unknown one.
        leftovers.forget_runs(settled)
        return said


def find_runs(engine: Engine) -> list[str]:
    """
    Name the runs of this host that have anything on the engine.
    """
    filters: Filters = {"label": [RUN_LABEL, f"{HOST_LABEL}={compute_host_id()}"]}
    with engine_errors("what earlier runs left on the engine cannot be listed"):
        containers = engine.client.containers.list(all=True, filters=filters, ignore_removed=True)
        networks = engine.client.networks.list(filters=filters)
    found = [
        *(container.labels for container in containers),
        *(network.attrs["Labels"] for network in networks),
    ]
    return list(dict.fromkeys(labels[RUN_LABEL] for labels in found))
