"""
Kernel drop counters, from the text of /proc/net/udp and /proc/net/snmp. Pure.

A socket's own counter stands in the last column and vanishes with the socket,
so it is read while the server still runs. It is equal to what RcvbufErrors
counts for the whole network namespace.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class UdpSocket:
    """
    One line of /proc/net/udp or /proc/net/udp6.

    Args:
        address: Local address as the kernel writes it: hexadecimal, host byte order.
        port: Local port.
        inode: Identifies the socket; `socket:[inode]` in /proc/PID/fd.
        receive_queue_bytes: Memory that waiting datagrams are charged for.
        drop_count: Datagrams that found no room.
    """

    address: str
    port: int
    inode: int
    receive_queue_bytes: int
    drop_count: int


def parse_udp_sockets(text: str) -> list[UdpSocket]:
    """
    Read /proc/net/udp or /proc/net/udp6; lines that are no sockets are passed over.
    """
    sockets = []
    for line in text.splitlines():
        fields = line.split()
        # sl local rem st tx:rx tr:when retrnsmt uid timeout inode ref pointer drops
        if len(fields) < 13 or not fields[0].endswith(":"):  # noqa: PLR2004 - as listed above
            continue
        address, _, port = fields[1].partition(":")
        sockets.append(
            UdpSocket(
                address=address,
                port=int(port, 16),
                inode=int(fields[9]),
                receive_queue_bytes=int(fields[4].partition(":")[2], 16),
                drop_count=int(fields[12]),
            )
        )
    return sockets


def parse_udp_counters(text: str) -> dict[str, int]:
    """
    Read the `Udp:` lines of /proc/net/snmp: names in the first, figures in the second.
    """
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith("Udp:")]
    if len(lines) != 2:  # noqa: PLR2004 - names and figures
        return {}
    return {name: int(figure) for name, figure in zip(*lines, strict=False)}


def summarize_drops(
    sockets: Sequence[UdpSocket],
    counters: Mapping[str, int],
    *,
    is_servers: Callable[[UdpSocket], bool],
) -> dict[str, Any]:
    """
    What `Place.socket_drops` answers.

    Args:
        sockets: All UDP sockets that the server's network namespace shows.
        counters: The namespace's own counters.
        is_servers: Tells the server's sockets from others (a resolver's, another program's).
    """
    own = [socket for socket in sockets if is_servers(socket)]
    return {
        "server_drop_count": sum(socket.drop_count for socket in own),
        "sockets": [asdict(socket) for socket in own],
        "namespace_udp": dict(counters),
    }
