"""
Can this run be trusted? Every reason it might not be is one row of `RULES`.

A rule looks at the evidence and says nothing, or one sentence per fault, with
the figure. A note changes nothing; "degraded" leaves a complete run with a
reservation; after "invalid" the figures must not be used.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from quiclab.errors import ExitCode
from quiclab.evidence import Evidence, TracerEvidence
from quiclab.runner.base import CLIENT, SERVER
from quiclab.trace.complaints import parse_complaints
from quiclab.trace.events import DEFAULT_MAP_KEY_LIMIT
from quiclab.trace.script import CheckResult, MapNote, evaluate_checks

Severity = Literal["note", "degraded", "invalid"]
Word = Literal["ok", "degraded", "invalid"]

_EXIT_CODES: Final[dict[Word, ExitCode]] = {
    "ok": ExitCode.OK,
    "degraded": ExitCode.DEGRADED,
    "invalid": ExitCode.INVALID,
}
_WORST_FIRST: Final[Sequence[Severity]] = ("invalid", "degraded", "note")


class Finding(BaseModel):
    """
    One rule that spoke.

    Args:
        rule: Its name, stable, for programs.
        severity: What it does to the run.
        text: One sentence with the figure, for people.
    """

    model_config = ConfigDict(frozen=True)

    rule: str
    severity: Severity
    text: str


class Verdict(BaseModel):
    """
    What a reader may do with the figures.

    Args:
        word: "ok", "degraded" (complete, with a reservation) or "invalid" (don't use it).
        summary: One line: why.
        findings: What spoke, the worst first; notes do not change the word.
    """

    model_config = ConfigDict(frozen=True)

    word: Word
    summary: str
    findings: Sequence[Finding] = ()

    @property
    def exit_code(self) -> ExitCode:
        """What the process answers with for this run."""
        return _EXIT_CODES[self.word]


@dataclass(frozen=True, slots=True)
class Rule:
    """
    One reason for doubt.

    Args:
        name: Stable, for programs.
        severity: What it does to the run when it speaks.
        look: Yields one sentence per fault found.
    """

    name: str
    severity: Severity
    look: Callable[[Evidence], Iterator[str]]


def judge(evidence: Evidence) -> Verdict:
    """
    Ask every rule.
    """
    findings = [
        Finding(rule=rule.name, severity=rule.severity, text=text)
        for rule in RULES
        for text in rule.look(evidence)
    ]
    findings.sort(key=lambda finding: _WORST_FIRST.index(finding.severity))
    faults = [finding for finding in findings if finding.severity != "note"]
    if not faults:
        return Verdict(word="ok", summary=_render_trust(evidence), findings=findings)
    worst = faults[0]
    word: Word = "invalid" if worst.severity == "invalid" else "degraded"
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return Verdict(word=word, summary=worst.text + more, findings=findings)


def _render_trust(evidence: Evidence) -> str:
    """What a run that nothing speaks against is trusted for."""
    attached_count = sum(t.announced_probe_count or 0 for t in evidence.tracers)
    parts = [f"{attached_count} of {attached_count} probes", "nothing lost"]
    counted = {
        result.check.counter: result.counted or 0
        for tracer in evidence.tracers
        for result in _checks(evidence, tracer)
        if result.check.counter is not None
    }
    if counted:
        total = f"{sum(counted.values()):,}"
        parts.append(f"{total} events traced = {total} counted by the server")
    return ", ".join(parts)


def _checks(evidence: Evidence, tracer: TracerEvidence) -> Sequence[CheckResult]:
    """Each promise of the script, held against the server's counters."""
    if tracer.trace is None or evidence.counters is None or _is_cut_off(evidence, tracer):
        return ()
    return evaluate_checks(tracer.script, tracer.trace, evidence.counters.total)


def _ended_early(evidence: Evidence) -> Iterator[str]:
    if evidence.failure:
        yield evidence.failure


def _interrupted(evidence: Evidence) -> Iterator[str]:
    if evidence.interruption and not evidence.is_load_complete:
        yield f"ended by {evidence.interruption} before the load was complete"


def _interrupted_late(evidence: Evidence) -> Iterator[str]:
    if evidence.interruption and evidence.is_load_complete:
        yield f"{evidence.interruption} came when the load was already complete"


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
    for tracer in evidence.tracers:
        role = evidence.roles.get(tracer.role)
        for complaint in parse_complaints(role.stderr) if role is not None else ():
            if complaint.is_fault and not evidence.failure:
                yield f"{tracer.script.name}: bpftrace complains: {complaint.text}"


def _is_cut_off(evidence: Evidence, tracer: TracerEvidence) -> bool:
    """Without its final maps a trace proves nothing of what fired, nor that nothing did."""
    role = evidence.roles.get(tracer.role)
    is_truncated = tracer.trace is not None and tracer.trace.is_truncated
    return is_truncated or (role is not None and role.is_killed_by_lab)


def _trace_missing(evidence: Evidence) -> Iterator[str]:
    if not evidence.is_load_started:
        return
    for tracer in evidence.tracers:
        if tracer.trace is None:
            yield f"{tracer.script.name}: no trace was left"
        elif _is_cut_off(evidence, tracer):
            yield f"{tracer.script.name}: the trace is cut off, so its final maps are missing"


def _counts_differ(evidence: Evidence) -> Iterator[str]:
    for tracer in evidence.tracers:
        for result in _checks(evidence, tracer):
            if not result.is_equal:
                yield f"{tracer.script.name}: {result.render()}"


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


def _no_samples(evidence: Evidence) -> Iterator[str]:
    for tracer in evidence.tracers if evidence.is_load_started else ():
        due = _due_maps(evidence, tracer, is_due=True)
        if not _is_silent(tracer) or _is_cut_off(evidence, tracer):
            continue
        if due or not tracer.script.maps:
            probes = ", ".join(tracer.script.usdt_names) or "its probes"
            yield f"{tracer.script.name}: 0 samples; none of these fired: {probes}"


def _is_silent(tracer: TracerEvidence) -> bool:
    """No map holds anything, and nothing but BEGIN's line was printed."""
    trace = tracer.trace
    return (
        trace is not None
        and len(trace.printed) <= int(tracer.script.prints_at_begin)
        and not trace.printed_values
        and all(trace.event_count(name) == 0 for name in trace.maps)
    )


def _map_is_empty(evidence: Evidence) -> Iterator[str]:
    for tracer in evidence.tracers if evidence.is_load_started else ():
        if _is_silent(tracer) or _is_cut_off(evidence, tracer):
            continue
        for note in _empty_maps(tracer, _due_maps(evidence, tracer, is_due=True)):
            probes = ", ".join(tracer.script.probes_of(note.name))
            yield f"{tracer.script.name}: 0 samples in {note.name}; {probes} never fired"


def _other_direction(evidence: Evidence) -> Iterator[str]:
    for tracer in evidence.tracers if evidence.is_load_started else ():
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
    limit = evidence.scenario.map_key_limit or DEFAULT_MAP_KEY_LIMIT
    for tracer in evidence.tracers:
        full = tracer.trace.full_maps(key_limit=limit) if tracer.trace is not None else {}
        for name, count in full.items():
            yield (
                f"{tracer.script.name} {name}: {count:,} keys, and a map holds no more than "
                f"{limit:,}; keys may be missing (--map-keys sets the limit)"
            )


def _client_failed(evidence: Evidence) -> Iterator[str]:
    result = evidence.client_result
    if result is not None and not result.ok and evidence.is_load_complete:
        yield f"the client did not get what it asked for: {result.reason or 'no reason given'}"


def _upload_differs(evidence: Evidence) -> Iterator[str]:
    """What the client sent and got acknowledged, the server must have handed to its reader."""
    result, counters = evidence.client_result, evidence.counters
    if result is None or counters is None or not (result.ok and counters.is_settled):
        return
    received_bytes = counters.total.get("perf", {}).get("upload_byte_count")
    if received_bytes is not None and received_bytes != result.bytes_sent:
        yield f"the client sent {result.bytes_sent:,} B and the server read {received_bytes:,} B"


def _content_wrong(evidence: Evidence) -> Iterator[str]:
    counters = evidence.counters
    count = 0 if counters is None else counters.total.get("perf", {}).get("content_error_count", 0)
    if count:
        yield f"{count:,} pieces of uploaded data held other bytes than the client sent"


def _client_left_nothing(evidence: Evidence) -> Iterator[str]:
    if evidence.is_load_complete and evidence.client_result is None:
        yield "the client left no result"


def _bad_exits(evidence: Evidence) -> Iterator[str]:
    result = evidence.client_result
    is_clients_said = result is not None and not result.ok
    for role, facts in evidence.roles.items():
        if facts.is_killed_by_lab:
            yield f"{role} did not end when asked and was killed"
        elif evidence.failure or evidence.interruption or (role == CLIENT and is_clients_said):
            continue  # said by another rule
        elif facts.exit_status:
            yield f"{role} exited {facts.exit_status}"


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


def _not_collected(evidence: Evidence) -> Iterator[str]:
    yield from (f"could not be collected: {what}" for what in evidence.missing)


RULES: Final[Sequence[Rule]] = (
    # name                  severity    speaks when
    Rule("ended-early", "invalid", _ended_early),  # the run could not be completed
    Rule("interrupted", "invalid", _interrupted),  # INT or TERM came before the load's end
    Rule("interrupted-late", "note", _interrupted_late),  # ... or after it
    Rule("probes-missing", "invalid", _probes_missing),  # attached ≠ expected
    Rule("untraced", "invalid", _untraced),  # announced, but a worker's own probe sites say no
    Rule("tracer-complaint", "degraded", _tracer_complains),  # a probe counted and not attached
    Rule("trace-missing", "invalid", _trace_missing),  # none, or without its final maps
    Rule("counts-differ", "invalid", _counts_differ),  # a map's events ≠ the server's counter
    Rule("counters-missing", "invalid", _no_counters),  # nothing to compare with
    Rule("no-samples", "invalid", _no_samples),  # nothing fired that should
    Rule("client-failed", "invalid", _client_failed),  # not every byte asked for came
    Rule("upload-differs", "invalid", _upload_differs),  # bytes sent ≠ bytes the server read
    Rule("content-wrong", "invalid", _content_wrong),  # seen by the server (--verify-content)
    Rule("client-result-missing", "invalid", _client_left_nothing),
    Rule("events-lost", "degraded", _events_lost),  # on the way to bpftrace
    Rule("map-empty", "degraded", _map_is_empty),  # a probe attached and never fired
    Rule("map-full", "degraded", _key_limit),  # further keys were dropped in silence
    Rule("helper-error", "degraded", _helper_errors),  # a BPF helper failed
    Rule("lines-unparsed", "degraded", _lines_unparsed),  # part of the trace is unreadable
    Rule("unsettled", "degraded", _unsettled),  # connections open at the last reading
    Rule("exit-status", "degraded", _bad_exits),  # a role ended other than with 0
    Rule("server-drops", "degraded", _server_drops),  # the server's receive buffer was full
    Rule("client-drops", "degraded", _client_drops),  # the client's was
    Rule("degraded-io", "degraded", _degradations),  # no GSO, GRO or mmsg where asked
    Rule("not-collected", "degraded", _not_collected),  # something could not be fetched
    Rule("other-direction", "note", _other_direction),  # maps that this direction leaves empty
    Rule("record-unknown", "note", _records_unknown),  # a newer bpftrace
    Rule("clamped", "note", _clamped),  # granted less than asked
    Rule("client-busy", "note", _bottleneck),  # the load may limit, not the server
)
"""Every reason for doubt; the order is the order of telling among equals."""
