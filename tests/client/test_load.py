"""
The load over real sockets, against our own endpoint on the same loop.
"""

import datetime as dt
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from aioquic.quic.configuration import QuicConfiguration

from client.exits import ClientError
from client.load import Load
from client.progress import DEFAULT_LIMITS, Limits
from client.run import HANDSHAKE_LIMIT
from client.settings import parse_settings
from server.certificate import make_certificate
from server.endpoint import Endpoint, EndpointOptions
from server.loop import Loop
from server.perf import PerfServer, PerfTally
from server.udp.model import Degradation, UdpOptions
from server.udp.sockets import UdpSocket, open_socket


class Lab:
    """A server on loopback, and the loop that its load shares."""

    def __init__(self, directory: Path) -> None:
        self.loop = Loop()
        self.tally = PerfTally()
        certificate = make_certificate(
            server_name="server.test", addresses=[], now=dt.datetime.now(dt.UTC)
        )
        self.ca_path = directory / "ca.pem"
        self.ca_path.write_text(certificate.trust_pem)
        configuration = QuicConfiguration(alpn_protocols=["perf"], is_client=False)
        certificate.apply(configuration)
        udp = UdpSocket(
            open_socket(("127.0.0.1", 0), is_port_shared=False),
            UdpOptions(),
            listening=self.loop.listening,
        )
        self.port = udp.address[1]
        self.endpoint = Endpoint(
            udp,
            self.loop,
            configuration=configuration,
            options=EndpointOptions(),
            accept=lambda connection: PerfServer(
                connection, tally=self.tally, is_content_verified=True
            ),
        )
        self.loads: list[Load] = []

    def make(self, *words: str, limits: Limits = DEFAULT_LIMITS, port: int | None = None) -> Load:
        """
        A load of this server, not started yet.
        """
        settings = parse_settings(
            [
                *("--ip", "127.0.0.1", "--port", str(port or self.port)),
                *("--server-name", "server.test", "--ca-file", str(self.ca_path)),
                *("--verify-content", *words),
            ]
        )
        load = Load(settings, self.loop, limits=limits)
        self.loads.append(load)
        return load

    def run(
        self, load: Load, *, each_turn: Callable[[Load], None] = lambda _load: None
    ) -> dict[str, Any]:
        """
        Start a load and let it come to its end.
        """
        load.start()
        while load.turn():
            each_turn(load)
        self.loop.turn(most_wait_s=0.1)  # the server takes the last close
        result = load.result()
        assert result is not None
        return result

    def close(self) -> None:
        """
        Close all sockets.
        """
        for load in self.loads:
            load.close()
        self.endpoint.close()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """
    A server of its own for each test.
    """
    lab = Lab(tmp_path)
    yield lab
    lab.close()


def test_load_brings_exact_totals_over_several_connections(lab: Lab) -> None:
    """
    Both directions, three connections, four streams of each kind: not a byte is missing.
    """
    load = lab.make(
        *("--receive", "1000001", "--send", "500003", "--connections", "3", "--streams", "4")
    )

    result = lab.run(load)

    assert result["reason"] == ""
    assert result["ok"]
    assert (result["bytes_received"], result["bytes_sent"]) == (1_000_001, 500_003)
    assert lab.tally.upload_byte_count == 500_003
    assert lab.tally.content_error_count == 0
    assert len(result["streams"]) == 24
    assert len(result["handshake_ms"]) == 3
    assert len(result["time_to_first_byte_ms"]) == 12
    assert [(close["by"], close["error_code"]) for close in result["closes"]] == [("client", 0)] * 3
    assert lab.endpoint.connections.report()["closed_count"] == 3


def test_load_with_a_duration_ends_by_itself(lab: Lab) -> None:
    """
    Streams without an end are stopped when time is up, and that is success.
    """
    result = lab.run(lab.make("--direction", "both", "--duration", "0.2"))

    assert result["reason"] == ""
    assert {stream["ended_by"] for stream in result["streams"]} == {"stop", "fin"}
    assert result["load_s"] >= 0.2
    assert result["bytes_sent"] == lab.tally.upload_byte_count
    assert result["bytes_received"] > 0


def test_load_of_many_connections_opens_a_few_at_a_time(lab: Lab) -> None:
    """
    First datagrams of many connections at once overrun a receive buffer; so few are under way.
    """
    most_at_once = 0

    def look(load: Load) -> None:
        nonlocal most_at_once
        assert load._run is not None
        most_at_once = max(most_at_once, len(load._run._find_waiting()))

    result = lab.run(lab.make("--receive", "400", "--connections", "40"), each_turn=look)

    assert result["ok"], result["reason"]
    assert 1 <= most_at_once <= HANDSHAKE_LIMIT
    assert len(result["handshake_ms"]) == len(result["closes"]) == 40
    assert lab.endpoint.connections.opened_count == 40


def test_load_with_a_duration_gives_it_to_every_connection(lab: Lab) -> None:
    """
    Time runs when the last of many connections is ready, so that none comes too late for it.
    """
    result = lab.run(lab.make("--duration", "0.3", "--connections", "20"))

    assert result["ok"], result["reason"]
    assert len(result["streams"]) == 20
    assert all(stream["received_bytes"] > 0 for stream in result["streams"])


def test_load_that_is_held_sends_nothing_before_the_start(lab: Lab) -> None:
    """
    Sockets are made and described; the server hears of it only when it is started.
    """
    load = lab.make("--receive", "1000", "--socket-buffer", "150000")

    description = load.describe()
    for _ in range(3):
        lab.loop.turn(most_wait_s=0.01)

    assert description["granted"]["socket_receive_buffer"]["asked_bytes"] == 150_000
    assert description["granted"]["socket_receive_buffer"]["granted_bytes"] == 150_000
    assert 0 < description["holdable_bytes"] <= 300_000
    assert load.report()["is_started"] is False
    assert lab.endpoint.udp.rx.counters.datagram_read_count == 0
    assert lab.run(load)["ok"]
    assert load.report()["bytes_received"] == 1000


def test_load_that_nobody_answers_is_told_as_such(lab: Lab) -> None:
    """
    A port where nothing speaks: the address, and how many had no handshake.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        load = lab.make("--connections", "2", port=port, limits=Limits(stall_s=0.2))

        result = lab.run(load)

    assert not result["ok"]
    assert result["reason"].startswith(
        f"no answer from 127.0.0.1:{port}: 2 of 2 connections had no handshake after 0."
    )


def test_load_whose_datagrams_do_not_fit_the_path_says_so(lab: Lab) -> None:
    """
    What the client's own sockets gave up is in the result, and in the reason where it is one.
    """
    load = lab.make("--receive", "10", limits=Limits(stall_s=0.2), port=9)
    too_long = Degradation(
        what="datagram_size", reason="EMSGSIZE at 8972 bytes", effect="datagrams are lost"
    )
    load._endpoints[0].udp.degradations.append(too_long)

    result = lab.run(load)

    assert result["degradations"] == [asdict(too_long)]
    assert "(EMSGSIZE at 8972 bytes: datagrams are lost; lower --max-mtu)" in result["reason"]


def test_load_that_stands_still_is_stalled(lab: Lab) -> None:
    """
    A server that falls silent in the middle is a stall, with what had moved until then.
    """
    load = lab.make("--receive", "50000000", limits=Limits(stall_s=0.2))

    def silence(load: Load) -> None:
        if load.report()["bytes_received"] > 100_000 and lab.endpoint in lab.loop._endpoints:
            lab.loop.remove(lab.endpoint)

    result = lab.run(load, each_turn=silence)
    lab.loop.add(lab.endpoint)

    assert result["reason"].startswith("stalled: nothing moved for 0.")
    assert f"{result['bytes_received']:,} of 50,000,000 bytes" in result["reason"]
    assert result["streams"][0]["ended_by"] == "none"


def test_load_that_moves_but_takes_too_long_is_slow(lab: Lab) -> None:
    """
    Slow is not stalled: it is told with the rate's figures and that it still moved.
    """
    limits = Limits(grace_s=0.1, slowest_bytes_per_s=10**12)
    load = lab.make("--receive", "500000000", limits=limits)

    result = lab.run(load)

    assert result["reason"].startswith("too slow: ")
    assert "of 500,000,000 bytes in 0." in result["reason"]
    assert "still moving" in result["reason"]


def test_load_that_is_interrupted_closes_in_order(lab: Lab) -> None:
    """
    A signal ends the load, keeps what came, and tells the server.
    """
    load = lab.make("--duration", "30")

    def interrupt(load: Load) -> None:
        if load.report()["bytes_received"] > 100_000:
            load.interrupt("SIGTERM")

    result = lab.run(load, each_turn=interrupt)

    assert result["reason"] == "ended by SIGTERM"
    assert result["bytes_received"] > 100_000
    assert result["closes"][0]["reason"] == "ended by SIGTERM"
    (reason,) = lab.endpoint.connections.report_reasons()
    assert (reason["reason"], reason["by"]) == ("ended by SIGTERM", "peer")


def test_load_of_a_server_with_another_name_tells_the_tls_reason(lab: Lab) -> None:
    """
    A certificate for another name: TLS's own words, at both ends.
    """
    load = lab.make("--receive", "1000", "--server-name", "elsewhere.test")

    result = lab.run(load)

    assert "TLS alert 42 (bad_certificate)" in result["reason"]
    assert "elsewhere.test" in result["reason"]
    assert result["closes"][0]["by"] == "client"
    (reason,) = lab.endpoint.connections.report_reasons()
    assert "elsewhere.test" in reason["reason"]


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "No such file"), ("not PEM", "holds no certificate in PEM form")],
    ids=["missing", "not-pem"],
)
def test_load_names_a_file_of_certificates_that_is_none(
    lab: Lab, tmp_path: Path, content: str | None, words: str
) -> None:
    """
    A missing or wrong CA file is told by option and path before anything is sent.
    """
    path = tmp_path / "trust.pem"
    if content is not None:
        path.write_text(content)

    with pytest.raises(ClientError, match=rf"--ca-file .*trust\.pem.*{words}"):
        lab.make("--ca-file", str(path))
