"""
server.recording: the recorder in the server's own process counts as bpftrace does.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.probes import IO_TX_WRITE, MESSAGE_SENT, MMSG_FINISH_SEND, MMSG_START_SEND, PROBES
from server.recording import (
    Recorder,
    RecordingError,
    Rule,
    merge_recordings,
    parse_rules,
    recorded_probes,
    render_buckets,
)
from server.udp import _native

START = PROBES[MMSG_START_SEND].name
FINISH = PROBES[MMSG_FINISH_SEND].name
LATENCY = [
    Rule(probe=START, kind="start", map="@start", keys=(0,)),
    Rule(
        probe=FINISH,
        kind="elapsed",
        map="@latency",
        keys=(0,),
        table="@start",
        unmatched="@unmatched",
    ),
]


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """A recorder that is switched off again: it is the whole process's."""
    made = Recorder()
    yield made
    made.arm([])


def test_an_argument_is_counted_in_bpftraces_buckets(recorder: Recorder) -> None:
    """Below zero, zero, one, then a power of two a bucket; bounds are inclusive."""
    recorder.arm([Rule(probe=START, kind="hist", map="@sizes", argument=2)])
    for size in (-5, 0, 1, 2, 3, 4, 1023, 1024, 2**62):
        _native.fire(MMSG_START_SEND, 3, 0, size)
    assert [
        (-(2**63), -1, 1),
        (0, 0, 1),
        (1, 1, 1),
        (2, 3, 2),
        (4, 7, 1),
        (512, 1023, 1),
        (1024, 2047, 1),
        (2**62, 2**63 - 1, 1),
    ] == [
        (each["min"], each["max"], each["count"])
        for each in recorder.report()["maps"]["@sizes"]["buckets"]
    ]


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_value_lies_within_its_bucket(value: int) -> None:
    """The bounds that are told hold what was counted, for any 64-bit value."""
    recorder = Recorder()
    recorder.arm([Rule(probe=START, kind="hist", map="@sizes", argument=2)])
    _native.fire(MMSG_START_SEND, 3, 0, value)
    (bucket,) = recorder.report()["maps"]["@sizes"]["buckets"]
    recorder.arm([])
    assert bucket["min"] <= value <= bucket["max"]


def test_time_is_measured_from_a_start_to_its_end(recorder: Recorder) -> None:
    """An end is matched by its key, once; one without a start is counted apart."""
    recorder.arm(LATENCY)
    _native.fire(MMSG_START_SEND, 3, 0, 1)
    _native.fire(MMSG_FINISH_SEND, 4, 0, 1)
    _native.fire(MMSG_FINISH_SEND, 3, 0, 1)
    _native.fire(MMSG_FINISH_SEND, 3, 0, 1)
    maps = recorder.report()["maps"]
    assert (1, 2) == (maps["@latency"]["count"], maps["@unmatched"]["count"])
    for name in ("buckets", "least", "most"):
        assert 1 == sum(bucket["count"] for bucket in maps["@latency"][name])


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=300))
def test_starts_and_ends_match_as_in_a_dictionary(events: list[tuple[bool, int]]) -> None:
    """Whatever comes in whatever order: as many matches and leftovers as a dict would give."""
    recorder = Recorder()
    recorder.arm(LATENCY)
    waiting: set[int] = set()
    matched_count = unmatched_count = 0
    for is_start, key in events:
        _native.fire(MMSG_START_SEND if is_start else MMSG_FINISH_SEND, key * 2**16, 0, 1)
        if is_start:
            waiting.add(key)
        elif key in waiting:
            waiting.remove(key)
            matched_count += 1
        else:
            unmatched_count += 1
    maps = recorder.report()["maps"]
    recorder.arm([])
    assert (matched_count, unmatched_count) == (
        maps["@latency"]["count"],
        maps["@unmatched"]["count"],
    )


def test_a_condition_lets_an_event_pass_or_not(recorder: Recorder) -> None:
    """Only the first datagram of a message begins it; only a wait that was seen is a wait."""
    write, sent = PROBES[IO_TX_WRITE].name, PROBES[MESSAGE_SENT].name
    recorder.arm(
        [
            Rule(probe=write, kind="count", map="@begun", where=(2, 0)),
            Rule(probe=sent, kind="hist", map="@wait", argument=2, where_not=(2, 0)),
        ]
    )
    for index in range(7):
        _native.fire(IO_TX_WRITE, 1, 5, index, 1200)
    _native.fire(MESSAGE_SENT, 1, 5, 0)
    _native.fire(MESSAGE_SENT, 1, 5, 900)
    maps = recorder.report()["maps"]
    assert (1, 1) == (maps["@begun"]["count"], maps["@wait"]["count"])


def test_more_starts_than_there_is_room_for_are_counted_as_lost(recorder: Recorder) -> None:
    """A table is bounded, and does not lose in silence."""
    recorder.arm(LATENCY)
    for key in range(40_000):
        _native.fire(MMSG_START_SEND, key, 0, 1)
    assert 40_000 - 2**15 == recorder.report()["lost_start_count"]


def test_what_is_recorded_is_listened_to_and_not_called_traced(recorder: Recorder) -> None:
    """The server fires for the recorder as for a tracer, and still tells the two apart."""
    recorder.arm(LATENCY)
    assert [START, FINISH] == sorted(recorded_probes(), reverse=True)
    mask = 1 << MMSG_START_SEND | 1 << MMSG_FINISH_SEND
    assert (mask, 0) == (_native.listening() & mask, _native.traced() & mask)
    recorder.arm([])
    assert ([], 0) == (recorded_probes(), _native.listening() & mask)


def test_clearing_forgets_counts_and_starts(recorder: Recorder) -> None:
    """A window that begins anew holds nothing of the one before."""
    recorder.arm(LATENCY)
    _native.fire(MMSG_START_SEND, 3, 0, 1)
    recorder.clear()
    _native.fire(MMSG_FINISH_SEND, 3, 0, 1)
    report = recorder.report()
    assert (1, 1, 0) == (
        report["event_count"],
        report["maps"]["@unmatched"]["count"],
        report["maps"]["@latency"]["count"],
    )


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (None, "expected a list"),
        ([{"probe": START}], "is no rule"),
        ([{"probe": "nothing", "kind": "hist", "map": "@x"}], "no probe 'nothing'"),
        ([{"probe": START, "kind": "avg", "map": "@x"}], "no kind 'avg'"),
        ([{"probe": [START], "kind": "hist", "map": "@x"}], "names must be words"),
        ([{"probe": START, "kind": "hist", "map": ["@x"]}], "names must be words"),
        ([{"probe": START, "kind": "hist", "map": "@x", "where": [1]}], "a condition is"),
        ([{"probe": START, "kind": "hist", "map": "@x", "where_not": ["2", 0]}], "a condition is"),
        ([{"probe": START, "kind": "hist", "map": "@x", "argument": "2"}], "by their numbers"),
        ([{"probe": START, "kind": "start", "map": "@x", "keys": 0}], "by their numbers"),
        ([{"probe": START, "kind": "start", "map": "@x", "keys": [0, 1, 2]}], "one argument or"),
        ([{"probe": START, "kind": "elapsed", "map": "@x", "keys": [0]}], "needs the table"),
    ],
    ids=[
        "none",
        "half",
        "probe",
        "kind",
        "probes",
        "maps",
        "half-condition",
        "condition",
        "argument",
        "key",
        "keys",
        "no-table",
    ],
)
def test_rules_that_make_no_sense_are_refused(raw: object, words: str) -> None:
    """Whoever asks is told what is wrong."""
    with pytest.raises(RecordingError, match=words):
        parse_rules(raw)


def test_too_many_rules_leave_the_recorder_off(recorder: Recorder) -> None:
    """Half a set of rules would count half of the truth."""
    rules = [Rule(probe=START, kind="count", map=f"@{index}") for index in range(9)]
    with pytest.raises(RecordingError):
        recorder.arm(rules)
    assert [] == recorded_probes()


@pytest.mark.parametrize("number", [{"argument": 4}, {"argument": 2**40}, {"where": (0, 2**70)}])
def test_numbers_out_of_bounds_leave_the_recorder_off(recorder: Recorder, number: Any) -> None:
    """Nothing goes on under the old rules, and nothing but a refusal comes of it."""
    recorder.arm(LATENCY)
    with pytest.raises(RecordingError, match="cannot be recorded"):
        recorder.arm([Rule(probe=START, kind="hist", map="@x", **number)])
    assert ([], {}) == (recorded_probes(), recorder.report()["maps"])


def test_recordings_of_workers_that_differ_are_not_added_up() -> None:
    """A worker that does not record would make a sum look whole."""
    recorder = Recorder()
    recorder.arm(LATENCY)
    armed = recorder.report()
    recorder.arm([])
    with pytest.raises(RecordingError, match="record different maps"):
        merge_recordings([armed, recorder.report()])


def test_recordings_of_workers_add_up() -> None:
    """Counts by map and bucket are summed; of the largest width the largest counts."""
    one = {
        "maps": {"@x": {"kind": "hist", "count": 3, "buckets": [{"min": 1, "max": 1, "count": 3}]}},
        "widths": render_buckets([0, 3]),
        "largest_width_ns": 7,
        "event_count": 3,
        "lost_start_count": 0,
    }
    merged = merge_recordings([one, {**one, "largest_width_ns": 9}])
    assert {
        "maps": {"@x": {"kind": "hist", "count": 6, "buckets": [{"min": 1, "max": 1, "count": 6}]}},
        "widths": [{"min": 0, "max": 0, "count": 6}],
        "largest_width_ns": 9,
        "event_count": 6,
        "lost_start_count": 0,
    } == merged
