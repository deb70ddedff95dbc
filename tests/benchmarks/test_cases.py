"""
The comparisons as a table: names, goals, what a user may change.
"""

import pytest

from benchmarks.cases import Wishes, choose_cases, make_cases
from quiclab.errors import UsageError

CASES = make_cases(Wishes())


def by_name(wishes: Wishes) -> dict[str, object]:
    """Comparisons by their names."""
    return {case.name: case for case in make_cases(wishes)}


def test_names_are_unique() -> None:
    """A name means one comparison."""
    names = [case.name for case in CASES]
    assert sorted(set(names)) == sorted(names)


def test_every_figure_of_the_table_has_a_goal() -> None:
    """What was promised is asked for: at least, and aim."""
    goals = {case.name: (case.goal.at_least, case.goal.aim) for case in CASES}
    assert {name: goal for name, goal in goals.items() if goal != (None, None)} == {
        "stock-download-1200": (2.5, 3.2),
        "stock-download-8900": (2.2, 2.6),
        "stock-upload-1200": (1.8, 2.2),
        "floor-1200-64": (0.90, 0.97),
        "floor-1200-10": (0.80, 0.92),
        "floor-8900-10": (0.70, 0.82),
        "probes-off": (0.03, 0.01),
        "traced-8900": (0.7, 0.3),
        "traced-1200": (2.0, 1.0),
        "workers-2": (1.25, None),
        "connections-64": (0.8, 0.95),
    }


def test_both_sides_of_a_comparison_move_the_same_bytes() -> None:
    """What differs is the side, the number of connections or of streams."""
    assert [
        case.name
        for case in CASES
        if (case.a_work.total_bytes, case.a_work.datagram_bytes, case.a_work.direction)
        != (case.b_work.total_bytes, case.b_work.datagram_bytes, case.b_work.direction)
    ] == []


def test_only_chooses_by_name_and_by_beginning() -> None:
    """A whole name is one comparison, the beginning of several is all of these, once."""
    chosen = choose_cases(CASES, only=["connections-8", "connections"], is_quick=False)
    assert [case.name for case in chosen] == ["connections-8", "connections-64", "connections-500"]


def test_unknown_name_is_refused_with_those_that_exist() -> None:
    """The line says what there is."""
    with pytest.raises(UsageError, match="stock-download-1200"):
        choose_cases(CASES, only=["stok"], is_quick=False)


def test_quick_is_the_core() -> None:
    """A minute's worth: stock both ways, and the floor."""
    chosen = choose_cases(CASES, only=[], is_quick=True)
    assert [case.name for case in chosen] == [
        "stock-download-1200",
        "stock-download-8900",
        "stock-upload-1200",
        "floor-1200-10",
        "floor-8900-10",
    ]


def test_datagram_leaves_comparisons_about_a_size_alone() -> None:
    """`--datagram` changes growth, workers and probes; a size in a name stays true."""
    for case in make_cases(Wishes(datagram_bytes=8_900)):
        expected = int(case.name.split("-")[-1]) if case.name.startswith("stock") else None
        if expected is not None:
            assert case.b_work.datagram_bytes == expected
        if case.name.startswith(("connections", "streams", "workers", "probes")):
            assert case.b_work.datagram_bytes == 8_900


def test_buffer_reaches_our_server_only() -> None:
    """Stock has no TX ring, and the floor none either."""
    for case in make_cases(Wishes(buffer_bytes=8_000_000)):
        for side in (case.a, case.b):
            assert ("8000000" in side.words) is (side.kind == "ours")


def test_loads_follow_the_machines_speed() -> None:
    """Half the speed moves half the bytes, so that a run lasts alike."""
    usual, slow = by_name(Wishes()), by_name(Wishes(speed=0.5))
    for name, case in usual.items():
        half = slow[name].b_work.total_bytes  # type: ignore[attr-defined]
        assert half == case.b_work.total_bytes // 2  # type: ignore[attr-defined]
