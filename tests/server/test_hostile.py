"""
Peers that mean harm, or have none of RFC 9000's manners: what they can cost the server.
"""

import datetime as dt
import time
from collections.abc import Iterator

import pytest
from aioquic._buffer import Buffer
from aioquic.quic.connection import (
    QuicConnection,
    QuicConnectionError,
    QuicReceiveContext,
)
from aioquic.quic.packet import QuicErrorCode, QuicFrameType
from aioquic.tls import Epoch

from server.certificate import ServerCertificate, make_certificate
from server.internals import bound_received
from server.options import EndpointOptions
from server.perf import PerfServer, encode_header
from server.window import ReceiveBudget
from tests.quic_pair import CLIENT_ADDRESS, QuicPair, Recorder
from tests.server.world import CERTIFICATE, World, make_configuration

WINDOW_BYTES = 64 * 1024
AMPLIFICATION = 3  # RFC 9000, Section 8.1
LONG_NAMES = [f"10.0.{index // 256}.{index % 256}" for index in range(600)]


# Amplification ------------------------------------------------------------------


def make_first_datagrams(count: int) -> Iterator[bytes]:
    """First flights of one client, each a full datagram, never an answer to anything."""
    client = QuicConnection(configuration=make_configuration(is_client=True, datagram_bytes=1200))
    client.connect(("127.0.0.1", 1), now=0.0)
    now_s = 0.0
    for _ in range(count):
        yield from (datagram for datagram, _ in client.datagrams_to_send(now=now_s))
        timer_s = client.get_timer()
        assert timer_s is not None
        now_s = timer_s
        client.handle_timer(now=now_s)


def serve_silent_client(certificate: ServerCertificate, datagrams: list[bytes]) -> int:
    """Feed a server, let its timers run for a minute and count what it sends, in bytes."""
    configuration = make_configuration(is_client=False, datagram_bytes=8972)
    certificate.apply(configuration)
    header_cid = datagrams[0][6 : 6 + datagrams[0][5]]
    server = QuicConnection(
        configuration=configuration, original_destination_connection_id=header_cid
    )
    sent_bytes, now_s = 0, 0.0
    waiting = list(datagrams)
    while now_s < 60:
        if waiting:
            server.receive_datagram(waiting.pop(0), CLIENT_ADDRESS, now=now_s)
        sent_bytes += sum(len(data) for data, _ in server.datagrams_to_send(now=now_s))
        timer_s = server.get_timer()
        now_s = max(now_s + 0.1, min(timer_s or 60.0, now_s + 1.0))
        if timer_s is not None and timer_s <= now_s:
            server.handle_timer(now=now_s)
    return sent_bytes


@pytest.mark.parametrize("datagram_count", [1, 2, 5])
@pytest.mark.parametrize("addresses", [["127.0.0.1"], LONG_NAMES], ids=["small", "large"])
def test_a_client_that_never_answers_is_sent_three_times_its_bytes_at_most(
    datagram_count: int, addresses: list[str]
) -> None:
    """Whatever the size of the certificate, and however often the timers fire (Section 8.1)."""
    certificate = make_certificate(
        server_name="server.quiclab", addresses=addresses, now=dt.datetime.now(dt.UTC)
    )
    datagrams = list(make_first_datagrams(datagram_count))
    sent_bytes = serve_silent_client(certificate, datagrams)
    assert 0 < sent_bytes <= AMPLIFICATION * sum(len(datagram) for datagram in datagrams)


def test_a_first_datagram_that_is_too_small_gets_no_answer() -> None:
    """Below 1,200 bytes nothing is begun and nothing is sent (Section 14.1)."""
    with World() as world:
        client = world.add_client(asked_bytes=1)
        datagram = next(make_first_datagrams(1))[:1199]
        world.clients[0].udp.sock.sendto(datagram, world.server.udp.address)
        world.loop.turn(most_wait_s=0.05)
        dropped = world.server.udp.rx.counters.datagram_dropped_counts
        while not dropped:
            world.loop.turn(most_wait_s=0.05)
        assert {"unknown_connection": 1} == dropped
        world.run()
        assert client.is_over


# Memory -------------------------------------------------------------------------


def send_byte_at(server: QuicConnection, offset: int, *, stream_id: int = 0) -> None:
    """Let a byte of a stream come, with nothing before it."""
    buf = Buffer(capacity=32)
    for number in (stream_id, offset, 1):
        buf.push_uint_var(number)
    buf.push_bytes(b"x")
    context = QuicReceiveContext(
        epoch=Epoch.ONE_RTT,
        host_cid=server.host_cid,
        network_path=server._network_paths[0],
        quic_logger_frames=None,
        time=0.0,
        version=1,
    )
    kind = QuicFrameType.STREAM_BASE | 0x06  # with offset and length (Section 19.8)
    server._handle_stream_frame(context, kind, Buffer(data=buf.data))


def make_bounded_pair(window_bytes: int = WINDOW_BYTES) -> QuicPair:
    """A pair whose server holds so much that nobody can take yet, and no more."""

    def make_server(connection: QuicConnection) -> PerfServer:
        budget = ReceiveBudget(total_bytes=0, usual_bytes=window_bytes, least_bytes=window_bytes)
        bound_received(connection, budget)
        return PerfServer(connection, is_content_verified=True)

    pair = QuicPair(CERTIFICATE, make_client=lambda _: Recorder(), make_server=make_server)
    pair.run(20)
    return pair


def test_gaps_do_not_double_what_a_peer_may_send() -> None:
    """A byte behind a gap, again and again: the limit stays where it is, and is enforced."""
    pair = make_bounded_pair()
    offset = 0
    while offset + WINDOW_BYTES // 2 <= WINDOW_BYTES:
        offset += WINDOW_BYTES // 2 - 1
        send_byte_at(pair.server, offset)
        pair.server.datagrams_to_send(now=pair.now_s)
    with pytest.raises(QuicConnectionError) as refused:
        send_byte_at(pair.server, offset + WINDOW_BYTES // 2)
    assert QuicErrorCode.FLOW_CONTROL_ERROR == refused.value.error_code
    assert WINDOW_BYTES == pair.server._local_max_data.value


def test_what_is_taken_makes_room_for_more() -> None:
    """An upload of many windows comes whole: the limit follows what was read."""
    pair = make_bounded_pair()
    upload = bytes(index % 251 for index in range(20 * WINDOW_BYTES))
    pair.client.send_stream_data(0, encode_header(0) + upload, end_stream=True)
    server = pair.server_application
    assert isinstance(server, PerfServer)
    pair.run_until(lambda: server.tally.upload_completed_stream_count == 1)
    assert len(upload) == server.tally.upload_completed_byte_count
    assert 0 == server.tally.content_error_count


def test_streams_that_were_reset_give_their_room_back() -> None:
    """Bytes of a reset stream count as sent and are held by nobody: others may use the room."""
    pair = make_bounded_pair()
    for stream_id in (0, 4, 8, 12, 16, 20):
        pair.client.send_stream_data(stream_id, encode_header(0) + bytes(WINDOW_BYTES // 2))
        pair.run(30)
        pair.client.reset_stream(stream_id, 0)
        pair.run(30)
    server = pair.server_application
    assert isinstance(server, PerfServer)
    assert 6 == server.tally.upload_reset_stream_count


def test_a_peer_may_have_so_many_streams_open_and_no_more() -> None:
    """128 that never end are allowed; the next one ends the connection (Section 4.6)."""
    pair = make_bounded_pair()
    pair.client._remote_max_streams_bidi = 10_000
    for index in range(129):
        pair.client.send_stream_data(4 * index, b"x")
    pair.run(40)
    close = pair.server._close_event
    assert close is not None
    assert QuicErrorCode.STREAM_LIMIT_ERROR == close.error_code
    assert len(pair.server._streams) <= 128


# Peers that stop ----------------------------------------------------------------


def test_a_peer_that_vanishes_is_forgotten_with_all_it_had() -> None:
    """After the idle timeout nothing is left of it: connection, IDs, timers, share of windows."""
    with World() as world:
        world.server._intake.configuration.idle_timeout = 0.3
        world.add_client(asked_bytes=2**40)
        while not world.applications[0].received:
            world.loop.turn(most_wait_s=0.05)
        world.clients[0].receive = lambda now_s: None  # type: ignore[method-assign]
        world.clients[0].transmit = lambda now_s: None  # type: ignore[method-assign]
        while world.server.open_count:
            world.loop.turn(most_wait_s=0.05)
        world.server.transmit(world.loop.now_s())
        until_s = time.monotonic() + 5.0
        while world.server._by_connection and time.monotonic() < until_s:
            world.loop.turn(most_wait_s=0.05)
        server = world.server
        assert (0, 0, 0) == (
            len(server._by_connection),
            len(server._intake.sessions),
            len(server.budget._windows),
        )
        assert not server.is_window_blocked


def test_a_reader_that_stops_keeps_nobody_else_waiting() -> None:
    """Its window is full and stays so; another client gets all its bytes meanwhile."""
    with World(options=EndpointOptions(window_cap_bytes=200_000)) as world:
        stopped = world.add_client(asked_bytes=2**40)
        while not stopped.received:
            world.loop.turn(most_wait_s=0.05)
        world.clients[0].receive = lambda now_s: None  # type: ignore[method-assign]
        other = world.add_client(asked_bytes=1_000_000)
        while not other.is_over:
            world.loop.turn(most_wait_s=0.05)
        assert 1_000_000 == len(other.received)
