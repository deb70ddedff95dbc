"""
Runs of two kinds made in turn: which of them count, and what they say together. Pure.
"""

import statistics
from collections.abc import Sequence
from typing import Final, Self

from pydantic import BaseModel, ConfigDict

MOST_STEAL: Final = 0.02
"""Part of all cores that the hypervisor may have kept in a run that counts."""


def choose_quiet(disturbed: Sequence[bool]) -> tuple[list[int], bool]:
    """
    Choose the pairs that count.

    Half of them must be undisturbed, and then these alone count; else all do, and the
    result cannot be relied on.

    Args:
        disturbed: For each pair, whether one of its runs stayed disturbed.

    Returns:
        Indexes of those that count, and whether they can be relied on.
    """
    quiet = [index for index, is_noisy in enumerate(disturbed) if not is_noisy]
    if quiet and 2 * len(quiet) >= len(disturbed):
        return quiet, True
    return list(range(len(disturbed))), False


class Change(BaseModel):
    """
    How a figure differs between two kinds of runs.

    Within a group (A B B A) each B is held against each A. So the spread holds what equal
    runs differ by, too, and a machine that grows slower or faster favours neither kind.

    Args:
        before: Median of the figure, the first kind.
        after: The same, the second kind.
        median: Median of the relative changes: 0.1 is a tenth more.
        least: The least of them.
        most: The largest.
        group_count: Groups that count.
    """

    model_config = ConfigDict(frozen=True)

    before: float
    after: float
    median: float
    least: float
    most: float
    group_count: int

    @classmethod
    def of(cls, groups: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Self | None:
        """
        Compare; None where a figure is missing or is zero.

        Args:
            groups: For each group the figures of the first kind, and of the second.
        """
        firsts = [first for group, _ in groups for first in group]
        seconds = [second for _, group in groups for second in group]
        if not firsts or not seconds or min(firsts) <= 0:
            return None
        changes = [
            second / first - 1 for before, after in groups for first in before for second in after
        ]
        return cls(
            before=statistics.median(firsts),
            after=statistics.median(seconds),
            median=statistics.median(changes),
            least=min(changes),
            most=max(changes),
            group_count=len(groups),
        )

    @property
    def is_resolved(self) -> bool:
        """Zero lies outside the spread: in each group both of one kind are above both others."""
        return self.least > 0 or self.most < 0

    @property
    def chance(self) -> int:
        """
        One in so many times runs that do not differ at all look resolved.

        Of the 6 orders of two and two equal ones, one puts the first kind below the second;
        all groups must do so, in the same direction.
        """
        return int(6**self.group_count / 2)

    def render(self) -> str:
        """Say it in short, in per cent."""
        spread = f"{self.least:+.1%} to {self.most:+.1%}"
        if not self.is_resolved:
            return f"not resolvable: zero lies inside the spread, {spread}"
        return f"{self.median:+.1%} ({spread}; equal runs look so one time in {self.chance})"
