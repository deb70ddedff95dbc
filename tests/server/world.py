"""
A server's and a client's endpoint in one loop, over real sockets on loopback.
"""

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import (
    ConnectionTerminated,
    HandshakeCompleted,
    QuicEvent,
    StreamDataReceived,
)

from server.certificate import make_certificate
from server.endpoint import Endpoint
from server.loop import Loop
from server.options import EndpointOptions
from server.perf import ALPN, PerfServer, encode_header
from server.udp.model import UdpOptions
from server.udp.sockets import UdpSocket, open_socket

CERTIFICATE = make_certificate(
    server_name="server.quiclab", addresses=["127.0.0.1", "::1"], now=dt.datetime.now(dt.UTC)
)
MOST_TURNS = 200_000


class Downloader:
    """
    Asks for so many bytes on one stream, and closes when they have come.

    Args:
        connection: The client's.
        asked_bytes: How many.
        upload: Sent after the header.
    """

    def __init__(
        self, connection: QuicConnection, *, asked_bytes: int, upload: bytes = b""
    ) -> None:
        self.connection = connection
        self.received = bytearray()
        self.events: list[QuicEvent] = []
        self.is_over = False
        self._asked_bytes = asked_bytes
        self._upload = upload

    def on_event(self, event: QuicEvent, now_s: float) -> None:
        """Follow the download."""
        self.events.append(event)
        if isinstance(event, HandshakeCompleted):
            self.connection.send_stream_data(
                0, encode_header(self._asked_bytes) + self._upload, end_stream=True
            )
        elif isinstance(event, StreamDataReceived):
            self.received += event.data
            if event.end_stream:
                self.connection.close()
        elif isinstance(event, ConnectionTerminated):
            self.is_over = True

    def produce(self, wanted_bytes: int) -> None:
        """Everything was written at once."""


def make_configuration(*, is_client: bool, datagram_bytes: int) -> QuicConfiguration:
    """
    Configure one side for the certificate above.
    """
    configuration = QuicConfiguration(
        is_client=is_client,
        alpn_protocols=[ALPN],
        max_datagram_size=datagram_bytes,
        max_data=2**24,
        max_stream_data=2**24,
        server_name="server.quiclab",
        idle_timeout=5.0,
    )
    if is_client:
        configuration.load_verify_locations(cadata=CERTIFICATE.trust_pem.encode())
    else:
        CERTIFICATE.apply(configuration)
    return configuration


@dataclass
class World:
    """
    One server and its clients; `run` turns the loop until all downloads are over.
    """

    udp_options: UdpOptions = field(default_factory=UdpOptions)
    options: EndpointOptions = field(default_factory=EndpointOptions)
    datagram_bytes: int = 1200
    ip: str = "127.0.0.1"
    loop: Loop = field(default_factory=Loop)
    applications: list[Downloader] = field(default_factory=list)
    clients: list[Endpoint] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server = Endpoint(
            self._open(self.udp_options, channel=1),
            self.loop,
            configuration=make_configuration(is_client=False, datagram_bytes=self.datagram_bytes),
            options=self.options,
            accept=PerfServer,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for endpoint in (*self.clients, self.server):
            endpoint.close()

    def _open(self, options: UdpOptions, *, channel: int) -> UdpSocket:
        return UdpSocket(
            open_socket((self.ip, 0), is_port_shared=False),
            options,
            listening=self.loop.listening,
            first_channel=channel,
        )

    def add_client(
        self,
        *,
        asked_bytes: int,
        upload: bytes = b"",
        on_made: Callable[[QuicConnection], None] = lambda _: None,
    ) -> Downloader:
        """
        Open a connection from a socket of its own.
        """
        options = replace(self.udp_options, tx_ring_bytes=2_000_000, receive_buffer_bytes=8_000_000)
        configuration = make_configuration(is_client=True, datagram_bytes=self.datagram_bytes)
        endpoint = Endpoint(
            self._open(options, channel=101 + 2 * len(self.clients)),
            self.loop,
            configuration=configuration,
            options=EndpointOptions(),
        )
        self.clients.append(endpoint)

        def make(connection: QuicConnection) -> Downloader:
            on_made(connection)
            return Downloader(connection, asked_bytes=asked_bytes, upload=upload)

        _, application = endpoint.connect(self.server.udp.address, configuration, make)
        assert isinstance(application, Downloader)
        self.applications.append(application)
        return application

    def run(self) -> None:
        """
        Turn until every download is over, and every close is done.
        """
        for _ in range(MOST_TURNS):
            if all(one.is_over for one in self.applications) and self.is_settled:
                return
            self.loop.turn(most_wait_s=0.05)
        raise AssertionError(f"not over after {MOST_TURNS} turns: {self.counts()}")

    @property
    def is_settled(self) -> bool:
        """No connection is open on the server, and nothing waits in its rings."""
        return self.server.connections.open_count == 0 and self.server.is_idle

    def counts(self) -> dict[str, Any]:
        """
        The server's counters.
        """
        return {
            "connections": self.server.connections.report(),
            "tx": self.server.udp.tx.counters.report(),
            "rx": self.server.udp.rx.counters.report(),
        }
