"""bpftrace's JSON, of every version recorded, with what goes wrong in it."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiclab.histogram import Bucket, Histogram
from quiclab.trace.events import HelperError, Stats, Trace
from quiclab.trace.ndjson import TraceParser, parse_trace
from tests.quiclab.trace.conftest import RECORDINGS, VERSIONS

ALL_RECORDINGS = sorted(RECORDINGS.glob("*/*.jsonl"))


def record(kind: str, **data: object) -> str:
    """Write one record as bpftrace does."""
    return json.dumps({"type": kind, "data": data}) + "\n"


def fed_in_pieces(data: bytes, sizes: list[int]) -> Trace:
    """Feed a parser pieces of the given sizes, then the rest."""
    parser = TraceParser()
    for size in sizes:
        parser.feed(data[:size])
        data = data[size:]
    parser.feed(data)
    return parser.close()


@pytest.mark.parametrize("path", ALL_RECORDINGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_fed_byte_by_byte_equals_fed_whole(path: Path) -> None:
    """How the output is cut into pieces makes no difference, on any recording."""
    data = path.read_bytes()
    assert parse_trace(data) == fed_in_pieces(data, [1] * len(data))


LINES = st.one_of(
    st.sampled_from(
        [
            "",
            "   ",
            '{"type": "map", "data": {"@x": 5}}',
            '{"type": "map", "data": {"@é": {"a,b": "9007199254740993"}}}',
            '{"type": "hist", "data": {"@h": [{"min": 1, "max": 1, "count": 2}]}}',
            '{"type": "lost_events", "data": {"events": 7}}',
            '{"type": "printf", "data": "x\\n"}',
            '{"type": "value", "data": ["err",Operation not permitted]}',
            '{"type": "new_thing", "data": 1}',
            "not a record",
        ]
    ),
    st.text(st.characters(codec="utf-8", exclude_characters="\n")),
)


@given(st.lists(LINES), st.booleans(), st.lists(st.integers(0, 20)))
def test_pieces_of_any_size_equal_the_whole(
    lines: list[str], is_ended: bool, sizes: list[int]
) -> None:
    """Any output, good or bad, ended or cut off, reads the same in any pieces."""
    data = ("\n".join(lines) + ("\n" if is_ended else "")).encode()
    assert parse_trace(data) == fed_in_pieces(data, sizes)


@given(st.binary(max_size=200))
def test_any_bytes_are_taken(data: bytes) -> None:
    """Whatever a dying tracer leaves, reading it never fails."""
    parse_trace(data)


@given(st.lists(LINES))
def test_every_line_that_is_not_blank_is_accounted_for(lines: list[str]) -> None:
    """A line is a known record, kept raw, or kept as of an unknown type: none is dropped."""
    lines = [line.replace("\r", "") for line in lines]
    trace = parse_trace("\n".join([*lines, ""]))
    kept = (
        sum(len(snapshots) for snapshots in trace.series.values())
        + len(trace.printed)
        + trace.lost_event_count // 7
        + len(trace.unparsed)
        + len(trace.unknown)
    )
    assert sum(1 for line in lines if line.strip()) == kept


def test_kinds_of_maps_read_the_same_from_every_version(recording: Path, version: str) -> None:
    """One model holds every kind of map, whatever the version wrote it like."""
    maps = parse_trace((recording / "kinds.jsonl").read_bytes()).maps
    assert 2 == maps["@count"].value
    assert -2 == maps["@sum"].value
    assert (5, 9) == (maps["@min"].value, maps["@max"].value)
    assert 42 == maps["@integer"].value
    assert -1 == maps["@negative"].value
    assert 'he said "hi"' == maps["@string"].value
    assert (1, "two", 3) == maps["@tuple"].value
    assert {("1,b", 5), ("2,c", 6)} == set(maps["@keyed"].entries)
    assert Stats(average=4) == maps["@avg"].value
    assert (("y", Stats(average=10)),) == maps["@avg_keyed"].entries
    assert Stats(average=5, count=2, total=10) == maps["@stats"].value
    assert (("x", Stats(average=4, count=1, total=4)),) == maps["@stats_keyed"].entries


def test_integers_above_2_to_the_53_keep_every_digit(recording: Path) -> None:
    """0.27 writes them as text; they are read as the integers they are."""
    maps = parse_trace((recording / "kinds.jsonl").read_bytes()).maps
    assert 9007199254740993 == maps["@long"].value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9007199254740993", 2**53 + 1),
        ("-9007199254740993", -(2**53) - 1),
        ("18446744073709551615", 2**64 - 1),
        ("12345", "12345"),
        ("09007199254740993", "09007199254740993"),
        ("99999999999999999999999", "99999999999999999999999"),
        ("१२३४५६७८९०१२३४५६७", "१२३४५६७८९०१२३४५६७"),
    ],
)
def test_only_long_integers_are_read_from_text(text: str, value: object) -> None:
    """A string of the script's own stays a string, even when it holds digits."""
    assert value == parse_trace(record("map", **{"@x": text})).maps["@x"].value


def test_open_ended_buckets_keep_their_counts(recording: Path) -> None:
    """Buckets with only a lower or only an upper bound are read, none is lost."""
    trace = parse_trace((recording / "kinds.jsonl").read_bytes())
    negative = trace.histogram("@hist_negative")
    linear = trace.histogram("@lhist")
    assert negative is not None
    assert linear is not None
    assert Bucket(None, -1, 1) == negative.buckets[0]
    assert Bucket(None, -1, 1) == linear.buckets[0]
    assert Bucket(100, None, 1) == linear.buckets[-1]
    assert 4 == linear.total_count


def test_bounds_above_2_gi_are_told_as_far_as_the_version_knows_them(
    recording: Path, version: str
) -> None:
    """0.17 has one bucket for all of 2^31 and more, with overflown bounds: it reads open-ended."""
    large = parse_trace((recording / "kinds.jsonl").read_bytes()).histogram("@hist_large")
    assert large is not None
    assert 3 == large.total_count
    if version.startswith("0.17"):
        assert Bucket(2**31, None, 2) == large.buckets[-1]
    else:
        assert Bucket(2**33, 2**34 - 1, 1) == large.buckets[-1]


def test_keyed_histograms_are_counted_over_all_keys(recording: Path) -> None:
    """A histogram per key is read per key, and its events are those of all keys."""
    snapshot = parse_trace((recording / "kinds.jsonl").read_bytes()).maps["@hist_keyed"]
    assert ["a", "b"] == [key for key, _ in snapshot.entries]
    assert 3 == snapshot.event_count


def test_the_last_of_many_snapshots_is_the_final_one(recording: Path) -> None:
    """A map printed at intervals and at the end is never summed; the series is kept apart."""
    trace = parse_trace((recording / "snapshots.jsonl").read_bytes())
    totals = [snapshot.event_count for snapshot in trace.series["@sizes"]]
    assert [2, 3, 4, 4] == totals
    assert 4 == trace.event_count("@sizes")
    assert 4 == trace.maps["@turns"].value


def test_maps_stand_in_the_order_of_their_last_print(recording: Path) -> None:
    """Maps come in the order in which bpftrace printed them at the end."""
    text = (recording / "snapshots.jsonl").read_text()
    last_lines = text.splitlines()[-3:]
    assert [next(iter(json.loads(line)["data"])) for line in last_lines] == list(
        parse_trace(text).maps
    )


def test_lost_events_are_summed_over_pieces(recording: Path) -> None:
    """However many reports of loss there are, printed and lost texts make up all of them."""
    trace = parse_trace((recording / "lost.jsonl").read_bytes())
    assert trace.lost_event_count > 0
    assert 300 == trace.lost_event_count + len(trace.printed)


def test_lines_that_are_no_json_are_kept_raw(recording: Path, version: str) -> None:
    """0.17 leaves values unquoted: that line is kept and counted, the good ones are used."""
    trace = parse_trace((recording / "raw.jsonl").read_bytes())
    assert 1 == trace.maps["@good"].value
    assert not trace.is_truncated
    if version.startswith("0.17"):
        (line,) = trace.unparsed
        assert '{"type": "value", "data": ["err",Operation not permitted]}' == line.text
        assert (2, True) == (line.line_number, line.reason.startswith("no JSON"))
    else:
        assert () == trace.unparsed
        assert (("err", "Operation not permitted"),) == trace.printed_values


def test_a_full_map_is_told_by_its_keys(recording: Path, version: str) -> None:
    """A map with as many keys as it may hold is named, also where bpftrace says nothing."""
    trace = parse_trace((recording / "full.jsonl").read_bytes())
    assert {"@keys": 3} == trace.full_maps(key_limit=3)
    assert {} == trace.full_maps()
    if version.startswith("0.17"):
        assert () == trace.helper_errors
    else:
        assert {"map_update_elem"} == {error.helper for error in trace.helper_errors}
        assert 2 == sum(error.count for error in trace.helper_errors)


def test_helper_errors_are_counted_by_what_they_say() -> None:
    """Equal reports of a failed helper are one error with a count, so a flood stays small."""
    line = (
        '{"type": "helper_error", "msg": "Bad address", "helper": "probe_read", "retcode": -14}\n'
    )
    trace = parse_trace(line * 1000)
    assert (HelperError("Bad address", "probe_read", -14, 1000),) == trace.helper_errors


def test_keys_with_escapes_are_read_as_the_version_wrote_them(
    recording: Path, version: str
) -> None:
    """0.23 escapes keys twice; which text was meant cannot be told, so it is left so."""
    ((key, _),) = parse_trace((recording / "escapes.jsonl").read_bytes()).maps["@text"].entries
    assert {"0.23.2": r"a\"b\\c"}.get(version, r'a"b\c') == key


def test_keys_printed_alike_are_all_kept() -> None:
    """Two keys that print the same stay two entries."""
    trace = parse_trace('{"type": "map", "data": {"@x": {"a": 1, "a": 2}}}\n')
    assert (("a", 1), ("a", 2)) == trace.maps["@x"].entries


@pytest.mark.parametrize("version_name", VERSIONS)
def test_a_cut_last_line_is_flagged_and_the_rest_used(version_name: str) -> None:
    """A killed tracer's half line is flagged; every line before it counts."""
    data = (RECORDINGS / version_name / "udp-syscall.jsonl").read_bytes().rstrip()
    whole = parse_trace(data)
    assert not whole.is_truncated
    cut = parse_trace(data[:-4])
    assert cut.is_truncated
    assert 1 == len(cut.unparsed)
    assert list(whole.maps)[:-1] == list(cut.maps)


def test_blank_lines_are_skipped() -> None:
    """Blank lines, which 0.17 and 0.23 write between records, mean nothing."""
    assert parse_trace(record("map", **{"@x": 1})) == parse_trace(
        "\n\n" + record("map", **{"@x": 1}) + "\n \n"
    )


def test_unknown_record_types_are_kept_and_named() -> None:
    """A record type of a later version is kept raw under its name."""
    line = '{"type": "tseries", "data": {"@t": [{"interval_start":"x","value":3}]}}'
    (unknown,) = parse_trace(line + "\n").unknown
    assert ("tseries", line) == (unknown.reason, unknown.text)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"type": "hist", "data": {"@x": [{"min": 8, "max": 15, "count": -3}]}}', "count -3"),
        ('{"type": "hist", "data": {"@x": 5}}', "without buckets"),
        ('{"type": "hist", "data": {"@x": [5]}}', "without bounds"),
        ('{"type": "hist", "data": {"@x": [{"min": 1, "max": 1}]}}', "integer was expected"),
        ('{"type": "map", "data": 5}', "without a map"),
        ('{"type": "stats", "data": {"@x": "y"}}', "integer was expected"),
        ('{"type": "lost_events", "data": {}}', "integer was expected"),
        ('{"type": "lost_events"}', "without events"),
        ('{"type": 5}', "no type"),
        ('["map"]', "no type"),
        ('{"type": "map", "data": {"@x": NaN}}', "NaN is no JSON"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_damaged_records_are_kept_with_the_reason(line: str, words: str) -> None:
    """A record that breaks its own form is kept raw with what is wrong; others are used."""
    trace = parse_trace(line + "\n" + record("map", **{"@good": 1}))
    (unparsed,) = trace.unparsed
    assert words in unparsed.reason
    assert 1 == trace.maps["@good"].value


def test_an_absent_map_holds_no_events() -> None:
    """Nothing recorded means the map is not printed; it then counts 0."""
    assert 0 == parse_trace("").event_count("@tx_latencies")
    assert parse_trace("").histogram("@tx_latencies") is None


def test_probe_count_is_the_announced_one(recording: Path) -> None:
    """The attach record's count, BEGIN and END included, is read from every version."""
    counts = {
        path.stem: parse_trace(path.read_bytes()).announced_probe_count
        for path in recording.glob("*-*.jsonl")
    }
    four = {"generic-offload": 4, "io-latencies": 6, "recv-buffers": 5, "udp-syscall": 6}
    assert four | {"message-wait": 3} == counts


def test_the_attach_record_alone_proves_attaching_only_where_it_comes_after(
    recording: Path, version: str
) -> None:
    """Up to 0.23 the record comes before the probes are on; the first text printed proves it."""
    parser = TraceParser()
    lines = (recording / "udp-syscall.jsonl").read_bytes().splitlines(keepends=True)
    parser.feed(lines[0])
    assert (version == "0.27.1") == parser.snapshot().has_begun
    parser.feed(lines[1])
    assert parser.snapshot().has_begun


def test_a_snapshot_leaves_the_pending_line_alone() -> None:
    """Asking in between neither reads nor loses a line that is still being written."""
    parser = TraceParser()
    parser.feed(b'{"type": "map", "da')
    assert Trace() == parser.snapshot()
    parser.feed(b'ta": {"@x": 1}}\n')
    assert 1 == parser.close().maps["@x"].value


def test_bytes_that_are_no_utf8_do_not_stop_the_reading() -> None:
    """A process name in another encoding costs that line at most."""
    trace = parse_trace(
        b'{"type": "printf", "data": "\xff"}\n' + record("map", **{"@x": 1}).encode()
    )
    assert 1 == trace.maps["@x"].value
    assert 1 == len(trace.printed) + len(trace.unparsed)


def test_histogram_of_a_keyed_map_is_not_one() -> None:
    """Asking a keyed map for its histogram gives none instead of the first key's."""
    bucket = {"min": 1, "max": 1, "count": 2}
    trace = parse_trace(record("hist", **{"@k": {"a": [bucket]}, "@h": [bucket]}))
    assert trace.histogram("@k") is None
    assert Histogram((Bucket(1, 1, 2),)) == trace.histogram("@h")
