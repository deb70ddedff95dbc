"""
The client's command line. Sizes are bytes; words mean the same as in the server's.
"""

import argparse
import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client.plan import Direction
from client.session import OPEN_STREAM_LIMIT
from server.options import LEAST_WINDOW_BYTES
from server.perf import ENDLESS
from server.settings import (
    IPV4_OVERHEAD_BYTES,
    IPV6_OVERHEAD_BYTES,
    LARGEST_DATAGRAM_BYTES,
    SMALLEST_DATAGRAM_BYTES,
)
from server.udp.ring import LARGEST_SEGMENT_COUNT

MEBIBYTE: Final = 1024 * 1024
DEFAULT_DURATION_S: Final = 5.0
_LARGEST_PORT: Final = 65_535
_LARGEST_BUFFER_BYTES: Final = 1024**3  # setsockopt takes 31 bits; the server's limit too


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """
    What the client was told. Fields are named as their options, with units.
    """

    ip: str
    port: int
    server_name: str
    ca_path: Path | None
    is_insecure: bool
    connection_count: int
    stream_count: int
    direction: Direction
    receive_bytes: int | None
    send_bytes: int | None
    duration_s: float | None
    is_content_verified: bool
    max_mtu_bytes: int
    datagram_bytes: int
    max_segments: int
    is_gso_on: bool
    is_gro_on: bool
    socket_buffer_bytes: int
    max_window_bytes: int
    max_idle_timeout_s: float
    control_path: Path | None
    is_held: bool
    output_path: Path | None


def parse_settings(argv: Sequence[str]) -> Settings:
    """
    Read the command line.

    Raises:
        SystemExit: 2, after one line on stderr, when it makes no sense.
    """
    parser = _make_parser()
    words = parser.parse_args(argv)
    version = _parse_ip_version(parser, words.ip)
    overhead_bytes = IPV4_OVERHEAD_BYTES if version == 4 else IPV6_OVERHEAD_BYTES  # noqa: PLR2004
    datagram_bytes = words.datagram or max(SMALLEST_DATAGRAM_BYTES, words.max_mtu - overhead_bytes)
    if not SMALLEST_DATAGRAM_BYTES <= datagram_bytes <= LARGEST_DATAGRAM_BYTES:
        parser.error(
            f"a datagram of {datagram_bytes} bytes cannot be; write --datagram "
            f"{SMALLEST_DATAGRAM_BYTES} to {LARGEST_DATAGRAM_BYTES}"
        )
    direction, duration_s = _choose_load(parser, words)
    return Settings(
        ip=words.ip,
        port=words.port,
        server_name=words.server_name,
        ca_path=words.ca_file,
        is_insecure=words.insecure,
        connection_count=words.connections,
        stream_count=words.streams,
        direction=direction,
        receive_bytes=words.receive,
        send_bytes=words.send,
        duration_s=duration_s,
        is_content_verified=words.verify_content,
        max_mtu_bytes=words.max_mtu,
        datagram_bytes=datagram_bytes,
        max_segments=words.max_segments,
        is_gso_on=not words.disable_gso,
        is_gro_on=not words.disable_gro,
        socket_buffer_bytes=words.socket_buffer,
        max_window_bytes=words.max_window,
        max_idle_timeout_s=words.max_idle_timeout,
        control_path=words.control,
        is_held=words.hold,
        output_path=words.output,
    )


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage text in front of it."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(2, f"{self.prog}: {message}\n")


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="client",
        allow_abbrev=False,
        description="Loads a QUIC perf server, checks what came back, and writes how it went.",
    )
    add = parser.add_argument
    add("--ip", required=True, help="address of the server")
    add("--port", required=True, type=_up_to(_LARGEST_PORT), help="UDP port of the server")
    add("--server-name", default="server.quiclab", help="name asked of its certificate")
    trust = parser.add_mutually_exclusive_group()
    trust.add_argument("--ca-file", type=Path, help="certificates to trust, PEM")
    trust.add_argument("--insecure", action="store_true", help="trust any certificate")
    add("--connections", type=_count, default=1, help="connections, each on a port of its own")
    add("--streams", type=_count, default=1, help="streams on each connection (both: of a kind)")
    add("--direction", choices=("download", "upload", "both"), help="default: by what is asked")
    add("--receive", type=_amount, help="bytes to download in all, shared out over the streams")
    add("--send", type=_amount, help="bytes to upload in all, shared out over the streams")
    add("--duration", type=_seconds, help="seconds; with bytes: whichever is reached first")
    add("--verify-content", action="store_true", help="compare every byte, not only lengths")
    add("--max-mtu", type=_count, default=9000, help="IP MTU")
    add("--datagram", type=_count, help="bytes of a full datagram (default: MTU less headers)")
    add(
        "--max-segments",
        type=_up_to(LARGEST_SEGMENT_COUNT),
        default=10,
        help="datagrams a message may carry",
    )
    add("--disable-gso", action="store_true", help="send one datagram a message")
    add("--disable-gro", action="store_true", help="receive one datagram a message")
    add(
        "--socket-buffer",
        type=_up_to(_LARGEST_BUFFER_BYTES),
        default=8 * MEBIBYTE,
        help="SO_RCVBUF and SO_SNDBUF",
    )
    add("--max-window", type=_window, default=2_500_000, help="congestion window cap, 0 for none")
    add("--max-idle-timeout", type=_seconds, default=30.0, help="seconds of silence that end it")
    add("--control", type=Path, help="path of the control socket to make")
    add("--hold", action="store_true", help="send nothing until told to start")
    add("--output", type=Path, help="file for the result (default: stdout)")
    return parser


def _parse_ip_version(parser: argparse.ArgumentParser, ip: str) -> int:
    try:
        return ipaddress.ip_address(ip).version
    except ValueError:
        parser.error(f"--ip {ip} is no IP address; names are not resolved here")


def _choose_load(
    parser: argparse.ArgumentParser, words: argparse.Namespace
) -> tuple[Direction, float | None]:
    """
    Which kinds of stream, and for how long, from what was asked for.
    """
    asked: dict[tuple[bool, bool], Direction] = {
        (True, False): "download",
        (False, True): "upload",
        (True, True): "both",
        (False, False): "download",
    }
    direction: Direction = (
        words.direction or asked[words.receive is not None, words.send is not None]
    )
    if direction == "download" and words.send is not None:
        parser.error("--send has no place in --direction download; write upload or both")
    if direction == "upload" and words.receive is not None:
        parser.error("--receive has no place in --direction upload; write download or both")
    is_endless = (direction != "upload" and words.receive is None) or (
        direction != "download" and words.send is None
    )
    kinds = 2 if direction == "both" else 1
    if is_endless and words.streams * kinds > OPEN_STREAM_LIMIT:
        parser.error(
            f"--streams {words.streams} without an end are more than a server lets be open; "
            f"write at most {OPEN_STREAM_LIMIT // kinds}, or bytes to move"
        )
    if words.hold and words.control is None:
        parser.error("--hold waits for a start over --control, which was not given")
    duration_s: float | None = words.duration
    return direction, DEFAULT_DURATION_S if is_endless and duration_s is None else duration_s


def _count(text: str) -> int:
    return _whole(text, least=1)


def _window(text: str) -> int:
    window_bytes = _size(text)
    if 0 < window_bytes < LEAST_WINDOW_BYTES:
        raise argparse.ArgumentTypeError(
            f"{text} is less than one datagram; give {LEAST_WINDOW_BYTES} or more, or 0"
        )
    return window_bytes


def _size(text: str) -> int:
    return _whole(text, least=0)


def _amount(text: str) -> int:
    return _whole(text, least=0, most=ENDLESS - 1)  # the header's largest number has no end


def _up_to(most: int) -> Callable[[str], int]:
    return lambda text: _whole(text, least=1, most=most)


def _whole(text: str, *, least: int, most: int | None = None) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < least or (most is not None and number > most):
        span = f"from {least}" if most is None else f"from {least} to {most}"
        raise argparse.ArgumentTypeError(f"{text} is not a whole number {span}")
    return number


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return seconds
