"""
One process that serves: a socket, its endpoint, its loop, its counters.
"""

import os
import resource
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.logger import QuicFileLogger

from server.certificate import ServerCertificate
from server.control import ControlError, Mailbox
from server.counters import ReceiveBufferCounters
from server.endpoint import Endpoint
from server.internals import ReceiveBufferProbes
from server.loop import Loop
from server.options import LEAST_WINDOW_BYTES
from server.perf import ALPN, PerfServer, PerfTally
from server.probes import PROBES, RECEIVE_BUFFER_ALLOC, RECEIVE_BUFFER_POP, RECEIVE_BUFFER_WRITE
from server.recording import Recorder, RecordingError, parse_rules, recorded_probes
from server.settings import ServerSettings
from server.udp import _native
from server.udp.sockets import UdpSocket

# What a client may send before the first MAX_DATA; aioquic doubles both as they fill.
FLOW_CONTROL_BYTES: Final = 16 * 1024 * 1024
_RECEIVE_BUFFER_MASK: Final = (
    1 << RECEIVE_BUFFER_ALLOC | 1 << RECEIVE_BUFFER_WRITE | 1 << RECEIVE_BUFFER_POP
)


def make_configuration(
    settings: ServerSettings, certificate: ServerCertificate
) -> QuicConfiguration:
    """
    Configure aioquic for incoming connections.

    Raises:
        OSError: The folder for qlog files or the secrets log cannot be used.
    """
    configuration = QuicConfiguration(
        is_client=False,
        alpn_protocols=[ALPN],
        idle_timeout=settings.max_idle_timeout_s,
        max_datagram_size=settings.datagram_bytes,
        max_data=FLOW_CONTROL_BYTES,
        max_stream_data=FLOW_CONTROL_BYTES,
    )
    certificate.apply(configuration)
    if settings.qlog_directory is not None:
        settings.qlog_directory.mkdir(parents=True, exist_ok=True)
        configuration.quic_logger = QuicFileLogger(str(settings.qlog_directory))
    if settings.secrets_log_path is not None:
        # Held open for the life of the process, as aioquic writes to it on each handshake.
        configuration.secrets_log_file = settings.secrets_log_path.open("a", encoding="ascii")
    return configuration


def traced_probes() -> list[str]:
    """
    Name the probes that someone traces in this process now, by what their sites hold.

    bpftrace up to 0.23 announces its probes before it attaches them, so only this
    is proof that an event from now on is seen.
    """
    mask = _native.traced()
    return [probe.name for index, probe in enumerate(PROBES) if mask >> index & 1]


class Worker:
    """
    Serves one socket until it is told to stop.

    Args:
        settings: What was asked.
        sock: A bound socket; closed at the end.
        index: Its number among the workers.
        configuration: For incoming connections.
    """

    def __init__(
        self,
        settings: ServerSettings,
        sock: socket.socket,
        *,
        index: int,
        configuration: QuicConfiguration,
    ) -> None:
        self.loop = Loop()
        self._index = index
        self._connection_limit = settings.connection_limit
        self._ever_closed_count = 0
        self._cpu_at_reset = resource.getrusage(resource.RUSAGE_SELF)
        self._perf = PerfTally()
        self._recorder = Recorder()
        self._receive_buffer = ReceiveBufferCounters()
        self._receive_buffer_probes = ReceiveBufferProbes(self._receive_buffer)
        self._udp = UdpSocket(sock, settings.udp, listening=self.loop.listening)
        self._endpoint = Endpoint(
            self._udp,
            self.loop,
            configuration=configuration,
            options=settings.endpoint,
            accept=self._accept,
        )
        self._window_cap_bytes = settings.endpoint.window_cap_bytes
        self._settings = settings
        self._endpoint.on_closed = self._on_closed
        self.loop.on_listening = self._on_listening

    def serve_mailbox(self, sock: socket.socket, *, ends_with_it: bool) -> None:
        """
        Answer the questions that come over a socket pair.

        Args:
            sock: The answering end.
            ends_with_it: Stop when the asking end is gone.
        """
        mailbox = Mailbox(sock, self.answer, on_end=self._on_mailbox_end)
        self._mailbox, self._ends_with_mailbox = mailbox, ends_with_it
        self.loop.add_reader(mailbox.fileno(), mailbox.handle)

    def stop_on_signals(self) -> None:
        """
        End in order at SIGINT and SIGTERM.
        """
        waker, woken = socket.socketpair()
        for end in (waker, woken):
            end.setblocking(False)
        self._waking = waker, woken
        # A signal between two bytecodes must also end a ppoll that is about to begin.
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        self.loop.add_reader(woken.fileno(), self._drain_waker)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self.loop.stop())

    def _drain_waker(self) -> None:
        self._waking[1].recv(64)

    def run(self) -> dict[str, Any]:
        """
        Serve, then close connections in order; the last report.
        """
        self.loop.run()
        self._endpoint.close(reason="the server ends")
        self._receive_buffer_probes.update(is_wanted=False)
        return self.report()

    def answer(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """
        Answer one question of the supervisor's.

        Raises:
            ControlError: There is no such question, or its arguments make no sense.
        """
        answers: dict[Any, Callable[[], Mapping[str, Any]]] = {
            "describe": self.describe,
            "report": self.report,
            "reset": self._answer_reset,
            "record": lambda: self._record(question),
            "recorded": self._recorder.report,
            "configure": lambda: self._configure(question),
            "count_closed": lambda: {"closed_count": self._ever_closed_count},
            "stop": self._answer_stop,
        }
        op = question.get("op")
        if op not in answers:
            raise ControlError(
                f"there is no question {op!r}; ask describe, reset, report, configure, "
                "record or recorded"
            )
        return answers[op]()

    def _answer_reset(self) -> Mapping[str, Any]:
        # What is counted from now on must be fired, however lately a tracer attached.
        self.loop.look_who_listens()
        self.reset()
        return {
            "index": self._index,
            "pid": os.getpid(),
            "traced_probes": traced_probes(),
            "recorded_probes": recorded_probes(),
        }

    def _answer_stop(self) -> Mapping[str, Any]:
        self.loop.stop()
        return {"ok": True}

    def describe(self) -> dict[str, Any]:
        """
        What this worker got of what was asked for.
        """
        granted = self._udp.granted
        return {
            "index": self._index,
            "pid": os.getpid(),
            "cpu_ids": sorted(os.sched_getaffinity(0)),
            "granted": {
                "tx_ring": asdict(granted.tx_ring),
                "rx_ring": asdict(granted.rx_ring),
                "socket_send_buffer": asdict(granted.socket_send_buffer),
                "socket_receive_buffer": asdict(granted.socket_receive_buffer),
                "gso": self._udp.tx.limits.datagram_count > 1,
                "gro": granted.has_gro,
                "mmsg": granted.has_mmsg,
                "datagram_bytes": self._settings.datagram_bytes,
                "datagrams_per_message": self._udp.tx.limits.capacity(
                    self._settings.datagram_bytes
                ),
                "window_cap_bytes": self._window_cap_bytes,
                "window_budget_bytes": self._settings.endpoint.window_budget_bytes,
                "connection_flow_control_bytes": FLOW_CONTROL_BYTES,
                "stream_flow_control_bytes": FLOW_CONTROL_BYTES,
                "cc": self._settings.endpoint.congestion_control,
                "pacing": self._settings.endpoint.pacing,
            },
            "degradations": self._degradations(),
        }

    def report(self) -> dict[str, Any]:
        """
        This worker's part of the answer to `report`.
        """
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "index": self._index,
            "pid": os.getpid(),
            "cpu_user_s": round(usage.ru_utime - self._cpu_at_reset.ru_utime, 6),
            "cpu_system_s": round(usage.ru_stime - self._cpu_at_reset.ru_stime, 6),
            "connections": self._endpoint.connections.report(),
            "admission": self._endpoint.admission.report(),
            "recovery": self._endpoint.report_recovery(),
            "loop": self.loop.counters.report(),
            "close_reasons": self._endpoint.connections.report_reasons(),
            "lowest_window_cap_bytes": self._endpoint.budget.lowest_cap_bytes,
            "tx": self._udp.tx.counters.report(),
            "rx": self._udp.rx.counters.report(),
            "receive_buffer": self._receive_buffer.report(),
            "perf": self._perf.report(),
            "rings_empty": self._endpoint.is_idle,
            "degradations": self._degradations(),
        }

    def reset(self) -> None:
        """
        Count from zero.
        """
        self._cpu_at_reset = resource.getrusage(resource.RUSAGE_SELF)
        self._endpoint.reset_counters()
        self.loop.counters.reset()
        self._udp.tx.counters.reset()
        self._udp.rx.counters.reset()
        self._receive_buffer.reset()
        self._perf.reset()
        self._recorder.clear()

    def _record(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            probes = self._recorder.arm(parse_rules(question.get("rules")))
        except RecordingError as error:
            raise ControlError(str(error)) from error
        self.loop.look_who_listens()
        return {"index": self._index, "pid": os.getpid(), "recorded_probes": probes}

    def _configure(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        cap_bytes = question.get("window_cap_bytes")
        is_number = isinstance(cap_bytes, int) and not isinstance(cap_bytes, bool)
        if cap_bytes is None or not is_number or 0 != cap_bytes < LEAST_WINDOW_BYTES:
            raise ControlError(
                f"window_cap_bytes is {cap_bytes!r}; expected {LEAST_WINDOW_BYTES} bytes or more, "
                "or 0 for no cap"
            )
        self._endpoint.set_window_cap(cap_bytes)
        self._window_cap_bytes = cap_bytes
        return {"window_cap_bytes": cap_bytes}

    def _accept(self, connection: QuicConnection) -> PerfServer:
        return PerfServer(
            connection,
            tally=self._perf,
            is_content_verified=self._settings.is_content_verified,
        )

    def _degradations(self) -> list[dict[str, str]]:
        return [asdict(one) for one in self._udp.degradations]

    def _on_listening(self, mask: int) -> None:
        self._receive_buffer_probes.update(is_wanted=bool(mask & _RECEIVE_BUFFER_MASK))

    def _on_closed(self, connection: QuicConnection) -> None:  # noqa: ARG002
        self._ever_closed_count += 1
        if 0 < self._connection_limit <= self._ever_closed_count and not self._ends_with_mailbox:
            self.loop.stop()

    def _on_mailbox_end(self) -> None:
        self.loop.remove_reader(self._mailbox.fileno())
        if self._ends_with_mailbox:
            self.loop.stop()
