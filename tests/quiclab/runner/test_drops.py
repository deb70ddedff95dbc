"""
The kernel's drop counters are read from its own tables.
"""

import socket
from pathlib import Path

from quiclab.runner.drops import UdpSocket, parse_udp_counters, parse_udp_sockets

# Lines as Linux 6.18 writes them, too long for this file's margin.
UDP = """\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
 2311: 0100007F:D2A1 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 77123 2 0000000000000000 42
 9001: 0B00007F:9C40 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 77000 2 0000000000000000 5
"""  # noqa: E501
UDP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
 2311: 00000000000000000000000001000000:1151 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 77200 2 0000000000000000 7
"""  # noqa: E501
SNMP = """\
Ip: Forwarding DefaultTTL
Ip: 1 64
Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors
Udp: 100 2 3 104 3 0
UdpLite: InDatagrams
UdpLite: 0
"""


def test_sockets_are_read_with_address_port_inode_and_drops() -> None:
    """Both tables have one form; addresses are turned into their usual spelling."""
    assert [
        UdpSocket("127.0.0.1", 53921, 42, inode=77123),
        UdpSocket("127.0.0.11", 40000, 5, inode=77000),
    ] == parse_udp_sockets(UDP)
    assert [UdpSocket("::1", 4433, 7, inode=77200)] == parse_udp_sockets(UDP6)


def test_counters_of_the_namespace_are_read_by_name() -> None:
    """Names stand in one line and figures in the next."""
    assert {
        "InDatagrams": 100,
        "NoPorts": 2,
        "InErrors": 3,
        "OutDatagrams": 104,
        "RcvbufErrors": 3,
        "SndbufErrors": 0,
    } == parse_udp_counters(SNMP)


def test_tables_that_are_not_there_count_nothing() -> None:
    """A kernel without IPv6 has no second table."""
    assert ([], {}) == (parse_udp_sockets(""), parse_udp_counters(""))


def test_full_socket_of_this_machine_is_seen_to_drop() -> None:
    """A socket that nobody drains loses datagrams, and its line says how many."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        receiver.bind(("127.0.0.1", 0))
        for _ in range(50):
            sender.sendto(bytes(1000), receiver.getsockname())
        port = receiver.getsockname()[1]
        sockets = parse_udp_sockets(Path("/proc/net/udp").read_text())
        assert 0 < sum(each.drop_count for each in sockets if each.port == port) <= 50
