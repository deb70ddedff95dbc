"""
Harm done to the server in memory: the fast loop, and what a saved failure is replayed with.
"""

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any, Final

from aioquic.quic.configuration import QuicConfiguration

from server.admission import AdmissionOptions, RetryName
from server.options import EndpointOptions
from server.perf import ALPN, encode_header
from tests.fuzz.failure import Failure
from tests.fuzz.hostile import HostileClient
from tests.fuzz.memory import FuzzError, MemoryServer
from tests.server.world import CERTIFICATE

MOST_PAYLOADS: Final = 40  # of one connection; few live so long
OWN_FRAMES_SHARE: Final = 0.2  # of connections whose client damages its own frames
_MOST_EXCHANGES: Final = 20  # until a handshake that makes no progress is given up
_ASKED_BYTES: Final = 30_000
MOVE_SHARE: Final = 0.05  # of hostile packets: they come from another port
_OTHER_PORTS: Final = (1000, 1001, 1002)  # number_address gives none of them
# Nothing is refused and no Retry sent: everything gets to where handshakes are made.
OPEN_TO_ALL: Final = EndpointOptions(
    admission=AdmissionOptions(
        most_connections=1_000_000, most_half_open=1_000_000, handshake_limit_s=1.0, retry="off"
    )
)


def make_server(retry: RetryName = "off") -> MemoryServer:
    """
    Make a server that lets everybody in, after a Retry if asked to.
    """
    admission = replace(OPEN_TO_ALL.admission, retry=retry)
    return MemoryServer(options=replace(OPEN_TO_ALL, admission=admission))


def make_client(
    rng: Random, *, server: tuple[str, int], now_s: float, trust_pem: str = CERTIFICATE.trust_pem
) -> HostileClient:
    """
    Make a client of one kind or another: one in five damages its handshake as well.
    """
    return HostileClient(
        rng,
        _make_configuration(trust_pem),
        server=server,
        now_s=now_s,
        handshake_damage=rng.choice((0.0, 0.0, 0.0, 0.0, 0.5)),
    )


def _make_configuration(trust_pem: str) -> QuicConfiguration:
    return QuicConfiguration(
        is_client=True,
        alpn_protocols=[ALPN],
        max_datagram_size=1200,
        server_name="server.quiclab",
        cadata=trust_pem.encode(),
        idle_timeout=5.0,
    )


def prepare_client(rng: Random, client: HostileClient) -> None:
    """
    Give an established client something to lose: a download under way, own frames to damage.
    """
    if rng.random() < 0.5 and not client.is_over:
        client.connection.send_stream_data(0, encode_header(_ASKED_BYTES), end_stream=True)
    if rng.random() < OWN_FRAMES_SHARE:
        client.damage_own_frames(0.5)


def number_address(number: int) -> tuple[str, int]:
    """
    Make an address for each number: few of them are the same.
    """
    return f"127.0.{number // 250 % 250}.{number % 250 + 1}", 1024 + number % 60_000


class Talk:
    """
    A hostile client and the server in memory, joined.

    Args:
        server: Where it goes.
        client: Who talks.
        address: Where the client is.
    """

    def __init__(
        self, server: MemoryServer, client: HostileClient, *, address: tuple[str, int]
    ) -> None:
        self.client = client
        self._server = server
        self._address = address

    def shake_hands(self) -> bool:
        """
        Exchange datagrams until the connection stands; False: it never will.
        """
        for _ in range(_MOST_EXCHANGES):
            self.exchange()
            if self.client.is_established or self.client.is_over:
                break
            self._server.advance(0.1)
        self.exchange()
        return self.client.is_established and not self.client.is_over

    def say(self, datagram: bytes, *, from_port: int | None = None) -> None:
        """
        Send a datagram, from another port if asked to, and go on.
        """
        ip, port = self._address
        self._server.deliver(datagram, (ip, from_port or port))
        self.exchange()

    def exchange(self) -> None:
        """
        Let both ends say what they have to say.
        """
        server = self._server
        for datagram in self.client.build(server.loop.clock_s):
            server.deliver(datagram, self._address)
        for datagram, address in server.take_sent():
            if address[0] == self._address[0]:
                self.client.receive(datagram, server.loop.clock_s)


def feed_datagrams(server: MemoryServer, datagrams: Iterable[bytes]) -> None:
    """
    Deliver datagrams, each from an address of its own.

    Raises:
        FuzzError: The server tripped over one; a note tells which.
    """
    for number, datagram in enumerate(datagrams):
        try:
            server.deliver(datagram, number_address(number))
        except FuzzError as error:
            error.add_note(f"datagram {number}: {datagram.hex()}")
            raise
        if number % 50 == 0:
            server.take_sent()
            server.advance(0.1)


def converse(server: MemoryServer, seed: int) -> HostileClient:
    """
    Let a hostile client have its connection, all of it decided by a seed.

    Raises:
        FuzzError: The server tripped; the client's payloads were kept in `FuzzError.payloads`.
    """
    rng = Random(seed)
    client = make_client(rng, server=server.address, now_s=server.loop.clock_s)
    try:
        talk = Talk(server, client, address=number_address(seed))
        if talk.shake_hands():
            prepare_client(rng, client)
            while not client.is_over and len(client.payloads) < MOST_PAYLOADS:
                moved_to = rng.choice(_OTHER_PORTS) if rng.random() < MOVE_SHARE else None
                talk.say(client.write(), from_port=moved_to)
                server.advance(rng.choice((0.0, 0.001, 0.03)))
    except FuzzError as error:
        error.payloads = tuple(client.payloads)
        raise
    return client


def replay(failure: Failure) -> list[dict[str, Any]]:
    """
    Send once more what is in a file, to a server in memory; why its connections ended.

    Raises:
        FuzzError: It trips as it did, or otherwise.
    """
    with make_server() as server:
        feed_datagrams(server, failure.datagrams)
        for number, payloads in enumerate(failure.conversations):
            client = HostileClient(
                Random(failure.seed),
                _make_configuration(CERTIFICATE.trust_pem),
                server=server.address,
                now_s=server.loop.clock_s,
            )
            talk = Talk(server, client, address=number_address(number))
            talk.shake_hands()
            for payload in payloads:
                if not client.is_over:
                    talk.say(client.seal(payload))
        server.advance(120.0)
        left = server.count_left()
        if any(left.values()):
            raise FuzzError(f"two minutes later the server still holds {left}")
        return server.endpoint.connections.report_reasons()
