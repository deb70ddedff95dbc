"""
One connection's load against the perf server, joined in memory.
"""

import datetime as dt
import sys
from collections.abc import Callable
from types import FrameType

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import HandshakeCompleted, QuicEvent, StreamDataReceived

from client.plan import StreamPlan
from client.session import OPEN_STREAM_LIMIT, Session, StreamLoad
from server.certificate import ServerCertificate, make_certificate
from server.perf import PerfServer
from tests.quic_pair import Application, QuicPair


@pytest.fixture(scope="module")
def certificate() -> ServerCertificate:
    """
    One certificate for all pairs of this module.
    """
    return make_certificate(server_name="server.test", addresses=[], now=dt.datetime.now(dt.UTC))


class Client:
    """A session as the load drives it: observed once per turn, closed when complete."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.now_s = 1000.0

    def on_event(self, event: QuicEvent, now_s: float) -> None:
        """Pass it on."""
        self.session.on_event(event, now_s)

    def produce(self, wanted_bytes: int) -> None:
        """Observe, then top up."""
        self.now_s += 0.001
        self.session.observe(self.now_s)
        if self.session.is_complete:
            self.session.end("load complete")
        self.session.produce(wanted_bytes)


class Load:
    """A session and a server that run against each other."""

    def __init__(
        self,
        certificate: ServerCertificate,
        *plans: StreamPlan,
        make_server: Callable[[QuicConnection], Application] | None = None,
        configuration: QuicConfiguration | None = None,
        loses: Callable[[int], bool] = lambda _number: False,
    ) -> None:
        self.pair = QuicPair(
            certificate,
            make_client=lambda connection: Client(
                Session(connection, index=0, plans=plans, is_content_verified=True, began_s=1000.0)
            ),
            make_server=make_server or _verifying_server,
            client_configuration=configuration,
            loses=loses,
        )
        client = self.pair.client_application
        assert isinstance(client, Client)
        self.client = client
        self.session = client.session

    @property
    def server(self) -> PerfServer:
        """The perf server at the other end."""
        application = self.pair.server_application
        assert isinstance(application, PerfServer)
        return application

    def run(self) -> Session:
        """
        Until the connection has ended.
        """
        self.pair.run_until(lambda: self.session.is_over)
        return self.session

    def stop(self) -> None:
        """
        Time is up.
        """
        self.session.stop()


def _verifying_server(connection: QuicConnection) -> PerfServer:
    return PerfServer(connection, is_content_verified=True)


def test_download_brings_every_byte_and_closes(certificate: ServerCertificate) -> None:
    """
    All streams end by FIN with the bytes asked for, and the client closes without an error.
    """
    load = Load(certificate, StreamPlan(100_000, 0), StreamPlan(0, 0), StreamPlan(1, 0))

    session = load.run()

    assert session.find_error() == ""
    assert [stream.received_bytes for stream in session.streams] == [100_000, 0, 1]
    assert {stream.ended_by for stream in session.streams} == {"fin"}
    assert session.received_bytes == 100_001
    assert session.close is not None
    assert (session.close.by, session.close.error_code) == ("client", 0)


def test_times_are_in_the_order_of_what_happened(certificate: ServerCertificate) -> None:
    """
    Handshake, opening, first byte and completion follow each other.
    """
    session = Load(certificate, StreamPlan(100_000, 0)).run()

    (stream,) = session.streams
    assert session.handshake_s is not None
    assert stream.first_byte_s is not None
    assert stream.completed_s is not None
    assert 1000.0 < session.handshake_s <= stream.opened_s < stream.first_byte_s
    assert stream.first_byte_s < stream.completed_s


def test_upload_is_complete_only_when_the_server_has_all_of_it(
    certificate: ServerCertificate,
) -> None:
    """
    What counts as sent was acknowledged, and the server saw every byte in its place.
    """
    load = Load(certificate, StreamPlan(0, 300_000), StreamPlan(0, 5))

    session = load.run()

    assert session.find_error() == ""
    assert session.sent_bytes == 300_005
    assert [stream.sent_bytes for stream in session.streams] == [300_000, 5]
    assert load.server.tally.upload_byte_count == 300_005
    assert load.server.tally.content_error_count == 0


def test_both_directions_at_once_survive_loss(certificate: ServerCertificate) -> None:
    """
    With every ninth datagram lost, downloads and uploads still come to their exact ends.
    """
    load = Load(
        certificate,
        StreamPlan(80_000, 0),
        StreamPlan(0, 80_000),
        loses=lambda number: number > 30 and number % 9 == 0,
    )

    session = load.run()

    assert session.find_error() == ""
    assert (session.received_bytes, session.sent_bytes) == (80_000, 80_000)
    assert load.server.tally.content_error_count == 0


def test_endless_streams_end_when_time_is_up(certificate: ServerCertificate) -> None:
    """
    STOP_SENDING ends the answer, FIN the upload, and neither counts as an error.
    """
    load = Load(certificate, StreamPlan(None, 0), StreamPlan(0, None))
    load.pair.run_until(
        lambda: load.session.received_bytes > 200_000 and load.session.sent_bytes > 200_000
    )

    load.stop()
    session = load.run()

    assert session.find_error() == ""
    assert [stream.ended_by for stream in session.streams] == ["stop", "fin"]
    assert session.sent_bytes == load.server.tally.upload_byte_count
    assert load.server.tally.content_error_count == 0
    assert session.close is not None
    assert session.close.by == "client"


def test_time_ends_a_load_with_bytes_too(certificate: ServerCertificate) -> None:
    """
    Bytes and a duration: time came first, so what is missing is no error.
    """
    load = Load(certificate, StreamPlan(10**9, 0), StreamPlan(0, 10**9))
    load.pair.run_until(lambda: load.session.received_bytes > 50_000)

    load.stop()
    session = load.run()

    assert session.find_error() == ""
    assert 50_000 < session.received_bytes < 10**9


def test_more_streams_than_may_be_open_take_turns(certificate: ServerCertificate) -> None:
    """
    Hundreds of tiny streams all come, and never more than the limit are open.
    """
    load = Load(certificate, *[StreamPlan(10, 0)] * (3 * OPEN_STREAM_LIMIT))
    most_open = 0
    while not load.session.is_over:
        load.pair.turn()
        ended_count = sum(stream.completed_s is not None for stream in load.session.streams)
        most_open = max(most_open, len(load.session.streams) - ended_count)

    assert load.session.find_error() == ""
    assert load.session.received_bytes == 3000
    assert most_open == OPEN_STREAM_LIMIT


def test_progress_grows_with_everything_that_moves(certificate: ServerCertificate) -> None:
    """
    Handshake, bytes in, bytes acknowledged and the end all count as progress.
    """
    load = Load(certificate, StreamPlan(50_000, 0), StreamPlan(0, 50_000))
    seen = [load.session.progress]
    while not load.session.is_over:
        load.pair.turn()
        seen.append(load.session.progress)

    assert seen == sorted(seen)
    assert seen[0] == 0
    assert seen[-1] > 100_000


class ShortServer:
    """Answers every stream with three bytes, whatever was asked."""

    def __init__(self, connection: QuicConnection, answer: bytes = b"\0\1\2") -> None:
        self.connection = connection
        self.answer = answer
        self.answered: set[int] = set()

    def on_event(self, event: QuicEvent, now_s: float) -> None:
        """Answer at the first byte."""
        if isinstance(event, StreamDataReceived) and event.stream_id not in self.answered:
            self.answered.add(event.stream_id)
            self.connection.send_stream_data(event.stream_id, self.answer, end_stream=True)

    def produce(self, wanted_bytes: int) -> None:
        """Nothing is left to send."""


def test_answer_that_is_too_short_is_an_error(certificate: ServerCertificate) -> None:
    """
    The length is always checked, and the error says which stream, how much and of what.
    """
    session = Load(certificate, StreamPlan(10, 0), make_server=ShortServer).run()

    assert session.find_error() == (
        "stream 0 of connection 0: ended after 3 bytes; 10 bytes was asked for"
    )


def test_wrong_content_is_an_error(certificate: ServerCertificate) -> None:
    """
    With verification on, the first wrong byte is told by its place.
    """
    session = Load(
        certificate,
        StreamPlan(3, 0),
        make_server=lambda connection: ShortServer(connection, b"\0\1\7"),
    ).run()

    assert session.find_error() == ("stream 0 of connection 0: byte 2 is not what belongs there")


class RefusingServer(ShortServer):
    """Resets every stream, or stops every upload, or closes; what a test sets."""

    def __init__(self, connection: QuicConnection, how: str) -> None:
        super().__init__(connection)
        self.how = how

    def on_event(self, event: QuicEvent, now_s: float) -> None:
        """Refuse at the first byte."""
        if isinstance(event, StreamDataReceived) and event.stream_id not in self.answered:
            self.answered.add(event.stream_id)
            if self.how == "reset":
                self.connection.reset_stream(event.stream_id, 9)
            elif self.how == "stop":
                self.connection.stop_stream(event.stream_id, 9)
                self.connection.send_stream_data(event.stream_id, b"", end_stream=True)
        if isinstance(event, HandshakeCompleted) and self.how == "close":
            self.connection.close(error_code=9, reason_phrase="not today")


@pytest.mark.parametrize(
    ("how", "plan", "words"),
    [
        ("reset", StreamPlan(10, 0), "was reset by the server (code 9) after 0 bytes"),
        ("stop", StreamPlan(0, 10**6), "the server stopped the upload (code 9)"),
        ("close", StreamPlan(10, 0), "closed by the server (application error 9): not today"),
    ],
)
def test_server_that_refuses_is_told_in_its_own_words(
    certificate: ServerCertificate, how: str, plan: StreamPlan, words: str
) -> None:
    """
    Reset, STOP_SENDING and close by the server end the load with code and reason.
    """
    session = Load(
        certificate, plan, make_server=lambda connection: RefusingServer(connection, how)
    ).run()

    assert words in session.find_error()


def test_certificate_that_is_refused_is_told_with_the_alert(
    certificate: ServerCertificate,
) -> None:
    """
    A wrong name in the certificate ends the load with TLS's own reason, on this side.
    """
    other = ServerCertificate(
        certificate=certificate.certificate,
        chain=(),
        private_key=certificate.private_key,
        server_name="elsewhere.test",
        trust_pem=certificate.trust_pem,
    )

    session = Load(other, StreamPlan(10, 0)).run()

    assert session.close is not None
    assert session.close.by == "client"
    assert "TLS alert 42 (bad_certificate)" in session.find_error()
    assert "elsewhere.test" in session.find_error()


def test_server_that_falls_silent_is_told_as_silence(certificate: ServerCertificate) -> None:
    """
    When nothing comes any more, the idle timeout ends the load, and blames neither side.
    """
    configuration = QuicConfiguration(alpn_protocols=["perf"], idle_timeout=2.0)
    load = Load(
        certificate,
        StreamPlan(10**6, 0),
        configuration=configuration,
        loses=lambda number: number > 60,
    )

    session = load.run()

    assert session.close is not None
    assert session.close.by == "idle"
    assert "neither side was heard" in session.find_error()


def test_end_closes_in_the_middle(certificate: ServerCertificate) -> None:
    """
    A load that is given up closes in order, with the reason on the wire.
    """
    load = Load(certificate, StreamPlan(None, 0), StreamPlan(0, None))
    load.pair.run(30)

    load.session.end("interrupted", error_code=1)
    session = load.run()

    assert session.close is not None
    assert (session.close.by, session.close.reason) == ("client", "interrupted")
    assert "interrupted" in session.find_error()


@pytest.mark.parametrize("loses_every", [0, 7], ids=["no-loss", "every-seventh-lost"])
def test_both_ends_count_the_same_of_streams_that_end(
    certificate: ServerCertificate, loses_every: int
) -> None:
    """
    What came on streams that ended by themselves is what was sent; of stopped ones no more came.
    """
    load = Load(
        certificate,
        *(StreamPlan(100_000, 5_000), StreamPlan(0, 70_000), StreamPlan(None, 0)),
        loses=lambda number: bool(loses_every) and number % loses_every == 0,
    )
    load.pair.run_until(lambda: load.session.ended.completed_count == 2)
    load.stop()

    ended, tally = load.run().ended, load.server.tally

    assert (2, 1) == (ended.completed_count, ended.stopped_count)
    assert (2, 1) == (tally.download_completed_stream_count, tally.download_stopped_stream_count)
    assert 100_000 == ended.completed_received_bytes == tally.download_completed_byte_count
    assert 0 < ended.stopped_received_bytes <= tally.download_stopped_byte_count
    assert 75_000 == ended.completed_sent_bytes == tally.upload_completed_byte_count


def test_an_answer_that_is_stopped_when_all_of_it_is_under_way_counts_as_stopped(
    certificate: ServerCertificate,
) -> None:
    """
    The server has handed its FIN over, and hears then that the client wants no more.
    """
    load = Load(certificate, StreamPlan(30_000, 0))
    load.pair.run_until(lambda: load.server.tally.download_completed_stream_count == 1)
    load.stop()

    ended, tally = load.run().ended, load.server.tally

    assert (0, 1) == (ended.completed_count, ended.stopped_count)
    assert (0, 0) == (tally.download_completed_stream_count, tally.download_completed_byte_count)
    assert 30_000 == tally.download_stopped_byte_count
    assert ended.stopped_received_bytes <= 30_000


def test_only_so_many_streams_are_remembered_one_by_one(certificate: ServerCertificate) -> None:
    """
    Of the others only the sums are kept, so that memory does not grow with a load.
    """
    session = _run_many_streams(certificate)
    assert (20, 250, 2_500) == (
        len(session.streams),
        session.ended.completed_count,
        session.ended.completed_received_bytes,
    )


def test_a_stream_is_let_go_without_a_look_at_the_others(certificate: ServerCertificate) -> None:
    """
    With 10,000 remembered a search would cost 3 ms for each stream that ends.
    """
    comparisons = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is StreamLoad.__eq__.__code__:
            comparisons.append(frame.f_lineno)

    sys.setprofile(note)
    try:
        _run_many_streams(certificate)
    finally:
        sys.setprofile(None)
    assert [] == comparisons


def _run_many_streams(certificate: ServerCertificate) -> Session:
    pair = QuicPair(
        certificate,
        make_client=lambda connection: Client(
            Session(
                connection,
                index=0,
                plans=[StreamPlan(10, 0)] * 250,
                is_content_verified=True,
                began_s=1000.0,
                kept_count=20,
            )
        ),
        make_server=_verifying_server,
    )
    client = pair.client_application
    assert isinstance(client, Client)
    pair.run_until(lambda: client.session.is_over)
    return client.session
