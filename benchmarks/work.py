"""
What is moved, by whom, and what it cost: the values of a measurement.
"""

import os
from dataclasses import dataclass, field
from typing import Any, Literal

SideKind = Literal["ours", "stock", "floor"]
Direction = Literal["download", "upload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """
    What is moved in a run.

    Args:
        direction: Who sends.
        total_bytes: Stream payload in all.
        datagram_bytes: Largest datagram, of both ends.
        connection_count: Connections.
        stream_count: Streams of each.
        answer_every: Datagrams that the load takes before it answers; 0: two messages.
    """

    direction: Direction
    total_bytes: int
    datagram_bytes: int
    connection_count: int = 1
    stream_count: int = 1
    answer_every: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """
    What stands on one side of a comparison: a server under test, or the floor.

    Args:
        kind: Which server.
        label: A name for people.
        words: More words of its command line.
        is_pinned: Whether server and load have a core each.
        is_traced: Whether all four scripts are attached while it is measured.
    """

    kind: SideKind
    label: str = ""
    words: tuple[str, ...] = ()
    is_pinned: bool = True
    is_traced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    What a run cost; times in nanoseconds of CPU, `seconds` by the clock.

    Args:
        total_bytes: Stream payload that arrived.
        seconds: From the word to go to the last byte.
        server_ns: All threads of the server's processes.
        worker_ns: The same for each process.
        load_ns: The load's.
        load_received_datagrams: What the load received.
        load_sent_datagrams: What the load sent; of a download, acknowledgements.
        load_dropped_datagrams: What the load's sockets had no room for.
        foreign_ns: All cores, for others than this measurement.
        steal_ns: All cores, taken by the hypervisor.
        lasted_s: The time that the last two are about.
        report: The server's own counters.
    """

    total_bytes: int
    seconds: float
    server_ns: int
    foreign_ns: int
    steal_ns: int
    lasted_s: float
    worker_ns: tuple[int, ...] = ()
    load_ns: int = 0
    load_received_datagrams: int = 0
    load_sent_datagrams: int = 0
    load_dropped_datagrams: int = 0
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def cpu_s_per_gb(self) -> float:
        """CPU-seconds of the server for 10^9 bytes."""
        return self.server_ns / self.total_bytes

    @property
    def mb_per_s(self) -> float:
        """Goodput, 10^6 bytes a second; 0 for the floor."""
        return self.total_bytes / self.seconds / 1e6 if self.seconds else 0.0

    @property
    def steal(self) -> float:
        """Part of the cores that the hypervisor kept."""
        return self.steal_ns / 1e9 / self.lasted_s / _core_count()

    @property
    def foreign(self) -> float:
        """Part of the cores that other processes used; ticks of 10 ms may make it negative."""
        return self.foreign_ns / 1e9 / self.lasted_s / _core_count()

    @property
    def answered_every(self) -> float:
        """
        Datagrams that the receiving end took for each that it sent.

        The load counts both ways; for an upload they swap places.
        """
        received, sent = self.load_received_datagrams, self.load_sent_datagrams
        return max(received, sent) / max(1, min(received, sent))


def _core_count() -> int:
    return len(os.sched_getaffinity(0))
