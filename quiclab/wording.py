"""
The facts that a run tells while it works, one line each.
"""

from collections.abc import Sequence

from quiclab.answers import ClientResult, ServerDescription
from quiclab.evidence import TracerEvidence, TracerKind
from quiclab.runner.base import PlaceFacts
from quiclab.scenario import Scenario
from quiclab.units import render_bytes, render_duration, render_rate


def render_server(server: ServerDescription) -> str:
    """
    The server as it stands: workers, ring, datagrams, offloads, port.
    """
    granted = server.granted
    ring = granted.tx_ring
    slots = f"{render_count(ring.entries, 'message')} × {render_bytes(ring.payload_bytes)}"
    offloads = (("GSO", granted.gso), ("GRO", granted.gro), ("mmsg", granted.mmsg))
    return ", ".join(
        (
            render_count(len(server.workers), "worker"),
            f"TX ring {slots} for {render_bytes(ring.asked_bytes)} asked",
            f"datagrams of {render_bytes(granted.datagram_bytes)}",
            *(f"{name} {'on' if is_on else 'off'}" for name, is_on in offloads),
            f"port {server.address[1]}",
        )
    )


def render_tracers(
    tracers: Sequence[TracerEvidence],
    place: PlaceFacts,
    *,
    took_s: float,
    kind: TracerKind = "bpftrace",
    reason: str = "",
) -> str:
    """
    What traces, and how many of the expected probes are attached.

    Args:
        tracers: One a script.
        place: Where they trace; it names bpftrace's version.
        took_s: Until all were attached.
        kind: Who fills the maps.
        reason: Why that is not bpftrace, "" when it was asked for.
    """
    parts = []
    if kind == "in-process":
        parts = ["recorded in process, without bpftrace" + (f" ({reason})" if reason else "")]
    elif "bpftrace" in place.versions:
        parts = [f"bpftrace {place.versions['bpftrace']}"]
    for tracer in tracers:
        expected = tracer.script.expected_probe_count
        of = "" if expected is None else f" of {expected}"
        parts.append(f"{tracer.script.name}: {tracer.announced_probe_count}{of} probes")
    return f"{', '.join(parts)} in {render_duration(took_s)}"


def render_load(scenario: Scenario, result: ClientResult | None = None) -> str:
    """
    The load as asked, with the goodput once it is known.
    """
    parts = [
        scenario.direction,
        render_count(scenario.connection_count, "connection"),
    ]
    if scenario.stream_count > 1:
        parts.append(f"{scenario.stream_count:,} streams each")
    if result is None:
        if scenario.total_bytes is not None:
            parts.append(render_bytes(scenario.total_bytes))
        if scenario.duration_s is not None:
            parts.append(render_duration(scenario.duration_s))
        return ", ".join(parts)
    moved_bytes = result.bytes_received + result.bytes_sent
    parts.append(f"{render_bytes(moved_bytes)} in {render_duration(result.load_s)}")
    parts.append(render_rate(result.goodput_bytes_per_s))
    return ", ".join(parts)


def render_count(count: int, noun: str) -> str:
    """
    A count with its noun: `1 worker`, `2 workers`.
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
