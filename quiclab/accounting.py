"""
The accounts of a run: what each tracer saw and lost, and what must balance. Pure.

Three parties count the same load without knowing of each other: bpftrace, the
server and the client. Where two of them count the same thing, their figures
are a balance, which is kept or broken. Where only one counts, what it may have
lost is written down beside it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, computed_field

from quiclab.answers import Answer
from quiclab.evidence import Evidence, TracerEvidence
from quiclab.probecost import ProbeCost, weigh
from quiclab.runner.reading import ProgramCost
from quiclab.trace.complaints import parse_complaints
from quiclab.trace.events import Trace
from quiclab.trace.script import Pair, find_counter

Relation = Literal["=", "≤"]


class Account(BaseModel):
    """What all of them share: read-only."""

    model_config = ConfigDict(frozen=True)


class MapAccount(Account):
    """
    One map of a tracer.

    Args:
        name: With its sign.
        event_count: Events it counted; None when its kind does not tell.
        key_count: Keys it held at most; 0 for a map without keys.
        key_limit: Keys that it can hold.
    """

    name: str
    event_count: int | None
    key_count: int
    key_limit: int


class PairAccount(Account):
    """
    One measurement from a start to an end.

    Args:
        starts: The map that counts starts.
        matched: The map that counts ends whose start was found.
        scratch: The map that keeps starts until their end.
        start_count: Starts.
        matched_count: Ends with their start.
        unmatched_count: Ends without a start.
        outstanding_count: Starts without an end.
        key_limit: Starts that the scratch map can keep; it drops further ones.
    """

    starts: str
    matched: str
    scratch: str
    start_count: int
    matched_count: int
    unmatched_count: int
    outstanding_count: int
    key_limit: int


class ScriptAccount(Account):
    """
    One tracer. None: not known, because nobody tells.

    Args:
        expected_probe_count: Attach points of the script, BEGIN and END among them.
        attached_probe_count: Probes that were announced.
        event_count: Events in all its maps together.
        run_count: Times that the kernel ran its programs during the load.
        run_time_ns: Time in them, without the way in and out.
        skipped_count: Events at which the kernel skipped them.
        lost_event_count: Events lost on the way to bpftrace.
        helper_error_count: Reports of a BPF helper that failed.
        unread_line_count: Lines of the trace that could not be read.
        unknown_record_count: Records of a kind unknown here.
        complaint_count: Faults that bpftrace told on stderr.
        is_cut_off: The final maps are missing.
        maps: Each map.
        pairs: Each measurement from a start to an end.
        cost: What its probes cost the server; None when nobody tells.
    """

    expected_probe_count: int | None
    attached_probe_count: int | None
    event_count: int = 0
    run_count: int | None = None
    run_time_ns: int | None = None
    skipped_count: int | None = None
    lost_event_count: int = 0
    helper_error_count: int = 0
    unread_line_count: int = 0
    unknown_record_count: int = 0
    complaint_count: int = 0
    is_cut_off: bool = False
    maps: tuple[MapAccount, ...] = ()
    pairs: tuple[PairAccount, ...] = ()
    cost: ProbeCost | None = None


class Balance(Account):
    """
    Two figures of different parties that must agree.

    Args:
        what: What is counted, for people.
        left: Who counted, and under which name.
        left_count: The figure; None when it is not known.
        relation: "=", or "≤" where the left may lack what was under way.
        right: The other party.
        right_count: Its figure.
    """

    what: str
    left: str
    left_count: int | None
    relation: Relation
    right: str
    right_count: int | None

    @computed_field  # type: ignore[prop-decorator]  # mypy does not know stacked properties
    @property
    def is_kept(self) -> bool:
        """Tell whether both are known and agree."""
        if self.left_count is None or self.right_count is None:
            return False
        if self.relation == "=":
            return self.left_count == self.right_count
        return self.left_count <= self.right_count

    def render(self) -> str:
        """Say both figures: `completed downloads: client 5 B ≠ server 6 B`."""
        broken = {"=": "≠", "≤": ">"}
        sign = self.relation if self.is_kept else broken[self.relation]
        left = f"{self.left} {_render(self.left_count)}"
        return f"{self.what}: {left} {sign} {self.right} {_render(self.right_count)}"


class Accounts(Account):
    """
    All of it, as it stands in the manifest.

    Args:
        scripts: By script name.
        balances: What must agree between bpftrace, the server and the client.
        udp_counts: What the kernel counted for UDP in the server's network namespace during
            the load (`/proc/net/snmp`), errors alone; None when it was not read.
        is_namespace_shared: Others use that namespace, too.
        server_drop_count: Datagrams dropped at the server's own sockets.
        client_drop_count: Datagrams dropped at the client's own; None without its result.
        recovery: What server and client say of losses and retransmissions, by role.
        server_cpu_s: CPU time of all workers during the load; None without their counters.
    """

    scripts: Mapping[str, ScriptAccount]
    balances: tuple[Balance, ...] = ()
    udp_counts: Mapping[str, int] | None = None
    is_namespace_shared: bool = False
    server_drop_count: int = 0
    client_drop_count: int | None = None
    recovery: Mapping[str, Mapping[str, int]] = {}
    server_cpu_s: float | None = None


def account(evidence: Evidence) -> Accounts:
    """
    Draw up the accounts of what was measured so far.
    """
    result = evidence.client_result
    is_shared = evidence.costs_after is not None and evidence.costs_after.is_namespace_shared
    return Accounts(
        scripts={
            tracer.script.name: _account_tracer(evidence, tracer) for tracer in evidence.tracers
        },
        balances=(*_trace_balances(evidence), *stream_balances(evidence)),
        udp_counts=find_udp_errors(evidence),
        is_namespace_shared=is_shared,
        server_drop_count=evidence.server_drop_count,
        client_drop_count=None if result is None else result.socket_drop_count,
        recovery=dict(find_recovery(evidence)),
        server_cpu_s=_find_server_cpu_s(evidence),
    )


# Tracers -----------------------------------------------------------------------


def account_pairs(evidence: Evidence, tracer: TracerEvidence) -> tuple[PairAccount, ...]:
    """
    Hold starts against ends; () for a trace without its final maps.
    """
    trace = tracer.trace
    if trace is None or evidence.is_cut_off(tracer):
        return ()
    return tuple(
        _account_pair(trace, pair, key_limit=evidence.key_limit) for pair in tracer.script.pairs
    )


def find_skipped_count(evidence: Evidence, tracer: TracerEvidence) -> int | None:
    """
    Count events at which the kernel skipped a tracer's programs; None when it does not tell.
    """
    return _add_growth(evidence, tracer, "recursion_miss_count")


def find_cost(evidence: Evidence, tracer: TracerEvidence) -> ProbeCost | None:
    """
    Weigh the hits of a tracer's probes; None when bpftrace did not trace, or nobody tells.
    """
    if evidence.counters is None or evidence.tracer_kind != "bpftrace":
        return None
    return weigh(
        tracer.script,
        None if evidence.is_cut_off(tracer) else tracer.trace,
        counters=evidence.counters.total,
        run_count=_add_growth(evidence, tracer, "run_count"),
        run_time_ns=_add_growth(evidence, tracer, "run_time_ns"),
    )


def _account_pair(trace: Trace, pair: Pair, *, key_limit: int) -> PairAccount:
    start_count = trace.event_count(pair.starts) or 0
    matched_count = trace.event_count(pair.matched) or 0
    return PairAccount(
        starts=pair.starts,
        matched=pair.matched,
        scratch=pair.scratch,
        start_count=start_count,
        matched_count=matched_count,
        unmatched_count=trace.event_count(pair.unmatched) or 0,
        outstanding_count=max(0, start_count - matched_count),
        key_limit=key_limit,
    )


def _account_tracer(evidence: Evidence, tracer: TracerEvidence) -> ScriptAccount:
    trace = tracer.trace or Trace()
    role = evidence.roles.get(tracer.role)
    complaints = () if role is None else parse_complaints(role.stderr)
    return ScriptAccount(
        expected_probe_count=tracer.script.expected_probe_count,
        attached_probe_count=tracer.announced_probe_count,
        event_count=sum(trace.event_count(name) or 0 for name in trace.maps),
        run_count=_add_growth(evidence, tracer, "run_count"),
        run_time_ns=_add_growth(evidence, tracer, "run_time_ns"),
        skipped_count=find_skipped_count(evidence, tracer),
        lost_event_count=trace.lost_event_count,
        helper_error_count=sum(error.count for error in trace.helper_errors),
        unread_line_count=len(trace.unparsed),
        unknown_record_count=len(trace.unknown),
        complaint_count=sum(complaint.is_fault for complaint in complaints),
        is_cut_off=evidence.is_cut_off(tracer),
        maps=tuple(
            MapAccount(
                name=name,
                event_count=trace.event_count(name),
                key_count=max((each.key_count for each in trace.series.get(name, ())), default=0),
                key_limit=evidence.key_limit,
            )
            for name in dict.fromkeys([*(note.name for note in tracer.script.maps), *trace.maps])
        ),
        pairs=account_pairs(evidence, tracer),
        cost=find_cost(evidence, tracer),
    )


def _add_growth(evidence: Evidence, tracer: TracerEvidence, figure: str) -> int | None:
    """Add up how much a figure of a tracer's programs grew; None when one does not tell."""
    before, after = evidence.costs_before, evidence.costs_after
    if before is None or after is None:
        return None
    first: dict[int, ProgramCost] = {
        program.program_id: program for program in before.programs.get(tracer.role, ())
    }
    programs = after.programs.get(tracer.role, ())
    growth = 0
    for program in programs:
        now = getattr(program, figure)
        if now is None:
            return None
        known = first.get(program.program_id)
        growth += now - ((getattr(known, figure) if known is not None else 0) or 0)
    return growth if programs else None


def _trace_balances(evidence: Evidence) -> Iterator[Balance]:
    for tracer in evidence.tracers:
        for result in evidence.check_trace(tracer):
            check = result.check
            yield Balance(
                what=f"events of {tracer.script.name}",
                left=f"traced {check.map_name}",
                left_count=result.traced_count,
                relation="=",
                right=f"server {check.counter}" if check.counter else "expected",
                right_count=result.counted,
            )


# Streams -----------------------------------------------------------------------

# What of a stream the client says it got or gave, and what the server says it gave or got.
# The receiver of a stream that was stopped may have thrown away what was under way.
_STREAM_BALANCES: Sequence[tuple[str, str, Relation, str]] = (
    ("bytes of completed downloads", "completed_received_bytes", "=", "download_completed"),
    ("bytes of stopped downloads", "stopped_received_bytes", "≤", "download_stopped"),
    ("bytes of completed uploads", "completed_sent_bytes", "=", "upload_completed"),
)


def stream_balances(evidence: Evidence) -> Iterator[Balance]:
    """
    Hold what the client says of its streams against what the server says.

    Only of a load that is complete and settled: before, bytes are under way.
    """
    result, counters = evidence.client_result, evidence.counters
    if result is None or counters is None or not (result.ok and counters.is_settled):
        return
    for what, client_name, relation, server_name in _STREAM_BALANCES:
        client_count = find_figure(result, client_name)
        path = f"perf.{server_name}_byte_count"
        server_count = find_counter(counters.total, path)
        if client_count is None or server_count is None:
            continue  # a server or a client that does not tell
        yield Balance(
            what=what,
            left=f"client {client_name}",
            left_count=client_count,
            relation=relation,
            right=f"server {path}",
            right_count=server_count,
        )
    read_count = find_counter(counters.total, "perf.upload_byte_count")
    if read_count is not None:
        yield Balance(
            what="bytes of all uploads",
            left="client bytes_sent",
            left_count=result.bytes_sent,
            relation="=",
            right="server perf.upload_byte_count",
            right_count=read_count,
        )
    yield from _asked_balances(evidence)


def _asked_balances(evidence: Evidence) -> Iterator[Balance]:
    """With `--bytes` and no time limit, exactly so many must have moved in each direction."""
    scenario, result = evidence.scenario, evidence.client_result
    if result is None or scenario.total_bytes is None or scenario.duration_s is not None:
        return
    moved = (("download", "bytes_received"), ("upload", "bytes_sent"))
    for direction, name in moved:
        if scenario.direction in (direction, "both"):
            yield Balance(
                what=f"bytes of the {direction} asked for",
                left=f"client {name}",
                left_count=find_figure(result, name),
                relation="=",
                right="asked --bytes",
                right_count=scenario.total_bytes,
            )


def find_figure(answer: Answer, name: str) -> int | None:
    """
    Look a figure of an answer up that older roles do not tell; None when it is not there.
    """
    value = getattr(answer, name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# The kernel and QUIC -----------------------------------------------------------

_UDP_ERRORS = ("RcvbufErrors", "SndbufErrors", "InErrors", "InCsumErrors")


def find_udp_errors(evidence: Evidence) -> Mapping[str, int] | None:
    """
    Count the kernel's UDP errors during the load, IPv4 and IPv6 together.

    None when one of the two readings is missing.
    """
    before, after = evidence.costs_before, evidence.costs_after
    if before is None or after is None or not (before.udp_counts and after.udp_counts):
        return None
    return {
        name: sum(
            count - before.udp_counts.get(full_name, 0)
            for full_name, count in after.udp_counts.items()
            if full_name.endswith(name)
        )
        for name in _UDP_ERRORS
    }


def find_recovery(evidence: Evidence) -> Iterator[tuple[str, Mapping[str, int]]]:
    """
    What each end says of the packets it sent: sent, lost, probe timeouts.
    """
    counters, result = evidence.counters, evidence.client_result
    said = (
        ("server", None if counters is None else counters.total.get("recovery")),
        ("client", None if result is None else getattr(result, "recovery", None)),
    )
    for role, figures in said:
        if isinstance(figures, Mapping):
            yield role, {name: n for name, n in figures.items() if isinstance(n, int)}


def _find_server_cpu_s(evidence: Evidence) -> float | None:
    if evidence.counters is None:
        return None
    names = ("cpu_user_s", "cpu_system_s")
    workers = evidence.counters.workers
    return round(sum(float(worker.get(name, 0.0)) for worker in workers for name in names), 6)


def _render(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"
