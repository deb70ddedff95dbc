"""
Which runs of a comparison count, and when a difference is one.
"""

import pytest

from quiclab.comparison import Change, choose_quiet


@pytest.mark.parametrize(
    ("disturbed", "expected"),
    [
        ([False, False], ([0, 1], True)),
        ([True, False], ([1], True)),
        ([True, False, True, False], ([1, 3], True)),
        ([True, True, False], ([0, 1, 2], False)),
        ([True], ([0], False)),
    ],
)
def test_pairs_that_count(disturbed: list[bool], expected: tuple[list[int], bool]) -> None:
    """Quiet ones alone when they are half of all; else all, and not to be relied on."""
    assert choose_quiet(disturbed) == expected


def test_change_is_told_within_its_group() -> None:
    """A machine twice as fast in the second group changes nothing of what a pair says."""
    change = Change.of([([100.0, 100.0], [90.0, 90.0]), ([200.0, 200.0], [180.0, 180.0])])
    assert change is not None
    assert (-0.1, -0.1, -0.1) == pytest.approx((change.least, change.median, change.most))
    assert change.is_resolved
    assert 18 == change.chance


def test_change_smaller_than_equal_runs_differ_by_is_not_resolved() -> None:
    """One traced run was faster than one untraced one: that is the spread, and it is told."""
    change = Change.of([([100.0, 95.0], [94.0, 96.0])])
    assert change is not None
    assert not change.is_resolved
    assert "not resolvable: zero lies inside the spread, -6.0% to +1.1%" == change.render()


def test_change_that_is_resolved_tells_how_often_chance_does_so() -> None:
    """One group alone is little: equal runs are ordered so one time in three."""
    change = Change.of([([100.0, 102.0], [90.0, 91.0])])
    assert change is not None
    assert "-10.4% (-11.8% to -9.0%; equal runs look so one time in 3)" == change.render()


@pytest.mark.parametrize("groups", [[], [([0.0, 1.0], [1.0, 1.0])]], ids=["no-group", "zero"])
def test_figures_that_are_missing_are_not_compared(
    groups: list[tuple[list[float], list[float]]],
) -> None:
    """Nothing, or a run that moved nothing, has no ratio."""
    assert Change.of(groups) is None
