"""
Datagrams that no connection stands behind: rubbish, and Initials of every degree of damage.

An Initial's keys follow from the connection ID that its client chose (RFC 9001, Section
5.2), so whoever writes one can seal what it likes: the server opens it and looks inside.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from aioquic.quic.crypto import CryptoPair

from tests.fuzz.hello import load_recorded, write_hello
from tests.fuzz.mutate import encode_varint, mutate, pick_number, resize

VERSION_1: Final = 0x00000001
VERSION_2: Final = 0x6B3343CF  # RFC 9369
INITIAL_BYTES: Final = 1200  # the smallest datagram that may carry one (RFC 9000, Section 14.1)
_TAG_BYTES: Final = 16
_INITIAL_BITS: Final = {VERSION_1: 0xC0, VERSION_2: 0xD0}


@dataclass(frozen=True, slots=True)
class Initial:
    """
    What the header of an Initial says. Its keys follow from `destination_cid`.
    """

    destination_cid: bytes
    source_cid: bytes
    version: int = VERSION_1
    token: bytes = b""
    packet_number: int = 0
    reserved_bits: int = 0


def seal_initial(initial: Initial, payload: bytes) -> bytes:
    """
    Write an Initial packet whose payload the server will open.
    """
    pair = CryptoPair()
    pair.setup_initial(cid=initial.destination_cid, is_client=True, version=initial.version)
    number = initial.packet_number.to_bytes(2, "big")
    length = len(number) + len(payload) + _TAG_BYTES
    header = (
        bytes([_INITIAL_BITS[initial.version] | initial.reserved_bits | len(number) - 1])
        + initial.version.to_bytes(4, "big")
        + bytes([len(initial.destination_cid)])
        + initial.destination_cid
        + bytes([len(initial.source_cid)])
        + initial.source_cid
        + encode_varint(len(initial.token))
        + initial.token
        + encode_varint(length, size_bytes=2)
        + number
    )
    return pair.encrypt_packet(header, payload, initial.packet_number)


def crypto_frame(data: bytes, *, offset: int = 0) -> bytes:
    """
    Write a CRYPTO frame.
    """
    return b"\x06" + encode_varint(offset) + encode_varint(len(data)) + data


class DatagramWriter:
    """
    Writes datagrams of one kind after another, the same ones for the same seed.

    Args:
        rng: Where chance comes from.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._source_cid, self._hello = load_recorded()

    def write_garbage(self) -> bytes:
        """
        Write what a server should get rid of with hardly a look.
        """
        rng = self._rng
        return rng.choice(
            (
                self._random,
                self._random_quic,
                self._truncated_initial,
                self._other_version,
                self._version_negotiation,
            )
        )()

    def write_damaged_initial(self) -> bytes:
        """
        Write an Initial that was damaged after it was sealed, so that nobody can open it.
        """
        rng = self._rng
        datagram = self.write_initial()
        luck = rng.random()
        if luck < 0.3:  # the header is whole: only the keys can tell
            position = rng.randrange(60, len(datagram))
            damaged = bytes([datagram[position] ^ 1 << rng.randrange(8)])
            return datagram[:position] + damaged + datagram[position + 1 :]
        damaged = mutate(rng, datagram[:64]) + datagram[64:]
        return resize(damaged, max(INITIAL_BYTES, len(damaged))) if luck < 0.9 else damaged

    def write_sealed_initial(self) -> bytes:
        """
        Write an Initial that opens, with a payload that is wrong in some way.
        """
        rng = self._rng
        return rng.choice(
            (
                self._changed_hello,
                self._changed_hello,
                self._changed_hello,
                self._fragments,
                self._frames,
                self._damaged_payload,
                self._coalesced,
            )
        )()

    def write_initial(self) -> bytes:
        """
        Write a well-formed first datagram of a client that will never say more.
        """
        return self._seal(crypto_frame(self._hello))

    def _seal(self, payload: bytes, *, packet_number: int = 0, reserved_bits: int = 0) -> bytes:
        """Seal in a datagram of full size, for a connection ID of its own."""
        rng = self._rng
        token = rng.randbytes(rng.choice((0, 0, 0, 0, 1, 60)))
        initial = Initial(
            destination_cid=rng.randbytes(rng.choice((8, 8, 8, 18, 20))),
            source_cid=self._source_cid,
            version=rng.choice((VERSION_1, VERSION_1, VERSION_1, VERSION_2)),
            token=token,
            packet_number=packet_number,
            reserved_bits=reserved_bits,
        )
        header_bytes = 31 + len(initial.destination_cid) + len(token)
        return seal_initial(
            initial, resize(payload, max(len(payload), INITIAL_BYTES - header_bytes))
        ).ljust(INITIAL_BYTES, b"\0")

    # Garbage -----------------------------------------------------------------------

    def _random(self) -> bytes:
        return self._rng.randbytes(self._rng.choice((0, 1, 5, 8, 9, 20, 100, 1200, 1400)))

    def _random_quic(self) -> bytes:
        rng = self._rng
        first = rng.choice((0x40, 0x5F, 0xC0, 0xD0, 0xE0, 0xF0))
        version = rng.choice((VERSION_1, VERSION_2, rng.getrandbits(32))).to_bytes(4, "big")
        return bytes([first]) + version + rng.randbytes(rng.choice((3, 30, 1195)))

    def _truncated_initial(self) -> bytes:
        datagram = self.cheap_initial()
        return datagram[: self._rng.randrange(len(datagram))]

    def cheap_initial(self) -> bytes:
        """An Initial with rubbish where the sealed payload belongs."""
        rng = self._rng
        header = b"\xc3\x00\x00\x00\x01\x08" + rng.randbytes(8) + b"\x08" + rng.randbytes(8)
        return (header + b"\x00\x44\x9e").ljust(60, b"x") + bytes(INITIAL_BYTES - 60)

    def _other_version(self) -> bytes:
        rng = self._rng
        version = rng.choice((0x0A1A2A3A, 0xFF00001D, 2, rng.getrandbits(32))).to_bytes(4, "big")
        length = rng.choice((0, 8, 20, 21, 255))
        header = (
            bytes([0xC0 | rng.randrange(64)]) + version + bytes([length]) + rng.randbytes(length)
        )
        return resize(header + b"\x08" + rng.randbytes(8), rng.choice((40, 1199, 1200, 1400)))

    def _version_negotiation(self) -> bytes:
        rng = self._rng
        header = bytes([0x80 | rng.randrange(128)]) + bytes(4)
        ids = b"\x08" + rng.randbytes(8) + b"\x08" + rng.randbytes(8)
        return header + ids + rng.randbytes(rng.choice((0, 4, 7, 1200)))

    # Sealed ------------------------------------------------------------------------

    def _changed_hello(self) -> bytes:
        return self._seal(crypto_frame(write_hello(self._rng, self._hello)[:4000]))

    def _fragments(self) -> bytes:
        """The hello in pieces that overlap, leave gaps, come last first, or never end."""
        rng = self._rng
        frames = []
        for _ in range(rng.randrange(1, 30)):
            start = rng.randrange(len(self._hello))
            piece = self._hello[start : start + rng.randrange(1, 60)]
            offset = start if rng.random() < 0.9 else pick_number(rng, likely=600_000)
            frames.append(crypto_frame(piece, offset=min(offset, 2**62 - 1)))
        rng.shuffle(frames)
        return self._seal(b"".join(frames)[:1100])

    def _frames(self) -> bytes:
        """Frames that may or may not stand in an Initial, before, after or without the hello."""
        rng = self._rng
        frames = [
            b"\x01",
            b"\x02" + b"".join(encode_varint(pick_number(rng, likely=4)) for _ in range(4)),
            b"\x1c" + encode_varint(pick_number(rng, likely=20)) + b"\x00\x03bye",
            b"\x1d\x00\x00",
            b"\x08\x00" + rng.randbytes(20),
            b"\x1e",
            encode_varint(pick_number(rng, likely=40)),
            rng.randbytes(rng.randrange(1, 20)),
            bytes(rng.randrange(1, 40)),
        ]
        if rng.random() < 0.6:
            frames.append(crypto_frame(self._hello))
        chosen = rng.sample(frames, rng.randrange(1, 5))
        return self._seal(b"".join(chosen), packet_number=rng.choice((0, 1, 65_535)))

    def _damaged_payload(self) -> bytes:
        rng = self._rng
        payload = mutate(rng, crypto_frame(self._hello) + bytes(100))
        return self._seal(payload[:1100], reserved_bits=rng.choice((0, 0, 0x04, 0x0C)))

    def _coalesced(self) -> bytes:
        """A good Initial, and behind it in the same datagram what does not belong there."""
        rng = self._rng
        first = self.write_initial()
        second = rng.choice(
            (
                self._random,
                self._random_quic,
                self.cheap_initial,
                self._changed_hello,
                self._version_negotiation,
                self.write_initial,
            )
        )()
        return first + second


def write_all(
    count: int, write: Callable[[], bytes], *, address_of: Callable[[int], tuple[str, int]]
) -> Iterator[tuple[bytes, tuple[str, int]]]:
    """
    Write so many datagrams, each with the address that it comes from.
    """
    for number in range(count):
        yield write(), address_of(number)
