"""
Rules about datagrams that went astray: dropped, refused, damaged, not ours.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from quiclab.accounting import find_recovery, find_udp_errors
from quiclab.evidence import Evidence
from quiclab.trace.script import find_counter
from quiclab.verdict.model import LOGS, Rule

# Not faults: the socket takes no more for now, or a signal came; nothing is lost.
_PATIENT_ERRORS: Final = frozenset({"EAGAIN", "EWOULDBLOCK", "EINTR"})
# Of what the server read and threw away: that these came is no fault of the run's own load.
_FOREIGN: Final = {
    "not_quic": "no QUIC",
    "not_initial": "of a connection that never began",
    "unsupported_version": "of an unknown version",
    "unknown_connection": "of an unknown connection",
}
_NEWCOMERS: Final = {
    "handshake_timeout_count": "whose handshake took too long",
    "invalid_token_count": "with a token that is not valid",
}
_FAULTS: Final = {
    "cut": "were cut off by a receive slot that was too small",
    "fault": "ended a connection by a fault of the server's",
}


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


def _udp_errors(evidence: Evidence) -> Iterator[str]:
    """Beyond the drops at the server's own sockets, which have a rule of their own."""
    after = evidence.costs_after
    if after is not None and not after.is_namespace_shared:
        yield from _render_udp(_unexplained(evidence), where="the server's network namespace")


def _udp_errors_around(evidence: Evidence) -> Iterator[str]:
    """A namespace that others share tells of them too."""
    after = evidence.costs_after
    if after is not None and after.is_namespace_shared:
        where = "this network namespace, which others share"
        yield from _render_udp(_unexplained(evidence), where=where)


def _unexplained(evidence: Evidence) -> Mapping[str, int]:
    """
    UDP errors of the namespace that are neither drops at known sockets nor told twice.

    SndbufErrors counts calls that found the queue full (udp(7)): what they did not
    take was sent later. InErrors holds the other two and whatever has no name.
    """
    errors = find_udp_errors(evidence)
    if errors is None:
        return {}
    result, after = evidence.client_result, evidence.costs_after
    known = evidence.server_drop_count
    if result is not None and after is not None and after.is_namespace_shared:
        known += result.socket_drop_count  # a client in containers has a namespace of its own
    named = errors["RcvbufErrors"] + errors["InCsumErrors"]
    return {
        "RcvbufErrors": max(0, errors["RcvbufErrors"] - known),
        "InCsumErrors": errors["InCsumErrors"],
        "InErrors": max(0, errors["InErrors"] - named),
    }


def _render_udp(errors: Mapping[str, int], *, where: str) -> Iterator[str]:
    told = ", ".join(f"{name} {count:,}" for name, count in errors.items() if count)
    if told:
        yield f"the kernel counted UDP errors in {where}: {told}"


def _sends_dropped(evidence: Evidence) -> Iterator[str]:
    counters = evidence.counters
    count = 0 if counters is None else find_counter(counters.total, "tx.datagram_dropped_count")
    if count:
        yield f"the kernel took {count:,} datagrams of the server never{_render_errors(evidence)}"


def _send_errors(evidence: Evidence) -> Iterator[str]:
    """Nothing was lost by them: what was refused was sent later."""
    counters = evidence.counters
    if counters is None or find_counter(counters.total, "tx.datagram_dropped_count"):
        return
    errors = _render_errors(evidence)
    if errors:
        yield f"calls of the server failed, and were made again{errors}"


def _render_errors(evidence: Evidence) -> str:
    """Errors of the server's calls by name, in brackets; "" when there was none."""
    parts = []
    for ring in ("tx", "rx"):
        total = {} if evidence.counters is None else evidence.counters.total.get(ring, {})
        errors = total.get("error_counts", {})
        parts += [
            f"{ring} {name} {count:,}"
            for name, count in sorted(errors.items())
            if count and name not in _PATIENT_ERRORS
        ]
    return f" ({', '.join(parts)})" if parts else ""


def _drops_by_server(evidence: Evidence) -> Mapping[str, int]:
    """What the server read and threw away, by cause."""
    counters = evidence.counters
    total = {} if counters is None else counters.total.get("rx", {})
    found: Mapping[str, int] = total.get("datagram_dropped_counts", {})
    return found


def _reads_dropped(evidence: Evidence) -> Iterator[str]:
    dropped = _drops_by_server(evidence)
    for name, words in _FAULTS.items():
        if dropped.get(name):
            yield f"{dropped[name]:,} datagrams {words}"


def _foreign(evidence: Evidence) -> Iterator[str]:
    dropped = _drops_by_server(evidence)
    told = [
        f"{count:,} {_FOREIGN.get(name, name)}"
        for name, count in sorted(dropped.items())
        if count and name not in _FAULTS
    ]
    if told:
        yield f"the server threw away datagrams that it could not use: {', '.join(told)}"


def _refused(evidence: Evidence) -> Iterator[str]:
    """Newcomers whom the server's bounds kept out: its own load's were let in, or it failed."""
    counters = evidence.counters
    total = {} if counters is None else counters.total.get("admission", {})
    refused: Mapping[str, int] = total.get("refused_counts", {})
    told = [f"{count:,} by its bound of {name}" for name, count in sorted(refused.items()) if count]
    for name, words in _NEWCOMERS.items():
        if total.get(name):
            told.append(f"{total[name]:,} {words}")
    if told:
        yield f"the server did not let newcomers in: {', '.join(told)}"


def _packets_lost(evidence: Evidence) -> Iterator[str]:
    for role, figures in find_recovery(evidence):
        lost, sent = figures.get("packet_lost_count", 0), figures.get("packet_sent_count", 0)
        timeouts = figures.get("probe_timeout_count", 0)
        if not lost:
            continue
        share = f" of {sent:,} sent" if sent else ""
        more = f", {timeouts:,} probe timeouts" if timeouts else ""
        again = figures.get("byte_lost_count")
        data = f" ({again:,} bytes)" if again else ""
        yield f"{role}: {lost:,} packets{share} declared lost{data}{more}"


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
        "udp-errors",
        "degraded",
        _udp_errors,
        meaning="growth of RcvbufErrors (beyond the drops above), InCsumErrors or InErrors in the "
        "server's own network namespace",
        remedy="--socket-buffer 8M; look for other programs in that namespace",
    ),
    Rule(
        "sends-dropped",
        "degraded",
        _sends_dropped,
        meaning="datagrams of the server that the kernel refused for good, with the errno",
        remedy="EMSGSIZE: a smaller --datagram; " + LOGS,
    ),
    Rule(
        "reads-dropped",
        "degraded",
        _reads_dropped,
        meaning="datagrams cut off by a receive slot, or that tripped a fault of the server's",
        remedy="report it with the run folder; " + LOGS,
    ),
    Rule(
        "udp-errors-around",
        "note",
        _udp_errors_around,
        meaning="the same growth in a namespace that others share, so it may be theirs",
        remedy="--runner docker gives the server a namespace of its own",
    ),
    Rule(
        "send-errors",
        "note",
        _send_errors,
        meaning="errors of the server's calls by name, ENOBUFS for one, after which it tried again",
    ),
    Rule(
        "foreign-datagrams",
        "note",
        _foreign,
        meaning="datagrams that the server read and could not use, by cause",
    ),
    Rule(
        "connections-refused",
        "note",
        _refused,
        meaning="connections that the server did not let in, by the bound that spoke",
    ),
    Rule(
        "packets-lost",
        "note",
        _packets_lost,
        meaning="QUIC packets that an end declared lost and what it sent again",
    ),
)
