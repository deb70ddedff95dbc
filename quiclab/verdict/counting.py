"""
Rules about the three accounts: what was traced, what the server counted, what the client did.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from quiclab.accounting import account_pairs, stream_balances
from quiclab.evidence import Evidence, TracerEvidence
from quiclab.verdict.model import AGAIN, LOGS, Rule


def _counts_differ(evidence: Evidence) -> Iterator[str]:
    for tracer in evidence.tracers:
        for result in evidence.check_trace(tracer):
            if not result.is_equal:
                why = _find_full_map(evidence, tracer, result.check.map_name)
                yield f"{tracer.script.name}: {result.render()}{why}"


def _find_full_map(evidence: Evidence, tracer: TracerEvidence, map_name: str) -> str:
    """Name the map that dropped starts, where a count differs because of that; "" else."""
    for pair, figures in zip(tracer.script.pairs, account_pairs(evidence, tracer), strict=False):
        is_full = figures.outstanding_count >= figures.key_limit
        if is_full and map_name in {pair.matched, pair.unmatched}:
            return f"; {pair.scratch} was full (--map-keys)"
    return ""


def _verify_differs(evidence: Evidence) -> Iterator[str]:
    for comparison in evidence.comparisons:
        if not comparison.is_equal:
            yield f"{comparison.script} {comparison.map_name}: {comparison.difference}"


def _not_verified(evidence: Evidence) -> Iterator[str]:
    is_alone = evidence.tracer_kind != "bpftrace"
    if evidence.scenario.is_verified and evidence.is_load_started and is_alone:
        yield "--verify was asked for, and without bpftrace there is nothing to compare with"


def _not_recorded(evidence: Evidence) -> Iterator[str]:
    if evidence.is_recorded and evidence.is_load_started and evidence.recording is None:
        yield "the server's own recording is missing, so nothing verifies the maps"


def _starts_lost(evidence: Evidence) -> Iterator[str]:
    recording = evidence.recording
    if recording is not None and recording["lost_start_count"]:
        yield f"the recorder had no room for {recording['lost_start_count']:,} starts"


def _no_counters(evidence: Evidence) -> Iterator[str]:
    if evidence.is_load_started and evidence.counters is None:
        yield "the server's counters are missing, so nothing proves the trace complete"


def _unsettled(evidence: Evidence) -> Iterator[str]:
    counters = evidence.counters
    if evidence.is_load_complete and counters is not None and not counters.is_settled:
        yield (
            f"{counters.open_connection_count} connections were still open when the counters "
            "were read, so trace and counters may not cover the same time"
        )


def _client_failed(evidence: Evidence) -> Iterator[str]:
    result = evidence.client_result
    if result is not None and not result.ok and evidence.is_load_complete:
        yield f"the client did not get what it asked for: {result.reason or 'no reason given'}"


def _client_left_nothing(evidence: Evidence) -> Iterator[str]:
    if evidence.is_load_complete and evidence.client_result is None:
        yield "the client left no result"


def _streams_differ(evidence: Evidence) -> Iterator[str]:
    for balance in stream_balances(evidence):
        if not balance.is_kept:
            yield balance.render()


def _content_wrong(evidence: Evidence) -> Iterator[str]:
    counters = evidence.counters
    count = 0 if counters is None else counters.total.get("perf", {}).get("content_error_count", 0)
    if count:
        yield f"{count:,} pieces of uploaded data held other bytes than the client sent"


RULES: Final[Sequence[Rule]] = (
    Rule(
        "counts-differ",
        "invalid",
        _counts_differ,
        meaning="events of a map ≠ the server's counter (the script's `Check` lines)",
        remedy=AGAIN + "; report it with the run folder if it stays",
    ),
    Rule(
        "verify-differs",
        "invalid",
        _verify_differs,
        meaning="bpftrace's map ≠ the in-process recorder's (`--verify`)",
        remedy=AGAIN + "; report it with the run folder if it stays",
    ),
    Rule(
        "recording-missing",
        "invalid",
        _not_recorded,
        meaning="the recorder was asked to count, and its maps could not be fetched",
        remedy=AGAIN,
    ),
    Rule(
        "not-verified",
        "degraded",
        _not_verified,
        meaning="`--verify` was asked for, and `--tracer auto` had to do without bpftrace",
        remedy="mend what keeps bpftrace from tracing, or leave out `--verify`",
    ),
    Rule(
        "recorder-full",
        "degraded",
        _starts_lost,
        meaning="more starts waited for their end than the recorder holds (32,768 a map)",
        remedy="a smaller `--buffer`",
    ),
    Rule(
        "counters-missing",
        "invalid",
        _no_counters,
        meaning="the server did not tell its counters",
        remedy=LOGS,
    ),
    Rule(
        "client-failed",
        "invalid",
        _client_failed,
        meaning="not every byte asked for came, or came wrong; the client's reason",
        remedy="mend what the reason names; " + LOGS,
    ),
    Rule(
        "streams-differ",
        "invalid",
        _streams_differ,
        meaning="bytes of the streams: the client's figure ≠ the server's, or ≠ --bytes asked for",
        remedy=AGAIN + "; report it with the run folder if it stays",
    ),
    Rule(
        "content-wrong",
        "invalid",
        _content_wrong,
        meaning="pieces of uploaded data with other bytes than were sent (--verify-content)",
        remedy="report it with the run folder",
    ),
    Rule(
        "client-result-missing",
        "invalid",
        _client_left_nothing,
        meaning="the load is complete, and the client left no result",
        remedy=LOGS,
    ),
    Rule(
        "unsettled",
        "degraded",
        _unsettled,
        meaning="connections still open when trace and counters were read",
        remedy=AGAIN,
    ),
)
