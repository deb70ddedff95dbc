"""
What a traced hit costs, how many hits a datagram causes, and what both make of a load.

A percentage of a server's time says how slow the server is; these are absolute.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from server.probes import (
    IO_RX_FINISH_READ,
    IO_TX_FINISH_WRITE,
    IO_TX_WRITE,
    MESSAGE_SENT,
    MMSG_FINISH_RECV,
    MMSG_FINISH_SEND,
    MMSG_START_RECV,
    MMSG_START_SEND,
    RECEIVE_BUFFER_ALLOC,
    RECEIVE_BUFFER_POP,
    RECEIVE_BUFFER_WRITE,
    TASK_RX_FINISH,
    TASK_TX_FINISH,
)

Firing = tuple[int, ...]
"""A probe's place in the table, then its arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HitKind:
    """
    One thing that makes a script work, and the counters that tell how often it happens.

    Args:
        script: Whose.
        name: The probe in short, and which of its hits when they differ.
        firing: What is fired to measure it.
        after: What is fired just before, so that the script finds what it looks for.
        counted: The server's counter of it.
        less: A counter of hits that are of another kind, taken off; "" when there is none.
    """

    script: str
    name: str
    firing: Firing
    counted: str
    after: Firing | None = None
    less: str = ""

    def count(self, counters: Mapping[str, Any]) -> int:
        """Hits of this kind in a run, by the server's `total` counters."""
        return _find(counters, self.counted) - (_find(counters, self.less) if self.less else 0)


_FD, _HEADER, _CHANNEL, _MESSAGE, _BYTES = 5, 4096, 1, 3, 1200
_SEND: Final = (MMSG_START_SEND, _FD, _HEADER, 16)
_RECEIVE: Final = (MMSG_START_RECV, _FD, _HEADER, 128)
_BEGIN: Final = (IO_TX_WRITE, _CHANNEL, _MESSAGE, 0, _BYTES)
_ARRIVE: Final = (TASK_RX_FINISH, _CHANNEL, _MESSAGE)
_READ: Final = (IO_RX_FINISH_READ, _CHANNEL, _MESSAGE, 1, 45)

KINDS: Final = (
    HitKind(
        script="udp-syscall",
        name="mmsg start_send",
        firing=_SEND,
        counted="tx.send_call_count",
    ),
    HitKind(
        script="udp-syscall",
        name="mmsg finish_send",
        firing=(MMSG_FINISH_SEND, _FD, _HEADER, 16, 0),
        after=_SEND,
        counted="tx.send_call_count",
    ),
    HitKind(
        script="udp-syscall",
        name="mmsg start_recv",
        firing=_RECEIVE,
        counted="rx.receive_call_count",
    ),
    HitKind(
        script="udp-syscall",
        name="mmsg finish_recv",
        firing=(MMSG_FINISH_RECV, _FD, _HEADER, 1, 0),
        after=_RECEIVE,
        counted="rx.receive_call_count",
    ),
    HitKind(
        script="io-latencies",
        name="io tx write, a message's first",
        firing=_BEGIN,
        counted="tx.message_written_count",
    ),
    HitKind(
        script="io-latencies",
        name="io tx write, further ones",
        firing=(IO_TX_WRITE, _CHANNEL, _MESSAGE, 1, _BYTES),
        counted="tx.datagram_written_count",
        less="tx.message_written_count",
    ),
    HitKind(
        script="io-latencies",
        name="task tx finish",
        firing=(TASK_TX_FINISH, _CHANNEL, _MESSAGE),
        after=_BEGIN,
        counted="tx.message_sent_count",
    ),
    HitKind(
        script="io-latencies",
        name="task rx finish",
        firing=_ARRIVE,
        counted="rx.message_received_count",
    ),
    HitKind(
        script="io-latencies",
        name="io rx finish_read",
        firing=_READ,
        after=_ARRIVE,
        counted="rx.message_read_count",
    ),
    HitKind(
        script="generic-offload",
        name="io tx finish_write",
        firing=(IO_TX_FINISH_WRITE, _CHANNEL, _MESSAGE, 7, _BYTES),
        counted="tx.message_written_count",
    ),
    HitKind(
        script="generic-offload",
        name="io rx finish_read",
        firing=_READ,
        counted="rx.message_read_count",
    ),
    HitKind(
        script="recv-buffers",
        name="receive_buffer alloc",
        firing=(RECEIVE_BUFFER_ALLOC, 0, _BYTES),
        counted="receive_buffer.alloc_count",
    ),
    HitKind(
        script="recv-buffers",
        name="receive_buffer write",
        firing=(RECEIVE_BUFFER_WRITE, 0, _BYTES),
        counted="receive_buffer.write_count",
    ),
    HitKind(
        script="recv-buffers",
        name="receive_buffer pop",
        firing=(RECEIVE_BUFFER_POP, 0, _BYTES),
        counted="receive_buffer.pop_count",
    ),
    HitKind(
        script="message-wait",
        name="message_sent",
        firing=(MESSAGE_SENT, _CHANNEL, _MESSAGE, 60_000),
        counted="tx.message_sent_count",
    ),
)
# The original's, which the lab's figures are about; message-wait is what replaces one of them.
FOUR: Final = ("udp-syscall", "io-latencies", "generic-offload", "recv-buffers")
ALL_FOUR: Final = "all four"


def kinds_of(script: str) -> tuple[HitKind, ...]:
    """
    Find what makes a script work; for `ALL_FOUR` what makes any of the four, each hit once.
    """
    if script != ALL_FOUR:
        return tuple(kind for kind in KINDS if kind.script == script)
    by_firing: dict[Firing, HitKind] = {}
    for kind in KINDS:
        if kind.script in FOUR and (kind.after or kind.firing not in by_firing):
            by_firing[kind.firing] = kind
    return tuple(by_firing.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class HitCost:
    """
    The CPU time that a hit adds, nanoseconds.

    Args:
        script: Whose; or ALL_FOUR, attached at once.
        name: Which hit.
        ns: Median of the rounds.
        least_ns: Their least: what it takes on a machine with nothing else to do.
    """

    script: str
    name: str
    ns: float
    least_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadHits:
    """
    What a script has to do in a load.

    Args:
        script: Which; or ALL_FOUR.
        direction: Who sent the data.
        datagram_bytes: Largest datagram.
        datagram_count: Datagrams with data that passed the server.
        hit_count: Hits.
        hit_ns: What they cost in all, by the costs of hits.
        total_bytes: Stream payload.
    """

    script: str
    direction: str
    datagram_bytes: int
    datagram_count: int
    hit_count: int
    hit_ns: float
    total_bytes: int

    @property
    def hits_a_datagram(self) -> float:
        """Hits for one datagram with data."""
        return self.hit_count / self.datagram_count

    @property
    def mean_hit_ns(self) -> float:
        """What a hit costs on average in this load."""
        return self.hit_ns / self.hit_count if self.hit_count else 0.0

    @property
    def added_cpu_s_per_gb(self) -> float:
        """CPU-seconds that the script adds to 10^9 bytes of stream payload."""
        return self.hit_ns / self.total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedCost:
    """
    What a script was seen to add to the server under a load (see `hits_server`).

    More than its hits cost when they are fired one after another: in a server they
    find cold caches, and leave colder ones.

    Args:
        script: Which; or ALL_FOUR.
        direction: Who sent the data.
        datagram_bytes: Largest datagram.
        payload_bytes: Stream payload for a datagram with data.
        untraced_ns: CPU time for a datagram with data, without probes.
        added_ns: With, less without; the median of windows of 20 ms.
        error_ns: By which that median errs, one sigma.
    """

    script: str
    direction: str
    datagram_bytes: int
    payload_bytes: float
    untraced_ns: float
    added_ns: float
    error_ns: float

    @property
    def added_cpu_s_per_gb(self) -> float:
        """CPU-seconds that the script adds to 10^9 bytes of stream payload."""
        return self.added_ns / self.payload_bytes

    @property
    def error_cpu_s_per_gb(self) -> float:
        """By which that errs, one sigma."""
        return self.error_ns / self.payload_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HitsReport:
    """
    All of it.

    Args:
        bpftrace_version: Of the tracer, such as "0.23.2".
        kernel: Its release.
        architecture: Of the machine.
        costs: By script and kind of hit.
        loads: By script, direction and size.
        added: What was seen in the server under a load.
    """

    bpftrace_version: str
    kernel: str
    architecture: str
    costs: tuple[HitCost, ...]
    loads: tuple[LoadHits, ...]
    added: tuple[AddedCost, ...]


def weigh(
    script: str,
    costs: Iterable[HitCost],
    counters: Mapping[str, Any],
    *,
    direction: str,
    datagram_bytes: int,
    total_bytes: int,
) -> LoadHits:
    """
    Put costs and counts together.

    Args:
        script: Which script; or ALL_FOUR.
        costs: Of its hits, others may be among them.
        counters: The server's `total` counters of the run.
        direction: Who sent.
        datagram_bytes: Largest datagram.
        total_bytes: Stream payload that moved.
    """
    ns_by_name = {cost.name: cost.ns for cost in costs if cost.script == script}
    counts = [(kind.count(counters), ns_by_name[kind.name]) for kind in kinds_of(script)]
    of_data = "tx.datagram_sent_count" if direction == "download" else "rx.datagram_read_count"
    return LoadHits(
        script=script,
        direction=direction,
        datagram_bytes=datagram_bytes,
        datagram_count=_find(counters, of_data),
        hit_count=sum(count for count, _ in counts),
        hit_ns=sum(count * ns for count, ns in counts),
        total_bytes=total_bytes,
    )


def render_hits(report: HitsReport) -> list[str]:
    """
    Say it in lines: hits, loads, then what goes into the scripts' headers and their README.
    """
    where = f"bpftrace {report.bpftrace_version}, kernel {report.kernel}, {report.architecture}"
    lines = [f"A traced hit, ns of CPU: median and least ({where})"]
    lines += [
        f"  {cost.script:16} {cost.name:32} {cost.ns:6.0f} {cost.least_ns:6.0f}"
        for cost in report.costs
    ]
    lines += ["", "A load: hits a datagram, ns a hit, added CPU-s/GB"]
    lines += [
        f"  {load.script:16} {load.direction:8} {load.datagram_bytes:5,} "
        f"{load.hits_a_datagram:7.3f} {load.mean_hit_ns:6.0f} {load.added_cpu_s_per_gb:7.3f}"
        for load in report.loads
    ]
    lines += ["", "Seen in the server, CPU-s/GB: without probes, added"]
    lines += [
        f"  {seen.script:16} {seen.direction:8} {seen.datagram_bytes:5,} "
        f"{seen.untraced_ns / seen.payload_bytes:7.2f} {seen.added_cpu_s_per_gb:+7.2f} "
        f"± {seen.error_cpu_s_per_gb:.2f}"
        for seen in report.added
    ]
    lines += ["", "For the headers:"]
    for script in dict.fromkeys(load.script for load in report.loads):
        lines += ["", f"// {script}", *_render_cost(script, report)]
    lines += ["", "For bpftrace/README.md:", "", *render_table(report)]
    return lines


def render_table(report: HitsReport) -> list[str]:
    """
    Write the loads as a Markdown table: calculated from the hits, and seen in the server.
    """
    sizes = sorted({(load.direction, -load.datagram_bytes) for load in report.loads})
    heads = [f"{direction}, {-size:,} bytes" for direction, size in sizes]
    loads = {(load.script, load.direction, -load.datagram_bytes): load for load in report.loads}
    added = {(seen.script, seen.direction, -seen.datagram_bytes): seen for seen in report.added}
    rows = [f"| {' | '.join(['script', *heads])} |", f"|---|{'---|' * len(heads)}"]
    for script in dict.fromkeys(load.script for load in report.loads):
        cells = [_render_cell(loads[script, *size], added.get((script, *size))) for size in sizes]
        rows.append(f"| {' | '.join([_quoted(script), *cells])} |")
    return rows


def _render_cell(load: LoadHits, seen: AddedCost | None) -> str:
    words = (
        f"{load.hits_a_datagram:.2f} × {load.mean_hit_ns:.0f} ns = {load.added_cpu_s_per_gb:.2f}"
    )
    if seen is None:
        return words
    return f"{words}; {seen.added_cpu_s_per_gb:.2f} ± {seen.error_cpu_s_per_gb:.2f}"


def _quoted(script: str) -> str:
    return script if script == ALL_FOUR else f"`{script}`"


def _render_cost(script: str, report: HitsReport) -> list[str]:
    """A header's Cost lines; of recv-buffers in an upload, which fills it."""
    direction = "upload" if script == "recv-buffers" else "download"
    loads = [load for load in report.loads if load.script == script and load.direction == direction]
    costs = sorted(cost.ns for cost in report.costs if cost.script == script)
    least, most = round(costs[0], -1), round(costs[-1], -1)
    span = f"{least:.0f}" if least == most else f"{least:.0f} to {most:.0f}"
    hits = "; ".join(
        f"{load.datagram_bytes:,} bytes: {load.hits_a_datagram:.2f} hits, "
        f"{load.added_cpu_s_per_gb:.2f} CPU-s/GB"
        for load in loads
    )
    kernel = ".".join(report.kernel.split(".")[:2])
    article = "an" if direction == "upload" else "a"
    tool = f"invoke bench --only hits; bpftrace {report.bpftrace_version}, kernel {kernel}"
    return [
        f"// Cost:      {span} ns of CPU a hit. A datagram of {article} {direction} causes, at",
        f"//            {hits}",
        f"//            ({tool}, {report.architecture.replace('_', '-')})",
    ]


def _find(counters: Mapping[str, Any], path: str) -> int:
    part, name = path.split(".")
    return int(counters[part][name])
