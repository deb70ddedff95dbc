"""
The load's sockets: GRO in, GSO out, and as little else as possible.
"""

import contextlib
import socket
import struct
from typing import Final

SOL_UDP: Final = 17  # <linux/socket.h>
_UDP_SEGMENT: Final = 103  # <linux/udp.h>, since Linux 4.18
_UDP_GRO: Final = 104  # <linux/udp.h>, since Linux 5.0
_SO_SNDBUFFORCE: Final = 32  # <asm-generic/socket.h>
_SO_RCVBUFFORCE: Final = 33
_SO_MEMINFO: Final = 55
_MEMINFO: Final = struct.Struct("=9I")  # <linux/sock_diag.h>; the last is SK_MEMINFO_DROPS
_SEGMENT: Final = struct.Struct("=H")
_GRO_SIZE: Final = struct.Struct("=i")
SOCKET_BUFFER_BYTES: Final = 8 * 1024 * 1024
_LARGEST_MESSAGE_BYTES: Final = 65_507  # IPv4's 65,535 less 28 bytes of headers
_LARGEST_SEGMENT_COUNT: Final = 64  # UDP_MAX_SEGMENTS before Linux 6.9
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(_GRO_SIZE.size)


class LoadSocket:
    """
    One connected UDP socket of the load, and what passed through it.

    Args:
        ip: The server's IPv4 address.
        port: Its port.
    """

    __slots__ = (
        "_waiting",
        "received_datagram_count",
        "received_message_count",
        "sent_datagram_count",
        "sent_message_count",
        "sock",
    )

    def __init__(self, ip: str, port: int) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.setblocking(False)
        self.sock.setsockopt(SOL_UDP, _UDP_GRO, 1)
        for ordinary, forced in (
            (socket.SO_RCVBUF, _SO_RCVBUFFORCE),
            (socket.SO_SNDBUF, _SO_SNDBUFFORCE),
        ):
            self.sock.setsockopt(socket.SOL_SOCKET, ordinary, SOCKET_BUFFER_BYTES)
            with contextlib.suppress(PermissionError):
                self.sock.setsockopt(socket.SOL_SOCKET, forced, SOCKET_BUFFER_BYTES)
        self.sock.connect((ip, port))
        self._waiting: list[tuple[list[bytes], int]] = []
        self.received_message_count = 0
        self.received_datagram_count = 0
        self.sent_message_count = 0
        self.sent_datagram_count = 0

    @property
    def is_full(self) -> bool:
        """The kernel took no more; what is left goes first when it does again."""
        return bool(self._waiting)

    @property
    def drop_count(self) -> int:
        """Datagrams the kernel had no room for."""
        raw = self.sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
        return int(_MEMINFO.unpack(raw)[-1])

    def receive(self) -> tuple[bytes, int] | None:
        """
        Take one message: its bytes and the size of the datagrams in it; None: no more.
        """
        try:
            data, ancillary, _, _ = self.sock.recvmsg(65_536, _ANCILLARY_BYTES)
        except BlockingIOError:
            return None
        segment_bytes = len(data)
        for level, kind, value in ancillary:
            if level == SOL_UDP and kind == _UDP_GRO:
                segment_bytes = _GRO_SIZE.unpack_from(value)[0]
        self.received_message_count += 1
        self.received_datagram_count += -(-len(data) // segment_bytes)
        return data, segment_bytes

    def send(self, datagrams: list[bytes]) -> None:
        """
        Send datagrams in order, equal ones together.
        """
        self.sent_datagram_count += len(datagrams)
        self._waiting += split_trains(datagrams)
        self.flush()

    def flush(self) -> None:
        """
        Send what waits, as far as the kernel takes it.
        """
        sent_count = 0
        try:
            for train, segment_bytes in self._waiting:
                ancillary = (
                    [(SOL_UDP, _UDP_SEGMENT, _SEGMENT.pack(segment_bytes))]
                    if len(train) > 1
                    else []
                )
                self.sock.sendmsg(train, ancillary)
                sent_count += 1
        except BlockingIOError:
            pass
        self.sent_message_count += sent_count
        del self._waiting[:sent_count]


def split_trains(datagrams: list[bytes]) -> list[tuple[list[bytes], int]]:
    """
    Group datagrams into what one GSO message carries: equal sizes, the last may be shorter.

    Returns:
        Each train with the size of its segments, bytes.
    """
    trains: list[tuple[list[bytes], int]] = []
    train: list[bytes] = []
    segment_bytes = train_bytes = 0
    for datagram in datagrams:
        size = len(datagram)
        if train and (
            size > segment_bytes
            or len(train[-1]) < segment_bytes
            or len(train) == _LARGEST_SEGMENT_COUNT
            or train_bytes + size > _LARGEST_MESSAGE_BYTES
        ):
            trains.append((train, segment_bytes))
            train = []
        if not train:
            segment_bytes, train_bytes = size, 0
        train.append(datagram)
        train_bytes += size
    if train:
        trains.append((train, segment_bytes))
    return trains
