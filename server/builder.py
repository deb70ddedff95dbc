"""
Who may build datagrams when, and how many: the send side of an endpoint's turn.

The ring paces: a connection may build one message at a time, then the next has its
turn, and when no slot is free the ring is emptied before anyone builds more. So
what waits, waits in the ring, where it is seen.
"""

from collections import deque
from collections.abc import Callable
from itertools import groupby
from operator import itemgetter
from typing import Final, Protocol

from server import congestion, internals
from server.session import Session
from server.udp.model import Address, AddressBook
from server.udp.sockets import UdpSocket

# Messages built before the socket is looked at again, at least; so that many
# connections with much to say don't keep acknowledgements waiting.
_TURN_MESSAGE_COUNT: Final = 64
# What an application is asked for at most, so that a window without a cap does not
# end up as one huge copy in a stream's buffer.
_LARGEST_PRODUCE_BYTES: Final = 8 * 1024 * 1024

_address_of = itemgetter(1)


class Keeper(Protocol):
    """
    What a builder asks of the endpoint whose connections it lets build.
    """

    def drain_events(self, session: Session, now_s: float) -> None:
        """Hand what aioquic has to tell to the connection's application."""

    def settle(self, session: Session) -> None:
        """Note a connection's end, or when it wants to be called again."""

    def fail(self, session: Session, error: Exception) -> None:
        """End a connection that tripped over a fault."""

    def abandon(self, session: Session) -> None:
        """Drop a connection that cannot even say that it closes."""


class Builder:
    """
    The queue of connections that have something to say, and their turns.

    Args:
        udp: Where datagrams go.
        keeper: Who keeps the connections.
        addresses: Peers as the kernel writes them.
        pacing: "ring", "aioquic" or "off".
        now_s: The loop's clock.
    """

    def __init__(
        self,
        udp: UdpSocket,
        keeper: Keeper,
        *,
        addresses: AddressBook,
        pacing: str,
        now_s: Callable[[], float],
    ) -> None:
        self._udp = udp
        self._keeper = keeper
        self._addresses = addresses
        self._has_no_pacing = pacing == "off"
        self._now_s = now_s
        self._ready: deque[Session] = deque()
        self._last_built: Session | None = None

    @property
    def has_ready(self) -> bool:
        """Somebody may have something to say."""
        return bool(self._ready)

    def touch(self, session: Session) -> None:
        """
        Let a connection have its turn.
        """
        if not session.is_ready:
            session.is_ready = True
            self._ready.append(session)

    def build(self, now_s: float) -> None:
        """
        Let the ready connections build, one message each in turn.
        """
        tx = self._udp.tx
        ready = self._ready
        for _ in range(len(ready)):
            session = ready.popleft()
            if self._prepare(session, now_s):
                ready.append(session)
            else:
                session.is_ready = False
        if not ready:
            return
        tx.acquire()
        message_count = max(_TURN_MESSAGE_COUNT, tx.ring.capacity)
        while ready and message_count and tx.can_write():
            session = ready.popleft()
            if self._build_message(session):
                ready.append(session)
                message_count -= 1
            else:
                session.is_ready = False
                # Connection IDs that it has just told the peer of may come in the next datagram.
                self._keeper.drain_events(session, now_s)
                self._keeper.settle(session)

    def _prepare(self, session: Session, now_s: float) -> bool:
        """
        Hand events to the application; whether the connection may have anything to say.
        """
        self._keeper.drain_events(session, now_s)
        if session.is_blocked:
            session.unblock(self._ring_bytes(session))
        if not session.is_blocked or session.is_over:
            return True
        # Most acknowledgements allow nothing yet. aioquic would make a packet builder to
        # find that out; its timer tells whether one of its own is due, at a tenth.
        self._keeper.settle(session)
        is_due = session.timer_at_s is not None and session.timer_at_s <= now_s
        return is_due or internals.must_speak(session.connection)

    def _produce(self, session: Session, *, message_bytes: int) -> None:
        """
        Let the application write what the next message holds.

        And as much again, lest a message end early; no more, so that an application with
        many streams has few of them waiting in aioquic at once.
        """
        wanted_bytes = 2 * message_bytes
        if self._has_no_pacing:  # one call builds all that the window allows
            connection = session.connection
            window_bytes = congestion.window_bytes(connection)
            wanted_bytes += min(window_bytes, _LARGEST_PRODUCE_BYTES)
        try:
            session.application.produce(wanted_bytes)
        except Exception as error:  # noqa: BLE001 - one connection's fault is not the others'
            self._keeper.fail(session, error)

    def _build_message(self, session: Session) -> bool:
        """
        Let a connection build one message; whether it may have more to say.
        """
        connection = session.connection
        if session.is_over:
            return False
        tx = self._udp.tx
        datagram_bytes = session.datagram_bytes
        goes_on = session is self._last_built  # another peer's datagrams begin a message
        self._last_built = session
        room = tx.room(datagram_bytes) if goes_on else tx.limits.capacity(datagram_bytes)
        if not session.is_blocked:
            self._produce(session, message_bytes=room * datagram_bytes)
        session.grant(room)
        try:
            built = connection.datagrams_to_send(self._now_s())
        except Exception as error:  # noqa: BLE001 - one connection's fault is not the others'
            self._keeper.fail(session, error)
            self._keeper.abandon(session)
            return False
        if built and not internals.is_beyond_amplification(connection):
            self._write(built)
        return session.has_more(len(built))

    def _write(self, built: list[tuple[bytes, Address]]) -> None:
        """
        Put what was built into the ring.
        """
        address = built[0][1]
        if built[-1][1] == address:
            self._udp.tx.write(self._addresses.pack(address), [datagram for datagram, _ in built])
            return
        # Those that try another path (RFC 9000, Section 8.2) stand at the end, path by path.
        for address, group in groupby(built, key=_address_of):
            self._udp.tx.write(self._addresses.pack(address), [datagram for datagram, _ in group])

    def _ring_bytes(self, session: Session) -> int:
        tx = self._udp.tx
        return (
            tx.ring.capacity * tx.limits.capacity(session.datagram_bytes) * (session.datagram_bytes)
        )
