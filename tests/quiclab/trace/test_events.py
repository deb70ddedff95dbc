"""What the models of a trace answer."""

import pytest

from quiclab.histogram import Bucket, Histogram
from quiclab.trace.events import MapSnapshot, MapValue, Stats, Trace


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (7, 7),
        (Stats(average=3, count=4, total=12), 4),
        (Stats(average=3), None),
        (Histogram((Bucket(1, 1, 2), Bucket(2, 3, 3))), 5),
        ("text", None),
        ((1, 2), None),
    ],
    ids=["count", "stats", "avg", "hist", "string", "tuple"],
)
def test_event_count_is_told_by_kinds_that_count(value: MapValue, count: int | None) -> None:
    """Histograms, counts and stats tell how many events they saw; others say they cannot."""
    assert count == MapSnapshot("@x", "map", ((None, value),)).event_count


def test_a_keyed_map_has_no_single_value() -> None:
    """Asking a keyed map for its value is an error that tells the number of keys."""
    keyed = MapSnapshot("@x", "map", (("a", 1), ("b", 2)))
    assert 2 == keyed.key_count
    with pytest.raises(LookupError, match="@x has 2 keys"):
        _ = keyed.value


def test_an_empty_map_is_keyed_and_counts_nothing() -> None:
    """A map that was emptied holds no keys and no events."""
    empty = MapSnapshot("@x", "map", ())
    assert (True, 0, 0) == (empty.is_keyed, empty.key_count, empty.event_count)


def test_a_map_was_full_when_any_snapshot_was() -> None:
    """A map that was cleared after it had been full is still named."""
    full = MapSnapshot("@x", "map", (("a", 1), ("b", 2)))
    empty = MapSnapshot("@x", "map", ())
    assert {"@x": 2} == Trace(series={"@x": (full, empty)}).full_maps(key_limit=2)


def test_a_trace_without_attach_record_has_not_begun() -> None:
    """Text alone, without the record that counts the probes, is no proof."""
    assert not Trace(printed=("hello",)).has_begun
