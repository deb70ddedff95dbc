"""
One UDP socket and the QUIC connections on it.

A turn of the loop: receive what is there, feed the connections, hand their events
to the applications, let connections with something to say build datagrams into
the TX ring (server/builder.py), flush it.
"""

import math
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import (
    ConnectionIdIssued,
    ConnectionIdRetired,
    ConnectionTerminated,
    HandshakeCompleted,
    ProtocolNegotiated,
    QuicEvent,
    StopSendingReceived,
    StreamDataReceived,
)
from aioquic.quic.packet import QuicErrorCode, QuicFrameType

from server import congestion, internals, routing
from server.admission import Admission
from server.builder import Builder
from server.counters import ConnectionCounters, RecoveryCounters
from server.intake import Intake
from server.loop import NO_MEMORY_WAIT_S, Loop
from server.options import EndpointOptions
from server.session import Application, Session
from server.udp.model import Address, AddressBook
from server.udp.sockets import UdpSocket
from server.window import ReceiveBudget, WindowBudget

__all__ = ["Application", "ApplicationFactory", "Endpoint", "EndpointOptions"]

ApplicationFactory = Callable[[QuicConnection], Application]

_MOST_FAULTS_SHOWN: Final = 5
# However many are open: two trains of the largest size, and some more.
_LEAST_RECEIVE_WINDOW_BYTES: Final = 256 * 1024


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
        self.recovery = RecoveryCounters()
        self.admission = Admission(options.admission)
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
            gate=self if accept is not None else None,
            on_fault=self._show_fault,
        )
        self._by_connection: dict[QuicConnection, Session] = {}
        self.builder = Builder(
            udp, self, addresses=self._addresses, pacing=options.pacing, now_s=loop.now_s
        )
        self._fault_count = 0
        datagram_bytes = configuration.max_datagram_size
        self.budget = WindowBudget(
            cap_bytes=options.window_cap_bytes,
            total_bytes=options.window_budget_bytes,
            # One message in flight while the next is built.
            least_bytes=2 * datagram_bytes * udp.tx.limits.capacity(datagram_bytes),
        )
        self.receive_budget = ReceiveBudget(
            total_bytes=options.receive_budget_bytes,
            usual_bytes=configuration.max_data,
            least_bytes=_LEAST_RECEIVE_WINDOW_BYTES,
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
        self._admit(session)
        self.builder.touch(session)
        return connection, session.application

    def touch(self, connection: QuicConnection) -> None:
        """
        Let a connection send at the next turn: its application did something on its own.
        """
        session = self._by_connection.get(connection)
        if session is not None:
            self.builder.touch(session)

    def set_window_cap(self, cap_bytes: int) -> None:
        """
        Cap the window of connections; 0: no cap, and no budget is shared.
        """
        self.budget.set_cap(cap_bytes)
        self._intake.configuration = replace(
            self._intake.configuration,
            congestion_control_algorithm=congestion.capped_congestion_control(
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
            self.builder.touch(session)
        now_s = self._loop.now_s()
        self.transmit(now_s)
        for session in list(self._by_connection.values()):
            self._forget(session)
        self._loop.remove(self)
        self.udp.close()

    def reset_counters(self) -> None:
        """
        Count connections, their recovery and the lowest window from now on.
        """
        self.connections.reset()
        self.recovery.reset()
        self.admission.reset()
        self.budget.reset()
        for session in self._by_connection.values():
            session.packets_at_reset = internals.sent_packet_count(session.connection)

    def report_recovery(self) -> dict[str, int]:
        """
        What loss recovery did, of connections that are over and of those that are open.
        """
        sessions = self._by_connection.values()
        return self.recovery.report(open_sent_count=sum(map(self._count_sent, sessions)))

    @staticmethod
    def _count_sent(session: Session) -> int:
        return internals.sent_packet_count(session.connection) - session.packets_at_reset

    @property
    def is_idle(self) -> bool:
        """Nothing waits in either ring."""
        return self.udp.tx.is_empty and not self.udp.rx.ring.filled_count

    # For the loop ----------------------------------------------------------------

    @property
    def is_waiting_for_room(self) -> bool:
        """The socket is full, and the kernel will tell when it no longer is."""
        return self.udp.tx.is_blocked_by_room

    @property
    def is_window_blocked(self) -> bool:
        """Some connection waits until its window has room."""
        return self.connections.blocked_now_count > 0

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self.udp.fileno()

    def wait_limit_s(self) -> float:
        """How long the loop may sleep as far as this endpoint goes."""
        tx = self.udp.tx
        if tx.blocked_by:
            return math.inf if tx.is_blocked_by_room else NO_MEMORY_WAIT_S
        return 0.0 if self.builder.has_ready or not self.udp.rx.is_drained else math.inf

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
        if not self.builder.has_ready and tx.is_empty:
            return
        if tx.blocked_by:
            tx.flush()
        if self.builder.has_ready:
            self.builder.build(now_s)
        if not self.builder.has_ready and not tx.blocked_by:
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
                self.builder.touch(session)
            try:
                receive(datagram, address, now_s)
            except Exception as error:  # noqa: BLE001 - whatever a peer sends, others go on
                self.fail(session, error)

    @property
    def open_count(self) -> int:
        """Connections that are open."""
        return self.connections.open_count

    @property
    def kept_count(self) -> int:
        """Connections that take room: open, or closed and still waiting for late packets."""
        return len(self._by_connection)

    def begin(self, connection: QuicConnection) -> Session:
        """
        Take in a connection that a client has opened, for as long as a handshake may take.
        """
        assert self._accept is not None
        session = self._open(connection, self._accept(connection))
        session.is_half_open = True
        self.admission.half_open_count += 1
        limit_s = self.admission.options.handshake_limit_s
        session.handshake_limit = self._loop.call_at(
            self._loop.now_s() + limit_s, partial(self._on_handshake_limit, session)
        )
        self.builder.touch(session)
        return session

    def _admit(self, session: Session) -> None:
        """
        Count a connection among those that share the windows: its client is there.
        """
        self._cancel_handshake_limit(session)
        self._count_half_open(session)
        session.has_joined = True
        self.budget.join(congestion.find_capped_window(session.connection))

    def _cancel_handshake_limit(self, session: Session) -> None:
        if session.handshake_limit is not None:
            self._loop.cancel(session.handshake_limit)
            session.handshake_limit = None

    def _count_half_open(self, session: Session) -> None:
        """
        One half-open connection less: its client is there, or nothing is kept of it any more.

        Not when it closes: a flood of newcomers that close at once would count for nothing.
        """
        if session.is_half_open:
            session.is_half_open = False
            self.admission.half_open_count -= 1

    def _on_handshake_limit(self, session: Session, now_s: float) -> None:
        # What ends the handshake may have come in this very turn.
        self.drain_events(session, now_s)
        if session.has_joined or session.is_over:
            return
        self.admission.handshake_timeout_count += 1
        self.abandon(session, reason="the handshake took too long")

    def _open(self, connection: QuicConnection, application: Application) -> Session:
        session = Session(
            connection,
            application,
            pacing=self._options.pacing,
            on_due=self._on_timer,
            counters=self.connections,
        )
        self._intake.add(session, connection.host_cid)
        self._by_connection[connection] = session
        self.connections.on_opened()
        internals.watch_recovery(connection, self.recovery)
        congestion.share_cap(connection, self.budget.shared)
        return session

    def fail(self, session: Session, error: Exception) -> None:
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

    def abandon(self, session: Session, *, reason: str = "internal error") -> None:
        """
        Drop a connection that cannot even say that it closes, or need not.
        """
        self._forget(session)
        session.application.on_event(
            ConnectionTerminated(
                error_code=QuicErrorCode.INTERNAL_ERROR,
                frame_type=QuicFrameType.PADDING,
                reason_phrase=reason,
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

    # Events and timers -----------------------------------------------------------

    def drain_events(self, session: Session, now_s: float) -> None:
        """
        Hand what aioquic has to tell to the connection's application.
        """
        next_event = session.connection.next_event
        on_event = session.application.on_event
        # What was abandoned has left its counts and budgets, and must not join them again.
        while not session.is_over and (event := next_event()) is not None:
            try:
                if isinstance(event, StreamDataReceived):
                    on_event(event, now_s)
                else:
                    self._on_event(session, event, now_s)
            except Exception as error:  # noqa: BLE001 - one connection's fault is not the others'
                self.fail(session, error)

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
            case HandshakeCompleted() if not session.has_joined:
                self._admit(session)
            case StopSendingReceived():
                session.release()  # the reset need not wait for room
            case ConnectionTerminated():
                self._forget(session)
        session.application.on_event(event, now_s)

    def settle(self, session: Session) -> None:
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
            self.fail(session, error)
        if internals.is_ending(session.connection):
            # Its draining period is over: nothing to send, one last event to hand on.
            self.drain_events(session, now_s)
            self.settle(session)
            return
        # A probe (RFC 9002, Section 6.2.4) may exceed the window and must leave now.
        session.release()
        self.builder.touch(session)

    def _note_closed(self, session: Session) -> None:
        """
        Count an end once, as soon as it is certain.
        """
        if session.is_closed:
            return
        session.is_closed = True
        self._cancel_handshake_limit(session)
        if session.has_joined:
            self.budget.leave(congestion.find_capped_window(session.connection))
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
        if session.is_over:
            return
        self._note_closed(session)
        self._count_half_open(session)
        session.release()
        self.recovery.packet_sent_count += self._count_sent(session)
        internals.end_log(session.connection)
        internals.give_back_received(session.connection)
        session.is_over = True
        if session.timer is not None:
            self._loop.cancel(session.timer)
            session.timer = None
        self._intake.forget(session)
        self._by_connection.pop(session.connection, None)
