"""Maps as text, held against what bpftrace itself printed."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiclab.histogram import HistogramError
from quiclab.trace.events import MapSnapshot
from quiclab.trace.ndjson import parse_trace
from quiclab.trace.text import parse_text, render_maps
from tests.quiclab.test_histogram import histograms
from tests.userland import REPOSITORY

REFERENCE = REPOSITORY / "tests/data/reference"
TABLES = sorted(REFERENCE.rglob("*.txt"))


@pytest.mark.parametrize("path", TABLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_published_tables_are_read_and_printed_byte_for_byte(path: Path) -> None:
    """The original's published results are read into the model and printed again unchanged."""
    text = path.read_text()
    output = parse_text(text)
    assert () == output.other_lines
    assert text == render_maps(output.maps)


def test_there_are_published_tables() -> None:
    """The golden test has something to hold against: both machines' tables are there."""
    assert {"io-latencies--8M", "udp-syscall--128k", "recv-buffers"} <= {
        path.stem for path in TABLES
    }
    assert 14 == len(TABLES)


def test_json_renders_to_the_text_that_bpftrace_printed(recording: Path, version: str) -> None:
    """Histograms read from JSON look exactly as the same version's own text output."""
    printed = {
        snapshot.name: snapshot
        for snapshot in parse_text((recording / "kinds.txt").read_text()).maps
    }
    for snapshot in parse_trace((recording / "kinds.jsonl").read_bytes()).maps.values():
        if snapshot.kind != "hist":
            continue
        if version.startswith("0.17") and snapshot.name == "@hist_large":
            continue  # its [2G, 4G) holds all that is larger too: shown as [2G, ...)
        assert render_maps([printed[snapshot.name]]) == render_maps([snapshot])
        assert render_maps([snapshot]) in (recording / "kinds.txt").read_text().replace(
            ": \n", ":\n"
        )


def test_scalars_render_as_bpftrace_prints_them(recording: Path, version: str) -> None:
    """Counts, sums, strings, tuples look as in bpftrace's own text; stats as up to 0.23."""
    lines = set((recording / "kinds.txt").read_text().splitlines())
    for snapshot in parse_trace((recording / "kinds.jsonl").read_bytes()).maps.values():
        is_other_form = snapshot.kind == "stats" and version == "0.27.1"
        if snapshot.kind == "hist" or snapshot.name == "@keyed" or is_other_form:
            continue  # JSON joins the parts of a key by "," where text has ", "
        assert set(render_maps([snapshot]).strip().splitlines()) <= lines


def test_other_output_is_kept_apart(recording: Path) -> None:
    """What a script printed is not taken for a map."""
    output = parse_text((recording / "kinds.txt").read_text())
    assert "kinds: begun" in output.other_lines
    assert "17" in output.other_lines


@given(
    st.lists(
        st.tuples(st.from_regex(r"@[a-z_]{1,12}", fullmatch=True), histograms()),
        unique_by=lambda pair: pair[0],
        max_size=3,
    )
)
def test_rendered_maps_are_read_back_equal(pairs: list[tuple[str, object]]) -> None:
    """Any histograms written as text are read back as they were."""
    maps = tuple(
        MapSnapshot(name, "hist", ((None, histogram),))  # type: ignore[arg-type]
        for name, histogram in pairs
    )
    assert maps == parse_text(render_maps(maps)).maps


def test_no_maps_are_no_text() -> None:
    """Nothing renders to nothing."""
    assert "" == render_maps([])
    assert () == parse_text("").maps


def test_a_bucket_without_a_map_is_refused() -> None:
    """A table whose first line is missing is named with its line."""
    with pytest.raises(HistogramError, match=r"line 2: .* stands under no map's name"):
        parse_text("\n[1]                    5 |@@@@|\n")


def test_a_damaged_bucket_is_named() -> None:
    """A bucket line that cannot be read is shown."""
    with pytest.raises(HistogramError, match="is no bucket"):
        parse_text("@x:\n[4, 8)   many |@@|\n")
