"""
The command lines of a run's three roles, from a scenario.
"""

from collections.abc import Mapping, Sequence

from quiclab.answers import ServerDescription
from quiclab.runner.base import CLIENT, SERVER, Place
from quiclab.scenario import Scenario

CONTROL = "control.sock"
SERVER_STATS = "server.json"
CLIENT_RESULT = "client.json"
CLIENT_CA = "ca.pem"
TRACE = "trace.jsonl"


def server_command(scenario: Scenario, place: Place) -> list[str]:
    """
    How the server is started: exact bytes everywhere, a port of its own choice.
    """
    return [
        *("python", "-m", "server"),
        *("--ip", place.server_address(), "--port", "0"),
        *("--queue-send-buffer-size", str(scenario.tx_buffer_bytes)),
        *("--queue-recv-buffer-size", str(scenario.rx_buffer_bytes)),
        *_message_options(scenario),
        *("--workers", str(scenario.worker_count)),
        *_optional("--socket-send-buffer", scenario.socket_buffer_bytes),
        *_optional("--socket-recv-buffer", scenario.socket_buffer_bytes),
        *(("--verify-content",) if scenario.is_content_verified else ()),
        *("--probes", "on", "--probe-directory", place.probe_directory()),
        *("--control", place.path(SERVER, CONTROL)),
        *("--stats-file", place.path(SERVER, SERVER_STATS)),
    ]


def client_command(
    scenario: Scenario, place: Place, server: ServerDescription, *, window_cap_bytes: int
) -> list[str]:
    """
    How the client is started: it makes its sockets, then waits to be told.
    """
    ip, port = server.address
    return [
        *("python", "-m", "client"),
        *("--ip", ip, "--port", str(port)),
        *("--server-name", server.server_name, "--ca-file", place.path(CLIENT, CLIENT_CA)),
        *("--connections", str(scenario.connection_count)),
        *("--streams", str(scenario.stream_count)),
        *("--direction", scenario.direction),
        *_optional("--duration", scenario.duration_s),
        *_payload_options(scenario),
        *(("--verify-content",) if scenario.is_content_verified else ()),
        *_message_options(scenario),
        *("--max-window", str(window_cap_bytes)),
        *("--control", place.path(CLIENT, CONTROL), "--hold"),
        *("--output", place.path(CLIENT, CLIENT_RESULT)),
    ]


def tracer_command(
    place: Place, role: str, *, script_file: str, provider_path: str, is_timed: bool = False
) -> list[str]:
    """
    How a tracer is started: JSON lines into a file of its own, the provider as `$1`.

    Args:
        place: Where.
        role: Which tracer.
        script_file: A file of that role.
        provider_path: The file that holds the probes, as the tracer sees it.
        is_timed: The kernel is to time its programs (docker/timed).
    """
    return [
        *(("timed",) if is_timed else ()),
        *("bpftrace", "-f", "json", "-o", place.path(role, TRACE)),
        *(place.path(role, script_file), provider_path),
    ]


def tracer_environment(scenario: Scenario) -> Mapping[str, str]:
    """
    The limit of keys per map, under its old name (to 0.21) and its new one.
    """
    if scenario.map_key_limit is None:
        return {}
    limit = str(scenario.map_key_limit)
    return {"BPFTRACE_MAP_KEYS_MAX": limit, "BPFTRACE_MAX_MAP_KEYS": limit}


def _message_options(scenario: Scenario) -> Sequence[str]:
    return [
        *("--max-mtu", str(scenario.max_mtu_bytes)),
        *("--datagram", str(scenario.datagram_bytes)),
        *("--max-segments", str(scenario.max_segments)),
        *(() if scenario.is_gso_on else ("--disable-gso",)),
        *(() if scenario.is_gro_on else ("--disable-gro",)),
    ]


def _payload_options(scenario: Scenario) -> Sequence[str]:
    if scenario.total_bytes is None:
        return ()
    total = str(scenario.total_bytes)
    match scenario.direction:
        case "download":
            return ("--receive", total)
        case "upload":
            return ("--send", total)
        case "both":
            return ("--receive", total, "--send", total)


def _optional(option: str, value: float | None) -> Sequence[str]:
    return () if value is None else (option, str(value))
