"""
The client's sockets: one for each connection, with large buffers, and what was granted.
"""

import socket
import ssl
import struct
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from aioquic.quic.configuration import QuicConfiguration
from cryptography import x509

from client.exits import ClientError
from client.settings import Settings
from server.endpoint import Endpoint, EndpointOptions
from server.loop import Loop
from server.perf import ALPN
from server.udp.model import Address, UdpOptions
from server.udp.sockets import UdpSocket, open_socket

# A client that took 64 trains before it answered ran in lock step with the server
# (27 MB/s); with 1 to 4 it did 55.
RECEIVE_MESSAGE_COUNT: Final = 4
RX_RING_BYTES: Final = RECEIVE_MESSAGE_COUNT * 65_535
# Deep enough for any window, so that an upload is never held up here.
TX_RING_BYTES: Final = 8 * 1024 * 1024
# Both flow-control windows: a terabyte, so that they never limit a load and no
# MAX_DATA frame is ever needed. QUIC allows 2^62 - 1.
FLOW_CONTROL_WINDOW_BYTES: Final = 1 << 40

_IP_MTU: Final = 14  # <linux/in.h>; Python's socket module has neither
_IPV6_MTU: Final = 24  # <linux/in6.h>
_SO_MEMINFO: Final = 55  # <asm-generic/socket.h>, since Linux 4.12
_MEMINFO: Final = struct.Struct("=9I")  # sk_mem vars of <linux/sock_diag.h>
_DROPS: Final = 8  # SK_MEMINFO_DROPS


def make_configuration(settings: Settings) -> QuicConfiguration:
    """
    What every connection of the load is configured with.

    Raises:
        ClientError: The file of certificates cannot be read or holds none.
    """
    configuration = QuicConfiguration(
        alpn_protocols=[ALPN],
        is_client=True,
        idle_timeout=settings.max_idle_timeout_s,
        max_data=FLOW_CONTROL_WINDOW_BYTES,
        max_stream_data=FLOW_CONTROL_WINDOW_BYTES,
        max_datagram_size=settings.datagram_bytes,
        server_name=settings.server_name,
    )
    if settings.is_insecure:
        configuration.verify_mode = ssl.CERT_NONE
    elif settings.ca_path is not None:
        configuration.cadata = _load_authorities(settings.ca_path)
    return configuration


def _load_authorities(path: Path) -> bytes:
    """
    Read a CA file, and see now, not in the middle of a handshake, that it is one.
    """
    try:
        pem = path.read_bytes()
        x509.load_pem_x509_certificates(pem)
    except OSError as error:
        raise ClientError(f"--ca-file {path}: {error.strerror}") from error
    except ValueError as error:
        raise ClientError(
            f"--ca-file {path} holds no certificate in PEM form (-----BEGIN CERTIFICATE-----)"
        ) from error
    return pem


def open_endpoint(settings: Settings, loop: Loop, configuration: QuicConfiguration) -> Endpoint:
    """
    Open one socket on a port of its own.

    Raises:
        OSError: The kernel refuses.
    """
    sock = open_socket(("::" if ":" in settings.ip else "0.0.0.0", 0), is_port_shared=False)  # noqa: S104 - a client
    udp = UdpSocket(
        sock,
        UdpOptions(
            tx_ring_bytes=TX_RING_BYTES,
            rx_ring_bytes=RX_RING_BYTES,
            max_mtu_bytes=settings.max_mtu_bytes,
            max_segments=settings.max_segments,
            is_gso_on=settings.is_gso_on,
            is_gro_on=settings.is_gro_on,
            send_buffer_bytes=settings.socket_buffer_bytes,
            receive_buffer_bytes=settings.socket_buffer_bytes,
        ),
        listening=loop.listening,
        most_receive_messages=RECEIVE_MESSAGE_COUNT,
    )
    return Endpoint(
        udp,
        loop,
        configuration=configuration,
        options=EndpointOptions(window_cap_bytes=settings.max_window_bytes),
    )


def server_address(settings: Settings) -> Address:
    """
    The server as received datagrams will name it, because QUIC clients compare.
    """
    if ":" in settings.ip:
        packed = socket.inet_pton(socket.AF_INET6, settings.ip)
        return (socket.inet_ntop(socket.AF_INET6, packed), settings.port, 0, 0)
    return (settings.ip, settings.port)


def describe_granted(settings: Settings, endpoint: Endpoint) -> dict[str, Any]:
    """
    What one socket was granted; the others asked for the same.
    """
    granted = endpoint.udp.granted
    return {
        "tx_ring": asdict(granted.tx_ring),
        "rx_ring": asdict(granted.rx_ring),
        "socket_send_buffer": asdict(granted.socket_send_buffer),
        "socket_receive_buffer": asdict(granted.socket_receive_buffer),
        "gso": granted.has_gso,
        "gro": granted.has_gro,
        "mmsg": granted.has_mmsg,
        "datagram_bytes": settings.datagram_bytes,
        "window_cap_bytes": settings.max_window_bytes,
        "receive_message_count": RECEIVE_MESSAGE_COUNT,
        "flow_control": {
            "max_data_bytes": FLOW_CONTROL_WINDOW_BYTES,
            "max_stream_data_bytes": FLOW_CONTROL_WINDOW_BYTES,
        },
    }


def find_path_mtu(settings: Settings) -> int | None:
    """
    Ask the kernel what the path to the server carries, headers included (ip(7), IP_MTU).

    Nothing is sent. None when there is no route.
    """
    is_ipv6 = ":" in settings.ip
    family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
    option = (socket.IPPROTO_IPV6, _IPV6_MTU) if is_ipv6 else (socket.IPPROTO_IP, _IP_MTU)
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(server_address(settings))
            return sock.getsockopt(*option)
        except OSError:
            return None


def count_drops(sock: socket.socket) -> int:
    """
    Datagrams that a socket had no room for, while it is open.
    """
    raw = sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
    return int(_MEMINFO.unpack(raw)[_DROPS])
