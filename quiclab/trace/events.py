"""
What bpftrace said, as values: maps, and everything else worth a reader's trust.

One model for all versions. A map is a list of snapshots, of which the last is
the final one: bpftrace's maps are cumulative, so snapshots are never summed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from quiclab.histogram import Histogram

# bpftrace's own default (BPFTRACE_MAP_KEYS_MAX, BPFTRACE_MAX_MAP_KEYS before 0.20). A map
# that is full drops further keys without a word, with exit status 0.
DEFAULT_MAP_KEY_LIMIT: Final = 4096

Scalar = int | float | str | bool | None | tuple["Scalar", ...]


@dataclass(frozen=True, slots=True)
class Stats:
    """
    A stats() or avg() map's value; avg() keeps the average alone.

    Args:
        average: Cut down to an integer by bpftrace.
        count: Values seen; None for avg().
        total: Their sum; None for avg().
    """

    average: int
    count: int | None = None
    total: int | None = None


MapValue = Scalar | Stats | Histogram


@dataclass(frozen=True, slots=True)
class MapSnapshot:
    """
    One printed state of one map.

    Args:
        name: With its sign, such as "@tx_latencies".
        kind: bpftrace's word for the record: "map", "hist" or "stats".
        entries: Key and value of each entry, in the order printed; a map without a key
            has one entry, whose key is None.
    """

    name: str
    kind: str
    entries: tuple[tuple[str | None, MapValue], ...]

    @property
    def is_keyed(self) -> bool:
        """Tell whether the map has keys; an empty one has."""
        return not self.entries or self.entries[0][0] is not None

    @property
    def key_count(self) -> int:
        """How many keys it holds; 0 for a map without keys."""
        return len(self.entries) if self.is_keyed else 0

    @property
    def value(self) -> MapValue:
        """
        The value of a map without keys.

        Raises:
            LookupError: It has keys.
        """
        if self.is_keyed:
            raise LookupError(f"{self.name} has {self.key_count} keys, so no single value")
        return self.entries[0][1]

    @property
    def event_count(self) -> int | None:
        """
        How many events it counted, over all keys; None when its kind does not tell.

        A histogram tells by its total, count() and stats() by their counts.
        """
        total = 0
        for _, value in self.entries:
            if isinstance(value, Histogram):
                total += value.total_count
            elif isinstance(value, Stats) and value.count is not None:
                total += value.count
            elif isinstance(value, int):
                total += value
            else:
                return None
        return total


@dataclass(frozen=True, slots=True)
class HelperError:
    """
    A BPF helper that failed, as bpftrace reports it; equal ones are counted together.

    Args:
        message: Such as "Operation not permitted".
        helper: The helper's name, or "" when not told.
        return_code: What it returned, or None.
        count: How many reports were equal.
    """

    message: str
    helper: str
    return_code: int | None
    count: int


@dataclass(frozen=True, slots=True)
class RawLine:
    """
    A line that could not be used, kept as it came.

    Args:
        line_number: From 1.
        text: The line.
        reason: Why it was not used; for a record of an unknown type, the type.
    """

    line_number: int
    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Trace:
    """
    All that one tracer wrote.

    Args:
        series: Every snapshot of every map, by name, in the order written.
        announced_probe_count: Probes by bpftrace's own record (BEGIN and END are among
            them); None when the record is missing.
        is_attach_confirmed: The record says that probes *are* attached. Versions up to
            0.23 write it before they attach, so there it only announces.
        lost_event_count: Events lost on the way to bpftrace, all reports together.
        helper_errors: Failed helpers.
        printed: Texts of printf, time, cat, join; the first one shows that attaching is over.
        printed_values: Values of print() that are no maps.
        unparsed: Lines that are no JSON, or no record that can be used.
        unknown: Records of types this parser does not know; reason names the type.
        is_truncated: The last line is only a part of one: the tracer was killed.
    """

    series: Mapping[str, tuple[MapSnapshot, ...]] = field(default_factory=dict)
    announced_probe_count: int | None = None
    is_attach_confirmed: bool = False
    lost_event_count: int = 0
    helper_errors: tuple[HelperError, ...] = ()
    printed: tuple[str, ...] = ()
    printed_values: tuple[Scalar, ...] = ()
    unparsed: tuple[RawLine, ...] = ()
    unknown: tuple[RawLine, ...] = ()
    is_truncated: bool = False

    @property
    def maps(self) -> dict[str, MapSnapshot]:
        """The final state of every map: its last snapshot."""
        return {name: snapshots[-1] for name, snapshots in self.series.items()}

    @property
    def has_begun(self) -> bool:
        """
        Tell whether every probe that can be attached is.

        bpftrace handles its first output only after attaching, so a text of a
        BEGIN probe proves it; 0.27's attach record does so too.
        """
        if self.announced_probe_count is None:
            return False
        return self.is_attach_confirmed or bool(self.printed) or bool(self.series)

    def histogram(self, name: str) -> Histogram | None:
        """Find the final histogram of a map without keys; None when it was not printed."""
        snapshots = self.series.get(name)
        if not snapshots or snapshots[-1].is_keyed:
            return None
        value = snapshots[-1].value
        return value if isinstance(value, Histogram) else None

    def event_count(self, name: str) -> int | None:
        """
        Count the events of a map; a map that was not printed holds none.

        bpftrace leaves an empty histogram out, and 0.27 an untouched count() too.
        """
        snapshots = self.series.get(name)
        return snapshots[-1].event_count if snapshots else 0

    def full_maps(self, *, key_limit: int = DEFAULT_MAP_KEY_LIMIT) -> dict[str, int]:
        """Find maps with as many keys as a map may have, and the most each held."""
        largest = {
            name: max(snapshot.key_count for snapshot in snapshots)
            for name, snapshots in self.series.items()
        }
        return {name: count for name, count in largest.items() if count >= key_limit}
