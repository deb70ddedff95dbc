"""
Sizes, durations and counts mean the same everywhere.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiclab.errors import UsageError
from quiclab.units import (
    parse_count,
    parse_duration,
    parse_size,
    render_bytes,
    render_duration,
    render_rate,
    render_size,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1", 1),
        ("8000000", 8_000_000),
        ("128k", 128_000),
        ("128K", 128_000),
        ("8M", 8_000_000),
        ("8m", 8_000_000),
        ("8MB", 8_000_000),
        ("1.5M", 1_500_000),
        ("64KiB", 65_536),
        ("8MiB", 8_388_608),
        ("1GiB", 1_073_741_824),
        ("2G", 2_000_000_000),
        ("9000B", 9000),
    ],
)
def test_parse_size_reads_decimal_and_binary_suffixes(text: str, size_bytes: int) -> None:
    """`k` and `M` are 1000-based, `KiB` and `MiB` are 1024-based, digits are bytes."""
    assert size_bytes == parse_size(text, option="--buffer")


@pytest.mark.parametrize(
    "text",
    ["", "8Q", "-1", "0", "0k", "8 M", "M", "1e6", "0.5", "1.0001k", "٣", "8_000", "8M,", "9" * 30],
)
def test_parse_size_refuses_what_is_no_size(text: str) -> None:
    """The error names the option and stays on one line."""
    with pytest.raises(UsageError, match="--buffer") as caught:
        parse_size(text, option="--buffer")
    assert "\n" not in str(caught.value)


def test_parse_size_says_how_to_write_one() -> None:
    """The line holds the value and the spellings that would have worked."""
    with pytest.raises(UsageError) as caught:
        parse_size("8Q", option="--buffer")
    assert str(caught.value) == (
        "--buffer 8Q is not a size; write bytes (8000000), 128k, 8M, 64KiB or 8MiB"
    )


@given(st.integers(min_value=1, max_value=2**62 - 1))
def test_render_size_reads_back_as_the_same_bytes(size_bytes: int) -> None:
    """No byte is lost between a size and its short spelling."""
    assert size_bytes == parse_size(render_size(size_bytes), option="--buffer")


@given(
    st.integers(min_value=1, max_value=4096),
    st.sampled_from(["", "k", "M", "KiB", "MiB"]),
)
def test_render_size_is_never_longer_than_what_a_person_wrote(number: int, suffix: str) -> None:
    """A folder's name says `8M`, not `8000000`, when 8M was asked."""
    text = f"{number}{suffix}"
    assert len(render_size(parse_size(text, option="--buffer"))) <= len(text)


@pytest.mark.parametrize(
    ("size_bytes", "short", "exact"),
    [
        (128_000, "128k", "128,000 B"),
        (131_072, "128KiB", "131,072 B"),
        (8_000_000, "8M", "8,000,000 B"),
        (8_388_608, "8MiB", "8,388,608 B"),
        (65_535, "65535", "65,535 B"),
    ],
)
def test_sizes_are_shown_short_and_exact(size_bytes: int, short: str, exact: str) -> None:
    """The short form names folders, the exact form stands in the table."""
    assert (short, exact) == (render_size(size_bytes), render_bytes(size_bytes))


@pytest.mark.parametrize(
    ("text", "duration_s"),
    [
        ("5s", 5.0),
        ("2.5", 2.5),
        ("500ms", 0.5),
        ("3", 3.0),
        (".5", 0.5),
        ("0.25s", 0.25),
        ("10min", 600.0),
        ("1.5h", 5400.0),
    ],
)
def test_parse_duration_reads_milliseconds_to_hours(text: str, duration_s: float) -> None:
    """A plain number is seconds; a bare m could be either of two and is none."""
    assert duration_s == parse_duration(text, option="--duration")


@pytest.mark.parametrize("text", ["", "abc", "-1", "0", "0ms", "5m", "nan", "inf", "1e3", "90000"])
def test_parse_duration_refuses_what_is_no_duration(text: str) -> None:
    """The error names the option and stays on one line."""
    with pytest.raises(UsageError, match="--duration") as caught:
        parse_duration(text, option="--duration")
    assert "\n" not in str(caught.value)


@given(st.integers(min_value=1, max_value=86_400_000))
def test_parse_duration_agrees_in_both_units(duration_ms: int) -> None:
    """`1500ms` and `1.5s` are the same duration."""
    in_ms = parse_duration(f"{duration_ms}ms", option="--duration")
    whole_s, rest_ms = divmod(duration_ms, 1000)
    assert in_ms == parse_duration(f"{whole_s}.{rest_ms:03d}s", option="--duration")


@pytest.mark.parametrize(
    ("duration_s", "words"),
    [
        (0.0123, "12.3 ms"),
        (0.5, "500 ms"),
        (2.5, "2.5 s"),
        (5.0, "5 s"),
        (200.0, "3 min 20 s"),
        (180.0, "3 min"),
    ],
)
def test_render_duration_picks_a_unit(duration_s: float, words: str) -> None:
    """Units always, and no more digits than a person wants."""
    assert words == render_duration(duration_s)


@pytest.mark.parametrize(
    ("bytes_per_s", "words"),
    [(53_120_000, "53.1 MB/s"), (250_400_000, "250 MB/s"), (482_000, "0.482 MB/s")],
)
def test_render_rate_keeps_three_digits(bytes_per_s: float, words: str) -> None:
    """Goodput is told in decimal megabytes a second."""
    assert words == render_rate(bytes_per_s)


@pytest.mark.parametrize("text", ["", "-1", "0", "65", "1.5", "one", "1" * 19, "1_0", "²"])
def test_parse_count_refuses_what_is_out_of_range(text: str) -> None:
    """The error names the option and what would do."""
    with pytest.raises(UsageError, match=r"--max-segments .*; write 1 to 64"):
        parse_count(text, option="--max-segments", least=1, most=64)


def test_parse_count_reads_digits() -> None:
    """A number within the range is just read."""
    assert parse_count("64", option="--max-segments", least=1, most=64) == 64
