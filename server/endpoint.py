"""
One UDP socket and the QUIC connections on it.

A turn of the loop: receive what is there, feed the connections, hand their events
to the applications, let connections with something to say build datagrams into
the TX ring, flush it. The ring paces: a connection may build one message at a
time, then the next has its turn, and when no slot is free the ring is emptied
before anyone builds more. So what waits, waits in the ring, where it is seen.
"""

import math
import sys
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Final

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import (
    ConnectionIdIssued,
    ConnectionIdRetired,
    ConnectionTerminated,
    ProtocolNegotiated,
    QuicEvent,
    StopSendingReceived,
    StreamDataReceived,
)
from aioquic.quic.packet import QuicErrorCode, QuicFrameType

from server import internals, routing
from server.counters import ConnectionCounters
from server.intake import Intake
from server.loop import NO_MEMORY_WAIT_S, Loop
from server.options import EndpointOptions
from server.session import Application, Session
from server.udp.model import Address, AddressBook
from server.udp.sockets import UdpSocket
from server.window import WindowBudget

__all__ = ["Application", "ApplicationFactory", "Endpoint", "EndpointOptions"]

ApplicationFactory = Callable[[QuicConnection], Application]

# Messages built before the socket is looked at again, at least; so that many
# connections with much to say don't keep acknowledgements waiting.
_TURN_MESSAGE_COUNT: Final = 64
# What an application is asked for at most, so that a window without a cap does not
# end up as one huge copy in a stream's buffer.
_LARGEST_PRODUCE_BYTES: Final = 8 * 1024 * 1024
_MOST_FAULTS_SHOWN: Final = 5

_address_of = itemgetter(1)


class Endpoint:
    """
    Drives the connections of one socket.

    Args:
        udp: The socket with its rings; closed with this endpoint.
        loop: Who calls.
        configuration: For connections that are accepted, and the default of `connect`.
        options: How connections are driven.
        accept: Makes the application of an incoming connection; None: none is accepted.
    """

    def __init__(
        self,
        udp: UdpSocket,
        loop: Loop,
        *,
        configuration: QuicConfiguration,
        options: EndpointOptions,
        accept: ApplicationFactory | None = None,
    ) -> None:
        self.udp = udp
        self.connections = ConnectionCounters()
        self.on_closed: Callable[[QuicConnection], None] | None = None
        """Called when a connection has ended."""
        self._loop = loop
        self._accept = accept
        self._options = options
        self._addresses = AddressBook()
        self._intake = Intake(
            udp,
            configuration,
            addresses=self._addresses,
            begin=self._begin if accept is not None else None,
            on_fault=self._show_fault,
        )
        self._by_connection: dict[QuicConnection, Session] = {}
        self._ready: deque[Session] = deque()
        self._last_built: Session | None = None
        self._fault_count = 0
        datagram_bytes = configuration.max_datagram_size
        self.budget = WindowBudget(
            cap_bytes=options.window_cap_bytes,
            total_bytes=options.window_budget_bytes,
            # One message in flight while the next is built.
            least_bytes=2 * datagram_bytes * udp.tx.limits.capacity(datagram_bytes),
        )
        self.set_window_cap(options.window_cap_bytes)
        loop.add(self)

    # For the owner ---------------------------------------------------------------

    def connect(
        self, address: Address, configuration: QuicConfiguration, factory: ApplicationFactory
    ) -> tuple[QuicConnection, Application]:
        """
        Open a connection; its first packets leave with the next turn.
        """
        algorithm = self._intake.configuration.congestion_control_algorithm
        configuration = replace(configuration, congestion_control_algorithm=algorithm)
        connection = QuicConnection(configuration=configuration)
        session = self._open(connection, factory(connection))
        connection.connect(address, now=self._loop.now_s())
        self._touch(session)
        return connection, session.application

    def touch(self, connection: QuicConnection) -> None:
        """
        Let a connection send at the next turn: its application did something on its own.
        """
        session = self._by_connection.get(connection)
        if session is not None:
            self._touch(session)

    def set_window_cap(self, cap_bytes: int) -> None:
        """
        Cap the window of connections; 0: no cap, and no budget is shared.
        """
        self.budget.set_cap(cap_bytes)
        self._intake.configuration = replace(
            self._intake.configuration,
            congestion_control_algorithm=internals.capped_congestion_control(
                self._options.congestion_control, cap_bytes=cap_bytes
            ),
        )

    def close(self, *, error_code: int = QuicErrorCode.NO_ERROR, reason: str = "") -> None:
        """
        Close all connections, send that, and give the port back.
        """
        for session in list(self._by_connection.values()):
            session.connection.close(
                error_code=error_code, frame_type=QuicFrameType.PADDING, reason_phrase=reason
            )
            self._touch(session)
        now_s = self._loop.now_s()
        self.transmit(now_s)
        for session in list(self._by_connection.values()):
            self._forget(session)
        self._loop.remove(self)
        self.udp.close()

    @property
    def is_idle(self) -> bool:
        """Nothing waits in either ring."""
        return self.udp.tx.is_empty and not self.udp.rx.ring.filled_count

    # For the loop ----------------------------------------------------------------

    @property
    def is_waiting_for_room(self) -> bool:
        """The socket is full, and the kernel will tell when it no longer is."""
        return self.udp.tx.is_blocked_by_room

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self.udp.fileno()

    def wait_limit_s(self) -> float:
        """How long the loop may sleep as far as this endpoint goes."""
        tx = self.udp.tx
        if tx.blocked_by:
            return math.inf if tx.is_blocked_by_room else NO_MEMORY_WAIT_S
        return 0.0 if self._ready or not self.udp.rx.is_drained else math.inf

    def receive(self, now_s: float) -> None:
        """
        Take what the socket holds and feed it to the connections.
        """
        rx = self.udp.rx
        rx.receive()
        for address, datagrams in rx.read():
            self._receive_train(datagrams, address, now_s)

    def transmit(self, now_s: float) -> None:
        """
        Let connections that were touched say what they have to say.
        """
        tx = self.udp.tx
        if not self._ready and tx.is_empty:
            return
        if tx.blocked_by:
            tx.flush()
        if self._ready:
            self._build(now_s)
        if not self._ready and not tx.blocked_by:
            tx.flush()

    # Receiving -------------------------------------------------------------------

    def _receive_train(self, datagrams: list[bytes], address: Address, now_s: float) -> None:
        """
        Feed what came in one message: nearly always all of it is one connection's.
        """
        cid = None  # of the datagram before, when its header was short and led somewhere
        for datagram in datagrams:
            # What Intake.find does for a short header, without its calls.
            if cid is None or not (datagram.startswith(cid, 1) and 0x40 <= datagram[0] < 0x80):  # noqa: PLR2004
                found = self._intake.find(datagram, address, now_s)
                if found is None:
                    cid = None
                    continue
                session = found
                cid = routing.short_header_cid(datagram) if datagram[0] < 0x80 else None  # noqa: PLR2004
                receive = session.connection.receive_datagram
                self._touch(session)
            try:
                receive(datagram, address, now_s)
            except Exception as error:  # noqa: BLE001 - whatever a peer sends, others go on
                self._fail(session, error)

    def _begin(self, connection: QuicConnection) -> Session:
        """
        Take in a connection that a client has opened.
        """
        assert self._accept is not None
        session = self._open(connection, self._accept(connection))
        self._touch(session)
        return session

    def _open(self, connection: QuicConnection, application: Application) -> Session:
        session = Session(
            connection, application, pacing=self._options.pacing, on_due=self._on_timer
        )
        self._intake.add(session, connection.host_cid)
        self._by_connection[connection] = session
        self.connections.on_opened()
        internals.share_cap(connection, self.budget.shared)
        self.budget.join(internals.find_capped_window(connection))
        return session

    def _fail(self, session: Session, error: Exception) -> None:
        """
        End a connection that tripped over a fault in it or under it.
        """
        self._show_fault(error)
        # With a frame type it is the transport's close; without, aioquic takes the code for
        # the application's own and hides it during the handshake.
        session.connection.close(
            error_code=QuicErrorCode.INTERNAL_ERROR,
            frame_type=QuicFrameType.PADDING,
            reason_phrase="internal error",
        )

    def _abandon(self, session: Session) -> None:
        """
        Drop a connection that cannot even say that it closes.
        """
        self._forget(session)
        session.application.on_event(
            ConnectionTerminated(
                error_code=QuicErrorCode.INTERNAL_ERROR,
                frame_type=QuicFrameType.PADDING,
                reason_phrase="internal error",
            ),
            self._loop.now_s(),
        )

    def _show_fault(self, error: Exception) -> None:
        self.udp.rx.drop("fault")
        self._fault_count += 1
        if self._fault_count <= _MOST_FAULTS_SHOWN:
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(
                f"endpoint: a connection is closed by a fault: {type(error).__name__}: {error} "
                f"({where.filename}:{where.lineno})",
                file=sys.stderr,
                flush=True,
            )

    # Sending ---------------------------------------------------------------------

    def _touch(self, session: Session) -> None:
        if not session.is_ready:
            session.is_ready = True
            self._ready.append(session)

    def _build(self, now_s: float) -> None:
        """
        Let the ready connections build, one message each in turn.
        """
        tx = self.udp.tx
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
                self._drain_events(session, now_s)
                self._settle(session)

    def _prepare(self, session: Session, now_s: float) -> bool:
        """
        Hand events to the application; whether the connection may have anything to say.
        """
        self._drain_events(session, now_s)
        if session.is_blocked:
            session.unblock(self._ring_bytes(session))
        if not session.is_blocked or session.is_over:
            return True
        # Most acknowledgements allow nothing yet. aioquic would make a packet builder to
        # find that out; its timer tells whether one of its own is due, at a tenth.
        self._settle(session)
        is_due = session.timer_at_s is not None and session.timer_at_s <= now_s
        return is_due or internals.must_speak(session.connection)

    def _produce(self, session: Session, *, message_bytes: int) -> None:
        """
        Let the application write what the next message holds.

        And as much again, lest a message end early; no more, so that an application with
        many streams has few of them waiting in aioquic at once.
        """
        wanted_bytes = 2 * message_bytes
        if self._options.pacing == "off":  # one call builds all that the window allows
            connection = session.connection
            window_bytes = internals.window_bytes(connection)
            wanted_bytes += min(window_bytes, _LARGEST_PRODUCE_BYTES)
        try:
            session.application.produce(wanted_bytes)
        except Exception as error:  # noqa: BLE001 - one connection's fault is not the others'
            self._fail(session, error)

    def _build_message(self, session: Session) -> bool:
        """
        Let a connection build one message; whether it may have more to say.
        """
        connection = session.connection
        if session.is_over:
            return False
        tx = self.udp.tx
        datagram_bytes = session.datagram_bytes
        goes_on = session is self._last_built  # another peer's datagrams begin a message
        self._last_built = session
        room = tx.room(datagram_bytes) if goes_on else tx.limits.capacity(datagram_bytes)
        if not session.is_blocked:
            self._produce(session, message_bytes=room * datagram_bytes)
        session.grant(room)
        try:
            built = connection.datagrams_to_send(self._loop.now_s())
        except Exception as error:  # noqa: BLE001 - one connection's fault is not the others'
            self._fail(session, error)
            self._abandon(session)
            return False
        if built:
            self._write(built)
        return session.has_more(len(built))

    def _write(self, built: list[tuple[bytes, Address]]) -> None:
        """
        Put what was built into the ring.
        """
        address = built[0][1]
        if built[-1][1] == address:
            self.udp.tx.write(self._addresses.pack(address), [datagram for datagram, _ in built])
            return
        # Those that try another path (RFC 9000, Section 8.2) stand at the end, path by path.
        for address, group in groupby(built, key=_address_of):
            self.udp.tx.write(self._addresses.pack(address), [datagram for datagram, _ in group])

    def _ring_bytes(self, session: Session) -> int:
        tx = self.udp.tx
        return (
            tx.ring.capacity * tx.limits.capacity(session.datagram_bytes) * (session.datagram_bytes)
        )

    # Events and timers -----------------------------------------------------------

    def _drain_events(self, session: Session, now_s: float) -> None:
        next_event = session.connection.next_event
        on_event = session.application.on_event
        while (event := next_event()) is not None:
            try:
                if isinstance(event, StreamDataReceived):
                    on_event(event, now_s)
                else:
                    self._on_event(session, event, now_s)
            except Exception as error:  # noqa: BLE001 - one connection's fault is not the others'
                self._fail(session, error)

    def _on_event(self, session: Session, event: QuicEvent, now_s: float) -> None:
        match event:
            case ConnectionIdIssued():
                self._intake.add(session, event.connection_id)
            case ConnectionIdRetired():
                self._intake.remove(session, event.connection_id)
            case ProtocolNegotiated():
                session.peer_max_datagram_bytes = internals.peer_max_datagram_bytes(
                    session.connection
                )
                if self._options.is_peer_limit_kept and session.peer_max_datagram_bytes:
                    session.limit_datagrams(session.peer_max_datagram_bytes)
            case StopSendingReceived():
                session.is_blocked = False  # the reset need not wait for room
            case ConnectionTerminated():
                self._forget(session)
        session.application.on_event(event, now_s)

    def _settle(self, session: Session) -> None:
        """
        After a connection's turn: note its end, or when it wants to be called again.
        """
        connection = session.connection
        if internals.has_close_reason(connection) and internals.is_ending(connection):
            self._note_closed(session)
        if session.is_over:
            return
        timer_at_s = connection.get_timer()
        session.timer_at_s = timer_at_s
        if timer_at_s is None:
            return
        timer = session.timer
        if timer is not None:
            if timer.at_s <= timer_at_s:
                return  # it looks again when it fires
            self._loop.cancel(timer)
        session.timer = self._loop.call_at(timer_at_s, session.on_timer)

    def _on_timer(self, session: Session, now_s: float) -> None:
        session.timer = None
        if session.is_over or session.timer_at_s is None:
            return
        if session.timer_at_s > now_s:
            session.timer = self._loop.call_at(session.timer_at_s, session.on_timer)
            return
        try:
            session.connection.handle_timer(now_s)
        except Exception as error:  # noqa: BLE001 - one connection's fault is not the others'
            self._fail(session, error)
        if internals.is_ending(session.connection):
            # Its draining period is over: nothing to send, one last event to hand on.
            self._drain_events(session, now_s)
            self._settle(session)
            return
        # A probe (RFC 9002, Section 6.2.4) may exceed the window and must leave now.
        session.is_blocked = False
        self._touch(session)

    def _note_closed(self, session: Session) -> None:
        """
        Count an end once, as soon as it is certain.
        """
        if session.is_closed:
            return
        session.is_closed = True
        self.budget.leave(internals.find_capped_window(session.connection))
        error_code, frame_type, reason, closed_by = internals.close_reason(session.connection)
        self.connections.on_closed(
            error_code=error_code, frame_type=frame_type, reason=reason, closed_by=closed_by
        )
        if self.on_closed is not None:
            self.on_closed(session.connection)

    def _forget(self, session: Session) -> None:
        """
        Drop a connection that is over; its timers must not fire any more.
        """
        self._note_closed(session)
        internals.end_log(session.connection)
        session.is_over = True
        if session.timer is not None:
            self._loop.cancel(session.timer)
            session.timer = None
        self._intake.forget(session)
        self._by_connection.pop(session.connection, None)
