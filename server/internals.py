"""
Touches of what aioquic keeps private, written against 1.7.2.

Pacer and windows have server/congestion.py. aioquic offers no way to ask how much of
a stream is still unsent or to watch its reassembly. What is done about that is
in these two and nowhere else; tests/server/test_internals.py fails when a new version
moves one of these parts.
"""

from collections.abc import Iterable
from typing import Any, Final

from aioquic._buffer import Buffer
from aioquic.quic.connection import END_STATES, Limit, QuicConnection, QuicConnectionState
from aioquic.quic.events import StreamDataReceived
from aioquic.quic.packet import QuicStreamFrame, pull_quic_transport_parameters
from aioquic.quic.packet_builder import QuicSentPacket
from aioquic.quic.stream import QuicStreamReceiver
from aioquic.tls import ExtensionType

from server.counters import ReceiveBufferCounters, RecoveryCounters
from server.routing import LongHeader
from server.udp import _native
from server.window import ReceiveBudget

AIOQUIC_VERSION: Final = "1.7.2"
_AMPLIFICATION: Final = 3  # RFC 9000, Section 8.1

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


# Receiving ---------------------------------------------------------------------


class _ReceivedLimit(Limit):
    """
    MAX_DATA that grows by what was taken, not by what came.

    aioquic doubles the limit when half of it was used, whether or not anybody could take
    the data: a peer that leaves a gap at each stream's beginning could fill the memory,
    a doubling for every datagram. Here what came and cannot be taken counts.
    """

    def __init__(self, connection: QuicConnection, budget: ReceiveBudget) -> None:
        self._connection = connection
        self._budget = budget
        self._value = self._window_bytes = budget.join()
        usual = connection._local_max_data  # noqa: SLF001
        super().__init__(usual.frame_type, usual.name, self._value)

    @property
    def value(self) -> int:
        """What the peer may have sent in all."""
        return self._value

    @value.setter
    def value(self, _wanted: int) -> None:
        if 2 * (self._value - self.used) > self._window_bytes:
            return  # more than half of it is still free
        held_bytes = sum(
            stream.receiver.highest_offset - stream.receiver.starting_offset()
            for stream in self._connection._streams.values()  # noqa: SLF001
            if not stream.receiver.is_finished
        )
        told_bytes = self._value - self.used + held_bytes
        self._window_bytes = self._budget.exchange(self._window_bytes, least_bytes=told_bytes)
        self._value = self.used + self._window_bytes - held_bytes

    def give_back(self) -> None:
        """The connection is gone."""
        self._budget.leave(self._window_bytes)


def bound_received(connection: QuicConnection, budget: ReceiveBudget) -> None:
    """
    Keep what a peer has sent and nobody can take yet within a window, which a budget grants.

    To be called before the connection's first datagram, which tells the peer.
    """
    connection._local_max_data = _ReceivedLimit(connection, budget)  # noqa: SLF001


def give_back_received(connection: QuicConnection) -> None:
    """
    Give a connection's window back to its budget, if it had one. To be called once.
    """
    limit = connection._local_max_data  # noqa: SLF001
    if isinstance(limit, _ReceivedLimit):
        limit.give_back()


def encode_invalid_token_close(header: LongHeader) -> bytes:
    """
    Write the Initial packet that says INVALID_TOKEN (RFC 9000, Section 8.1.2).
    """
    from aioquic.asyncio.server import _encode_invalid_token_close  # noqa: PLC0415 - asyncio

    return _encode_invalid_token_close(
        version=header.version,
        source_cid=header.destination_cid,
        destination_cid=header.source_cid,
    )


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


def is_beyond_amplification(connection: QuicConnection) -> bool:
    """
    Whether what was just built is too much for an address that nobody has validated.

    aioquic keeps to three times what came from there (RFC 9000, Section 8.1), save when
    it writes a close.
    """
    path = connection._network_paths[0]  # noqa: SLF001
    return not path.is_validated and path.bytes_sent > _AMPLIFICATION * path.bytes_received


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
