"""
Opens a UDP socket with its two rings, and says what was granted.

Degrading happens here, once: whatever the kernel or a seccomp profile refuses is
switched off for good and recorded.
"""

import errno
import socket
from dataclasses import dataclass
from typing import Final

from server.udp import _native
from server.udp.batch import (
    LARGEST_MESSAGE_BYTES_IPV4,
    LARGEST_MESSAGE_BYTES_IPV6,
    TrainLimits,
)
from server.udp.model import (
    Address,
    BufferGrant,
    Degradation,
    RingGeometry,
    UdpOptions,
    errno_name,
)
from server.udp.probing import Listening
from server.udp.receive import RxPath
from server.udp.ring import Ring, ring_entries, rx_payload_bytes, tx_payload_bytes
from server.udp.transmit import TxPath

# Constants of Linux that Python's socket module lacks.
_SO_SNDBUFFORCE: Final = 32  # asm-generic/socket.h
_SO_RCVBUFFORCE: Final = 33
_SOL_UDP: Final = 17
_UDP_SEGMENT: Final = 103  # linux/udp.h
_UDP_GRO: Final = 104
_IP_MTU_DISCOVER: Final = 10  # linux/in.h
_IP_PMTUDISC_DO: Final = 2
_IPV6_MTU_DISCOVER: Final = 23  # linux/in6.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """
    What one socket got of what was asked for it.
    """

    tx_ring: RingGeometry
    rx_ring: RingGeometry
    socket_send_buffer: BufferGrant
    socket_receive_buffer: BufferGrant
    has_gso: bool
    has_gro: bool
    has_mmsg: bool


def open_socket(address: Address, *, is_port_shared: bool) -> socket.socket:
    """
    Make a socket and bind it.

    Args:
        address: IP address and port (0: any).
        is_port_shared: Other sockets of this user may bind the same port (SO_REUSEPORT).

    Raises:
        OSError: It cannot be bound.
    """
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        # Without DF the kernel fragments large datagrams in silence (8,900 bytes over
        # a 1,500 link moved 20 MB and nothing told); with it they are refused.
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _IP_PMTUDISC_DO)
        else:
            sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)
        if is_port_shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


class UdpSocket:
    """
    A socket with its rings.

    Args:
        sock: A bound socket; it is closed with this object.
        options: What to ask for.
        listening: Which probes are traced.
        first_channel: The TX ring's number in the probes; the RX ring has the next.
        most_receive_messages: Messages taken at one wake-up; None: a whole ring.
    """

    def __init__(
        self,
        sock: socket.socket,
        options: UdpOptions,
        *,
        listening: Listening,
        first_channel: int = 1,
        most_receive_messages: int | None = None,
    ) -> None:
        self.sock = sock
        self.address: Address = sock.getsockname()
        self.degradations: list[Degradation] = []
        has_mmsg = self._detect_mmsg()
        has_gso = options.is_gso_on and options.max_segments > 1 and self._detect_gso()
        has_gro = options.is_gro_on and self._enable_gro()
        # The slots are sized by what was asked, as in the original, so that a host
        # without GSO does not change the ring that is being studied.
        max_segments = options.max_segments if options.is_gso_on else 1
        tx_ring = _size_ring(
            options.tx_ring_bytes,
            tx_payload_bytes(max_mtu_bytes=options.max_mtu_bytes, max_segments=max_segments),
        )
        rx_ring = _size_ring(
            options.rx_ring_bytes,
            rx_payload_bytes(max_mtu_bytes=options.max_mtu_bytes, is_gro_on=has_gro),
        )
        is_ipv6 = sock.family == socket.AF_INET6
        limits = TrainLimits(
            datagram_count=max_segments if has_gso else 1,
            message_bytes=min(
                tx_ring.payload_bytes,
                LARGEST_MESSAGE_BYTES_IPV6 if is_ipv6 else LARGEST_MESSAGE_BYTES_IPV4,
            ),
        )
        self.tx = TxPath(
            sock.fileno(),
            _native.Sender(tx_ring.entries, limits.datagram_count),
            ring=Ring(tx_ring.entries),
            limits=limits,
            has_mmsg=has_mmsg,
            channel=first_channel,
            listening=listening,
            on_degraded=self._record,
        )
        self.rx = RxPath(
            sock.fileno(),
            ring=Ring(rx_ring.entries),
            payload_bytes=rx_ring.payload_bytes,
            has_mmsg=has_mmsg,
            most_messages=most_receive_messages,
            channel=first_channel + 1,
            listening=listening,
        )
        self.granted = Granted(
            tx_ring=tx_ring,
            rx_ring=rx_ring,
            socket_send_buffer=_grant_buffer(
                sock, options.send_buffer_bytes, socket.SO_SNDBUF, _SO_SNDBUFFORCE
            ),
            socket_receive_buffer=_grant_buffer(
                sock, options.receive_buffer_bytes, socket.SO_RCVBUF, _SO_RCVBUFFORCE
            ),
            has_gso=has_gso,
            has_gro=has_gro,
            has_mmsg=has_mmsg,
        )

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self.sock.fileno()

    def close(self) -> None:
        """Give the port back."""
        self.sock.close()

    def _record(self, degradation: Degradation) -> None:
        """
        Keep what was given up, once per kind.
        """
        if all(one.what != degradation.what for one in self.degradations):
            self.degradations.append(degradation)

    def _detect_mmsg(self) -> bool:
        error = _native.refused(self.sock.fileno())
        if error:
            self._record(
                Degradation(
                    what="mmsg",
                    reason=f"{errno_name(error)} from sendmmsg or recvmmsg "
                    "(a seccomp profile may refuse them)",
                    effect="one message a call",
                )
            )
        return not error

    def _detect_gso(self) -> bool:
        return self._accepts(
            _UDP_SEGMENT, 0, what="gso", name="UDP_SEGMENT", effect="one datagram per message"
        )

    def _enable_gro(self) -> bool:
        return self._accepts(
            _UDP_GRO, 1, what="gro", name="UDP_GRO", effect="one datagram per received message"
        )

    def _accepts(self, option: int, value: int, *, what: str, name: str, effect: str) -> bool:
        """Set an offload option; a kernel without it is recorded as a degradation."""
        try:
            self.sock.setsockopt(_SOL_UDP, option, value)
        except OSError as error:
            reason = f"{errno_name(error.errno or 0)}: no {name} in this kernel"
            self._record(Degradation(what=what, reason=reason, effect=effect))
            return False
        return True


def _size_ring(asked_bytes: int, payload_bytes: int) -> RingGeometry:
    return RingGeometry(
        entries=ring_entries(asked_bytes, payload_bytes=payload_bytes),
        payload_bytes=payload_bytes,
        asked_bytes=asked_bytes,
    )


def _grant_buffer(
    sock: socket.socket, asked_bytes: int | None, option: int, forcing_option: int
) -> BufferGrant:
    """
    Set a socket buffer, past the sysctl's limit where NET_ADMIN allows it.
    """
    is_forced = False
    if asked_bytes is not None:
        try:
            sock.setsockopt(socket.SOL_SOCKET, forcing_option, asked_bytes)
            is_forced = True
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOPROTOOPT):
                raise
            sock.setsockopt(socket.SOL_SOCKET, option, asked_bytes)
    readback_bytes = sock.getsockopt(socket.SOL_SOCKET, option)
    return BufferGrant(
        asked_bytes=asked_bytes,
        granted_bytes=readback_bytes // 2,
        readback_bytes=readback_bytes,
        is_forced=is_forced,
    )
