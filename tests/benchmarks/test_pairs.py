"""
Pairs: their figures, their order, and what a disturbed machine does to them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.pairs import (
    MOST_TRIES,
    Figure,
    Goal,
    Spread,
    is_disturbed,
    orders,
    run_until_quiet,
)


@dataclass(frozen=True)
class Run:
    """What a comparison reads."""

    cpu_s_per_gb: float = 1.0
    mb_per_s: float = 1.0
    steal: float = 0.0
    foreign: float = 0.0


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        (Figure.CPU_SAVED, 3.0),
        (Figure.CPU_GROWN, -2 / 3),
        (Figure.CPU_ADDED, -40.0),
        (Figure.GOODPUT, 2.0),
    ],
    ids=str,
)
def test_figure_compares_b_with_a(figure: Figure, expected: float) -> None:
    """B at a third of the CPU and twice the goodput of A, in each figure's own way."""
    assert figure.of(Run(60.0, 15.0), Run(20.0, 30.0)) == pytest.approx(expected)


def test_figures_say_which_way_is_better() -> None:
    """More of what is saved, less of what is added."""
    better = {figure: figure.is_more_better for figure in Figure}
    assert better == {
        Figure.CPU_SAVED: True,
        Figure.GOODPUT: True,
        Figure.CPU_GROWN: False,
        Figure.CPU_ADDED: False,
    }


@pytest.mark.parametrize(
    ("figure", "value", "expected"),
    [
        (Figure.CPU_SAVED, 2.456, "×2.46"),
        (Figure.GOODPUT, 0.8, "×0.80"),
        (Figure.CPU_GROWN, 0.0123, "+1.2%"),
        (Figure.CPU_ADDED, -0.3, "-0.30"),
    ],
)
def test_figure_is_rendered_in_its_own_unit(figure: Figure, value: float, expected: str) -> None:
    """Ratios by a cross, growth in percent, additions with their sign."""
    assert figure.render(value) == expected


@pytest.mark.parametrize(
    ("value", "is_more_better", "expected"),
    [
        (3.2, True, "aim"),
        (2.5, True, "at least"),
        (2.4, True, "missed"),
        (0.01, False, "aim"),
        (2.0, False, "missed"),
    ],
)
def test_goal_judges_by_the_side_that_is_better(
    value: float,
    is_more_better: bool,
    expected: str,
) -> None:
    """A bound that is met exactly is reached."""
    goal = Goal(2.5, 3.2) if is_more_better else Goal(0.03, 0.01)
    assert goal.judge(value, is_more_better=is_more_better) == expected


def test_goal_without_bounds_says_nothing() -> None:
    """What nobody asked for is neither reached nor missed."""
    assert Goal().judge(1.0, is_more_better=True) == ""


def test_goal_without_an_aim_is_only_reached() -> None:
    """No aim cannot be met, however good the figure."""
    assert Goal(1.25).judge(9.0, is_more_better=True) == "at least"


def test_spread_of_known_values() -> None:
    """Median and quartiles as a person would count them."""
    spread = Spread.of([5.0, 1.0, 3.0, 2.0, 4.0])
    assert spread == Spread(least=1.0, lower_quartile=2.0, median=3.0, upper_quartile=4.0, most=5.0)


def test_spread_of_nothing_is_refused() -> None:
    """No value has no median."""
    with pytest.raises(ValueError, match="no value"):
        Spread.of([])


@given(st.lists(st.floats(min_value=-1e6, max_value=1e6), min_size=1))
def test_spread_is_in_order(values: list[float]) -> None:
    """Least, quartiles and most never change places, and the ends are values."""
    spread = Spread.of(values)
    assert min(values) == spread.least
    assert max(values) == spread.most
    slack = 1e-6  # of interpolation
    assert spread.least <= spread.lower_quartile + slack
    assert spread.lower_quartile <= spread.median + slack
    assert spread.median <= spread.upper_quartile + slack
    assert spread.upper_quartile <= spread.most + slack


def test_orders_alternate() -> None:
    """A B B A A B ...: a machine that slows down favours neither."""
    assert list(orders(3)) == ["AB", "BA", "AB"]


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (Run(steal=0.02, foreign=0.05), False),
        (Run(steal=0.021), True),
        (Run(foreign=0.051), True),
        (Run(foreign=-0.2), False),
    ],
    ids=["at both bounds", "steal", "foreign", "ticks counted late"],
)
def test_run_is_disturbed_beyond_either_bound(run: Run, expected: bool) -> None:
    """The bounds themselves are still quiet."""
    assert is_disturbed(run) is expected


def feed(*runs: Run) -> tuple[Iterator[Run], list[Run]]:
    """Runs in order, and those that were taken."""
    taken: list[Run] = []

    def give() -> Iterator[Run]:
        for run in runs:
            taken.append(run)
            yield run

    return give(), taken


def test_quiet_run_is_made_once() -> None:
    """Nothing is repeated without need."""
    runs, taken = feed(Run(), Run())
    assert run_until_quiet(runs.__next__) == Run()
    assert len(taken) == 1


def test_disturbed_run_is_repeated_until_one_is_quiet() -> None:
    """The quiet one counts."""
    quiet = Run(foreign=0.01)
    runs, taken = feed(Run(foreign=0.5), quiet, Run())
    assert run_until_quiet(runs.__next__) == quiet
    assert len(taken) == 2


def test_never_quiet_gives_the_least_disturbed_after_a_bounded_number() -> None:
    """A busy machine ends the search, and the best of it is kept."""
    runs, taken = feed(Run(foreign=0.5), Run(foreign=0.1), Run(steal=0.9), Run())
    assert run_until_quiet(runs.__next__) == Run(foreign=0.1)
    assert len(taken) == MOST_TRIES


def test_runs_that_are_not_the_result_are_not_forgotten() -> None:
    """Each try that another one replaced is handed on."""
    tries = [Run(steal=0.5), Run(steal=0.1), Run(steal=0.3)]
    discarded: list[Run] = []
    assert run_until_quiet(iter(tries).__next__, discard=discarded.append) is tries[1]
    assert discarded == [tries[0], tries[2]]
