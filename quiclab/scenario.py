"""
A scenario: what was asked of one run, in the words of the command line.

Field names carry units; their aliases are the spelling of the command line,
which is also the spelling in the manifest and in scenario files.
"""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from quiclab.errors import UsageError

IPV4_OVERHEAD_BYTES = 28  # 20 bytes of IPv4 header (RFC 791) + 8 of UDP (RFC 768)
IPV6_OVERHEAD_BYTES = 48  # 40 bytes of IPv6 header (RFC 8200) + 8 of UDP
SMALLEST_DATAGRAM_BYTES = 1200  # RFC 9000, Section 14
# aioquic writes a STREAM frame's length in 2 bytes; above about 16,400 bytes a
# transfer hangs without an error (measured with aioquic 1.7.2).
LARGEST_DATAGRAM_BYTES = 16_383
LARGEST_SEGMENT_COUNT = 64  # the original's limit; the kernel's own is 128 (UDP_MAX_SEGMENTS)
# What server and client take (their settings); a test holds these against them.
LARGEST_BUFFER_BYTES = 1024**3
LARGEST_WORKER_COUNT = 256
OPEN_STREAM_LIMIT = 100
"""Streams that a connection may have open at once; endless ones are all open."""

Direction = Literal["download", "upload", "both"]
RunnerName = Literal["auto", "docker", "local"]
TracerName = Literal["bpftrace", "in-process", "auto", "none"]


class Scenario(BaseModel):
    """
    What was asked of one run. Nothing in it was granted yet.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True
    )

    scripts: tuple[str, ...] = Field(alias="script", min_length=1)
    """Shipped names or paths; more than one are traced in the same run, a tracer each."""
    tx_buffer_bytes: int = Field(default=128_000, alias="buffer", gt=0, le=LARGEST_BUFFER_BYTES)
    rx_buffer_bytes: int = Field(
        default=8 * 1024 * 1024, alias="rx-buffer", gt=0, le=LARGEST_BUFFER_BYTES
    )
    socket_buffer_bytes: int | None = Field(
        default=None, alias="socket-buffer", gt=0, le=LARGEST_BUFFER_BYTES
    )
    max_mtu_bytes: int = Field(default=9000, alias="max-mtu", ge=1228)
    asked_datagram_bytes: int | None = Field(default=None, alias="datagram")
    max_segments: int = Field(default=10, alias="max-segments", ge=1, le=LARGEST_SEGMENT_COUNT)
    is_gso_on: bool = Field(default=True, alias="gso")
    is_gro_on: bool = Field(default=True, alias="gro")
    direction: Direction = "download"
    duration_s: float | None = Field(default=5.0, alias="duration", gt=0)
    total_bytes: int | None = Field(default=None, alias="bytes", gt=0)
    connection_count: int = Field(default=1, alias="connections", ge=1)
    stream_count: int = Field(default=1, alias="streams", ge=1)
    worker_count: int = Field(default=1, alias="workers", ge=1, le=LARGEST_WORKER_COUNT)
    is_content_verified: bool = Field(default=False, alias="verify-content")
    runner: RunnerName = "auto"
    tracer: TracerName = "bpftrace"
    """Who fills the maps; "none": nobody, as in the untraced twin of `--overhead`."""
    is_verified: bool = Field(default=False, alias="verify")
    """The in-process recorder fills the same maps beside bpftrace, and both are compared."""
    are_programs_timed: bool = Field(default=False, alias="time-programs")
    """The kernel counts and times the runs of each BPF program, which makes a hit dearer."""
    label: str = ""
    map_key_limit: int | None = Field(default=None, alias="map-keys", gt=0)
    """BPFTRACE_MAP_KEYS_MAX for the tracers; None leaves bpftrace's own default (4096)."""
    is_privileged: bool = Field(default=False, alias="privileged")
    has_host_headers: bool = Field(default=False, alias="host-headers")
    """Whether the tracer's container sees the kernel headers of the engine's host."""

    @property
    def datagram_bytes(self) -> int:
        """
        Bytes of a full QUIC datagram: as asked, else what the MTU carries over IPv4.
        """
        if self.asked_datagram_bytes is not None:
            return self.asked_datagram_bytes
        return max(SMALLEST_DATAGRAM_BYTES, self.max_mtu_bytes - IPV4_OVERHEAD_BYTES)

    @model_validator(mode="after")
    def _check_sizes_fit(self) -> Self:
        carried_bytes = max(SMALLEST_DATAGRAM_BYTES, self.max_mtu_bytes - IPV4_OVERHEAD_BYTES)
        if carried_bytes > LARGEST_DATAGRAM_BYTES:
            most = LARGEST_DATAGRAM_BYTES + IPV4_OVERHEAD_BYTES
            raise UsageError(
                f"--max-mtu {self.max_mtu_bytes} is more than aioquic can carry; "
                f"give at most {most}"
            )
        if not SMALLEST_DATAGRAM_BYTES <= self.datagram_bytes <= carried_bytes:
            raise UsageError(
                f"--datagram {self.datagram_bytes} does not fit; write "
                f"{SMALLEST_DATAGRAM_BYTES} (RFC 9000, Section 14) to {carried_bytes} "
                f"(--max-mtu {self.max_mtu_bytes} less {IPV4_OVERHEAD_BYTES} bytes of headers)"
            )
        return self

    @model_validator(mode="after")
    def _check_somebody_is_verified(self) -> Self:
        if self.is_verified and self.tracer in {"in-process", "none"}:
            raise UsageError(
                f"--verify compares bpftrace with the in-process recorder, and --tracer "
                f"{self.tracer} leaves bpftrace out; give one of the two"
            )
        return self

    @model_validator(mode="after")
    def _check_streams_may_be_open(self) -> Self:
        most = OPEN_STREAM_LIMIT // (2 if self.direction == "both" else 1)
        if self.total_bytes is None and self.stream_count > most:
            raise UsageError(
                f"--streams {self.stream_count} without an end cannot all be open at once; "
                f"write at most {most}, or --bytes"
            )
        return self
