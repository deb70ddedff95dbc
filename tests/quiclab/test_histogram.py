"""Histograms: totals, quantile buckets, text and JSON forms."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiclab.histogram import (
    Bucket,
    Histogram,
    HistogramError,
    is_histogram_row,
    parse_histogram,
    render_bar,
    render_histogram,
    render_label,
)

LARGEST_POWER = 62  # bpftrace's hist() has a bucket per power of two of a signed 64-bit value


@st.composite
def histograms(draw: st.DrawFn) -> Histogram:
    """Histograms of powers of two, as hist() makes them: one run of buckets, from 0 or later."""
    power = st.integers(-2, LARGEST_POWER)
    low, high = sorted(draw(st.tuples(power, power)))
    counts = draw(
        st.lists(st.integers(0, 10**12), min_size=high - low + 1, max_size=high - low + 1)
    )
    return Histogram(
        tuple(
            _bucket(power, count) for power, count in zip(range(low, high + 1), counts, strict=True)
        )
    )


def _bucket(power: int, count: int) -> Bucket:
    if power == -2:
        return Bucket(None, -1, count)
    if power == -1:
        return Bucket(0, 0, count)
    return Bucket(2**power, 2 ** (power + 1) - 1, count)


SMALL = Histogram((Bucket(1, 1, 1), Bucket(2, 3, 0), Bucket(4, 7, 6), Bucket(8, 15, 3)))


def test_total_counts_every_bucket() -> None:
    """The total is the sum of the buckets' counts."""
    assert 10 == SMALL.total_count


@pytest.mark.parametrize(
    ("quantile", "low"),
    [(0.01, 1), (0.1, 1), (0.11, 4), (0.5, 4), (0.7, 4), (0.71, 8), (1.0, 8)],
)
def test_quantile_bucket_holds_the_value_of_that_place(quantile: float, low: int) -> None:
    """The bucket named is the one that holds the value in place ceil(q x total)."""
    assert low == SMALL.quantile_bucket(quantile).low


def test_mode_bucket_is_the_fullest() -> None:
    """The mode is the bucket with the largest count."""
    assert Bucket(4, 7, 6) == SMALL.mode_bucket


def test_share_from_a_bound_counts_whole_buckets() -> None:
    """The share from a bucket's bound upward is exact."""
    assert 0.9 == SMALL.share_from(4)
    assert 0.9 == SMALL.share_from(2)


def test_share_from_inside_a_filled_bucket_is_refused() -> None:
    """A bound inside a filled bucket cannot be answered, and is not guessed."""
    with pytest.raises(HistogramError, match=r"5 lies inside bucket \[4, 8\)"):
        SMALL.share_from(5)


@pytest.mark.parametrize(
    "ask",
    [
        lambda empty: empty.quantile_bucket(0.5),
        lambda empty: empty.mode_bucket,
        lambda empty: empty.share_from(0),
    ],
    ids=["quantile", "mode", "share"],
)
def test_an_empty_histogram_has_no_figures(ask: Callable[[Histogram], object]) -> None:
    """Figures of nothing are an error, not a zero."""
    with pytest.raises(HistogramError, match="nothing was counted"):
        ask(Histogram((Bucket(0, 0, 0),)))


@pytest.mark.parametrize("quantile", [0, -0.5, 1.5])
def test_a_quantile_out_of_range_is_refused(quantile: float) -> None:
    """Only 0 < q <= 1 has a place among the values."""
    with pytest.raises(HistogramError, match="out of range"):
        SMALL.quantile_bucket(quantile)


@pytest.mark.parametrize(
    ("low", "high", "count", "words"),
    [(8, 15, -3, "bucket 8..15 holds count -3"), (9, 8, 1, "ends before it begins")],
)
def test_a_bucket_that_contradicts_itself_is_refused(
    low: int, high: int, count: int, words: str
) -> None:
    """Negative counts and crossed bounds are named with their bounds."""
    with pytest.raises(HistogramError, match=words):
        Bucket(low, high, count)


@pytest.mark.parametrize(
    "buckets",
    [
        (Bucket(4, 7, 1), Bucket(2, 3, 1)),
        (Bucket(4, 7, 1), Bucket(7, 8, 1)),
        (Bucket(4, None, 1), Bucket(8, 15, 1)),
        (Bucket(None, 3, 1), Bucket(None, 5, 1)),
    ],
    ids=["descending", "overlapping", "behind-an-open-end", "two-open-starts"],
)
def test_buckets_out_of_order_are_refused(buckets: tuple[Bucket, ...]) -> None:
    """Buckets ascend and do not overlap, so that quantiles mean something."""
    with pytest.raises(HistogramError, match="ascend without overlap"):
        Histogram(buckets)


@pytest.mark.parametrize(
    ("bucket", "label"),
    [
        (Bucket(0, 0, 1), "[0]"),
        (Bucket(1, 1, 1), "[1]"),
        (Bucket(512, 1023, 1), "[512, 1K)"),
        (Bucket(524288, 1048575, 1), "[512K, 1M)"),
        (Bucket(2**62, 2**63 - 1, 1), "[4E, 8E)"),
        (Bucket(None, -1, 1), "(..., 0)"),
        (Bucket(100, None, 1), "[100, ...)"),
        (Bucket(2**31, None, 1), "[2G, ...)"),
    ],
)
def test_label_is_bpftraces(bucket: Bucket, label: str) -> None:
    """Inclusive bounds are shown half-open, with bpftrace's units of 1024."""
    assert label == render_label(bucket)


def test_bar_is_cut_down_as_bpftraces_is() -> None:
    """A bar's length is the whole part of its share of the width."""
    assert "@" * 11 + " " * 41 == render_bar(23737, largest_count=111052)
    assert "@@@ " == render_bar(999, largest_count=1000, width=4)
    assert "    " == render_bar(0, largest_count=0, width=4)


@given(histograms())
def test_text_form_reads_back_equal(histogram: Histogram) -> None:
    """What is rendered in bpftrace's text form is read back without a loss."""
    assert histogram == parse_histogram(render_histogram(histogram).splitlines())


@given(histograms())
def test_json_form_reads_back_equal(histogram: Histogram) -> None:
    """What is stored as JSON values is read back without a loss."""
    assert histogram == Histogram.from_json(histogram.to_json())


@given(histograms(), st.floats(min_value=0, max_value=1, exclude_min=True))
def test_quantile_bucket_splits_the_values(histogram: Histogram, quantile: float) -> None:
    """Fewer than q of all values lie below the quantile's bucket, and at least q up to its end."""
    if not histogram.total_count:
        return
    bucket = histogram.quantile_bucket(quantile)
    position = histogram.buckets.index(bucket)
    below_count = sum(lower.count for lower in histogram.buckets[:position])
    assert bucket.count > 0
    assert below_count < quantile * histogram.total_count <= below_count + bucket.count + 1e-3


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("@x: 5", "is no bucket"),
        ("[4, 8) |@@|", "is no bucket"),
        ("[4Q, 8Q)     3 |@@|", "is no bucket bound"),
    ],
)
def test_text_that_is_no_bucket_is_named(line: str, words: str) -> None:
    """A line that cannot be a bucket is an error that shows the line."""
    with pytest.raises(HistogramError, match=words):
        parse_histogram([line])


def test_row_is_told_from_other_text() -> None:
    """Bucket lines are recognised whatever the width of their bar."""
    assert is_histogram_row("[16, 32)   12 |@@@@                |")
    assert is_histogram_row("(..., 0)               1 |@@|")
    assert not is_histogram_row("@x: 12")
    assert not is_histogram_row("[16, 32) twelve |@@|")


def test_damaged_json_form_is_named() -> None:
    """A stored histogram with a missing bound is an error of the lab's, not a KeyError."""
    with pytest.raises(HistogramError, match="damaged"):
        Histogram.from_json([{"low": 1, "count": 2}])


def test_linear_histograms_keep_bpftraces_labels() -> None:
    """Bounds of an lhist are written with K only where its buckets are that wide."""
    wide = Histogram((Bucket(0, 1023, 1), Bucket(1024, 2047, 1), Bucket(2048, 3071, 1)))
    narrow = Histogram((Bucket(1024, 1535, 1), Bucket(1536, 2047, 1)))
    assert ["[0, 1K)", "[1K, 2K)", "[2K, 3K)"] == _labels(wide)
    assert ["[1024, 1536)", "[1536, 2048)"] == _labels(narrow)


def _labels(histogram: Histogram) -> list[str]:
    return [line.split("  ")[0] for line in render_histogram(histogram).splitlines()]
