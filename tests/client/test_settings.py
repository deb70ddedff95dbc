"""
The client's command line: defaults, choices derived from what is asked, one-line errors.
"""

from pathlib import Path

import pytest

from client.settings import parse_settings

PEER = ("--ip", "127.0.0.1", "--port", "4433")


def test_parse_settings_without_a_size_or_time_downloads_for_five_seconds() -> None:
    """
    The shortest command line is a load that ends by itself.
    """
    settings = parse_settings(PEER)

    assert (settings.direction, settings.duration_s) == ("download", 5.0)
    assert (settings.receive_bytes, settings.send_bytes) == (None, None)
    assert settings.socket_buffer_bytes == 8 * 1024 * 1024


@pytest.mark.parametrize(
    ("ip", "words", "datagram_bytes"),
    [
        pytest.param("127.0.0.1", (), 8972, id="default-mtu"),
        pytest.param("::1", (), 8952, id="ipv6"),
        pytest.param("127.0.0.1", ("--max-mtu", "1500"), 1472, id="ethernet"),
        pytest.param("127.0.0.1", ("--max-mtu", "1200"), 1200, id="quic-minimum"),
        pytest.param("127.0.0.1", ("--datagram", "1350"), 1350, id="as-asked"),
    ],
)
def test_parse_settings_derives_the_datagram_from_the_mtu(
    ip: str, words: tuple[str, ...], datagram_bytes: int
) -> None:
    """
    A full datagram is what the MTU leaves beside the headers, unless one is asked for.
    """
    settings = parse_settings(["--ip", ip, "--port", "1", *words])

    assert settings.datagram_bytes == datagram_bytes


@pytest.mark.parametrize(
    ("words", "direction"),
    [
        (("--receive", "5"), "download"),
        (("--send", "5"), "upload"),
        (("--receive", "5", "--send", "5"), "both"),
        (("--direction", "both"), "both"),
    ],
)
def test_parse_settings_derives_the_direction_from_what_is_asked(
    words: tuple[str, ...], direction: str
) -> None:
    """
    Bytes to move in one direction are a load in that direction.
    """
    assert parse_settings([*PEER, *words]).direction == direction


def test_parse_settings_leaves_a_load_with_bytes_without_a_duration() -> None:
    """
    Exact totals end by themselves; a duration beside them is kept.
    """
    assert parse_settings([*PEER, "--receive", "5"]).duration_s is None
    assert parse_settings([*PEER, "--receive", "5", "--duration", "0.5"]).duration_s == 0.5
    # Half of it has an end: the other half needs one too.
    both = parse_settings([*PEER, "--direction", "both", "--receive", "5"])
    assert both.duration_s == 5.0


def test_parse_settings_reads_every_option() -> None:
    """
    Each option ends up in the field of its meaning.
    """
    settings = parse_settings(
        [
            *PEER,
            *("--server-name", "s.test", "--ca-file", "ca.pem", "--connections", "2"),
            *("--streams", "3", "--verify-content", "--max-segments", "4", "--disable-gso"),
            *("--disable-gro", "--socket-buffer", "1000", "--max-window", "0"),
            *("--max-idle-timeout", "7", "--control", "c.sock", "--hold", "--output", "o.json"),
        ]
    )

    assert (settings.server_name, settings.ca_path) == ("s.test", Path("ca.pem"))
    assert (settings.connection_count, settings.stream_count) == (2, 3)
    assert settings.is_content_verified
    assert (settings.max_segments, settings.is_gso_on, settings.is_gro_on) == (4, False, False)
    assert (settings.socket_buffer_bytes, settings.max_window_bytes) == (1000, 0)
    assert settings.max_idle_timeout_s == 7.0
    assert (settings.control_path, settings.is_held) == (Path("c.sock"), True)
    assert settings.output_path == Path("o.json")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--streams", "0"), "--streams: 0 is not a whole number from 1"),
        (("--port", "70000"), "--port: 70000 is not a whole number from 1 to 65535"),
        (("--max-segments", "65"), "--max-segments: 65 is not a whole number from 1 to 64"),
        (("--socket-buffer", "9999999999"), "--socket-buffer: 9999999999 is not a whole number"),
        (("--receive", str(2**64 - 1)), "is not a whole number from 0 to 18446744073709551614"),
        (("--receive", "8Q"), "--receive: 8Q is not a whole number from 0"),
        (("--duration", "abc"), "--duration: abc is not a number of seconds above 0"),
        (("--duration", "-1"), "--duration: -1 is not a number of seconds above 0"),
        (("--ip", "localhost"), "--ip localhost is no IP address"),
        (("--datagram", "1100"), "write --datagram 1200 to 16383"),
        (("--max-mtu", "20000"), "a datagram of 19972 bytes cannot be"),
        (("--direction", "upload", "--receive", "1"), "--receive has no place in"),
        (("--direction", "download", "--send", "1"), "--send has no place in"),
        (("--streams", "101"), "write at most 100, or bytes to move"),
        (("--streams", "51", "--direction", "both"), "write at most 50, or bytes to move"),
        (("--max-window", "600"), "600 is less than one datagram; give 1200 or more"),
        (("--hold",), "--hold waits for a start over --control"),
        (("--insecure", "--ca-file", "x"), "not allowed with"),
        (("--buffer_size", "1"), "unrecognized arguments: --buffer_size"),
    ],
)
def test_parse_settings_refuses_what_makes_no_sense_in_one_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    """
    One line that names option and value, and exit code 2.
    """
    with pytest.raises(SystemExit) as caught:
        parse_settings([*PEER, *words])

    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert message in error
    assert error.count("\n") == 1
