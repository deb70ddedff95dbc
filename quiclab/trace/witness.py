"""
The second witness: what the server's own recorder counted, beside or instead of bpftrace. Pure.

`recording_rules` says in the recorder's words (server/recording.py) what each shipped script
does; `render_trace` writes what it counted as bpftrace would have; `compare_maps` holds the
two against each other. Counts and sizes must be equal bucket for bucket. Times cannot be:
each side reads the clock at its own moment. But the recorder reads it before and after the
tracer's probe, so for each event it knows the least and the most that the tracer can have
measured; summed up to any bucket's bound, bpftrace's count must lie between the two.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from quiclab.errors import UsageError
from quiclab.histogram import Histogram
from quiclab.trace.events import Trace
from quiclab.trace.script import Script

_PLATFORM: Final = "s2n_quic_platform__"
_SEND: Final = f"{_PLATFORM}syscall__mmsg__"
_SOCKET: Final = f"{_PLATFORM}socket__"
_BUFFER: Final = "s2n_quic_core__buffer__receive_buffer__"

RawRule = Mapping[str, Any]
ComparisonKind = Literal["count", "size", "time"]


def _hist(map_name: str, probe: str, argument: int, **more: Any) -> RawRule:
    return {"probe": probe, "kind": "hist", "map": map_name, "argument": argument, **more}


def _pair(
    prefix: str, *, start: str, end: str, keys: Sequence[int], **where: Any
) -> Iterator[RawRule]:
    yield {"probe": start, "kind": "start", "map": f"{prefix}_start", "keys": keys, **where}
    yield {
        "probe": end,
        "kind": "elapsed",
        "map": f"{prefix}_latencies",
        "keys": keys,
        "table": f"{prefix}_start",
        "unmatched": f"{prefix}_unmatched",
    }


def _udp_syscall() -> Iterator[RawRule]:
    for prefix, way in (("@tx", "send"), ("@rx", "recv")):
        start, end = f"{_SEND}start_{way}", f"{_SEND}finish_{way}"
        yield _hist(f"{prefix}_arg_counts", start, 2)
        yield from _pair(prefix, start=start, end=end, keys=(0,))
        yield _hist(f"{prefix}_ret_counts", end, 2)


def _io_latencies() -> Iterator[RawRule]:
    first = {"where": (2, 0)}  # a message's first datagram begins it
    write, sent = f"{_SOCKET}io__tx__write", f"{_SOCKET}task__tx__finish"
    received, read = f"{_SOCKET}task__rx__finish", f"{_SOCKET}io__rx__finish_read"
    yield {"probe": write, "kind": "count", "map": "@tx_starts", **first}
    yield from _pair("@tx", start=write, end=sent, keys=(0, 1), **first)
    yield {"probe": received, "kind": "count", "map": "@rx_starts"}
    yield from _pair("@rx", start=received, end=read, keys=(0, 1))


def _generic_offload() -> Iterator[RawRule]:
    for name, probe in (("@gso", "io__tx__finish_write"), ("@gro", "io__rx__finish_read")):
        yield _hist(f"{name}_count", _SOCKET + probe, 2)
        yield _hist(f"{name}_size", _SOCKET + probe, 3)


def _recv_buffers() -> Iterator[RawRule]:
    for name in ("alloc", "write", "pop"):
        yield _hist(f"@{name}s", _BUFFER + name, 1)


def _message_wait() -> Iterator[RawRule]:
    yield _hist("@wait_ns", "message_sent", 2, where_not=(2, 0))
    yield {"probe": "message_sent", "kind": "count", "map": "@unmatched", "where": (2, 0)}


_RULES: Final[Mapping[str, Sequence[RawRule]]] = {
    "udp-syscall": tuple(_udp_syscall()),
    "io-latencies": tuple(_io_latencies()),
    "generic-offload": tuple(_generic_offload()),
    "recv-buffers": tuple(_recv_buffers()),
    "message-wait": tuple(_message_wait()),
}


def recording_rules(scripts: Sequence[Script]) -> list[RawRule]:
    """
    Say what the recorder is to do so that it fills the maps of these scripts.

    A map is called by its script and its name, since two scripts may have maps of one name.

    Raises:
        UsageError: A script is not one of the lab's own.
    """
    rules: list[RawRule] = []
    for script in scripts:
        if not script.is_shipped or script.name not in _RULES:
            raise UsageError(
                f"the in-process recorder knows {', '.join(sorted(_RULES))}; {script.name} is "
                "none of them, so leave out --verify and --tracer in-process"
            )
        for rule in _RULES[script.name]:
            names = {
                key: f"{script.name}{rule[key]}"
                for key in ("map", "table", "unmatched")
                if rule.get(key)
            }
            rules.append({**rule, **names})
    return rules


def recorded_maps(script: Script, recording: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """
    Pick a script's maps out of what the recorder counted, by their own names.
    """
    return {
        name.removeprefix(script.name): counted
        for name, counted in recording["maps"].items()
        if name.startswith(f"{script.name}@")
    }


def render_trace(script: Script, recording: Mapping[str, Any]) -> bytes:
    """
    Write what the recorder counted as lines of JSON, as bpftrace prints maps.

    The first line says who wrote it. As with bpftrace an empty histogram is absent.
    """
    lines: list[dict[str, Any]] = [
        {"type": "printf", "data": f"{script.name}: recorded in process, without bpftrace\n"}
    ]
    for name, counted in recorded_maps(script, recording).items():
        if counted["kind"] == "count":
            lines.append({"type": "map", "data": {name: counted["count"]}})
        elif counted["buckets"]:
            lines.append({"type": "hist", "data": {name: list(_fill_gaps(counted["buckets"]))}})
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def _fill_gaps(buckets: Sequence[Mapping[str, int]]) -> Iterator[Mapping[str, int]]:
    """Empty buckets between others are printed, too."""
    expected: int | None = None
    for bucket in buckets:
        while expected is not None and expected < bucket["min"]:
            high = max(0, 2 * expected - 1)
            yield {"min": expected, "max": high, "count": 0}
            expected = high + 1
        yield {"max": bucket["max"], "count": bucket["count"]} if bucket["min"] < 0 else bucket
        expected = bucket["max"] + 1


# Comparing ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MapComparison:
    """
    One map as both witnesses have it.

    Args:
        script: The script's name.
        map_name: The map's.
        kind: "count", "size" (equal bucket for bucket) or "time" (within each event's bounds).
        traced_count: Events that bpftrace counted; None when its map does not tell.
        recorded_count: Events that the recorder counted.
        difference: What does not agree, one phrase; "" when all does.
    """

    script: str
    map_name: str
    kind: ComparisonKind
    traced_count: int | None
    recorded_count: int
    difference: str = ""

    @property
    def is_equal(self) -> bool:
        """Tell whether the two agree."""
        return not self.difference


def compare_maps(script: Script, trace: Trace, recording: Mapping[str, Any]) -> list[MapComparison]:
    """
    Hold each map of a script against the recorder's.
    """
    compared = []
    for name, counted in recorded_maps(script, recording).items():
        kind: ComparisonKind = {"count": "count", "hist": "size"}.get(counted["kind"], "time")  # type: ignore[assignment]
        traced_count = trace.event_count(name)
        difference = ""
        if traced_count != counted["count"]:
            shown = "unknown" if traced_count is None else f"{traced_count:,}"
            difference = f"bpftrace counted {shown} events, the recorder {counted['count']:,}"
        elif kind != "count" and counted["count"]:
            histogram = trace.histogram(name)
            assert histogram is not None  # it holds as many events as the recorder's
            compare = _compare_sizes if kind == "size" else _compare_times
            difference = compare(histogram, counted)
        compared.append(
            MapComparison(
                script=script.name,
                map_name=name,
                kind=kind,
                traced_count=traced_count,
                recorded_count=counted["count"],
                difference=difference,
            )
        )
    return compared


def _count_below(buckets: Sequence[Mapping[str, int]], bound: int) -> int:
    return sum(bucket["count"] for bucket in buckets if bucket["max"] < bound)


def _compare_sizes(histogram: Histogram, counted: Mapping[str, Any]) -> str:
    for bound, traced_count in _cumulate(histogram):
        recorded_count = _count_below(counted["buckets"], bound)
        if recorded_count != traced_count:
            return (
                f"below {bound:,} bpftrace counted {traced_count:,} values, "
                f"the recorder {recorded_count:,}"
            )
    return ""


def _compare_times(histogram: Histogram, counted: Mapping[str, Any]) -> str:
    for bound, traced_count in _cumulate(histogram):
        # What can at most have been measured is the later to pass a bound.
        fewest = _count_below(counted["most"], bound)
        most = _count_below(counted["least"], bound)
        if not fewest <= traced_count <= most:
            return (
                f"below {bound:,} ns bpftrace counted {traced_count:,} times, and by the "
                f"recorder's bounds of each event it can be {fewest:,} to {most:,}"
            )
    return ""


def _cumulate(histogram: Histogram) -> Iterator[tuple[int, int]]:
    """Each bound between two of bpftrace's buckets, with the values below it; both ends, too."""
    below_count = 0
    for bucket in histogram.buckets:
        if bucket.low is not None:
            yield bucket.low, below_count
        below_count += bucket.count
        if bucket.high is not None:
            yield bucket.high + 1, below_count


def render_comparison(
    comparisons: Sequence[MapComparison], recording: Mapping[str, Any] | None
) -> str:
    """
    Say in one line what agrees, and how far apart the two read the clock.
    """
    agreed = [each for each in comparisons if each.is_equal]
    text = f"{len(agreed)} of {len(comparisons)} maps agree with the in-process recorder"
    exact_count = sum(each.kind != "time" for each in agreed)
    parts = [f"{exact_count} bucket for bucket"] if exact_count else []
    time_count = len(agreed) - exact_count
    if time_count and recording is not None:
        median_ns = _find_median(recording["widths"])
        apart = f", median below {_render_ns(median_ns)}" if median_ns else ""
        parts.append(
            f"{time_count} times within each event's own bounds "
            f"(at most {_render_ns(recording['largest_width_ns'])} apart{apart})"
        )
    return f"{text}: {', '.join(parts)}" if parts else text


def _find_median(buckets: Sequence[Mapping[str, int]]) -> int:
    """Find the upper bound of the bucket in which the median lies; 0 without any."""
    half = sum(bucket["count"] for bucket in buckets) / 2
    for bucket in buckets:
        half -= bucket["count"]
        if half <= 0:
            return bucket["max"] + 1
    return 0


def _render_ns(duration_ns: int) -> str:
    return f"{duration_ns:,} ns" if duration_ns < 10_000 else f"{duration_ns / 1000:,.0f} µs"  # noqa: PLR2004
