"""
server.endpoint: connections over real sockets, the ring that paces them, and rubbish.
"""

import errno
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aioquic._buffer import Buffer
from aioquic.quic.connection import QuicConnection, QuicNetworkPath
from aioquic.quic.events import ConnectionTerminated
from aioquic.quic.packet import QuicPacketType, pull_quic_header
from hypothesis import given, settings
from hypothesis import strategies as st

from server.content import find_content_error
from server.options import EndpointOptions
from server.session import Session
from server.udp.model import Address, Message, UdpOptions, errno_name
from server.udp.transmit import Sender
from tests.server.world import World, make_configuration

ASKED_BYTES = 150_000


def _check_download(application: Any) -> None:
    assert len(application.received) == ASKED_BYTES
    assert find_content_error(bytes(application.received), 0) is None


@pytest.mark.parametrize("pacing", ["ring", "aioquic", "off"])
@pytest.mark.parametrize("tx_ring_bytes", [128_000, 8_000_000], ids=["128k", "8M"])
def test_download_is_complete_with_every_pacing_and_ring(pacing: Any, tx_ring_bytes: Any) -> None:
    """Every byte comes, whatever paces and however small the ring is."""
    with World(UdpOptions(tx_ring_bytes=tx_ring_bytes), EndpointOptions(pacing=pacing)) as world:
        application = world.add_client(asked_bytes=ASKED_BYTES)
        world.run()
        _check_download(application)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(UdpOptions(is_gso_on=False), id="no-gso"),
        pytest.param(UdpOptions(is_gro_on=False), id="no-gro"),
        pytest.param(UdpOptions(max_segments=64), id="64-segments"),
        pytest.param(UdpOptions(rx_ring_bytes=65_535), id="rx-ring-of-one"),
        pytest.param(UdpOptions(max_mtu_bytes=1500), id="mtu-1500"),
    ],
)
def test_download_is_complete_with_every_offload(options: Any) -> None:
    """GSO, GRO and the rings' sizes change how bytes travel, never which."""
    with World(options) as world:
        application = world.add_client(asked_bytes=ASKED_BYTES)
        world.run()
        _check_download(application)


def test_download_works_over_ipv6() -> None:
    """The same over IPv6, where it is on; messages keep to its smaller limit."""
    if not Path("/proc/net/if_inet6").exists() or not Path("/proc/net/if_inet6").read_text():
        pytest.skip("needs IPv6")
    with World(UdpOptions(tx_ring_bytes=8_000_000, max_segments=64), ip="::1") as world:
        application = world.add_client(asked_bytes=ASKED_BYTES)
        world.run()
        _check_download(application)
        assert world.counts()["tx"]["error_counts"] == {}


def test_many_connections_share_one_small_ring() -> None:
    """Connections take turns in a ring of one slot; each gets all its bytes."""
    with World(UdpOptions(tx_ring_bytes=128_000)) as world:
        applications = [world.add_client(asked_bytes=ASKED_BYTES) for _ in range(5)]
        world.run()
        for application in applications:
            _check_download(application)
        counts = world.counts()["connections"]
        assert (5, 0, 5) == tuple(
            counts[name] for name in ("opened_count", "open_count", "closed_count")
        )


def test_upload_is_drained_and_counted() -> None:
    """A client's upload arrives whole while the answer goes back."""
    with World() as world:
        application = world.add_client(asked_bytes=ASKED_BYTES, upload=os.urandom(100_000))
        world.run()
        _check_download(application)
        assert world.counts()["rx"]["byte_received_count"] > 100_000


@pytest.mark.parametrize("datagram_bytes", [1200, 8972])
def test_a_ring_of_one_slot_gives_calls_of_one_message(datagram_bytes: Any) -> None:
    """With 128,000 bytes of ring every sendmmsg carries exactly one message."""
    options = UdpOptions(tx_ring_bytes=128_000)
    with World(options, datagram_bytes=datagram_bytes) as world:
        world.add_client(asked_bytes=300_000)
        world.run()
        tx = world.counts()["tx"]
        assert [bucket["max"] for bucket in tx["messages_per_call"]] == [1]
        assert tx["send_call_count"] == tx["message_sent_count"]


@pytest.mark.slow
@pytest.mark.parametrize(("datagram_bytes", "asked_bytes"), [(1200, 4_000_000), (8972, 12_000_000)])
def test_a_large_ring_gives_calls_of_many_messages(datagram_bytes: Any, asked_bytes: Any) -> None:
    """With 8,000,000 bytes of ring most messages leave in calls of 16 or more."""
    options = UdpOptions(tx_ring_bytes=8_000_000)
    with World(options, datagram_bytes=datagram_bytes) as world:
        world.add_client(asked_bytes=asked_bytes)
        world.run()
        buckets = world.counts()["tx"]["messages_per_call"]
        calls = sum(bucket["count"] for bucket in buckets)
        large = sum(bucket["count"] for bucket in buckets if bucket["min"] >= 16)
        # Slow start begins with small ones; they are as many in a short run as in a long.
        assert large >= calls / 3
        assert max(bucket["min"] for bucket in buckets) >= 16


def test_counters_agree_with_each_other() -> None:
    """What was written was sent, what was received was read, call by call."""
    with World(UdpOptions(tx_ring_bytes=1_000_000)) as world:
        world.add_client(asked_bytes=ASKED_BYTES)
        world.run()
        tx, rx = world.counts()["tx"], world.counts()["rx"]
        assert tx["datagram_written_count"] == tx["datagram_sent_count"]
        assert tx["message_written_count"] == tx["message_sent_count"]
        assert sum(one["count"] for one in tx["messages_per_call"]) == tx["send_call_count"]
        assert rx["message_received_count"] == rx["message_read_count"]
        client_rx = world.clients[0].udp.rx.counters
        client_tx = world.clients[0].udp.tx.counters
        assert client_rx.datagram_read_count == tx["datagram_sent_count"]
        assert client_rx.byte_received_count == tx["byte_sent_count"]
        assert client_tx.datagram_sent_count == rx["datagram_read_count"]


def test_an_acknowledgement_that_allows_nothing_costs_no_build() -> None:
    """A connection that waits for half of its window is not asked for datagrams meanwhile."""
    with World(UdpOptions(tx_ring_bytes=8_000_000)) as world:
        world.add_client(asked_bytes=2_000_000)
        world.clients[0].udp.rx._most_messages = 1  # so that it acknowledges every message
        build = world.server.builder._build_message
        tx = world.server.udp.tx.counters
        futile_count = 0

        def watch(session: Session) -> bool:
            nonlocal futile_count
            was_blocked, written_count = session.is_blocked, tx.datagram_written_count
            has_more = build(session)
            futile_count += was_blocked and tx.datagram_written_count == written_count
            return has_more

        world.server.builder._build_message = watch  # type: ignore[method-assign]
        world.run()
        assert 10 * futile_count < world.server.udp.rx.counters.datagram_read_count


def _fill_window(world: World) -> Session:
    """Download until the window is full, for the client has stopped to read; the server's side."""
    world.add_client(asked_bytes=2**40)
    while not world.applications[0].received:
        world.loop.turn(most_wait_s=0.05)
    world.clients[0].receive = lambda now_s: None  # type: ignore[method-assign]
    (session,) = world.server._by_connection.values()
    while not session.is_blocked or session.is_ready or not world.server.is_idle:
        world.loop.turn(most_wait_s=0.05)
    return session


def test_a_full_window_does_not_keep_another_paths_challenge_waiting() -> None:
    """A peer that tries another address is answered in the turn in which it asks."""
    with World() as world, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        other.settimeout(5)  # the kernel may deliver a moment later
        session = _fill_window(world)
        client = world.applications[0].connection
        path = QuicNetworkPath(addr=world.server.udp.address)
        path.peer_cid = client._peer_cid_available.pop(0)
        ((datagram, _),) = client._send_probing_frames(network_path=path, now=world.loop.now_s())
        other.sendto(datagram, world.server.udp.address)
        select.select([world.server], [], [], 5)
        world.server.receive(world.loop.now_s())
        world.server.transmit(world.loop.now_s())
        assert session.is_blocked
        assert len(other.recv(2000)) >= 1200


def test_a_connection_id_is_known_as_soon_as_the_peer_is_told_of_it() -> None:
    """The next datagram may carry it, from wherever it comes."""
    with World() as world:
        session = _fill_window(world)
        issued = {each.cid for each in session.connection._host_cids}
        assert len(issued) > 2
        assert issued <= set(world.server._intake.sessions)


def test_a_full_window_does_not_keep_the_handshake_waiting() -> None:
    """Until it is confirmed aioquic is always asked: it passes a full window, without a timer."""
    with World() as world:
        session = _fill_window(world)
        connection = session.connection
        for is_confirmed in (True, False):
            connection._handshake_confirmed = is_confirmed
            assert is_confirmed is not world.server.builder._prepare(session, 0.0)
        connection._handshake_confirmed = True


class MoodyKernel:
    """
    The real calls, save that every third one is refused.

    Args:
        calls: The real ones.
        error: What the refused ones answer.
        refusal_count: How many are refused before all go well.
    """

    def __init__(self, calls: Sender, *, error: int, refusal_count: int) -> None:
        self._calls = calls
        self._error = error
        self._refusals_left = refusal_count
        self._number = 0

    def _is_refused(self) -> bool:
        self._number += 1
        if self._number % 3 == 0 and self._refusals_left:
            self._refusals_left -= 1
            return True
        return False

    def send(self, fd: int, slots: list[Message | None], first: int, count: int) -> int:
        """Refuse, or send."""
        message = slots[first]
        assert message is not None
        # GSO is refused to trains alone.
        is_candidate = self._error not in (errno.EIO, errno.EINVAL) or len(message[1]) > 1
        if is_candidate and self._is_refused():
            return -self._error
        return self._calls.send(fd, slots, first, count)

    def send_one(self, fd: int, slots: list[Message | None], slot: int) -> int:
        """Send."""
        return self._calls.send_one(fd, slots, slot)

    def send_apart(self, fd: int, slots: list[Message | None], slot: int) -> int:
        """Send."""
        return self._calls.send_apart(fd, slots, slot)


@pytest.mark.parametrize("error", [errno.EAGAIN, errno.ENOBUFS, errno.EINTR], ids=errno_name)
@pytest.mark.parametrize("tx_ring_bytes", [128_000, 8_000_000], ids=["128k", "8M"])
def test_a_kernel_without_room_costs_time_alone(error: int, tx_ring_bytes: int) -> None:
    """Calls refused for want of room or memory are counted by name; all bytes come."""
    with World(UdpOptions(tx_ring_bytes=tx_ring_bytes)) as world:
        tx = world.server.udp.tx
        tx._sender = MoodyKernel(tx._sender, error=error, refusal_count=3)
        application = world.add_client(asked_bytes=ASKED_BYTES)
        world.run()
        _check_download(application)
        assert tx.counters.error_counts[errno_name(error)] >= 1
        assert tx.counters.datagram_written_count == tx.counters.datagram_sent_count


@pytest.mark.parametrize("error", [errno.EIO, errno.EINVAL], ids=errno_name)
def test_refused_gso_in_the_middle_of_a_download_costs_no_byte(error: int) -> None:
    """GSO is given up once, recorded, and the download goes on without it."""
    with World(UdpOptions(tx_ring_bytes=8_000_000)) as world:
        tx = world.server.udp.tx
        tx._sender = MoodyKernel(tx._sender, error=error, refusal_count=1)
        application = world.add_client(asked_bytes=ASKED_BYTES)
        world.run()
        _check_download(application)
        assert tx.counters.datagram_written_count == tx.counters.datagram_sent_count
        assert tx.counters.error_counts == {errno_name(error): 1}
        assert [one.what for one in world.server.udp.degradations] == ["gso"]


@pytest.mark.parametrize("tx_ring_bytes", [128_000, 8_000_000], ids=["128k", "8M"])
@pytest.mark.parametrize("one_in", [50, 7])
def test_lost_datagrams_are_sent_again(tx_ring_bytes: int, one_in: int) -> None:
    """Loss never leaves a connection waiting for room that nothing will free."""
    with World(UdpOptions(tx_ring_bytes=tx_ring_bytes)) as world:
        application = world.add_client(asked_bytes=ASKED_BYTES)
        feed = world.clients[0]._receive_train
        number = 0

        def lose(datagrams: list[bytes], address: Address, now_s: float) -> None:
            nonlocal number
            first, number = number + 1, number + len(datagrams)
            kept = [one for index, one in enumerate(datagrams, first) if index % one_in]
            feed(kept, address, now_s)

        world.clients[0]._receive_train = lose  # type: ignore[method-assign]
        while not application.is_over:
            world.loop.turn(most_wait_s=0.05)
        _check_download(application)


def test_a_window_cap_bounds_what_is_in_flight() -> None:
    """No connection has more in flight than its cap, and the cap can be changed later."""
    with World(options=EndpointOptions(window_cap_bytes=50_000)) as world:
        world.add_client(asked_bytes=ASKED_BYTES)
        largest = 0
        while not world.applications[0].is_over:
            world.loop.turn(most_wait_s=0.05)
            for session in world.server._by_connection.values():
                largest = max(largest, session.connection._loss.bytes_in_flight)
        # A probe or an ACK may pass it by a datagram (RFC 9002, Section 7).
        assert 0 < largest <= 50_000 + 2 * 1200
        world.server.set_window_cap(0)
        assert world.server._intake.configuration.congestion_control_algorithm == "reno"


@pytest.mark.parametrize("is_kept", [True, False])
def test_the_peers_limit_is_kept_only_when_asked(is_kept: Any) -> None:
    """A client's max_udp_payload_size bounds datagrams with --strict-peer-limit, else not."""
    stated = b"\x03\x02\x45\x14"  # max_udp_payload_size (RFC 9000, Section 18.2) = 1300

    def state_limit(connection: Any) -> None:
        write = connection._serialize_transport_parameters
        connection._serialize_transport_parameters = lambda: write() + stated

    options = EndpointOptions(is_peer_limit_kept=is_kept)
    with World(options=options, datagram_bytes=8972) as world:
        application = world.add_client(asked_bytes=ASKED_BYTES, on_made=state_limit)
        largest = 0
        feed = world.clients[0]._receive_train

        def watch(datagrams: Any, address: Any, now_s: Any) -> None:
            nonlocal largest
            largest = max(largest, *map(len, datagrams))
            feed(datagrams, address, now_s)

        world.clients[0]._receive_train = watch  # type: ignore[method-assign]
        world.run()
        _check_download(application)
        assert largest == (1300 if is_kept else 8972)


def test_each_datagram_of_a_train_goes_to_its_own_connection() -> None:
    """A train that holds datagrams of two connections, and some of none, loses and mixes none."""
    with World() as world:
        for _ in range(2):
            world.add_client(asked_bytes=2**40)
        while not all(one.received for one in world.applications):
            world.loop.turn(most_wait_s=0.05)
        server = world.server
        server.udp.rx.counters.reset()
        fed: list[tuple[int, bytes]] = []
        connections = list(server._by_connection)
        for index, connection in enumerate(connections):
            connection.receive_datagram = (  # type: ignore[method-assign]
                lambda datagram, *_, index=index: fed.append((index, datagram))
            )
        first, second = (b"\x40" + one.host_cid + b"payload" for one in connections)
        nobody = b"\x40" + bytes(8) + b"payload"
        long_header = b"\xc0" + connections[0].host_cid + bytes(30)

        train = [first, first, second, nobody, nobody, second, b"", long_header, first, b"\x3f"]
        server._receive_train(train, ("127.0.0.1", 9), 0.0)

        assert [(0, first), (0, first), (1, second), (1, second), (0, first)] == fed
        dropped = server.udp.rx.counters.datagram_dropped_counts
        assert (dropped["unknown_connection"], sum(dropped.values())) == (2, 5)
        for connection in connections:
            del connection.receive_datagram


def test_close_tells_the_clients_and_gives_the_port_back() -> None:
    """A server that ends closes its connections with words, and its port can be bound at once."""
    world = World()
    application = world.add_client(asked_bytes=2**40)
    while not application.received:
        world.loop.turn(most_wait_s=0.05)
    address = world.server.udp.address
    world.server.close(reason="the server ends")
    while not application.is_over:
        world.loop.turn(most_wait_s=0.05)
    last = application.events[-1]
    assert isinstance(last, ConnectionTerminated)
    assert (last.error_code, last.reason_phrase) == (0, "the server ends")
    assert world.server.connections.report_reasons()[0]["by"] == "self"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(address)
    world.clients[0].close()


def test_an_idle_client_ends_by_idle_timeout() -> None:
    """A client that falls silent is counted as closed, by the idle timeout."""
    with World() as world:
        world.server._intake.configuration.idle_timeout = 0.2
        application = world.add_client(asked_bytes=2**40)
        while not application.received:
            world.loop.turn(most_wait_s=0.05)
        world.clients.pop().udp.sock.close()  # the close never leaves
        world.loop._endpoints[:] = [world.server]
        while not world.is_settled:
            world.loop.turn(most_wait_s=0.05)
        assert [one["by"] for one in world.server.connections.report_reasons()] == ["idle"]


# Rubbish -----------------------------------------------------------------------


def _initial_datagram() -> Any:
    connection = QuicConnection(
        configuration=make_configuration(is_client=True, datagram_bytes=1200)
    )
    connection.connect(("127.0.0.1", 1), now=0.0)
    return connection.datagrams_to_send(0.0)[0][0]


INITIAL = _initial_datagram()


def _send(world: Any, *datagrams: Any) -> Any:
    """Send datagrams from a socket of their own, turn once, and return what came back."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for datagram in datagrams:
            sock.sendto(datagram, world.server.udp.address)
        for _ in range(3):
            world.loop.turn(most_wait_s=0.0)
        sock.setblocking(False)
        answers = []
        while True:
            try:
                answers.append(sock.recv(65_535))
            except BlockingIOError:
                return answers


@pytest.mark.parametrize(
    ("datagram", "why"),
    [
        pytest.param(b"", "not_quic", id="empty"),
        pytest.param(b"\x00" * 100, "not_quic", id="zeros"),
        pytest.param(b"\x40" + b"x" * 4, "not_quic", id="short-header-too-short"),
        pytest.param(b"\x40" + b"x" * 40, "unknown_connection", id="unknown-short-header"),
        pytest.param(b"\xc0\x00\x00\x00\x01", "not_quic", id="long-header-cut"),
        pytest.param(b"\xc0\x00\x00\x00\x01\xff" + b"x" * 50, "not_quic", id="connection-id-cut"),
        pytest.param(INITIAL[:1199], "unknown_connection", id="initial-below-1200"),
        pytest.param(INITIAL[:400] + os.urandom(800), "not_initial", id="initial-damaged"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n" * 4, "unknown_connection", id="http"),
        pytest.param(
            b"\xc0" + bytes(4) + b"\x08" + b"d" * 8 + b"\x08" + b"s" * 8 + bytes(1300),
            "unsupported_version",
            id="version-negotiation",
        ),
    ],
)
def test_rubbish_is_dropped_in_silence_and_counted(datagram: Any, why: Any) -> None:
    """What is no packet of a connection gets no answer and no state, only a count."""
    with World() as world:
        assert _send(world, datagram) == []
        assert world.counts()["rx"]["datagram_dropped_counts"] == {why: 1}
        assert world.counts()["connections"]["opened_count"] == 0
        assert world.server._intake.sessions == {}


def test_an_unknown_version_is_answered_once_it_is_large_enough() -> None:
    """A first datagram of 1,200 bytes in another version gets our versions; a shorter none."""
    header = b"\xc0\x1a\x2a\x3a\x4a\x08" + b"d" * 8 + b"\x05" + b"s" * 5
    with World() as world:
        assert _send(world, (header + bytes(1200))[:1199]) == []
        (answer,) = _send(world, (header + bytes(1200))[:1200])
    parsed = pull_quic_header(Buffer(data=answer))
    assert parsed.packet_type == QuicPacketType.VERSION_NEGOTIATION
    assert (parsed.destination_cid, parsed.source_cid) == (b"s" * 5, b"d" * 8)
    assert 0x00000001 in parsed.supported_versions


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[World]:
    """One server that all the rubbish goes to."""
    with World() as world:
        yield world


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=1400),
        st.tuples(st.integers(0, 1199), st.binary(min_size=1, max_size=40)).map(
            lambda part: INITIAL[: part[0]] + part[1] + INITIAL[part[0] + len(part[1]) :]
        ),
        st.binary(min_size=1200, max_size=1300).map(lambda tail: INITIAL[:6] + tail),
    )
)
def test_no_datagram_ends_the_server(fuzzed: World, datagram: bytes) -> None:
    """No datagram at all, well-formed or not, makes anything in the server fail."""
    _send(fuzzed, datagram)
    assert "fault" not in fuzzed.counts()["rx"]["datagram_dropped_counts"]


def test_the_fuzzed_server_still_serves(fuzzed: World) -> None:
    """The server that all that rubbish went to still completes a download."""
    _send(fuzzed, INITIAL)
    application = fuzzed.add_client(asked_bytes=ASKED_BYTES)
    while not application.is_over:
        fuzzed.loop.turn(most_wait_s=0.05)
    _check_download(application)


def test_a_fault_in_an_application_ends_its_connection_alone(capsys: Any) -> None:
    """An application that raises loses its connection; others and the server go on."""

    class Faulty:
        def on_event(self, event: Any, now_s: Any) -> None:
            raise ZeroDivisionError("planted")

        def produce(self, wanted_bytes: Any) -> None:
            """Never called."""

    with World() as world:
        accept, world.server._accept = world.server._accept, lambda connection: Faulty()
        faulty = world.add_client(asked_bytes=10)
        while not faulty.is_over:
            world.loop.turn(most_wait_s=0.05)
        world.server._accept = accept
        application = world.add_client(asked_bytes=ASKED_BYTES)
        world.run()
        _check_download(application)
        last = faulty.events[-1]
        assert isinstance(last, ConnectionTerminated)
        assert last.error_code == 1  # INTERNAL_ERROR, RFC 9000, Section 20.1
    assert "ZeroDivisionError: planted" in capsys.readouterr().err
