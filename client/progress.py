"""
Tells a load that stands still from one that is merely slow. Pure.
"""

from dataclasses import dataclass, field
from typing import Final

# aioquic's probe timeout doubles with each loss; four probes in a row that are lost
# take about 3 s on loopback. Nothing at all for three times that is no bad luck.
STALL_S: Final = 10.0


@dataclass(slots=True)
class StallWatch:
    """
    Notes when a figure that only grows last grew.

    Args:
        began_s: When the watch began.
        limit_s: How long it may stand still.
    """

    began_s: float
    limit_s: float = STALL_S
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
