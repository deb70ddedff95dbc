"""
What the roles of one real run said, and how a fake run makes other runs of it. Pure but for files.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from quiclab.histogram import Histogram
from quiclab.trace.events import Trace
from quiclab.trace.ndjson import parse_trace

RECORDINGS: Final = Path(__file__).parent / "recordings"
MOVED_BYTES_PER_S: Final = 50_000_000


def load_recording(name: str) -> dict[str, Any]:
    """
    What the recorded run's roles said: "server-describe", "server-report", "client-describe"
    or "client-result".
    """
    value: dict[str, Any] = json.loads((RECORDINGS / f"{name}.json").read_bytes())
    return value


def read_options(argv: Sequence[str]) -> dict[str, str]:
    """Options with their values; of a tracer also its script."""
    options = {
        word: value
        for word, value in itertools.pairwise(argv)
        if word.startswith("-") and not value.startswith("--")
    }
    scripts = [word for word in argv if word.endswith(".bt")]
    return options | ({"script": scripts[0]} if scripts else {})


def find_load_s(options: Mapping[str, str]) -> float:
    """
    How long a client with these options loads, at the recorded rate.
    """
    moved_bytes = int(options.get("--receive", "0")) + int(options.get("--send", "0"))
    by_bytes_s = moved_bytes / MOVED_BYTES_PER_S if moved_bytes else float("inf")
    by_time_s = float(options["--duration"]) if "--duration" in options else float("inf")
    return min(by_bytes_s, by_time_s)


def make_ring(*, asked_bytes: int, payload_bytes: int) -> dict[str, int]:
    """The original's sizing rule: entries rounded up to a power of two, at least one."""
    entries = max(1, asked_bytes // payload_bytes)
    return {
        "entries": 1 << (entries - 1).bit_length(),
        "payload_bytes": payload_bytes,
        "asked_bytes": asked_bytes,
    }


def record_maps(rules: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """
    What the server's recorder would have counted in the recorded run: the maps of its traces.
    """
    maps: dict[str, Any] = {}
    for rule in rules:
        for full_name in (rule["map"], rule.get("unmatched", "")):
            script, sign, name = full_name.partition("@")
            if rule["kind"] == "start" or not sign or full_name in maps:
                continue
            snapshot = load_trace(script).maps.get(f"@{name}")
            value = None if snapshot is None else snapshot.value
            is_count = rule["kind"] == "count" or full_name != rule["map"]
            maps[full_name] = {"kind": "count" if is_count else rule["kind"], "count": value or 0}
            if not is_count:
                buckets = (
                    [
                        {"min": each.low, "max": each.high, "count": each.count}
                        for each in value.buckets
                    ]
                    if isinstance(value, Histogram)
                    else []
                )
                count = sum(bucket["count"] or 0 for bucket in buckets)
                maps[full_name] |= {
                    **dict.fromkeys(("buckets", "least", "most"), buckets),
                    "count": count,
                }
    widths = [{"min": 0, "max": 0, "count": 1}]
    return {
        "maps": maps,
        "widths": widths,
        "largest_width_ns": 0,
        "event_count": 0,
        "lost_start_count": 0,
    }


def load_trace(script: str) -> Trace:
    """
    The trace that the recorded run left of a script.
    """
    return parse_trace((RECORDINGS / f"{script}.jsonl").read_bytes())


def zero(report: dict[str, Any]) -> dict[str, Any]:
    """
    A report of a server that has counted nothing yet.
    """
    totals = {
        group: {
            name: 0 if isinstance(value, int) else type(value)() for name, value in counts.items()
        }
        for group, counts in report["total"].items()
    }
    return report | {"total": totals, "rings_empty": True}
