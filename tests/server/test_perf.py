"""
The perf server, joined in memory with an aioquic client that no part of the lab drives.
"""

import datetime as dt
from collections.abc import Callable

import pytest
from aioquic.quic.events import StreamDataReceived, StreamReset
from hypothesis import given, strategies

from server.certificate import ServerCertificate, make_certificate
from server.congestion import window_bytes
from server.content import LARGEST_CHUNK_BYTES, TURN_BYTES, content_chunk, find_content_error
from server.internals import unsent_bytes
from server.perf import ENDLESS, PerfServer, encode_header, parse_header
from tests.quic_pair import QuicPair, Recorder


@pytest.fixture(scope="module")
def certificate() -> ServerCertificate:
    """
    One certificate for all pairs of this module.
    """
    return make_certificate(server_name="server.test", addresses=[], now=dt.datetime.now(dt.UTC))


class Session:
    """A client that notes what it receives, against a perf server."""

    def __init__(
        self,
        certificate: ServerCertificate,
        *,
        loses: Callable[[int], bool] = lambda _number: False,
    ) -> None:
        self.recorder = Recorder()
        self.pair = QuicPair(
            certificate,
            make_client=lambda _connection: self.recorder,
            make_server=lambda connection: PerfServer(connection, is_content_verified=True),
            loses=loses,
        )
        self.client = self.pair.client
        application = self.pair.server_application
        assert isinstance(application, PerfServer)
        self.perf = application
        self.pair.run(20)

    def send(self, data: bytes, *, is_uni: bool = False, is_end: bool = True) -> int:
        """
        Open a stream with some first bytes; its id.
        """
        stream_id: int = self.client.get_next_available_stream_id(is_unidirectional=is_uni)
        self.client.send_stream_data(stream_id, data, is_end)
        return stream_id

    def received(self, stream_id: int) -> bytes:
        """
        All bytes that came on a stream so far.
        """
        return b"".join(one.data for one in self._data_events(stream_id))

    def has_ended(self, stream_id: int) -> bool:
        """
        Whether the stream's FIN came.
        """
        return any(one.end_stream for one in self._data_events(stream_id))

    def reset_of(self, stream_id: int) -> StreamReset | None:
        """
        The reset of a stream, if it came.
        """
        resets = (one for one in self.recorder.events if isinstance(one, StreamReset))
        return next((one for one in resets if one.stream_id == stream_id), None)

    def is_all_forgotten(self) -> bool:
        """
        Whether the server remembers no stream at all.
        """
        return self.perf.open_request_count == 0 and self.perf.open_answer_count == 0

    def _data_events(self, stream_id: int) -> list[StreamDataReceived]:
        return [
            one
            for one in self.recorder.events
            if isinstance(one, StreamDataReceived) and one.stream_id == stream_id
        ]


@given(strategies.integers(min_value=0, max_value=2**64 - 1))
def test_parse_header_reads_what_encode_header_wrote(answer_bytes: int) -> None:
    """
    Every number of bytes survives the header, and the header is 8 bytes long.
    """
    assert parse_header(encode_header(answer_bytes)) == answer_bytes
    assert len(encode_header(answer_bytes)) == 8


def test_header_is_big_endian() -> None:
    """
    The bytes on the wire are those of the draft.
    """
    assert encode_header(258) == b"\0\0\0\0\0\0\1\2"


@pytest.mark.parametrize("header", [b"", b"1234567", b"123456789"], ids=len)
def test_parse_header_refuses_another_length(header: bytes) -> None:
    """
    Anything but 8 bytes is told with its length.
    """
    with pytest.raises(ValueError, match=f"not {len(header)}"):
        parse_header(header)


@given(strategies.integers(0, 10**12), strategies.integers(0, 2000))
def test_content_at_an_offset_is_the_offset_mod_251(offset: int, length_bytes: int) -> None:
    """
    Byte i is i mod 251, wherever a chunk begins.
    """
    expected = bytes(i % 251 for i in range(offset, offset + length_bytes))
    assert content_chunk(offset, length_bytes) == expected


@given(strategies.integers(0, 10**12), strategies.integers(0, 3000), strategies.data())
def test_find_content_error_finds_the_one_wrong_byte(
    offset: int, length_bytes: int, data: strategies.DataObject
) -> None:
    """
    Right content has no error; one flipped byte is found where it is.
    """
    content = bytearray(content_chunk(offset, length_bytes))
    assert find_content_error(bytes(content), offset) is None
    if length_bytes:
        wrong = data.draw(strategies.integers(0, length_bytes - 1))
        content[wrong] ^= data.draw(strategies.integers(1, 255))
        assert find_content_error(bytes(content), offset) == offset + wrong


def test_find_content_error_looks_beyond_the_first_chunk() -> None:
    """
    Data longer than the block that is kept in memory is checked to its last byte.
    """
    length_bytes = 2 * LARGEST_CHUNK_BYTES + 5
    content = bytearray(bytes(range(251)) * (length_bytes // 251 + 1))[:length_bytes]
    assert find_content_error(bytes(content), 0) is None
    content[-1] ^= 1
    assert find_content_error(bytes(content), 0) == length_bytes - 1


@pytest.mark.parametrize("answer_bytes", [0, 1, 251, 300_000])
def test_bidirectional_stream_is_answered_on_itself(
    certificate: ServerCertificate, answer_bytes: int
) -> None:
    """
    The answer has the length that was asked, the right content, and a FIN.
    """
    session = Session(certificate)
    stream_id = session.send(encode_header(answer_bytes))

    session.pair.run_until(lambda: session.has_ended(stream_id))

    assert session.received(stream_id) == bytes(i % 251 for i in range(answer_bytes))


def test_unidirectional_stream_is_answered_on_one_of_the_server(
    certificate: ServerCertificate,
) -> None:
    """
    Two unidirectional requests get two server streams, each with its own length.
    """
    session = Session(certificate)
    session.send(encode_header(5000), is_uni=True)
    session.send(encode_header(70_000), is_uni=True)

    session.pair.run_until(lambda: session.has_ended(3) and session.has_ended(7))

    assert session.received(3) == bytes(i % 251 for i in range(5000))
    assert session.received(7) == bytes(i % 251 for i in range(70_000))


def test_unidirectional_stream_that_asks_nothing_gets_no_stream(
    certificate: ServerCertificate,
) -> None:
    """
    A pure upload on a unidirectional stream opens nothing, and is forgotten at its end.
    """
    session = Session(certificate)
    session.send(encode_header(0) + b"\0\1\2", is_uni=True)

    session.pair.run_until(lambda: session.perf.tally.upload_byte_count == 3)
    session.pair.run(5)

    assert not [one for one in session.recorder.events if isinstance(one, StreamDataReceived)]
    assert session.is_all_forgotten()


def test_answer_does_not_wait_for_the_end_of_the_upload(certificate: ServerCertificate) -> None:
    """
    The answer is complete while the client has not ended its side.
    """
    session = Session(certificate)
    stream_id = session.send(encode_header(1000), is_end=False)

    session.pair.run_until(lambda: session.has_ended(stream_id))

    assert (session.perf.open_request_count, session.perf.open_answer_count) == (1, 0)
    session.client.send_stream_data(stream_id, b"", end_stream=True)
    session.pair.run_until(session.is_all_forgotten)


def test_upload_is_drained_to_its_last_byte_and_verified(certificate: ServerCertificate) -> None:
    """
    Every byte of a large upload is counted; content that is right raises no error.
    """
    session = Session(certificate)
    content = bytes(i % 251 for i in range(400_000))
    stream_id = session.send(encode_header(0) + content)

    session.pair.run_until(lambda: session.has_ended(stream_id))
    session.pair.run_until(session.is_all_forgotten)

    assert session.perf.tally.upload_byte_count == 400_000
    assert session.perf.tally.content_error_count == 0


def test_upload_with_a_wrong_byte_is_counted(certificate: ServerCertificate) -> None:
    """
    An upload that does not follow the pattern shows in the tally.
    """
    session = Session(certificate)
    session.send(encode_header(0) + b"\0\1\3")

    session.pair.run_until(lambda: session.perf.tally.upload_byte_count == 3)

    assert session.perf.tally.content_error_count == 1


@pytest.mark.parametrize("is_uni", [False, True], ids=["bidi", "uni"])
def test_header_that_comes_byte_by_byte_is_one_header(
    certificate: ServerCertificate, *, is_uni: bool
) -> None:
    """
    Fed byte by byte equals fed whole.
    """
    session = Session(certificate)
    request = encode_header(3000) + b"\0\1"
    stream_id = session.send(b"", is_uni=is_uni, is_end=False)
    for index, byte in enumerate(request):
        session.client.send_stream_data(stream_id, bytes([byte]), index == len(request) - 1)
        session.pair.run(2)
    answer_id = 3 if is_uni else stream_id

    session.pair.run_until(lambda: session.has_ended(answer_id))

    assert session.received(answer_id) == bytes(i % 251 for i in range(3000))
    assert session.perf.tally.upload_byte_count == 2
    assert session.perf.tally.content_error_count == 0


@pytest.mark.parametrize("sent", [b"", b"1234567"], ids=["nothing", "seven-bytes"])
def test_stream_that_ends_before_its_eighth_byte_is_closed_and_forgotten(
    certificate: ServerCertificate, sent: bytes
) -> None:
    """
    A short stream gets an empty answer, and other streams go on.
    """
    session = Session(certificate)
    short_id = session.send(sent)
    session.send(sent, is_uni=True)
    other_id = session.send(encode_header(100))

    session.pair.run_until(lambda: session.has_ended(short_id) and session.has_ended(other_id))

    assert session.received(short_id) == b""
    assert len(session.received(other_id)) == 100
    assert session.perf.tally.ignored_stream_count == 2
    assert session.is_all_forgotten()


def test_stream_that_is_reset_before_its_eighth_byte_is_closed(
    certificate: ServerCertificate,
) -> None:
    """
    A reset in the middle of the header leaves nothing behind.
    """
    session = Session(certificate)
    stream_id = session.send(b"123", is_end=False)
    session.pair.run(5)
    session.client.reset_stream(stream_id, 0)

    session.pair.run_until(lambda: session.has_ended(stream_id))

    assert session.is_all_forgotten()


def test_upload_that_is_reset_still_gets_its_answer(certificate: ServerCertificate) -> None:
    """
    Resetting the upload after the header ends the upload, not the answer.
    """
    session = Session(certificate)
    stream_id = session.send(encode_header(200_000), is_end=False)
    session.pair.run(3)
    session.client.reset_stream(stream_id, 0)

    session.pair.run_until(lambda: session.has_ended(stream_id))

    assert len(session.received(stream_id)) == 200_000
    assert session.is_all_forgotten()


@pytest.mark.parametrize("is_uni", [False, True], ids=["bidi", "uni"])
def test_endless_answer_goes_on_until_stop_sending(
    certificate: ServerCertificate, *, is_uni: bool
) -> None:
    """
    STOP_SENDING is answered by a reset with the same code, and the stream is forgotten.
    """
    session = Session(certificate)
    stream_id = session.send(encode_header(ENDLESS), is_uni=is_uni)
    answer_id = 3 if is_uni else stream_id
    session.pair.run_until(lambda: len(session.received(answer_id)) > 500_000)
    assert find_content_error(session.received(answer_id), 0) is None

    session.client.stop_stream(answer_id, 7)
    session.pair.run_until(lambda: session.reset_of(answer_id) is not None)

    reset = session.reset_of(answer_id)
    assert reset is not None
    assert reset.error_code == 7
    assert session.is_all_forgotten()
    assert session.perf.tally.stopped_answer_count == 1


def test_stop_sending_that_comes_before_the_header_gets_no_answer(
    certificate: ServerCertificate,
) -> None:
    """
    A client that no longer wants an answer gets none, and nothing breaks.
    """
    session = Session(certificate)
    stream_id = session.send(b"123", is_end=False)
    session.pair.run(5)
    session.client.stop_stream(stream_id, 0)
    session.pair.run_until(lambda: session.reset_of(stream_id) is not None)
    session.client.send_stream_data(stream_id, encode_header(1000)[3:], end_stream=True)
    other_id = session.send(encode_header(100))

    session.pair.run_until(lambda: session.has_ended(other_id))

    assert session.received(stream_id) == b""
    assert session.is_all_forgotten()


def test_answers_survive_loss(certificate: ServerCertificate) -> None:
    """
    With every seventh datagram lost, each answer still has every byte in its place.
    """
    session = Session(certificate, loses=lambda number: number > 40 and number % 7 == 0)
    session.pair.run(60)
    stream_ids = [session.send(encode_header(60_000 + i)) for i in range(4)]

    session.pair.run_until(lambda: all(session.has_ended(one) for one in stream_ids))

    for extra, stream_id in enumerate(stream_ids):
        assert len(session.received(stream_id)) == 60_000 + extra
        assert find_content_error(session.received(stream_id), 0) is None


def test_finished_streams_are_forgotten(certificate: ServerCertificate) -> None:
    """
    After a thousand small streams, more than may be open at once, none is remembered.
    """
    session = Session(certificate)
    stream_ids = [session.send(encode_header(10)) for _ in range(1000)]

    session.pair.run_until(lambda: all(session.has_ended(one) for one in stream_ids[-100:]))
    session.pair.run_until(session.is_all_forgotten)

    assert session.perf.tally.request_count == 1000
    assert session.perf.tally.answer_byte_count == 10_000
    session.pair.run(200)
    session.perf.produce(1)
    feed, connection = session.perf._answers, session.pair.server
    assert [0, 0] == [len(feed._turns), len(feed._backlogs)]
    assert [0, 0] == [len(connection._streams), len(connection._streams_queue)]


def test_few_streams_have_data_waiting_however_many_are_open(
    certificate: ServerCertificate,
) -> None:
    """
    What is written ahead is bounded by the window and a turn, and stands on few streams.
    """
    session = Session(certificate)
    for _ in range(40):
        session.send(encode_header(ENDLESS))
    session.pair.run_until(lambda: session.perf.tally.request_count == 40)
    wanted_bytes = 2 * TURN_BYTES + 1

    for _ in range(3):
        session.perf.produce(wanted_bytes)

    backlogs = [unsent_bytes(session.pair.server, stream_id) for stream_id in range(0, 160, 4)]
    assert wanted_bytes <= sum(backlogs) <= wanted_bytes + TURN_BYTES
    assert sum(backlog > 0 for backlog in backlogs) <= 4
    session.perf.produce(wanted_bytes)
    assert sum(backlogs) == sum(unsent_bytes(session.pair.server, one) for one in range(0, 160, 4))


@pytest.mark.parametrize("stream_count", [2, 16])
def test_answers_without_an_end_take_turns(
    certificate: ServerCertificate, stream_count: int
) -> None:
    """
    At no moment has one been handed more than a turn above another: its share of the window.
    """
    session = Session(certificate)
    ids = [session.send(encode_header(ENDLESS)) for _ in range(stream_count)]
    session.pair.run_until(lambda: session.perf.tally.request_count == stream_count)
    senders = [session.pair.server._streams[stream_id].sender for stream_id in ids]

    for _ in range(200):
        session.pair.turn()
        written = [sender._buffer_stop for sender in senders]
        turn_bytes = max(TURN_BYTES, window_bytes(session.pair.server) // stream_count)
        assert max(written) - min(written) <= turn_bytes

    assert min(written) >= TURN_BYTES
    assert all(session.received(stream_id) for stream_id in ids)


def test_small_answers_are_not_kept_waiting_by_endless_ones(
    certificate: ServerCertificate,
) -> None:
    """
    An answer that was asked for while eight have no end comes when each has had a turn or two.
    """
    session = Session(certificate)
    for _ in range(8):
        session.send(encode_header(ENDLESS))
    session.pair.run_until(lambda: session.perf.tally.answer_byte_count > 10 * TURN_BYTES)
    before_bytes = session.perf.tally.answer_byte_count
    stream_id = session.send(encode_header(1000))

    session.pair.run_until(lambda: session.has_ended(stream_id))

    assert session.perf.tally.answer_byte_count - before_bytes < 3 * 8 * TURN_BYTES


def test_stream_that_its_receiver_stops_does_not_stop_the_others(
    certificate: ServerCertificate,
) -> None:
    """
    What flow control holds back does not count as waiting: the next stream takes its turn.
    """
    session = Session(certificate)
    stopped_id = session.send(encode_header(ENDLESS))
    session.pair.run_until(lambda: session.perf.tally.request_count == 1)
    stopped = session.pair.server._streams[stopped_id]
    stopped.max_stream_data_remote = stopped.sender._buffer_stop  # as if no MAX_STREAM_DATA came
    stopped_bytes = stopped.sender._buffer_stop
    session.client._streams[stopped_id].max_stream_data_local = 2**62 - 1  # none comes any more
    session.client._streams[stopped_id].max_stream_data_local_sent = 2**62 - 1
    other_id = session.send(encode_header(700_001))

    session.pair.run_until(lambda: session.has_ended(other_id))

    assert find_content_error(session.received(other_id), 0) is None
    assert stopped.sender._buffer_stop == stopped_bytes


def test_empty_answer_ends_while_the_connections_flow_control_is_used_up(
    certificate: ServerCertificate,
) -> None:
    """
    A FIN needs no credit: whoever waits for an upload's end before reading a download gets it.
    """
    session = Session(certificate)
    session.send(encode_header(ENDLESS))
    session.pair.run_until(lambda: session.perf.tally.request_count == 1)
    limit = session.client._local_max_data
    limit.value = limit.sent = 2**62 - 1  # no MAX_DATA comes any more
    server = session.pair.server
    session.pair.run_until(lambda: server._remote_max_data_used == server._remote_max_data)
    upload_id = session.send(encode_header(0) + content_chunk(0, 5_000).tobytes())

    session.pair.run_until(lambda: session.has_ended(upload_id), turn_limit=200)

    assert session.received(upload_id) == b""


def test_connection_that_ends_leaves_nothing_behind(certificate: ServerCertificate) -> None:
    """
    When the peer closes in the middle of an endless answer, all is forgotten.
    """
    session = Session(certificate)
    session.send(encode_header(ENDLESS), is_end=False)
    session.pair.run(10)
    assert (session.perf.open_request_count, session.perf.open_answer_count) == (1, 1)
    session.client.close(error_code=0, reason_phrase="done")

    session.pair.run_until(session.is_all_forgotten)
