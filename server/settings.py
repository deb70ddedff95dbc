"""
What the server was asked to be, from its command line.

Options have s2n-quic-qns' words where it has them. Sizes are plain byte counts:
whoever starts the server has already turned `128k` into 128000.
"""

import argparse
import ipaddress
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from server.admission import AdmissionOptions, RetryName
from server.exits import ExitStatus
from server.options import LEAST_WINDOW_BYTES, CongestionControlName, EndpointOptions, PacingName
from server.udp.model import UdpOptions
from server.udp.ring import LARGEST_SEGMENT_COUNT

IPV4_OVERHEAD_BYTES: Final = 28  # 20 bytes of IPv4 header (RFC 791) + 8 of UDP (RFC 768)
IPV6_OVERHEAD_BYTES: Final = 48  # 40 bytes of IPv6 header (RFC 8200) + 8 of UDP
SMALLEST_DATAGRAM_BYTES: Final = 1200  # RFC 9000, Section 14
# aioquic writes a STREAM frame's length in 2 bytes; above about 16,400 bytes a
# transfer hangs without an error (measured with aioquic 1.7.2).
LARGEST_DATAGRAM_BYTES: Final = 16_383
_LARGEST_PORT: Final = 65_535
_LARGEST_BUFFER_BYTES: Final = 1024**3  # a typing error should not map the whole memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """
    Everything that was asked of one server.
    """

    ip: str
    port: int
    udp: UdpOptions
    endpoint: EndpointOptions
    datagram_bytes: int
    worker_count: int
    connection_limit: int
    """End after so many connections have closed; 0: never."""
    max_idle_timeout_s: float
    server_name: str
    certificate_path: Path | None
    private_key_path: Path | None
    qlog_directory: Path | None
    secrets_log_path: Path | None
    control_path: Path | None
    stats_path: Path | None
    has_stats: bool
    is_content_verified: bool
    is_probed: bool
    probe_directory: Path | None

    def describe(self) -> dict[str, Any]:
        """
        As it stands under `asked` in the server's description.
        """
        flat = asdict(self)
        udp, endpoint = flat.pop("udp"), flat.pop("endpoint")
        return {
            name: str(value) if isinstance(value, Path) else value
            for name, value in {**flat, **udp, **endpoint}.items()
        }


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage text in front of it."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(ExitStatus.USAGE, f"{self.prog}: {message}\n")


def parse_settings(argv: list[str] | None = None) -> ServerSettings:
    """
    Read the command line; one line and exit status 2 when it makes no sense.
    """
    parser = _make_parser()
    words = parser.parse_args(argv)
    try:
        address = ipaddress.ip_address(words.ip)
    except ValueError:
        parser.error(f"--ip {words.ip} is not an IP address; names are not looked up")
    overhead = IPV6_OVERHEAD_BYTES if address.version == 6 else IPV4_OVERHEAD_BYTES  # noqa: PLR2004
    datagram_bytes = _choose_datagram(parser, words, overhead)
    if (words.certificate is None) != (words.private_key is None):
        parser.error("--certificate and --private-key go together; give both or none")
    udp = UdpOptions(
        tx_ring_bytes=words.queue_send_buffer_size,
        rx_ring_bytes=words.queue_recv_buffer_size,
        max_mtu_bytes=words.max_mtu,
        max_segments=words.max_segments,
        is_gso_on=not words.disable_gso,
        is_gro_on=not words.disable_gro,
        send_buffer_bytes=words.socket_send_buffer,
        receive_buffer_bytes=words.socket_recv_buffer,
    )
    return ServerSettings(
        ip=str(address),
        port=words.port,
        udp=udp,
        endpoint=_endpoint_options(words),
        datagram_bytes=datagram_bytes,
        worker_count=words.workers,
        connection_limit=words.connections,
        max_idle_timeout_s=words.max_idle_timeout,
        server_name=words.server_name,
        certificate_path=words.certificate,
        private_key_path=words.private_key,
        qlog_directory=words.qlog,
        secrets_log_path=words.secrets_log,
        control_path=words.control,
        stats_path=words.stats_file,
        has_stats=words.stats,
        is_content_verified=words.verify_content,
        is_probed=words.probes == "on",
        probe_directory=words.probe_directory,
    )


def _choose_datagram(
    parser: argparse.ArgumentParser, words: argparse.Namespace, overhead_bytes: int
) -> int:
    carried_bytes: int = words.max_mtu - overhead_bytes
    if carried_bytes > LARGEST_DATAGRAM_BYTES:
        parser.error(
            f"--max-mtu {words.max_mtu} is more than aioquic can carry; "
            f"give at most {LARGEST_DATAGRAM_BYTES + overhead_bytes}"
        )
    if carried_bytes < SMALLEST_DATAGRAM_BYTES:
        parser.error(
            f"--max-mtu {words.max_mtu} is too small for QUIC; "
            f"give at least {SMALLEST_DATAGRAM_BYTES + overhead_bytes}"
        )
    datagram_bytes: int = carried_bytes if words.datagram is None else words.datagram
    if not SMALLEST_DATAGRAM_BYTES <= datagram_bytes <= carried_bytes:
        parser.error(
            f"--datagram {datagram_bytes} does not fit; write {SMALLEST_DATAGRAM_BYTES} "
            f"(RFC 9000, Section 14) to {carried_bytes} (--max-mtu {words.max_mtu} less "
            f"{overhead_bytes} bytes of headers)"
        )
    return datagram_bytes


def _endpoint_options(words: argparse.Namespace) -> EndpointOptions:
    pacing: PacingName = words.pacing
    congestion_control: CongestionControlName = words.cc
    retry: RetryName = words.retry
    return EndpointOptions(
        pacing=pacing,
        is_peer_limit_kept=words.strict_peer_limit,
        congestion_control=congestion_control,
        window_cap_bytes=words.max_window,
        window_budget_bytes=words.window_budget,
        admission=AdmissionOptions(
            most_connections=words.most_connections,
            most_half_open=words.most_half_open,
            handshake_limit_s=words.handshake_limit,
            retry=retry,
        ),
    )


def _make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="server",
        allow_abbrev=False,
        description="A QUIC perf server (ALPN perf) whose socket I/O can be traced.",
    )
    _add_network(parser)
    add = parser.add_argument
    add("--workers", type=_whole(1, 256), default=1, help="processes that share the port")
    add("--connections", type=_whole(0), default=0, help="end after so many have closed, 0: never")
    add("--stats", action="store_true", help="print the counters when it ends")
    add("--stats-file", type=Path, help="write the counters there when it ends, as JSON")
    add("--verify-content", action="store_true", help="compare every byte of uploads")
    add("--cc", choices=("reno", "cubic"), default="reno", help="congestion control")
    add("--max-window", type=_window, default=2_500_000, help="cap of a window, bytes, 0: none")
    add(
        "--window-budget",
        type=_whole(0),
        default=20_000_000,
        help="what the windows of a worker's connections share, bytes, 0: nothing is shared",
    )
    add(
        "--pacing",
        choices=("ring", "aioquic", "off"),
        default="ring",
        help="what holds a connection back: the TX ring, aioquic's pacer, or nothing",
    )
    add("--strict-peer-limit", action="store_true", help="keep to max_udp_payload_size")
    _add_admission(parser)
    add("--max-idle-timeout", type=_seconds, default=30.0, help="seconds of silence that end it")
    add("--certificate", type=Path, help="PEM, its chain after it (default: made at start)")
    add("--private-key", type=Path, help="PEM, without a password")
    add("--server-name", default="server.quiclab", help="name in the certificate made at start")
    add("--qlog", type=Path, help="folder for a qlog file of each connection")
    add("--secrets-log", type=Path, help="file for TLS secrets (SSLKEYLOGFILE)")
    add("--control", type=Path, help="path of the control socket to make")
    add("--probes", choices=("on", "off"), default="on", help="whether it can be traced")
    add("--probe-directory", type=Path, help="folder for the file that holds the probes")
    return parser


def _add_network(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    size = _whole(1, _LARGEST_BUFFER_BYTES)
    add("--ip", default="127.0.0.1", help="address to listen on")
    add("--port", type=_whole(0, _LARGEST_PORT), default=0, help="UDP port, 0: any")
    add("--queue-send-buffer-size", type=size, default=128 * 1024, help="TX ring, bytes")
    add("--queue-recv-buffer-size", type=size, default=8 * 1024 * 1024, help="RX ring, bytes")
    add("--max-mtu", type=_whole(1), default=9000, help="IP MTU; it sizes the rings' slots")
    add("--datagram", type=_whole(1), help="bytes of a full datagram (default: MTU less headers)")
    add(
        "--max-segments",
        type=_whole(1, LARGEST_SEGMENT_COUNT),
        default=10,
        help="datagrams a message may carry by GSO, 1: no GSO",
    )
    add("--disable-gso", action="store_true", help="send one datagram a message")
    add("--disable-gro", action="store_true", help="receive one datagram a message")
    add("--socket-send-buffer", type=size, help="SO_SNDBUF, bytes (default: the kernel's)")
    add("--socket-recv-buffer", type=size, help="SO_RCVBUF, bytes (default: the kernel's)")


def _add_admission(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    usual = AdmissionOptions()
    add(
        "--most-connections",
        type=_whole(1),
        default=usual.most_connections,
        help="open at once in one worker",
    )
    add(
        "--most-half-open",
        type=_whole(1),
        default=usual.most_half_open,
        help="of these, without a finished handshake",
    )
    add(
        "--handshake-limit",
        type=_seconds,
        default=usual.handshake_limit_s,
        help="seconds that a handshake may take",
    )
    add(
        "--retry",
        choices=("off", "auto", "always"),
        default=usual.retry,
        help="answer first datagrams by a Retry: never, when many handshakes wait, always",
    )


def _window(text: str) -> int:
    window_bytes = _whole(0)(text)
    if 0 < window_bytes < LEAST_WINDOW_BYTES:
        raise argparse.ArgumentTypeError(
            f"{text} is less than one datagram; give {LEAST_WINDOW_BYTES} or more, or 0"
        )
    return window_bytes


def _whole(least: int, most: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            span = f"from {least}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{text} is not a whole number {span}")
        return number

    return parse


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:  # noqa: PLR2004 - an hour of silence is nobody's intention
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds up to 3600")
    return seconds
