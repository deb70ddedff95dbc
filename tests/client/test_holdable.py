"""
What a receive buffer holds is asked of the kernel, within what the kernel can give.
"""

import socket

import pytest

from client.holdable import ESTIMATED_SHARE, measure_holdable


@pytest.mark.parametrize("datagram_bytes", [1200, 8972])
def test_measure_holdable_stays_between_the_worst_and_what_was_granted(
    datagram_bytes: int,
) -> None:
    """
    Whole datagrams, at least the worst share ever measured, at most the buffer itself.
    """
    held = measure_holdable(socket_buffer_bytes=150_000, datagram_bytes=datagram_bytes)

    assert held.is_measured
    assert held.holdable_bytes % datagram_bytes == 0
    assert 300_000 * ESTIMATED_SHARE - datagram_bytes <= held.holdable_bytes <= 300_000


def test_measure_holdable_grows_with_the_buffer() -> None:
    """
    Four times the buffer hold about four times as much.
    """
    small = measure_holdable(socket_buffer_bytes=50_000, datagram_bytes=1200)
    large = measure_holdable(socket_buffer_bytes=200_000, datagram_bytes=1200)

    assert 3 * small.holdable_bytes < large.holdable_bytes < 5 * small.holdable_bytes


def test_measure_holdable_estimates_where_no_burst_can_be_sent() -> None:
    """
    An address that is not ours (as with `lo` down): an estimate, and it is told as one.
    """
    held = measure_holdable(socket_buffer_bytes=50_000, datagram_bytes=1200, address="192.0.2.1")

    assert not held.is_measured
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 50_000)
        readback_bytes = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    assert held.holdable_bytes == int(readback_bytes * ESTIMATED_SHARE)
