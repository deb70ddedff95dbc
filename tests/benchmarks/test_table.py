"""
The table: what a person reads of a comparison.
"""

import pytest

from benchmarks.results import CalibrationFacts, CaseResult, RunResult
from benchmarks.table import (
    find_full,
    render_calibration,
    render_notes,
    render_row,
    render_table,
)
from tests.benchmarks.samples import find_case, make_case_result, make_outcome, make_pair


def test_row_shows_both_sides_the_figure_and_the_goal() -> None:
    """Medians of A and B, the ratio with its ends, what was asked, what was reached."""
    assert render_row(make_case_result()) == [
        "stock-download-1200: stock, ours",
        "60.00  20.00",
        " 16.7  50.0",
        "server",
        "×3.00",
        "×2.00 … ×4.00",
        "×2.50; ×3.20",
        "at least",
    ]


def test_row_of_a_disturbed_comparison_says_so() -> None:
    """Nobody takes its figure for one that can be relied on."""
    assert render_row(make_case_result(foreign_ns=3_000_000_000))[-1] == "at least (disturbed)"


def test_row_of_a_comparison_that_was_not_measured() -> None:
    """It keeps its place and its goal."""
    row = render_row(CaseResult.of(find_case("workers-2"), [], failure="why"))
    assert row[0] == "workers-2"
    assert row[-2:] == ["×1.25", "not measured"]


def test_row_of_the_floor_has_no_goodput() -> None:
    """No clock timed it."""
    floor = make_outcome(cpu_s_per_gb=15.0, seconds=1.0)
    floor = type(floor)(
        total_bytes=floor.total_bytes,
        seconds=0.0,
        server_ns=floor.server_ns,
        foreign_ns=0,
        steal_ns=0,
        lasted_s=1.0,
    )
    pairs = [make_pair(floor, make_outcome(), value=0.75)]
    row = render_row(CaseResult.of(find_case("floor-1200-10"), pairs))
    assert row[2].split() == ["-", "50.0"]


def test_table_has_a_line_a_comparison_and_no_trailing_blanks() -> None:
    """Titles first; nothing is wrapped or cut."""
    lines = render_table([make_case_result(), make_case_result("stock-upload-1200")])
    assert len(lines) == 3
    assert [line for line in lines if line != line.rstrip()] == []
    assert "…  " not in lines[1].replace("… ", "")
    assert lines[2].startswith("stock-upload-1200: stock, ours")


@pytest.mark.parametrize(
    ("server_ns", "load_ns", "expected"),
    [
        (2_000_000_000, 100_000_000, "server"),
        (1_000_000_000, 2_000_000_000, "load"),
        (2_000_000_000, 2_000_000_000, "server+load"),
        (1_000_000_000, 1_000_000_000, "none"),
    ],
)
def test_full_core_is_named(server_ns: int, load_ns: int, expected: str) -> None:
    """Goodput speaks of whoever was full."""
    outcome = make_outcome()
    run = RunResult.of(
        type(outcome)(
            total_bytes=outcome.total_bytes,
            seconds=2.0,
            server_ns=server_ns,
            load_ns=load_ns,
            foreign_ns=0,
            steal_ns=0,
            lasted_s=2.0,
        )
    )
    assert find_full([run]) == expected


def test_notes_tell_how_often_the_client_answered() -> None:
    """A good part of what a server needs comes from that."""
    assert list(render_notes(make_case_result())) == [
        "the client answered every 20.0 datagrams of A, every 20.0 of B"
    ]


def test_notes_of_a_disturbed_comparison_name_the_disturbance() -> None:
    """Who was it: the hypervisor, or others on this machine."""
    (first, *_) = render_notes(make_case_result(foreign_ns=3_000_000_000))
    assert "of the cores used by others" in first


def test_notes_of_growth_tell_its_cpu() -> None:
    """Goodput alone would hide what it costs."""
    assert "server CPU of B / of A: ×0.33" in list(render_notes(make_case_result("connections-64")))


def test_calibration_shows_both_ends() -> None:
    """A machine that slowed down while it was measured shows."""
    before = CalibrationFacts(loop_ns=75.0, aead_mb_per_s=1500.0)
    after = CalibrationFacts(loop_ns=150.0, aead_mb_per_s=700.0)
    assert render_calibration(before, after) == (
        "75 ns a loop, AES-128-GCM 1,500 MB/s; at the end 150 ns, 700 MB/s"
    )
