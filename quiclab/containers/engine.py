"""
The Docker engine: which one is meant, whether it answers, what it can grant.

The SDK alone would ignore `DOCKER_CONTEXT` and the current context of the
command line client, and would start the credential helpers that config.json
names. Both are handled here, once.
"""

import contextlib
import hashlib
import json
import platform
import re
import socket
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import requests
import urllib3
from docker.errors import APIError, DockerException, ImageNotFound
from docker.tls import TLSConfig

from quiclab.containers.capabilities import parse_capability_mask
from quiclab.errors import MachineError, RunError

DEFAULT_URL = "unix:///var/run/docker.sock"
ANSWER_TIMEOUT_S = 4.0  # a dead engine is one line in under 5 s
WORK_TIMEOUT_S = 60.0  # one request of a run; a busy engine takes seconds to create a container
# Validating the container's settings comes before looking for its image, so
# that asking for this one answers what the engine knows, and makes nothing.
_NO_SUCH_IMAGE = "quiclab-question:none"
_UNKNOWN_CAPABILITY = re.compile(r"unknown capability: \"?(?:CAP_)?([A-Z_]+)")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # uname's words to the image's


# What comes out of the SDK when the engine says no, or nothing any more: its own
# errors, those of the libraries under it, and plain ones of a socket it reads by itself.
SDK_ERRORS = (
    DockerException,
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    ConnectionError,
)


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """
    Where the engine is looked for.

    Args:
        url: As the SDK takes it.
        source: Who said so, in words for an error line.
        is_chosen: The user named it, so that it being dead is an error and no
            reason to run elsewhere.
        tls_folder: ca.pem, cert.pem and key.pem, or None.
        is_tls_verified: Whether the engine's certificate is checked.
    """

    url: str
    source: str
    is_chosen: bool
    tls_folder: Path | None = None
    is_tls_verified: bool = True


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """
    What the engine says of itself. `bounding_set` is None where nobody could read it.
    """

    version: str
    api_version: str
    components: Mapping[str, str]
    architecture: str
    os_type: str
    kernel: str
    operating_system: str
    storage_driver: str
    cgroup_version: str
    is_rootless: bool
    is_userns_remapped: bool
    has_apparmor: bool
    has_selinux: bool
    bounding_set: frozenset[str] | None

    @property
    def summary(self) -> str:
        """
        The engine in three words.
        """
        return f"engine {self.version} answers"


@dataclass(frozen=True, slots=True)
class Engine:
    """
    A connection to an engine that answered.
    """

    address: EngineAddress
    client: docker.DockerClient
    facts: EngineFacts

    def close(self) -> None:
        """
        Give the sockets back.
        """
        self.client.close()


def find_engine_address(
    environment: Mapping[str, str], *, home: Path | None = None
) -> EngineAddress:
    """
    Find the engine that is meant: DOCKER_HOST, then the context, then the default.

    The order is that of the `docker` command. The context is `DOCKER_CONTEXT`,
    else `currentContext` of config.json; the one called "default" is none.

    Args:
        environment: The process's environment.
        home: The user's home folder, by default the one that HOME names.

    Raises:
        MachineError: A context is named that does not exist or cannot be read.
    """
    folder = _config_folder(environment, home)
    url = environment.get("DOCKER_HOST", "")
    if url:
        tls_folder = None
        if environment.get("DOCKER_TLS_VERIFY") or environment.get("DOCKER_CERT_PATH"):
            tls_folder = Path(environment.get("DOCKER_CERT_PATH") or folder)
        return EngineAddress(
            url,
            "DOCKER_HOST",
            is_chosen=True,
            tls_folder=tls_folder,
            is_tls_verified=bool(environment.get("DOCKER_TLS_VERIFY")),
        )
    name = environment.get("DOCKER_CONTEXT", "")
    source = "DOCKER_CONTEXT"
    if not name:
        name = _current_context(folder / "config.json")
        source = f"currentContext in {folder / 'config.json'}"
    if name in {"", "default"}:
        return EngineAddress(DEFAULT_URL, "the default", is_chosen=False)
    return _load_context(folder, name, source)


def _config_folder(environment: Mapping[str, str], home: Path | None) -> Path:
    if environment.get("DOCKER_CONFIG"):
        return Path(environment["DOCKER_CONFIG"])
    return (home or Path(environment.get("HOME") or "/")) / ".docker"


def _current_context(path: Path) -> str:
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise MachineError(
            f"{path} cannot be read as JSON ({error}), and it may name the Docker context; "
            "mend it, or set DOCKER_HOST"
        ) from error
    name = config.get("currentContext", "") if isinstance(config, dict) else ""
    return name if isinstance(name, str) else ""


def _load_context(folder: Path, name: str, source: str) -> EngineAddress:
    digest = hashlib.sha256(name.encode()).hexdigest()
    path = folder / "contexts" / "meta" / digest / "meta.json"
    try:
        endpoint = json.loads(path.read_text())["Endpoints"]["docker"]
        url = endpoint["Host"]
    except FileNotFoundError as error:
        raise MachineError(
            f'{source} names the Docker context "{name}", which is not in '
            f"{folder / 'contexts'}; choose one that `docker context ls` lists, or set DOCKER_HOST"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MachineError(
            f'the Docker context "{name}" ({path}) holds no address of an engine ({error}); '
            "make it anew, or set DOCKER_HOST"
        ) from error
    tls_folder = folder / "contexts" / "tls" / digest / "docker"
    return EngineAddress(
        url,
        f'context "{name}"',
        is_chosen=True,
        tls_folder=tls_folder if tls_folder.is_dir() else None,
        is_tls_verified=not endpoint.get("SkipTLSVerify", False),
    )


def connect_engine(address: EngineAddress, *, timeout_s: float = ANSWER_TIMEOUT_S) -> Engine:
    """
    Connect, agree on an API version, and ask the engine what it is.

    Args:
        address: Where it is.
        timeout_s: How long it may take to answer each question.

    Raises:
        MachineError: Nothing answers there in time, or it is no Docker engine.
    """
    if address.url.startswith("ssh://"):  # the SDK would need paramiko and its compiled parts
        host = address.url.removeprefix("ssh://")
        raise MachineError(
            f"{address.url} (from {address.source}) is an engine behind ssh, which is not reached "
            f"from here; forward its socket (ssh -nNT -L /tmp/engine.sock:/var/run/docker.sock "
            f"{host}) and set DOCKER_HOST=unix:///tmp/engine.sock, or use --runner local"
        )
    with contextlib.ExitStack() as undo:
        try:
            _check_listening(address.url)
            client = docker.DockerClient(
                base_url=address.url,
                version="auto",
                timeout=timeout_s,  # type: ignore[arg-type]  # the stubs know whole seconds alone
                tls=_tls_config(address) or False,
            )
            undo.callback(client.close)
            _forget_credentials(client)
            facts = _collect_facts(client, address)
        except (*SDK_ERRORS, OSError, ValueError) as error:
            what_to_do = "start one"
            if isinstance(error, PermissionError):
                what_to_do = "join the group that owns the socket, use sudo"
            raise MachineError(
                f"no Docker engine answers at {address.url} (from {address.source}): "
                f"{find_reason(error)}; {what_to_do}, or use --runner local"
            ) from error
        undo.pop_all()
    client.api.timeout = int(WORK_TIMEOUT_S)
    return Engine(address, client, facts)


def _check_listening(url: str) -> None:
    """
    Try a Unix socket once: where nobody listens, the SDK leaves a socket open.
    """
    if url.startswith("unix://"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(ANSWER_TIMEOUT_S)
            probe.connect(url.removeprefix("unix://"))


def _tls_config(address: EngineAddress) -> TLSConfig | None:
    folder = address.tls_folder
    if folder is None:
        return None
    pair = (str(folder / "cert.pem"), str(folder / "key.pem"))
    authority = folder / "ca.pem"
    return TLSConfig(
        client_cert=pair if Path(pair[0]).exists() else None,
        ca_cert=str(authority) if authority.exists() else None,
        verify=address.is_tls_verified,
    )


def _forget_credentials(client: docker.DockerClient) -> None:
    """
    Keep the SDK from asking credential helpers: nothing here needs a login.

    With no entry at all it would read config.json again, so one entry for a
    host that cannot exist (RFC 2606) is put in its place.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"auths": {"quiclab.invalid": {}}}, file)
        file.flush()
        client.api.reload_config(file.name)


def _collect_facts(client: docker.DockerClient, address: EngineAddress) -> EngineFacts:
    info: dict[str, Any] = client.info()
    version: dict[str, Any] = client.version()
    security = [str(option) for option in info.get("SecurityOptions") or []]

    def has(name: str) -> bool:
        return any(f"name={name}" in option.split(",") for option in security)

    machine = str(info.get("Architecture", ""))
    return EngineFacts(
        version=str(version.get("Version", "")),
        api_version=str(client.api.api_version),
        components={
            str(part.get("Name")): str(part.get("Version"))
            for part in version.get("Components") or []
        },
        architecture=_ARCHITECTURES.get(machine, machine),
        os_type=str(info.get("OSType", "")),
        kernel=str(info.get("KernelVersion", "")),
        operating_system=str(info.get("OperatingSystem", "")),
        storage_driver=str(info.get("Driver", "")),
        cgroup_version=str(info.get("CgroupVersion", "")),
        is_rootless=has("rootless"),
        is_userns_remapped=has("userns"),
        has_apparmor=has("apparmor"),
        has_selinux=has("selinux"),
        bounding_set=collect_bounding_set(address.url),
    )


def collect_bounding_set(url: str) -> frozenset[str] | None:
    """
    Read which capabilities the engine can hand on; None when it cannot be read from here.

    The kernel tells which process listens on a Unix socket (SO_PEERCRED, see
    unix(7)); an engine on another machine stays unread.
    """
    if not url.startswith("unix://"):
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(ANSWER_TIMEOUT_S)
        try:
            probe.connect(url.removeprefix("unix://"))
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid = struct.unpack("3i", credentials)[0]  # struct ucred: pid, uid, gid
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return None  # an engine in another PID namespace shows as pid 0
    for line in status.splitlines():
        if line.startswith("CapBnd:"):
            return parse_capability_mask(line.split()[1])
    return None


def find_reason(error: BaseException) -> str:
    """
    Find the engine's words, or the innermost ones of an error, such as "Connection refused".
    """
    if isinstance(error, APIError):
        return str(error.explanation)
    innermost = error
    while (cause := innermost.__cause__ or innermost.__context__) is not None:
        innermost = cause
    if isinstance(innermost, OSError) and innermost.strerror:
        return innermost.strerror
    return str(innermost).strip().splitlines()[0] if str(innermost).strip() else repr(innermost)


@contextlib.contextmanager
def engine_errors(what: str) -> Iterator[None]:
    """
    Turn whatever the SDK raises in the block into one line that begins with `what`.

    Raises:
        RunError: In place of the SDK's own errors.
    """
    try:
        yield
    except SDK_ERRORS as error:
        raise RunError(f"{what}: {find_reason(error)}") from error


def check_engine_can_trace(facts: EngineFacts) -> None:
    """
    Refuse engines whose containers can never trace, before anything is created.

    Raises:
        MachineError: Rootless, user namespaces remapped, or not Linux.
    """
    if facts.os_type != "linux":
        raise MachineError(
            f"the Docker engine runs {facts.os_type} containers, and tracing needs Linux ones; "
            "choose another engine, or use --runner local"
        )
    if facts.is_rootless:
        raise MachineError(
            "the Docker engine is rootless, and no container of a rootless engine may trace "
            "the kernel; use a rootful engine (DOCKER_HOST), or --runner local as root"
        )
    if facts.is_userns_remapped:
        raise MachineError(
            "the Docker engine remaps user namespaces (userns-remap), so its containers may "
            "not trace the kernel; use an engine without it, or --runner local as root"
        )


def check_architecture(facts: EngineFacts, *, image_architecture: str, image_tag: str) -> None:
    """
    Refuse an image of another architecture: under emulation its probes would not fire.

    Raises:
        MachineError: They differ.
    """
    if image_architecture != facts.architecture:
        raise MachineError(
            f"image {image_tag} is for {image_architecture} and the engine is "
            f"{facts.architecture}; build it with this engine (invoke build)"
        )


def find_unknown_capabilities(engine: Engine, wanted: Sequence[str]) -> frozenset[str]:
    """
    Ask which of these capabilities the engine does not know by name; nothing is created.

    Engines before 23 do not know CAP_BPF and CAP_PERFMON.

    Raises:
        MachineError: The engine answers something else.
    """
    api = engine.client.api
    unknown: set[str] = set()
    while True:
        asked = [name for name in wanted if name not in unknown]
        try:
            api.create_container(_NO_SUCH_IMAGE, host_config=api.create_host_config(cap_add=asked))
        except ImageNotFound:
            return frozenset(unknown)
        except APIError as error:
            found = _UNKNOWN_CAPABILITY.search(str(error.explanation))
            if found is None or found[1] in unknown:
                raise MachineError(
                    f"the Docker engine refuses the capabilities {', '.join(asked)}: "
                    f"{error.explanation}"
                ) from error
            unknown.add(found[1])
        except SDK_ERRORS as error:
            raise MachineError(
                f"the Docker engine stopped answering ({find_reason(error)}); start it again, "
                "or use --runner local"
            ) from error


def select_security_options(options: Sequence[str], facts: EngineFacts) -> list[str]:
    """
    Keep options of AppArmor and SELinux only where the engine has them.

    A tracer needs `apparmor=unconfined` (the default profile forbids mount) or
    `label=disable`; elsewhere they would be words about nothing.
    """
    kept = []
    for option in options:
        kind = re.split("[=:]", option, maxsplit=1)[0]
        if kind == "apparmor" and not facts.has_apparmor:
            continue
        if kind == "label" and not facts.has_selinux:
            continue
        kept.append(option.replace(":", "=", 1) if kind in {"apparmor", "label"} else option)
    return kept


def host_architecture() -> str:
    """
    This machine's architecture in the image's words.
    """
    return _ARCHITECTURES.get(platform.machine(), platform.machine())
