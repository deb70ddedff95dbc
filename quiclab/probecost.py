"""
What the probes cost in a run: hits × what a hit costs, and the times that lie near it. Pure.

A hit is the kernel's way into a program, the program, and the way back. The
kernel times the program itself when it is asked to (BPF_ENABLE_STATS); the way
is a figure of a benchmark. Where the kernel does not tell, the script's header
does: `invoke bench --only hits` measured it.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from quiclab.histogram import Histogram
from quiclab.trace.events import Trace
from quiclab.trace.script import Script, find_counter

# The way in and out of a probe that is called (docs/performance.md: a hit whose predicate is
# false takes 280 to 300 ns; Linux 6.18, x86-64). Kernels that trap take a third more.
WAY_NS: Final = 290.0
# What the kernel's own timing adds to each hit (--time-programs, measured beside it).
TIMING_NS: Final = 150.0
# A measured time holds about one hit: the end of the first probe's and the beginning of the
# second's. Below twice that, half and more of a value is the probes' own.
_NEAR_FACTOR: Final = 2.0
_HEADER_COST: Final = re.compile(r"(\d+)(?: to (\d+))? ns of CPU a hit")

_IO: Final = "s2n_quic_platform__socket__io__"
_TASK: Final = "s2n_quic_platform__socket__task__"
_SYSCALL: Final = "s2n_quic_platform__syscall__"
_RECEIVE_BUFFER: Final = "s2n_quic_core__buffer__receive_buffer__"
COUNTERS: Final[Mapping[str, str]] = {
    _IO + "tx__acquire": "tx.io_acquire_count",
    _IO + "tx__write": "tx.datagram_written_count",
    _IO + "tx__finish_write": "tx.message_written_count",
    _IO + "tx__release": "tx.io_release_count",
    _IO + "rx__acquire": "rx.io_acquire_count",
    _IO + "rx__read": "rx.datagram_read_count",
    _IO + "rx__finish_read": "rx.message_read_count",
    _IO + "rx__release": "rx.io_release_count",
    _TASK + "tx__acquire": "tx.task_acquire_count",
    _TASK + "tx__finish": "tx.message_sent_count",
    _TASK + "tx__release": "tx.task_release_count",
    _TASK + "rx__acquire": "rx.task_acquire_count",
    _TASK + "rx__finish": "rx.message_received_count",
    _TASK + "rx__release": "rx.task_release_count",
    _SYSCALL + "mmsg__start_send": "tx.send_call_count",
    _SYSCALL + "mmsg__finish_send": "tx.send_call_count",
    _SYSCALL + "mmsg__start_recv": "rx.receive_call_count",
    _SYSCALL + "mmsg__finish_recv": "rx.receive_call_count",
    _SYSCALL + "msg__start_send": "tx.single_send_call_count",
    _SYSCALL + "msg__finish_send": "tx.single_send_call_count",
    _SYSCALL + "msg__start_recv": "rx.single_receive_call_count",
    _SYSCALL + "msg__finish_recv": "rx.single_receive_call_count",
    _RECEIVE_BUFFER + "alloc": "receive_buffer.alloc_count",
    _RECEIVE_BUFFER + "write": "receive_buffer.write_count",
    _RECEIVE_BUFFER + "pop": "receive_buffer.pop_count",
    "message_sent": "tx.message_sent_count",
}
"""What the server counts when a probe fires; the ring's own cursors are not counted."""


class NearValues(BaseModel):
    """
    Measured times of which the probes' own cost is a large part.

    Args:
        map_name: Where they are.
        count: So many values ...
        below_ns: ... lie below this, a bucket's upper bound.
        total_count: All values of the map.
        hit_ns: What a hit costs.
    """

    model_config = ConfigDict(frozen=True)

    map_name: str
    count: int
    below_ns: int
    total_count: int
    hit_ns: float

    def render(self) -> str:
        """Say it in one sentence."""
        return (
            f"{self.map_name}: {self.count:,} of {self.total_count:,} values are below "
            f"{self.below_ns:,} ns, where the probes' own cost ({self.hit_ns:,.0f} ns a hit) "
            "is a large part of them"
        )


class ProbeCost(BaseModel):
    """
    What one script's probes cost the server.

    Args:
        hit_count: How often they fired.
        is_counted_by_kernel: The kernel counted the runs; else the server counted the events.
        hit_ns: What a hit costs, the way in and out included.
        run_ns: How much of that the kernel measured in the program; None when it did not.
        cpu_s: Both multiplied.
        near: Times that lie near what a hit costs.
    """

    model_config = ConfigDict(frozen=True)

    hit_count: int
    is_counted_by_kernel: bool
    hit_ns: float
    run_ns: float | None
    cpu_s: float
    near: tuple[NearValues, ...] = ()

    def render(self) -> str:
        """
        Say it in short: `40,123 hits × 340 ns = 13.6 ms of CPU at least`.

        The header's figure is of hits one after another, which find warm caches; what the
        kernel timed in the run itself is not bounded from below.
        """
        bound = "" if self.run_ns is not None else " at least"
        cpu = f"{1e3 * self.cpu_s:,.1f} ms of CPU{bound}"
        return f"{self.hit_count:,} hits × {self.hit_ns:,.0f} ns = {cpu}"


def weigh(
    script: Script,
    trace: Trace | None,
    *,
    counters: Mapping[str, Any],
    run_count: int | None,
    run_time_ns: int | None,
) -> ProbeCost | None:
    """
    Weigh the hits of one script; None when nobody tells how many there were, or what one costs.

    Args:
        script: Whose.
        trace: What it left, for its times.
        counters: The server's `total` counters.
        run_count: How often the kernel ran its programs; None when it does not tell.
        run_time_ns: Time in them.
    """
    hit_count = run_count if run_count is not None else count_hits(script, counters)
    run_ns = run_time_ns / run_count if run_count and run_time_ns is not None else None
    hit_ns = find_header_cost(script) if run_ns is None else WAY_NS + TIMING_NS + run_ns
    if hit_count is None or hit_ns is None:
        return None
    return ProbeCost(
        hit_count=hit_count,
        is_counted_by_kernel=run_count is not None,
        hit_ns=round(hit_ns, 1),
        run_ns=None if run_ns is None else round(run_ns, 1),
        cpu_s=round(hit_count * hit_ns / 1e9, 6),
        near=tuple(_find_near(script, trace, hit_ns=hit_ns)) if trace is not None else (),
    )


def count_hits(script: Script, counters: Mapping[str, Any]) -> int | None:
    """
    Count a script's hits by the server's counters; None when it has a probe without one.
    """
    total = 0
    for point in script.attach_points:
        if point.provider in {"BEGIN", "END"}:
            continue
        path = COUNTERS.get(point.probe_name) if point.provider == "usdt" else None
        count = None if path is None else find_counter(counters, path)
        if count is None:
            return None
        total += count
    return total


def find_header_cost(script: Script) -> float | None:
    """
    Find what a hit costs by the script's header, in ns: the middle of its range.
    """
    found = _HEADER_COST.search(script.notes.get("cost", ""))
    if found is None:
        return None
    low = float(found[1])
    return (low + float(found[2] or low)) / 2


def _find_near(script: Script, trace: Trace, *, hit_ns: float) -> Iterator[NearValues]:
    """Look at times that two probes measured; one that the server measured itself is exact."""
    for pair in script.pairs:
        note = script.note(pair.matched)
        histogram = trace.histogram(pair.matched)
        if note is None or note.unit != "ns" or not isinstance(histogram, Histogram):
            continue
        limit_ns = _NEAR_FACTOR * hit_ns
        near = [
            bucket
            for bucket in histogram.buckets
            if bucket.count
            and bucket.low is not None
            and bucket.high is not None
            # Where in a bucket its values lie is not known: one counts if half of it is near.
            and (bucket.low + bucket.high) / 2 < limit_ns
        ]
        if near:
            yield NearValues(
                map_name=pair.matched,
                count=sum(bucket.count for bucket in near),
                below_ns=max((bucket.high or 0) + 1 for bucket in near),
                total_count=histogram.total_count,
                hit_ns=round(hit_ns, 1),
            )
