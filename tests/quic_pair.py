"""
Two aioquic connections joined in memory: a network without sockets, on a clock of its own.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import QuicEvent

from server.certificate import ServerCertificate

CLIENT_ADDRESS = ("127.0.0.1", 1)
SERVER_ADDRESS = ("127.0.0.1", 2)
WINDOW_BYTES = 64 * 1024
STEP_S = 0.001


class Application(Protocol):
    """What an endpoint expects of either side."""

    def on_event(self, event: QuicEvent, now_s: float) -> None:
        """Take one aioquic event."""

    def produce(self, wanted_bytes: int) -> None:
        """Top up streams before a transmit pass."""


class Recorder:
    """An application that keeps every event and sends nothing of its own."""

    def __init__(self) -> None:
        self.events: list[QuicEvent] = []

    def on_event(self, event: QuicEvent, now_s: float) -> None:
        """Keep it."""
        self.events.append(event)

    def produce(self, wanted_bytes: int) -> None:
        """Nothing: tests write to the connection themselves."""


class QuicPair:
    """
    A client and a server; `turn` carries what either has to send to the other.

    Args:
        certificate: The server's; the client trusts what it brings.
        make_client: Makes the client's application once its connection exists.
        make_server: The same for the server.
        loses: Asked for each datagram, by its number, whether it is lost.
    """

    def __init__(
        self,
        certificate: ServerCertificate,
        *,
        make_client: Callable[[QuicConnection], Application],
        make_server: Callable[[QuicConnection], Application],
        client_configuration: QuicConfiguration | None = None,
        loses: Callable[[int], bool] = lambda _number: False,
    ) -> None:
        configuration = client_configuration or QuicConfiguration(alpn_protocols=["perf"])
        configuration.cadata = certificate.trust_pem.encode()
        configuration.server_name = certificate.server_name
        self.client = QuicConnection(configuration=configuration)
        server_configuration = QuicConfiguration(alpn_protocols=["perf"], is_client=False)
        certificate.apply(server_configuration)
        self.server = QuicConnection(
            configuration=server_configuration,
            original_destination_connection_id=self.client.original_destination_connection_id,
        )
        self.client_application = make_client(self.client)
        self.server_application = make_server(self.server)
        self.now_s = 1000.0
        self.client.connect(SERVER_ADDRESS, now=self.now_s)
        self._loses = loses
        self._datagrams = 0

    def run_until(self, is_done: Callable[[], bool], *, turn_limit: int = 20_000) -> None:
        """
        Take turns until something is true; a test that waits for ever fails instead.
        """
        for _ in range(turn_limit):
            if is_done():
                return
            self.turn()
        raise AssertionError(f"not done after {turn_limit} turns")

    def run(self, turns: int) -> None:
        """
        Take some turns.
        """
        for _ in range(turns):
            self.turn()

    def turn(self) -> None:
        """
        A millisecond: both sides produce, send, receive and see their events.
        """
        self.now_s += STEP_S
        for connection, application, peer, address in (
            (self.client, self.client_application, self.server, CLIENT_ADDRESS),
            (self.server, self.server_application, self.client, SERVER_ADDRESS),
        ):
            timer_s = connection.get_timer()
            if timer_s is not None and timer_s <= self.now_s:
                connection.handle_timer(now=self.now_s)
            for event in _drain(connection):
                application.on_event(event, self.now_s)
            application.produce(WINDOW_BYTES)
            if not connection._network_paths:
                continue
            for data, _ in connection.datagrams_to_send(now=self.now_s):
                self._datagrams += 1
                if not self._loses(self._datagrams):
                    peer.receive_datagram(data, address, now=self.now_s)


def _drain(connection: QuicConnection) -> Iterator[QuicEvent]:
    return iter(connection.next_event, None)
