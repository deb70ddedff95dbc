"""
What the client reports: raw figures of every stream, one verdict, as JSON. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from client.session import EndedStreams, Session, StreamLoad
from server.counters import add_up

SCHEMA: Final = 1
# From this share of one core on, what the client does is what limits the load.
BUSY_SHARE: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCost:
    """
    What the load took of this machine.

    Args:
        load_s: From the first stream's opening to the last one's end.
        wall_s: From the start, handshakes included, to the end of the last connection.
        cpu_user_s: CPU time of this process in `wall_s`.
        cpu_system_s: The same, in the kernel.
        dropped_datagram_count: What this client's sockets had no room for.
        recovery: Losses and probe timeouts of all its connections.
        loop: Where its loop's time went, and how late its timers were.
    """

    load_s: float
    wall_s: float
    cpu_user_s: float
    cpu_system_s: float
    dropped_datagram_count: int
    recovery: Mapping[str, int]
    loop: Mapping[str, int]


def find_load_span(sessions: Sequence[Session], *, now_s: float) -> tuple[float, float]:
    """
    When the first stream was opened and when the last one ended.

    A stream that never ended counts until now. Without any stream both are now.
    """
    firsts = [session.first_opened_s for session in sessions if session.first_opened_s is not None]
    if not firsts:
        return now_s, now_s
    if any(session.open_count for session in sessions):
        return min(firsts), now_s
    ends = [session.last_ended_s for session in sessions if session.last_ended_s is not None]
    return min(firsts), max(ends, default=now_s)


def describe_bottleneck(cost: LoadCost) -> str:
    """
    Why this client, not the server, may be what limited the load; "" when it was not.
    """
    cpu_s = cost.cpu_user_s + cost.cpu_system_s
    notes = []
    if cost.wall_s > 0 and cpu_s / cost.wall_s >= BUSY_SHARE:
        notes.append(
            f"the client used {cpu_s / cost.wall_s:.2f} of one core, so it may be what limits"
        )
    if cost.dropped_datagram_count:
        notes.append(
            f"the client's sockets dropped {cost.dropped_datagram_count:,} datagrams "
            "that it did not take in time"
        )
    return "; ".join(notes)


def render_result(
    sessions: Sequence[Session],
    *,
    reason: str,
    cost: LoadCost,
    granted: Mapping[str, Any],
    versions: Mapping[str, str],
) -> dict[str, Any]:
    """
    Make the result's JSON object.

    Args:
        sessions: All connections' loads.
        reason: Why the load did not come to its end, or "" when all that was asked came.
        cost: What it took.
        granted: What the sockets and windows are, asked and granted.
        versions: Of what took part.
    """
    received_bytes = sum(session.received_bytes for session in sessions)
    sent_bytes = sum(session.sent_bytes for session in sessions)
    streams = [
        _render_stream(session, stream) for session in sessions for stream in session.streams
    ]
    note = describe_bottleneck(cost)
    return {
        "schema": SCHEMA,
        "ok": not reason,
        "reason": reason,
        "bytes_received": received_bytes,
        "bytes_sent": sent_bytes,
        "load_s": round(cost.load_s, 6),
        "goodput_bytes_per_s": round(_rate(received_bytes + sent_bytes, cost.load_s), 1),
        "receive_bytes_per_s": round(_rate(received_bytes, cost.load_s), 1),
        "send_bytes_per_s": round(_rate(sent_bytes, cost.load_s), 1),
        "handshake_ms": [
            _to_ms(session.handshake_s, since_s=session.began_s) for session in sessions
        ],
        "time_to_first_byte_ms": [
            stream["first_byte_ms"] for stream in streams if stream["first_byte_ms"] is not None
        ],
        **add_up([asdict(EndedStreams()), *(asdict(session.ended) for session in sessions)]),
        "stream_count": sum(session.opened_count for session in sessions),
        "streams": streams,
        "closes": [_render_close(session) for session in sessions],
        "wall_s": round(cost.wall_s, 6),
        "cpu_user_s": round(cost.cpu_user_s, 6),
        "cpu_system_s": round(cost.cpu_system_s, 6),
        "socket_drop_count": cost.dropped_datagram_count,
        "recovery": dict(cost.recovery),
        "loop": dict(cost.loop),
        "late_timer_count": cost.loop.get("late_timer_count", 0),
        "is_bottleneck": bool(note),
        "bottleneck_note": note,
        "granted": dict(granted),
        "versions": dict(versions),
    }


def _render_stream(session: Session, stream: StreamLoad) -> dict[str, Any]:
    return {
        "connection": session.index,
        "stream_id": stream.stream_id,
        "sent_bytes": stream.sent_bytes,
        "received_bytes": stream.received_bytes,
        "asked_bytes": stream.plan.receive_bytes,
        "asked_upload_bytes": stream.plan.send_bytes,
        "first_byte_ms": _to_ms(stream.first_byte_s, since_s=stream.opened_s),
        "completed_ms": _to_ms(stream.completed_s, since_s=stream.opened_s),
        "ended_by": stream.ended_by,
        "error": stream.error,
    }


def _render_close(session: Session) -> dict[str, Any]:
    close = session.close
    if close is None:
        return {"connection": session.index, "by": "none", "reason": "", "error_code": None}
    return {
        "connection": close.connection,
        "error_code": close.error_code,
        "error_name": close.error_name,
        "frame_type": close.frame_type,
        "reason": close.reason,
        "by": close.by,
    }


def _rate(byte_count: int, duration_s: float) -> float:
    return byte_count / duration_s if duration_s > 0 else 0.0


def _to_ms(at_s: float | None, *, since_s: float) -> float | None:
    return None if at_s is None else round((at_s - since_s) * 1000, 3)
