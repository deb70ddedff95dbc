"""
Evidence of a recorded run that nothing speaks against, and one fault each to plant in it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from quiclab.answers import (
    ClientDescription,
    ClientResult,
    CounterReport,
    ServerDescription,
)
from quiclab.evidence import Evidence, RoleEvidence, TracerEvidence
from quiclab.grants import Grant
from quiclab.runner.drops import UdpSocket
from quiclab.runner.reading import ProgramCost, Reading
from quiclab.runner.recorded import RECORDINGS, load_recording, record_maps
from quiclab.scenario import Scenario
from quiclab.trace.ndjson import parse_trace
from quiclab.trace.script import load_script
from quiclab.trace.witness import compare_maps, recording_rules
from quiclab.verdict import judge

ROLES = ("server", "client", "tracer")


def make_evidence(script: str = "udp-syscall", **words: Any) -> Evidence:
    """Make the evidence of a recorded run that nothing speaks against."""
    raw = (RECORDINGS / f"{script}.jsonl").read_bytes()
    loaded = load_script(script)
    tracer = TracerEvidence(
        role="tracer",
        script=loaded,
        announced_probe_count=loaded.expected_probe_count,
        raw_trace=raw,
        trace=parse_trace(raw),
    )
    return Evidence(
        scenario=Scenario.model_validate({"script": (script,), "direction": "both", **words}),
        tracers=[tracer],
        counters=CounterReport.read(load_recording("server-report")),
        client_result=ClientResult.read(load_recording("client-result")),
        roles={role: RoleEvidence([role], {}, exit_status=0) for role in ROLES},
        is_load_started=True,
        is_load_complete=True,
    )


def add_line(evidence: Evidence, line: str) -> None:
    """Let the tracer have written one more line."""
    tracer = evidence.tracers[0]
    assert tracer.raw_trace is not None
    tracer.raw_trace += f"{line}\n".encode()
    tracer.trace = parse_trace(tracer.raw_trace)


def cut(evidence: Evidence) -> None:
    """Cut the trace's last line in two."""
    tracer = evidence.tracers[0]
    assert tracer.raw_trace is not None
    tracer.trace = parse_trace(tracer.raw_trace[:-9])


def without_maps(evidence: Evidence, *keep: str) -> None:
    """Let all maps but some be absent from the trace."""
    tracer = evidence.tracers[0]
    assert tracer.raw_trace is not None
    lines = [
        line
        for line in tracer.raw_trace.decode().splitlines(keepends=True)
        if '"@' not in line or any(f'"{name}"' in line for name in keep)
    ]
    tracer.trace = parse_trace("".join(lines))


def record_beside(evidence: Evidence) -> None:
    """Let the in-process recorder have counted beside bpftrace, just as much."""
    evidence.scenario = evidence.scenario.model_copy(update={"is_verified": True})
    tracer = evidence.tracers[0]
    evidence.recording = record_maps(recording_rules([tracer.script]))
    compare(evidence)


def compare(evidence: Evidence) -> None:
    """Hold both witnesses' maps against each other, as they are now."""
    tracer = evidence.tracers[0]
    assert tracer.trace is not None
    assert evidence.recording is not None
    evidence.comparisons = compare_maps(tracer.script, tracer.trace, evidence.recording)


def record_another(evidence: Evidence) -> None:
    """Let the recorder have counted one call more."""
    record_beside(evidence)
    evidence.recording["maps"]["udp-syscall@tx_arg_counts"]["count"] += 1  # type: ignore[index]
    compare(evidence)


def lose_recording(evidence: Evidence) -> None:
    """Let the recorder's maps not have come."""
    record_beside(evidence)
    evidence.recording, evidence.comparisons = None, ()


def lose_bpftrace(evidence: Evidence) -> None:
    """Let the recorder have had to do alone what two were to do."""
    record_beside(evidence)
    evidence.tracer_kind, evidence.comparisons = "in-process", ()


def overfill_recorder(evidence: Evidence) -> None:
    """Let more starts have waited than the recorder holds."""
    record_beside(evidence)
    evidence.recording["lost_start_count"] = 1234  # type: ignore[index]


def said(evidence: Evidence) -> dict[str, str]:
    """Ask for the first sentence of each rule that spoke."""
    findings = reversed(judge(evidence).findings)
    return {finding.rule: finding.text for finding in findings}


def fail(evidence: Evidence) -> None:
    """Let the run have failed."""
    evidence.failure = "the engine went away"


def interrupt(evidence: Evidence) -> None:
    """End the load by INT."""
    evidence.interruption, evidence.is_load_complete = "SIGINT", False


def interrupt_late(evidence: Evidence) -> None:
    """Let TERM come after the load."""
    evidence.interruption = "SIGTERM"


def watch_one_worker_less(evidence: Evidence) -> None:
    """Let one worker see nobody at two of its probes."""
    evidence.untraced = ["a_probe in worker 1", "another in worker 1"]


def lose_a_probe(evidence: Evidence) -> None:
    """Announce a probe less than the script has."""
    evidence.tracers[0].announced_probe_count = 5


def leave_no_trace(evidence: Evidence) -> None:
    """Let the tracer have left nothing."""
    evidence.tracers[0].trace = None


def kill_tracer(evidence: Evidence) -> None:
    """Let the tracer have been killed."""
    evidence.roles["tracer"].is_killed_by_lab = True
    evidence.roles["tracer"].exit_status = 137


def miscount(evidence: Evidence) -> None:
    """Let the server have counted one call more."""
    raw = load_recording("server-report")
    raw["total"]["tx"]["send_call_count"] += 1
    evidence.counters = CounterReport.read(raw)


def unmatch(evidence: Evidence) -> None:
    """Let two calls have ended without a start."""
    add_line(evidence, '{"type": "map", "data": {"@tx_unmatched": 2}}')


def drop_counters(evidence: Evidence) -> None:
    """Let the server have told no counters."""
    evidence.counters = None


def silence(evidence: Evidence) -> None:
    """Let no probe have fired."""
    without_maps(evidence)


def silence_one(evidence: Evidence) -> None:
    """Let the probes of receiving not have fired."""
    without_maps(evidence, "@rx_arg_counts", "@rx_ret_counts", "@rx_latencies")


def tell_client(**fields: Any) -> Callable[[Evidence], None]:
    """Let the client have told something else."""

    def change(evidence: Evidence) -> None:
        evidence.client_result = ClientResult.read({**load_recording("client-result"), **fields})

    return change


def lose_result(evidence: Evidence) -> None:
    """Let the client have left nothing."""
    evidence.client_result = None


def write(line: str) -> Callable[[Evidence], None]:
    """Let the tracer have written one more line."""
    return lambda evidence: add_line(evidence, line)


def full_map(evidence: Evidence) -> None:
    """Let a map hold as many keys as it can."""
    keys = ", ".join(f'"{key}": 1' for key in range(4096))
    add_line(evidence, f'{{"type": "map", "data": {{"@by_key": {{{keys}}}}}}}')


def leave_open(evidence: Evidence) -> None:
    """Let three connections be open at the end."""
    raw = load_recording("server-report")
    raw["total"]["connections"]["open_count"] = 3
    evidence.counters = CounterReport.read(raw)


def end_role(role: str, status: int) -> Callable[[Evidence], None]:
    """Let a role have ended with a status."""

    def change(evidence: Evidence) -> None:
        evidence.roles[role].exit_status = status

    return change


def complain(evidence: Evidence) -> None:
    """Let bpftrace have written noise and a fault to stderr."""
    evidence.roles["tracer"].stderr = (
        "ERROR: couldn't set RLIMIT_MEMLOCK for bpftrace.\n"
        "x.bt:1:1-9: WARNING: tracepoint not found: no:such\n"
    )


def drop(evidence: Evidence) -> None:
    """Let the server's socket have been full."""
    evidence.costs_after = Reading(at_s=1.0, sockets=[UdpSocket("::", 4433, 1234)])


def degrade(evidence: Evidence) -> None:
    """Let two workers have given up GSO."""
    raw = load_recording("server-report")
    loss = {"what": "gso", "reason": "EIO on eth0", "effect": "one datagram per message"}
    raw["workers"][0]["degradations"] = [loss]
    raw["workers"].append({"degradations": [loss]})
    evidence.counters = CounterReport.read(raw)


def miss(evidence: Evidence) -> None:
    """Let something not have been fetched."""
    evidence.missing.append("socket drops: the engine does not answer")


def change_perf(evidence: Evidence, **counts: int) -> None:
    """Let the server have counted something else of its streams."""
    assert evidence.counters is not None
    total = {**evidence.counters.total}
    total["perf"] = {**total["perf"], **counts}
    evidence.counters = evidence.counters.model_copy(update={"total": total})


def lose_upload(evidence: Evidence) -> None:
    """Let the server have read other bytes than were sent."""
    assert evidence.client_result is not None
    sent = evidence.client_result.bytes_sent
    change_perf(evidence, upload_byte_count=sent + 7)


def garble_upload(evidence: Evidence) -> None:
    """Let pieces of an upload have been wrong."""
    change_perf(evidence, content_error_count=3)


def clamp(evidence: Evidence) -> None:
    """Let the kernel have granted less than was asked."""
    evidence.grants = [
        Grant(
            what="server SO_SNDBUF",
            asked="8,000,000 B",
            granted="4,194,304 B",
            is_short=True,
            reason="net.core.wmem_max is 4194304",
        )
    ]


def count(name: str, figure: int) -> str:
    """Write a record of a map that counts."""
    return f'{{"type": "map", "data": {{"{name}": {figure}}}}}'


def fill_scratch(evidence: Evidence) -> None:
    """Let 12,345 messages have begun, and as few ended as were recorded."""
    evidence.tracers[0].script = load_script("io-latencies")
    add_line(evidence, count("@tx_starts", 12_345))


def forget_check(evidence: Evidence) -> None:
    """Let a script pair its maps, and promise nothing of ends without a start."""
    tracer = evidence.tracers[0]
    tracer.script = replace(tracer.script, checks=())
    add_line(evidence, count("@tx_unmatched", 3))


def run_programs(**growth: Any) -> Callable[[Evidence], None]:
    """Let the kernel tell of one program more or less than nothing before the load."""

    def change(evidence: Evidence) -> None:
        first = ProgramCost(program_id=7, run_count=5, run_time_ns=500, recursion_miss_count=1)
        last = replace(first, **growth)
        evidence.costs_before = Reading(at_s=1.0, programs={"tracer": [first]})
        evidence.costs_after = Reading(at_s=2.0, programs={"tracer": [last]})

    return change


def record_in_process(evidence: Evidence) -> None:
    """Let the server's own recorder have filled the maps."""
    evidence.tracer_kind = "in-process"
    evidence.tracer_reason = "this machine has no uprobes"


def be_quick(evidence: Evidence) -> None:
    """Let two of five calls have taken less than a microsecond."""
    buckets = '{"min": 512, "max": 1023, "count": 2}, {"min": 4096, "max": 8191, "count": 3}'
    add_line(evidence, f'{{"type": "hist", "data": {{"@tx_latencies": [{buckets}]}}}}')


def report(part: str, **figures: Any) -> Callable[[Evidence], None]:
    """Let the server have counted something else in one part of its report."""

    def change(evidence: Evidence) -> None:
        raw = load_recording("server-report")
        raw["total"][part] = {**raw["total"].get(part, {}), **figures}
        evidence.counters = CounterReport.read(raw)

    return change


def udp(*, is_shared: bool, **growth: int) -> Callable[[Evidence], None]:
    """Let the kernel have counted errors during the load, in whose namespace ever."""

    def change(evidence: Evidence) -> None:
        before = dict.fromkeys(growth, 5)
        after = {name: 5 + count for name, count in growth.items()}
        evidence.costs_before = Reading(at_s=1.0, udp_counts=before)
        evidence.costs_after = Reading(at_s=2.0, udp_counts=after, is_namespace_shared=is_shared)

    return change


def describe(*, workers: int = 1, path_mtu_bytes: int = 9000) -> Callable[[Evidence], None]:
    """Let server and client have said something else of themselves."""

    def change(evidence: Evidence) -> None:
        raw = load_recording("server-describe")
        raw["workers"] = raw["workers"] * workers
        evidence.server = ServerDescription.read(raw)
        client = {**load_recording("client-describe"), "path_mtu_bytes": path_mtu_bytes}
        evidence.client = ClientDescription.read(client)

    return change


def lose_a_worker(evidence: Evidence) -> None:
    """Ask for two workers and have one."""
    evidence.scenario = evidence.scenario.model_copy(update={"worker_count": 2})
    describe()(evidence)


LOST = '{"type": "lost_events", "data": {"events": 40}}'
HELPER = (
    '{"type": "helper_error", "msg": "Operation not permitted", '
    '"helper": "probe_read", "retcode": -1}'
)
