"""
server.udp.receive and sockets: what comes in, and what a socket was granted.
"""

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.udp.batch import split_train
from server.udp.model import UdpOptions, pack_address
from server.udp.probing import Listening
from server.udp.sockets import UdpSocket, open_socket


def _open(options: Any = None, *, most_receive_messages: Any = None) -> Any:
    return UdpSocket(
        open_socket(("127.0.0.1", 0), is_port_shared=False),
        options or UdpOptions(),
        listening=Listening(),
        most_receive_messages=most_receive_messages,
    )


def _read_all(udp: Any) -> Any:
    return [datagram for _, datagrams in udp.rx.read() for datagram in datagrams]


@pytest.fixture(scope="module")
def pair() -> Any:
    """A sender and a receiver, shared by the examples of a property."""
    made = _open(UdpOptions(tx_ring_bytes=8_000_000)), _open(UdpOptions(rx_ring_bytes=300_000))
    yield made
    for udp in made:
        udp.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 1400), min_size=1, max_size=30))
def test_what_gso_joined_comes_out_as_it_went_in(pair: Any, sizes: Any) -> None:
    """Through a real kernel's GSO and GRO, datagrams keep their bytes, sizes and order."""
    sender, receiver = pair
    datagrams = [os.urandom(size) for size in sizes]
    sender.tx.acquire()
    sender.tx.write(pack_address(receiver.address), datagrams)
    sender.tx.flush()
    received: list[bytes] = []
    while len(received) < len(datagrams):
        receiver.rx.receive()
        received += _read_all(receiver)
    assert received == datagrams


def test_the_native_split_is_the_pure_one(pair: Any) -> None:
    """A train with a short last datagram is cut by C as split_train cuts it."""
    sender, receiver = pair
    datagrams = [os.urandom(1000)] * 5 + [os.urandom(10)]
    sender.tx.acquire()
    sender.tx.write(pack_address(receiver.address), datagrams)
    sender.tx.flush()
    receiver.rx.receive()
    ((_, split),) = list(receiver.rx.read())
    assert split == split_train(b"".join(datagrams), segment_bytes=1000) == datagrams


def test_a_wakeup_ends_with_one_empty_call_or_a_full_ring() -> None:
    """Recvmmsg is called until it brings nothing; a full ring ends it too."""
    receiver = _open(UdpOptions(rx_ring_bytes=4 * 65_535))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for count, calls, is_drained in ((3, 2, True), (4, 1, False)):
            receiver.rx.counters.reset()
            for _ in range(count):
                sender.sendto(b"x" * 100, receiver.address)
            assert receiver.rx.receive() == count
            assert receiver.rx.counters.receive_call_count == calls
            assert receiver.rx.is_drained is is_drained
            assert len(_read_all(receiver)) == count
    receiver.close()


def test_a_limited_wakeup_leaves_the_rest_for_the_next() -> None:
    """An endpoint may take few messages at a time, so that it answers in between."""
    receiver = _open(most_receive_messages=2)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for number in range(5):
            sender.sendto(bytes([number]) * 10, receiver.address)
    taken: list[int] = []
    while not (taken and receiver.rx.is_drained):
        receiver.rx.receive()
        taken.append(len(_read_all(receiver)))
    assert taken == [2, 2, 1]
    receiver.close()


def test_a_datagram_longer_than_a_slot_is_counted_and_not_fed() -> None:
    """Without GRO a slot is one MTU; a longer datagram is cut, and what is left is no packet."""
    receiver = _open(UdpOptions(is_gro_on=False, max_mtu_bytes=1500))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x" * 4000, receiver.address)
        sender.sendto(b"y" * 1400, receiver.address)
    receiver.rx.receive()
    assert _read_all(receiver) == [b"y" * 1400]
    assert receiver.rx.counters.datagram_dropped_counts == {"cut": 1}
    assert receiver.rx.counters.message_read_count == 2
    receiver.close()


def test_a_socket_buffer_beyond_the_limit_is_forced_or_reported() -> None:
    """Asked and granted stand side by side: forced with NET_ADMIN, else the sysctl's limit."""
    limit = int(Path("/proc/sys/net/core/rmem_max").read_text())
    asked = 2 * limit
    udp = _open(UdpOptions(receive_buffer_bytes=asked))
    grant = udp.granted.socket_receive_buffer
    assert grant.asked_bytes == asked
    assert grant.granted_bytes == (asked if grant.is_forced else limit)
    assert grant.readback_bytes == 2 * grant.granted_bytes
    assert udp.granted.socket_send_buffer.asked_bytes is None
    udp.close()


def test_large_datagrams_are_never_fragmented_in_silence() -> None:
    """The DF bit is set: the kernel refuses what does not fit instead of cutting it."""
    udp = _open()
    ip_mtu_discover, do = 10, 2
    assert udp.sock.getsockopt(socket.IPPROTO_IP, ip_mtu_discover) == do
    udp.close()


@pytest.mark.parametrize(
    "address", [("192.0.2.7", 4433), ("::1", 4433, 0, 0), ("fe80::1", 65_535, 7, 3)]
)
def test_addresses_are_written_as_the_kernel_writes_them(address: Any) -> None:
    """A packed address names the same peer to the kernel as the socket module's tuple."""
    family = socket.AF_INET if len(address) == 2 else socket.AF_INET6
    packed = pack_address(address)
    assert int.from_bytes(packed[:2], "little") == family or os.uname().machine == "s390x"
    assert int.from_bytes(packed[2:4], "big") == address[1]
    assert (
        socket.inet_ntop(family, packed[4:8] if len(address) == 2 else packed[8:24]) == (address[0])
    )
    assert len(packed) == (16 if len(address) == 2 else 28)
