"""
Damage to bytes, and numbers that parsers get wrong. Pure: a generator in, values out.
"""

from collections.abc import Callable
from random import Random
from typing import Final

MAX_VARINT: Final = 2**62 - 1  # RFC 9000, Section 16
# Where a length, an offset or a limit turns: the ends of each varint size, the powers of
# two that aioquic's and our own limits stand at, and their neighbours.
_EDGES: Final = (
    *(0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 20, 21, 63, 64, 127, 128, 129, 255, 256),
    *(1199, 1200, 1201, 16_383, 16_384, 65_535, 65_536, 524_288, 2**24 - 1, 2**24, 2**24 + 1),
    *(2**30 - 1, 2**30, 2**32 - 1, 2**32, 2**60, 2**60 + 1, 2**61, 2**62 - 2, MAX_VARINT),
)


def encode_varint(value: int, *, size_bytes: int | None = None) -> bytes:
    """
    Write a QUIC varint, in more bytes than needed when asked for (RFC 9000, Section 16).
    """
    for exponent, bits in enumerate((6, 14, 30, 62)):
        length = 1 << exponent
        if value < 1 << bits and (size_bytes is None or length >= size_bytes):
            return (value | exponent << (8 * length - 2)).to_bytes(length, "big")
    raise ValueError(f"{value} is no varint; expected 0 to {MAX_VARINT}")


def pick_number(rng: Random, *, likely: int) -> int:
    """
    Draw a number: mostly below `likely`, else an edge or anything a varint can hold.
    """
    luck = rng.random()
    if luck < 0.8:
        return rng.randrange(likely)
    if luck < 0.95:
        return rng.choice(_EDGES)
    return rng.getrandbits(rng.randrange(1, 63))


def _flip(rng: Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set(rng: Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] = rng.choice((0, 1, 0x3F, 0x40, 0x7F, 0x80, 0xBF, 0xC0, 0xFF))


def _overwrite(rng: Random, data: bytearray) -> None:
    start = rng.randrange(len(data))
    stop = min(len(data), start + rng.randrange(1, 33))
    data[start:stop] = rng.randbytes(stop - start)


def _insert(rng: Random, data: bytearray) -> None:
    start = rng.randrange(len(data) + 1)
    data[start:start] = rng.randbytes(rng.randrange(1, 17))


def _delete(rng: Random, data: bytearray) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.randrange(1, 17)]


def _repeat(rng: Random, data: bytearray) -> None:
    start = rng.randrange(len(data))
    piece = data[start : start + rng.randrange(1, 65)]
    data[start:start] = piece * rng.randrange(1, 4)


def _truncate(rng: Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


def _put_varint(rng: Random, data: bytearray) -> None:
    start = rng.randrange(len(data))
    number = encode_varint(pick_number(rng, likely=300))
    data[start : start + len(number)] = number


_MUTATIONS: Final[tuple[Callable[[Random, bytearray], None], ...]] = (
    *(_flip, _flip, _set, _overwrite, _insert, _delete, _repeat, _truncate, _put_varint),
)


def mutate(rng: Random, data: bytes, *, most_changes: int = 4) -> bytes:
    """
    Damage a copy of some bytes in one to so many ways.
    """
    damaged = bytearray(data)
    for _ in range(rng.randrange(1, most_changes + 1)):
        if not damaged:
            damaged += rng.randbytes(1)
        rng.choice(_MUTATIONS)(rng, damaged)
    return bytes(damaged)


def resize(data: bytes, length_bytes: int) -> bytes:
    """
    Cut, or pad with zeros: PADDING frames, where frames are meant.
    """
    return data[:length_bytes].ljust(length_bytes, b"\0")
