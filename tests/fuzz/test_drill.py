"""
The fuzzer's short form: the real endpoint in memory, some thousands of hostile datagrams.
"""

import gc
from pathlib import Path
from random import Random

import pytest
from aioquic.quic.connection import QuicConnection

from tests.fuzz.datagrams import DatagramWriter
from tests.fuzz.drill import (
    Talk,
    converse,
    feed_datagrams,
    make_client,
    make_server,
    number_address,
    replay,
)
from tests.fuzz.failure import Failure, dump_failure, load_failure
from tests.fuzz.memory import FuzzError, MemoryServer
from tests.fuzz.mutate import mutate

SEED = 20_26
LONG_AFTER_S = 120.0  # every timeout has passed by then
PING = b"\x01"
HANDSHAKE_DONE = b"\x1e"  # which only servers may send
KEPT = sorted((Path(__file__).parents[1] / "data" / "fuzz").glob("*.json"))
NOTHING_LEFT = {"open_count": 0, "connection_ids": 0, "sessions": 0, "timers": 0}


@pytest.mark.parametrize(
    ("kind", "count"),
    [("write_garbage", 10_000), ("write_damaged_initial", 500), ("write_sealed_initial", 400)],
)
def test_hostile_datagrams_leave_nothing_behind(kind: str, count: int) -> None:
    """No fault, never more than three times a stranger's bytes, and nothing held afterwards."""
    writer = DatagramWriter(Random(SEED))
    with make_server() as server:
        feed_datagrams(server, (getattr(writer, kind)() for _ in range(count)))
        server.advance(LONG_AFTER_S)
        assert NOTHING_LEFT == server.count_left()


def test_hostile_clients_leave_nothing_behind() -> None:
    """Connections that stand, and say what none should: no fault, and nothing held afterwards."""
    payload_count = 0
    with make_server() as server:
        for seed in range(60):
            payload_count += len(converse(server, SEED + seed).payloads)
        server.advance(LONG_AFTER_S)
        assert NOTHING_LEFT == server.count_left()
    assert payload_count > 150


def count_connections() -> int:
    """How many are alive, of servers and of clients."""
    gc.collect()
    return sum(type(each) is QuicConnection for each in gc.get_objects())


def test_connections_that_are_over_are_freed() -> None:
    """Whatever way they ended: only the one that built last may still be remembered."""
    before = count_connections()
    writer = DatagramWriter(Random(SEED))
    with make_server() as server:
        feed_datagrams(server, (writer.write_sealed_initial() for _ in range(100)))
        for seed in range(20):
            converse(server, seed)
        server.advance(LONG_AFTER_S)
        assert count_connections() - before <= 1


def test_a_close_to_an_unknown_address_keeps_to_three_times_its_bytes() -> None:
    """A client that seems to have moved gets no close there that is too large (Section 9.4)."""
    with make_server() as server:
        address = number_address(0)
        client = make_client(Random(4), server=server.address, now_s=server.loop.clock_s)
        talk = Talk(server, client, address=address)
        assert talk.shake_hands()
        talk.say(client.seal(PING), from_port=1000)
        moved_to = server.traffic[address[0], 1000]
        assert 3 * moved_to.received_bytes == moved_to.sent_bytes
        talk.say(client.seal(HANDSHAKE_DONE))
        assert 1 == server.endpoint.connections.closed_count


def test_damaged_tokens_open_nothing() -> None:
    """A token of a Retry, changed in a few places: refused, each and every one."""
    rng = Random(SEED)
    with make_server(retry="always") as server:
        for number in range(100):
            client = make_client(rng, server=server.address, now_s=server.loop.clock_s)
            talk = Talk(server, client, address=number_address(number))
            talk.exchange()
            token = client.connection._peer_token
            while client.connection._peer_token == token:
                client.connection._peer_token = mutate(rng, token)
            talk.exchange()
        admission = server.endpoint.admission
        assert 0 == server.endpoint.connections.opened_count
        assert admission.invalid_token_count > 80


def test_sealed_initials_get_to_the_handshake() -> None:
    """Nearly all are opened, so that what is wrong with them lies behind the seal."""
    writer = DatagramWriter(Random(SEED))
    with make_server() as server:
        feed_datagrams(server, (writer.write_sealed_initial() for _ in range(100)))
        assert server.endpoint.connections.opened_count > 80


def test_damaged_initials_do_not() -> None:
    """Hardly any is opened."""
    writer = DatagramWriter(Random(SEED))
    with make_server() as server:
        feed_datagrams(server, (writer.write_damaged_initial() for _ in range(100)))
        assert server.endpoint.connections.opened_count < 20


def test_the_same_seed_writes_the_same() -> None:
    """What was found can be found again."""
    first, second = (DatagramWriter(Random(SEED)) for _ in range(2))
    for _ in range(50):
        assert first.write_garbage() == second.write_garbage()
        assert first.write_damaged_initial() == second.write_damaged_initial()
        assert first.write_sealed_initial() == second.write_sealed_initial()


# The harness itself ------------------------------------------------------------------


def trip_over(server: MemoryServer, word: bytes) -> None:
    """Make the server's connections raise at datagrams that hold a word."""
    receive = server.endpoint._receive_train

    def receive_and_trip(datagrams: list[bytes], address: object, now_s: float) -> None:
        receive(datagrams, address, now_s)  # type: ignore[arg-type]
        if word in datagrams[0]:
            try:
                int("tripped")
            except ValueError as error:
                server.endpoint._show_fault(error)

    server.endpoint._receive_train = receive_and_trip  # type: ignore[method-assign]


def test_a_fault_is_found_with_its_datagram() -> None:
    """A server that trips over one datagram in many does not get past it."""
    datagrams = [b"one", b"two", b"needle", b"three"]
    with make_server() as server:
        trip_over(server, b"needle")
        with pytest.raises(FuzzError, match="tripped") as found:
            feed_datagrams(server, datagrams)
        assert [f"datagram 2: {b'needle'.hex()}"] == found.value.__notes__


def test_too_large_an_answer_is_found() -> None:
    """A server that sends a stranger four times its bytes is caught."""
    with make_server() as server:
        address = ("127.0.0.9", 9)
        server.deliver(bytes(100), address)
        server.wire.sent.append((bytes(400), address))
        with pytest.raises(FuzzError, match="not validated"):
            server._watch(*server.wire.sent[-1])


def test_a_failure_survives_its_file(tmp_path: Path) -> None:
    """What was kept is what is replayed."""
    failure = Failure("words", "sealed", 7, datagrams=(b"\0\1",), conversations=((b"\2",), ()))
    assert failure == load_failure(dump_failure(failure, tmp_path))


def test_a_replay_reaches_the_frame_handlers() -> None:
    """A payload that was kept is sealed anew, and the server reads its frame (Section 19.20)."""
    reasons = replay(Failure("", "payloads", 1, conversations=((HANDSHAKE_DONE,),)))
    assert [HANDSHAKE_DONE[0]] == [reason["frame_type"] for reason in reasons]


@pytest.mark.parametrize("path", KEPT, ids=[path.stem for path in KEPT])
def test_what_was_kept_hurts_nobody(path: Path) -> None:
    """What was once a failure stays mended; what reached much keeps reaching it unharmed."""
    assert replay(load_failure(path))
