"""
One connection as its endpoint keeps it: who may build how much, and when to call again.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import QuicEvent

from server import congestion, internals
from server.counters import ConnectionCounters
from server.loop import Handle


class Application(Protocol):
    """
    What uses a connection: one object for each.
    """

    def on_event(self, event: QuicEvent, now_s: float) -> None:
        """Take an event of aioquic's; every one comes here, ConnectionTerminated last."""

    def produce(self, wanted_bytes: int) -> None:
        """Write to streams so that about so much can be sent without asking again."""


class Session:
    """
    A connection, its application and its place in the endpoint's queues.

    Args:
        connection: aioquic's.
        application: Told of its events.
        pacing: "ring", "aioquic" or "off".
        on_due: Called with this object when its timer fires.
        counters: Told when the window is used up, and when no longer.
    """

    __slots__ = (
        "_counters",
        "_pacer",
        "application",
        "cids",
        "connection",
        "datagram_bytes",
        "handshake_limit",
        "has_joined",
        "is_blocked",
        "is_closed",
        "is_half_open",
        "is_over",
        "is_ready",
        "on_timer",
        "packets_at_reset",
        "peer_max_datagram_bytes",
        "timer",
        "timer_at_s",
    )

    def __init__(
        self,
        connection: QuicConnection,
        application: Application,
        *,
        pacing: str,
        on_due: Callable[["Session", float], None],
        counters: ConnectionCounters,
    ) -> None:
        self._counters = counters
        self.connection = connection
        self.application = application
        self.cids: set[bytes] = set()
        self.datagram_bytes: int = connection.configuration.max_datagram_size
        self.peer_max_datagram_bytes: int | None = None
        self.is_ready = False
        """In the endpoint's queue of those that may build."""
        self.is_blocked = False
        """Used up its window, and waits until half of it is free."""
        self.is_closed = False
        """Counted as closed."""
        self.is_over = False
        """Never to be called again: handle_timer would raise TypeError."""
        self.packets_at_reset = 0
        """Packets sent when counting began."""
        self.handshake_limit: Handle | None = None
        """When it is given up; None once its handshake is over, and on a client."""
        self.is_half_open = False
        """Counted as half open: a client's that has not finished its handshake."""
        self.has_joined = False
        """It shares the windows' budget."""
        self.timer: Handle | None = None
        self.timer_at_s: float | None = None
        """When aioquic wants to be called; the timer may look earlier, never later."""
        self.on_timer: Callable[[float], None] = partial(on_due, self)
        self._pacer: congestion.RingPacer | None = None
        if pacing == "ring":
            self._pacer = congestion.RingPacer()
            congestion.set_pacer(connection, self._pacer)
        elif pacing == "off":
            congestion.set_pacer(connection, congestion.NoPacer())

    def unblock(self, ring_bytes: int) -> None:
        """
        Let it build again when enough is free to be worth it.

        Half of the smaller of window and ring, or nothing in flight: the rule by which
        TCP wakes a writer. Without it each acknowledgement would release the two or
        three messages it freed, and calls would stay as small as that.
        """
        if not self.is_blocked:
            return
        window_bytes = congestion.window_bytes(self.connection)
        in_flight_bytes = congestion.in_flight_bytes(self.connection)
        if in_flight_bytes <= 0 or 2 * (window_bytes - in_flight_bytes) >= min(
            window_bytes, ring_bytes
        ):
            self.release()

    def block(self) -> None:
        """
        Build nothing more: the window is used up.
        """
        if not self.is_blocked:
            self.is_blocked = True
            self._counters.window_blocked_count += 1
            self._counters.blocked_now_count += 1

    def release(self) -> None:
        """
        Build again, whatever is in flight.
        """
        if self.is_blocked:
            self.is_blocked = False
            self._counters.blocked_now_count -= 1

    def grant(self, datagram_count: int) -> None:
        """
        Allow the next call to build so many datagrams.
        """
        pacer = self._pacer
        if pacer is not None:
            pacer.credit = 0 if self.is_blocked else datagram_count
            pacer.is_refused = False

    def has_more(self, built_count: int) -> bool:
        """
        After a call: whether another one may build more.
        """
        pacer = self._pacer
        if pacer is None:
            return built_count > 0
        if pacer.is_refused:
            return not self.is_blocked
        connection = self.connection
        window_bytes = congestion.window_bytes(connection)
        if window_bytes - congestion.in_flight_bytes(connection) < self.datagram_bytes:
            self.block()
        return False

    def limit_datagrams(self, most_bytes: int) -> None:
        """
        Build no larger datagrams from now on.
        """
        self.datagram_bytes = min(self.datagram_bytes, most_bytes)
        internals.limit_datagram_bytes(self.connection, most_bytes)
