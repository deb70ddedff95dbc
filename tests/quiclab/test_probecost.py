"""
What probes cost: hits by whoever counted them, the figure of a hit, times that lie near it.
"""

from pathlib import Path

import pytest

from quiclab.probecost import COUNTERS, TIMING_NS, WAY_NS, count_hits, find_header_cost, weigh
from quiclab.runner.recorded import load_recording
from quiclab.trace.ndjson import parse_trace
from quiclab.trace.script import find_scripts, load_script, parse_script
from server.probes import PROBES


def test_hits_are_the_events_that_the_server_counted() -> None:
    """Two probes a send call, two a receive call."""
    counters = load_recording("server-report")["total"]
    assert 2 * 83 + 2 * 290 == count_hits(load_script("udp-syscall"), counters)


def test_a_script_with_an_uncounted_probe_has_no_hits_by_the_server() -> None:
    """A tracepoint, a wildcard or a cursor of the ring: nobody but the kernel can tell."""
    for point in ("tracepoint:udp:x", "usdt:$1:*", "usdt:$1:s2n_quic_platform__nothing"):
        script = parse_script(f"{point} {{ @a = count(); }}", path=Path("a.bt"))
        assert count_hits(script, load_recording("server-report")["total"]) is None


def test_the_kernel_is_believed_before_the_header() -> None:
    """Its own count and time of the programs' runs make the figure, with the way in and out."""
    cost = weigh(load_script("udp-syscall"), None, counters={}, run_count=100, run_time_ns=20_000)
    assert cost is not None
    assert (100, True, WAY_NS + TIMING_NS + 200) == (
        cost.hit_count,
        cost.is_counted_by_kernel,
        cost.hit_ns,
    )
    assert "100 hits × 640 ns = 0.1 ms of CPU" == cost.render()


@pytest.mark.parametrize("script", find_scripts(), ids=lambda script: script.name)
def test_each_shipped_script_says_what_a_hit_costs(script) -> None:  # type: ignore[no-untyped-def]
    """The header's Cost line is read by the lab, so its form is a contract."""
    hit_ns = find_header_cost(script)
    assert hit_ns is not None
    assert WAY_NS <= hit_ns < 1000


def test_nobody_knows_what_an_unknown_script_costs() -> None:
    """Without a header and the kernel's figures nothing is claimed."""
    script = parse_script("usdt:$1:message_sent { @a = count(); }", path=Path("a.bt"))
    counters = load_recording("server-report")["total"]
    assert weigh(script, None, counters=counters, run_count=None, run_time_ns=None) is None


def test_times_near_the_cost_of_a_hit_are_counted() -> None:
    """A bucket of which half lies below twice the cost is near; its upper bound is told."""
    buckets = ", ".join(
        f'{{"min": {low}, "max": {2 * low - 1}, "count": {count}}}'
        for low, count in ((256, 1), (512, 2), (1024, 4), (2048, 8))
    )
    trace = parse_trace(f'{{"type": "hist", "data": {{"@tx_latencies": [{buckets}]}}}}\n')
    cost = weigh(load_script("udp-syscall"), trace, counters={}, run_count=10, run_time_ns=2_000)
    assert cost is not None
    assert [("@tx_latencies", 3, 1024, 15)] == [
        (near.map_name, near.count, near.below_ns, near.total_count) for near in cost.near
    ]


def test_a_time_that_the_server_measured_itself_is_not_marked() -> None:
    """message-wait has no pair of probes, so no hit lies inside its times."""
    trace = parse_trace(
        '{"type": "hist", "data": {"@wait_ns": [{"min": 256, "max": 511, "count": 9}]}}\n'
    )
    cost = weigh(load_script("message-wait"), trace, counters={}, run_count=9, run_time_ns=900)
    assert cost is not None
    assert () == tuple(cost.near)


def test_every_counter_belongs_to_a_probe() -> None:
    """The table names probes of the server; the ring's four cursors alone are not counted."""
    names = {probe.name for probe in PROBES}
    assert set(COUNTERS) <= names
    assert all("__ring__" in name for name in names - set(COUNTERS))
