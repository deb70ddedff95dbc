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

    def room(self, train: list[bytes], datagram_bytes: int) -> int:
        """
        Count the full datagrams that a train which is not closed can still take, at least 1.
        """
        free_bytes = self.message_bytes - len(train) * len(train[0])
        return max(1, min(self.datagram_count - len(train), free_bytes // datagram_bytes))


def extend_train(
    train: list[bytes], datagrams: Sequence[bytes], start: int, limits: TrainLimits
) -> bool:
    """
    Append to a train what goes into the same message.

    The native module does the same where datagrams are sent; this is what its
    tests compare it with.

    Args:
        train: What the message holds so far; it is not closed.
        datagrams: What is to be sent to its peer.
        start: The first of them that was not taken yet. A datagram too large for a
            message goes alone and the kernel says so.
        limits: How large the message may become.

    Returns:
        Whether it is closed: no full datagram fits any more, or one must not.
    """
    if len(train) >= limits.datagram_count:  # lowered since it was begun
        return True
    for datagram in datagrams[start:]:
        segment_bytes = len(train[0]) if train else len(datagram)
        total_bytes = len(train) * segment_bytes + len(datagram)
        if train and (len(datagram) > segment_bytes or total_bytes > limits.message_bytes):
            return True
        train.append(datagram)
        # Closed as soon as no full datagram fits, not when one is turned away: else a
        # finished message would wait until the next one has been built.
        if (
            len(datagram) < segment_bytes
            or len(train) >= limits.datagram_count
            or total_bytes + segment_bytes > limits.message_bytes
        ):
            return True
    return False


def train_bytes(train: list[bytes]) -> int:
    """
    Add up a train without walking it: all but the last have the size of the first.
    """
    return (len(train) - 1) * len(train[0]) + len(train[-1])


def join_trains(datagrams: Sequence[bytes], limits: TrainLimits) -> list[list[bytes]]:
    """
    Group datagrams to one peer into messages, in order.
    """
    trains = []
    start = 0
    while start < len(datagrams):
        train: list[bytes] = []
        extend_train(train, datagrams, start, limits)
        start += len(train)
        trains.append(train)
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
