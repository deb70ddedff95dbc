"""
Tells a load that stands still from one that is merely slow. Pure.
"""

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """
    How patient a load is.

    Args:
        stall_s: How long nothing at all may move. aioquic's probe timeout doubles with
            each loss; four lost probes in a row take about 3 s on loopback, and nothing
            for three times that is no bad luck.
        grace_s: What every load gets, handshakes and ends included.
        slowest_bytes_per_s: A load that moves gets the time that this rate takes. A
            stock aioquic pair moves 25 MB/s on one slow core.
    """

    stall_s: float = 10.0
    grace_s: float = 30.0
    slowest_bytes_per_s: float = 250_000.0


DEFAULT_LIMITS: Final = Limits()


@dataclass(slots=True)
class StallWatch:
    """
    Notes when a figure that only grows last grew.

    Args:
        began_s: When the watch began.
        limit_s: How long it may stand still.
    """

    began_s: float
    limit_s: float = DEFAULT_LIMITS.stall_s
    _progress: int = field(default=-1, init=False)
    _moved_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._moved_s = self.began_s

    def note(self, progress: int, *, now_s: float) -> bool:
        """
        Take the figure's value now; True when it has stood still for too long.
        """
        if progress != self._progress:
            self._progress = progress
            self._moved_s = now_s
        return now_s - self._moved_s >= self.limit_s

    def still_s(self, now_s: float) -> float:
        """
        For how long nothing has moved.
        """
        return now_s - self._moved_s

    @property
    def deadline_s(self) -> float:
        """
        When it will have stood still for too long, if nothing moves until then.
        """
        return self._moved_s + self.limit_s
