"""
Trains: equal-sized datagrams to one peer that travel as one message.

UDP GSO cuts a message into segments of one size, of which only the last may be
shorter. So a train takes datagrams while they have the size of the first; a
shorter one still fits and closes it; a longer one begins the next. Pure: no
socket, no clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# What the kernel takes in one send: 65,535 less the IP and UDP headers.
LARGEST_MESSAGE_BYTES_IPV4: Final = 65_507
LARGEST_MESSAGE_BYTES_IPV6: Final = 65_487


class TrainError(Exception):
    """A train cannot be cut as asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainLimits:
    """
    How large one message may become.

    Args:
        datagram_count: Datagrams; 1 is GSO off.
        message_bytes: All of them together.
    """

    datagram_count: int
    message_bytes: int

    def capacity(self, datagram_bytes: int) -> int:
        """
        Count the full datagrams that one message can carry, at least 1.
        """
        return max(1, min(self.datagram_count, self.message_bytes // datagram_bytes))


class Train:
    """
    A message that is being filled.

    Args:
        address: The peer, as the kernel wants it.
    """

    __slots__ = ("_limits", "address", "datagrams", "is_closed", "segment_bytes", "total_bytes")

    def __init__(self, address: bytes, limits: TrainLimits) -> None:
        self.address = address
        self.datagrams: list[bytes] = []
        self.segment_bytes = 0
        self.total_bytes = 0
        self.is_closed = False
        self._limits = limits

    def room(self, datagram_bytes: int) -> int:
        """
        Count the full datagrams that it can still take, at least 1.
        """
        limits = self._limits
        return max(
            1,
            min(
                limits.datagram_count - len(self.datagrams),
                (limits.message_bytes - self.total_bytes) // datagram_bytes,
            ),
        )

    def add(self, datagrams: Sequence[bytes], start: int) -> int:
        """
        Take as many datagrams as belong to this message.

        Args:
            datagrams: What is to be sent to this peer.
            start: The first of them that was not taken yet.

        Returns:
            How many were taken. None into an empty train is impossible: a datagram
            too large for a message goes alone and the kernel says so.
        """
        held = self.datagrams
        if not held:
            held.append(datagrams[start])
            self.segment_bytes = self.total_bytes = len(datagrams[start])
            taken = 1 + self._extend(datagrams, start + 1)
        else:
            taken = self._extend(datagrams, start)
        return taken

    def _extend(self, datagrams: Sequence[bytes], start: int) -> int:
        held = self.datagrams
        segment_bytes = self.segment_bytes
        total_bytes = self.total_bytes
        most_bytes = self._limits.message_bytes
        room = self._limits.datagram_count - len(held)
        index = start
        end = min(len(datagrams), start + room)
        while index < end:
            datagram = datagrams[index]
            size = len(datagram)
            if size > segment_bytes or total_bytes + size > most_bytes:
                self.is_closed = True
                break
            held.append(datagram)
            total_bytes += size
            index += 1
            if size < segment_bytes:
                self.is_closed = True
                break
        self.total_bytes = total_bytes
        # Closed as soon as no full datagram fits, not when one is turned away: else a
        # finished message would wait until the next one has been built.
        if len(held) >= self._limits.datagram_count or total_bytes + segment_bytes > most_bytes:
            self.is_closed = True
        return index - start


def join_trains(datagrams: Sequence[bytes], limits: TrainLimits) -> list[list[bytes]]:
    """
    Group datagrams to one peer into messages, in order.
    """
    trains = []
    start = 0
    while start < len(datagrams):
        train = Train(b"", limits)
        start += train.add(datagrams, start)
        trains.append(train.datagrams)
    return trains


def split_train(payload: bytes, *, segment_bytes: int) -> list[bytes]:
    """
    Cut a GRO buffer back into the datagrams the peer sent.

    The native module does the same where datagrams arrive; this is what its
    tests compare it with. The kernel joins equal-sized datagrams and reports that
    one size. Only the last piece may be shorter. A piece is a datagram, not a
    QUIC packet: one datagram can carry several packets (RFC 9000, Section 12.2).

    Args:
        payload: What one receive slot holds.
        segment_bytes: The size the kernel reported, or 0 when it joined nothing.

    Raises:
        TrainError: The reported size is negative.
    """
    if segment_bytes < 0:
        raise TrainError(f"segment size {segment_bytes} is negative; the kernel reports 1 or more")
    if segment_bytes == 0 or not payload:
        return [payload]
    return [
        payload[start : start + segment_bytes] for start in range(0, len(payload), segment_bytes)
    ]
