"""
What streams of the perf protocol carry, and the turns in which they are written.

Byte i of an answer, and of an upload by our own client, is i mod 251. The draft
leaves content open; a prime period differs from every power of two, so bytes
that are swapped, repeated or lost show.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aioquic.quic.connection import QuicConnection

from server.congestion import window_bytes
from server.internals import SendBacklog

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

    __slots__ = ("_backlogs", "_connection", "_empty", "_streams", "_turns", "on_finished")

    def __init__(self, connection: QuicConnection) -> None:
        self._connection = connection
        self.on_finished: Callable[[int, int], None] | None = None
        """Called with a stream and its content's length as its FIN is handed over."""
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

    def drop(self, stream_id: int) -> int | None:
        """
        Hand over no more of a stream, not even a FIN.

        Returns:
            Bytes of content handed over until then; None when nothing more was to come.
        """
        content = self._streams.pop(stream_id, None)
        return None if content is None else content.offset

    def finish(self, stream_id: int) -> None:
        """
        End a stream by FIN after what was handed over so far.
        """
        content = self._streams.pop(stream_id, None)
        if content is not None:
            self._connection.send_stream_data(stream_id, b"", end_stream=True)
            self._note_finished(stream_id, content)

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
                self._note_finished(stream_id, content)
            else:
                turns.append(stream_id)
        return written_bytes

    def _note_finished(self, stream_id: int, content: _Content) -> None:
        if self.on_finished is not None:
            self.on_finished(stream_id, content.offset)

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
