"""
Rules about what the machine gave: buffers, offloads, CPU.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from quiclab.evidence import Evidence
from quiclab.runner.base import CLIENT, SERVER
from quiclab.verdict.model import Rule


def _server_drops(evidence: Evidence) -> Iterator[str]:
    count = evidence.server_drop_count
    if count:
        yield f"the kernel dropped {count:,} datagrams at the server's full receive buffer"


def _client_drops(evidence: Evidence) -> Iterator[str]:
    result = evidence.client_result
    if result is not None and result.socket_drop_count:
        yield (
            f"the kernel dropped {result.socket_drop_count:,} datagrams at the client's full "
            "receive buffer"
        )


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
        "server-drops",
        "degraded",
        _server_drops,
        meaning="datagrams that the kernel dropped at the server's own sockets, which were full",
        remedy="--socket-buffer 8M, or fewer --connections",
    ),
    Rule(
        "client-drops",
        "degraded",
        _client_drops,
        meaning="datagrams that the kernel dropped at the client's own sockets, which were full",
        remedy="sudo sysctl net.core.rmem_max=8388608",
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
