"""
A server without a network: the real endpoint, on a clock of its own, fed by function calls.

What a seed sends is the same each time, no datagram is lost on the way, and an hour of
idle timeouts passes in a moment. Everything above the system calls is the real thing.
"""

import socket
import struct
import time
import traceback
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final, Self

from aioquic.quic.connection import QuicConnection

from server.endpoint import Endpoint
from server.loop import Loop
from server.options import EndpointOptions
from server.perf import PerfServer, PerfTally
from server.udp.model import Address, Message, UdpOptions
from server.udp.sockets import UdpSocket, open_socket
from tests.server.world import make_configuration

_PORT_AND_IP: Final = struct.Struct("!2xH4s")  # of a sockaddr_in (linux/in.h)
_AMPLIFICATION_LIMIT: Final = 3  # RFC 9000, Section 8.1
IDLE_TIMEOUT_S: Final = 5.0  # of the server made here


class FuzzError(Exception):
    """The server did what it must not."""

    payloads: tuple[bytes, ...] = ()
    """What a hostile client had said until then, before it was sealed."""


class ClockLoop(Loop):
    """
    A loop whose clock moves when it is told to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clock_s = 1000.0

    def now_s(self) -> float:  # type: ignore[override]
        """The time of this world, seconds."""
        return self.clock_s

    def next_timer_s(self) -> float | None:
        """When the next timer is due; None: there is none."""
        due = [at_s for at_s, _, handle in self._timers if handle.call is not None]
        return min(due, default=None)

    def fire(self) -> None:
        """
        Make the calls that are due.
        """
        self._run_timers(self.clock_s)


class Wire:
    """
    In the place of the calls that send: keeps what would have left.
    """

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, Address]] = []

    def send(self, fd: int, slots: list[Message | None], first: int, count: int) -> int:
        """Take messages."""
        for number in range(count):
            self.send_one(fd, slots, (first + number) % len(slots))
        return count

    def send_one(self, fd: int, slots: list[Message | None], slot: int) -> int:
        """Take one message."""
        message = slots[slot]
        assert message is not None
        packed, datagrams = message
        port, ip = _PORT_AND_IP.unpack_from(packed)
        address = (socket.inet_ntoa(ip), port)
        self.sent += [(datagram, address) for datagram in datagrams]
        return 1

    def send_apart(self, fd: int, slots: list[Message | None], slot: int) -> int:
        """Take the datagrams of one message; how many."""
        message = slots[slot]
        assert message is not None
        self.send_one(fd, slots, slot)
        return len(message[1])


@dataclass(slots=True)
class Traffic:
    """What came from and went to one address; validated: it may be sent any amount."""

    received_bytes: int = 0
    sent_bytes: int = 0
    is_validated: bool = False


@dataclass(slots=True)
class Slowest:
    """The datagram that took longest to handle."""

    elapsed_s: float = 0.0
    datagram: bytes = b""


class _WatchedEndpoint(Endpoint):
    """Keeps every fault, where the real one shows the first few."""

    faults: list[Exception]

    def _show_fault(self, error: Exception) -> None:
        self.faults.append(error)
        self.udp.rx.drop("fault")


@dataclass
class MemoryServer:
    """
    The endpoint with its clock and its wire.
    """

    loop: ClockLoop = field(default_factory=ClockLoop)
    wire: Wire = field(default_factory=Wire)
    options: EndpointOptions = field(default_factory=EndpointOptions)
    traffic: dict[Address, Traffic] = field(default_factory=lambda: defaultdict(Traffic))
    slowest: Slowest = field(default_factory=Slowest)
    tally: PerfTally = field(default_factory=PerfTally)
    datagram_count: int = 0

    def __post_init__(self) -> None:
        configuration = make_configuration(is_client=False, datagram_bytes=1200)
        configuration.idle_timeout = IDLE_TIMEOUT_S
        self.endpoint = _WatchedEndpoint(
            UdpSocket(
                open_socket(("127.0.0.1", 0), is_port_shared=False),
                UdpOptions(tx_ring_bytes=1_000_000),
                listening=self.loop.listening,
            ),
            self.loop,
            configuration=configuration,
            options=self.options,
            accept=self._accept,
        )
        self.endpoint.faults = []
        self.endpoint.udp.tx._sender = self.wire

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.endpoint.close()

    @property
    def address(self) -> tuple[str, int]:
        """Where the server is, as clients see it."""
        ip, port = self.endpoint.udp.address[:2]
        return ip, port

    def deliver(self, datagram: bytes, address: tuple[str, int]) -> None:
        """
        Hand over a datagram as if it had come from an address, and let the server answer.

        Raises:
            FuzzError: It tripped over it, or answered with too much.
        """
        self.datagram_count += 1
        self.traffic[address].received_bytes += len(datagram)
        begun_s = time.perf_counter()
        self.endpoint._receive_train([datagram], address, self.loop.clock_s)
        self._transmit()
        elapsed_s = time.perf_counter() - begun_s
        if elapsed_s > self.slowest.elapsed_s:
            self.slowest = Slowest(elapsed_s, datagram)

    def advance(self, seconds: float) -> None:
        """
        Let time pass, with every timer at its time.

        Raises:
            FuzzError: As with `deliver`.
        """
        until_s = self.loop.clock_s + seconds
        while (due_s := self.loop.next_timer_s()) is not None and due_s <= until_s:
            self.loop.clock_s = max(self.loop.clock_s, due_s)
            self.loop.fire()
            self._transmit()
        self.loop.clock_s = until_s

    def take_sent(self) -> list[tuple[bytes, Address]]:
        """
        Take what the server has sent since.
        """
        sent, self.wire.sent = self.wire.sent, []
        return sent

    def count_left(self) -> dict[str, int]:
        """
        Count what the server still holds of connections.
        """
        endpoint = self.endpoint
        return {
            "open_count": endpoint.connections.open_count,
            "connection_ids": len(endpoint._intake.sessions),
            "sessions": len(endpoint._by_connection),
            "timers": sum(handle.call is not None for _, _, handle in self.loop._timers),
        }

    def _accept(self, connection: QuicConnection) -> PerfServer:
        return PerfServer(connection, tally=self.tally, is_content_verified=True)

    def _transmit(self) -> None:
        endpoint = self.endpoint
        known_count = len(self.wire.sent)
        turns = 0
        while endpoint.builder.has_ready or not endpoint.is_idle:
            endpoint.transmit(self.loop.clock_s)
            turns += 1
            if turns > 10_000:
                raise FuzzError("the server has been building datagrams for 10,000 turns")
        for datagram, address in self.wire.sent[known_count:]:
            self._watch(datagram, address)
        if endpoint.faults:
            raise FuzzError(describe_fault(endpoint.faults[0])) from endpoint.faults.pop(0)

    def _watch(self, datagram: bytes, address: Address) -> None:
        traffic = self.traffic[address]
        traffic.sent_bytes += len(datagram)
        if traffic.is_validated or traffic.sent_bytes <= self._allowed_bytes(traffic):
            return
        traffic.is_validated = any(
            path.is_validated
            for connection in self.endpoint._by_connection
            for path in connection._network_paths
            if path.addr == address
        )
        if not traffic.is_validated:
            raise FuzzError(
                f"{traffic.sent_bytes} bytes went to an address that sent "
                f"{traffic.received_bytes} and is not validated"
            )

    @staticmethod
    def _allowed_bytes(traffic: Traffic) -> int:
        return _AMPLIFICATION_LIMIT * traffic.received_bytes


def describe_fault(error: BaseException) -> str:
    """
    Say what a fault is and where it was raised: the same words for the same bug.
    """
    where = traceback.extract_tb(error.__traceback__)[-1]
    file = where.filename.rpartition("site-packages/")[2].rpartition("/main/")[2]
    return f"{type(error).__name__}: {error} ({file}:{where.lineno} in {where.name})"
