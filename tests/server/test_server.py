"""
python -m server, as a process: its start, its answers, its end.
"""

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from server.exits import ExitStatus
from server.settings import parse_settings
from tests.server.process import REPOSITORY, ServerProcess

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[1, 2], ids=["1-worker", "2-workers"])
def server(request: Any, tmp_path_factory: Any) -> Any:
    """A server that several tests ask."""
    directory = tmp_path_factory.mktemp("server")
    options = ("--workers", str(request.param), "--queue-send-buffer-size", "8000000")
    with ServerProcess(directory, *options) as made:
        yield made


def test_the_listening_line_is_the_answer_to_describe(server: Any) -> None:
    """What is printed at the start is what `describe` says, asked and granted."""
    assert server.ask("describe") == server.description
    described = server.description
    assert described["event"] == "listening"
    assert described["granted"]["tx_ring"] == {
        "entries": 128,
        "payload_bytes": 65_535,
        "asked_bytes": 8_000_000,
    }
    assert described["granted"]["datagram_bytes"] == 8972
    assert described["granted"]["datagrams_per_message"] == 7
    assert described["asked"]["tx_ring_bytes"] == 8_000_000
    assert described["degradations"] == []
    assert described["probes"]["is_on"], described["probes"]["note"]
    assert Path(described["probes"]["provider_path"]).is_file()
    assert len(described["workers"]) == described["asked"]["worker_count"]


def test_counters_are_zeroed_and_reported_for_all_workers(server: Any) -> None:
    """`reset` starts a window; `report` tells what happened in it, worker by worker."""
    traced_by_worker = [worker["traced_probes"] for worker in server.ask("reset")["workers"]]
    assert [[]] * len(server.description["workers"]) == traced_by_worker  # nobody traces
    server.load("--receive", "3000000", "--connections", "8", "--verify-content")
    report = server.settle()
    workers = report["workers"]
    assert len(workers) == len(server.description["workers"])
    for name in ("datagram_sent_count", "send_call_count"):
        assert report["total"]["tx"][name] == sum(worker["tx"][name] for worker in workers)
    assert report["total"]["connections"]["closed_count"] == 8
    assert report["total"]["tx"]["byte_sent_count"] > 3_000_000
    server.ask("reset")
    empty = server.ask("report")
    assert empty["total"]["tx"]["byte_sent_count"] == 0
    assert empty["total"]["tx"]["messages_per_call"] == []
    assert empty["total"]["connections"]["closed_count"] == 0


def test_every_worker_serves(server: Any) -> None:
    """With enough connections each worker gets some, and all bytes come."""
    server.ask("reset")
    for _ in range(10):
        server.load("--receive", "400000", "--connections", "8", "--verify-content")
        report = server.settle()
        served = [worker["connections"]["closed_count"] for worker in report["workers"]]
        if all(served):
            return
    pytest.fail(f"after 80 connections the workers have served {served}")


def test_configure_caps_the_windows_from_then_on(server: Any) -> None:
    """A new cap is answered, described from then on, and nonsense is refused."""
    assert server.ask("configure", window_cap_bytes=30_000) == {"window_cap_bytes": 30_000}
    assert server.ask("describe")["granted"]["window_cap_bytes"] == 30_000
    assert "expected 1200 bytes or more" in server.ask("configure", window_cap_bytes="x")["error"]
    server.ask("reset")
    server.load("--receive", "400000")
    buckets = server.settle()["total"]["tx"]["messages_per_call"]
    assert max(bucket["min"] for bucket in buckets) <= 1
    server.ask("configure", window_cap_bytes=2_500_000)


@pytest.mark.parametrize("cap", [1199, -1, "8M", None, True])
def test_a_window_that_lets_nothing_through_is_refused(server: Any, cap: Any) -> None:
    """A cap below one datagram would stall every connection."""
    assert "expected 1200 bytes or more" in server.ask("configure", window_cap_bytes=cap)["error"]


def test_an_unknown_question_is_refused_by_name(server: Any) -> None:
    """A question that does not exist lists those that do."""
    assert server.ask("bogus")["error"] == (
        "there is no question 'bogus'; ask describe, reset, report, configure, record or recorded"
    )
    assert "send it SIGINT" in server.ask("stop")["error"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_int_and_term_end_it_in_order(tmp_path: Any, number: Any, workers: Any) -> None:
    """Status 0, counters written, control socket gone, no worker left, nothing on stderr."""
    with ServerProcess(tmp_path, "--workers", workers, "--stats") as server:
        server.load("--receive", "100000")
        server.settle()
        pids = [worker["pid"] for worker in server.description["workers"]]
        assert server.end(number) == 0
        stats = server.stats()
        assert stats["total"]["connections"]["closed_count"] == 1
        assert stats["rings_empty"]
        assert len(stats["workers"]) == int(workers)
        assert server.process.stdout is not None
        assert server.process.stdout.read() == server.stats_path.read_text()
        assert server.errors == ""
        assert not server.control_path.exists()
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_signal_during_a_load_closes_the_connections_with_words(tmp_path: Any) -> None:
    """A client in the middle of a download is told that the server ends."""
    with ServerProcess(tmp_path) as server:
        (tmp_path / "ca.pem").write_text(server.description["certificate_pem"])
        ip, port = server.description["address"]
        client = subprocess.Popen(
            [
                *(sys.executable, "-m", "client", "--ip", ip, "--port", str(port)),
                *("--ca-file", str(tmp_path / "ca.pem"), "--duration", "30"),
            ],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        while server.ask("report")["total"]["tx"]["byte_sent_count"] < 1_000_000:
            assert client.poll() is None
        assert server.end() == 0
        said, words = client.communicate(timeout=20)
        assert client.returncode == 5, words
        assert "the server ends" in said
        assert server.stats()["workers"][0]["close_reasons"][0]["by"] == "self"


def test_it_ends_by_itself_after_so_many_connections(tmp_path: Any) -> None:
    """--connections N ends it when N have closed, though they are in different workers."""
    with ServerProcess(tmp_path, "--connections", "3", "--workers", "2") as server:
        server.load("--receive", "10000", "--connections", "3")
        assert server.process.wait(timeout=10) == 0
        assert server.stats()["total"]["connections"]["closed_count"] == 3


def test_a_dead_worker_ends_the_server_with_an_error(tmp_path: Any) -> None:
    """A killed worker is named; the others end in order, and the status tells."""
    with ServerProcess(tmp_path, "--workers", "2") as server:
        pid = server.description["workers"][1]["pid"]
        os.kill(pid, signal.SIGKILL)
        assert server.process.wait(timeout=10) == ExitStatus.INTERNAL
        assert f"worker process {pid} ended by SIGKILL" in server.errors
        assert len(server.stats()["workers"]) == 1


def test_a_stuck_worker_does_not_keep_the_server_from_ending(tmp_path: Any) -> None:
    """A worker that hears nothing is killed and named; the other's counters are written."""
    with ServerProcess(tmp_path, "--workers", "2") as server:
        pid = server.description["workers"][0]["pid"]
        os.kill(pid, signal.SIGSTOP)
        assert server.end() == ExitStatus.INTERNAL
        assert f"worker process {pid} did not end when told to and was killed" in server.errors
        assert len(server.stats()["workers"]) == 1


def test_workers_do_not_outlive_their_supervisor(tmp_path: Any) -> None:
    """When the parent is killed the workers end too."""
    with ServerProcess(tmp_path, "--workers", "2") as server:
        endings = [os.pidfd_open(worker["pid"]) for worker in server.description["workers"]]
        server.process.kill()
        server.process.wait()
        for fd in endings:
            readable, _, _ = select.select([fd], [], [], 10)
            os.close(fd)
            assert readable


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_port_in_use_is_named_with_its_holder(tmp_path: Any, workers: Any) -> None:
    """Another program on the port: one line with its name, status 4; not even shared."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        with ServerProcess(tmp_path, "--port", str(port), "--workers", workers) as server:
            assert server.process.wait(timeout=10) == ExitStatus.MACHINE_CANNOT
            assert server.errors.startswith(
                f"server: UDP port {port} of 127.0.0.1 is in use by PID {os.getpid()} ("
            )
            assert server.errors.count("\n") == 1


def test_an_address_of_another_machine_is_not_called_a_port_in_use(tmp_path: Any) -> None:
    """Only EADDRINUSE is blamed on who holds the port elsewhere on this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as held:
        held.bind(("127.0.0.1", 0))
        port = str(held.getsockname()[1])
        with ServerProcess(tmp_path, "--ip", "192.0.2.1", "--port", port) as server:
            assert server.process.wait(timeout=10) == ExitStatus.MACHINE_CANNOT
            assert "192.0.2.1 cannot be bound: Cannot assign requested address" in server.errors


def test_one_fixed_port_serves_run_after_run(tmp_path: Any) -> None:
    """A sweep on one port: each server gets it right after the one before."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    for size in ("128000", "8000000"):
        with ServerProcess(tmp_path, "--port", port, "--queue-send-buffer-size", size) as server:
            server.load("--receive", "100000")
            assert server.end() == 0


def test_logs_of_secrets_and_qlog_are_written(tmp_path: Any) -> None:
    """TLS secrets and a qlog file per connection appear where they were asked for."""
    options = ("--secrets-log", str(tmp_path / "secrets"), "--qlog", str(tmp_path / "qlog"))
    with ServerProcess(tmp_path, *options) as server:
        server.load("--receive", "10000")
        server.settle()
        server.end()
        assert "SERVER_TRAFFIC_SECRET_0" in (tmp_path / "secrets").read_text()
        assert [path.suffix for path in (tmp_path / "qlog").iterdir()] == [".qlog"]


@pytest.mark.parametrize("refusal", ["ENOSYS", "EPERM"])
def test_without_mmsg_calls_it_sends_one_message_a_call(tmp_path: Any, refusal: Any) -> None:
    """A seccomp profile that refuses sendmmsg and recvmmsg costs speed and nothing else."""
    prefix = (sys.executable, str(REPOSITORY / "tests/server/refuse_mmsg.py"), refusal)
    with ServerProcess(tmp_path, prefix=prefix) as server:
        assert not server.description["granted"]["mmsg"]
        (degradation,) = server.description["degradations"]
        assert degradation["what"] == "mmsg"
        assert degradation["reason"].startswith(f"{refusal} from sendmmsg or recvmmsg")
        server.load("--receive", "500000", "--verify-content")
        report = server.settle()
        tx, rx = report["total"]["tx"], report["total"]["rx"]
        assert tx["send_call_count"] == rx["receive_call_count"] == 0
        assert tx["single_send_call_count"] == tx["message_sent_count"] > 0
        assert rx["single_receive_call_count"] > rx["message_received_count"] > 0
        assert report["workers"][0]["degradations"] == [degradation]


def test_without_probes_it_serves_and_says_why(tmp_path: Path) -> None:
    """Where the probes cannot be loaded, one line says so and the server runs all the same."""
    (tmp_path / "file").write_text("")
    with ServerProcess(tmp_path, "--probe-directory", str(tmp_path / "file" / "x")) as server:
        described = server.description["probes"]
        assert not described["is_on"]
        assert described["provider_path"] is None
        assert "no probe can fire" in described["note"]
        server.load("--receive", "100000")
        assert server.end() == 0
        assert server.errors == f"server: {described['note']}\n"


def test_probes_can_be_switched_off(tmp_path: Path) -> None:
    """--probes off maps no file, and the description tells."""
    with ServerProcess(tmp_path, "--probes", "off") as server:
        assert server.description["probes"] == {
            "is_on": False,
            "provider_path": None,
            "note": "switched off by --probes off",
        }
        assert not (tmp_path / "probes").exists()


def test_without_the_native_module_one_line_says_how_to_build_it() -> None:
    """A clone that was not set up: status 4 and the command to run."""
    code = (
        "import sys; sys.modules['server.udp._native'] = None; "
        "from server.__main__ import main; sys.exit(main([]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, check=False, capture_output=True, text=True
    )
    assert done.returncode == ExitStatus.MACHINE_CANNOT
    assert done.stderr == (
        "server: server/udp/_native was not built for this Python; run python -m server.build\n"
    )


# Command line ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--ip", "localhost"], "--ip localhost is not an IP address; names are not looked up"),
        (["--port", "65536"], "65536 is not a whole number from 0 to 65535"),
        (["--max-mtu", "20000"], "more than aioquic can carry; give at most 16411"),
        (["--max-mtu", "1227"], "too small for QUIC; give at least 1228"),
        (["--ip", "::1", "--max-mtu", "1247"], "give at least 1248"),
        (["--datagram", "8973"], "write 1200 (RFC 9000, Section 14) to 8972"),
        (["--max-segments", "65"], "65 is not a whole number from 1 to 64"),
        (["--queue-send-buffer-size", "8M"], "8M is not a whole number from 1"),
        (["--queue-send-buffer-size", "0"], "0 is not a whole number from 1"),
        (["--workers", "0"], "0 is not a whole number from 1 to 256"),
        (["--certificate", "x"], "--certificate and --private-key go together"),
        (["--max-idle-timeout", "nan"], "nan is not a number of seconds up to 3600"),
        (["--max-window", "1199"], "less than one datagram; give 1200 or more, or 0"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_status_2(capsys: Any, words: Any, error: Any) -> None:
    """What makes no sense is refused before anything starts, with what would."""
    with pytest.raises(SystemExit) as ended:
        parse_settings(words)
    said = capsys.readouterr().err
    assert ended.value.code == ExitStatus.USAGE
    assert error in said
    assert said.startswith("server: ")
    assert said.count("\n") == 1


def test_defaults_are_the_originals() -> None:
    """Without options rings, MTU and segments are those of s2n-quic-qns."""
    settings = parse_settings([])
    assert settings.udp.tx_ring_bytes == 131_072
    assert settings.udp.rx_ring_bytes == 8 * 1024 * 1024
    assert (settings.udp.max_mtu_bytes, settings.udp.max_segments) == (9000, 10)
    assert settings.datagram_bytes == 8972
    assert parse_settings(["--ip", "::"]).datagram_bytes == 8952


@pytest.mark.parametrize(
    ("option", "words"),
    [("--stats-file", "is not a folder that can be written to"), ("--control", "No such file")],
)
def test_a_file_in_no_folder_is_refused_at_the_start(
    tmp_path: Path, option: str, words: str
) -> None:
    """Where a file cannot be, one line says so before anything runs."""
    done = subprocess.run(
        [sys.executable, "-m", "server", "--probes", "off", option, str(tmp_path / "none" / "x")],
        cwd=REPOSITORY,
        check=False,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode in (ExitStatus.USAGE, ExitStatus.MACHINE_CANNOT)
    assert done.stderr.startswith(f"server: {option} ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_bad_certificate_is_refused_at_the_start(tmp_path: Any) -> None:
    """A file that holds no certificate is said so, status 2."""
    (tmp_path / "x.pem").write_text("nothing")
    options = ("--certificate", str(tmp_path / "x.pem"), "--private-key", str(tmp_path / "x.pem"))
    with ServerProcess(tmp_path, *options) as server:
        assert server.process.wait(timeout=10) == ExitStatus.USAGE
        assert "holds no certificate in PEM form" in server.errors
        assert server.errors.count("\n") == 1
