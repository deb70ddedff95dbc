"""
Sizes, durations and rates: from words to numbers and back, exactly.

Decimal suffixes are 1000-based (`128k` = 128000, `8M` = 8000000) and binary
ones 1024-based (`64KiB`), so that a size means the same on the command line,
in the manifest and in a folder's name.
"""

import re
from decimal import Decimal

from quiclab.errors import UsageError

_SIZE = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)(?P<suffix>[A-Za-z]*)", re.ASCII)
_DURATION = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?P<suffix>ms|s|min|h|)", re.ASCII)
_BYTES_BY_SUFFIX = {
    "": 1,
    "b": 1,
    "k": 1000,
    "kb": 1000,
    "m": 1000**2,
    "mb": 1000**2,
    "g": 1000**3,
    "gb": 1000**3,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
}
_SHORT_SUFFIXES = (
    ("G", 1000**3),
    ("M", 1000**2),
    ("k", 1000),
    ("GiB", 1024**3),
    ("MiB", 1024**2),
    ("KiB", 1024),
)
_MS_PER_S = 1000
_LARGEST_SIZE_BYTES = 2**62 - 1  # what a QUIC variable-length integer holds (RFC 9000, Section 16)
_LONGEST_DURATION_S = 24 * 3600
_SECONDS_PER_MINUTE = 60
_SECONDS_BY_SUFFIX = {"": 1, "s": 1, "min": _SECONDS_PER_MINUTE, "h": 3600}


def parse_size(text: str, *, option: str) -> int:
    """
    Read a size in bytes, such as `8000000`, `128k`, `8M`, `64KiB` or `1.5M`.

    Args:
        text: What was written.
        option: The option it was written for, named in the error.

    Raises:
        UsageError: It is no size, no whole number of bytes, or zero.
    """
    match = _SIZE.fullmatch(text)
    scale = None if match is None else _BYTES_BY_SUFFIX.get(match["suffix"].lower())
    if match is None or scale is None:
        raise UsageError(
            f"{option} {_quoted(text)} is not a size; "
            "write bytes (8000000), 128k, 8M, 64KiB or 8MiB"
        )
    exact_bytes = Decimal(match["number"]) * scale
    if exact_bytes != exact_bytes.to_integral_value():
        raise UsageError(
            f"{option} {text} is no whole number of bytes; write bytes, 128k, 8M, 64KiB or 8MiB"
        )
    if not 1 <= exact_bytes <= _LARGEST_SIZE_BYTES:
        raise UsageError(
            f"{option} {text} is {exact_bytes:,.0f} bytes; write 1 to {_LARGEST_SIZE_BYTES:,}"
        )
    return int(exact_bytes)


def render_size(size_bytes: int) -> str:
    """
    Shortest spelling that reads back as exactly this many bytes: `8M`, `64KiB`, `65535`.
    """
    spellings = [
        f"{size_bytes // scale}{suffix}"
        for suffix, scale in _SHORT_SUFFIXES
        if size_bytes and size_bytes % scale == 0
    ]
    return min([*spellings, str(size_bytes)], key=len)


def render_bytes(size_bytes: int) -> str:
    """
    Exact bytes for people: `8,000,000 B`.
    """
    return f"{size_bytes:,} B"


def parse_duration(text: str, *, option: str) -> float:
    """
    Read a duration in seconds, such as `500ms`, `2.5`, `3s`, `10min` or `1h`.

    Args:
        text: What was written.
        option: The option it was written for, named in the error.

    Raises:
        UsageError: It is no duration, zero, or longer than a day.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{option} {_quoted(text)} is not a duration; "
            "write seconds (2.5), 3s, 500ms, 10min or 1h"
        )
    exact_s = Decimal(match["number"])
    if match["suffix"] == "ms":
        exact_s /= _MS_PER_S
    else:
        exact_s *= _SECONDS_BY_SUFFIX[match["suffix"]]
    if not 0 < exact_s <= _LONGEST_DURATION_S:
        raise UsageError(
            f"{option} {text} is out of range; "
            f"write more than 0 and at most {_LONGEST_DURATION_S} s"
        )
    return float(exact_s)


def render_duration(duration_s: float) -> str:
    """
    A duration as a person would write it: `500 ms`, `2.5 s`, `3 min 20 s`.
    """
    if duration_s < 1:
        return f"{duration_s * _MS_PER_S:.3g} ms"
    if duration_s < 10 * _SECONDS_PER_MINUTE and duration_s != int(duration_s):
        return f"{duration_s:.1f} s"
    if duration_s < 2 * _SECONDS_PER_MINUTE:
        return f"{duration_s:.0f} s"
    minutes, seconds = divmod(round(duration_s), _SECONDS_PER_MINUTE)
    return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"


def render_rate(bytes_per_s: float) -> str:
    """
    A goodput in decimal megabytes, three digits: `53.1 MB/s`, `0.482 MB/s`.
    """
    megabytes_per_s = bytes_per_s / 1e6
    if megabytes_per_s >= 100:  # noqa: PLR2004  (three digits need no fraction from here on)
        return f"{megabytes_per_s:,.0f} MB/s"
    return f"{megabytes_per_s:.3g} MB/s"


def parse_count(text: str, *, option: str, least: int = 1, most: int | None = None) -> int:
    """
    Read a whole number written in digits.

    Args:
        text: What was written.
        option: The option it was written for, named in the error.
        least: Smallest number that makes sense.
        most: Largest one; None when there is none.

    Raises:
        UsageError: It is no whole number, or out of range.
    """
    span = f"{least} or more" if most is None else f"{least} to {most:,}"
    if re.fullmatch(r"[0-9]{1,18}", text, re.ASCII) is None:
        raise UsageError(f"{option} {_quoted(text)} is not a whole number; write {span}")
    number = int(text)
    if number < least or (most is not None and number > most):
        raise UsageError(f"{option} {text} is out of range; write {span}")
    return number


def _quoted(text: str) -> str:
    """Quotes only where the value would not stand by itself."""
    return text if text and text.isprintable() and " " not in text else repr(text)
