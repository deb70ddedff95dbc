"""
A trace as plain JSON values (histograms.json), and back.

What a reader of results needs stands in it: every map's final state and, where
a map was printed more than once, its earlier states. Texts that the script
printed stay in bpftrace's own file.
"""

from collections.abc import Mapping
from typing import Any, Final

from quiclab.errors import LabError
from quiclab.histogram import Histogram, HistogramError
from quiclab.trace.events import (
    HelperError,
    MapSnapshot,
    MapValue,
    RawLine,
    Scalar,
    Stats,
    Trace,
)

SCHEMA: Final = 1


class DocumentError(LabError):
    """A stored trace cannot be read."""


def trace_to_json(trace: Trace) -> dict[str, Any]:
    """Give a trace as plain JSON values; `trace_from_json` reads them back."""
    return {
        "schema": SCHEMA,
        "maps": {
            name: [_snapshot_to_json(snapshot) for snapshot in snapshots]
            for name, snapshots in trace.series.items()
        },
        "announced_probe_count": trace.announced_probe_count,
        "is_attach_confirmed": trace.is_attach_confirmed,
        "lost_event_count": trace.lost_event_count,
        "helper_errors": [
            {
                "message": error.message,
                "helper": error.helper,
                "return_code": error.return_code,
                "count": error.count,
            }
            for error in trace.helper_errors
        ],
        "unparsed": [_raw_to_json(line) for line in trace.unparsed],
        "unknown": [_raw_to_json(line) for line in trace.unknown],
        "is_truncated": trace.is_truncated,
    }


def trace_from_json(document: Mapping[str, Any]) -> Trace:
    """
    Read what `trace_to_json` gave.

    Raises:
        DocumentError: It is of another schema, or damaged.
    """
    if document.get("schema") != SCHEMA:
        raise DocumentError(
            f"a stored trace has schema {document.get('schema')!r}; this version reads {SCHEMA}"
        )
    try:
        return Trace(
            series={
                name: tuple(_snapshot_from_json(name, value) for value in snapshots)
                for name, snapshots in document["maps"].items()
            },
            announced_probe_count=document["announced_probe_count"],
            is_attach_confirmed=document["is_attach_confirmed"],
            lost_event_count=document["lost_event_count"],
            helper_errors=tuple(
                HelperError(error["message"], error["helper"], error["return_code"], error["count"])
                for error in document["helper_errors"]
            ),
            unparsed=tuple(_raw_from_json(line) for line in document["unparsed"]),
            unknown=tuple(_raw_from_json(line) for line in document["unknown"]),
            is_truncated=document["is_truncated"],
        )
    except (KeyError, TypeError, AttributeError, ValueError, HistogramError) as error:
        raise DocumentError(f"a stored trace is damaged: {error!r}; record it again") from error


def _snapshot_to_json(snapshot: MapSnapshot) -> dict[str, Any]:
    return {
        "kind": snapshot.kind,
        "entries": [{"key": key, **_value_to_json(value)} for key, value in snapshot.entries],
    }


def _snapshot_from_json(name: str, value: Mapping[str, Any]) -> MapSnapshot:
    return MapSnapshot(
        name,
        value["kind"],
        tuple((entry["key"], _value_from_json(entry)) for entry in value["entries"]),
    )


def _value_to_json(value: MapValue) -> dict[str, Any]:
    if isinstance(value, Histogram):
        return {"buckets": value.to_json()}
    if isinstance(value, Stats):
        return {"stats": {"average": value.average, "count": value.count, "total": value.total}}
    return {"value": value}


def _value_from_json(entry: Mapping[str, Any]) -> MapValue:
    if "buckets" in entry:
        return Histogram.from_json(entry["buckets"])
    if "stats" in entry:
        stats = entry["stats"]
        return Stats(stats["average"], stats["count"], stats["total"])
    return _freeze(entry["value"])


def _freeze(value: Any) -> Scalar:
    if isinstance(value, list | tuple):
        return tuple(_freeze(part) for part in value)
    if value is None or isinstance(value, int | float | str):
        return value
    raise TypeError(f"a value of unknown kind: {value!r}")


def _raw_to_json(line: RawLine) -> dict[str, Any]:
    return {"line_number": line.line_number, "text": line.text, "reason": line.reason}


def _raw_from_json(value: Mapping[str, Any]) -> RawLine:
    return RawLine(value["line_number"], value["text"], value["reason"])
