"""
What is read of /proc, from one that was written.
"""

import os
from pathlib import Path

import pytest

from benchmarks.measure import calibrate, cpu_ns, machine_times

NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def test_cpu_adds_up_all_threads_of_all_processes(tmp_path: Path) -> None:
    """Nanoseconds on a CPU are schedstat's first column."""
    for pid, tid, text in (("7", "7", "100 5 1"), ("7", "8", "20 5 1"), ("9", "9", "3 5 1")):
        task = tmp_path / pid / "task" / tid
        task.mkdir(parents=True)
        (task / "schedstat").write_text(f"{text}\n")
    assert cpu_ns([7, 9], proc=tmp_path) == 123


def test_cpu_of_a_process_that_is_gone_is_an_error(tmp_path: Path) -> None:
    """It is never taken for 0."""
    with pytest.raises(OSError, match="task"):
        cpu_ns([1], proc=tmp_path)


def test_machine_times_are_all_cores_busy_and_stolen(tmp_path: Path) -> None:
    """User, nice, system, irq and softirq are busy; idle and waiting are not."""
    (tmp_path / "stat").write_text("cpu  1 2 4 800 900 8 16 32 64 64\ncpu0 1 2 4 8\n")
    times = machine_times(proc=tmp_path)
    assert times.busy_ns == 31 * NS_PER_TICK
    assert times.steal_ns == 32 * NS_PER_TICK


def test_calibration_gives_both_rates() -> None:
    """A loop takes nanoseconds, and AES does megabytes."""
    calibration = calibrate()
    assert 1 < calibration.loop_ns < 100_000
    assert calibration.aead_mb_per_s > 1
