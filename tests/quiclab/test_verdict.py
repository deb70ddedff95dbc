"""
Each rule of the verdict speaks when it should, with the figure, and is silent else.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from quiclab.answers import ClientResult, CounterReport
from quiclab.errors import ExitCode
from quiclab.evidence import Evidence, RoleEvidence, TracerEvidence
from quiclab.grants import Grant
from quiclab.runner.drops import UdpSocket
from quiclab.runner.fake import RECORDINGS, load_recording
from quiclab.runner.reading import ProgramCost, Reading
from quiclab.scenario import Scenario
from quiclab.trace.ndjson import parse_trace
from quiclab.trace.script import load_script
from quiclab.verdict import RULES, Verdict, judge

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


def _cut(evidence: Evidence) -> None:
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


def said(evidence: Evidence) -> dict[str, str]:
    """Ask for the first sentence of each rule that spoke."""
    findings = reversed(judge(evidence).findings)
    return {finding.rule: finding.text for finding in findings}


# The whole ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "script", ["udp-syscall", "io-latencies", "generic-offload", "recv-buffers"]
)
def test_recorded_run_of_each_script_is_ok(script: str) -> None:
    """What a real run left is judged ok, and nothing is noted."""
    verdict = judge(make_evidence(script))
    assert ("ok", [], ExitCode.OK) == (verdict.word, list(verdict.findings), verdict.exit_code)


def test_ok_says_what_it_rests_on() -> None:
    """The one line of a good run names probes, losses and both counts."""
    assert (
        "6 of 6 probes, nothing lost, 373 events traced = 373 counted by the server"
        == judge(make_evidence()).summary
    )


def test_worst_finding_makes_the_word_and_the_summary() -> None:
    """Invalid outweighs degraded outweighs notes; the summary tells the worst and how many."""
    evidence = make_evidence()
    evidence.costs_after = Reading(at_s=1.0, sockets=[UdpSocket("::", 4433, 7)])
    evidence.failure = "server exited 137 after 3.1 s"
    evidence.grants = [Grant(what="x", asked="2", granted="1", is_short=True)]
    verdict = judge(evidence)
    assert ("invalid", ExitCode.INVALID) == (verdict.word, verdict.exit_code)
    assert "server exited 137 after 3.1 s (and 1 more)" == verdict.summary
    assert ["invalid", "degraded", "note"] == [f.severity for f in verdict.findings]


def test_a_cut_off_trace_is_not_said_to_hold_nothing() -> None:
    """What a killed tracer did not print may well have fired: one reason, and no wrong one."""
    evidence = make_evidence()
    without_maps(evidence)
    evidence.roles["tracer"].is_killed_by_lab = True
    assert {"trace-missing", "exit-status"} == set(said(evidence))


def test_degraded_run_has_its_own_exit_code() -> None:
    """A reservation is exit code 6."""
    evidence = make_evidence()
    evidence.costs_after = Reading(at_s=1.0, sockets=[UdpSocket("::", 4433, 7)])
    verdict = judge(evidence)
    assert ("degraded", ExitCode.DEGRADED) == (verdict.word, verdict.exit_code)


def test_verdict_reads_back_as_it_was_written() -> None:
    """Dump and load are a pair."""
    evidence = make_evidence()
    evidence.failure = "broken"
    verdict = judge(evidence)
    assert verdict == Verdict.model_validate_json(verdict.model_dump_json())


def test_rules_have_names_of_their_own() -> None:
    """A rule's name finds one rule."""
    names = [rule.name for rule in RULES]
    assert sorted(set(names)) == sorted(names)


# Each rule ---------------------------------------------------------------------


def _fail(evidence: Evidence) -> None:
    evidence.failure = "the engine went away"


def _interrupt(evidence: Evidence) -> None:
    evidence.interruption, evidence.is_load_complete = "SIGINT", False


def _interrupt_late(evidence: Evidence) -> None:
    evidence.interruption = "SIGTERM"


def _watch_one_worker_less(evidence: Evidence) -> None:
    evidence.untraced = ["a_probe in worker 1", "another in worker 1"]


def _lose_a_probe(evidence: Evidence) -> None:
    evidence.tracers[0].announced_probe_count = 5


def _leave_no_trace(evidence: Evidence) -> None:
    evidence.tracers[0].trace = None


def _kill_tracer(evidence: Evidence) -> None:
    evidence.roles["tracer"].is_killed_by_lab = True
    evidence.roles["tracer"].exit_status = 137


def _miscount(evidence: Evidence) -> None:
    raw = load_recording("server-report")
    raw["total"]["tx"]["send_call_count"] += 1
    evidence.counters = CounterReport.read(raw)


def _unmatch(evidence: Evidence) -> None:
    add_line(evidence, '{"type": "map", "data": {"@tx_unmatched": 2}}')


def _drop_counters(evidence: Evidence) -> None:
    evidence.counters = None


def _silence(evidence: Evidence) -> None:
    without_maps(evidence)


def _silence_one(evidence: Evidence) -> None:
    without_maps(evidence, "@rx_arg_counts", "@rx_ret_counts", "@rx_latencies")


def _client(**fields: Any) -> Callable[[Evidence], None]:
    def change(evidence: Evidence) -> None:
        evidence.client_result = ClientResult.read({**load_recording("client-result"), **fields})

    return change


def _lose_result(evidence: Evidence) -> None:
    evidence.client_result = None


def _line(line: str) -> Callable[[Evidence], None]:
    return lambda evidence: add_line(evidence, line)


def _full_map(evidence: Evidence) -> None:
    keys = ", ".join(f'"{key}": 1' for key in range(4096))
    add_line(evidence, f'{{"type": "map", "data": {{"@by_key": {{{keys}}}}}}}')


def _leave_open(evidence: Evidence) -> None:
    raw = load_recording("server-report")
    raw["total"]["connections"]["open_count"] = 3
    evidence.counters = CounterReport.read(raw)


def _exit(role: str, status: int) -> Callable[[Evidence], None]:
    def change(evidence: Evidence) -> None:
        evidence.roles[role].exit_status = status

    return change


def _complain(evidence: Evidence) -> None:
    evidence.roles["tracer"].stderr = (
        "ERROR: couldn't set RLIMIT_MEMLOCK for bpftrace.\n"
        "x.bt:1:1-9: WARNING: tracepoint not found: no:such\n"
    )


def _drop(evidence: Evidence) -> None:
    evidence.costs_after = Reading(at_s=1.0, sockets=[UdpSocket("::", 4433, 1234)])


def _degrade(evidence: Evidence) -> None:
    raw = load_recording("server-report")
    loss = {"what": "gso", "reason": "EIO on eth0", "effect": "one datagram per message"}
    raw["workers"][0]["degradations"] = [loss]
    raw["workers"].append({"degradations": [loss]})
    evidence.counters = CounterReport.read(raw)


def _miss(evidence: Evidence) -> None:
    evidence.missing.append("socket drops: the engine does not answer")


def _change_perf(evidence: Evidence, **counts: int) -> None:
    assert evidence.counters is not None
    total = {**evidence.counters.total}
    total["perf"] = {**total["perf"], **counts}
    evidence.counters = evidence.counters.model_copy(update={"total": total})


def _lose_upload(evidence: Evidence) -> None:
    assert evidence.client_result is not None
    sent = evidence.client_result.bytes_sent
    _change_perf(evidence, upload_byte_count=sent + 7)


def _garble_upload(evidence: Evidence) -> None:
    _change_perf(evidence, content_error_count=3)


def _clamp(evidence: Evidence) -> None:
    evidence.grants = [
        Grant(
            what="server SO_SNDBUF",
            asked="8,000,000 B",
            granted="4,194,304 B",
            is_short=True,
            reason="net.core.wmem_max is 4194304",
        )
    ]


def _count(name: str, figure: int) -> str:
    return f'{{"type": "map", "data": {{"{name}": {figure}}}}}'


def _fill_scratch(evidence: Evidence) -> None:
    """Let 12,345 messages have begun, and as few ended as were recorded."""
    evidence.tracers[0].script = load_script("io-latencies")
    add_line(evidence, _count("@tx_starts", 12_345))


def _forget_check(evidence: Evidence) -> None:
    """Let a script pair its maps, and promise nothing of ends without a start."""
    tracer = evidence.tracers[0]
    tracer.script = replace(tracer.script, checks=())
    add_line(evidence, _count("@tx_unmatched", 3))


def _run_programs(**growth: int | None) -> Callable[[Evidence], None]:
    """Let the kernel tell of one program more or less than nothing before the load."""

    def change(evidence: Evidence) -> None:
        first = ProgramCost(program_id=7, run_count=5, run_time_ns=500, recursion_miss_count=1)
        last = replace(first, **growth)
        evidence.costs_before = Reading(at_s=1.0, programs={"tracer": [first]})
        evidence.costs_after = Reading(at_s=2.0, programs={"tracer": [last]})

    return change


def _record_in_process(evidence: Evidence) -> None:
    evidence.tracer_kind = "in-process"
    evidence.tracer_reason = "this machine has no uprobes"


def _be_quick(evidence: Evidence) -> None:
    """Let two of five calls have taken less than a microsecond."""
    buckets = '{"min": 512, "max": 1023, "count": 2}, {"min": 4096, "max": 8191, "count": 3}'
    add_line(evidence, f'{{"type": "hist", "data": {{"@tx_latencies": [{buckets}]}}}}')


LOST = '{"type": "lost_events", "data": {"events": 40}}'
HELPER = (
    '{"type": "helper_error", "msg": "Operation not permitted", '
    '"helper": "probe_read", "retcode": -1}'
)


@pytest.mark.parametrize(
    ("rule", "change", "words"),
    [
        ("ended-early", _fail, "the engine went away"),
        ("interrupted", _interrupt, "ended by SIGINT before the load was complete"),
        ("interrupted-late", _interrupt_late, "SIGTERM came when the load was already complete"),
        ("probes-missing", _lose_a_probe, "udp-syscall: 5 of 6 probes attached"),
        ("streams-differ", _lose_upload, "bytes of all uploads: client bytes_sent 4,751,418 ≠ server perf"),
        ("content-wrong", _garble_upload, "3 pieces of uploaded data held other bytes"),
        ("untraced", _watch_one_worker_less, "trace a_probe in worker 1 (and 1 more) when"),
        ("trace-missing", _leave_no_trace, "no trace was left"),
        ("trace-missing", _kill_tracer, "its final maps are missing"),
        ("trace-missing", _cut, "cut off"),
        ("counts-differ", _miscount, "@tx_arg_counts 83 ≠ tx.send_call_count 84"),
        ("counts-differ", _unmatch, "@tx_unmatched 2 ≠ expected 0"),
        ("tracer-complaint", _complain, "bpftrace complains: tracepoint not found: no:such"),
        ("counters-missing", _drop_counters, "nothing proves the trace complete"),
        ("no-samples", _silence, "0 samples; none of these fired: s2n_quic_platform"),
        ("map-empty", _silence_one, "0 samples in @tx_arg_counts; usdt:$1:s2n_quic_platform"),
        ("client-failed", _client(ok=False, reason="stalled after 9 s"), "stalled after 9 s"),
        ("client-result-missing", _lose_result, "the client left no result"),
        ("client-drops", _client(socket_drop_count=5), "dropped 5 datagrams at the client's"),
        ("client-busy", _client(is_bottleneck=True, bottleneck_note="0.97 of a core"), "0.97"),
        ("events-lost", _line(LOST + "\n" + LOST), "bpftrace lost 80 events"),
        ("map-full", _full_map, "@by_key: 4,096 keys, and a map holds no more than 4,096"),
        ("helper-error", _line(HELPER), "1 × Operation not permitted in probe_read"),
        ("lines-unparsed", _line("garbage\n"), "1 lines of the trace could not be read"),
        ("record-unknown", _line('{"type": "tseries", "data": {}}'), "kept raw: tseries"),
        ("unsettled", _leave_open, "3 connections were still open"),
        ("exit-status", _exit("tracer", 1), "tracer exited 1"),
        ("exit-status", _kill_tracer, "tracer did not end when asked and was killed"),
        ("server-drops", _drop, "dropped 1,234 datagrams at the server's full"),
        ("degraded-io", _degrade, "server: gso off: EIO on eth0; one datagram per message"),
        ("not-collected", _miss, "socket drops: the engine does not answer"),
        ("starts-dropped", _fill_scratch, "@tx_start: 12,262 starts without an end, and the map"),
        ("ends-unmatched", _forget_check, "@tx_unmatched: 3 ends without a start, beside 83 with"),
        (
            "programs-skipped",
            _run_programs(recursion_miss_count=9),
            "udp-syscall: the kernel skipped its programs at 8 events",
        ),
        ("near-cost", _be_quick, "@tx_latencies: 2 of 5 values are below 1,024 ns, where the"),
        ("in-process", _record_in_process, "without bpftrace: this machine has no uprobes"),
        (
            "clamped",
            _clamp,
            "server SO_SNDBUF 4,194,304 B of 8,000,000 B asked: net.core.wmem_max is 4194304",
        ),
    ],
)
def test_rule_speaks_with_its_figure(
    rule: str, change: Callable[[Evidence], None], words: str
) -> None:
    """What went wrong is found by its rule and told with the figure."""
    evidence = make_evidence()
    assert rule not in said(evidence)
    change(evidence)
    assert words in said(evidence)[rule]


def test_every_rule_has_a_case() -> None:
    """No rule is left without a test that makes it speak."""
    cases = test_rule_speaks_with_its_figure.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {rule.name for rule in RULES} == {case[0] for case in cases} | {"other-direction"}


def test_same_degradation_of_two_workers_is_told_once() -> None:
    """Two workers on one device give one sentence."""
    evidence = make_evidence()
    _degrade(evidence)
    assert 1 == sum(f.rule == "degraded-io" for f in judge(evidence).findings)


def test_map_of_the_other_direction_may_be_empty() -> None:
    """A download fills no receive buffers: that is a note that says what would."""
    evidence = make_evidence("recv-buffers", direction="download")
    without_maps(evidence)
    evidence.counters = CounterReport.read(
        {
            **load_recording("server-report"),
            "total": {
                **load_recording("server-report")["total"],
                "receive_buffer": {"alloc_count": 0, "write_count": 0, "pop_count": 0},
            },
        }
    )
    verdict = judge(evidence)
    assert ("ok", {"other-direction"}) == (verdict.word, {f.rule for f in verdict.findings})
    assert "it fills with --direction upload" in verdict.findings[0].text


def test_map_of_the_asked_direction_must_not_be_empty() -> None:
    """In an upload, empty receive buffers are no samples."""
    evidence = make_evidence("recv-buffers", direction="upload")
    without_maps(evidence)
    assert "no-samples" in said(evidence)


def test_map_key_limit_that_was_asked_for_counts() -> None:
    """With a higher limit, 4096 keys are not full; with a lower one fewer are."""
    higher, lower = make_evidence(map_key_limit=10_000), make_evidence(map_key_limit=4000)
    for evidence in (higher, lower):
        _full_map(evidence)
    assert ("map-full" in said(higher), "map-full" in said(lower)) == (False, True)


def test_role_that_died_is_told_once() -> None:
    """The failure names the role; its exit status is not told again."""
    evidence = make_evidence()
    evidence.failure = "server exited 137 after 3.1 s"
    evidence.roles["server"].exit_status = 137
    assert {"ended-early"} == set(said(evidence))


def test_evidence_of_a_run_that_never_loaded_is_judged() -> None:
    """A run that failed at its start gives one reason, not a list of what is missing."""
    evidence = make_evidence()
    evidence.failure = "server exited 4 after 0.2 s: port 4433 is in use"
    evidence.is_load_started = evidence.is_load_complete = False
    evidence.counters = evidence.client_result = evidence.tracers[0].trace = None
    evidence.roles = {"server": RoleEvidence(["python"], {}, exit_status=4)}
    assert {"ended-early"} == set(said(evidence))
