"""
The second witness: the recorder's maps written as bpftrace's, and held against them.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiclab.errors import UsageError
from quiclab.runner.recorded import RECORDINGS, load_trace, record_maps
from quiclab.trace.ndjson import parse_trace
from quiclab.trace.script import Script, find_scripts, load_script
from quiclab.trace.witness import (
    compare_maps,
    recording_rules,
    render_comparison,
    render_trace,
)
from server.recording import parse_rules, render_buckets

SCRIPTS = [script.name for script in find_scripts()]
RECORDED = [name for name in SCRIPTS if (RECORDINGS / f"{name}.jsonl").exists()]
SCRIPT = load_script("udp-syscall")


def make_recording(**buckets: list[dict[str, int]]) -> dict[str, Any]:
    """What a recorder counted as @tx_latencies: its own, and the bounds of each event."""
    own = buckets["own"]
    counted = {
        "kind": "elapsed",
        "count": sum(bucket["count"] for bucket in own),
        "buckets": own,
        "least": buckets.get("least", own),
        "most": buckets.get("most", own),
    }
    return {
        "maps": {"udp-syscall@tx_latencies": counted},
        "widths": [{"min": 256, "max": 511, "count": 2}],
        "largest_width_ns": 12_345,
    }


def bucket(low: int, count: int) -> dict[str, int]:
    """A bucket of a power of two."""
    return {"min": low, "max": 2 * low - 1, "count": count}


def trace_of(buckets: list[dict[str, int]]) -> bytes:
    """What bpftrace prints of @tx_latencies."""
    return render_trace(SCRIPT, make_recording(own=buckets))


# Rules --------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_shipped_script_has_rules_for_each_of_its_maps(name: str) -> None:
    """What a header says of maps the recorder fills, and the server takes the rules."""
    script = load_script(name)
    rules = recording_rules([script])
    assert len(rules) == len(parse_rules(rules))
    filled = {rule["map"] for rule in rules if rule["kind"] != "start"}
    filled |= {rule["unmatched"] for rule in rules if rule.get("unmatched")}
    assert {f"{name}{note.name}" for note in script.maps} == filled
    assert set(script.server_probe_names) == {rule["probe"] for rule in rules}


def test_maps_of_one_name_in_two_scripts_stay_apart() -> None:
    """Both udp-syscall and io-latencies have @tx_latencies."""
    rules = recording_rules([load_script("udp-syscall"), load_script("io-latencies")])
    names = {rule["map"] for rule in rules}
    assert {"udp-syscall@tx_latencies", "io-latencies@tx_latencies"} <= names


def test_a_script_of_the_users_own_cannot_be_recorded(tmp_path: Any) -> None:
    """The recorder knows the shipped ones, and the error names them."""
    own = Script(name="mine", path=tmp_path / "mine.bt", text="BEGIN { }")
    with pytest.raises(UsageError, match=r"knows generic-offload, .* mine is none of them"):
        recording_rules([own])


# As bpftrace prints it ----------------------------------------------------------


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_maps_read_as_bpftraces_own(name: str) -> None:
    """Written and read back, a recording holds what the trace of the same run holds."""
    script = load_script(name)
    trace = parse_trace(render_trace(script, record_maps(recording_rules([script]))))
    assert load_trace(name).maps.keys() == trace.maps.keys()
    for map_name in trace.maps:
        assert load_trace(name).event_count(map_name) == trace.event_count(map_name)
        assert load_trace(name).histogram(map_name) == trace.histogram(map_name)


def test_the_first_line_says_who_wrote_it() -> None:
    """A folder whose trace bpftrace did not write must not look as if it had."""
    first = trace_of([bucket(1024, 1)]).splitlines()[0]
    assert b"recorded in process, without bpftrace" in first


@given(st.lists(st.integers(0, 5), min_size=66, max_size=66))
def test_empty_buckets_between_others_are_written_and_counts_kept(counts: list[int]) -> None:
    """As bpftrace prints them: from the first that holds something to the last, without gaps."""
    counts[0] = 0
    histogram = parse_trace(trace_of(render_buckets(counts))).histogram("@tx_latencies")
    if not any(counts):
        assert histogram is None
        return
    assert histogram is not None
    assert sum(counts) == histogram.total_count
    shown = [each.count for each in histogram.buckets]
    first = next(index for index, count in enumerate(counts) if count)
    assert counts[first : first + len(shown)] == shown


# Compared -----------------------------------------------------------------------


def compare_latencies(traced: list[dict[str, int]], **recorded: list[dict[str, int]]) -> str:
    """Compare what bpftrace measured with a recording; what differs, or ""."""
    (compared,) = compare_maps(SCRIPT, parse_trace(trace_of(traced)), make_recording(**recorded))
    assert compared.is_equal is (compared.difference == "")
    return compared.difference


def test_times_agree_within_the_bounds_of_each_event() -> None:
    """A value that may lie on either side of a bucket's bound is no difference."""
    own = [bucket(1024, 3), bucket(2048, 5)]
    may_be_more = {"least": own, "most": [bucket(1024, 2), bucket(2048, 6)]}
    assert "" == compare_latencies(own, own=own, **may_be_more)
    moved = [bucket(1024, 2), bucket(2048, 6)]
    assert "" == compare_latencies(moved, own=own, **may_be_more)


def test_a_time_beyond_the_bounds_of_its_event_is_a_difference() -> None:
    """One value more in a bucket than can be: said with the bound and the figures."""
    own = [bucket(1024, 3), bucket(2048, 5)]
    moved = [bucket(1024, 1), bucket(2048, 7)]
    assert (
        "below 2,048 ns bpftrace counted 1 times, and by the recorder's bounds of each event "
        "it can be 2 to 3"
    ) == compare_latencies(moved, own=own, least=own, most=[bucket(1024, 2), bucket(2048, 6)])


def test_totals_that_differ_are_a_difference() -> None:
    """An event that only one of the two saw, whatever its time."""
    assert "bpftrace counted 2 events, the recorder 3" == compare_latencies(
        [bucket(1024, 2)], own=[bucket(1024, 3)]
    )


def test_sizes_must_be_equal_bucket_for_bucket() -> None:
    """The same total in other buckets is a difference of sizes."""
    recording = make_recording(own=[bucket(4, 2), bucket(8, 1)])
    recording["maps"]["udp-syscall@tx_latencies"]["kind"] = "hist"
    traced = parse_trace(trace_of([bucket(4, 1), bucket(8, 2)]))
    (compared,) = compare_maps(SCRIPT, traced, recording)
    assert ("size", "below 8 bpftrace counted 1 values, the recorder 2") == (
        compared.kind,
        compared.difference,
    )


def test_an_open_last_bucket_holds_everything_above() -> None:
    """Bpftrace 0.17 has one bucket from 2^31 on; the recorder has them all."""
    high = [bucket(2**31, 1), bucket(2**33, 1)]
    line = (
        b'{"type": "hist", "data": {"@tx_latencies": [{"min": -2147483648, "max": 0, "count": 2}]}}'
    )
    (compared,) = compare_maps(SCRIPT, parse_trace(line), make_recording(own=high))
    assert compared.is_equal


def test_comparison_is_told_in_one_line() -> None:
    """How many agree, how, and how far apart the two read the clock."""
    recording = make_recording(own=[bucket(1024, 3)])
    compared = compare_maps(SCRIPT, parse_trace(trace_of([bucket(1024, 3)])), recording)
    assert (
        "1 of 1 maps agree with the in-process recorder: 1 times within each event's own bounds "
        "(at most 12 µs apart, median below 512 ns)"
    ) == render_comparison(compared, recording)
