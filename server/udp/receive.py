"""
The RX side of a socket: the calls that fill the ring, and the messages in it.

A wake-up makes recvmmsg calls until one returns nothing (so about half of all
calls are empty, as in the original) or no slot is free. Then the endpoint reads
every message and gives its slot back.
"""

import errno
from collections.abc import Iterator
from typing import Final

from server.counters import RxCounters
from server.probes import (
    IO_RX_ACQUIRE,
    IO_RX_FINISH_READ,
    IO_RX_READ,
    IO_RX_RELEASE,
    RING_CONSUMER_ACQUIRE,
    RING_CONSUMER_RELEASE,
    RING_PRODUCER_ACQUIRE,
    RING_PRODUCER_RELEASE,
    TASK_RX_ACQUIRE,
    TASK_RX_FINISH,
    TASK_RX_RELEASE,
)
from server.udp import _native
from server.udp.model import Address, errno_name
from server.udp.probing import Listening
from server.udp.ring import Ring

# Errors of earlier sends that the kernel reports at the next call (ICMP).
_REPORTED_LATE: Final = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH})


class RxPath:
    """
    One RX ring over one socket.

    Args:
        fd: The socket.
        ring: Its cursors.
        payload_bytes: Size of a slot.
        has_mmsg: Whether recvmmsg may be called.
        most_messages: Messages taken at one wake-up; None: as many as there are slots.
        channel: The ring's number in the probes.
        listening: Which probes are traced.
    """

    def __init__(
        self,
        fd: int,
        *,
        ring: Ring,
        payload_bytes: int,
        has_mmsg: bool,
        most_messages: int | None,
        channel: int,
        listening: Listening,
    ) -> None:
        self.counters = RxCounters()
        self.ring = ring
        self.is_drained = True
        """False when the last wake-up stopped before the socket was empty."""
        self._fd = fd
        self._has_mmsg = has_mmsg
        self._most_messages = most_messages or ring.capacity
        self._channel = channel
        self._listening = listening
        self._native = _native.Receiver(ring.capacity, payload_bytes)

    def receive(self) -> int:
        """
        Fill the ring from the socket; how many messages came.
        """
        ring = self.ring
        counters = self.counters
        received_count = 0
        self.is_drained = False
        while wanted := min(ring.free_count, self._most_messages - received_count):
            first = ring.producer_index
            counters.task_acquire_count += 1
            if self._listening.has_cursors:
                _native.fire(RING_PRODUCER_ACQUIRE, self._channel, first, wanted, ring.capacity)
                _native.fire(TASK_RX_ACQUIRE, self._channel, wanted)
            if self._has_mmsg:
                counters.receive_call_count += 1
                result = self._native.receive(self._fd, first, wanted)
            else:
                counters.single_receive_call_count += 1
                result = self._native.receive_one(self._fd, first)
            if result > 0:
                self._produce(first, result)
                received_count += result
            elif self._has_ended(-result):
                break
        return received_count

    def _has_ended(self, error: int) -> bool:
        """
        Count a call that brought nothing; whether the socket is empty.
        """
        self.counters.empty_receive_call_count += 1
        if error not in (0, errno.EAGAIN):
            name = errno_name(error)
            errors = self.counters.error_counts
            errors[name] = errors.get(name, 0) + 1
            if error == errno.EINTR or error in _REPORTED_LATE:
                return False
            if error == errno.ENOSYS and self._has_mmsg:
                self._has_mmsg = False
                return False
        self.is_drained = True
        return True

    def _produce(self, first: int, count: int) -> None:
        ring = self.ring
        self.counters.message_received_count += count
        self.counters.task_release_count += 1
        if self._listening.has_task_rx_finish:
            _native.fire_slots(TASK_RX_FINISH, self._channel, first, count, ring.capacity)
        if self._listening.has_cursors:
            _native.fire(TASK_RX_RELEASE, self._channel, count)
            _native.fire(RING_PRODUCER_RELEASE, self._channel, first, count, ring.capacity)
        ring.produce(count)

    def read(self) -> Iterator[tuple[Address, list[bytes]]]:
        """
        Go through what was received; a message counts as read when the next is asked for.
        """
        ring = self.ring
        counters = self.counters
        count = ring.filled_count
        first = ring.consumer_index
        counters.io_acquire_count += 1
        if self._listening.has_cursors:
            _native.fire(RING_CONSUMER_ACQUIRE, self._channel, first, count, ring.capacity)
            _native.fire(IO_RX_ACQUIRE, self._channel, count)
        if not count:
            return
        for index, (address, datagrams, is_cut) in enumerate(self._native.take(first, count)):
            slot = (first + index) % ring.capacity
            if self._listening.has_rx_read:
                _native.fire_segments(IO_RX_READ, self._channel, slot, 0, datagrams)
            datagram_count = len(datagrams)
            counters.datagram_read_count += datagram_count
            if datagram_count > 1:
                counters.gro_message_count += 1
            # Only the last of a train may be shorter.
            counters.byte_received_count += (datagram_count - 1) * len(datagrams[0]) + len(
                datagrams[-1]
            )
            if is_cut:
                # Longer than the MTU this server was told of: what is left of it is no packet.
                self.drop("cut")
            else:
                yield address, datagrams
            counters.message_read_count += 1
            if self._listening.has_rx_finish_read:
                _native.fire(
                    IO_RX_FINISH_READ, self._channel, slot, datagram_count, len(datagrams[0])
                )
        counters.io_release_count += 1
        if self._listening.has_cursors:
            _native.fire(IO_RX_RELEASE, self._channel, count)
            _native.fire(RING_CONSUMER_RELEASE, self._channel, first, count, ring.capacity)
        ring.consume(count)

    def drop(self, why: str) -> None:
        """
        Count a datagram that led nowhere.
        """
        dropped = self.counters.datagram_dropped_counts
        dropped[why] = dropped.get(why, 0) + 1
