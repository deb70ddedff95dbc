"""
picoquic, through its Python binding aiopquic, as a client of our perf server.

Needs Python 3.12 and tests/interop/requirements.lock, and nothing of this
repository, so that nothing is checked against itself. Asks for one answer on a
bidirectional and one on a unidirectional stream, uploads beside both, and
compares every byte that comes back.

    python aiopquic_client.py --ip IP --port N --server-name NAME --ca-file F
        [--receive BYTES] [--send BYTES]

Prints one JSON line. Status 0: every byte was right; 5: not. What the server made
of the uploads is asked of the server (its `report` counts them under `perf`).
"""

import argparse
import asyncio
import json
import struct
import sys
from importlib.metadata import version
from typing import Any

from aiopquic.asyncio.client import connect
from aiopquic.asyncio.protocol import QuicConnectionProtocol
from aiopquic.quic.configuration import QuicConfiguration
from aiopquic.quic.events import ConnectionTerminated, StreamDataReceived

TIMEOUT_S = 60.0
CHUNK_BYTES = 256 * 1024
FIRST_SERVER_UNI_STREAM = 3  # RFC 9000, Section 2.1
OK = 0
INCOMPLETE = 5


def content(length_bytes: int) -> bytes:
    """
    Byte i is i mod 251.
    """
    return bytes(i % 251 for i in range(length_bytes))


class PerfClient(QuicConnectionProtocol):  # type: ignore[misc]
    """Keeps what comes, and wakes whoever waits for the end of a stream."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.received: dict[int, bytearray] = {}
        self.ended: dict[int, asyncio.Event] = {}

    def quic_event_received(self, event: Any) -> None:
        """Take one event."""
        if isinstance(event, StreamDataReceived):
            self.received.setdefault(event.stream_id, bytearray()).extend(event.data)
            if event.end_stream:
                self.end_of(event.stream_id).set()
        elif isinstance(event, ConnectionTerminated):
            for ended in self.ended.values():
                ended.set()

    def end_of(self, stream_id: int) -> asyncio.Event:
        """The event that tells of a stream's end."""
        return self.ended.setdefault(stream_id, asyncio.Event())


async def ask(words: argparse.Namespace, *, is_uni: bool) -> dict[str, Any]:
    """
    Make one request on a connection of its own; what came of it.
    """
    configuration = QuicConfiguration(
        alpn_protocols=["perf"], server_name=words.server_name, cafile=words.ca_file
    )
    async with connect(
        words.ip, words.port, configuration=configuration, create_protocol=PerfClient
    ) as client:
        quic = client._quic
        stream_id = quic.get_next_available_stream_id(is_unidirectional=is_uni)
        answer_id = FIRST_SERVER_UNI_STREAM if is_uni else stream_id
        ended = client.end_of(answer_id)
        request = struct.pack(">Q", words.receive) + content(words.send)
        async with asyncio.timeout(TIMEOUT_S):
            for begin in range(0, len(request), CHUNK_BYTES):
                chunk = request[begin : begin + CHUNK_BYTES]
                is_last = begin + CHUNK_BYTES >= len(request)
                await quic.send_stream_data_drained(stream_id, chunk, end_stream=is_last)
            await ended.wait()
            # A stream counts 0 again when picoquic has let it go, which it does when all of
            # it was acknowledged; closing before would cut the upload.
            while quic.tx_sent_bytes(stream_id):  # noqa: ASYNC110 - the binding has no event for it
                await asyncio.sleep(0.01)
    received = bytes(client.received.get(answer_id, b""))
    return {
        "kind": "uni" if is_uni else "bidi",
        "received_bytes": len(received),
        "sent_bytes": words.send,
        "ok": received == content(words.receive),
    }


async def ask_both(words: argparse.Namespace) -> list[dict[str, Any]]:
    """
    One request of each kind, one after the other.
    """
    return [await ask(words, is_uni=is_uni) for is_uni in (False, True)]


def main() -> int:
    """
    Run from a command line.
    """
    parser = argparse.ArgumentParser(description="Loads a perf server by picoquic.")
    parser.add_argument("--ip", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--server-name", required=True)
    parser.add_argument("--ca-file", required=True)
    parser.add_argument("--receive", type=int, default=3_000_001)
    parser.add_argument("--send", type=int, default=2_000_003)
    words = parser.parse_args()
    cases = asyncio.run(ask_both(words))
    is_ok = all(case["ok"] for case in cases)
    print(json.dumps({"ok": is_ok, "cases": cases, "versions": {"aiopquic": version("aiopquic")}}))
    return OK if is_ok else INCOMPLETE


if __name__ == "__main__":
    sys.exit(main())
