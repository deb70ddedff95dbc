"""
The process that callgrind watches: our server and its peer in one thread.

    python -m benchmarks.instructions_work WORK     (a Work as JSON; a Done comes back)

Nothing but the server's turns is collected, so that the peer (qh3) costs nothing.
Everything that could differ from run to run is held: time goes on by a fixed step
a turn, random bytes come from a seed, datagrams are waited for by number. What the
kernel does is not counted; callgrind sees a process's own instructions alone.
"""

import array
import gc
import inspect
import json
import os
import random
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from types import CodeType
from typing import Any, Final

from benchmarks.counting import _counting

# Before anything takes a reference to the real ones.
time.monotonic = _counting.now_s
os.urandom = random.Random(4).randbytes  # noqa: S311 - the same keys' worth in every run

from aioquic.quic.configuration import QuicConfiguration as AioquicConfiguration  # noqa: E402
from aioquic.quic.connection import QuicConnection as AioquicConnection  # noqa: E402
from qh3.quic.configuration import QuicConfiguration  # noqa: E402
from qh3.quic.connection import QuicConnection  # noqa: E402
from qh3.quic.events import HandshakeCompleted, StreamDataReceived  # noqa: E402

from benchmarks.instructions_cases import CodeName, Done, Place, Work  # noqa: E402
from server import congestion  # noqa: E402
from server.certificate import ServerCertificate  # noqa: E402
from server.content import CONTENT_PERIOD, content_chunk, find_content_error  # noqa: E402
from server.perf import ALPN, ENDLESS, PerfServer, encode_header  # noqa: E402
from server.settings import parse_settings  # noqa: E402
from server.starting import find_certificate, open_sockets  # noqa: E402
from server.worker import FLOW_CONTROL_BYTES, Worker, make_configuration  # noqa: E402

# What the clock goes on by for each datagram: about what one takes at both ends here, so
# that timers (an ACK is due after 1 ms) fall where they do in a real transfer.
STEP_S: Final = 0.00002
BOTH_ENDS_STEP_S: Final = 0.00005
TURN_STEP_S: Final = 0.0001
WINDOW_CAP_BYTES: Final = 2_500_000  # as the server's default
MOST_TURNS: Final = 100_000
MOST_LOOKS: Final = 2_000
LARGEST_MESSAGE_BYTES: Final = 65_507
_UDP_SEGMENT: Final = 103  # linux/udp.h
_UDP_GRO: Final = 104
_SOL_UDP: Final = 17
_SO_RCVBUFFORCE: Final = 33
_PEER_BUFFER_BYTES: Final = 8 * 1024 * 1024
_UPLOAD_CHUNK_BYTES: Final = 256 * 1024


class Peer:
    """
    qh3's end of the connection, with what it sends and checks; no I/O.
    """

    def __init__(self, certificate: ServerCertificate, work: Work) -> None:
        configuration = QuicConfiguration(
            alpn_protocols=[ALPN],
            server_name=certificate.server_name,
            max_datagram_size=work.datagram_bytes,
            max_data=2**40,
            max_stream_data=2**40,
            probe_datagram_size=False,
        )
        configuration.load_verify_locations(cadata=certificate.trust_pem.encode())
        self.connection = QuicConnection(configuration=configuration)
        self.received_bytes = 0
        self.sent_bytes = 0
        self.is_up = False
        self._is_upload = work.direction == "upload"

    def look(self) -> None:
        """
        Take events, check what came, and have something to send.
        """
        connection = self.connection
        while (event := connection.next_event()) is not None:
            if isinstance(event, HandshakeCompleted):
                self.is_up = True
                header = encode_header(0 if self._is_upload else ENDLESS)
                connection.send_stream_data(0, header, end_stream=not self._is_upload)
            elif isinstance(event, StreamDataReceived):
                if find_content_error(event.data, self.received_bytes) is not None:
                    raise AssertionError(f"a wrong byte after {self.received_bytes}")
                self.received_bytes += len(event.data)
        if self._is_upload and self.is_up:
            while connection.get_send_buffer_size(0) < 2 * _UPLOAD_CHUNK_BYTES:
                chunk = content_chunk(self.sent_bytes % CONTENT_PERIOD, _UPLOAD_CHUNK_BYTES)
                connection.send_stream_data(0, chunk)
                self.sent_bytes += _UPLOAD_CHUNK_BYTES

    def take(self) -> list[bytes]:
        """
        What it has to send now.
        """
        now_s = _counting.now_s()
        timer_s = self.connection.get_timer()
        if timer_s is not None and timer_s <= now_s:
            self.connection.handle_timer(now_s)
        self.look()
        return [data for data, _ in self.connection.datagrams_to_send(now_s)]


class ServerWork:
    """
    The server's own worker on a socket of its own, and the peer on another.
    """

    def __init__(self, work: Work) -> None:
        settings = parse_settings(_options(work))
        certificate = find_certificate(settings)
        (sock,) = open_sockets(settings)
        self._worker = Worker(
            settings, sock, index=0, configuration=make_configuration(settings, certificate)
        )
        self._address = sock.getsockname()
        self._work = work
        self._peer = Peer(certificate, work)
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._sock.bind(("127.0.0.1", 0))
        self._sock.setsockopt(_SOL_UDP, _UDP_GRO, 1)
        _enlarge(self._sock)
        self._waiting: deque[bytes] = deque()
        self._sent_count = 0
        self._received_count = 0
        self._peer.connection.connect(self._address, now=_counting.now_s())

    @property
    def is_up(self) -> bool:
        """The handshake is done."""
        return self._peer.is_up

    def turn(self, call: Callable[[Callable[[], None]], None]) -> None:
        """
        The peer says what it has to say, then the server has a turn, then the peer reads.
        """
        _counting.advance_s(TURN_STEP_S)
        self._send()
        call(self._turn_server)
        self._read()

    def counts(self) -> tuple[int, int, int]:
        """
        Datagrams and answers so far, and bytes of payload.
        """
        report = self._worker.report()
        sent, read = report["tx"]["datagram_sent_count"], report["rx"]["datagram_read_count"]
        if self._work.direction == "download":
            return sent, read, self._peer.received_bytes
        return read, sent, report["perf"]["upload_byte_count"]

    def _turn_server(self) -> None:
        self._worker.loop.turn(most_wait_s=0.0)

    def _send(self) -> None:
        waiting = self._waiting
        waiting.extend(self._peer.take())
        most = self._work.answer_datagrams if self._work.direction == "upload" else len(waiting)
        while waiting and most > 0:
            train = [waiting.popleft()]
            while (
                waiting
                and len(train) < min(self._work.segment_count, most)
                and len(waiting[0]) == len(train[0])
                and (len(train) + 1) * len(train[0]) <= LARGEST_MESSAGE_BYTES
            ):
                train.append(waiting.popleft())
            control = [(_SOL_UDP, _UDP_SEGMENT, array.array("H", [len(train[0])]))]
            self._sock.sendmsg(train, control if len(train) > 1 else [], 0, self._address)
            _counting.advance_s(STEP_S * len(train))
            self._sent_count += len(train)
            most -= len(train)

    def _read(self) -> None:
        """
        Read all that the server says it sent; loopback may be late with it.
        """
        sent_count = self._worker.report()["tx"]["datagram_sent_count"]
        unanswered_count = 0
        for _ in range(MOST_LOOKS):
            if self._received_count >= sent_count:
                break
            for datagrams in self._messages():
                _counting.advance_s(STEP_S * len(datagrams))
                self._received_count += len(datagrams)
                unanswered_count += len(datagrams)
                self._peer.connection.receive_many_datagrams(
                    datagrams, self._address, _counting.now_s()
                )
                self._peer.look()
                if unanswered_count >= self._work.answer_datagrams:
                    unanswered_count = 0
                    self._waiting.extend(self._peer.take())
        else:
            raise AssertionError(f"{self._received_count} of {sent_count} datagrams have arrived")

    def _messages(self) -> Iterator[list[bytes]]:
        while True:
            try:
                data, control, _, _ = self._sock.recvmsg(65_535, 64)
            except BlockingIOError:
                return
            segment_bytes = len(data)
            for level, kind, value in control:
                if (level, kind) == (_SOL_UDP, _UDP_GRO):
                    segment_bytes = int.from_bytes(value[:4], sys.byteorder)
            yield [data[at : at + segment_bytes] for at in range(0, len(data), segment_bytes)]


class MemoryWork:
    """
    aioquic's server connection and a peer, joined in memory: nothing else is counted.
    """

    def __init__(self, work: Work) -> None:
        settings = parse_settings(_options(work))
        certificate = find_certificate(settings)
        self._work = work
        self._is_upload = work.direction == "upload"
        self._peer = Peer(certificate, work)
        self._peer.connection.connect(("127.0.0.1", 2), now=_counting.now_s())
        self._server = AioquicConnection(
            configuration=_floor_configuration(certificate, work),
            original_destination_connection_id=self._peer.connection.original_destination_connection_id,
        )
        congestion.set_pacer(self._server, congestion.NoPacer())
        self._application = PerfServer(self._server, is_content_verified=True)
        self._to_server: deque[bytes] = deque()
        self._to_peer: list[bytes] = []
        self._sent_count = self._read_count = 0

    @property
    def is_up(self) -> bool:
        """The handshake is done."""
        return self._peer.is_up

    def turn(self, call: Callable[[Callable[[], None]], None]) -> None:
        """
        The peer says what it has to say, then the server answers it.
        """
        _counting.advance_s(TURN_STEP_S)
        self._to_server.extend(self._peer.take())
        if self._is_upload:
            _counting.advance_s(STEP_S * self._work.answer_datagrams)
        call(self._turn_server)
        unanswered_count = 0
        work = self._work
        size = min(work.segment_count, LARGEST_MESSAGE_BYTES // work.datagram_bytes)
        for begin in range(0, len(self._to_peer), size):
            train = self._to_peer[begin : begin + size]
            unanswered_count += len(train)
            _counting.advance_s(STEP_S * len(train))
            self._peer.connection.receive_many_datagrams(train, ("127.0.0.1", 2), _counting.now_s())
            self._peer.look()
            if unanswered_count >= work.answer_datagrams:
                unanswered_count = 0
                self._to_server.extend(self._peer.take())

    def counts(self) -> tuple[int, int, int]:
        """
        Datagrams and answers so far, and bytes of payload.
        """
        if self._is_upload:
            return self._read_count, self._sent_count, self._application.tally.upload_byte_count
        return self._sent_count, self._read_count, self._peer.received_bytes

    def _turn_server(self) -> None:
        server, waiting = self._server, self._to_server
        now_s = _counting.now_s()
        most = self._work.answer_datagrams if self._is_upload else len(waiting)
        while waiting and most:
            server.receive_datagram(waiting.popleft(), ("127.0.0.1", 1), now_s)
            self._read_count += 1
            most -= 1
        while (event := server.next_event()) is not None:
            self._application.on_event(event, now_s)
        timer_s = server.get_timer()
        if timer_s is not None and timer_s <= now_s:
            server.handle_timer(now_s)
        room_bytes = congestion.window_bytes(server) - congestion.in_flight_bytes(server)
        if room_bytes > 0:
            self._application.produce(room_bytes)
        self._to_peer = [data for data, _ in server.datagrams_to_send(now_s)]
        self._sent_count += len(self._to_peer)


class BothEndsWork:
    """
    aioquic at both ends, joined in memory, all of it counted: the reference.
    """

    def __init__(self, work: Work) -> None:
        settings = parse_settings(_options(work))
        certificate = find_certificate(settings)
        self._work = work
        configuration = AioquicConfiguration(
            alpn_protocols=[ALPN],
            server_name=certificate.server_name,
            max_datagram_size=work.datagram_bytes,
            cadata=certificate.trust_pem.encode(),
            max_data=FLOW_CONTROL_BYTES,
            max_stream_data=FLOW_CONTROL_BYTES,
        )
        self._client = AioquicConnection(configuration=configuration)
        self._client.connect(("127.0.0.1", 2), now=_counting.now_s())
        self._server = AioquicConnection(
            configuration=_floor_configuration(certificate, work),
            original_destination_connection_id=self._client.original_destination_connection_id,
        )
        congestion.set_pacer(self._server, congestion.NoPacer())
        self._application = PerfServer(self._server)
        self._client.send_stream_data(0, encode_header(ENDLESS), end_stream=True)
        self._sent_count = self._read_count = self._received_bytes = 0

    @property
    def is_up(self) -> bool:
        """Payload flows."""
        return self._received_bytes > 0

    def turn(self, call: Callable[[Callable[[], None]], None]) -> None:
        """
        Both ends have a turn.
        """
        _counting.advance_s(0.001)  # an acknowledgement is due by then
        call(self._turn_both)

    def counts(self) -> tuple[int, int, int]:
        """
        Datagrams and answers so far, and bytes of payload.
        """
        return self._sent_count, self._read_count, self._received_bytes

    def _turn_both(self) -> None:
        now_s = _counting.now_s()
        server, client = self._server, self._client
        for data, _ in client.datagrams_to_send(now_s):
            server.receive_datagram(data, ("127.0.0.1", 1), now_s)
            self._read_count += 1
        while (event := server.next_event()) is not None:
            self._application.on_event(event, now_s)
        room_bytes = congestion.window_bytes(server) - congestion.in_flight_bytes(server)
        if room_bytes > 0:
            self._application.produce(room_bytes)
        for count, (data, _) in enumerate(server.datagrams_to_send(now_s), start=1):
            client.receive_datagram(data, ("127.0.0.1", 2), now_s)
            self._sent_count += 1
            if count % self._work.answer_datagrams == 0:
                _counting.advance_s(BOTH_ENDS_STEP_S * self._work.answer_datagrams)
                now_s = _counting.now_s()
                for answer, _ in client.datagrams_to_send(now_s):
                    server.receive_datagram(answer, ("127.0.0.1", 1), now_s)
                    self._read_count += 1
        while (event := client.next_event()) is not None:
            data = getattr(event, "data", b"")
            self._received_bytes += len(data)
        for connection in (server, client):
            timer_s = connection.get_timer()
            if timer_s is not None and timer_s <= now_s:
                connection.handle_timer(now_s)


def _options(work: Work) -> list[str]:
    options = ["--datagram", str(work.datagram_bytes), "--max-segments", str(work.segment_count)]
    options += ["--max-window", str(WINDOW_CAP_BYTES), "--probes", "off", "--verify-content"]
    return options


def _floor_configuration(certificate: ServerCertificate, work: Work) -> AioquicConfiguration:
    configuration = AioquicConfiguration(
        is_client=False,
        alpn_protocols=[ALPN],
        max_datagram_size=work.datagram_bytes,
        max_data=FLOW_CONTROL_BYTES,
        max_stream_data=FLOW_CONTROL_BYTES,
        congestion_control_algorithm=congestion.capped_congestion_control(
            "reno", cap_bytes=WINDOW_CAP_BYTES
        ),
    )
    certificate.apply(configuration)
    return configuration


def _enlarge(sock: socket.socket) -> None:
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _PEER_BUFFER_BYTES)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _PEER_BUFFER_BYTES)


def _wrap_aioquic() -> None:
    """
    Count what the server asks of a connection apart from what it does itself.
    """
    for name, function in vars(AioquicConnection).copy().items():
        if inspect.isfunction(function) and not name.startswith("_"):
            setattr(AioquicConnection, name, _counting.InAioquic(function))


_PLACES: Final[dict[Place, Any]] = {
    "server": ServerWork,
    "floor": MemoryWork,
    "memory": BothEndsWork,
}


def run(work: Work) -> Done:
    """
    Warm up, then count.
    """
    if work.place == "server":
        _wrap_aioquic()
    doing = _PLACES[work.place](work)
    _turn_until(doing, work.warm_up_count, _plainly)
    gc.collect()
    gc.freeze()  # this process's modules are not the server's
    before = doing.counts()
    if work.is_followed:
        _counting.follow_calls()
    _counting.start()
    turn_count = _turn_until(doing, before[0] + work.datagram_count, _counting.measured)
    _counting.stop()
    after = doing.counts()
    return Done(
        datagram_count=after[0] - before[0],
        answer_count=after[1] - before[1],
        payload_bytes=after[2] - before[2],
        turn_count=turn_count,
        arcs=tuple(
            (None if caller is None else _name(caller), _name(called))
            for caller, called in _counting.arcs()
        ),
    )


def _plainly(call: Callable[[], None]) -> None:
    call()


def _turn_until(doing: Any, datagram_count: int, call: Any) -> int:
    for turn in range(MOST_TURNS):
        if doing.is_up and doing.counts()[0] >= datagram_count:
            return turn
        doing.turn(call)
    raise AssertionError(f"{doing.counts()[0]} of {datagram_count} datagrams in {MOST_TURNS} turns")


def _name(code: CodeType) -> CodeName:
    return code.co_filename, code.co_firstlineno, code.co_qualname


def main() -> None:
    """
    Do the work that the command line names.
    """
    print(json.dumps(asdict(run(Work(**json.loads(sys.argv[1]))))))


if __name__ == "__main__":
    main()
