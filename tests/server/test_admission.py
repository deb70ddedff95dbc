"""
Who may open a connection, and what a flood of newcomers costs those who are there.
"""

import socket
from collections.abc import Callable, Iterator

import pytest
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicErrorCode

from server import routing
from server.admission import Admission, AdmissionOptions
from server.options import EndpointOptions
from server.session import Session
from server.window import ReceiveBudget
from tests.server.world import World, make_configuration

ASKED_BYTES = 300_000
_RETRY_TYPE = 0x30  # RFC 9000, Section 17.2.5
_TYPE_MASK = 0x30


class Newcomer:
    """A client that sends its first datagram and says nothing more of its own."""

    def __init__(self, world: World) -> None:
        self.connection = QuicConnection(
            configuration=make_configuration(is_client=True, datagram_bytes=1200)
        )
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.bind(("127.0.0.1", 0))
        self.sock.settimeout(5.0)
        self._world = world
        self._server = world.server.udp.address
        self.connection.connect(self._server, now=world.loop.now_s())
        self.speak()

    def speak(self, sock: socket.socket | None = None) -> None:
        """Send what the connection has to say, perhaps from somewhere else; let it arrive."""
        for datagram, _ in self.connection.datagrams_to_send(now=self._world.loop.now_s()):
            (sock or self.sock).sendto(datagram, self._server)
        for _ in range(3):
            self._world.loop.turn(most_wait_s=0.02)

    def hear(self) -> bytes:
        """Take one datagram; the connection sees it, too."""
        datagram = self.sock.recv(2048)
        self.connection.receive_datagram(datagram, self._server, now=self._world.loop.now_s())
        return datagram


Meet = Callable[[World], Newcomer]


@pytest.fixture
def meet() -> Iterator[Meet]:
    """Make newcomers; their sockets are closed at the test's end."""
    newcomers: list[Newcomer] = []

    def make(world: World) -> Newcomer:
        newcomers.append(Newcomer(world))
        return newcomers[-1]

    yield make
    for newcomer in newcomers:
        newcomer.sock.close()


def make_world(**options: object) -> World:
    """Make a server with bounds of its own."""
    admission = AdmissionOptions(**options)  # type: ignore[arg-type]
    return World(options=EndpointOptions(admission=admission))


# Decisions, without a network ---------------------------------------------------


@pytest.mark.parametrize(
    ("options", "half_open", "kept_count", "is_validated", "expected"),
    [
        ({}, 0, 0, False, "accept"),
        ({}, 63, 63, False, "accept"),
        ({}, 64, 64, False, "retry"),
        ({}, 2000, 2000, True, "accept"),
        ({}, 0, 2048, True, "refuse"),
        ({"retry": "off"}, 64, 64, False, "accept"),
        ({"retry": "off"}, 1024, 1024, False, "refuse"),
        ({"retry": "always"}, 0, 0, False, "retry"),
        ({"retry": "always"}, 0, 0, True, "accept"),
    ],
    ids=[
        "quiet",
        "some-half-open",
        "many-half-open",
        "shown-its-address",
        "full",
        "no-retry",
        "no-retry-and-too-many",
        "retry-always",
        "with-a-token",
    ],
)
def test_a_newcomer_is_accepted_retried_or_refused(
    options: dict[str, object],
    half_open: int,
    kept_count: int,
    is_validated: bool,
    expected: str,
) -> None:
    """The bounds, each from both sides."""
    admission = Admission(AdmissionOptions(**options))  # type: ignore[arg-type]
    admission.half_open_count = half_open
    assert expected == admission.decide(kept_count=kept_count, is_validated=is_validated)
    assert (expected == "refuse") is bool(admission.refused_counts)


# Retry --------------------------------------------------------------------------


def test_a_client_that_is_sent_a_retry_downloads_every_byte() -> None:
    """It shows its address by the token, and the handshake goes on (RFC 9000, Section 8.1.2)."""
    with make_world(retry="always") as world:
        application = world.add_client(asked_bytes=ASKED_BYTES)
        world.run()
        assert ASKED_BYTES == len(application.received)
        report = world.server.admission.report()
        assert (1, 0, 0) == tuple(
            report[name] for name in ("retry_sent_count", "invalid_token_count", "half_open_count")
        )


def test_nothing_is_kept_for_a_client_that_is_sent_a_retry(meet: Meet) -> None:
    """No connection, no ID, no timer: whoever forges addresses gets a small answer and no more."""
    with make_world(retry="always") as world:
        datagram = meet(world).sock.recv(2048)
        assert _RETRY_TYPE == datagram[0] & _TYPE_MASK
        assert len(datagram) < 1200
        assert (0, 0) == (world.server.open_count, len(world.server._intake.sessions))


def test_a_token_is_worth_nothing_at_another_address(meet: Meet) -> None:
    """Whoever saw the token and sends from elsewhere is told INVALID_TOKEN (Section 8.1.2)."""
    with make_world(retry="always") as world:
        newcomer = meet(world)
        newcomer.hear()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as elsewhere:
            elsewhere.bind(("127.0.0.1", 0))
            elsewhere.settimeout(5.0)
            newcomer.speak(elsewhere)
            answer = elsewhere.recv(2048)
        newcomer.connection.receive_datagram(answer, world.server.udp.address, now=0.0)
        close = newcomer.connection._close_event
        assert close is not None
        assert QuicErrorCode.INVALID_TOKEN == close.error_code
        assert (0, 1) == (world.server.open_count, world.server.admission.invalid_token_count)


def test_newcomers_show_their_address_while_many_handshakes_wait(meet: Meet) -> None:
    """One half-open connection is a crowd for 16; the second newcomer gets a Retry."""
    with make_world(most_half_open=16) as world:
        meet(world)
        assert (1, 0) == (
            world.server.admission.half_open_count,
            world.server.admission.retry_sent_count,
        )
        application = world.add_client(asked_bytes=ASKED_BYTES)
        while not application.is_over:
            world.loop.turn(most_wait_s=0.05)
        assert ASKED_BYTES == len(application.received)
        assert 1 == world.server.admission.retry_sent_count


# Bounds -------------------------------------------------------------------------


def test_half_open_connections_take_nothing_of_the_windows(meet: Meet) -> None:
    """A flood of first datagrams leaves the shares of those who are there as they were."""
    with make_world(retry="off") as world:
        before_bytes = world.server.budget.shared.cap_bytes
        for _ in range(20):
            meet(world)
        assert 20 == world.server.admission.half_open_count
        assert before_bytes == world.server.budget.shared.cap_bytes


def test_a_handshake_that_takes_too_long_is_given_up(meet: Meet) -> None:
    """Everything that was kept of it is gone, without waiting for the idle timeout."""
    with make_world(handshake_limit_s=0.1) as world:
        meet(world)
        assert 1 == world.server.open_count
        while world.server.open_count:
            world.loop.turn(most_wait_s=0.05)
        assert (1, 0) == (
            world.server.admission.handshake_timeout_count,
            world.server.admission.half_open_count,
        )
        assert (0, 0) == (len(world.server._by_connection), len(world.server._intake.sessions))


def test_a_handshake_that_ended_is_not_given_up_later() -> None:
    """The limit is of the handshake, not of the connection."""
    with make_world(handshake_limit_s=0.2) as world:
        application = world.add_client(asked_bytes=2**40)
        while not application.received:
            world.loop.turn(most_wait_s=0.05)
        until_s = world.loop.now_s() + 0.3
        while world.loop.now_s() < until_s:
            world.loop.turn(most_wait_s=0.05)
        assert (1, 0) == (
            world.server.open_count,
            world.server.admission.handshake_timeout_count,
        )


def test_a_newcomer_that_closes_at_once_counts_until_it_is_forgotten(meet: Meet) -> None:
    """A flood of first datagrams that close what they open meets the same bounds as any other."""
    with make_world(most_half_open=16) as world:
        newcomer = meet(world)
        newcomer.connection.close()
        newcomer.speak()
        assert (0, 1, 1) == (
            world.server.open_count,
            world.server.kept_count,
            world.server.admission.half_open_count,
        )
        meet(world)
        assert 1 == world.server.admission.retry_sent_count
        while world.server.kept_count:
            world.loop.turn(most_wait_s=0.05)
        assert 0 == world.server.admission.half_open_count


def test_a_handshake_that_ends_as_its_time_does_is_kept(meet: Meet) -> None:
    """Its last datagram was received in the turn in which the limit fires."""
    with make_world() as world:
        (session,) = _begin_almost(world, meet)
        world.server._on_handshake_limit(session, world.loop.now_s())
        assert (1, 0, 0) == (
            world.server.open_count,
            world.server.admission.handshake_timeout_count,
            world.server.admission.half_open_count,
        )


def test_a_connection_that_was_given_up_takes_no_share_of_the_windows(meet: Meet) -> None:
    """What it had still to tell is not heard: nobody would give that share back."""
    with make_world() as world:
        (session,) = _begin_almost(world, meet)
        world.server.abandon(session)
        world.loop.turn(most_wait_s=0.02)
        assert (0, 0) == (world.server.kept_count, world.server.budget._open_count)


def _begin_almost(world: World, meet: Meet) -> list[Session]:
    """Receive the last datagram of a handshake, and let nothing come of it yet."""
    newcomer = meet(world)
    while not newcomer.connection._handshake_complete:
        newcomer.hear()
    for datagram, _ in newcomer.connection.datagrams_to_send(now=world.loop.now_s()):
        newcomer.sock.sendto(datagram, world.server.udp.address)
    world.server.receive(world.loop.now_s())
    return list(world.server._by_connection.values())


def test_beyond_the_most_connections_newcomers_are_refused_and_counted(meet: Meet) -> None:
    """Those who are there are served on; the report says how many were sent away, and why."""
    with make_world(most_connections=1, retry="off") as world:
        application = world.add_client(asked_bytes=ASKED_BYTES)
        while not world.server.open_count:
            world.loop.turn(most_wait_s=0.05)
        meet(world)
        assert {"connections": 1} == world.server.admission.report()["refused_counts"]
        world.run()
        assert ASKED_BYTES == len(application.received)


def test_what_newcomers_may_send_is_a_part_of_the_budget() -> None:
    """The usual window while few are open, then less, and never less than the least."""
    usual_bytes, least_bytes, total_bytes = 2**24, 2**18, 2**28
    budget = ReceiveBudget(
        total_bytes=total_bytes, usual_bytes=usual_bytes, least_bytes=least_bytes
    )
    shares = [budget.join() for _ in range(2000)]
    assert [usual_bytes] * 12 == shares[:12]
    assert sorted(shares, reverse=True) == shares
    assert least_bytes == shares[-1]
    assert sum(shares) == budget.granted_bytes <= total_bytes + 2000 * least_bytes


def test_windows_come_nearer_to_equal_parts_each_time_that_they_grow() -> None:
    """Who came late is not kept short, and what was told is not taken back."""
    budget = ReceiveBudget(total_bytes=2**28, usual_bytes=2**24, least_bytes=2**18)
    shares = [budget.join() for _ in range(40)]
    assert shares[0] == budget.exchange(shares[0], least_bytes=shares[0])
    for _ in range(30):
        shares = [budget.exchange(had, least_bytes=had // 2) for had in shares]
    assert max(shares) < 1.05 * min(shares)
    assert 0.9 * 2**28 < sum(shares) <= 2**28


def test_what_connections_could_send_is_given_back(meet: Meet) -> None:
    """After their end, however it came, the whole budget is there again."""
    with make_world(handshake_limit_s=0.1) as world:
        meet(world)
        world.add_client(asked_bytes=10, upload=bytes(20 * 2**20))
        world.run()
        assert world.server.receive_budget.granted_bytes
        while world.server.kept_count:
            world.loop.turn(most_wait_s=0.05)
        assert 0 == world.server.receive_budget.granted_bytes


def test_a_version_negotiation_packet_is_never_answered() -> None:
    """Two servers would answer each other forever (RFC 9000, Section 6.1)."""
    header = routing.LongHeader(
        first_byte=0xC0, version=0, destination_cid=bytes(8), source_cid=bytes(8)
    )
    assert None is routing.answer_version(header, datagram_bytes=1200, supported_versions=[1])
