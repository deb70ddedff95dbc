"""
Two sides in turn, what a pair says, and what many pairs say together. Pure.

CPU and goodput of one machine swing by a fifth and more within minutes, so two
figures are only compared when they were measured one right after the other: A B B A
A B ..., so that a machine which grows slower favours neither. Each pair gives one
figure; the median of these is the result.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, Protocol, TypeVar

from quiclab.comparison import MOST_STEAL

# A run with more of it, or of MOST_STEAL, is repeated. Part of what all usable cores had.
MOST_FOREIGN: Final = 0.05
MOST_TRIES: Final = 3

Order = Literal["AB", "BA"]
Verdict = Literal["aim", "at least", "missed", ""]


class Cost(Protocol):
    """What a comparison reads of a run."""

    @property
    def cpu_s_per_gb(self) -> float:
        """CPU-seconds of the server for 10^9 bytes."""

    @property
    def mb_per_s(self) -> float:
        """Goodput, 10^6 bytes a second; 0 where nothing was timed by the clock."""


class Noisy(Protocol):
    """What tells how much else went on during a run."""

    @property
    def steal(self) -> float:
        """Part of the cores that the hypervisor kept."""

    @property
    def foreign(self) -> float:
        """Part of the cores that other processes used."""


NoisyT = TypeVar("NoisyT", bound=Noisy)


class Figure(StrEnum):
    """What a comparison of A with B is about."""

    CPU_SAVED = "CPU of A / CPU of B"
    CPU_GROWN = "CPU of B / CPU of A - 1"
    CPU_ADDED = "CPU of B - CPU of A, s/GB"
    GOODPUT = "MB/s of B / MB/s of A"

    def of(self, a: Cost, b: Cost) -> float:
        """Compute it for one pair."""
        match self:
            case Figure.CPU_SAVED:
                return a.cpu_s_per_gb / b.cpu_s_per_gb
            case Figure.CPU_GROWN:
                return b.cpu_s_per_gb / a.cpu_s_per_gb - 1
            case Figure.CPU_ADDED:
                return b.cpu_s_per_gb - a.cpu_s_per_gb
            case Figure.GOODPUT:
                return b.mb_per_s / a.mb_per_s

    @property
    def is_more_better(self) -> bool:
        """Whether B is better when the figure is larger."""
        return self in {Figure.CPU_SAVED, Figure.GOODPUT}

    def render(self, value: float) -> str:
        """A value for people."""
        match self:
            case Figure.CPU_GROWN:
                return f"{value:+.1%}"
            case Figure.CPU_ADDED:
                return f"{value:+.2f}"
            case _:
                return f"×{value:.2f}"


@dataclass(frozen=True, slots=True)
class Goal:
    """
    What a figure should be.

    Args:
        at_least: What must be reached; None: nothing is asked.
        aim: What would be good.
    """

    at_least: float | None = None
    aim: float | None = None

    def judge(self, value: float, *, is_more_better: bool) -> Verdict:
        """Say what a value reaches."""

        def is_reached(bound: float | None) -> bool:
            return bound is not None and (value >= bound if is_more_better else value <= bound)

        if self.at_least is None and self.aim is None:
            return ""
        if is_reached(self.aim):
            return "aim"
        return "at least" if is_reached(self.at_least) else "missed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """
    Many values as five: the least, the quartiles, the most.
    """

    least: float
    lower_quartile: float
    median: float
    upper_quartile: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """
        Sum values up.

        Raises:
            ValueError: There are none.
        """
        if not values:
            raise ValueError("no value has no spread")
        if len(values) == 1:
            lower = upper = values[0]
        else:
            lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
        return cls(
            least=min(values),
            lower_quartile=lower,
            median=statistics.median(values),
            upper_quartile=upper,
            most=max(values),
        )


def orders(pair_count: int) -> Iterator[Order]:
    """
    Who goes first in each pair: A B, B A, A B, ...
    """
    for index in range(pair_count):
        yield "BA" if index % 2 else "AB"


def is_disturbed(run: Noisy) -> bool:
    """
    Whether too much else went on during a run for its figures to be trusted.
    """
    return run.steal > MOST_STEAL or run.foreign > MOST_FOREIGN


def run_until_quiet(
    run: Callable[[], NoisyT],
    *,
    most_tries: int = MOST_TRIES,
    discard: Callable[[NoisyT], None] = lambda _: None,
) -> NoisyT:
    """
    Run until nothing disturbed it, a bounded number of times; else the least disturbed.

    Args:
        run: Makes a run.
        most_tries: How many at most.
        discard: Is given each run that is not the result.
    """
    best = run()
    for _ in range(most_tries - 1):
        if not is_disturbed(best):
            break
        again = run()
        if _noise(again) < _noise(best):
            best, again = again, best
        discard(again)
    return best


def _noise(run: Noisy) -> float:
    return run.steal / MOST_STEAL + max(0.0, run.foreign) / MOST_FOREIGN
