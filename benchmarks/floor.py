"""
`python -m benchmarks.floor`: what aioquic alone needs for the same bytes.

An aioquic server connection joined in memory with the load's own qh3 connection: no
sockets, no pacer, the window capped as our server caps it. CPU time is taken around
what the server side does, and nothing else: aioquic's calls, its events, the perf
logic that writes and checks the content. No server that drives aioquic can be below.

How often the receiver answers is part of the floor, since each ACK costs aioquic
work. It is given: the datagrams that arrived for each that was answered in the run
that the floor is compared with.
"""

import argparse
import datetime as dt
import json
import ssl
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Final

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from qh3.quic import events as qh3_events
from qh3.quic.configuration import QuicConfiguration as Qh3Configuration
from qh3.quic.connection import QuicConnection as Qh3Connection

from benchmarks.load import FLOW_CONTROL_BYTES, LoadError
from server.certificate import make_certificate
from server.congestion import (
    NoPacer,
    capped_congestion_control,
    in_flight_bytes,
    set_pacer,
    window_bytes,
)
from server.content import content_chunk, find_content_error
from server.options import EndpointOptions
from server.perf import ALPN, PerfServer, encode_header

# As server.worker gives them.
_FLOW_CONTROL_BYTES: Final = 16 * 1024 * 1024
_CLIENT: Final = ("127.0.0.1", 40_001)
_SERVER: Final = ("127.0.0.1", 40_002)
_UPLOAD_CHUNK_BYTES: Final = 1024 * 1024
_IDLE_LIMIT: Final = 1_000  # turns in a row in which neither side had anything to say


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorSettings:
    """
    What is moved in memory.

    Args:
        is_upload: Whether the client sends.
        total_bytes: Stream payload in all.
        datagram_bytes: Largest datagram of both ends.
        stream_count: Streams that share it.
        answered_every: Datagrams that the receiver takes before it may answer; 1 or more.
        window_cap_bytes: Largest congestion window of the server.
    """

    is_upload: bool
    total_bytes: int
    datagram_bytes: int
    answered_every: float
    stream_count: int = 1
    window_cap_bytes: int = EndpointOptions().window_cap_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorOutcome:
    """
    What it cost.

    Args:
        total_bytes: Stream payload that arrived.
        server_ns: CPU of the server's side.
        server_datagrams: Datagrams that the server built.
        client_datagrams: Datagrams that the client built.
    """

    total_bytes: int
    server_ns: int
    server_datagrams: int
    client_datagrams: int

    @property
    def server_cpu_s_per_gb(self) -> float:
        """CPU-seconds of the server's side for 10^9 bytes."""
        return self.server_ns / self.total_bytes


class _Batches:
    """
    Says how many datagrams to take next, so that a broken number is met on average.
    """

    def __init__(self, every: float) -> None:
        self._every = max(1.0, every)
        self._owed = 0.0

    def next(self) -> int:
        self._owed += self._every
        count = int(self._owed)
        self._owed -= count
        return count


class _ServerSide:
    """
    The aioquic connection, its perf logic, and the CPU time that both took.
    """

    def __init__(self, settings: FloorSettings, original_cid: bytes) -> None:
        certificate = make_certificate(
            server_name="server.quiclab", addresses=[_SERVER[0]], now=dt.datetime.now(dt.UTC)
        )
        configuration = QuicConfiguration(
            is_client=False,
            alpn_protocols=[ALPN],
            max_datagram_size=settings.datagram_bytes,
            max_data=_FLOW_CONTROL_BYTES,
            max_stream_data=_FLOW_CONTROL_BYTES,
            congestion_control_algorithm=capped_congestion_control(
                "reno", cap_bytes=settings.window_cap_bytes
            ),
        )
        certificate.apply(configuration)
        self.connection = QuicConnection(
            configuration=configuration, original_destination_connection_id=original_cid
        )
        set_pacer(self.connection, NoPacer())
        self.perf = PerfServer(self.connection, is_content_verified=True)
        self.cpu_ns = 0
        self.datagram_count = 0

    def receive(self, datagrams: list[bytes], now_s: float) -> None:
        """Feed datagrams, and hand their events on."""
        connection, perf = self.connection, self.perf
        began_ns = time.thread_time_ns()
        for datagram in datagrams:
            connection.receive_datagram(datagram, _CLIENT, now_s)
        while (event := connection.next_event()) is not None:
            perf.on_event(event, now_s)
        self.cpu_ns += time.thread_time_ns() - began_ns

    def send(self, now_s: float) -> list[bytes]:
        """Write what the window has room for, and build it."""
        connection = self.connection
        began_ns = time.thread_time_ns()
        room_bytes = window_bytes(connection) - in_flight_bytes(connection)
        if room_bytes > 0:
            self.perf.produce(room_bytes)
        built = connection.datagrams_to_send(now_s)
        self.cpu_ns += time.thread_time_ns() - began_ns
        self.datagram_count += len(built)
        return [datagram for datagram, _ in built]

    def handle_timer(self, now_s: float) -> None:
        """Let a timer that is due fire."""
        due_s = self.connection.get_timer()
        if due_s is not None and due_s <= now_s:
            began_ns = time.thread_time_ns()
            self.connection.handle_timer(now_s)
            self.cpu_ns += time.thread_time_ns() - began_ns


class _ClientSide:
    """
    The qh3 connection, and how far its streams are.
    """

    def __init__(self, settings: FloorSettings, now_s: float) -> None:
        self._settings = settings
        self.connection = Qh3Connection(
            configuration=Qh3Configuration(
                alpn_protocols=[ALPN],
                is_client=True,
                server_name="server.quiclab",
                verify_mode=ssl.CERT_NONE,
                max_data=FLOW_CONTROL_BYTES,
                max_stream_data=FLOW_CONTROL_BYTES,
                max_datagram_size=settings.datagram_bytes,
                probe_datagram_size=False,
            )
        )
        self.connection.connect(_SERVER, now_s)
        self.datagram_count = 0
        self.moved_bytes = 0
        self.is_ready = False
        self._offsets: dict[int, int] = {}
        self._left: dict[int, int] = {}

    def begin(self) -> None:
        """Open the streams."""
        settings = self._settings
        base, more = divmod(settings.total_bytes, settings.stream_count)
        for index in range(settings.stream_count):
            share = base + (index < more)
            stream_id = self.connection.get_next_available_stream_id()
            answer_bytes = 0 if settings.is_upload else share
            self.connection.send_stream_data(
                stream_id, encode_header(answer_bytes), not settings.is_upload
            )
            self._offsets[stream_id] = 0
            if settings.is_upload:
                self._left[stream_id] = share

    def receive(self, datagrams: list[bytes], now_s: float) -> None:
        """Feed datagrams, and look at every byte they bring."""
        self.connection.receive_many_datagrams(datagrams, _SERVER, now_s)
        while (event := self.connection.next_event()) is not None:
            if isinstance(event, qh3_events.HandshakeCompleted):
                self.is_ready = True
            elif isinstance(event, qh3_events.ConnectionTerminated):
                raise LoadError(f"the connection ended: {event}")
            elif isinstance(event, qh3_events.StreamDataReceived):
                offset = self._offsets[event.stream_id]
                if find_content_error(event.data, offset) is not None:
                    raise LoadError(f"a wrong byte after {offset} right ones")
                self._offsets[event.stream_id] = offset + len(event.data)
                self.moved_bytes += len(event.data)

    def send(self, now_s: float) -> list[bytes]:
        """Top up uploads, and build what may leave."""
        for stream_id, left_bytes in list(self._left.items()):
            share_bytes = max(64 * 1024, _UPLOAD_CHUNK_BYTES // len(self._left))
            if self.connection.get_send_buffer_size(stream_id) >= share_bytes:
                continue
            size = min(left_bytes, share_bytes)
            chunk = content_chunk(self._offsets[stream_id], size)
            self.connection.send_stream_data(stream_id, chunk, size == left_bytes)
            self._offsets[stream_id] += size
            self._left[stream_id] -= size
            if size == left_bytes:
                del self._left[stream_id]
        built = self.connection.datagrams_to_send(now_s)
        self.datagram_count += len(built)
        return [datagram for datagram, _ in built]


class Floor:
    """
    Joins both sides; time passes as it does, and jumps where nobody has anything to say.
    """

    def __init__(self, settings: FloorSettings) -> None:
        self._settings = settings
        self._skipped_s = 0.0
        self._client = _ClientSide(settings, self._now_s())
        self._server = _ServerSide(
            settings, self._client.connection.original_destination_connection_id
        )

    def _now_s(self) -> float:
        return time.monotonic() + self._skipped_s

    def run(self) -> FloorOutcome:
        """
        Shake hands, move everything; what the server's side needed for the second.

        Raises:
            LoadError: A byte was wrong, or nothing moves any more.
        """
        self._run_until(lambda: self._client.is_ready)
        server, client = self._server, self._client
        server.cpu_ns = server.datagram_count = client.datagram_count = 0
        client.begin()
        total_bytes = self._settings.total_bytes
        if self._settings.is_upload:
            tally = server.perf.tally
            self._run_until(lambda: tally.upload_byte_count >= total_bytes)
            moved_bytes = tally.upload_byte_count
            if tally.content_error_count:
                raise LoadError("the server found a wrong byte")
        else:
            self._run_until(lambda: client.moved_bytes >= total_bytes)
            moved_bytes = client.moved_bytes
        return FloorOutcome(
            total_bytes=moved_bytes,
            server_ns=server.cpu_ns,
            server_datagrams=server.datagram_count,
            client_datagrams=client.datagram_count,
        )

    def _run_until(self, is_done: object) -> None:
        assert callable(is_done)
        is_upload = self._settings.is_upload
        batches = _Batches(self._settings.answered_every)
        to_server: deque[bytes] = deque()
        to_client: deque[bytes] = deque()
        idle_count = 0
        while not is_done():
            to_server.extend(self._client.send(self._now_s()))
            moved = len(to_server)
            while to_server:
                count = batches.next() if is_upload else len(to_server)
                self._server.receive(_take(to_server, count), self._now_s())
                if is_upload:
                    to_client.extend(self._server.send(self._now_s()))
            to_client.extend(self._server.send(self._now_s()))
            moved += len(to_client)
            while to_client:
                count = len(to_client) if is_upload else batches.next()
                self._client.receive(_take(to_client, count), self._now_s())
                if not is_upload:
                    to_server.extend(self._client.send(self._now_s()))
            idle_count = 0 if moved else idle_count + 1
            if not moved:
                self._pass_time()
            if idle_count > _IDLE_LIMIT:
                raise LoadError("nothing moves any more in memory")

    def _pass_time(self) -> None:
        """Let the next timer of either side fire now."""
        connections = (self._client.connection, self._server.connection)
        timers = [at_s for each in connections if (at_s := each.get_timer()) is not None]
        if timers:
            self._skipped_s += max(0.0, min(timers) - self._now_s()) + 1e-6
        now_s = self._now_s()
        due_s = self._client.connection.get_timer()
        if due_s is not None and due_s <= now_s:
            self._client.connection.handle_timer(now_s)
        self._server.handle_timer(now_s)


def _take(waiting: deque[bytes], count: int) -> list[bytes]:
    return [waiting.popleft() for _ in range(min(count, len(waiting)))]


def main() -> int:
    """
    Print what it cost, as one JSON line; 5 when a byte was wrong or did not come.
    """
    parser = argparse.ArgumentParser(prog="benchmarks.floor", allow_abbrev=False)
    add = parser.add_argument
    add("--direction", choices=("download", "upload"), default="download")
    add("--bytes", type=int, default=64_000_000)
    add("--datagram", type=int, default=1200)
    add("--streams", type=int, default=1)
    add("--answered-every", type=float, default=20.0)
    words = parser.parse_args()
    settings = FloorSettings(
        is_upload=words.direction == "upload",
        total_bytes=words.bytes,
        datagram_bytes=words.datagram,
        stream_count=words.streams,
        answered_every=words.answered_every,
    )
    try:
        outcome = Floor(settings).run()
    except LoadError as error:
        print(json.dumps({"event": "failed", "why": str(error)}), flush=True)
        return 5
    print(json.dumps({"event": "done", **asdict(outcome)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
