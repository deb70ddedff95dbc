"""
What a worker counts, and how the counts of several workers add up.

The names in the reports are a contract: scripts name them in their `Check`
lines, and a count must equal what the probe of the same event fired.
"""

from collections.abc import Iterable, Mapping
from typing import Any

SCHEMA = 1
# Buckets of messages a call: 0, 1, 2..3, 4..7, ... up to the kernel's 1,024.
_BUCKET_COUNT = 12


class TxCounters:
    """
    Counts of one TX ring; every name says what one unit is.

    `gso_message_count` counts messages of several datagrams that the kernel took whole;
    `ring_full_count` how often building had to wait because no slot was free;
    `most_filled_count` the most slots that waited for one call.
    """

    __slots__ = (
        "blocked_count",
        "byte_sent_count",
        "datagram_dropped_count",
        "datagram_sent_count",
        "datagram_written_count",
        "error_counts",
        "gso_message_count",
        "io_acquire_count",
        "io_release_count",
        "message_sent_count",
        "message_written_count",
        "messages_per_call",
        "most_filled_count",
        "ring_full_count",
        "send_call_count",
        "single_send_call_count",
        "task_acquire_count",
        "task_release_count",
    )

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Count from zero."""
        self.datagram_written_count = 0
        self.message_written_count = 0
        self.send_call_count = 0
        self.single_send_call_count = 0
        self.message_sent_count = 0
        self.datagram_sent_count = 0
        self.datagram_dropped_count = 0
        self.byte_sent_count = 0
        self.blocked_count = 0
        self.gso_message_count = 0
        self.ring_full_count = 0
        self.most_filled_count = 0
        self.io_acquire_count = 0
        self.io_release_count = 0
        self.task_acquire_count = 0
        self.task_release_count = 0
        self.error_counts: dict[str, int] = {}
        self.messages_per_call = [0] * _BUCKET_COUNT

    def report(self) -> dict[str, Any]:
        """As it stands in the report."""
        counts = {name: getattr(self, name) for name in self.__slots__}
        counts["error_counts"] = dict(self.error_counts)
        counts["messages_per_call"] = _render_buckets(self.messages_per_call)
        return counts


class RxCounters:
    """
    Counts of one RX ring.

    `gro_message_count` counts messages that the kernel joined of several datagrams.
    """

    __slots__ = (
        "byte_received_count",
        "datagram_dropped_counts",
        "datagram_read_count",
        "empty_receive_call_count",
        "error_counts",
        "gro_message_count",
        "io_acquire_count",
        "io_release_count",
        "message_read_count",
        "message_received_count",
        "receive_call_count",
        "single_receive_call_count",
        "task_acquire_count",
        "task_release_count",
    )

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Count from zero."""
        self.receive_call_count = 0
        self.single_receive_call_count = 0
        self.empty_receive_call_count = 0
        self.message_received_count = 0
        self.message_read_count = 0
        self.datagram_read_count = 0
        self.gro_message_count = 0
        self.byte_received_count = 0
        self.io_acquire_count = 0
        self.io_release_count = 0
        self.task_acquire_count = 0
        self.task_release_count = 0
        self.error_counts: dict[str, int] = {}
        self.datagram_dropped_counts: dict[str, int] = {}

    def report(self) -> dict[str, Any]:
        """As it stands in the report."""
        counts = {name: getattr(self, name) for name in self.__slots__}
        counts["error_counts"] = dict(self.error_counts)
        counts["datagram_dropped_counts"] = dict(self.datagram_dropped_counts)
        return counts


class ReceiveBufferCounters:
    """
    Counts of the receive-buffer probes; they count only while someone listens.
    """

    __slots__ = ("alloc_count", "pop_count", "write_count")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Count from zero."""
        self.alloc_count = 0
        self.write_count = 0
        self.pop_count = 0

    def report(self) -> dict[str, int]:
        """As it stands in the report."""
        return {name: getattr(self, name) for name in self.__slots__}


class LoopCounters:
    """
    Where a loop's time went, and how late it was.

    `wait_ns` is time asleep, `window_wait_ns` the part of it in which a connection could
    not send because its window was full. A timer is late when its call came more than
    1 ms after it was due; `latest_timer_ns` is the worst delay of all.
    """

    LATE_NS = 1_000_000

    __slots__ = (
        "late_timer_count",
        "latest_timer_ns",
        "timer_count",
        "turn_count",
        "wait_ns",
        "window_wait_ns",
    )

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Count from zero."""
        self.turn_count = 0
        self.wait_ns = 0
        self.window_wait_ns = 0
        self.timer_count = 0
        self.late_timer_count = 0
        self.latest_timer_ns = 0

    def on_timer(self, delay_ns: int) -> None:
        """A timer's call, so long after it was due."""
        self.timer_count += 1
        if delay_ns > self.LATE_NS:
            self.late_timer_count += 1
        self.latest_timer_ns = max(self.latest_timer_ns, delay_ns)

    def report(self) -> dict[str, int]:
        """As it stands in the report."""
        return {name: getattr(self, name) for name in self.__slots__}


class RecoveryCounters:
    """
    What loss recovery did (RFC 9002), all connections together.

    A packet counts as lost when aioquic takes it for lost, also when it only sends its
    frames again because a probe timeout came. `packet_sent_count` is asked of the
    connections themselves, so it costs nothing while they send.
    """

    __slots__ = ("byte_lost_count", "packet_lost_count", "packet_sent_count", "probe_timeout_count")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Count from zero."""
        self.packet_sent_count = 0
        self.packet_lost_count = 0
        self.byte_lost_count = 0
        self.probe_timeout_count = 0

    def report(self, *, open_sent_count: int = 0) -> dict[str, int]:
        """
        As it stands in the report.

        Args:
            open_sent_count: What connections that are still open have sent.
        """
        report = {name: getattr(self, name) for name in self.__slots__}
        report["packet_sent_count"] += open_sent_count
        return report


class ConnectionCounters:
    """
    Connections by state, and why they ended.
    """

    # A peer chooses the words of a close reason, so only so many kinds are kept.
    MOST_REASONS = 64

    __slots__ = (
        "_reasons",
        "blocked_now_count",
        "closed_count",
        "open_count",
        "opened_count",
        "other_reason_count",
        "window_blocked_count",
    )

    def __init__(self) -> None:
        self.open_count = 0
        self.blocked_now_count = 0
        """Connections whose window is used up at this moment."""
        self.reset()

    def reset(self) -> None:
        """Count from zero; connections that are open stay open."""
        self.opened_count = 0
        self.closed_count = 0
        self.other_reason_count = 0
        self.window_blocked_count = 0
        self._reasons: dict[tuple[int, int | None, str, str], int] = {}

    def on_opened(self) -> None:
        """One more."""
        self.opened_count += 1
        self.open_count += 1

    def on_closed(
        self, *, error_code: int, frame_type: int | None, reason: str, closed_by: str
    ) -> None:
        """One less, and why."""
        self.closed_count += 1
        self.open_count -= 1
        key = (error_code, frame_type, reason[:200], closed_by)
        if key in self._reasons or len(self._reasons) < self.MOST_REASONS:
            self._reasons[key] = self._reasons.get(key, 0) + 1
        else:
            self.other_reason_count += 1

    def report(self) -> dict[str, int]:
        """As it stands in the report."""
        return {
            "opened_count": self.opened_count,
            "open_count": self.open_count,
            "closed_count": self.closed_count,
            "window_blocked_count": self.window_blocked_count,
        }

    def report_reasons(self) -> list[dict[str, Any]]:
        """Why connections ended, the commonest first."""
        reasons = [
            {
                "error_code": code,
                "frame_type": frame_type,
                "reason": reason,
                "by": closed_by,
                "count": count,
            }
            for (code, frame_type, reason, closed_by), count in sorted(
                self._reasons.items(), key=lambda item: -item[1]
            )
        ]
        if self.other_reason_count:
            reasons.append({"reason": "(others)", "count": self.other_reason_count})
        return reasons


def add_up(reports: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """
    Add reports of one shape: numbers by name, histograms by bucket.

    Of a number whose name begins with "most" or "latest" the largest counts.
    """
    total: dict[str, Any] = {}
    for report in reports:
        for name, value in report.items():
            if isinstance(value, Mapping):
                total[name] = add_up([total.get(name, {}), value])
            elif isinstance(value, list):
                total[name] = _add_buckets(total.get(name, []), value)
            elif name.startswith(("most_", "latest_")):
                total[name] = max(total.get(name, 0), value)
            else:
                total[name] = total.get(name, 0) + value
    return total


def merge_reports(workers: list[dict[str, Any]]) -> dict[str, Any]:
    """
    Make the answer to `report` from the workers' own parts.
    """
    # So that whoever reads totals finds zeros, not gaps, when no worker could report.
    nothing: dict[str, Mapping[str, Any]] = {
        "connections": ConnectionCounters().report(),
        "tx": TxCounters().report(),
        "rx": RxCounters().report(),
        "receive_buffer": ReceiveBufferCounters().report(),
        "recovery": RecoveryCounters().report(),
        "admission": {},
        "loop": LoopCounters().report(),
        "perf": {},
    }
    return {
        "schema": SCHEMA,
        "workers": workers,
        "total": {
            part: add_up([zeros, *(worker[part] for worker in workers)])
            for part, zeros in nothing.items()
        },
        "rings_empty": all(worker["rings_empty"] for worker in workers),
    }


def _render_buckets(counts: list[int]) -> list[dict[str, int]]:
    """
    Write a power-of-two histogram, both bounds inclusive, without empty buckets.
    """
    return [
        {"min": (1 << index) >> 1, "max": (1 << index) - 1, "count": count}
        for index, count in enumerate(counts)
        if count
    ]


def _add_buckets(left: list[dict[str, int]], right: list[dict[str, int]]) -> list[dict[str, int]]:
    counts = {(one["min"], one["max"]): one["count"] for one in left}
    for one in right:
        key = (one["min"], one["max"])
        counts[key] = counts.get(key, 0) + one["count"]
    return [{"min": low, "max": high, "count": n} for (low, high), n in sorted(counts.items())]
