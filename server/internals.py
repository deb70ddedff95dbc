"""
Every touch of aioquic's private parts, in one place, written against 1.7.2.

aioquic offers no way to replace its pacer, to ask how much of a stream is still
unsent, to cap a window or to watch its reassembly. What is done about that is
here and nowhere else; tests/server/test_internals.py fails when a new version
moves one of these parts.
"""

import math
from collections.abc import Iterable
from typing import Any, Final, Protocol

from aioquic._buffer import Buffer
from aioquic.quic.congestion.base import QuicCongestionControl, register_congestion_control
from aioquic.quic.congestion.cubic import CubicCongestionControl
from aioquic.quic.congestion.reno import RenoCongestionControl
from aioquic.quic.connection import END_STATES, QuicConnection, QuicConnectionState
from aioquic.quic.events import StreamDataReceived
from aioquic.quic.packet import QuicStreamFrame, pull_quic_transport_parameters
from aioquic.quic.packet_builder import QuicSentPacket
from aioquic.quic.stream import QuicStreamReceiver
from aioquic.tls import ExtensionType

from server.counters import ReceiveBufferCounters, RecoveryCounters
from server.udp import _native
from server.window import CappedWindow, WindowCap

AIOQUIC_VERSION: Final = "1.7.2"

# Pacing ------------------------------------------------------------------------


class Pacer(Protocol):
    """What aioquic asks of `connection._loss._pacer`."""

    def next_send_time(self, now: float) -> float | None:
        """None: send now; else not before that time."""

    def update_after_send(self, now: float) -> None:
        """A packet was built."""

    def update_rate(self, congestion_window: int, smoothed_rtt: float) -> None:
        """The window or the round-trip time changed."""


class RingPacer:
    """
    Says "not now" when a connection has used up its room in the TX ring.

    A call of `datagrams_to_send` may then build so many datagrams and no more.
    aioquic asks no pacer before a datagram with a due ACK, so one more can come.
    """

    __slots__ = ("credit", "is_refused")

    def __init__(self) -> None:
        self.credit = 0
        """Datagrams that may still be built."""
        self.is_refused = False
        """Whether anything was held back since this was last set to False."""

    def next_send_time(self, now: float) -> float | None:  # noqa: ARG002
        """None while there is credit; else infinity, which sets no timer."""
        if self.credit > 0:
            return None
        self.is_refused = True
        return math.inf

    def update_after_send(self, now: float) -> None:  # noqa: ARG002
        """Debit a datagram."""
        self.credit -= 1

    def update_rate(self, congestion_window: int, smoothed_rtt: float) -> None:
        """Time plays no part here."""


class NoPacer:
    """
    Never says "not now": a call returns whatever the window allows.
    """

    __slots__ = ()

    def next_send_time(self, now: float) -> float | None:  # noqa: ARG002
        """Send now."""
        return None

    def update_after_send(self, now: float) -> None:
        """Nothing to note."""

    def update_rate(self, congestion_window: int, smoothed_rtt: float) -> None:
        """Nothing to note."""


def set_pacer(connection: QuicConnection, pacer: Pacer) -> None:
    """
    Put a pacer of ours in the place of aioquic's.
    """
    connection._loss._pacer = pacer  # type: ignore[assignment]  # noqa: SLF001


# Windows -----------------------------------------------------------------------


# aioquic leaves slow start when the round-trip time rises, lest the window overshoot
# (HyStart). With a cap it cannot, and here the time rises because messages wait in
# the ring, which is what is studied. Left in, one run in some fifteen on a busy
# machine stayed at a small window for seconds and showed calls of a few messages.


class _CappedReno(RenoCongestionControl):
    cap: WindowCap

    def on_packet_acked(self, *, now: float, packet: QuicSentPacket) -> None:
        cap_bytes = self.cap.cap_bytes
        if self.congestion_window >= cap_bytes:
            # Full grown, as nearly always: all that is left of reno's part is this.
            self.bytes_in_flight -= packet.sent_bytes
            self.congestion_window = cap_bytes
            return
        super().on_packet_acked(now=now, packet=packet)
        if self.congestion_window > cap_bytes:  # noqa: PLR1730 - min() is a call a packet
            self.congestion_window = cap_bytes

    def on_rtt_measurement(self, *, now: float, rtt: float) -> None:
        """Stay in slow start until something is lost or the cap is reached."""


class _CappedCubic(CubicCongestionControl):
    cap: WindowCap

    def on_packet_acked(self, *, now: float, packet: QuicSentPacket) -> None:
        super().on_packet_acked(now=now, packet=packet)
        if self.congestion_window > self.cap.cap_bytes:  # noqa: PLR1730 - the same
            self.congestion_window = self.cap.cap_bytes

    def on_rtt_measurement(self, *, now: float, rtt: float) -> None:  # noqa: ARG002
        """Note the time, which cubic's growth needs, and stay in slow start."""
        self.rtt = rtt


_CAPPED: Final[dict[str, type[_CappedReno] | type[_CappedCubic]]] = {
    "reno": _CappedReno,
    "cubic": _CappedCubic,
}


def capped_congestion_control(name: str, *, cap_bytes: int) -> str:
    """
    Name a congestion controller whose window stays within a cap.

    aioquic's own grow without bound on loopback (reno was seen at 44 MB). A capped
    one stays in slow start until the cap or a loss.

    Args:
        name: "reno" or "cubic".
        cap_bytes: Largest window; 0 leaves aioquic's controller as it is.

    Returns:
        What to write into `QuicConfiguration.congestion_control_algorithm`.
    """
    if not cap_bytes:
        return name
    controller = _CAPPED[name]

    def make(*, max_datagram_size: int) -> QuicCongestionControl:
        made = controller(max_datagram_size=max_datagram_size)
        made.cap = WindowCap(cap_bytes)
        made.congestion_window = min(made.congestion_window, cap_bytes)
        return made

    capped_name = f"{name}-capped-{cap_bytes}"
    register_congestion_control(capped_name, make)
    return capped_name


def find_capped_window(connection: QuicConnection) -> CappedWindow | None:
    """
    Find what a cap is kept by; None for a connection without one.
    """
    controller = connection._loss._cc  # noqa: SLF001
    return controller if isinstance(controller, _CappedReno | _CappedCubic) else None


def share_cap(connection: QuicConnection, cap: WindowCap) -> None:
    """
    Put a cap that others have too in the place of a capped window's own.
    """
    controller = connection._loss._cc  # noqa: SLF001
    if isinstance(controller, _CappedReno | _CappedCubic):
        controller.cap = cap


def window_bytes(connection: QuicConnection) -> int:
    """
    Read the congestion window.
    """
    return connection._loss._cc.congestion_window  # noqa: SLF001


def in_flight_bytes(connection: QuicConnection) -> int:
    """
    Read what was sent and is neither acknowledged nor lost.
    """
    return connection._loss._cc.bytes_in_flight  # noqa: SLF001


# Loss recovery -----------------------------------------------------------------


def watch_recovery(connection: QuicConnection, counters: RecoveryCounters) -> None:
    """
    Count what a connection takes for lost, and its probe timeouts (RFC 9002, Section 6.2).
    """
    loss = connection._loss  # noqa: SLF001
    on_packets_lost, reschedule_data = loss._on_packets_lost, loss.reschedule_data  # noqa: SLF001

    def count_lost(*, packets: Iterable[QuicSentPacket], **arguments: Any) -> None:
        lost = tuple(packets)
        counters.packet_lost_count += len(lost)
        counters.byte_lost_count += sum(packet.sent_bytes for packet in lost)
        on_packets_lost(packets=lost, **arguments)

    def count_timeout(**arguments: Any) -> None:
        if not arguments.get("speed_up_handshake"):
            counters.probe_timeout_count += 1
        reschedule_data(**arguments)

    loss._on_packets_lost = count_lost  # type: ignore[method-assign]  # noqa: SLF001
    loss.reschedule_data = count_timeout  # type: ignore[method-assign]


def sent_packet_count(connection: QuicConnection) -> int:
    """
    How many packets a connection has sent, in all packet number spaces.
    """
    return connection._packet_number  # noqa: SLF001


# Streams -----------------------------------------------------------------------


def has_stream(connection: QuicConnection, stream_id: int) -> bool:
    """
    Whether a stream is not over yet: something may still come of it, or be sent again.
    """
    return stream_id in connection._streams  # noqa: SLF001


def unsent_bytes(connection: QuicConnection, stream_id: int) -> int:
    """
    Count what was written to a stream and has not been put into a packet yet.

    Data to be sent again counts from where it begins. 0 for a stream that is
    not there (any more).
    """
    stream = connection._streams.get(stream_id)  # noqa: SLF001
    if stream is None:
        return 0
    sender = stream.sender
    return sender._buffer_stop - sender.next_offset  # noqa: SLF001


class SendBacklog:
    """
    What was written to a stream and waits to be put into a packet.

    Args:
        connection: The stream's connection.
        stream_id: A stream that is open.
    """

    __slots__ = ("_sender", "_stream")

    def __init__(self, connection: QuicConnection, stream_id: int) -> None:
        self._stream = connection._streams[stream_id]  # noqa: SLF001
        self._sender = self._stream.sender

    @property
    def sendable_bytes(self) -> int:
        """How much the peer's limit on the stream lets go now; what was lost counts again."""
        sender = self._sender
        if sender.buffer_is_empty or self._stream.is_blocked:  # empty, or reset; too many streams
            return 0
        pending_bytes = 0
        for pending in sender._pending:  # noqa: SLF001
            pending_bytes += pending.stop - pending.start
        beyond_bytes = sender._buffer_stop - self._stream.max_stream_data_remote  # noqa: SLF001
        return max(0, pending_bytes - beyond_bytes) if beyond_bytes > 0 else pending_bytes

    @property
    def room_bytes(self) -> int:
        """How much more may be written until the peer's limit on the stream is reached."""
        stream = self._stream
        if stream.is_blocked:
            return 0
        return max(0, stream.max_stream_data_remote - self._sender._buffer_stop)  # noqa: SLF001


class SendProgress:
    """
    How much of a stream's sending side the peer has acknowledged. Outlives the stream.

    Args:
        connection: The stream's connection.
        stream_id: A stream that is open.
    """

    __slots__ = ("_sender",)

    def __init__(self, connection: QuicConnection, stream_id: int) -> None:
        self._sender = connection._streams[stream_id].sender  # noqa: SLF001

    @property
    def acknowledged_bytes(self) -> int:
        """Everything before this offset has arrived at the peer."""
        return self._sender._buffer_start  # noqa: SLF001

    @property
    def is_finished(self) -> bool:
        """Whether all of it, with its FIN or its reset, has arrived at the peer."""
        return self._sender.is_finished


# State -------------------------------------------------------------------------


def has_begun(connection: QuicConnection) -> bool:
    """
    Whether a server's connection has accepted a packet of its client.
    """
    return connection._state is not QuicConnectionState.FIRSTFLIGHT  # noqa: SLF001


def is_ending(connection: QuicConnection) -> bool:
    """
    Whether nothing is sent any more, save that the close was.
    """
    return connection._state in END_STATES  # noqa: SLF001


def has_close_reason(connection: QuicConnection) -> bool:
    """
    Whether a close was asked for or received.
    """
    return connection._close_event is not None  # noqa: SLF001


def must_speak(connection: QuicConnection) -> bool:
    """
    Whether something may have to leave that neither a pacer nor a timer tells of.

    That is a close; what the handshake lacks, for which aioquic passes a full window
    (and may have no timer); the answer to a peer that tries another path, which only
    congestion control may delay (RFC 9000, Section 8.2.2).
    """
    if connection._close_event is not None or not connection._handshake_confirmed:  # noqa: SLF001
        return True
    paths = connection._network_paths  # noqa: SLF001
    return len(paths) > 1 and any(path.remote_challenges for path in paths[1:])


def close_reason(connection: QuicConnection) -> tuple[int, int | None, str, str]:
    """
    Say why a connection ended: error code, frame type, words, and who ended it.

    The last is "peer", "self" or "idle".
    """
    event = connection._close_event  # noqa: SLF001
    state = connection._state  # noqa: SLF001
    if event is None:
        return 0, None, "", "self"
    if state is QuicConnectionState.DRAINING:
        closed_by = "peer"
    elif state is QuicConnectionState.TERMINATED and event.reason_phrase == "Idle timeout":
        closed_by = "idle"
    else:
        closed_by = "self"
    return int(event.error_code), event.frame_type, event.reason_phrase, closed_by


def end_log(connection: QuicConnection) -> None:
    """
    Write out the qlog of a connection that will not live to its own end.
    """
    trace = connection._quic_logger  # noqa: SLF001
    logger = connection.configuration.quic_logger
    if trace is not None and logger is not None:
        logger.end_trace(trace)
        connection._quic_logger = None  # noqa: SLF001


def peer_max_datagram_bytes(connection: QuicConnection) -> int | None:
    """
    Read the peer's max_udp_payload_size, which aioquic checks and forgets.

    None when it gave none, or its transport parameters have not come yet.
    """
    for kind, data in getattr(connection.tls, "received_extensions", None) or []:
        if kind == ExtensionType.QUIC_TRANSPORT_PARAMETERS:
            parameters = pull_quic_transport_parameters(Buffer(data=data))
            return parameters.max_udp_payload_size
    return None


def limit_datagram_bytes(connection: QuicConnection, most_bytes: int) -> None:
    """
    Build no larger datagrams than this from now on.
    """
    connection._max_datagram_size = min(  # noqa: SLF001
        connection._max_datagram_size,  # noqa: SLF001
        most_bytes,
    )


# Reassembly --------------------------------------------------------------------

_handle_frame = QuicStreamReceiver.handle_frame


class ReceiveBufferProbes:
    """
    Fires the receive-buffer probes from where aioquic reassembles streams.

    While nobody listens, aioquic runs untouched. While someone does, the method
    that takes a STREAM (or CRYPTO) frame is wrapped:

    - write: a frame's payload arrived at an offset, duplicates included;
    - alloc: memory was set aside for it. In order it is the frame's own bytes
      object; out of order the stream's buffer grew by so many bytes;
    - pop: bytes were handed on, in order, to the application.

    Args:
        counters: Counted where fired.
    """

    def __init__(self, counters: ReceiveBufferCounters) -> None:
        self.counters = counters
        self.is_installed = False

    def update(self, is_wanted: bool) -> None:  # noqa: FBT001
        """
        Wrap the method, or put aioquic's own back.
        """
        if is_wanted == self.is_installed:
            return
        self.is_installed = is_wanted
        wrapper = self._make_wrapper() if is_wanted else _handle_frame
        QuicStreamReceiver.handle_frame = wrapper  # type: ignore[method-assign]

    def _make_wrapper(self) -> Any:
        counters = self.counters
        fire = _native.fire_stored

        def handle_frame(
            receiver: QuicStreamReceiver, frame: QuicStreamFrame
        ) -> StreamDataReceived | None:
            offset = frame.offset
            payload_bytes = len(frame.data)
            start = receiver._buffer_start  # noqa: SLF001
            held_bytes = len(receiver._buffer)  # noqa: SLF001
            event = _handle_frame(receiver, frame)
            popped_bytes = len(event.data) if event is not None else 0
            if popped_bytes == payload_bytes and not held_bytes and offset == start:
                grown_bytes, grown_at = payload_bytes, offset
            else:
                # What is held now and what was handed on, less what was held before.
                grown_bytes = len(receiver._buffer) + popped_bytes - held_bytes  # noqa: SLF001
                grown_at = start + held_bytes
            # Together, as hits that follow one another find each other's caches warm.
            fire(offset, payload_bytes, grown_at, grown_bytes, start, popped_bytes)
            counters.write_count += payload_bytes > 0
            counters.alloc_count += grown_bytes > 0
            counters.pop_count += popped_bytes > 0
            return event

        return handle_frame
