"""
Histograms as bpftrace counts them, and their text form.

A bucket knows how many values fell into a range, and nothing finer: a quantile
is therefore a bucket, never a number. Bounds are inclusive, as in bpftrace's
JSON; its text shows the same bucket half-open, so [32, 64) holds 32 to 63.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from quiclab.errors import LabError

LABEL_WIDTH: Final = 16  # characters; bpftrace pads a bucket's label to this
COUNT_WIDTH: Final = 8  # characters of the count column
BAR_WIDTH: Final = 52  # characters of the longest bar
_UNITS: Final = ("", "K", "M", "G", "T", "P", "E")  # powers of 1024
_ROW: Final = re.compile(r"(\[[^\[\])]*[\])]|\(\.\.\., [^\[\])]*\))\s+(\d+) \|[@ ]*\|")


class HistogramError(LabError):
    """A histogram contradicts itself, or is asked for what it does not hold."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """
    How many values fell between two bounds, both included.

    Args:
        low: The smallest value it takes; None when there is no lower bound.
        high: The largest value it takes; None when there is no upper bound.
        count: Values counted.

    Raises:
        HistogramError: The bounds are crossed, or the count is negative.
    """

    low: int | None
    high: int | None
    count: int

    def __post_init__(self) -> None:
        low = "" if self.low is None else self.low
        high = "" if self.high is None else self.high
        if self.count < 0:
            raise HistogramError(
                f"bucket {low}..{high} holds count {self.count}, and counts start at 0"
            )
        if self.low is not None and self.high is not None and self.low > self.high:
            raise HistogramError(f"bucket {low}..{high} ends before it begins")


@dataclass(frozen=True, slots=True)
class Histogram:
    """
    Buckets from the lowest to the highest, none overlapping another.

    Args:
        buckets: In ascending order; gaps between them hold nothing.

    Raises:
        HistogramError: They are out of order or overlap.
    """

    buckets: tuple[Bucket, ...]

    def __post_init__(self) -> None:
        for lower, upper in zip(self.buckets, self.buckets[1:], strict=False):
            if lower.high is None or upper.low is None or lower.high >= upper.low:
                raise HistogramError(
                    f"bucket {render_label(upper)} follows {render_label(lower)}; "
                    "buckets must ascend without overlap"
                )

    @property
    def total_count(self) -> int:
        """How many values were counted."""
        return sum(bucket.count for bucket in self.buckets)

    @property
    def mode_bucket(self) -> Bucket:
        """
        The fullest bucket; of equals the lowest.

        Raises:
            HistogramError: Nothing was counted.
        """
        self._check_holds_values("a mode")
        return max(self.buckets, key=lambda bucket: bucket.count)

    def quantile_bucket(self, quantile: float) -> Bucket:
        """
        Name the bucket that the q-quantile lies in; where in it cannot be known.

        It is the bucket of the value that, in ascending order, has the place
        ceil(q x total), so that quantile 0.5 of an even number is the lower median.

        Args:
            quantile: Above 0 and at most 1.

        Raises:
            HistogramError: Nothing was counted, or the quantile is out of range.
        """
        if not 0 < quantile <= 1:
            raise HistogramError(f"quantile {quantile} is out of range; ask for 0 < q <= 1")
        self._check_holds_values(f"quantile {quantile}")
        place = math.ceil(quantile * self.total_count)
        seen_count = 0
        for bucket in self.buckets:
            seen_count += bucket.count
            if seen_count >= place:
                return bucket
        raise HistogramError(f"quantile {quantile} lies behind the last bucket")

    def count_from(self, low: int) -> int:
        """
        Count the values that are `low` or more.

        Raises:
            HistogramError: `low` lies inside a filled bucket, so nobody can tell.
        """
        count = 0
        for bucket in self.buckets:
            if bucket.low is not None and bucket.low >= low:
                count += bucket.count
            elif bucket.count and (bucket.high is None or bucket.high >= low):
                raise HistogramError(
                    f"{low} lies inside bucket {render_label(bucket)}; ask for a bucket's bound"
                )
        return count

    def share_from(self, low: int) -> float:
        """
        Tell which part of the values is `low` or more, from 0 to 1.

        Raises:
            HistogramError: Nothing was counted, or `low` lies inside a filled bucket.
        """
        self._check_holds_values("a share")
        return self.count_from(low) / self.total_count

    def to_json(self) -> list[dict[str, int | None]]:
        """Give the buckets as plain JSON values; `from_json` reads them back."""
        return [
            {"low": bucket.low, "high": bucket.high, "count": bucket.count}
            for bucket in self.buckets
        ]

    @classmethod
    def from_json(cls, values: Iterable[Mapping[str, Any]]) -> "Histogram":
        """
        Read what `to_json` gave.

        Raises:
            HistogramError: It is not a histogram.
        """
        try:
            return cls(
                tuple(Bucket(value["low"], value["high"], value["count"]) for value in values)
            )
        except (KeyError, TypeError) as error:
            raise HistogramError(f"a stored histogram is damaged: {error!r}") from error

    def _check_holds_values(self, what: str) -> None:
        if self.total_count == 0:
            raise HistogramError(f"nothing was counted, so there is no {what.removeprefix('a ')}")


def render_label(bucket: Bucket, *, unit_step: int | None = None) -> str:
    """
    Write a bucket's bounds as bpftrace does: `[0]`, `[32, 64)`, `[4K, 8K)`, `[100, ...)`.

    Args:
        bucket: Whose bounds.
        unit_step: Width of the buckets of a linear histogram; None for powers of two.
    """
    if bucket.low is None and bucket.high is None:
        return "(..., ...)"
    if bucket.low is None:
        assert bucket.high is not None
        return f"(..., {_render_bound(bucket.high + 1, unit_step)})"
    low = _render_bound(bucket.low, unit_step)
    if bucket.high is None:
        return f"[{low}, ...)"
    if bucket.low == bucket.high:
        return f"[{low}]"
    return f"[{low}, {_render_bound(bucket.high + 1, unit_step)})"


def render_bar(count: int, *, largest_count: int, width: int = BAR_WIDTH) -> str:
    """Draw a count as a bar, as long as its part of the largest one, cut down."""
    length = count * width // largest_count if largest_count else 0
    return f"{'@' * length:{width}}"


def render_histogram(histogram: Histogram) -> str:
    """
    Write the buckets as bpftrace's text output does, a line each, without the map's name.
    """
    largest_count = max((bucket.count for bucket in histogram.buckets), default=0)
    unit_step = _linear_step(histogram.buckets)
    return "".join(
        f"{render_label(bucket, unit_step=unit_step):{LABEL_WIDTH}}{bucket.count:{COUNT_WIDTH}} "
        f"|{render_bar(bucket.count, largest_count=largest_count)}|\n"
        for bucket in histogram.buckets
    )


def is_histogram_row(line: str) -> bool:
    """Tell whether a line of text has the form of a bucket's."""
    return _ROW.fullmatch(line.rstrip()) is not None


def parse_histogram(lines: Sequence[str]) -> Histogram:
    """
    Read bucket lines of bpftrace's text output back.

    Raises:
        HistogramError: A line is no bucket, or the buckets contradict each other.
    """
    buckets = []
    for line in lines:
        row = _ROW.fullmatch(line.rstrip())
        if row is None:
            raise HistogramError(f"{line!r} is no bucket; expected the like of '[4, 8)  12 |@@|'")
        low, high = _parse_label(row.group(1))
        buckets.append(Bucket(low, high, int(row.group(2))))
    return Histogram(tuple(buckets))


def _render_bound(value: int, unit_step: int | None) -> str:
    """
    Write a bound with the largest unit that divides it; steps under 1K are written out.
    """
    if value == 0 or (unit_step is not None and unit_step % 1024):
        return str(value)
    power = 0
    while power < len(_UNITS) - 1 and value % 1024 == 0:
        value //= 1024
        power += 1
    return f"{value}{_UNITS[power]}"


def _linear_step(buckets: Sequence[Bucket]) -> int | None:
    """
    Find the common width of an lhist's buckets; None for powers of two.

    bpftrace writes 1024 as "1K" only where buckets are at least 1K wide, and
    its output does not say which of the two it is.
    """
    widths = {
        bucket.high - bucket.low + 1
        for bucket in buckets
        if bucket.low is not None and bucket.high is not None
    }
    lows = {bucket.low for bucket in buckets if bucket.low is not None and bucket.high is not None}
    if len(widths) != 1:
        return None
    width = widths.pop()
    return None if lows == {width} or lows <= {0, 1} else width


def _parse_label(label: str) -> tuple[int | None, int | None]:
    if "," not in label:
        value = _parse_bound(label[1:-1])
        return value, value
    low, high = label[1:-1].split(", ")
    return (
        None if low == "..." else _parse_bound(low),
        None if high == "..." else _parse_bound(high) - 1,
    )


def _parse_bound(text: str) -> int:
    found = re.fullmatch(r"(-?\d+)([KMGTPE]?)", text)
    if found is None:
        raise HistogramError(f"{text!r} is no bucket bound; expected the like of 64 or 4K")
    bound: int = int(found.group(1)) * 1024 ** _UNITS.index(found.group(2))
    return bound
