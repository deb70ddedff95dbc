"""
What the load consists of: which streams on which connection, how much on each. Pure.
"""

from dataclasses import dataclass
from typing import Literal

from client.progress import DEFAULT_LIMITS, Limits

Direction = Literal["download", "upload", "both"]


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """
    One stream: what it asks back and what it sends besides its header.

    Args:
        receive_bytes: Asked of the server; None for an answer without an end.
        send_bytes: Uploaded; None for an upload that goes on until time is up.
    """

    receive_bytes: int | None
    send_bytes: int | None


def plan_streams(
    *,
    direction: Direction,
    connection_count: int,
    stream_count: int,
    receive_bytes: int | None,
    send_bytes: int | None,
) -> list[list[StreamPlan]]:
    """
    Plan the streams of each connection.

    Args:
        direction: Which kinds of stream; with "both", so many of each kind, alternating.
        connection_count: Connections in all.
        stream_count: Streams of a kind on each connection.
        receive_bytes: Bytes to download in all, shared out so that shares differ by one
            at most; None for answers without an end.
        send_bytes: The same for uploads.
    """
    count = connection_count * stream_count
    downloads = [StreamPlan(share, 0) for share in _share_out(receive_bytes, count)]
    uploads = [StreamPlan(0, share) for share in _share_out(send_bytes, count)]
    plans: list[list[StreamPlan]] = []
    for first in range(0, count, stream_count):
        chosen = slice(first, first + stream_count)
        match direction:
            case "download":
                plans.append(downloads[chosen])
            case "upload":
                plans.append(uploads[chosen])
            case "both":
                pairs = zip(downloads[chosen], uploads[chosen], strict=True)
                plans.append([plan for pair in pairs for plan in pair])
    return plans


def time_limit_s(
    plans: list[list[StreamPlan]], *, duration_s: float | None, limits: Limits = DEFAULT_LIMITS
) -> float:
    """
    How long a load may take in all, even while it moves.

    Grows with the payload, so that a large load on a slow machine is not called
    broken. A load with a duration ends by that, whatever is left.
    """
    if duration_s is not None:
        return duration_s + limits.grace_s
    total_bytes = sum(
        (plan.receive_bytes or 0) + (plan.send_bytes or 0) for streams in plans for plan in streams
    )
    return limits.grace_s + total_bytes / limits.slowest_bytes_per_s


def _share_out(total_bytes: int | None, count: int) -> list[int | None]:
    """
    Cut a total into so many shares, the larger ones first; no total, no ends.
    """
    if total_bytes is None:
        return [None] * count
    share, rest = divmod(total_bytes, count)
    return [share + (index < rest) for index in range(count)]
