"""
Rings between the protocol and the socket: how many slots they have, and who owns which.

A slot holds one message, whatever its size: that fixed charge is what makes the
size of a ring matter. The producer fills free slots and releases them; the
consumer takes filled slots and gives them back. When no slot is free the
producer stops. Only cursors live here, so that they can be tested alone.
"""

from typing import Final

LARGEST_PAYLOAD_BYTES: Final = 65_535  # a UDP length field holds no more (RFC 768)
# The original's own limit; the kernel takes 128 (UDP_MAX_SEGMENTS since Linux 6.9).
LARGEST_SEGMENT_COUNT: Final = 64


def tx_payload_bytes(*, max_mtu_bytes: int, max_segments: int) -> int:
    """
    Size of a TX slot: a full train, as far as UDP can carry one.
    """
    return min(max_mtu_bytes * max_segments, LARGEST_PAYLOAD_BYTES)


def rx_payload_bytes(*, max_mtu_bytes: int, is_gro_on: bool) -> int:
    """
    Size of an RX slot: with GRO the kernel may hand over a train of any length.
    """
    return LARGEST_PAYLOAD_BYTES if is_gro_on else min(max_mtu_bytes, LARGEST_PAYLOAD_BYTES)


def ring_entries(buffer_bytes: int, *, payload_bytes: int) -> int:
    """
    Count the slots of a ring: what fits, rounded up to a power of two, at least 1.

    So 128,000 bytes are 1 slot of 65,535, and 8,000,000 are 122, rounded up to 128.
    """
    fitting = max(1, buffer_bytes // payload_bytes)
    return 1 << (fitting - 1).bit_length()


class Ring:
    """
    The two cursors of a ring.

    They only ever grow, so that full and empty are told apart; a slot's number is
    the cursor modulo the capacity. A run of slots may pass the ring's end.
    """

    __slots__ = ("_consumed_count", "_produced_count", "capacity")

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a ring of {capacity} slots cannot be; it has at least 1")
        self.capacity = capacity
        self._produced_count = 0
        self._consumed_count = 0

    @property
    def filled_count(self) -> int:
        """Slots that wait for the consumer."""
        return self._produced_count - self._consumed_count

    @property
    def free_count(self) -> int:
        """Slots that the producer may fill."""
        return self.capacity - self._produced_count + self._consumed_count

    @property
    def producer_index(self) -> int:
        """The slot that is filled next."""
        return self._produced_count % self.capacity

    @property
    def consumer_index(self) -> int:
        """The slot that is taken next."""
        return self._consumed_count % self.capacity

    def produce(self, count: int) -> None:
        """
        Hand the next slots to the consumer.

        Raises:
            ValueError: So many are not free.
        """
        if not 0 <= count <= self.free_count:
            raise ValueError(f"{count} slots cannot be filled; {self.free_count} are free")
        self._produced_count += count

    def consume(self, count: int) -> None:
        """
        Give the oldest filled slots back.

        Raises:
            ValueError: So many are not filled.
        """
        if not 0 <= count <= self.filled_count:
            raise ValueError(f"{count} slots cannot be freed; {self.filled_count} are filled")
        self._consumed_count += count
