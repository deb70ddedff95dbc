"""
Read bpftrace's JSON output: a record a line, tolerant of what versions and ends do to it.

Nothing readable is thrown away and nothing unreadable stops the reading: blank
lines are skipped, lines that are no JSON (some versions write a few) are kept
raw and counted, a last line cut off by a kill is flagged, record types unknown
here are kept and named. The caller decides what a trace is worth.

Differences between versions that meet here (recordings: tests/data/bpftrace):
 - 0.17 and 0.23 write blank lines before the maps, 0.27 none.
 - avg() comes under the type of stats() with a bare number.
 - Integers above 2^53 come as strings from 0.24 on.
 - 0.17 puts everything from 2^31 on into one bucket of hist(), and writes its
   bounds as -2147483648 and 0.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from quiclab.histogram import Bucket, Histogram, HistogramError
from quiclab.trace.events import (
    HelperError,
    MapSnapshot,
    MapValue,
    RawLine,
    Scalar,
    Stats,
    Trace,
)

LARGEST_EXACT_INTEGER: Final = 2**53  # beyond it JSON readers with doubles lose digits
_OVERFLOWN_LOW: Final = -(2**31)  # what bpftrace 0.17 writes for 2^31
_PRINT_TYPES: Final = frozenset({"printf", "time", "cat", "join", "strftime", "print"})
_STATS_KEYS: Final = frozenset({"count", "average", "total"})


class _RecordError(Exception):
    """A record has not the form its type promises."""


class _Object(list[tuple[str, Any]]):
    """A JSON object as its pairs: bpftrace may print two keys of a map alike."""

    def get(self, key: str) -> Any:
        """Look a key up; None when it is not there."""
        return next((value for name, value in self if name == key), None)


class TraceParser:
    """
    Takes output as it comes, in pieces of any size; `close` gives the whole.

    `snapshot` may be asked in between, to wait for the tracer's start.
    """

    def __init__(self) -> None:
        self._pending = b""
        self._line_number = 0
        self._series: dict[str, list[MapSnapshot]] = {}
        self._announced_probe_count: int | None = None
        self._is_attach_confirmed = False
        self._lost_event_count = 0
        self._helper_errors: dict[tuple[str, str, int | None], int] = {}
        self._printed: list[str] = []
        self._printed_values: list[Scalar] = []
        self._unparsed: list[RawLine] = []
        self._unknown: list[RawLine] = []
        self._is_truncated = False

    def feed(self, data: bytes) -> None:
        """Take the next piece of output."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._take_line(line.decode("utf-8", "backslashreplace"))

    def snapshot(self) -> Trace:
        """Give what is known so far; a line that has not ended yet is not looked at."""
        return Trace(
            series={name: tuple(snapshots) for name, snapshots in self._series.items()},
            announced_probe_count=self._announced_probe_count,
            is_attach_confirmed=self._is_attach_confirmed,
            lost_event_count=self._lost_event_count,
            helper_errors=tuple(
                HelperError(message, helper, return_code, count)
                for (message, helper, return_code), count in self._helper_errors.items()
            ),
            printed=tuple(self._printed),
            printed_values=tuple(self._printed_values),
            unparsed=tuple(self._unparsed),
            unknown=tuple(self._unknown),
            is_truncated=self._is_truncated,
        )

    def close(self) -> Trace:
        """Take the end of the output and give all of it."""
        last = self._pending.decode("utf-8", "backslashreplace")
        self._pending = b""
        unparsed_count = len(self._unparsed)
        self._take_line(last)
        self._is_truncated = len(self._unparsed) > unparsed_count
        return self.snapshot()

    def _take_line(self, line: str) -> None:
        self._line_number += 1
        if not line.strip():
            return
        try:
            record = json.loads(line, object_pairs_hook=_Object, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            self._keep_unparsed(line, f"no JSON: {error}")
            return
        if not isinstance(record, _Object) or not isinstance(record.get("type"), str):
            self._keep_unparsed(line, "no record: it has no type")
            return
        try:
            self._take_record(record, line)
        except (_RecordError, HistogramError) as error:
            self._keep_unparsed(line, str(error))

    def _take_record(self, record: _Object, line: str) -> None:
        kind = record.get("type")
        data = record.get("data")
        if kind in _VALUE_PARSERS:
            for snapshot in _parse_maps(kind, data):
                # Moved to the end, so that maps stand in the order of their last print.
                snapshots = self._series.pop(snapshot.name, [])
                snapshots.append(snapshot)
                self._series[snapshot.name] = snapshots
        elif kind in _PRINT_TYPES:
            self._printed.append(data if isinstance(data, str) else json.dumps(data))
        elif kind == "value":
            self._printed_values.append(_parse_scalar(data))
        elif kind == "attached_probes":
            count = _parse_field(data, "probes")
            if self._announced_probe_count is None:
                self._announced_probe_count = count
                # 0.27 writes "count" and the record after attaching, 0.23 neither.
                self._is_attach_confirmed = record.get("count") is not None
        elif kind == "lost_events":
            self._lost_event_count += _parse_field(data, "events")
        elif kind == "helper_error":
            self._take_helper_error(record)
        else:
            self._unknown.append(RawLine(self._line_number, line, kind))

    def _take_helper_error(self, record: _Object) -> None:
        code = record.get("retcode")
        key = (
            str(record.get("msg") or ""),
            str(record.get("helper") or ""),
            code if isinstance(code, int) else None,
        )
        self._helper_errors[key] = self._helper_errors.get(key, 0) + 1

    def _keep_unparsed(self, line: str, reason: str) -> None:
        self._unparsed.append(RawLine(self._line_number, line, reason))


def parse_trace(text: str | bytes) -> Trace:
    """
    Read all that a tracer wrote; never fails (see the trace's `unparsed`).
    """
    parser = TraceParser()
    parser.feed(text.encode() if isinstance(text, str) else text)
    return parser.close()


def _parse_maps(kind: str, data: Any) -> list[MapSnapshot]:
    if not isinstance(data, _Object):
        raise _RecordError(f"{kind} record without a map")
    return [
        MapSnapshot(name, kind, _parse_entries(kind, value, _VALUE_PARSERS[kind]))
        for name, value in data
    ]


def _parse_entries(
    kind: str, value: Any, parse: Callable[[Any], MapValue]
) -> tuple[tuple[str | None, MapValue], ...]:
    is_one_stats = kind == "stats" and isinstance(value, _Object) and _has_stats_keys(value)
    if isinstance(value, _Object) and not is_one_stats:
        return tuple((key, parse(entry)) for key, entry in value)
    return ((None, parse(value)),)


def _parse_histogram(value: Any) -> Histogram:
    if not isinstance(value, list):
        raise _RecordError("hist record without buckets")
    return Histogram(tuple(_parse_bucket(bucket) for bucket in value))


def _parse_bucket(value: Any) -> Bucket:
    if not isinstance(value, _Object):
        raise _RecordError("a bucket without bounds")
    low, high = value.get("min"), value.get("max")
    count = _parse_integer(value.get("count"))
    if low == _OVERFLOWN_LOW and high in (0, -1):
        return Bucket(2**31, None, count)
    return Bucket(
        None if low is None else _parse_integer(low),
        None if high is None else _parse_integer(high),
        count,
    )


def _parse_stats(value: Any) -> Stats:
    if isinstance(value, _Object):
        if not _has_stats_keys(value):
            raise _RecordError("stats record without count, average and total")
        return Stats(
            _parse_integer(value.get("average")),
            _parse_integer(value.get("count")),
            _parse_integer(value.get("total")),
        )
    return Stats(_parse_integer(value))


def _has_stats_keys(value: _Object) -> bool:
    return {key for key, _ in value} == _STATS_KEYS


def _parse_scalar(value: Any) -> Scalar:
    """
    Take a plain value; a structure comes as a tuple of its fields, named in pairs.
    """
    if isinstance(value, _Object):
        return tuple((key, _parse_scalar(entry)) for key, entry in value)
    if isinstance(value, list):
        return tuple(_parse_scalar(entry) for entry in value)
    if isinstance(value, str):
        return _parse_long_integer(value)
    if value is None or isinstance(value, int | float):
        return value
    raise _RecordError(f"a value of unknown kind: {value!r}")


def _parse_long_integer(text: str) -> int | str:
    """
    Turn a string back into the integer it stands for, where bpftrace wrote one as text.

    Only integers above 2^53 are written so; shorter digits are a string of the script's.
    """
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > len(str(2**64)):
        return text
    value = int(text)
    return value if abs(value) >= LARGEST_EXACT_INTEGER and str(value) == text else text


def _parse_integer(value: Any) -> int:
    if isinstance(value, str):
        value = _parse_long_integer(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _RecordError(f"{value!r} where an integer was expected")
    return value


def _parse_field(data: Any, name: str) -> int:
    if not isinstance(data, _Object):
        raise _RecordError(f"a record without {name}")
    return _parse_integer(data.get(name))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_VALUE_PARSERS: Final[Mapping[str, Callable[[Any], MapValue]]] = {
    "hist": _parse_histogram,
    "lhist": _parse_histogram,
    "stats": _parse_stats,
    "map": _parse_scalar,
}
