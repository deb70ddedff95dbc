"""
The client's sockets: named as QUIC compares, never limited by flow control, drops counted.
"""

import socket

import pytest

from client.settings import parse_settings
from client.sockets import count_drops, make_configuration, server_address


@pytest.mark.parametrize(
    ("ip", "address"),
    [
        ("127.0.0.1", ("127.0.0.1", 4433)),
        ("0:0:0:0:0:0:0:1", ("::1", 4433, 0, 0)),
        ("FD00::00A", ("fd00::a", 4433, 0, 0)),
    ],
)
def test_server_address_is_written_as_the_kernel_writes_it(
    ip: str, address: tuple[str, int]
) -> None:
    """
    A QUIC client drops datagrams of any other address, so the spelling must be the kernel's.
    """
    assert server_address(parse_settings(["--ip", ip, "--port", "4433"])) == address


def test_make_configuration_never_limits_by_flow_control() -> None:
    """
    Both windows are far above anything that a load moves.
    """
    settings = parse_settings(["--ip", "127.0.0.1", "--port", "1", "--max-idle-timeout", "7"])

    configuration = make_configuration(settings)

    assert configuration.max_data >= 10**12
    assert configuration.max_stream_data >= 10**12
    assert configuration.idle_timeout == 7.0
    assert configuration.alpn_protocols == ["perf"]


def test_count_drops_counts_what_the_buffer_had_no_room_for() -> None:
    """
    Every datagram is either received or counted as dropped.
    """
    sent_count = 200
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 10_000)
        receiver.bind(("127.0.0.1", 0))
        receiver.setblocking(False)
        for _ in range(sent_count):
            sender.sendto(bytes(1000), receiver.getsockname())
        received_count = 0
        try:
            while receiver.recv(2000):
                received_count += 1
        except BlockingIOError:
            pass

        assert 0 < received_count < sent_count
        assert count_drops(receiver) == sent_count - received_count
