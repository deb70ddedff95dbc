"""
`python -m client` against `python -m server`, as the lab starts them.
"""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.control import request
from tests.conftest import need
from tests.integration.server_process import ServerProcess, run_server

TIMEOUT_S = 60.0

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """
    One server for all loads of this module.
    """
    with run_server(tmp_path_factory.mktemp("server"), "--verify-content") as running:
        yield running


def start_client(*words: str) -> subprocess.Popen[str]:
    """
    Start a client; the caller waits for it.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "client", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_client(*words: str) -> tuple[int, dict[str, Any], str]:
    """
    Run a client to its end: status, result on stdout, stderr.
    """
    process = start_client(*words)
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, json.loads(out) if out else {}, err


def test_client_that_is_held_starts_when_told_and_writes_its_result(
    server: ServerProcess, tmp_path: Path
) -> None:
    """
    Describe, start, report, end: the order of a lab run, both directions, every byte.
    """
    server.reset()
    control_path, output_path = tmp_path / "client.sock", tmp_path / "client.json"
    process = start_client(
        *server.client_words(),
        *("--receive", "2000001", "--send", "1000003", "--connections", "2", "--verify-content"),
        *("--control", str(control_path), "--hold", "--output", str(output_path)),
    )

    description = request(control_path, "describe", wait_s=20.0)
    assert description["holdable_bytes"] > 0
    assert server.report()["total"]["rx"]["datagram_read_count"] == 0
    assert "cannot 'reset'" in request(control_path, "reset")["error"]
    assert request(control_path, "start")["is_started"]
    out, err = process.communicate(timeout=TIMEOUT_S)

    assert (process.returncode, out, err) == (0, "", "")
    result = json.loads(output_path.read_text())
    assert result["ok"]
    assert (result["bytes_received"], result["bytes_sent"]) == (2_000_001, 1_000_003)
    report = server.wait_for(lambda total: total["connections"]["open_count"] == 0)
    assert report["total"]["connections"]["closed_count"] == 2
    assert report["total"]["perf"]["upload_byte_count"] == 1_000_003
    assert report["total"]["perf"]["content_error_count"] == 0
    assert not control_path.exists()


def test_client_never_loads_the_probes(server: ServerProcess, tmp_path: Path) -> None:
    """
    Neither the probes' library nor a provider file is mapped into a client.
    """
    control_path = tmp_path / "client.sock"
    process = start_client(
        *server.client_words(), "--receive", "1000", "--control", str(control_path), "--hold"
    )
    pid = request(control_path, "describe", wait_s=20.0)["pid"]

    maps = Path(f"/proc/{pid}/maps").read_text()

    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=TIMEOUT_S)
    assert "server/udp/_native" in maps
    assert "stapsdt" not in maps
    assert "s2n_quic" not in maps


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["int", "term"]
)
def test_client_that_gets_a_signal_ends_in_order(
    server: ServerProcess, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    """
    What came until then is written, the server hears the reason, the status tells the signal.
    """
    server.reset()
    control_path, output_path = tmp_path / "client.sock", tmp_path / "client.json"
    process = start_client(
        *(*server.client_words(), "--duration", "60", "--control", str(control_path)),
        *("--output", str(output_path)),
    )
    while not request(control_path, "report", wait_s=20.0)["bytes_received"]:
        assert process.poll() is None

    process.send_signal(number)
    process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == status
    result = json.loads(output_path.read_text())
    assert result["reason"] == f"ended by {number.name}"
    assert result["bytes_received"] > 0
    report = server.wait_for(lambda total: total["connections"]["open_count"] == 0)
    (closed,) = report["workers"][0]["close_reasons"]
    assert (closed["reason"], closed["by"]) == (f"ended by {number.name}", "peer")


def test_client_that_is_refused_says_so_in_one_line(server: ServerProcess) -> None:
    """
    Status 5, one line on stderr, the TLS reason in it, and a whole result on stdout.
    """
    words = [*server.client_words(), "--receive", "1000", "--server-name", "elsewhere.test"]

    status, result, err = run_client(*words)

    assert status == 5
    assert err.count("\n") == 1
    assert "bad_certificate" in err
    assert result["reason"] in err


def test_client_refuses_a_place_for_its_result_before_the_load(
    server: ServerProcess, tmp_path: Path
) -> None:
    """
    A load whose result nobody could read is not run.
    """
    before = request(server.control_path, "report")["total"]["connections"]["opened_count"]
    words = ("--ip", server.ip, "--port", str(server.port), "--insecure", "--receive", "10")
    client = start_client(*words, "--output", str(tmp_path / "absent" / "client.json"))
    _, errors = client.communicate(timeout=TIMEOUT_S)

    after = request(server.control_path, "report")["total"]["connections"]["opened_count"]
    assert client.returncode == 4
    assert errors.count("\n") == 1
    assert "absent is no folder that can be written to" in errors
    assert after == before


def test_client_tells_a_control_socket_that_is_taken(server: ServerProcess, tmp_path: Path) -> None:
    """
    Another process's control socket is left alone: status 4, nothing sent.
    """
    path = tmp_path / "taken.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(path))
        other.listen()

        status, result, err = run_client(*server.client_words(), "--control", str(path))

    assert (status, result) == (4, {})
    assert f"--control {path}: another process listens there" in err


def test_pair_speaks_ipv6(tmp_path: Path) -> None:
    """
    Over ::1, with full datagrams, both directions.
    """
    need(_has_ipv6(), "IPv6 on the loopback device")
    with run_server(tmp_path, "--verify-content", ip="::1") as server:
        status, result, err = run_client(
            *(*server.client_words(), "--receive", "300000", "--send", "200000"),
            "--verify-content",
        )
        report = server.report()

    assert (status, err) == (0, "")
    assert (result["bytes_received"], result["bytes_sent"]) == (300_000, 200_000)
    assert result["granted"]["datagram_bytes"] == 8952
    assert report["total"]["perf"]["content_error_count"] == 0


def _has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind(("::1", 0))
        except OSError:
            return False
    return True
