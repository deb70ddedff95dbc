"""
One connection's load: opens its streams, takes their answers, ends them, says how it went.

Does no I/O and reads no clock: aioquic events and the time go in, calls of the
connection come out. So two connections joined in memory are enough to test it.

How a load with a duration ends. Answers without an end are ended by STOP_SENDING,
which the server answers by RESET_STREAM. Uploads without an end are ended as the
perf draft ends every upload: by FIN, after what was already handed to the
connection. Then the client waits until the reset, or the acknowledgement of
everything up to the FIN, has come. Closing is left to whoever drives the load.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import (
    ConnectionTerminated,
    HandshakeCompleted,
    QuicEvent,
    StopSendingReceived,
    StreamDataReceived,
    StreamReset,
)

from client.closing import Close, ClosedBy
from client.plan import StreamPlan
from server.content import ContentFeed, find_content_error
from server.internals import SendProgress, close_reason, has_close_reason, is_ending
from server.perf import ENDLESS, HEADER_BYTES, encode_header

# Servers commonly allow 100 streams at once (aioquic 128); and each open stream costs
# aioquic time with every packet. The next one is opened when one has ended.
OPEN_STREAM_LIMIT: Final = 100

# Of all streams of a load together; a result of 10,000 is 2 MB of JSON.
KEPT_STREAM_COUNT: Final = 10_000

_CLOSED_BY: Final[dict[str, ClosedBy]] = {"peer": "server", "self": "client", "idle": "idle"}

EndedBy = Literal["fin", "reset", "stop", "none"]


@dataclass(slots=True)
class StreamLoad:
    """
    One stream and how far it is. Times are those of the loop's clock, seconds.

    `sent_bytes` counts payload that the server has acknowledged, without the header.
    """

    stream_id: int
    plan: StreamPlan
    opened_s: float
    received_bytes: int = 0
    sent_bytes: int = 0
    first_byte_s: float | None = None
    completed_s: float | None = None
    ended_by: EndedBy = "none"
    error: str = ""
    is_stopped: bool = False
    upload: SendProgress | None = None
    """How far the upload is acknowledged; None when there is none, or no longer."""


@dataclass(slots=True)
class EndedStreams:
    """
    What the streams of a connection moved that came to their end, by how they ended.

    `stopped`: we asked by STOP_SENDING that it end, even if all of it came then.
    `completed`: others, whose answer ended by FIN. `reset`: by the server. Of uploads
    those count whose FIN was acknowledged.
    """

    completed_count: int = 0
    completed_received_bytes: int = 0
    stopped_count: int = 0
    stopped_received_bytes: int = 0
    reset_count: int = 0
    reset_received_bytes: int = 0
    completed_sent_bytes: int = 0

    def add(self, stream: StreamLoad) -> None:
        """One more."""
        self.completed_sent_bytes += stream.sent_bytes
        if stream.is_stopped:
            self.stopped_count += 1
            self.stopped_received_bytes += stream.received_bytes
        elif stream.ended_by == "fin":
            self.completed_count += 1
            self.completed_received_bytes += stream.received_bytes
        else:
            self.reset_count += 1
            self.reset_received_bytes += stream.received_bytes


class Session:
    """
    The client's application on one connection.

    Args:
        connection: The connection, not yet connected.
        index: Its number in the load.
        plans: The streams it is to open.
        is_content_verified: Whether every byte of the answers is compared.
        began_s: When it was told to connect.
        is_held: Open no stream before `release`.
        kept_count: Streams that are remembered one by one after their end; of others only
            the sums, so that memory does not grow with a load.
    """

    def __init__(
        self,
        connection: QuicConnection,
        *,
        index: int,
        plans: Iterable[StreamPlan],
        is_content_verified: bool,
        began_s: float,
        is_held: bool = False,
        kept_count: int = KEPT_STREAM_COUNT,
    ) -> None:
        self.connection = connection
        self._feed = ContentFeed(connection)
        self._is_content_verified = is_content_verified
        self._waiting = deque(plans)
        self._open: dict[int, StreamLoad] = {}
        self._uploads: dict[int, StreamLoad] = {}
        self._is_closing = False
        self._is_held = is_held
        self.index = index
        self.began_s = began_s
        self.handshake_s: float | None = None
        self._streams: dict[int, StreamLoad] = {}
        self.ended = EndedStreams()
        self.opened_count = 0
        self.first_opened_s: float | None = None
        self.last_ended_s: float | None = None
        self._kept_count = kept_count
        self._first_error = ""
        self.received_bytes = 0
        self.sent_bytes = 0
        self.close: Close | None = None

    @property
    def progress(self) -> int:
        """
        A figure that grows whenever anything moves: handshake, bytes, ends of streams.
        """
        ended_count = self.opened_count - len(self._open)
        events = (self.handshake_s is not None) + ended_count + self._is_closing
        return self.received_bytes + self.sent_bytes + events

    @property
    def streams(self) -> list[StreamLoad]:
        """
        Those that are open, and the first that have ended, as they were opened.
        """
        return list(self._streams.values())

    @property
    def open_count(self) -> int:
        """
        Streams that have not ended.
        """
        return len(self._open)

    @property
    def is_closing(self) -> bool:
        """
        The connection's end has begun, from whichever side.
        """
        return self._is_closing

    @property
    def is_over(self) -> bool:
        """
        Nothing more will happen: the connection has ended.
        """
        return self.close is not None

    @property
    def is_complete(self) -> bool:
        """
        Every stream that was begun, and was not left out because time was up, has ended.
        """
        return self.handshake_s is not None and not self._open and not self._waiting

    def on_event(self, event: QuicEvent, now_s: float) -> None:
        """
        Take one aioquic event.
        """
        if isinstance(event, StreamDataReceived):
            self._on_data(event, now_s)
        elif isinstance(event, StreamReset):
            self._on_reset(event, now_s)
        elif isinstance(event, StopSendingReceived):
            self._on_stop_sending(event)
        elif isinstance(event, HandshakeCompleted):
            self.handshake_s = now_s
            if not self._is_held:
                self._open_streams(now_s)
        elif isinstance(event, ConnectionTerminated) and self.close is None:
            self._note_close()

    def produce(self, wanted_bytes: int) -> None:
        """
        Top up the uploads, so that so much can be sent without asking again.
        """
        self._feed.produce(wanted_bytes)

    def observe(self, now_s: float) -> bool:
        """
        Look at what brings no event: acknowledged uploads, an error found on our side.

        To be called once per turn of the loop.

        Returns:
            Whether the connection has something new to send.
        """
        if self.close is None and has_close_reason(self.connection):
            self._is_closing = True
            if is_ending(self.connection):
                self._note_close()
        if self._is_closing:
            return False
        opened_count = self.opened_count
        for stream in list(self._uploads.values()):
            if stream.upload is not None:
                self._note_acknowledged(stream, stream.upload, now_s)
        return self.opened_count > opened_count

    def release(self, now_s: float) -> None:
        """
        Open the streams that were held back.
        """
        self._is_held = False
        if self.handshake_s is not None and not self._is_closing:
            self._open_streams(now_s)

    def stop(self) -> None:
        """
        Time is up: end all streams as the module's text says, open no others.
        """
        self._waiting.clear()
        for stream in self._open.values():
            if stream.plan.receive_bytes != 0 and stream.ended_by == "none":
                stream.is_stopped = True
                self.connection.stop_stream(stream.stream_id, 0)
            self._feed.finish(stream.stream_id)

    def end(self, reason: str, *, error_code: int = 0) -> None:
        """
        Close the connection, in whatever state its streams are.
        """
        if not self._is_closing:
            self._is_closing = True
            self._feed.clear()
            self.connection.close(error_code=error_code, reason_phrase=reason)

    def find_error(self) -> str:
        """
        The first thing that went wrong on this connection, or "".
        """
        if self._first_error:
            return self._first_error
        if self.is_complete:
            return (
                "" if self.opened_count else f"connection {self.index} was ready when time was up"
            )
        if self.close is not None:
            return self.close.render()
        return f"connection {self.index} did not end"

    def _open_streams(self, now_s: float) -> None:
        while self._waiting and len(self._open) < OPEN_STREAM_LIMIT:
            plan = self._waiting.popleft()
            stream_id = self.connection.get_next_available_stream_id()
            asked_bytes = ENDLESS if plan.receive_bytes is None else plan.receive_bytes
            stream = StreamLoad(stream_id=stream_id, plan=plan, opened_s=now_s)
            has_upload = plan.send_bytes != 0
            self.connection.send_stream_data(
                stream_id, encode_header(asked_bytes), end_stream=not has_upload
            )
            if has_upload:
                self._feed.add(stream_id, length_bytes=plan.send_bytes)
                stream.upload = SendProgress(self.connection, stream_id)
                self._uploads[stream_id] = stream
            self._streams[stream_id] = stream
            self.opened_count += 1
            if self.first_opened_s is None:
                self.first_opened_s = now_s
            self._open[stream_id] = stream

    def _on_data(self, event: StreamDataReceived, now_s: float) -> None:
        stream = self._open.get(event.stream_id)
        if stream is None:
            return
        data = event.data
        if data and stream.first_byte_s is None:
            stream.first_byte_s = now_s
        if self._is_content_verified and not stream.error:
            wrong = find_content_error(data, stream.received_bytes)
            if wrong is not None:
                self._fail(stream, f"byte {wrong:,} is not what belongs there")
        stream.received_bytes += len(data)
        self.received_bytes += len(data)
        if event.end_stream:
            asked_bytes = stream.plan.receive_bytes
            if stream.received_bytes != asked_bytes:
                asked = "no end" if asked_bytes is None else f"{asked_bytes:,} bytes"
                self._fail(
                    stream, f"ended after {stream.received_bytes:,} bytes; {asked} was asked for"
                )
            self._on_answer_end(stream, "fin", now_s)

    def _on_reset(self, event: StreamReset, now_s: float) -> None:
        stream = self._open.get(event.stream_id)
        if stream is None:
            return
        if not stream.is_stopped:
            self._fail(
                stream,
                f"was reset by the server (code {event.error_code}) "
                f"after {stream.received_bytes:,} bytes",
            )
        self._on_answer_end(stream, "stop" if stream.is_stopped else "reset", now_s)

    def _on_stop_sending(self, event: StopSendingReceived) -> None:
        stream = self._uploads.pop(event.stream_id, None)
        if stream is not None:
            self._feed.drop(event.stream_id)
            stream.upload = None
            self._fail(stream, f"the server stopped the upload (code {event.error_code})")

    def _on_answer_end(self, stream: StreamLoad, ended_by: EndedBy, now_s: float) -> None:
        stream.ended_by = ended_by
        self._complete(stream, now_s)

    def _note_acknowledged(self, stream: StreamLoad, upload: SendProgress, now_s: float) -> None:
        """
        See how much of an upload the server has; complete it when that is all of it.
        """
        sent_bytes = max(0, upload.acknowledged_bytes - HEADER_BYTES)
        self.sent_bytes += sent_bytes - stream.sent_bytes
        stream.sent_bytes = sent_bytes
        if upload.is_finished:
            stream.upload = None
            del self._uploads[stream.stream_id]
            self._complete(stream, now_s)

    def _complete(self, stream: StreamLoad, now_s: float) -> None:
        """
        Let a stream go when both its directions have ended.
        """
        if stream.ended_by == "none" or stream.upload is not None:
            return
        stream.completed_s = self.last_ended_s = now_s
        self._open.pop(stream.stream_id, None)
        self.ended.add(stream)
        if self.opened_count - len(self._open) > self._kept_count:
            del self._streams[stream.stream_id]
        self._open_streams(now_s)

    def _fail(self, stream: StreamLoad, words: str) -> None:
        if not stream.error:
            stream.error = f"stream {stream.stream_id} of connection {self.index}: {words}"
            self._first_error = self._first_error or stream.error

    def _note_close(self) -> None:
        """
        Keep why the connection ended, at the first moment that it is known.
        """
        error_code, frame_type, reason, closed_by = close_reason(self.connection)
        self.close = Close(
            connection=self.index,
            error_code=error_code,
            frame_type=frame_type,
            reason=reason,
            by=_CLOSED_BY[closed_by],
        )
        self._feed.clear()
        self._uploads.clear()
