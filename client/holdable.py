"""
How much a receive buffer holds when nobody drains it: measured, not computed.

The kernel charges a socket not for payload but for the memory that carries it,
and that differs by datagram size, by aggregation and by kernel. Bursts that
nobody drained, over loopback, Linux 6.18, in bytes held of each byte granted
(SO_RCVBUF as set, half of what is read back), for 212,992 B to 8 MiB:

    8,972 B, one datagram a message               1.01 to 1.08
    8,972 B, 7 a message, with UDP_GRO            1.77 to 1.97
    8,972 B, 7 a message, without                 1.77 to 1.83
    1,200 B, one datagram a message               1.04
    1,200 B, 10 a message, with UDP_GRO           1.80 to 1.87
    1,200 B, 10 a message, without                1.17 to 1.18

A client that is told to hold asks the kernel itself: it fills a socket of its
own, with the same buffer, by datagrams of the same size, and counts what comes
out. That takes 1 to 140 ms and sends nothing to the server. What one datagram a
message leaves counts, because trains are not always kept together on the way.
"""

import contextlib
import socket
from dataclasses import dataclass
from typing import Final

# Largest burst that is tried: more than any window a lab run uses.
LARGEST_BURST_BYTES: Final = 16 * 1024 * 1024
# For a machine where no burst can be sent over loopback (a network namespace whose
# `lo` is down): the least measured was 0.389 bytes held of each byte read back, with
# datagrams of 1,700 bytes, which just do not fit a block of 2,048.
ESTIMATED_SHARE: Final = 0.38
SO_RCVBUFFORCE: Final = 33  # <asm-generic/socket.h>; Python's socket module lacks it


@dataclass(frozen=True, slots=True)
class Holdable:
    """
    What a receive buffer holds undrained.

    Args:
        holdable_bytes: Payload, in datagrams that were not joined.
        is_measured: False when it could only be estimated from the granted buffer.
    """

    holdable_bytes: int
    is_measured: bool


def measure_holdable(
    *, socket_buffer_bytes: int, datagram_bytes: int, address: str = "127.0.0.1"
) -> Holdable:
    """
    Fill a socket of our own until it drops, and count what it held.

    Args:
        socket_buffer_bytes: SO_RCVBUF as it is asked for; forced where that is allowed.
        datagram_bytes: UDP payload of each datagram.
        address: An address of this machine.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with (
        socket.socket(family, socket.SOCK_DGRAM) as receiver,
        socket.socket(family, socket.SOCK_DGRAM) as sender,
    ):
        _set_receive_buffer(receiver, socket_buffer_bytes)
        readback_bytes = receiver.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        try:
            receiver.bind((address, 0))
            sender.connect(receiver.getsockname())
            _fill(sender, datagram_bytes=datagram_bytes, most_bytes=2 * readback_bytes)
        except OSError:
            return Holdable(int(readback_bytes * ESTIMATED_SHARE), is_measured=False)
        return Holdable(_drain(receiver), is_measured=True)


def _set_receive_buffer(sock: socket.socket, asked_bytes: int) -> None:
    """
    Ask as the client's sockets do: past the sysctl's limit where NET_ADMIN allows it.
    """
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, asked_bytes)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, asked_bytes)


def _fill(sender: socket.socket, *, datagram_bytes: int, most_bytes: int) -> None:
    payload = bytes(datagram_bytes)
    for _ in range(min(most_bytes, LARGEST_BURST_BYTES) // datagram_bytes + 1):
        sender.send(payload)


def _drain(receiver: socket.socket) -> int:
    held_bytes = 0
    space = bytearray(65_535)
    receiver.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            held_bytes += receiver.recv_into(space)
    return held_bytes
