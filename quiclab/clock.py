"""
Time as the main path sees it, so that the fake runner can make it fly.
"""

import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """
    A clock that never goes back, a way to let it run, and the hour on the wall.

    The wall's hour names things and is never subtracted: it may be set at any moment.
    """

    def now_s(self) -> float:
        """Seconds since some fixed instant."""

    def sleep(self, duration_s: float) -> None:
        """Wait."""

    def utc(self) -> datetime:
        """The hour, as this machine believes."""


class SystemClock:
    """The real one."""

    def now_s(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def sleep(self, duration_s: float) -> None:
        """Wait; a signal handler that raises ends it."""
        time.sleep(duration_s)

    def utc(self) -> datetime:
        """Read the wall clock."""
        return datetime.now(UTC)


class FakeClock:
    """
    Time that passes only when somebody waits.

    Args:
        steps_s: By how much the wall clock is set each time it is read, for tests of that.
    """

    def __init__(self, steps_s: Sequence[float] = ()) -> None:
        self._now_s = 0.0
        self._wall = datetime.now(UTC)
        self._steps_s = list(steps_s)

    def now_s(self) -> float:
        """Seconds since the clock was made."""
        return self._now_s

    def sleep(self, duration_s: float) -> None:
        """Let time pass."""
        self._now_s += duration_s

    def utc(self) -> datetime:
        """Read the wall clock, which somebody may have set since."""
        step_s = self._steps_s.pop(0) if self._steps_s else 0.0
        self._wall += timedelta(seconds=step_s)
        return self._wall + timedelta(seconds=self._now_s)


def process_age_s() -> float:
    """
    Seconds since this process began, to 10 ms; a shell that became it by exec counts, too.

    The kernel keeps the start in clock ticks since boot (proc_pid_stat(5), field 22).
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)
