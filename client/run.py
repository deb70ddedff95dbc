"""
A load that was started: its connections, its deadlines and its end.
"""

import platform
import resource
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, Final

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from client.plan import plan_streams, time_limit_s
from client.progress import Limits, StallWatch
from client.result import LoadCost, find_load_span, render_result
from client.session import KEPT_STREAM_COUNT, Session
from client.settings import Settings
from client.sockets import count_drops, server_address
from server.counters import add_up
from server.endpoint import Endpoint
from server.loop import Loop
from server.udp.model import Degradation

# How long the closing of connections may take; it is one datagram each.
CLOSE_S: Final = 1.0
# A signal that comes just before the loop begins to wait is noticed when that ends.
LONGEST_WAIT_S: Final = 0.25
# Handshakes under way at once. A first datagram is as long as --datagram, and a server's
# receive buffer of the usual 212,992 bytes holds some ten of 8,972: of 500 at once most
# were lost, and then lost again together, until nothing had moved for 10 s.
HANDSHAKE_LIMIT: Final = 8
# The load's own error code when it gives up; 0 is a load that came to its end.
GIVEN_UP_CODE: Final = 1


class Run:
    """
    A load that was started.

    Args:
        settings: What was asked.
        configuration: Of every connection.
        loop: Who drives the endpoints.
        endpoints: One for each connection.
        limits: How patient it is.
    """

    def __init__(
        self,
        settings: Settings,
        configuration: QuicConfiguration,
        *,
        loop: Loop,
        endpoints: Sequence[Endpoint],
        limits: Limits,
    ) -> None:
        self._settings = settings
        self._loop = loop
        self._endpoints = endpoints
        self._began_s = loop.now_s()
        self._cpu = _cpu_times()
        self._stall_s = limits.stall_s
        self._watch = StallWatch(began_s=self._began_s, limit_s=limits.stall_s)
        self._stop_at_s: float | None = None
        self._is_stopped = False
        self._reason = ""
        self._given_up_s = float("inf")
        self._plans = plan_streams(
            direction=settings.direction,
            connection_count=settings.connection_count,
            stream_count=settings.stream_count,
            receive_bytes=settings.receive_bytes,
            send_bytes=settings.send_bytes,
        )
        self._limit_s = time_limit_s(self._plans, duration_s=settings.duration_s, limits=limits)
        self._sessions: list[Session] = []
        self._configuration = configuration
        self._unopened = deque(endpoints)
        # Streams of those that are ready would crowd out the handshakes of the others.
        self._is_held = len(endpoints) > HANDSHAKE_LIMIT
        self._open_more()

    def _open_more(self) -> None:
        """
        Connect those whose turn it is.
        """
        if not self._unopened:
            return
        room_count = HANDSHAKE_LIMIT - len(self._find_waiting())
        while room_count > 0 and self._unopened:
            endpoint = self._unopened.popleft()
            endpoint.connect(
                server_address(self._settings), self._configuration, self._make_session
            )
            room_count -= 1

    def _release_all(self, now_s: float) -> None:
        """
        Begin the streams of all connections when the last handshake has ended.
        """
        if self._is_held and not self._unopened and not self._find_waiting():
            self._is_held = False
            for session, endpoint in zip(self._sessions, self._endpoints, strict=True):
                session.release(now_s)
                endpoint.touch(session.connection)

    def _find_waiting(self) -> list[Session]:
        """
        Connections whose handshake is under way.
        """
        return [
            session
            for session in self._sessions
            if session.handshake_s is None and not session.is_closing
        ]

    def _make_session(self, connection: QuicConnection) -> Session:
        index = len(self._sessions)
        session = Session(
            connection,
            index=index,
            plans=self._plans[index],
            is_content_verified=self._settings.is_content_verified,
            began_s=self._loop.now_s(),
            is_held=self._is_held,
            kept_count=max(1, KEPT_STREAM_COUNT // len(self._endpoints)),
        )
        self._sessions.append(session)
        return session

    def turn(self) -> bool:
        """
        Turn once and look at every connection; False when all have ended.
        """
        now_s = self._loop.now_s()
        wait_s = min(LONGEST_WAIT_S, self._next_deadline_s() - now_s)
        self._loop.turn(most_wait_s=max(0.0, wait_s))
        now_s = self._loop.now_s()
        for session, endpoint in zip(self._sessions, self._endpoints, strict=False):
            if session.observe(now_s):
                endpoint.touch(session.connection)
        self._open_more()
        self._release_all(now_s)
        if not self._unopened and all(session.is_over for session in self._sessions):
            return False
        self._close_complete()
        self._keep_time(now_s)
        return now_s < self._given_up_s + CLOSE_S

    def _close_complete(self) -> None:
        """
        Close all connections when the last one is complete.

        Not each for itself: while another still uploads, the server's receive buffer may
        be full and drop the one datagram that tells of a close, and the server would then
        wait for its idle timeout.
        """
        if self._unopened:
            return
        if all(session.is_complete or session.is_closing for session in self._sessions):
            for session, endpoint in zip(self._sessions, self._endpoints, strict=False):
                if not session.is_closing:
                    session.end("load complete")
                    endpoint.touch(session.connection)

    def give_up(self, reason: str) -> None:
        """
        Close all connections; the load counts as failed.
        """
        if self._reason:
            return
        self._reason = reason
        self._given_up_s = self._loop.now_s()
        self._unopened.clear()
        for session, endpoint in zip(self._sessions, self._endpoints, strict=False):
            session.end(reason, error_code=GIVEN_UP_CODE)
            endpoint.touch(session.connection)

    def report(self) -> dict[str, Any]:
        """
        How far it is.
        """
        return {
            "bytes_received": self._received_bytes(),
            "bytes_sent": self._sent_bytes(),
            "elapsed_s": round(self._loop.now_s() - self._began_s, 3),
            "open_count": len(self._unopened)
            + sum(not session.is_over for session in self._sessions),
        }

    def result(self, granted: dict[str, Any]) -> dict[str, Any]:
        """
        How it went, once it is over.
        """
        now_s = self._loop.now_s()
        first_s, last_s = find_load_span(self._sessions, now_s=now_s)
        user_s, system_s = _cpu_times()
        errors = (session.find_error() for session in self._sessions)
        result = render_result(
            self._sessions,
            reason=self._reason or next((error for error in errors if error), ""),
            cost=LoadCost(
                load_s=last_s - first_s,
                wall_s=now_s - self._began_s,
                cpu_user_s=user_s - self._cpu[0],
                cpu_system_s=system_s - self._cpu[1],
                dropped_datagram_count=sum(
                    count_drops(endpoint.udp.sock) for endpoint in self._endpoints
                ),
                recovery=add_up(endpoint.report_recovery() for endpoint in self._endpoints),
                loop=self._loop.counters.report(),
            ),
            granted=granted,
            versions=collect_versions(),
        )
        return {**result, "degradations": [asdict(one) for one in self._find_degradations()]}

    def _find_degradations(self) -> list[Degradation]:
        """
        What the sockets gave up, each kind once.
        """
        found: dict[str, Degradation] = {}
        for endpoint in self._endpoints:
            for one in endpoint.udp.degradations:
                found.setdefault(one.what, one)
        return list(found.values())

    def _keep_time(self, now_s: float) -> None:
        """
        Stop when time is up; give up when nothing moves, or when it takes far too long.

        Time runs from the last handshake on, so that every connection gets all of it.
        """
        waiting = self._find_waiting() if self._stop_at_s is None else []
        if self._stop_at_s is None and self._settings.duration_s is not None:
            openings = [one.handshake_s for one in self._sessions if one.handshake_s is not None]
            if openings and not waiting and not self._unopened:
                self._stop_at_s = max(openings) + self._settings.duration_s
        if self._stop_at_s is not None and now_s >= self._stop_at_s and not self._is_stopped:
            self._is_stopped = True
            for session, endpoint in zip(self._sessions, self._endpoints, strict=False):
                session.stop()
                endpoint.touch(session.connection)
        progress = sum(session.progress for session in self._sessions)
        if self._watch.note(progress, now_s=now_s):
            self.give_up(self._describe_stall(now_s))
        elif waiting and now_s >= waiting[0].began_s + self._stall_s:
            self.give_up(self._describe_silence(now_s - waiting[0].began_s))
        elif now_s >= self._began_s + self._limit_s:
            self.give_up(
                f"too slow: {self._describe_amount()} in {now_s - self._began_s:.1f} s, and still "
                f"moving; the limit for this much is {self._limit_s:.0f} s"
            )

    def _next_deadline_s(self) -> float:
        deadline_s = min(self._watch.deadline_s, self._began_s + self._limit_s)
        if self._stop_at_s is not None and not self._is_stopped:
            deadline_s = min(deadline_s, self._stop_at_s)
        return min(deadline_s, self._given_up_s + CLOSE_S)

    def _describe_stall(self, now_s: float) -> str:
        still_s = self._watch.still_s(now_s)
        if self._find_waiting():
            return self._describe_silence(still_s)
        return f"stalled: nothing moved for {still_s:.1f} s after {self._describe_amount()}"

    def _describe_silence(self, waited_s: float) -> str:
        waiting_count = len(self._find_waiting()) + len(self._unopened)
        too_long = [one for one in self._find_degradations() if one.what == "datagram_size"]
        why = "".join(f" ({one.reason}: {one.effect}; lower --max-mtu)" for one in too_long)
        return (
            f"no answer from {self._settings.ip}:{self._settings.port}: {waiting_count} of "
            f"{len(self._endpoints)} connections had no handshake after {waited_s:.1f} s{why}"
        )

    def _describe_amount(self) -> str:
        asked_bytes = (self._settings.receive_bytes or 0) + (self._settings.send_bytes or 0)
        moved_bytes = self._received_bytes() + self._sent_bytes()
        return (
            f"{moved_bytes:,} of {asked_bytes:,} bytes" if asked_bytes else f"{moved_bytes:,} bytes"
        )

    def _received_bytes(self) -> int:
        return sum(session.received_bytes for session in self._sessions)

    def _sent_bytes(self) -> int:
        return sum(session.sent_bytes for session in self._sessions)


def collect_versions() -> dict[str, str]:
    """
    Versions of what takes part in a load.
    """
    return {"python": platform.python_version(), "aioquic": version("aioquic")}


def _cpu_times() -> tuple[float, float]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime
