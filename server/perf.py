"""
The QUIC perf protocol: what both ends share, and the server's side of it.

It is that of draft-banks-quic-performance-00 (2020).

Each stream that the client opens starts with 8 bytes, a big-endian number: how
many bytes the server is to send back. Whatever follows is an upload, which is
drained. The answer goes back on the stream itself, or, for a unidirectional
stream, on one that the server opens. 2^64 - 1 asks for an endless answer, which
STOP_SENDING ends (RFC 9000, Section 3.5). A stream that ends before its eighth
byte asks for nothing: it is closed and forgotten.

The server answers as soon as it has read the number and does not wait for the
client's FIN. (s2n-quic does so too; the servers of quinn and msquic wait.)

Byte i of an answer, and of an upload by our own client, is i mod 251. The draft
leaves content open; a prime period differs from every power of two, so bytes
that are swapped, repeated or lost show.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from aioquic.quic.connection import QuicConnection, stream_is_unidirectional
from aioquic.quic.events import (
    ConnectionTerminated,
    QuicEvent,
    StopSendingReceived,
    StreamDataReceived,
    StreamReset,
)

from server.internals import SendBacklog, window_bytes

ALPN: Final = "perf"
HEADER_BYTES: Final = 8
ENDLESS: Final = 2**64 - 1
CONTENT_PERIOD: Final = 251
# One write hands aioquic at most this much. Large, so that few calls are made;
# bounded, because the block below is kept in memory for the life of the process.
LARGEST_CHUNK_BYTES: Final = 2 * 1024 * 1024
# What a stream is handed at least before the next takes its turn. aioquic's cost of a packet
# grows with the streams that have data waiting in it (17 us with 1, 26 with 4, 95 with 64),
# so a turn is long enough that few have: two or more full messages, 14 datagrams of 8,972.
TURN_BYTES: Final = 128 * 1024

_CONTENT: Final = bytes(range(CONTENT_PERIOD)) * (LARGEST_CHUNK_BYTES // CONTENT_PERIOD + 2)
_CONTENT_VIEW: Final = memoryview(_CONTENT)


def encode_header(answer_bytes: int) -> bytes:
    """
    Write what a stream starts with: how many bytes are to come back.

    Args:
        answer_bytes: 0 to 2^64 - 1; the largest, `ENDLESS`, means until STOP_SENDING.
    """
    return answer_bytes.to_bytes(HEADER_BYTES, "big")


def parse_header(header: bytes) -> int:
    """
    Read what a stream starts with: how many bytes are to go back.

    Raises:
        ValueError: The header is not 8 bytes long.
    """
    if len(header) != HEADER_BYTES:
        raise ValueError(f"a perf header is {HEADER_BYTES} bytes long, not {len(header)}")
    return int.from_bytes(header, "big")


def content_chunk(offset: int, length_bytes: int) -> memoryview:
    """
    Show the content that stands at an offset, without copying it.

    Args:
        offset: Bytes of content before it.
        length_bytes: 0 to `LARGEST_CHUNK_BYTES`.
    """
    start = offset % CONTENT_PERIOD
    return _CONTENT_VIEW[start : start + length_bytes]


def find_content_error(data: bytes, offset: int) -> int | None:
    """
    Offset of the first byte that is not what belongs there; None when all are right.

    Args:
        data: What was received; any length.
        offset: Bytes of content received before it.
    """
    # startswith() is a memcmp; == between memoryviews compares one item at a time.
    if len(data) <= LARGEST_CHUNK_BYTES and _CONTENT.startswith(data, offset % CONTENT_PERIOD):
        return None
    for begin in range(0, len(data), LARGEST_CHUNK_BYTES):
        piece = data[begin : begin + LARGEST_CHUNK_BYTES]
        if not _CONTENT.startswith(piece, (offset + begin) % CONTENT_PERIOD):
            expected = content_chunk(offset + begin, len(piece))
            wrong = next(i for i, byte in enumerate(piece) if byte != expected[i])
            return offset + begin + wrong
    return None


@dataclass(slots=True)
class _Content:
    """How far a stream of a feed is. One without an end has `left_bytes` None."""

    left_bytes: int | None
    backlog: SendBacklog
    offset: int = 0


class ContentFeed:
    """
    Streams of one connection whose content is not fully handed to aioquic yet.

    Streams take turns: the first is handed its share of the connection's window, then it
    waits until all others have had theirs, and nobody is served before what was handed
    over is nearly sent. So few streams have data waiting in aioquic at once, however many
    are open, and streams without an end are never further apart than a turn. One that its
    receiver's flow control stops is passed over.

    A stream leaves the feed when its FIN is handed over, so that work is in
    proportion to the streams that still have something to send.
    """

    __slots__ = ("_backlogs", "_connection", "_empty", "_streams", "_turns")

    def __init__(self, connection: QuicConnection) -> None:
        self._connection = connection
        self._streams: dict[int, _Content] = {}
        self._empty: list[int] = []  # streams that get a FIN and nothing else
        self._turns: deque[int] = deque()  # may name streams that have left
        self._backlogs: dict[int, SendBacklog] = {}  # of streams with data waiting in aioquic

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._streams

    def add(self, stream_id: int, *, length_bytes: int | None) -> None:
        """
        Begin the content of a stream that can be written to.

        Args:
            stream_id: An open stream.
            length_bytes: How much content it gets; None when only `finish` or `drop` ends it.
        """
        self._streams[stream_id] = _Content(length_bytes, SendBacklog(self._connection, stream_id))
        if length_bytes == 0:
            self._empty.append(stream_id)
        else:
            self._turns.append(stream_id)

    def drop(self, stream_id: int) -> bool:
        """
        Hand over no more of a stream, not even a FIN; whether there was more to come.
        """
        return self._streams.pop(stream_id, None) is not None

    def finish(self, stream_id: int) -> None:
        """
        End a stream by FIN after what was handed over so far.
        """
        if self._streams.pop(stream_id, None) is not None:
            self._connection.send_stream_data(stream_id, b"", end_stream=True)

    def clear(self) -> None:
        """
        Forget all streams; their connection is gone.
        """
        self._streams.clear()
        self._empty.clear()
        self._turns.clear()
        self._backlogs.clear()

    def produce(self, wanted_bytes: int) -> int:
        """
        Top up the streams, so that so much can be sent without asking again.

        At most a turn more than that waits in aioquic afterwards.

        Args:
            wanted_bytes: How much the connection may soon send, in all.

        Returns:
            Bytes of content handed over.
        """
        # A FIN costs nothing and needs no credit, so it waits neither for a turn nor for what
        # the connection's flow control holds back.
        for stream_id in self._empty:
            self.finish(stream_id)
        self._empty.clear()
        turns = self._turns
        if not turns:
            self._backlogs.clear()
            return 0
        waiting_bytes = self._count_waiting()
        if waiting_bytes >= wanted_bytes:
            return 0
        turn_bytes = self._turn_bytes()
        written_bytes = 0
        stopped_count = 0
        while waiting_bytes < wanted_bytes and stopped_count < len(turns):
            stream_id = turns.popleft()
            content = self._streams.get(stream_id)
            if content is None:
                continue
            room_bytes = min(turn_bytes, content.backlog.room_bytes)
            if not room_bytes:
                stopped_count += 1
                turns.append(stream_id)
                continue
            stopped_count = 0
            length_bytes = self._write(stream_id, content, room_bytes)
            waiting_bytes += length_bytes
            written_bytes += length_bytes
            self._backlogs[stream_id] = content.backlog
            if content.left_bytes == 0:
                del self._streams[stream_id]
            else:
                turns.append(stream_id)
        return written_bytes

    def _turn_bytes(self) -> int:
        """
        How much a stream is handed at once.

        The longer the better for one stream: what is in flight stays in the bytearray that
        aioquic appends to, and growing it by an eighth or less copies all of it each time.
        """
        share_bytes = window_bytes(self._connection) // max(1, len(self._streams))
        return max(TURN_BYTES, min(share_bytes, LARGEST_CHUNK_BYTES))

    def _count_waiting(self) -> int:
        """
        What was handed over and can be sent now; streams without any are forgotten.
        """
        waiting_bytes = 0
        is_any_empty = False
        for backlog in self._backlogs.values():
            sendable_bytes = backlog.sendable_bytes
            waiting_bytes += sendable_bytes
            is_any_empty |= not sendable_bytes
        if is_any_empty:
            self._backlogs = {
                stream_id: backlog
                for stream_id, backlog in self._backlogs.items()
                if backlog.sendable_bytes
            }
        return waiting_bytes

    def _write(self, stream_id: int, content: _Content, room_bytes: int) -> int:
        """
        Hand over up to `room_bytes` of a stream, and its FIN with the last of it.
        """
        length_bytes = room_bytes
        is_last = False
        if content.left_bytes is not None:
            length_bytes = min(room_bytes, content.left_bytes)
            content.left_bytes -= length_bytes
            is_last = content.left_bytes == 0
        # aioquic only asks for its length and appends it, so a view is enough.
        chunk = content_chunk(content.offset, length_bytes)
        self._connection.send_stream_data(stream_id, chunk, is_last)  # type: ignore[arg-type]
        content.offset += length_bytes
        return length_bytes


class PerfTally:
    """
    What the connections that share it were asked and brought.

    `answer_byte_count` is what was handed to aioquic, which may never be sent when the
    answer is stopped. `content_error_count` counts pieces of uploads with a wrong byte
    in them; it stays 0 where content is not verified.
    """

    __slots__ = (
        "answer_byte_count",
        "content_error_count",
        "ignored_stream_count",
        "request_count",
        "stopped_answer_count",
        "upload_byte_count",
    )

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Count from zero."""
        self.answer_byte_count = 0
        self.content_error_count = 0
        self.ignored_stream_count = 0
        self.request_count = 0
        self.stopped_answer_count = 0
        self.upload_byte_count = 0

    def report(self) -> dict[str, int]:
        """As it stands in the report."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class _Request:
    """A stream of the client's that has not ended: its header so far, its upload's length."""

    header: bytearray = field(default_factory=bytearray)
    is_header_missing: bool = True
    upload_bytes: int = 0


class PerfServer:
    """
    Answers one connection's perf streams. Does no I/O: events in, stream data out.

    Events only note what is to be sent; `produce` writes it. So every event of a
    batch is known before a byte is written, and a stream that was stopped gets none.

    Args:
        connection: The connection it answers on.
        tally: Where to count; several connections may share one.
        is_content_verified: Whether uploads are compared with the content pattern.
    """

    __slots__ = ("_answers", "_connection", "_is_content_verified", "_requests", "tally")

    def __init__(
        self,
        connection: QuicConnection,
        *,
        tally: PerfTally | None = None,
        is_content_verified: bool = False,
    ) -> None:
        self._connection = connection
        self._is_content_verified = is_content_verified
        self._requests: dict[int, _Request] = {}
        self._answers = ContentFeed(connection)
        self.tally = PerfTally() if tally is None else tally

    @property
    def open_request_count(self) -> int:
        """
        Streams of the client's that are remembered because they have not ended.
        """
        return len(self._requests)

    @property
    def open_answer_count(self) -> int:
        """
        Answers that are remembered because they are not fully handed over.
        """
        return len(self._answers)

    def on_event(self, event: QuicEvent, now_s: float) -> None:  # noqa: ARG002 - part of Application
        """
        Take one aioquic event; the kinds that are not about streams change nothing.
        """
        if isinstance(event, StreamDataReceived):
            self._on_data(event)
        elif isinstance(event, StopSendingReceived):
            if self._answers.drop(event.stream_id):
                self.tally.stopped_answer_count += 1
        elif isinstance(event, StreamReset):
            self._on_request_end(event.stream_id)
        elif isinstance(event, ConnectionTerminated):
            self._requests.clear()
            self._answers.clear()

    def produce(self, wanted_bytes: int) -> None:
        """
        Top up the answers, so that so much can be sent without asking again.
        """
        self.tally.answer_byte_count += self._answers.produce(wanted_bytes)

    def _on_data(self, event: StreamDataReceived) -> None:
        data = event.data
        request = self._requests.get(event.stream_id)
        if request is None or request.is_header_missing:
            request, data = self._on_header(event.stream_id, data)
        if data:
            offset = request.upload_bytes
            if self._is_content_verified and find_content_error(data, offset) is not None:
                self.tally.content_error_count += 1
            length_bytes = len(data)
            request.upload_bytes = offset + length_bytes
            self.tally.upload_byte_count += length_bytes
        if event.end_stream:
            self._on_request_end(event.stream_id)

    def _on_header(self, stream_id: int, data: bytes) -> tuple[_Request, bytes]:
        """
        Take what belongs to a stream's header; the stream, and the data after it.
        """
        request = self._requests.get(stream_id)
        if request is None:
            request = self._requests[stream_id] = _Request()
        missing_bytes = HEADER_BYTES - len(request.header)
        request.header += data[:missing_bytes]
        if len(request.header) == HEADER_BYTES:
            request.is_header_missing = False
            self.tally.request_count += 1
            self._begin_answer(stream_id, parse_header(bytes(request.header)))
        return request, data[missing_bytes:]

    def _on_request_end(self, stream_id: int) -> None:
        """
        Forget a stream of the client's that ended by FIN or reset.
        """
        request = self._requests.pop(stream_id, None)
        if request is None or request.is_header_missing:
            self.tally.ignored_stream_count += 1
            self._begin_answer(stream_id, 0)

    def _begin_answer(self, stream_id: int, answer_bytes: int) -> None:
        """
        Note an answer; on a stream of our own when the request came on a unidirectional one.
        """
        if stream_is_unidirectional(stream_id):
            if answer_bytes == 0:
                return
            stream_id = self._connection.get_next_available_stream_id(is_unidirectional=True)
        try:
            # Opens our own stream, and tells whether the peer's is still ours to write.
            self._connection.send_stream_data(stream_id, b"")
        except (RuntimeError, ValueError):
            # The peer's STOP_SENDING came first: aioquic has reset the stream
            # (RuntimeError) or, when the peer knows that, forgotten it (ValueError).
            self.tally.stopped_answer_count += 1
            return
        length_bytes = None if answer_bytes == ENDLESS else answer_bytes
        self._answers.add(stream_id, length_bytes=length_bytes)
