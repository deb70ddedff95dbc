"""
The kernel's own account of lost datagrams: `/proc/net/udp`, `udp6`, `snmp`, `snmp6`. Pure.

A socket's own counter vanishes with the socket, so it is read while the server
still runs. It counts what RcvbufErrors counts for the whole network namespace.
"""

import ipaddress
import struct
from dataclasses import dataclass

_FEWEST_COLUMNS = 13  # Documentation/networking/proc_net_tcp.rst; the last one is drops
_INODE_COLUMN = 9


@dataclass(frozen=True, slots=True)
class UdpSocket:
    """
    One socket and how many datagrams its full receive buffer cost since it was made.

    Args:
        address: Local address.
        port: Local port.
        drop_count: Datagrams that found no room.
        inode: Names the socket among a process's open files: `socket:[inode]`.
    """

    address: str
    port: int
    drop_count: int
    inode: int = 0


def parse_udp_sockets(text: str) -> list[UdpSocket]:
    """
    Read `/proc/net/udp` or `/proc/net/udp6`; lines that are no socket are left out.
    """
    sockets = []
    for line in text.splitlines()[1:]:
        columns = line.split()
        if len(columns) >= _FEWEST_COLUMNS and columns[-1].isdigit():
            address, _, port = columns[1].partition(":")
            sockets.append(
                UdpSocket(
                    _parse_address(address),
                    int(port, 16),
                    int(columns[-1]),
                    inode=int(columns[_INODE_COLUMN]),
                )
            )
    return sockets


def _parse_address(text: str) -> str:
    # The kernel prints each 32-bit word of the address in this machine's byte order.
    words = [int(text[i : i + 8], 16) for i in range(0, len(text), 8)]
    return str(ipaddress.ip_address(struct.pack(f"={len(words)}I", *words)))


def parse_udp_counters(text: str) -> dict[str, int]:
    """
    Read the `Udp:` lines of `/proc/net/snmp`: a line of names, then a line of figures.
    """
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith("Udp:")]
    if len(lines) != 2:  # noqa: PLR2004  names and figures
        return {}
    return {name: int(figure) for name, figure in zip(*lines, strict=False)}


def parse_udp6_counters(text: str) -> dict[str, int]:
    """
    Read what `/proc/net/snmp6` says of UDP: names begin with `Udp6`, a name and a figure a line.
    """
    lines = [line.split() for line in text.splitlines() if line.startswith("Udp6")]
    return {name: int(figure) for name, figure in lines}
