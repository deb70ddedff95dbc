"""
`python -m benchmarks.stock`: aioquic's own asyncio server, to compare with.

Everything is aioquic's: `serve()`, its protocol, its pacer, its defaults, the
kernel's socket buffers; only the datagrams' size is chosen. It answers with the
same perf logic and the same checks as our server. Answers are handed over in
megabytes, and looked after only now and then, so that the application costs
stock next to nothing.
"""

import argparse
import asyncio
import datetime as dt
import json
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import (
    ConnectionTerminated,
    QuicEvent,
    StreamDataReceived,
    StreamReset,
)

from server.certificate import make_certificate
from server.control import ControlError, ControlServer
from server.perf import ALPN, PerfServer, PerfTally

# Answers are topped up to twice this. aioquic sends at most 16 datagrams a call, so
# that 16 calls of 16,383 bytes take 4 MB.
_BACKLOG_BYTES: Final = 8 * 1024 * 1024
_CALLS_BETWEEN: Final = 16


class Stock(QuicConnectionProtocol):
    """
    aioquic's protocol with the perf server behind it.
    """

    tally = PerfTally()
    opened_count = 0
    closed_count = 0

    def __init__(self, quic: QuicConnection, stream_handler: Any = None) -> None:
        super().__init__(quic, stream_handler)
        Stock.opened_count += 1
        self._perf = PerfServer(quic, tally=self.tally, is_content_verified=True)
        self._calls_left = 0

    def quic_event_received(self, event: QuicEvent) -> None:
        """Hand the events of streams to the perf server, in place of stream objects."""
        if isinstance(event, StreamDataReceived | StreamReset | ConnectionTerminated):
            before = self._perf.open_answer_count
            self._perf.on_event(event, 0.0)
            if self._perf.open_answer_count != before:
                self._calls_left = 0
            if isinstance(event, ConnectionTerminated):
                Stock.closed_count += 1

    def transmit(self) -> None:
        """Top up the answers now and then, and send."""
        if self._calls_left:
            self._calls_left -= 1
        elif self._perf.open_answer_count:
            self._calls_left = _CALLS_BETWEEN
            self._perf.produce(_BACKLOG_BYTES)
        super().transmit()


class _Answers:
    """
    Answers the questions that our server answers, as far as a measurement asks them.
    """

    def __init__(self, description: Mapping[str, Any]) -> None:
        self._description = description

    def answer(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer one question; called in the control thread, which only reads."""
        match question.get("op"):
            case "describe":
                return self._description
            case "reset":
                Stock.tally.reset()
                return {"ok": True}
            case "report":
                connections = {
                    "opened_count": Stock.opened_count,
                    "closed_count": Stock.closed_count,
                    "open_count": Stock.opened_count - Stock.closed_count,
                }
                return {"total": {"perf": Stock.tally.report(), "connections": connections}}
            case op:
                raise ControlError(f"there is no question {op!r}; ask describe, reset or report")


async def _serve(*, port: int, datagram_bytes: int, control_path: Path) -> None:
    certificate = make_certificate(
        server_name="server.quiclab", addresses=["127.0.0.1"], now=dt.datetime.now(dt.UTC)
    )
    configuration = QuicConfiguration(
        is_client=False, alpn_protocols=[ALPN], max_datagram_size=datagram_bytes
    )
    certificate.apply(configuration)
    server = await serve("127.0.0.1", port, configuration=configuration, create_protocol=Stock)
    transport = server._transport  # noqa: SLF001 - the only way to learn the port
    assert transport is not None
    address = transport.get_extra_info("sockname")
    control = ControlServer(
        control_path,
        _Answers(
            {
                "address": list(address[:2]),
                "server_name": certificate.server_name,
                "certificate_pem": certificate.trust_pem,
                "workers": [{"pid": os.getpid()}],
            }
        ).answer,
    )
    control.start()
    print(json.dumps({"address": list(address[:2])}), flush=True)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    await ended.wait()
    control.close()
    server.close()


def main() -> None:
    """
    Serve until told to end.
    """
    parser = argparse.ArgumentParser(prog="benchmarks.stock", allow_abbrev=False)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--datagram", type=int, default=1200)
    parser.add_argument("--control", type=Path, required=True)
    words = parser.parse_args()
    threading.current_thread().name = "stock"
    asyncio.run(_serve(port=words.port, datagram_bytes=words.datagram, control_path=words.control))


if __name__ == "__main__":
    main()
