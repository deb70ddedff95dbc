"""
Rules about the traces: was everything attached that should be, and is what it saw here?
"""

from collections.abc import Iterator, Sequence
from typing import Final

from quiclab.accounting import account_pairs, find_cost, find_skipped_count
from quiclab.evidence import Evidence, TracerEvidence
from quiclab.trace.complaints import parse_complaints
from quiclab.trace.script import MapNote
from quiclab.verdict.model import AGAIN, LOGS, Rule


def _probes_missing(evidence: Evidence) -> Iterator[str]:
    for tracer in evidence.tracers:
        expected, announced = tracer.script.expected_probe_count, tracer.announced_probe_count
        if expected is not None and announced is not None and announced != expected:
            yield f"{tracer.script.name}: {announced} of {expected} probes attached"


def _untraced(evidence: Evidence) -> Iterator[str]:
    if evidence.untraced:
        more = len(evidence.untraced) - 1
        yield (
            f"the server saw nobody trace {evidence.untraced[0]}"
            + (f" (and {more} more)" if more else "")
            + " when the load began"
        )


def _tracer_complains(evidence: Evidence) -> Iterator[str]:
    for tracer in evidence.tracers if evidence.bpftrace_roles else ():
        role = evidence.roles.get(tracer.role)
        for complaint in parse_complaints(role.stderr) if role is not None else ():
            if complaint.is_fault and not evidence.failure:
                yield f"{tracer.script.name}: bpftrace complains: {complaint.text}"


def _trace_missing(evidence: Evidence) -> Iterator[str]:
    if not evidence.is_load_started:
        return
    for tracer in evidence.tracers:
        if tracer.trace is None:
            yield f"{tracer.script.name}: no trace was left"
        elif evidence.is_cut_off(tracer):
            yield f"{tracer.script.name}: the trace is cut off, so its final maps are missing"


def _must_have_fired(evidence: Evidence) -> bool:
    """A load that failed before its client measured anything explains why nothing fired."""
    is_load_failed = bool(evidence.failure) and evidence.client_result is None
    return evidence.is_load_started and not is_load_failed


def _no_samples(evidence: Evidence) -> Iterator[str]:
    for tracer in evidence.tracers if _must_have_fired(evidence) else ():
        due = _due_maps(evidence, tracer, is_due=True)
        if not _is_silent(tracer) or evidence.is_cut_off(tracer):
            continue
        if due or not tracer.script.maps:
            probes = ", ".join(tracer.script.usdt_names) or "its probes"
            yield f"{tracer.script.name}: 0 samples; none of these fired: {probes}"


def _map_is_empty(evidence: Evidence) -> Iterator[str]:
    for tracer in evidence.tracers if _must_have_fired(evidence) else ():
        if _is_silent(tracer) or evidence.is_cut_off(tracer):
            continue
        for note in _empty_maps(tracer, _due_maps(evidence, tracer, is_due=True)):
            probes = ", ".join(tracer.script.probes_of(note.name))
            yield f"{tracer.script.name}: 0 samples in {note.name}; {probes} never fired"


def _other_direction(evidence: Evidence) -> Iterator[str]:
    for tracer in evidence.tracers if _must_have_fired(evidence) else ():
        for note in _empty_maps(tracer, _due_maps(evidence, tracer, is_due=False)):
            yield (
                f"{tracer.script.name}: 0 samples in {note.name}; "
                f"it fills with --direction {note.direction}"
            )


def _events_lost(evidence: Evidence) -> Iterator[str]:
    for tracer in evidence.tracers:
        if tracer.trace is not None and tracer.trace.lost_event_count:
            yield f"{tracer.script.name}: bpftrace lost {tracer.trace.lost_event_count:,} events"


def _lines_unparsed(evidence: Evidence) -> Iterator[str]:
    for tracer in evidence.tracers:
        if tracer.trace is not None and tracer.trace.unparsed and not tracer.trace.is_truncated:
            first = tracer.trace.unparsed[0]
            yield (
                f"{tracer.script.name}: {len(tracer.trace.unparsed)} lines of the trace could "
                f"not be read, the first is line {first.line_number} ({first.reason})"
            )


def _records_unknown(evidence: Evidence) -> Iterator[str]:
    for tracer in evidence.tracers:
        if tracer.trace is not None and tracer.trace.unknown:
            kinds = ", ".join(sorted({line.reason for line in tracer.trace.unknown}))
            yield f"{tracer.script.name}: records of a kind unknown here were kept raw: {kinds}"


def _helper_errors(evidence: Evidence) -> Iterator[str]:
    for tracer in evidence.tracers:
        for error in tracer.trace.helper_errors if tracer.trace is not None else ():
            helper = f" in {error.helper}" if error.helper else ""
            yield f"{tracer.script.name}: {error.count:,} × {error.message}{helper}"


def _key_limit(evidence: Evidence) -> Iterator[str]:
    limit = evidence.key_limit
    for tracer in evidence.tracers:
        full = tracer.trace.full_maps(key_limit=limit) if tracer.trace is not None else {}
        for name, count in full.items():
            yield (
                f"{tracer.script.name} {name}: {count:,} keys, and a map holds no more than "
                f"{limit:,}; keys may be missing (--map-keys sets the limit)"
            )


def _is_silent(tracer: TracerEvidence) -> bool:
    """No map holds anything, and nothing but BEGIN's line was printed."""
    trace = tracer.trace
    return (
        trace is not None
        and len(trace.printed) <= int(tracer.script.prints_at_begin)
        and not trace.printed_values
        and all(trace.event_count(name) == 0 for name in trace.maps)
    )


def _empty_maps(tracer: TracerEvidence, maps: Sequence[MapNote]) -> list[MapNote]:
    """Those that hold nothing, and of which no check says that they must."""
    trace = tracer.trace
    if trace is None:
        return []
    empty_by_promise = {
        check.map_name for check in tracer.script.checks if check.expected_count == 0
    }
    return [
        note
        for note in maps
        if trace.event_count(note.name) == 0 and note.name not in empty_by_promise
    ]


def _due_maps(evidence: Evidence, tracer: TracerEvidence, *, is_due: bool) -> list[MapNote]:
    """Maps that this direction fills, or the others."""
    direction = evidence.scenario.direction
    return [note for note in tracer.script.maps if note.is_filled_by(direction) == is_due]


def _starts_dropped(evidence: Evidence) -> Iterator[str]:
    """A full scratch map drops starts without a word; their ends then find none."""
    for tracer in evidence.tracers:
        for pair in account_pairs(evidence, tracer):
            if pair.outstanding_count >= pair.key_limit:
                yield (
                    f"{tracer.script.name} {pair.scratch}: {pair.outstanding_count:,} starts "
                    f"without an end, and the map keeps no more than {pair.key_limit:,}; "
                    "starts may have been dropped"
                )


def _ends_unmatched(evidence: Evidence) -> Iterator[str]:
    """Of a script that promises 0 of them, `counts-differ` tells."""
    for tracer in evidence.tracers:
        promised = {check.map_name for check in tracer.script.checks}
        for pair, figures in zip(
            tracer.script.pairs, account_pairs(evidence, tracer), strict=False
        ):
            if figures.unmatched_count and pair.unmatched not in promised:
                yield (
                    f"{tracer.script.name} {pair.unmatched}: {figures.unmatched_count:,} ends "
                    f"without a start, beside {figures.matched_count:,} with one"
                )


def _programs_skipped(evidence: Evidence) -> Iterator[str]:
    for tracer in evidence.tracers:
        count = find_skipped_count(evidence, tracer)
        if count:
            yield (
                f"{tracer.script.name}: the kernel skipped its programs at {count:,} events "
                "(recursion)"
            )


def _near_cost(evidence: Evidence) -> Iterator[str]:
    for tracer in evidence.tracers:
        cost = find_cost(evidence, tracer)
        for near in () if cost is None else cost.near:
            yield f"{tracer.script.name} {near.render()}"


def _recorded_in_process(evidence: Evidence) -> Iterator[str]:
    if evidence.tracer_kind == "in-process":
        why = f": {evidence.tracer_reason}" if evidence.tracer_reason else ""
        yield f"recorded in process, without bpftrace{why}"


RULES: Final[Sequence[Rule]] = (
    Rule(
        "probes-missing",
        "invalid",
        _probes_missing,
        meaning="probes that bpftrace announced ≠ attach points of the script",
        remedy="./invoke doctor names what this kernel lacks",
    ),
    Rule(
        "untraced",
        "invalid",
        _untraced,
        meaning="a worker saw nobody at probe sites of its own when the load began",
        remedy=AGAIN + "; if it stays, use fewer --workers",
    ),
    Rule(
        "tracer-complaint",
        "degraded",
        _tracer_complains,
        meaning="bpftrace wrote an error, or a warning that something is missing, to stderr",
        remedy="./invoke doctor names what this kernel lacks; " + LOGS,
    ),
    Rule(
        "trace-missing",
        "invalid",
        _trace_missing,
        meaning="a tracer left no trace, or one without its final maps",
        remedy=AGAIN,
    ),
    Rule(
        "no-samples",
        "invalid",
        _no_samples,
        meaning="0 events in all maps of a script that this direction fills",
        remedy="choose a script and a --direction that meet; see bpftrace/README.md",
    ),
    Rule(
        "events-lost",
        "degraded",
        _events_lost,
        meaning="events that bpftrace lost on the way from the kernel",
        remedy="print less in the script, or set BPFTRACE_PERF_RB_PAGES higher",
    ),
    Rule(
        "map-empty",
        "degraded",
        _map_is_empty,
        meaning="0 events in one map that this direction fills: a probe attached and never fired",
        remedy="look whether the load does what the probe is about",
    ),
    Rule(
        "map-full",
        "degraded",
        _key_limit,
        meaning="keys of a map = its limit: further keys were dropped without a word",
        remedy="--map-keys N, above the number of keys",
    ),
    Rule(
        "starts-dropped",
        "degraded",
        _starts_dropped,
        meaning="starts without an end ≥ the keys of the map that keeps starts",
        remedy="--map-keys N, above the messages that all rings hold",
    ),
    Rule(
        "ends-unmatched",
        "degraded",
        _ends_unmatched,
        meaning="ends without a start, in a script that has no `Check` of them",
        remedy="--map-keys N; start the tracer before the load",
    ),
    Rule(
        "programs-skipped",
        "degraded",
        _programs_skipped,
        meaning="events at which the kernel skipped a program (recursion misses, bpf(2))",
        remedy="trace with fewer scripts at once",
    ),
    Rule(
        "helper-error",
        "degraded",
        _helper_errors,
        meaning="reports of a BPF helper that failed",
        remedy="look up the helper in bpf-helpers(7)",
    ),
    Rule(
        "lines-unparsed",
        "degraded",
        _lines_unparsed,
        meaning="lines of the trace that are no JSON or no usable record; kept in trace.jsonl",
        remedy="try another version of bpftrace",
    ),
    Rule(
        "other-direction",
        "note",
        _other_direction,
        meaning="0 events in a map that only another --direction fills",
    ),
    Rule(
        "record-unknown",
        "note",
        _records_unknown,
        meaning="records of a kind that only a newer bpftrace writes; kept in trace.jsonl",
    ),
    Rule(
        "near-cost",
        "note",
        _near_cost,
        meaning="measured times below twice the cost of a hit; how many of how many",
        remedy="read them as an upper bound, or use message-wait, which the server measures",
    ),
    Rule(
        "in-process",
        "note",
        _recorded_in_process,
        meaning="the server's own recorder filled the maps, not bpftrace; why",
    ),
)
