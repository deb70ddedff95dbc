"""
The TX side of a socket: the ring, the trains in it, and the calls that empty it.

The endpoint writes datagrams; each message takes a slot. When no slot is free
the whole run of filled ones is handed to the kernel in one sendmmsg, and so it is
when the endpoint has nothing more to say. Nothing is ever dropped because the
socket is full: what finds no slot waits in order behind the ring.

Probes fire in the original's order: io tx acquire, write, finish_write, release
on the endpoint's side of the ring; task tx acquire, the call, finish, release on
the socket's side.
"""

import errno
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from server.counters import TxCounters
from server.probes import (
    IO_TX_ACQUIRE,
    IO_TX_FINISH_WRITE,
    IO_TX_RELEASE,
    IO_TX_WRITE,
    RING_CONSUMER_ACQUIRE,
    RING_CONSUMER_RELEASE,
    RING_PRODUCER_ACQUIRE,
    RING_PRODUCER_RELEASE,
    TASK_TX_ACQUIRE,
    TASK_TX_FINISH,
    TASK_TX_RELEASE,
)
from server.udp import _native
from server.udp.batch import TrainLimits, train_bytes
from server.udp.model import Degradation, Message, errno_name
from server.udp.probing import Listening
from server.udp.ring import Ring

_FULL: Final = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM})
# What GSO is refused with: EIO by a device without checksum offload, EINVAL by a
# socket without checksums and by kernels that don't know UDP_SEGMENT.
_GSO_REFUSED: Final = frozenset({errno.EIO, errno.EINVAL})


class Sender(Protocol):
    """
    The calls that send filled slots; each answers a count, or minus errno.
    """

    def send(self, fd: int, slots: list[Message | None], first: int, count: int, /) -> int:
        """A run of slots by sendmmsg; messages sent."""

    def send_one(self, fd: int, slots: list[Message | None], slot: int, /) -> int:
        """One slot by sendmsg; 1."""

    def send_apart(self, fd: int, slots: list[Message | None], slot: int, /) -> int:
        """The datagrams of one slot by sendmmsg, each as a message; datagrams sent."""


class TxPath:
    """
    One TX ring over one socket.

    Args:
        fd: The socket.
        sender: Makes the calls: `_native.Sender`.
        ring: Its cursors.
        limits: How large a message may become.
        has_mmsg: Whether sendmmsg may be called.
        channel: The ring's number in the probes.
        listening: Which probes are traced.
        on_degraded: Told once what was given up.
    """

    def __init__(
        self,
        fd: int,
        sender: Sender,
        *,
        ring: Ring,
        limits: TrainLimits,
        has_mmsg: bool,
        channel: int,
        listening: Listening,
        on_degraded: Callable[[Degradation], None],
    ) -> None:
        self.counters = TxCounters()
        self.ring = ring
        self.limits = limits
        self.blocked_by = 0
        """The errno with which the socket takes no more for now, or 0."""
        self._fd = fd
        self._has_mmsg = has_mmsg
        self._channel = channel
        self._listening = listening
        self._on_degraded = on_degraded
        self._sender = sender
        self._slots: list[Message | None] = [None] * ring.capacity
        self._open: Message | None = None  # the message that is being written
        self._open_slot = 0
        self._next_slot = 0
        self._free_count = ring.capacity  # slots that neither side of the ring holds
        self._began_ns: dict[int, int] = {}  # slot: when its message was begun, while traced
        self._written_count = 0  # slots filled and not yet released
        self._overflow: deque[tuple[bytes, list[bytes]]] = deque()
        self._has_refused_trains = False

    @property
    def is_empty(self) -> bool:
        """Nothing waits here any more."""
        return not (self._open or self._written_count or self.ring.filled_count or self._overflow)

    @property
    def is_blocked_by_room(self) -> bool:
        """The socket's buffer is full; POLLOUT tells when it no longer is."""
        return self.blocked_by == errno.EAGAIN

    def can_write(self) -> bool:
        """
        Make sure a message finds a slot, by emptying the ring if need be.
        """
        if self._overflow:
            return False
        return self._open is not None or self._free_count > 0 or self._make_room()

    def room(self, datagram_bytes: int) -> int:
        """
        Count the full datagrams that complete the message which is being written.

        Who builds no more than that at a time keeps messages whole: none then waits,
        half full, while the next datagrams are built.
        """
        if self._open is not None:
            return self.limits.room(self._open[1], datagram_bytes)
        return self.limits.capacity(datagram_bytes)

    def acquire(self) -> None:
        """
        Begin to write: take the slots that are free.
        """
        counters = self.counters
        counters.io_acquire_count += 1
        if self._listening.has_cursors:
            ring = self.ring
            _native.fire(
                RING_PRODUCER_ACQUIRE,
                self._channel,
                ring.producer_index,
                self._free_count,
                ring.capacity,
            )
            _native.fire(IO_TX_ACQUIRE, self._channel, self._free_count)

    def write(self, address: bytes, datagrams: list[bytes]) -> None:
        """
        Put datagrams to one peer into the ring, in order; what finds no slot waits.
        """
        if self._overflow:
            self._overflow.append((address, datagrams))
            return
        counters = self.counters
        start = 0
        end = len(datagrams)
        while start < end:
            message = self._open
            if message is not None and message[0] != address:
                self._close_message(message)
                message = None
            if message is None:
                if not self._free_count and not self._make_room():
                    self._overflow.append((address, datagrams[start:]))
                    return
                message = self._open_message(address)
            train = message[1]
            held_count = len(train)
            limits = self.limits
            is_closed = _native.extend_train(
                train, datagrams, start, limits.datagram_count, limits.message_bytes
            )
            taken = len(train) - held_count
            counters.datagram_written_count += taken
            start += taken
            if taken and self._listening.has_tx_write:
                _native.fire_segments(
                    IO_TX_WRITE, self._channel, self._open_slot, held_count, train[held_count:]
                )
            if is_closed:
                self._close_message(message)

    def _open_message(self, address: bytes) -> Message:
        slot = self._open_slot = self._next_slot
        self._next_slot = (slot + 1) % self.ring.capacity
        self._free_count -= 1
        message: Message = (address, [])
        self._open = self._slots[slot] = message
        if self._listening.has_message_sent:
            self._began_ns[slot] = time.monotonic_ns()
        return message

    def _close_message(self, message: Message) -> None:
        self._open = None
        self._written_count += 1
        self.counters.message_written_count += 1
        if self._listening.has_tx_finish_write:
            # 0 segments is the original's way to say: not sent by GSO.
            is_gso_on = self.limits.datagram_count > 1
            _native.fire(
                IO_TX_FINISH_WRITE,
                self._channel,
                self._open_slot,
                len(message[1]) if is_gso_on else 0,
                len(message[1][0]),
            )

    def release(self) -> None:
        """
        Hand what was written to the socket's side of the ring.
        """
        if self._open is not None:
            self._close_message(self._open)
        count = self._written_count
        if not count:
            return
        self.counters.io_release_count += 1
        if self._listening.has_cursors:
            ring = self.ring
            _native.fire(
                RING_PRODUCER_RELEASE, self._channel, ring.producer_index, count, ring.capacity
            )
            _native.fire(IO_TX_RELEASE, self._channel, count)
        self.ring.produce(count)
        self._written_count = 0

    def _make_room(self) -> bool:
        """
        Empty the ring in the middle of writing; whether a slot is free then.
        """
        self.counters.ring_full_count += 1
        self.release()
        self._send_filled()
        self.acquire()
        return self._free_count > 0

    def flush(self) -> None:
        """
        Send everything, as far as the socket takes it now.
        """
        self.release()
        self._send_filled()
        while self._overflow and not self.ring.filled_count:
            waiting, self._overflow = self._overflow, deque()
            self.acquire()
            for address, datagrams in waiting:
                self.write(address, datagrams)
            self.release()
            self._send_filled()

    def _send_filled(self) -> None:
        """
        Make calls until the ring is empty or the socket takes no more.
        """
        ring = self.ring
        self.blocked_by = 0
        counters = self.counters
        counters.most_filled_count = max(counters.most_filled_count, ring.filled_count)
        while count := ring.filled_count:
            first = ring.consumer_index
            counters.task_acquire_count += 1
            if self._listening.has_cursors:
                _native.fire(RING_CONSUMER_ACQUIRE, self._channel, first, count, ring.capacity)
                _native.fire(TASK_TX_ACQUIRE, self._channel, count)
            result = self._send(first, count)
            if result > 0:
                self._finish(first, result)
            elif result < 0 and not self._recover(-result, first):
                self.blocked_by = -result
                counters.blocked_count += 1
                break
        else:
            self._has_refused_trains = False

    def _send(self, first: int, count: int) -> int:
        """
        One call; messages that are done, 0 when part of one is, or minus errno.
        """
        if self._has_refused_trains:
            return self._send_apart(first)
        if not self._has_mmsg:
            return self._send_one(first)
        counters = self.counters
        counters.send_call_count += 1
        sent = self._sender.send(self._fd, self._slots, first, count)
        counters.messages_per_call[sent.bit_length() if sent > 0 else 0] += 1
        return sent

    def _send_one(self, slot: int) -> int:
        counters = self.counters
        counters.single_send_call_count += 1
        sent = self._sender.send_one(self._fd, self._slots, slot)
        counters.messages_per_call[1 if sent > 0 else 0] += 1
        return sent

    def _send_apart(self, slot: int) -> int:
        """
        Send a train that GSO was refused for as single datagrams.
        """
        message = self._slots[slot]
        assert message is not None
        address, datagrams = message
        if self._has_mmsg:
            counters = self.counters
            counters.send_call_count += 1
            sent = self._sender.send_apart(self._fd, self._slots, slot)
            counters.messages_per_call[sent.bit_length() if sent > 0 else 0] += 1
        else:
            self._slots[slot] = (address, datagrams[:1])
            sent = self._send_one(slot)
            self._slots[slot] = message
        if sent <= 0 or sent == len(datagrams):
            return sent if sent <= 0 else 1
        self._count_sent(datagrams[:sent])
        del datagrams[:sent]
        return 0

    def _count_sent(self, train: list[bytes]) -> None:
        self.counters.datagram_sent_count += len(train)
        self.counters.byte_sent_count += train_bytes(train)

    def _finish(self, first: int, count: int, *, is_dropped: bool = False) -> None:
        """
        Give slots back whose messages the kernel took, or never will.
        """
        ring = self.ring
        counters = self.counters
        slots = self._slots
        for position in range(first, first + count):
            slot = position % ring.capacity
            message = slots[slot]
            assert message is not None
            slots[slot] = None
            train = message[1]
            if is_dropped:
                counters.datagram_dropped_count += len(train)
            else:
                self._count_sent(train)
                if len(train) > 1 and not self._has_refused_trains:
                    counters.gso_message_count += 1
        counters.message_sent_count += count
        counters.task_release_count += 1
        if self._listening.has_message_sent:
            _native.fire_sent(self._channel, first, count, ring.capacity, self._began_ns)
        elif self._began_ns:
            self._began_ns.clear()  # whoever listened is gone
        if self._listening.has_task_tx_finish:
            _native.fire_slots(TASK_TX_FINISH, self._channel, first, count, ring.capacity)
        if self._listening.has_cursors:
            _native.fire(TASK_TX_RELEASE, self._channel, count)
            _native.fire(RING_CONSUMER_RELEASE, self._channel, first, count, ring.capacity)
        ring.consume(count)
        self._free_count += count

    def _recover(self, error: int, first: int) -> bool:
        """
        Decide what an error means; False: the socket takes no more for now.
        """
        name = errno_name(error)
        errors = self.counters.error_counts
        errors[name] = errors.get(name, 0) + 1
        if error in _FULL:
            return False
        if error == errno.EINTR:
            return True
        message = self._slots[first]
        assert message is not None
        if error == errno.ENOSYS and self._has_mmsg:
            self._has_mmsg = False
            self._on_degraded(
                Degradation(
                    what="mmsg", reason=f"{name} from sendmmsg", effect="one message a call"
                )
            )
            return True
        if error in _GSO_REFUSED and len(message[1]) > 1 and not self._has_refused_trains:
            self._give_up_gso(name, segment_bytes=len(message[1][0]))
            return True
        # This message can never be sent (EMSGSIZE: larger than the path's MTU). QUIC
        # sees a lost packet; the ring must not stop for it.
        self._drop(first, message, name)
        return True

    def _give_up_gso(self, name: str, *, segment_bytes: int) -> None:
        self._has_refused_trains = True
        if self.limits.datagram_count > 1:
            self.limits = TrainLimits(datagram_count=1, message_bytes=self.limits.message_bytes)
            self._on_degraded(
                Degradation(
                    what="gso",
                    reason=f"{name} at segment size {segment_bytes}",
                    effect="one datagram per message",
                )
            )

    def _drop(self, first: int, message: Message, name: str) -> None:
        datagrams = message[1]
        tried_bytes = len(datagrams[0])
        if self._has_refused_trains and len(datagrams) > 1:
            # Only the first of them was tried.
            self.counters.datagram_dropped_count += 1
            del datagrams[:1]
        else:
            self._finish(first, 1, is_dropped=True)
        if name == "EMSGSIZE":
            self._on_degraded(
                Degradation(
                    what="datagram_size",
                    reason=f"EMSGSIZE at {tried_bytes} bytes",
                    effect="datagrams larger than the path's MTU are lost",
                )
            )
