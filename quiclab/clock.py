"""
Time as the main path sees it, so that the fake runner can make it fly.
"""

import os
import time
from pathlib import Path
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


def process_age_s() -> float:
    """
    Seconds since this process began, to 10 ms; a shell that became it by exec counts, too.

    The kernel keeps the start in clock ticks since boot (proc_pid_stat(5), field 22).
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)
