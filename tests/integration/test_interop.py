"""
Clients that no one here wrote, through `python -m server`: every byte right, both ways.

qh3 (a Rust core) and stock aioquic's own asyncio client. picoquic joins in the
image, by tests/interop/aiopquic_client.py.
"""

import asyncio
import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from server.perf import encode_header
from tests.integration.server_process import ServerProcess, run_server

ANSWER_BYTES = 3_000_001
UPLOAD_BYTES = 2_000_003
TIMEOUT_S = 60.0

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """
    One server for all clients, as it is traced by default, that checks what is uploaded.
    """
    with run_server(tmp_path_factory.mktemp("interop"), "--verify-content") as running:
        yield running


def content(length_bytes: int) -> bytes:
    """
    The pattern, written here again so that it is not compared with itself.
    """
    return bytes(i % 251 for i in range(length_bytes))


class Answer:
    """What came on one stream, and how it ended."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = asyncio.Event()


async def ask(
    stack: str, server: ServerProcess, *, is_uni: bool, upload_bytes: int
) -> dict[int, Answer]:
    """
    Let a stack's own asyncio client make one request; what came, by stream.

    The names of both stacks' classes are the same, because qh3 began as aioquic.
    """
    asyncio_client = importlib.import_module(f"{stack}.asyncio.client")
    protocol: Any = importlib.import_module(f"{stack}.asyncio.protocol").QuicConnectionProtocol
    events: Any = importlib.import_module(f"{stack}.quic.events")
    configuration = importlib.import_module(f"{stack}.quic.configuration").QuicConfiguration(
        alpn_protocols=["perf"], is_client=True, server_name=server.server_name
    )
    configuration.load_verify_locations(cadata=server.ca_path.read_bytes())
    answers: dict[int, Answer] = {}

    class Client(protocol):  # type: ignore[misc]
        def quic_event_received(self, event: Any) -> None:
            if isinstance(event, events.StreamDataReceived):
                answer = answers.setdefault(event.stream_id, Answer())
                answer.data += event.data
                if event.end_stream:
                    answer.ended.set()

    async with asyncio_client.connect(
        server.ip, server.port, configuration=configuration, create_protocol=Client
    ) as client:
        quic = client._quic
        stream_id = quic.get_next_available_stream_id(is_unidirectional=is_uni)
        answer = answers.setdefault(3 if is_uni else stream_id, Answer())
        request = encode_header(ANSWER_BYTES) + content(upload_bytes)
        quic.send_stream_data(stream_id, request, end_stream=True)
        client.transmit()
        async with asyncio.timeout(TIMEOUT_S):
            await answer.ended.wait()
            await asyncio.to_thread(
                server.wait_for,
                lambda total: total["perf"]["upload_byte_count"] >= upload_bytes,
            )
    return answers


@pytest.mark.parametrize("is_uni", [False, True], ids=["bidi", "uni"])
@pytest.mark.parametrize("stack", ["qh3", "aioquic"])
def test_foreign_client_downloads_and_uploads_every_byte(
    server: ServerProcess, stack: str, *, is_uni: bool
) -> None:
    """
    Megabytes in both directions on one stream: answer and upload are right to the byte.
    """
    server.reset()

    answers = asyncio.run(ask(stack, server, is_uni=is_uni, upload_bytes=UPLOAD_BYTES))

    ((_, answer),) = answers.items()
    assert answer.data == content(ANSWER_BYTES)
    report = server.wait_for(lambda total: total["connections"]["open_count"] == 0)
    perf = report["total"]["perf"]
    assert perf["upload_byte_count"] == UPLOAD_BYTES
    assert perf["content_error_count"] == 0
    assert report["total"]["connections"]["closed_count"] == 1
    assert report["rings_empty"]
