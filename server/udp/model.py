"""
Values that the UDP layer hands out: what was asked for, granted and given up.
"""

import errno
import socket
import struct
from dataclasses import dataclass

Address = tuple[str, int] | tuple[str, int, int, int]
"""A peer as the socket module writes it: 2 parts for IPv4, 4 for IPv6."""

Message = tuple[bytes, list[bytes]]
"""What a TX slot holds: the peer as the kernel wants it, and a train of datagrams."""

_NATIVE_FAMILY = struct.Struct("=H")


@dataclass(frozen=True, slots=True, kw_only=True)
class UdpOptions:
    """
    What is asked of one socket and its rings. Sizes are bytes.

    Args:
        tx_ring_bytes: Memory of the TX ring (`--queue-send-buffer-size`).
        rx_ring_bytes: Memory of the RX ring (`--queue-recv-buffer-size`).
        max_mtu_bytes: IP MTU; it sizes the slots.
        max_segments: Datagrams of one message; 1 is GSO off.
        is_gso_on: Send trains.
        is_gro_on: Receive trains.
        send_buffer_bytes: SO_SNDBUF; None leaves the kernel's.
        receive_buffer_bytes: SO_RCVBUF; None leaves the kernel's.
    """

    tx_ring_bytes: int = 128 * 1024
    rx_ring_bytes: int = 8 * 1024 * 1024
    max_mtu_bytes: int = 9000
    max_segments: int = 10
    is_gso_on: bool = True
    is_gro_on: bool = True
    send_buffer_bytes: int | None = None
    receive_buffer_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferGrant:
    """
    A socket buffer, asked and granted.

    The kernel doubles what it is asked for, to pay for its own bookkeeping, and
    reads the double back; `granted_bytes` is in the unit of the asking.
    """

    asked_bytes: int | None
    granted_bytes: int
    readback_bytes: int
    is_forced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RingGeometry:
    """
    A ring's size, asked and made.
    """

    entries: int
    payload_bytes: int
    asked_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Degradation:
    """
    Something that was given up, once and for good.
    """

    what: str
    reason: str
    effect: str


def errno_name(number: int) -> str:
    """
    Name an errno: EAGAIN, EIO; a number that has no name stays a number.
    """
    return errno.errorcode.get(number, str(number))


def pack_address(address: Address) -> bytes:
    """
    Write a peer as the kernel's sockaddr_in or sockaddr_in6.
    """
    port = struct.pack(">H", address[1])
    if len(address) == 2:  # noqa: PLR2004 - IPv4 addresses have two parts
        host = socket.inet_pton(socket.AF_INET, address[0])
        return _NATIVE_FAMILY.pack(socket.AF_INET) + port + host + bytes(8)
    _, _, flow, scope = address
    host = socket.inet_pton(socket.AF_INET6, address[0].partition("%")[0])
    return (
        _NATIVE_FAMILY.pack(socket.AF_INET6)
        + port
        + struct.pack(">I", flow)
        + host
        + struct.pack("=I", scope)
    )


class AddressBook:
    """
    Peers as the kernel writes them, each written once.
    """

    MOST_ADDRESSES = 4096  # a flood of peers empties it, no more

    def __init__(self) -> None:
        self._packed: dict[Address, bytes] = {}

    def pack(self, address: Address) -> bytes:
        """
        Write a peer; the same object for the same peer.
        """
        packed = self._packed.get(address)
        if packed is None:
            if len(self._packed) >= self.MOST_ADDRESSES:
                self._packed.clear()
            packed = self._packed[address] = pack_address(address)
        return packed
