"""
A result in lines: every figure with its unit, what fell short with its fix, nothing hidden.
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiclab.accounting import account
from quiclab.command.summary import (
    Line,
    render_accounts,
    render_grants,
    render_map,
    render_result,
    render_rows,
    render_trace,
    render_verdict,
)
from quiclab.experiment import run
from quiclab.grants import Grant
from quiclab.histogram import Bucket, Histogram
from quiclab.observer import Phase
from quiclab.runner.fake import FakeRunner
from quiclab.runner.faults import Death, Faults
from quiclab.scenario import Scenario
from quiclab.trace.events import MapSnapshot, Trace
from quiclab.trace.script import MapNote, load_script, parse_script
from quiclab.verdict import Finding, Verdict
from tests.quiclab.verdict.plants import make_evidence

NOTE = MapNote("@tx_arg_counts", "messages", "asked of one sendmmsg")
SCRIPT = parse_script(
    "// t.bt  A test.\n"
    "// Map: @sizes bytes of a datagram\n"
    "// Map: @allocs bytes a buffer grew by\n"
    "// Map: @unmatched calls without a start\n"
    "// Check: @unmatched = 0\n"
    "// Direction: upload @allocs\n"
    "usdt:$1:write { @sizes = hist(arg3); }\n",
    path=Path("t.bt"),
)


def histogram(*counts: int) -> Histogram:
    """Buckets of powers of two from 16 on, with these counts."""
    return Histogram(
        tuple(Bucket(2**power, 2 ** (power + 1) - 1, n) for power, n in enumerate(counts, start=4))
    )


def texts(lines: list[Line]) -> list[str]:
    """The texts alone."""
    return [line.text for line in lines]


def test_a_histogram_has_its_meaning_its_total_and_shares() -> None:
    """Heading, then a row a bucket: label, count, bar, share."""
    snapshot = MapSnapshot("@tx_arg_counts", "hist", ((None, histogram(25, 75)),))
    assert texts(list(render_map(snapshot, NOTE))) == [
        "",
        "@tx_arg_counts     messages asked of one sendmmsg            100 events",
        "[16, 32)              25 |@@@@@@@@@@@@                        |  25 %",
        "[32, 64)              75 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|  75 %",
    ]


@given(st.lists(st.integers(min_value=0, max_value=10**9), min_size=1, max_size=20))
def test_a_filled_bucket_never_reads_as_empty(counts: list[int]) -> None:
    """However small its share, a bucket with values says more than 0 %; an empty one says 0."""
    for row, count in zip(render_rows(histogram(*counts)), counts, strict=True):
        share = row.rpartition("|")[2].strip()
        assert (share == "0 %") is (count == 0)


def test_a_plain_figure_is_one_line() -> None:
    """A count needs no table."""
    snapshot = MapSnapshot("@starts", "map", ((None, 12_345),))
    assert texts(list(render_map(snapshot, None))) == ["", "@starts" + " " * 58 + "12,345"]


def test_a_long_map_is_cut_with_a_word() -> None:
    """Many keys stand in trace.txt; the terminal says how many were left out."""
    entries = tuple((f"key{number}", number) for number in range(100))
    lines = texts(list(render_map(MapSnapshot("@by_key", "map", entries), None)))
    assert lines[-1] == "... and 76 more lines in trace.txt"


def test_an_empty_map_is_named_where_it_should_have_been_filled() -> None:
    """Nothing recorded is said; a map of the other direction and a kept promise are not."""
    assert [
        text for text in texts(list(render_trace(Trace(), SCRIPT, direction="download"))) if text
    ] == ["@sizes             bytes of a datagram                 nothing recorded"]
    upload = texts(list(render_trace(Trace(), SCRIPT, direction="upload")))
    assert any(text.startswith("@allocs") for text in upload)


def test_a_broken_promise_of_a_script_is_shown() -> None:
    """A map that must be 0 and is not stands among the others."""
    trace = Trace(series={"@unmatched": (MapSnapshot("@unmatched", "map", ((None, 2),)),)})
    lines = texts(list(render_trace(trace, SCRIPT, direction="download")))
    assert any(text.startswith("@unmatched") and text.endswith("2") for text in lines)


def test_what_fell_short_comes_with_its_reason_and_its_fix() -> None:
    """Asked and granted stand side by side; a shortfall has a line of its own with the fix."""
    grants = [
        Grant(what="server TX ring", asked="8,000,000 B", granted="128 messages × 65,535 B"),
        Grant(what="server SO_RCVBUF", asked=None, granted="106,496 B"),
        Grant(
            what="server SO_SNDBUF",
            asked="8,000,000 B",
            granted="4,194,304 B",
            is_short=True,
            reason="net.core.wmem_max is 4194304",
            fix="sudo sysctl net.core.wmem_max=8000000",
        ),
        Grant(what="server GSO", asked="on", granted="on"),
        Grant(what="server GRO", asked="on", granted="on"),
    ]
    lines = [(line.label, line.text) for line in render_grants(grants, is_verbose=False)]
    assert lines == [
        ("granted", "server TX ring: 128 messages × 65,535 B for 8,000,000 B asked"),
        ("granted", "server SO_RCVBUF: 106,496 B, the default"),
        (
            "short",
            ("server SO_SNDBUF: 4,194,304 B of 8,000,000 B asked: net.core.wmem_max is 4194304"),
        ),
        ("", "(sudo sysctl net.core.wmem_max=8000000)"),
        ("granted", "as asked: server GSO on, server GRO on"),
    ]


def test_accounts_say_what_tracing_cost_and_what_balances() -> None:
    """One line a script for its hits, one for all balances."""
    lines = [
        (line.label, line.text)
        for line in render_accounts(account(make_evidence()), is_verbose=False)
    ]
    assert lines == [
        (
            "probes",
            (
                "udp-syscall: 746 hits × 465 ns = 0.3 ms of CPU at least, "
                "< 0.1 % of the server's 0.70 CPU-s"
            ),
        ),
        ("accounts", "9 of 9 balances kept between tracer, server and client"),
    ]


def test_accounts_are_told_one_by_one_when_verbose() -> None:
    """Each pair and each balance has a line with its figures."""
    lines = texts(list(render_accounts(account(make_evidence()), is_verbose=True)))
    assert (
        "udp-syscall @tx_arg_counts: 83 starts, 83 ended, 0 outstanding of at most 4,096, "
        "0 ends without a start"
    ) in lines
    assert "events of udp-syscall: traced @tx_latencies 83 = server tx.send_call_count 83" in lines


@pytest.mark.parametrize(("lost", "first"), [(0, "load"), (3, "verdict")], ids=["ok", "degraded"])
def test_a_verdict_that_is_not_ok_stands_first(lost: int, first: str, tmp_path: Path) -> None:
    """Who reads one line reads the reservation; it is repeated near the end with the rest."""
    scenario = Scenario.model_validate({"script": ("udp-syscall",), "direction": "both"})
    runner = FakeRunner(Faults(lost_event_count=lost))
    result = run(scenario, runner=runner, output=tmp_path, clock=runner.clock)
    lines = list(render_result(result, scenario, [load_script("udp-syscall")], is_verbose=False))
    assert first == lines[0].label
    assert "verdict" == [line.label for line in lines if line.label][-1]


def test_a_run_without_a_load_claims_no_balance(tmp_path: Path) -> None:
    """A server that died before the load leaves one verdict and no line that reads like praise."""
    scenario = Scenario.model_validate({"script": ("udp-syscall",)})
    runner = FakeRunner(Faults(deaths=[Death("server", Phase.CLIENT, exit_status=137)]))
    result = run(scenario, runner=runner, output=tmp_path, clock=runner.clock)
    lines = list(render_result(result, scenario, [load_script("udp-syscall")], is_verbose=False))
    labels = [line.label for line in lines]
    assert (1, 0, 0) == tuple(labels.count(each) for each in ("verdict", "accounts", "limit"))


def test_every_finding_is_said_and_the_first_only_once() -> None:
    """The verdict's reason is not repeated below it."""
    verdict = Verdict(
        word="degraded",
        summary="3 events were lost",
        findings=[
            Finding(rule="lost", severity="degraded", text="3 events were lost"),
            Finding(rule="memlock", severity="note", text="memlock could not be raised"),
        ],
    )
    lines = list(render_verdict(verdict))
    assert [(line.label, line.text, line.tone) for line in lines] == [
        ("verdict", "degraded: 3 events were lost", "doubtful"),
        ("", "note: memlock could not be raised", ""),
    ]
