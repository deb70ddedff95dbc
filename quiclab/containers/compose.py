"""
Reader of compose.yaml: what each role of a run may do, said in one place.

`docker-compose` reads the same file for the pair by hand. What the lab does not
act on (images, commands, what waits for what) is read and checked all the same:
a key that is not known here is an error, so that no setting is lost in silence.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from quiclab.errors import LabError
from quiclab.runner.base import CLIENT, SERVER, TRACER

COMPOSE_FILE = Path(__file__).resolve().parents[2] / "compose.yaml"
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:(:?-)([^}]*))?\}|(\$))")


class ComposeError(LabError):
    """compose.yaml does not say what the lab can act on."""


@dataclass(frozen=True, slots=True)
class Ulimit:
    """
    One resource limit; -1 is unlimited.
    """

    name: str
    soft: int
    hard: int


@dataclass(frozen=True, slots=True)
class RoleSettings:
    """
    What one role's container may do.

    Args:
        dropped_capabilities: Taken away first; "ALL" is all.
        capabilities: Given then, names without `CAP_`.
        optional_capabilities: Those of them that the role can work without.
        is_networked: Whether it is on the run's network, or on none.
        pid_mode: "host", or None for PIDs of its own.
        has_init: Whether a small init runs as PID 1.
        tmpfs: Options by mount point.
        ulimits: Resource limits.
        security_options: As the engine takes them.
    """

    dropped_capabilities: tuple[str, ...]
    capabilities: tuple[str, ...]
    optional_capabilities: tuple[str, ...]
    is_networked: bool
    pid_mode: str | None
    has_init: bool
    tmpfs: Mapping[str, str]
    ulimits: tuple[Ulimit, ...]
    security_options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """
    The network of a run; the MTU among the options is the scenario's to set.
    """

    driver: str
    is_internal: bool
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LabSettings:
    """
    All that compose.yaml says to the lab.
    """

    roles: Mapping[str, RoleSettings]
    network: NetworkSettings
    header_folders: tuple[str, ...]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Limit(_Strict):
    soft: int
    hard: int


class _Build(_Strict):
    context: str
    target: str
    args: dict[str, str] = {}


class _Health(_Strict):
    test: list[str]
    interval: str
    timeout: str
    retries: int


class _Dependency(_Strict):
    condition: Literal["service_started", "service_healthy", "service_completed_successfully"]


_Capability = Annotated[str, Field(pattern=r"^[A-Z_]+$")]
_Tmpfs = Annotated[str, Field(pattern=r"^/[^:]+(:.*)?$")]
_SecurityOption = Annotated[str, Field(pattern=r"^[a-z-]+([:=].+)?$")]


class _Service(_Strict):
    image: str
    build: _Build
    command: list[str] = []
    depends_on: dict[str, _Dependency] = {}
    healthcheck: _Health | None = None
    profiles: list[str] = []
    stop_signal: str = "SIGTERM"
    networks: list[str] = []
    network_mode: Literal["none"] | None = None
    cap_drop: list[_Capability] = []
    cap_add: list[_Capability] = []
    optional_capabilities: list[_Capability] = Field(default=[], alias="x-optional-capabilities")
    pid: Literal["host"] | None = None
    init: bool = False
    tmpfs: list[_Tmpfs] = []
    ulimits: dict[str, int | _Limit] = {}
    security_opt: list[_SecurityOption] = []

    @model_validator(mode="after")
    def _check_optional_are_asked_for(self) -> Self:
        unasked = set(self.optional_capabilities) - set(self.cap_add)
        if unasked:
            raise ValueError(f"x-optional-capabilities not in cap_add: {', '.join(unasked)}")
        return self

    def to_settings(self) -> RoleSettings:
        mounts = (entry.partition(":") for entry in self.tmpfs)
        return RoleSettings(
            dropped_capabilities=tuple(self.cap_drop),
            capabilities=tuple(self.cap_add),
            optional_capabilities=tuple(self.optional_capabilities),
            is_networked=self.network_mode is None,
            pid_mode=self.pid,
            has_init=self.init,
            tmpfs={path: options for path, _, options in mounts},
            ulimits=tuple(_to_ulimit(name, limit) for name, limit in self.ulimits.items()),
            security_options=tuple(self.security_opt),
        )


def _to_ulimit(name: str, limit: int | _Limit) -> Ulimit:
    if isinstance(limit, int):
        return Ulimit(name, limit, limit)
    return Ulimit(name, limit.soft, limit.hard)


class _Network(_Strict):
    driver: str = "bridge"
    internal: bool = False
    driver_opts: dict[str, str] = {}


class _File(_Strict):
    services: dict[str, _Service]
    networks: dict[str, _Network]
    kernel_headers: list[str] = Field(default=[], alias="x-kernel-headers")
    image: dict[str, Any] = Field(default={}, alias="x-image")  # an anchor; its users are checked

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        expected = {SERVER, CLIENT, TRACER}
        if set(self.services) != expected:
            raise ValueError(
                f"services are {', '.join(self.services)}; expected {', '.join(sorted(expected))}"
            )
        if len(self.networks) != 1:
            raise ValueError(f"{len(self.networks)} networks; expected one")
        return self


def parse_compose(text: str, environment: Mapping[str, str], *, name: str) -> LabSettings:
    """
    Read compose.yaml's text.

    Args:
        text: YAML.
        environment: Values of `${NAME:-default}`.
        name: What to call the file in errors.

    Raises:
        ComposeError: It is no YAML, or holds a key or a value that is not known here.
    """
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ComposeError(f"{name} is no YAML: {' '.join(str(error).split())}") from error
    try:
        file = _File.model_validate(_interpolate(content, environment, name))
    except ValidationError as error:
        raise ComposeError(f"{name}: {_render_first_error(error)}") from error
    return LabSettings(
        roles={role: service.to_settings() for role, service in file.services.items()},
        network=next(
            NetworkSettings(network.driver, network.internal, network.driver_opts)
            for network in file.networks.values()
        ),
        header_folders=tuple(file.kernel_headers),
    )


def load_compose(environment: Mapping[str, str], path: Path = COMPOSE_FILE) -> LabSettings:
    """
    Read the file.

    Raises:
        ComposeError: As `parse_compose`, or it cannot be read.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise ComposeError(f"{path} cannot be read: {error.strerror}") from error
    return parse_compose(text, environment, name=path.name)


def _interpolate(value: Any, environment: Mapping[str, str], name: str) -> Any:
    """
    Put variables in, as docker-compose does: `${X}`, `${X-d}`, `${X:-d}`, `$$` for a dollar.
    """
    if isinstance(value, dict):
        return {k: _interpolate(v, environment, name) for k, v in value.items()}
    if isinstance(value, list):
        return [_interpolate(v, environment, name) for v in value]
    if not isinstance(value, str):
        return value

    def fill(match: re.Match[str]) -> str:
        variable, operator, default, dollar = match.groups()
        if dollar:
            return "$"
        given = environment.get(variable)
        if given is None or (operator == ":-" and not given):
            if operator is None:
                raise ComposeError(f"{name}: ${{{variable}}} is not set and has no default")
            return str(default)
        return given

    filled = _VARIABLE.sub(fill, value)
    if "$" in _VARIABLE.sub("", value):
        raise ComposeError(f"{name}: {value!r} holds a $ that is no ${{NAME}} or $$")
    return filled


def _render_first_error(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"]) or "the file"
    if first["type"] == "extra_forbidden":
        return (
            f"{place} is not a key the lab knows, so it would be lost in silence; "
            "remove it, or teach quiclab/containers/compose.py what it means"
        )
    if first["type"] == "missing":
        return f"{place} is missing"
    words = first["msg"].removeprefix("Value error, ")
    return f"{place}: {words}" + (
        "" if first["type"] == "value_error" else f" (is {first['input']!r})"
    )
