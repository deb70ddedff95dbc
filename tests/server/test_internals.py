"""
server.internals: the private parts of aioquic 1.7.2 that this server leans on.

When a new aioquic moves one of them, these tests say which.
"""

import math
from typing import Any

import aioquic
import pytest
from aioquic.quic.congestion.base import create_congestion_control
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicErrorCode, QuicStreamFrame
from aioquic.quic.stream import QuicStreamReceiver
from hypothesis import given
from hypothesis import strategies as st

from server import congestion, internals, probes
from server.congestion import NoPacer, RingPacer
from server.counters import ReceiveBufferCounters, RecoveryCounters
from server.internals import ReceiveBufferProbes, sent_packet_count, watch_recovery
from server.perf import PerfServer, encode_header
from server.udp import _native
from tests.quic_pair import QuicPair, Recorder
from tests.server.udp.test_native import Recording
from tests.server.world import CERTIFICATE

WINDOW_BYTES = 2_500_000


@pytest.fixture
def pair() -> Any:
    """A client and a server that have shaken hands."""
    made = QuicPair(CERTIFICATE, make_client=lambda _: Recorder(), make_server=lambda _: Recorder())
    for _ in range(20):
        made.turn()
    return made


def test_aioquic_is_the_version_this_was_written_against() -> None:
    """Another version must be read before it is used: see server/internals.py."""
    assert aioquic.__version__ == internals.AIOQUIC_VERSION


def _grow_window(connection: Any) -> None:
    connection._loss._cc.congestion_window = WINDOW_BYTES


@pytest.mark.parametrize("credit", [1, 7, 10])
def test_ring_pacer_lets_a_call_build_its_credit_and_no_more(pair: Any, credit: Any) -> None:
    """datagrams_to_send returns as many datagrams as there is room for, though more could go."""
    pacer = RingPacer()
    congestion.set_pacer(pair.server, pacer)
    _grow_window(pair.server)
    pair.server.send_stream_data(1, bytes(200_000))
    pacer.credit = credit
    built = pair.server.datagrams_to_send(pair.now_s)
    assert len(built) == credit
    assert {len(datagram) for datagram, _ in built} == {1200}
    assert pacer.is_refused
    assert pair.server._pacing_at == math.inf
    assert pair.server.get_timer() < math.inf


def test_ring_pacer_without_credit_lets_only_a_due_ack_through(pair: Any) -> None:
    """A due ACK leaves without credit, one datagram; without one, nothing does."""
    pacer = RingPacer()
    congestion.set_pacer(pair.server, pacer)
    _grow_window(pair.server)
    pair.server.send_stream_data(1, bytes(50_000))
    assert pair.server.datagrams_to_send(pair.now_s) == []
    pair.client.send_stream_data(0, b"x" * 100)
    for datagram, _ in pair.client.datagrams_to_send(pair.now_s):
        pair.server.receive_datagram(datagram, ("127.0.0.1", 1), pair.now_s)
    assert pair.server.datagrams_to_send(pair.now_s) == []
    assert len(pair.server.datagrams_to_send(pair.now_s + 0.01)) == 1


def test_no_pacer_lets_a_call_build_the_whole_window(pair: Any) -> None:
    """Without pacing one call returns all that the window allows."""
    congestion.set_pacer(pair.server, NoPacer())
    _grow_window(pair.server)
    pair.server.send_stream_data(1, bytes(100_000))
    assert len(pair.server.datagrams_to_send(pair.now_s)) > 80


def test_unsent_bytes_falls_as_datagrams_are_built(pair: Any) -> None:
    """What was written and not yet put into a packet is counted, stream by stream."""
    congestion.set_pacer(pair.server, NoPacer())
    _grow_window(pair.server)
    assert internals.unsent_bytes(pair.server, 1) == 0
    pair.server.send_stream_data(1, bytes(100_000))
    assert internals.unsent_bytes(pair.server, 1) == 100_000
    pair.server.datagrams_to_send(pair.now_s)
    assert internals.unsent_bytes(pair.server, 1) == 0
    assert congestion.in_flight_bytes(pair.server) > 100_000


@pytest.mark.parametrize("name", ["reno", "cubic"])
def test_a_capped_window_grows_to_the_cap_and_no_further(pair: Any, name: Any) -> None:
    """Acknowledgements enlarge the window up to its cap; aioquic's own has none."""
    sizes = {}
    for cap_bytes in (50_000, 0):
        registered = congestion.capped_congestion_control(name, cap_bytes=cap_bytes)
        controller = create_congestion_control(registered, max_datagram_size=1200)
        pair.server._loss._cc = controller
        congestion.set_pacer(pair.server, NoPacer())
        pair.server.send_stream_data(1, bytes(500_000))
        for _ in range(60):
            pair.turn()
        sizes[cap_bytes] = congestion.window_bytes(pair.server)
    assert sizes[50_000] == 50_000
    assert sizes[0] > 100_000


@pytest.mark.parametrize("name", ["reno", "cubic"])
def test_a_capped_window_grows_though_the_round_trip_time_rises(name: str) -> None:
    """Waiting in the ring, which looks like congestion, does not end slow start early."""
    ended = {}
    for cap_bytes in (2_500_000, 0):
        registered = congestion.capped_congestion_control(name, cap_bytes=cap_bytes)
        controller = create_congestion_control(registered, max_datagram_size=1200)
        for index in range(200):
            controller.on_rtt_measurement(now=index * 0.01, rtt=0.001 * (1 + index))
        ended[cap_bytes] = controller.ssthresh is not None
    assert ended == {2_500_000: False, 0: True}


def test_a_cap_below_the_initial_window_holds_from_the_start() -> None:
    """A window never exceeds its cap, not even before the first acknowledgement."""
    registered = congestion.capped_congestion_control("reno", cap_bytes=5000)
    assert create_congestion_control(registered, max_datagram_size=1200).congestion_window == 5000


@pytest.mark.parametrize(
    ("closer", "expected"),
    [("server", (7, None, "bye", "self")), ("client", (7, None, "bye", "peer"))],
)
def test_close_reasons_tell_who_closed_and_why(pair: Any, closer: Any, expected: Any) -> None:
    """Code, words and the side that closed are known as soon as the close is."""
    assert not internals.has_close_reason(pair.server)
    assert internals.has_begun(pair.server)
    getattr(pair, closer).close(error_code=7, reason_phrase="bye")
    for _ in range(3):
        pair.turn()
    assert internals.has_close_reason(pair.server)
    assert internals.is_ending(pair.server)
    assert internals.close_reason(pair.server) == expected


def test_idle_timeout_is_told_from_a_close(pair: Any) -> None:
    """A connection that ends in silence says "idle"."""
    pair.server.handle_timer(pair.now_s + 1000)
    assert internals.close_reason(pair.server) == (
        QuicErrorCode.INTERNAL_ERROR,
        0,
        "Idle timeout",
        "idle",
    )


def test_a_peer_without_a_limit_has_none(pair: Any) -> None:
    """Aioquic's client states no max_udp_payload_size; that reads as None."""
    assert internals.peer_max_datagram_bytes(pair.server) is None


def test_limit_datagram_bytes_only_ever_shrinks(pair: Any) -> None:
    """Datagrams become as small as asked, and never larger than before."""
    congestion.set_pacer(pair.server, NoPacer())
    internals.limit_datagram_bytes(pair.server, 9000)
    pair.server.send_stream_data(1, bytes(5000))
    assert max(len(one) for one, _ in pair.server.datagrams_to_send(pair.now_s)) == 1200


# Receive buffer ------------------------------------------------------------------


@pytest.fixture
def recording() -> Any:
    """The receive-buffer probes, recorded."""
    made = Recording()
    _native.set_sites(made.addresses)
    shim = ReceiveBufferProbes(ReceiveBufferCounters())
    shim.update(is_wanted=True)
    yield made, shim
    shim.update(is_wanted=False)
    _native.set_sites([0] * len(probes.PROBES))


def _frame(offset: Any, data: Any, *, fin: Any = False) -> Any:
    return QuicStreamFrame(offset=offset, data=data, fin=fin)


def test_the_shim_is_there_only_while_it_is_wanted() -> None:
    """Untraced, aioquic's own method runs; afterwards it is put back."""
    own = QuicStreamReceiver.handle_frame
    shim = ReceiveBufferProbes(ReceiveBufferCounters())
    assert QuicStreamReceiver.handle_frame is own
    shim.update(is_wanted=True)
    assert QuicStreamReceiver.handle_frame is not own
    shim.update(is_wanted=True)
    shim.update(is_wanted=False)
    assert QuicStreamReceiver.handle_frame is own


def test_data_in_order_is_stored_and_popped_at_once(recording: Any) -> None:
    """An in-order frame fires write, alloc and pop of its length at its offset."""
    made, shim = recording
    receiver = QuicStreamReceiver(stream_id=0, readable=True)
    receiver.handle_frame(_frame(0, b"a" * 100))
    receiver.handle_frame(_frame(100, b"b" * 50))
    assert made.of(probes.RECEIVE_BUFFER_WRITE) == [[0, 100], [100, 50]]
    assert made.of(probes.RECEIVE_BUFFER_ALLOC) == [[0, 100], [100, 50]]
    assert made.of(probes.RECEIVE_BUFFER_POP) == [[0, 100], [100, 50]]
    assert shim.counters.report() == {"alloc_count": 2, "pop_count": 2, "write_count": 2}


def test_data_out_of_order_waits_in_a_buffer_that_grows(recording: Any) -> None:
    """A gap makes the buffer grow to hold it; filling it pops everything in one piece."""
    made, _ = recording
    receiver = QuicStreamReceiver(stream_id=0, readable=True)
    receiver.handle_frame(_frame(100, b"b" * 50))
    assert made.of(probes.RECEIVE_BUFFER_ALLOC) == [[0, 150]]
    assert made.of(probes.RECEIVE_BUFFER_POP) == []
    receiver.handle_frame(_frame(0, b"a" * 100))
    assert made.of(probes.RECEIVE_BUFFER_ALLOC) == [[0, 150]]
    assert made.of(probes.RECEIVE_BUFFER_POP) == [[0, 150]]
    assert made.of(probes.RECEIVE_BUFFER_WRITE) == [[100, 50], [0, 100]]


def test_a_frame_without_data_fires_nothing(recording: Any) -> None:
    """A lone FIN stores nothing and takes nothing."""
    made, _ = recording
    receiver = QuicStreamReceiver(stream_id=0, readable=True)
    receiver.handle_frame(_frame(0, b"", fin=True))
    assert made.fired == []


CONTENT = bytes(index % 251 for index in range(400))


@given(st.permutations(range(20)), st.integers(0, 19), st.integers(1, 40))
def test_whatever_the_order_all_bytes_are_popped_once(
    order: Any, repeated: Any, piece_bytes: Any
) -> None:
    """Pops join up to the whole stream without gap or overlap, as aioquic hands it on."""
    made = Recording()
    _native.set_sites(made.addresses)
    shim = ReceiveBufferProbes(ReceiveBufferCounters())
    shim.update(is_wanted=True)
    try:
        receiver = QuicStreamReceiver(stream_id=0, readable=True)
        received = b""
        for number in [*order[:10], repeated, *order[10:]]:
            piece = CONTENT[number * 20 : number * 20 + min(20, piece_bytes)]
            rest = CONTENT[number * 20 + len(piece) : (number + 1) * 20]
            for offset, data in ((number * 20, piece), (number * 20 + len(piece), rest)):
                event = receiver.handle_frame(_frame(offset, data))
                received += event.data if event else b""
    finally:
        shim.update(is_wanted=False)
        _native.set_sites([0] * len(probes.PROBES))
    assert received == CONTENT
    popped = made.of(probes.RECEIVE_BUFFER_POP)
    assert [offset for offset, _ in popped] == [
        sum(length for _, length in popped[:index]) for index in range(len(popped))
    ]
    assert sum(length for _, length in popped) == len(CONTENT)
    allocated = sum(length for _, length in made.of(probes.RECEIVE_BUFFER_ALLOC))
    assert allocated >= len(CONTENT)


@pytest.mark.parametrize("loses_every", [0, 5], ids=["no-loss", "every-fifth-lost"])
def test_losses_and_sent_packets_are_counted(loses_every: int) -> None:
    """What aioquic takes for lost is counted, and nothing where nothing is lost."""
    counters = RecoveryCounters()

    def make_server(connection: QuicConnection) -> PerfServer:
        watch_recovery(connection, counters)
        return PerfServer(connection)

    pair = QuicPair(
        CERTIFICATE,
        make_client=lambda _: Recorder(),
        make_server=make_server,
        loses=lambda number: bool(loses_every) and number > 20 and number % loses_every == 0,
    )
    pair.run(10)
    pair.client.send_stream_data(0, encode_header(300_000), end_stream=True)
    recorder = pair.client_application
    assert isinstance(recorder, Recorder)
    pair.run_until(lambda: any(getattr(event, "end_stream", False) for event in recorder.events))
    assert bool(loses_every) is (counters.packet_lost_count > 0)
    assert (counters.packet_lost_count > 0) is (counters.byte_lost_count > 0)
    assert sent_packet_count(pair.server) > 200
