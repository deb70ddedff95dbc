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
"""

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

from server.content import ContentFeed, find_content_error
from server.internals import has_stream

ALPN: Final = "perf"
HEADER_BYTES: Final = 8
ENDLESS: Final = 2**64 - 1
# Whole answers that are remembered until they are looked through: as many as a connection
# may have open and some more.
_MOST_FINISHED: Final = 512


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


class PerfTally:
    """
    What the connections that share it were asked and brought.

    `answer_byte_count` is what was handed to aioquic, which may never be sent when the
    answer is stopped. `content_error_count` counts pieces of uploads with a wrong byte
    in them; it stays 0 where content is not verified.

    Each stream's bytes of content also count by how the stream ended, for whoever holds
    them against the other end's account:

    - `download_completed`: answers whose FIN was handed over and that were not stopped
      afterwards. The client received just as many.
    - `download_stopped`: answers that STOP_SENDING ended, also one whose FIN was under
      way by then. The client received as many at most.
    - `upload_completed`: uploads read up to their FIN. The client sent just as many.
    - `upload_reset`: uploads that RESET_STREAM ended. The client sent as many at least.

    What a connection's end cut off counts as none of them.
    """

    __slots__ = (
        "answer_byte_count",
        "content_error_count",
        "download_completed_byte_count",
        "download_completed_stream_count",
        "download_stopped_byte_count",
        "download_stopped_stream_count",
        "ignored_stream_count",
        "request_count",
        "stopped_answer_count",
        "upload_byte_count",
        "upload_completed_byte_count",
        "upload_completed_stream_count",
        "upload_reset_byte_count",
        "upload_reset_stream_count",
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
        self.download_completed_byte_count = 0
        self.download_completed_stream_count = 0
        self.download_stopped_byte_count = 0
        self.download_stopped_stream_count = 0
        self.upload_completed_byte_count = 0
        self.upload_completed_stream_count = 0
        self.upload_reset_byte_count = 0
        self.upload_reset_stream_count = 0

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

    __slots__ = (
        "_answers",
        "_connection",
        "_finished",
        "_is_content_verified",
        "_requests",
        "tally",
    )

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
        self._answers.on_finished = self._on_answer_finished
        # Answers whose FIN is handed over, by stream: STOP_SENDING may still come.
        self._finished: dict[int, int] = {}
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
            self._on_stop_sending(event.stream_id)
        elif isinstance(event, StreamReset):
            self._on_request_end(event.stream_id, is_reset=True)
        elif isinstance(event, ConnectionTerminated):
            self._requests.clear()
            self._answers.clear()
            self._finished.clear()

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

    def _on_request_end(self, stream_id: int, *, is_reset: bool = False) -> None:
        """
        Forget a stream of the client's that ended by FIN or reset.
        """
        request = self._requests.pop(stream_id, None)
        tally = self.tally
        if request is None or request.is_header_missing:
            tally.ignored_stream_count += 1
            self._begin_answer(stream_id, 0)
        elif is_reset:
            tally.upload_reset_stream_count += 1
            tally.upload_reset_byte_count += request.upload_bytes
        else:
            tally.upload_completed_stream_count += 1
            tally.upload_completed_byte_count += request.upload_bytes

    def _on_answer_finished(self, stream_id: int, length_bytes: int) -> None:
        """
        Note a whole answer; only its acknowledgement is still to come.
        """
        tally = self.tally
        tally.download_completed_stream_count += 1
        tally.download_completed_byte_count += length_bytes
        finished = self._finished
        if len(finished) >= _MOST_FINISHED:
            # Those that the client has whole are gone from the connection, too.
            self._finished = finished = {
                known_id: length
                for known_id, length in finished.items()
                if has_stream(self._connection, known_id)
            }
        finished[stream_id] = length_bytes

    def _on_stop_sending(self, stream_id: int) -> None:
        """
        Answer no further; of one that was whole already the client may have had a part.
        """
        tally = self.tally
        handed_bytes = self._answers.drop(stream_id)
        if handed_bytes is not None:
            tally.stopped_answer_count += 1
        else:
            handed_bytes = self._finished.pop(stream_id, None)
            if handed_bytes is None:
                return
            tally.download_completed_stream_count -= 1
            tally.download_completed_byte_count -= handed_bytes
        tally.download_stopped_stream_count += 1
        tally.download_stopped_byte_count += handed_bytes

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
            self.tally.download_stopped_stream_count += 1
            return
        length_bytes = None if answer_bytes == ENDLESS else answer_bytes
        self._answers.add(stream_id, length_bytes=length_bytes)
