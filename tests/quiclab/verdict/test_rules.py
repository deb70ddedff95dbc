"""
Each rule of the verdict speaks when it should, with the figure, and is silent else.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from quiclab.answers import (
    CounterReport,
)
from quiclab.errors import ExitCode
from quiclab.evidence import Evidence, RoleEvidence
from quiclab.grants import Grant
from quiclab.runner.drops import UdpSocket
from quiclab.runner.reading import Reading
from quiclab.runner.recorded import load_recording
from quiclab.verdict import RULES, Verdict, judge
from tests.quiclab.verdict.plants import (
    HELPER,
    LOST,
    be_quick,
    clamp,
    complain,
    cut,
    degrade,
    describe,
    drop,
    drop_counters,
    end_role,
    fail,
    fill_scratch,
    forget_check,
    full_map,
    garble_upload,
    interrupt,
    interrupt_late,
    kill_tracer,
    leave_no_trace,
    leave_open,
    lose_a_probe,
    lose_a_worker,
    lose_bpftrace,
    lose_recording,
    lose_result,
    lose_upload,
    make_evidence,
    miscount,
    miss,
    overfill_recorder,
    record_another,
    record_beside,
    record_in_process,
    report,
    run_programs,
    said,
    silence,
    silence_one,
    tell_client,
    udp,
    unmatch,
    watch_one_worker_less,
    without_maps,
    write,
)


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


@pytest.mark.parametrize(
    ("rule", "change", "words"),
    [
        ("ended-early", fail, "the engine went away"),
        ("interrupted", interrupt, "ended by SIGINT before the load was complete"),
        ("interrupted-late", interrupt_late, "SIGTERM came when the load was already complete"),
        ("probes-missing", lose_a_probe, "udp-syscall: 5 of 6 probes attached"),
        ("streams-differ", lose_upload, "client bytes_sent 4,751,418 ≠ server perf"),
        ("content-wrong", garble_upload, "3 pieces of uploaded data held other bytes"),
        ("untraced", watch_one_worker_less, "trace a_probe in worker 1 (and 1 more) when"),
        ("trace-missing", leave_no_trace, "no trace was left"),
        ("trace-missing", kill_tracer, "its final maps are missing"),
        ("trace-missing", cut, "cut off"),
        ("counts-differ", miscount, "@tx_arg_counts 83 ≠ tx.send_call_count 84"),
        ("counts-differ", unmatch, "@tx_unmatched 2 ≠ expected 0"),
        ("verify-differs", record_another, "@tx_arg_counts: bpftrace counted"),
        ("recording-missing", lose_recording, "nothing verifies the maps"),
        ("not-verified", lose_bpftrace, "there is nothing to compare with"),
        ("recorder-full", overfill_recorder, "no room for 1,234 starts"),
        ("tracer-complaint", complain, "bpftrace complains: tracepoint not found: no:such"),
        ("counters-missing", drop_counters, "nothing proves the trace complete"),
        ("no-samples", silence, "0 samples; none of these fired: s2n_quic_platform"),
        ("map-empty", silence_one, "0 samples in @tx_arg_counts; usdt:$1:s2n_quic_platform"),
        ("client-failed", tell_client(ok=False, reason="stalled after 9 s"), "stalled after 9 s"),
        ("client-result-missing", lose_result, "the client left no result"),
        ("client-drops", tell_client(socket_drop_count=5), "dropped 5 datagrams at the client's"),
        ("client-busy", tell_client(is_bottleneck=True, bottleneck_note="0.97 of a core"), "0.97"),
        ("events-lost", write(LOST + "\n" + LOST), "bpftrace lost 80 events"),
        ("map-full", full_map, "@by_key: 4,096 keys, and a map holds no more than 4,096"),
        ("helper-error", write(HELPER), "1 × Operation not permitted in probe_read"),
        ("lines-unparsed", write("garbage\n"), "1 lines of the trace could not be read"),
        ("record-unknown", write('{"type": "tseries", "data": {}}'), "kept raw: tseries"),
        ("unsettled", leave_open, "3 connections were still open"),
        ("exit-status", end_role("tracer", 1), "tracer exited 1"),
        ("exit-status", kill_tracer, "tracer did not end when asked and was killed"),
        ("server-drops", drop, "dropped 1,234 datagrams at the server's full"),
        ("degraded-io", degrade, "server: gso off: EIO on eth0; one datagram per message"),
        ("not-collected", miss, "socket drops: the engine does not answer"),
        ("starts-dropped", fill_scratch, "@tx_start: 12,262 starts without an end, and the map"),
        ("ends-unmatched", forget_check, "@tx_unmatched: 3 ends without a start, beside 83 with"),
        (
            "programs-skipped",
            run_programs(recursion_miss_count=9),
            "udp-syscall: the kernel skipped its programs at 8 events",
        ),
        ("near-cost", be_quick, "@tx_latencies: 2 of 5 values are below 1,024 ns, where the"),
        ("in-process", record_in_process, "without bpftrace: this machine has no uprobes"),
        (
            "udp-errors",
            udp(is_shared=False, InErrors=9, RcvbufErrors=4, Udp6InCsumErrors=2),
            "server's network namespace: RcvbufErrors 4, InCsumErrors 2, InErrors 3",
        ),
        (
            "udp-errors-around",
            udp(is_shared=True, RcvbufErrors=4, InErrors=4),
            "which others share: RcvbufErrors 4",
        ),
        (
            "sends-dropped",
            report("tx", datagram_dropped_count=3, error_counts={"EMSGSIZE": 3, "EAGAIN": 8}),
            "took 3 datagrams of the server never (tx EMSGSIZE 3)",
        ),
        (
            "send-errors",
            report("tx", error_counts={"ENOBUFS": 3, "EAGAIN": 8}),
            "were made again (tx ENOBUFS 3)",
        ),
        (
            "reads-dropped",
            report("rx", datagram_dropped_counts={"fault": 2}),
            "2 datagrams ended a connection by a fault",
        ),
        (
            "foreign-datagrams",
            report("rx", datagram_dropped_counts={"not_quic": 2, "unsupported_version": 1}),
            "could not use: 2 no QUIC, 1 of an unknown version",
        ),
        (
            "connections-refused",
            report(
                "admission",
                refused_counts={"connections": 7, "half_open": 0},
                handshake_timeout_count=2,
            ),
            "newcomers in: 7 by its bound of connections, 2 whose handshake took too long",
        ),
        (
            "packets-lost",
            report("recovery", packet_sent_count=900, packet_lost_count=3, byte_lost_count=2700),
            "server: 3 packets of 900 sent declared lost (2,700 bytes)",
        ),
        ("workers-missing", lose_a_worker, "1 of 2 workers serve"),
        ("over-mtu", describe(path_mtu_bytes=1500), "takes 9,000 bytes with its headers, and"),
        (
            "clamped",
            clamp,
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


@pytest.mark.parametrize(
    "change",
    [
        udp(is_shared=False, SndbufErrors=9),
        report("tx", error_counts={"EAGAIN": 8, "EINTR": 1}),
        describe(path_mtu_bytes=9000),
        run_programs(recursion_miss_count=None),
    ],
    ids=["full send queue", "patience", "mtu that fits", "kernel that does not tell"],
)
def test_what_costs_nothing_is_not_told(change: Callable[[Evidence], None]) -> None:
    """What was only waited for, fits or is not known makes no finding."""
    evidence = make_evidence()
    change(evidence)
    assert {} == said(evidence)


def test_drops_at_the_servers_own_sockets_are_told_once() -> None:
    """RcvbufErrors that are the sockets' own drops make no second finding."""
    evidence = make_evidence()
    udp(is_shared=False, RcvbufErrors=4, InErrors=4)(evidence)
    assert evidence.costs_after is not None
    evidence.costs_after = replace(evidence.costs_after, sockets=[UdpSocket("::", 4433, 4)])
    assert {"server-drops"} == set(said(evidence))


def test_errors_in_a_namespace_that_others_share_spoil_nothing() -> None:
    """They may be anybody's, so they are a note."""
    evidence = make_evidence()
    udp(is_shared=True, RcvbufErrors=4, InErrors=4)(evidence)
    assert ("ok", {"udp-errors-around"}) == (judge(evidence).word, set(said(evidence)))


def test_every_rule_has_a_case() -> None:
    """No rule is left without a test that makes it speak."""
    cases = test_rule_speaks_with_its_figure.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {rule.name for rule in RULES} == {case[0] for case in cases} | {"other-direction"}


def test_same_degradation_of_two_workers_is_told_once() -> None:
    """Two workers on one device give one sentence."""
    evidence = make_evidence()
    degrade(evidence)
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
        full_map(evidence)
    assert ("map-full" in said(higher), "map-full" in said(lower)) == (False, True)


def test_role_that_died_is_told_once() -> None:
    """The failure names the role; its exit status is not told again."""
    evidence = make_evidence()
    evidence.failure = "server exited 137 after 3.1 s"
    evidence.roles["server"].exit_status = 137
    assert {"ended-early"} == set(said(evidence))


def test_a_load_that_failed_at_its_start_explains_why_nothing_fired() -> None:
    """No probe is blamed for a client that never began."""
    evidence = make_evidence()
    without_maps(evidence)
    evidence.failure, evidence.client_result = "client exited 1 after 0.1 s", None
    evidence.is_load_complete = False
    raw = load_recording("server-report")
    raw["total"]["tx"]["send_call_count"] = raw["total"]["rx"]["receive_call_count"] = 0
    evidence.counters = CounterReport.read(raw)
    assert {"ended-early"} == set(said(evidence))


def test_evidence_of_a_run_that_never_loaded_is_judged() -> None:
    """A run that failed at its start gives one reason, not a list of what is missing."""
    evidence = make_evidence()
    evidence.failure = "server exited 4 after 0.2 s: port 4433 is in use"
    evidence.is_load_started = evidence.is_load_complete = False
    evidence.counters = evidence.client_result = evidence.tracers[0].trace = None
    evidence.roles = {"server": RoleEvidence(["python"], {}, exit_status=4)}
    assert {"ended-early"} == set(said(evidence))


def test_two_witnesses_that_agree_leave_nothing_to_say() -> None:
    """What the recorder counted just so speaks against nothing."""
    evidence = make_evidence()
    record_beside(evidence)
    assert evidence.comparisons
    assert ("ok", {}) == (judge(evidence).word, said(evidence))
