"""
Frames that a hostile client writes before it seals them: legal ones, and nearly legal ones.

Numbers are drawn from where they do something: streams that exist, offsets in a stream's
first bytes, sequence numbers of connection IDs that were issued. Drawn evenly, every
payload would end its connection with its first frame.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.fuzz.mutate import encode_varint, mutate, pick_number

MOST_PAYLOAD_BYTES: Final = 1150  # of a packet in a datagram of 1,200 bytes
ENDLESS_HEADER: Final = b"\xff" * 8
_MOST_STREAMS: Final = 160  # a little more than the 128 that aioquic grants at first


@dataclass(slots=True)
class Peer:
    """
    What the writer knows of the connection that it writes for.
    """

    largest_received_packet: int = 0
    challenge: bytes = bytes(8)
    """Data of the last PATH_CHALLENGE that came; zeros: none did."""


def write_payload(rng: Random, peer: Peer) -> bytes:
    """
    Write the frames of one packet; one payload in four is damaged afterwards.
    """
    count = rng.choice((1, 1, 1, 2, 2, 3, 5, 8, 40))
    kinds = [rng.choice(_KINDS) for _ in range(count)]
    if rng.random() < 0.1:  # many of one kind: what is kept per frame adds up
        kinds = [rng.choice(_KINDS)] * 200
    payload = b""
    for kind in kinds:
        frame = kind(rng, peer)
        if len(payload) + len(frame) > MOST_PAYLOAD_BYTES:
            break
        payload += frame
    if rng.random() < 0.25:
        payload = mutate(rng, payload)
    return payload[:MOST_PAYLOAD_BYTES] or b"\0"


def _number(rng: Random, likely: int) -> bytes:
    size_bytes = rng.choice((None, None, None, 2, 4, 8))
    return encode_varint(pick_number(rng, likely=likely), size_bytes=size_bytes)


def _stream_id(rng: Random) -> bytes:
    if rng.random() < 0.9:
        # The client's own, of which the first few are used again and again.
        index = rng.randrange(rng.choice((3, 3, 20, _MOST_STREAMS)))
        return encode_varint(4 * index + rng.choice((0, 0, 2)))
    return _number(rng, 4 * _MOST_STREAMS)


def _own_stream_id(rng: Random) -> bytes:
    """Of a stream that the server sends on as well, nearly always."""
    return encode_varint(4 * rng.randrange(20)) if rng.random() < 0.95 else _stream_id(rng)


def _stream_data(rng: Random) -> bytes:
    luck = rng.random()
    if luck < 0.3:
        return rng.randrange(100_000).to_bytes(8, "big") + rng.randbytes(rng.randrange(20))
    if luck < 0.4:
        return ENDLESS_HEADER
    if luck < 0.5:
        return b""
    return rng.randbytes(rng.randrange(1, rng.choice((2, 20, 600))))


def _stream(rng: Random, _: Peer) -> bytes:
    flags = rng.randrange(8) if rng.random() < 0.5 else rng.choice((2, 6))
    data = _stream_data(rng)
    frame = bytes([0x08 | flags]) + _stream_id(rng)
    if flags & 4:
        frame += _number(rng, rng.choice((1, 9, 30, 3000)))
    if flags & 2:
        length = len(data) if rng.random() < 0.97 else pick_number(rng, likely=1200)
        frame += encode_varint(length)
    return frame + data


def _fragment(rng: Random, _: Peer) -> bytes:
    """One byte with a gap before it: the reassembly keeps a range for each."""
    offset = 2 * rng.randrange(4000) + 1
    return b"\x0e\x00" + encode_varint(offset) + b"\x01" + rng.randbytes(1)


def _ack_ranges(rng: Random, *, smallest: int) -> list[tuple[int, int]]:
    """Gaps and lengths below a packet number, mostly none that go below zero."""
    ranges = []
    for _ in range(rng.choice((0, 0, 0, 1, 2, 60))):
        gap, length = rng.randrange(3), rng.randrange(3)
        smallest -= gap + 2 + length
        if smallest < 0 and rng.random() < 0.95:
            break
        ranges.append((gap, length))
    return ranges


def _ack(rng: Random, peer: Peer) -> bytes:
    largest = peer.largest_received_packet
    if rng.random() < 0.05:
        largest = pick_number(rng, likely=1000)
    first = rng.randrange(min(largest, 30) + 1)
    if rng.random() < 0.03:
        first = pick_number(rng, likely=40)
    ranges = _ack_ranges(rng, smallest=largest - first)
    frame = bytes([rng.choice((2, 2, 3))]) + encode_varint(largest)
    frame += _number(rng, 1000) + encode_varint(len(ranges)) + encode_varint(first)
    for gap, length in ranges:
        frame += encode_varint(gap) + encode_varint(length)
    if frame[0] == 3:  # ECN counts
        frame += b"\0\0\0"
    return frame


def _reset_stream(rng: Random, _: Peer) -> bytes:
    return b"\x04" + _stream_id(rng) + _number(rng, 10) + _number(rng, rng.choice((1, 30, 3000)))


def _stop_sending(rng: Random, _: Peer) -> bytes:
    return b"\x05" + _own_stream_id(rng) + _number(rng, 10)


def _crypto(rng: Random, _: Peer) -> bytes:
    data = rng.randbytes(rng.randrange(60))
    if rng.random() < 0.3:  # a TLS message of a kind that may come after the handshake
        data = bytes([rng.choice((4, 8, 11, 20, 24))]) + len(data).to_bytes(3, "big") + data
    return b"\x06" + _number(rng, 50) + encode_varint(len(data)) + data


def _limit(rng: Random, _: Peer) -> bytes:
    return bytes([rng.choice((0x10, 0x12, 0x13, 0x14, 0x16, 0x17))]) + _number(rng, 2**20)


def _stream_limit(rng: Random, _: Peer) -> bytes:
    return bytes([rng.choice((0x11, 0x15))]) + _own_stream_id(rng) + _number(rng, 2**20)


def _new_connection_id(rng: Random, _: Peer) -> bytes:
    sequence = pick_number(rng, likely=12)
    retired = max(0, sequence - rng.randrange(5)) if rng.random() < 0.95 else 0
    if rng.random() < 0.03:
        retired = pick_number(rng, likely=14)
    length = rng.choice((8, 8, 8, 1, 20)) if rng.random() < 0.95 else rng.choice((0, 21, 255))
    frame = b"\x18" + encode_varint(sequence) + encode_varint(retired)
    return frame + bytes([length]) + rng.randbytes(length) + rng.randbytes(16)


def _retire_connection_id(rng: Random, _: Peer) -> bytes:
    # Not 0, which most packets here are sent to: retiring it ends the connection.
    sequence = rng.randrange(1, 8) if rng.random() < 0.95 else pick_number(rng, likely=9)
    return b"\x19" + encode_varint(sequence)


def _path(rng: Random, peer: Peer) -> bytes:
    if rng.random() < 0.4:
        return b"\x1b" + (peer.challenge if rng.random() < 0.7 else rng.randbytes(8))
    return b"\x1a" + rng.randbytes(8)


def _small(rng: Random, _: Peer) -> bytes:
    return rng.choice((b"\x01", b"\x01", bytes(rng.randrange(1, 30)), b"\x40\x01", b"\x80\0\0\0"))


def _forbidden(rng: Random, _: Peer) -> bytes:
    """What no client may send, and what no version defines; rarely, as it ends the connection."""
    if rng.random() < 0.9:
        return b"\x01"
    token = rng.randbytes(5)
    close = b"\x1c" + _number(rng, 20) + _number(rng, 32)
    reason = rng.choice((b"", b"\xff\xfe", b"a\nb\x1b[31m", "é".encode(), b"x" * 600))
    return rng.choice(
        (
            b"\x07" + encode_varint(len(token)) + token,
            b"\x1e",
            b"\x30" + token,
            b"\x31\x05" + token,
            close + encode_varint(len(reason)) + reason,
            b"\x1d" + _number(rng, 20) + encode_varint(len(reason)) + reason,
            _number(rng, 2**14),
        )
    )


_KINDS: Final[tuple[Callable[[Random, Peer], bytes], ...]] = (
    *(_stream, _stream, _stream, _stream, _fragment, _ack, _ack, _reset_stream, _stop_sending),
    *(_crypto, _limit, _limit, _stream_limit, _new_connection_id, _retire_connection_id, _path),
    *(_small, _forbidden),
)
