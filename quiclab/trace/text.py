"""
Maps as text, in the form of bpftrace's own output (of its versions up to 0.23).

Written for people, and read back because published results exist only so. Text
cannot say everything: a key or a string with a line break in it does not come
back as it was.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from quiclab.histogram import (
    Histogram,
    HistogramError,
    is_histogram_row,
    parse_histogram,
    render_histogram,
)
from quiclab.trace.events import MapSnapshot, MapValue, Scalar, Stats

_HEAD: Final = re.compile(r"(@\w*)(?:\[(.*)\])?:(?: (.*))?", re.DOTALL)
_STATS: Final = re.compile(r"count (\d+), average (-?\d+), total (-?\d+)")


@dataclass(frozen=True, slots=True)
class TextOutput:
    """
    What bpftrace printed as text.

    Args:
        maps: In the order printed.
        other_lines: Everything else that is not blank.
    """

    maps: tuple[MapSnapshot, ...]
    other_lines: tuple[str, ...]

    def histogram(self, name: str) -> Histogram | None:
        """Find the histogram of a map without keys; None when there is none."""
        for snapshot in self.maps:
            if snapshot.name == name and not snapshot.is_keyed:
                return snapshot.value if isinstance(snapshot.value, Histogram) else None
        return None


def render_maps(maps: Iterable[MapSnapshot]) -> str:
    """
    Write maps as bpftrace prints them, a blank line behind each histogram but the last.
    """
    parts = []
    for snapshot in maps:
        for key, value in snapshot.entries:
            name = snapshot.name if key is None else f"{snapshot.name}[{key}]"
            parts.append(_render_entry(name, value))
    return "".join(parts).removesuffix("\n\n") + "\n" if parts else ""


def parse_text(text: str) -> TextOutput:
    """
    Read maps back from bpftrace's text output; what is no map is kept apart.

    Raises:
        HistogramError: A bucket is damaged, or stands without a map's name above it.
    """
    entries: dict[str, list[tuple[str | None, MapValue]]] = {}
    kinds: dict[str, str] = {}
    other_lines = []
    value: MapValue
    lines = text.splitlines()
    index = 0
    while index < len(lines):
        line = lines[index].rstrip()
        index += 1
        head = _HEAD.fullmatch(line)
        if head is None:
            if is_histogram_row(line):
                raise HistogramError(f"line {index}: {line!r} stands under no map's name")
            if line:
                other_lines.append(line)
            continue
        name, key, words = head.groups()
        if words:
            kinds[name], value = _parse_value(words)
        else:
            end = index
            while end < len(lines) and lines[end].strip():
                end += 1
            kinds[name], value = "hist", parse_histogram(lines[index:end])
            index = end
        entries.setdefault(name, []).append((key, value))
    maps = tuple(MapSnapshot(name, kinds[name], tuple(entries[name])) for name in entries)
    return TextOutput(maps, tuple(other_lines))


def _render_entry(name: str, value: MapValue) -> str:
    if isinstance(value, Histogram):
        return f"{name}:\n{render_histogram(value)}\n"
    if isinstance(value, Stats):
        if value.count is None:
            return f"{name}: {value.average}\n\n"
        return f"{name}: count {value.count}, average {value.average}, total {value.total}\n\n"
    return f"{name}: {_render_scalar(value)}\n"


def _render_scalar(value: Scalar) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(_render_scalar(part) for part in value)})"
    return str(value)


def _parse_value(words: str) -> tuple[str, MapValue]:
    stats = _STATS.fullmatch(words)
    if stats is not None:
        count, average, total = (int(part) for part in stats.groups())
        return "stats", Stats(average, count, total)
    if re.fullmatch(r"-?\d+", words):
        return "map", int(words)
    return "map", words
