"""
What a run costs and what disturbed it, read from /proc; and how fast this machine is now.
"""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_PROC: Final = Path("/proc")
_NS_PER_TICK: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_STEAL_COLUMN: Final = 7  # of "cpu" in /proc/stat, proc(5)
_BUSY_COLUMNS: Final = (0, 1, 2, 5, 6)  # user, nice, system, irq, softirq
_LOOP_COUNT: Final = 200_000
_AEAD_COUNT: Final = 4_000
_AEAD_BYTES: Final = 1_200
_CALIBRATION_REPEATS: Final = 5


def cpu_ns(pids: Iterable[int], *, proc: Path = _PROC) -> int:
    """
    Read how long the threads of some processes have been on a CPU, nanoseconds.

    schedstat counts in nanoseconds, where the times of /proc/PID/stat come in ticks.
    It lacks what a thread spends that has ended; the servers measured end none.

    Raises:
        OSError: A process is gone.
    """
    return sum(
        int((task / "schedstat").read_text().split()[0])
        for pid in pids
        for task in (proc / str(pid) / "task").iterdir()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineTimes:
    """
    Time of all cores since the machine began, nanoseconds.

    Args:
        busy_ns: Doing anything, whoever for.
        steal_ns: Wanted by this machine and given to another by the hypervisor.
    """

    busy_ns: int
    steal_ns: int


def machine_times(*, proc: Path = _PROC) -> MachineTimes:
    """
    Read /proc/stat; it counts in ticks of 10 ms.
    """
    columns = [int(each) for each in (proc / "stat").read_text().split("\n", 1)[0].split()[1:]]
    return MachineTimes(
        busy_ns=_NS_PER_TICK * sum(columns[index] for index in _BUSY_COLUMNS),
        steal_ns=_NS_PER_TICK * columns[_STEAL_COLUMN],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """
    How fast this machine is, whatever the servers do.

    Args:
        loop_ns: A round of a fixed pure-Python loop.
        aead_mb_per_s: AES-128-GCM of datagrams of 1,200 bytes, 10^6 bytes a second.
    """

    loop_ns: float
    aead_mb_per_s: float


def calibrate() -> Calibration:
    """
    Time two fixed pieces of work, the best of five: interruptions only add.
    """
    return Calibration(
        loop_ns=min(_time_loop() for _ in range(_CALIBRATION_REPEATS)),
        aead_mb_per_s=max(_time_aead() for _ in range(_CALIBRATION_REPEATS)),
    )


def _time_loop() -> float:
    held: dict[int, int] = {}
    began_ns = time.thread_time_ns()
    for number in range(_LOOP_COUNT):
        held[number & 63] = held.get(number & 31, 0) + number
    return (time.thread_time_ns() - began_ns) / _LOOP_COUNT


def _time_aead() -> float:
    aead = AESGCM(bytes(16))
    nonce, data, associated = bytes(12), bytes(_AEAD_BYTES), bytes(20)
    began_ns = time.thread_time_ns()
    for _ in range(_AEAD_COUNT):
        aead.encrypt(nonce, data, associated)
    return _AEAD_COUNT * _AEAD_BYTES * 1e3 / (time.thread_time_ns() - began_ns)
