"""
Rules about what the machine gave: buffers, offloads, CPU.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from quiclab.accounting import find_figure
from quiclab.evidence import Evidence
from quiclab.runner.base import CLIENT, SERVER
from quiclab.scenario import IPV4_OVERHEAD_BYTES, IPV6_OVERHEAD_BYTES
from quiclab.verdict.model import LOGS, Rule


def _degradations(evidence: Evidence) -> Iterator[str]:
    found = [] if evidence.server is None else [(SERVER, d) for d in evidence.server.degradations]
    if evidence.counters is not None:
        found += [(SERVER, d) for d in evidence.counters.degradations]
    if evidence.client_result is not None:
        found += [(CLIENT, d) for d in evidence.client_result.degradations]
    said = dict.fromkeys(
        f"{role}: {d.what} off: {d.reason}" + (f"; {d.effect}" if d.effect else "")
        for role, d in found
    )
    yield from said


def _workers_missing(evidence: Evidence) -> Iterator[str]:
    server, asked_count = evidence.server, evidence.scenario.worker_count
    if server is not None and len(server.workers) < asked_count:
        yield f"{len(server.workers)} of {asked_count} workers serve"


def _over_mtu(evidence: Evidence) -> Iterator[str]:
    server, client = evidence.server, evidence.client
    if server is None or client is None:
        return
    mtu_bytes = find_figure(client, "path_mtu_bytes")
    headers_bytes = IPV6_OVERHEAD_BYTES if ":" in server.address[0] else IPV4_OVERHEAD_BYTES
    full_bytes = server.granted.datagram_bytes + headers_bytes
    if mtu_bytes is not None and full_bytes > mtu_bytes:
        yield (
            f"a full datagram takes {full_bytes:,} bytes with its headers, and the path's MTU "
            f"is {mtu_bytes:,}"
        )


def _bottleneck(evidence: Evidence) -> Iterator[str]:
    result = evidence.client_result
    if result is not None and result.is_bottleneck:
        yield result.bottleneck_note or "the client may be what limits"


def _clamped(evidence: Evidence) -> Iterator[str]:
    for grant in evidence.grants:
        if grant.is_short:
            reason = f": {grant.reason}" if grant.reason else ""
            yield f"{grant.what} {grant.granted} of {grant.asked} asked{reason}"


RULES: Final[Sequence[Rule]] = (
    Rule(
        "workers-missing",
        "degraded",
        _workers_missing,
        meaning="workers of the server < --workers",
        remedy=LOGS,
    ),
    Rule(
        "over-mtu",
        "degraded",
        _over_mtu,
        meaning="bytes of a full datagram with its headers > the path's MTU, so the kernel cuts it",
        remedy="--datagram N, at most the path's MTU less 28 (IPv4) or 48 (IPv6)",
    ),
    Rule(
        "degraded-io",
        "degraded",
        _degradations,
        meaning="GSO, GRO or sendmmsg was given up, once and for good; the errno that forced it",
        remedy="--no-gso or --no-gro, if that is what you want to measure",
    ),
    Rule(
        "clamped",
        "note",
        _clamped,
        meaning="granted < asked; the row `short` holds reason and fix",
    ),
    Rule(
        "client-busy",
        "note",
        _bottleneck,
        meaning="the load may be what limits, not the server",
    ),
)
