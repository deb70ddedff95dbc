"""
`python -m benchmarks.load`: the independent client that all servers are measured with.

qh3, a Rust core, needs a few microseconds a packet, so that the server is what a
measurement is about. Each connection has a socket of its own. Every byte that
comes is compared with the pattern; a server compares what it is sent.

It talks in JSON lines. `{"event": "ready"}` when all handshakes are done; a line on
stdin starts the transfer; `{"event": "done", ...}` when all has arrived; the next line
closes the connections (`{"event": "closed"}`), and one more opens new ones. The end of
stdin ends it. So neither handshakes nor ends are inside the measured time.

It answers after two messages, or when there are no more: RFC 9000, Section 13.2.2, asks
for an ACK after every second packet, and a train that GRO has joined is looked at as one.
(A client that took 64 trains before it answered ran in lock step with the server.) As
ACKs are dear to aioquic, a good part of what GSO saves a server comes from that: with four
messages in place of two, stock aioquic costs about a quarter less. With `--answer-every N`
the client counts datagrams, not messages, so that all servers get equally many ACKs.
"""

import argparse
import heapq
import json
import math
import os
import select
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection
from qh3.quic.events import (
    ConnectionTerminated,
    HandshakeCompleted,
    StreamDataReceived,
    StreamReset,
)

from benchmarks.load_io import LoadSocket
from server.content import LARGEST_CHUNK_BYTES, content_chunk, find_content_error
from server.perf import ALPN, encode_header

FLOW_CONTROL_BYTES: Final = 1 << 40  # never the limit; QUIC allows 2^62 - 1
_MESSAGE_COUNT: Final = 2  # RFC 9000, Section 13.2.2
# How long an answer may wait for more datagrams to come, with --answer-every.
_ANSWER_DELAY_S: Final = 0.001
# What waits in qh3 to be sent first, of all streams of a connection.
_BACKLOG_BYTES: Final = 1024 * 1024
_SMALLEST_CHUNK_BYTES: Final = 16 * 1024
# A socket of the kernel's usual 212,992 bytes holds about 90 datagrams of 1,200 bytes,
# and each handshake sends two or three in a row.
_HANDSHAKES_AT_ONCE: Final = 16
_STALL_S: Final = 20.0


class LoadError(Exception):
    """The transfer went wrong; one line says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """
    What is moved.

    Args:
        ip: The server's IPv4 address.
        port: Its port.
        server_name: A name in its certificate.
        ca_path: What is trusted.
        is_upload: Whether the client sends.
        total_bytes: Stream payload in all, spread evenly.
        connection_count: Connections.
        stream_count: Streams of each.
        datagram_bytes: Largest datagram that the client sends.
        answer_every: Datagrams that are taken before an answer; 0: two messages.
        is_held: Whether it waits for a word before it opens the first connections.
    """

    ip: str
    port: int
    server_name: str
    ca_path: Path
    is_upload: bool
    total_bytes: int
    connection_count: int
    stream_count: int
    datagram_bytes: int
    answer_every: int = 0
    is_held: bool = False


@dataclass(slots=True)
class _Stream:
    """How far a stream is. `left_bytes` is what is still to be written or to come."""

    left_bytes: int
    offset: int = 0


class Peer:
    """
    One connection of the load.
    """

    __slots__ = (
        "_answered_count",
        "_settings",
        "_streams",
        "_unanswered_at_s",
        "armed_at_s",
        "is_done",
        "is_ready",
        "moved_bytes",
        "quic",
        "socket",
    )

    def __init__(self, settings: LoadSettings, configuration: QuicConfiguration) -> None:
        self._settings = settings
        self._streams: dict[int, _Stream] = {}
        self.socket = LoadSocket(settings.ip, settings.port)
        self.quic = QuicConnection(configuration=configuration)
        self.quic.connect((settings.ip, settings.port), now=time.monotonic())
        self._answered_count = 0
        self._unanswered_at_s = 0.0
        self.armed_at_s = math.inf
        self.is_ready = False
        self.is_done = False
        self.moved_bytes = 0

    def begin(self, shares: list[int]) -> None:
        """
        Open the streams; each moves its share, bytes.
        """
        is_upload = self._settings.is_upload
        for share in shares:
            stream_id = self.quic.get_next_available_stream_id()
            header = encode_header(0 if is_upload else share)
            self.quic.send_stream_data(stream_id, header, not is_upload)
            self._streams[stream_id] = _Stream(share)

    def receive(self, now_s: float) -> None:
        """
        Take what has come, at most two messages, and look at every byte of it.
        """
        address = (self._settings.ip, self._settings.port)
        if self.socket.received_datagram_count == self._answered_count:
            self._unanswered_at_s = now_s
        for _ in range(_MESSAGE_COUNT):
            got = self.socket.receive()
            if got is None:
                break
            data, segment_bytes = got
            if len(data) > segment_bytes:
                self.quic.receive_gro_buffer(data, segment_bytes, address, now_s)
            else:
                self.quic.receive_datagram(data, address, now_s)
        self.drain()

    def holds_answer_until_s(self, now_s: float) -> float | None:
        """
        When an answer is due that waits for more datagrams; None: now.
        """
        missing_count = (
            self._answered_count
            + self._settings.answer_every
            - (self.socket.received_datagram_count)
        )
        due_s = self._unanswered_at_s + _ANSWER_DELAY_S
        return due_s if self._streams and missing_count > 0 and due_s > now_s else None

    def drain(self) -> None:
        """
        Take the events.

        Raises:
            LoadError: Something came that must not.
        """
        next_event = self.quic.next_event
        while (event := next_event()) is not None:
            if isinstance(event, StreamDataReceived):
                self._take(event.stream_id, event.data, is_end=event.end_stream)
            elif isinstance(event, HandshakeCompleted):
                self.is_ready = True
            elif isinstance(event, StreamReset | ConnectionTerminated):
                raise LoadError(f"the server ended it: {event}")
        if self._settings.is_upload and self._streams:
            self._note_upload()

    def _take(self, stream_id: int, data: bytes, *, is_end: bool) -> None:
        if self._settings.is_upload:
            if data:
                raise LoadError(f"stream {stream_id}: {len(data)} bytes came, none were asked for")
            return
        stream = self._streams[stream_id]
        if find_content_error(data, stream.offset) is not None:
            raise LoadError(f"stream {stream_id}: a wrong byte after {stream.offset} right ones")
        stream.offset += len(data)
        stream.left_bytes -= len(data)
        self.moved_bytes += len(data)
        if is_end:
            if stream.left_bytes:
                raise LoadError(f"stream {stream_id} ended {stream.left_bytes} bytes early")
            del self._streams[stream_id]
            self.is_done = not self._streams

    def _note_upload(self) -> None:
        # qh3 counts a stream until its FIN is acknowledged and the peer's has come.
        if not self.quic.open_outbound_streams and not any(
            stream.left_bytes for stream in self._streams.values()
        ):
            self.moved_bytes = sum(stream.offset for stream in self._streams.values())
            self._streams.clear()
            self.is_done = True

    def transmit(self, now_s: float) -> None:
        """
        Top up uploads and send what qh3 lets go.
        """
        if self.socket.is_full:
            self.socket.flush()
            if self.socket.is_full:
                return
        if self._settings.is_upload and self._streams:
            self._write()
        self._answered_count = self.socket.received_datagram_count
        built = self.quic.datagrams_to_send(now_s)
        if built:
            self.socket.send([datagram for datagram, _ in built])

    def _write(self) -> None:
        share_bytes = max(_SMALLEST_CHUNK_BYTES, _BACKLOG_BYTES // len(self._streams))
        for stream_id, stream in self._streams.items():
            if not stream.left_bytes or (self.quic.get_send_buffer_size(stream_id) >= share_bytes):
                continue
            size = min(share_bytes, stream.left_bytes, LARGEST_CHUNK_BYTES)
            stream.left_bytes -= size
            self.quic.send_stream_data(
                stream_id, content_chunk(stream.offset, size), not stream.left_bytes
            )
            stream.offset += size


class Load:
    """
    All connections, and the loop that drives them.
    """

    def __init__(self, settings: LoadSettings) -> None:
        self._settings = settings
        self._peers: dict[int, Peer] = {}
        self._timers: list[tuple[float, int]] = []
        self._epoll = select.epoll()
        self._epoll.register(sys.stdin.fileno(), select.EPOLLIN)
        self._is_told = False
        self._is_ended = False
        self._moved_at_s = time.monotonic()
        self._done_count = 0

    def run(self) -> None:
        """
        Open, move, close, as often as it is told to.
        """
        is_held = self._settings.is_held
        while not self._is_ended:
            if is_held:
                self._tell({"event": "closed"})
                self._turn_until_told()
                if self._is_ended:
                    return
            is_held = True
            self._open()
            self._tell({"event": "ready", "pid": os.getpid()})
            self._turn_until_told()
            if not self._is_ended:
                self._tell({"event": "done", **self._move()})
                self._turn_until_told()
            self._close()

    def _move(self) -> dict[str, float]:
        """
        Move everything; what it took.

        Raises:
            LoadError: A byte was wrong, or nothing moves any more.
        """
        before = self._counts()
        cpu_ns, began_s = time.process_time_ns(), time.monotonic()
        self._begin()
        while self._done_count < len(self._peers):
            self._turn(1.0)
            if time.monotonic() - self._moved_at_s > _STALL_S:
                raise LoadError(f"nothing has moved for {_STALL_S:.0f} s")
        seconds = time.monotonic() - began_s
        counts = {name: count - before[name] for name, count in self._counts().items()}
        return {
            "bytes": sum(peer.moved_bytes for peer in self._peers.values()),
            "seconds": seconds,
            "cpu_ns": time.process_time_ns() - cpu_ns,
            **counts,
        }

    def _close(self) -> None:
        for fd, peer in self._peers.items():
            peer.quic.close()
            peer.transmit(time.monotonic())
            self._epoll.unregister(fd)
            peer.socket.sock.close()
        self._peers.clear()
        self._timers.clear()
        self._done_count = 0

    def _open(self) -> None:
        configuration = QuicConfiguration(
            alpn_protocols=[ALPN],
            is_client=True,
            server_name=self._settings.server_name,
            cadata=self._settings.ca_path.read_bytes(),
            max_data=FLOW_CONTROL_BYTES,
            max_stream_data=FLOW_CONTROL_BYTES,
            max_datagram_size=self._settings.datagram_bytes,
            probe_datagram_size=False,
        )
        self._moved_at_s = time.monotonic()
        waiting: list[Peer] = []
        for _ in range(self._settings.connection_count):
            peer = Peer(self._settings, configuration)
            fd = peer.socket.sock.fileno()
            self._peers[fd] = peer
            self._epoll.register(fd, select.EPOLLIN)
            self._transmit(fd, peer, time.monotonic())
            waiting.append(peer)
            while len(waiting) >= _HANDSHAKES_AT_ONCE:
                waiting = self._await_handshakes(waiting)
        while waiting:
            waiting = self._await_handshakes(waiting)

    def _await_handshakes(self, waiting: list[Peer]) -> list[Peer]:
        self._turn(1.0)
        left = [peer for peer in waiting if not peer.is_ready]
        if time.monotonic() - self._moved_at_s > _STALL_S:
            raise LoadError(f"{len(left)} handshakes do not end")
        return left

    def _begin(self) -> None:
        settings = self._settings
        shares = split_evenly(
            settings.total_bytes, settings.connection_count * settings.stream_count
        )
        self._moved_at_s = now_s = time.monotonic()
        for index, (fd, peer) in enumerate(self._peers.items()):
            peer.begin(shares[index * settings.stream_count :][: settings.stream_count])
            self._transmit(fd, peer, now_s)

    def _turn_until_told(self) -> None:
        self._is_told = False
        while not self._is_told:
            self._turn(10.0)

    def _turn(self, most_wait_s: float) -> None:
        timers = self._timers
        if timers:
            most_wait_s = max(0.0, min(most_wait_s, timers[0][0] - time.monotonic()))
        ready = self._epoll.poll(most_wait_s)
        now_s = time.monotonic()
        for fd, mask in ready:
            peer = self._peers.get(fd)
            if peer is None:
                self._is_ended = not os.read(fd, 4096)
                self._is_told = True
                continue
            was_done = peer.is_done
            if mask & select.EPOLLIN:
                self._moved_at_s = now_s
                peer.receive(now_s)
            self._transmit(fd, peer, now_s)
            self._done_count += peer.is_done and not was_done
        while timers and timers[0][0] <= now_s:
            at_s, fd = heapq.heappop(timers)
            peer = self._peers[fd]
            if peer.armed_at_s != at_s:
                continue  # another was armed since
            peer.armed_at_s = math.inf
            due_s = peer.quic.get_timer()
            if due_s is not None and due_s <= now_s:
                peer.quic.handle_timer(now_s)
                peer.drain()
            self._transmit(fd, peer, now_s)

    def _transmit(self, fd: int, peer: Peer, now_s: float) -> None:
        if self._settings.answer_every:
            due_s = peer.holds_answer_until_s(now_s)
            if due_s is not None:
                self._arm(fd, peer, due_s)
                return
        was_full = peer.socket.is_full
        peer.transmit(now_s)
        if peer.socket.is_full != was_full:
            writable = 0 if was_full else select.EPOLLOUT
            self._epoll.modify(fd, select.EPOLLIN | writable)
        due_s = peer.quic.get_timer()
        if due_s is not None:
            self._arm(fd, peer, due_s)

    def _arm(self, fd: int, peer: Peer, due_s: float) -> None:
        # A later time than the armed one is seen when that comes.
        if due_s < peer.armed_at_s:
            peer.armed_at_s = due_s
            heapq.heappush(self._timers, (due_s, fd))

    def _counts(self) -> dict[str, int]:
        sockets = [peer.socket for peer in self._peers.values()]
        return {
            "received_datagrams": sum(each.received_datagram_count for each in sockets),
            "received_messages": sum(each.received_message_count for each in sockets),
            "sent_datagrams": sum(each.sent_datagram_count for each in sockets),
            "sent_messages": sum(each.sent_message_count for each in sockets),
            "dropped_datagrams": sum(each.drop_count for each in sockets),
        }

    @staticmethod
    def _tell(what: dict[str, Any]) -> None:
        print(json.dumps(what), flush=True)


def split_evenly(total: int, count: int) -> list[int]:
    """
    Split a number into `count` whole parts that differ by one at most.
    """
    base, more = divmod(total, count)
    return [base + (index < more) for index in range(count)]


def parse_load(argv: list[str] | None = None) -> LoadSettings:
    """
    Read the command line.
    """
    parser = argparse.ArgumentParser(prog="benchmarks.load", allow_abbrev=False)
    add = parser.add_argument
    add("--ip", default="127.0.0.1")
    add("--port", type=int, required=True)
    add("--server-name", default="server.quiclab")
    add("--ca-file", type=Path, required=True)
    add("--direction", choices=("download", "upload"), default="download")
    add("--bytes", type=int, required=True)
    add("--connections", type=int, default=1)
    add("--streams", type=int, default=1)
    add("--datagram", type=int, default=1200)
    add("--answer-every", type=int, default=0)
    add("--hold", action="store_true")
    words = parser.parse_args(argv)
    return LoadSettings(
        ip=words.ip,
        port=words.port,
        server_name=words.server_name,
        ca_path=words.ca_file,
        is_upload=words.direction == "upload",
        total_bytes=words.bytes,
        connection_count=words.connections,
        stream_count=words.streams,
        datagram_bytes=words.datagram,
        answer_every=words.answer_every,
        is_held=words.hold,
    )


def main() -> int:
    """
    Be the load; 5 when a byte was wrong or did not come.
    """
    try:
        Load(parse_load()).run()
    except LoadError as error:
        print(json.dumps({"event": "failed", "why": str(error)}), flush=True)
        return 5
    return 0


if __name__ == "__main__":
    sys.exit(main())
