"""
The table: what a person reads of a comparison.
"""

import pytest

from benchmarks.results import CalibrationFacts, CaseResult, RunResult
from benchmarks.table import (
    find_full,
    render_calibration,
    render_notes,
    render_rows,
    render_table,
)
from tests.benchmarks.samples import find_case, make_case_result, make_outcome, make_pair


def test_rows_show_both_sides_the_figure_and_the_goal() -> None:
    """Medians of A and B, the ratio with its ends, what was asked, what was reached."""
    assert render_rows(make_case_result()) == [
        ["stock-download-1200"],
        ["  stock", "60.00", "16.7", "server", "×3.00", "×2.50; ×3.20"],
        ["  ours", "20.00", "50.0", "server", "×2.00 … ×4.00", "at least"],
    ]


def test_rows_of_a_disturbed_comparison_say_so() -> None:
    """Nobody takes its figure for one that can be relied on."""
    rows = render_rows(make_case_result(foreign_ns=3_000_000_000))
    assert rows[-1][-1] == "at least (disturbed)"


def test_rows_of_a_comparison_that_was_not_measured() -> None:
    """It keeps its place and its goal."""
    rows = render_rows(CaseResult.of(find_case("workers-2"), [], failure="why"))
    assert rows == [["workers-2"], ["  not measured", "", "", "", "", "×1.25"]]


def test_rows_of_the_floor_have_no_goodput() -> None:
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
    rows = render_rows(CaseResult.of(find_case("floor-1200-10"), pairs))
    assert ["-", "50.0"] == [row[2] for row in rows[1:]]


def test_table_fits_80_columns_without_trailing_blanks() -> None:
    """Titles first, three lines a comparison; nothing is wrapped or cut."""
    lines = render_table([make_case_result(), make_case_result("connections-500")])
    assert len(lines) == 7
    assert [line for line in lines if line != line.rstrip()] == []
    assert max(map(len, lines)) <= 80
    assert lines[4:] == [line for line in lines[4:] if "…  " not in line]
    assert lines[4] == "connections-500"


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
