"""
Time as the main path sees it, so that the fake runner can make it fly.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """
    A clock that never goes back, and a way to let it run.
    """

    def now_s(self) -> float:
        """Seconds since some fixed instant."""

    def sleep(self, duration_s: float) -> None:
        """Wait."""


class SystemClock:
    """The real one."""

    def now_s(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        """Wait; a signal handler that raises ends it."""
        time.sleep(duration_s)


class FakeClock:
    """
    Time that passes only when somebody waits.
    """

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        """Seconds since the clock was made."""
        return self._now_s

    def sleep(self, duration_s: float) -> None:
        """Let time pass."""
        self._now_s += duration_s
