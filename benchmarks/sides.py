"""
One run of one side: a server under test, the load against it, what both cost.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks.measure import cpu_ns, machine_times
from quiclab.errors import MachineError, RunError
from server.control import ControlError, request

ROOT: Final = Path(__file__).resolve().parents[1]
SERVER_CORE: Final = 0
LOAD_CORE: Final = 1
_START_TIMEOUT_S: Final = 20.0
_END_TIMEOUT_S: Final = 10.0
_READY_TIMEOUT_S: Final = 120.0
_DONE_TIMEOUT_S: Final = 300.0
_SETTLE_S: Final = 5.0
_LOOK_S: Final = 0.005

ServerKind = Literal["ours", "stock"]
Direction = Literal["download", "upload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """
    What is moved in a run.

    Args:
        direction: Who sends.
        total_bytes: Stream payload in all.
        datagram_bytes: Largest datagram, of both ends.
        connection_count: Connections.
        stream_count: Streams of each.
    """

    direction: Direction
    total_bytes: int
    datagram_bytes: int
    connection_count: int = 1
    stream_count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """
    A server under test.

    Args:
        kind: Which server.
        words: More words of its command line.
        is_pinned: Whether server and load have a core each.
    """

    kind: ServerKind
    words: tuple[str, ...] = ()
    is_pinned: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    What a run cost; times in nanoseconds of CPU, `seconds` by the clock.

    Args:
        total_bytes: Stream payload that arrived.
        seconds: From the word to go to the last byte.
        server_ns: All threads of the server's processes.
        worker_ns: The same for each process.
        load_ns: The load's.
        load_received_datagrams: What the load received.
        load_sent_datagrams: What the load sent; of a download, acknowledgements.
        load_dropped_datagrams: What the load's sockets had no room for.
        busy_ns: All cores, whoever for.
        steal_ns: Taken by the hypervisor.
        lasted_s: The time that the last two are about.
        report: The server's own counters.
    """

    total_bytes: int
    seconds: float
    server_ns: int
    worker_ns: tuple[int, ...]
    load_ns: int
    load_received_datagrams: int
    load_sent_datagrams: int
    load_dropped_datagrams: int
    busy_ns: int
    steal_ns: int
    lasted_s: float
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def server_cpu_s_per_gb(self) -> float:
        """CPU-seconds of the server for 10^9 bytes."""
        return self.server_ns / self.total_bytes

    @property
    def load_cpu_s_per_gb(self) -> float:
        """CPU-seconds of the load for 10^9 bytes."""
        return self.load_ns / self.total_bytes

    @property
    def mb_per_s(self) -> float:
        """Goodput, 10^6 bytes a second."""
        return self.total_bytes / self.seconds / 1e6


class RunningServer:
    """
    A server under test that listens.
    """

    def __init__(self, process: subprocess.Popen[str], control_path: Path, ca_path: Path) -> None:
        self.process = process
        self._control_path = control_path
        self.ca_path = ca_path
        try:
            self.description = request(control_path, "describe", wait_s=_START_TIMEOUT_S)
        except ControlError as error:
            raise RunError(f"the server under test does not start: {error}") from error
        ca_path.write_text(self.description["certificate_pem"])
        self.pids = [int(worker["pid"]) for worker in self.description["workers"]]

    def ask(self, op: str) -> dict[str, Any]:
        """
        Ask it something.

        Raises:
            RunError: It does not answer.
        """
        try:
            return request(self._control_path, op)
        except ControlError as error:
            raise RunError(f"the server under test: {error}") from error

    def load_words(self, work: Work) -> list[str]:
        """The load's command line against this server."""
        ip, port = self.description["address"][:2]
        return [
            *("--ip", ip, "--port", str(port)),
            *("--server-name", self.description["server_name"], "--ca-file", str(self.ca_path)),
            *("--direction", work.direction, "--bytes", str(work.total_bytes)),
            *("--connections", str(work.connection_count), "--streams", str(work.stream_count)),
            *("--datagram", str(work.datagram_bytes)),
        ]


@contextlib.contextmanager
def running_server(side: Side, work: Work, directory: Path) -> Iterator[RunningServer]:
    """
    Start a server under test, on its core, and end it afterwards.

    Raises:
        RunError: It does not start.
    """
    control_path = directory / "server.sock"
    argv = [sys.executable, *server_words(side, work), "--control", str(control_path)]
    with (directory / "server.log").open("w") as log:
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=log, text=True, cwd=ROOT)
        try:
            if side.is_pinned:
                _pin(process.pid, SERVER_CORE)
            yield RunningServer(process, control_path, directory / "ca.pem")
        except RunError as error:
            words = (directory / "server.log").read_text().strip().rpartition("\n")[2]
            raise RunError(f"{error}{f' ({words})' if words else ''}") from error
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def server_words(side: Side, work: Work) -> list[str]:
    """
    What stands behind the interpreter's name.
    """
    datagram = str(work.datagram_bytes)
    if side.kind == "stock":
        return ["-m", "benchmarks.stock", "--datagram", datagram, *side.words]
    return ["-m", "server", "--datagram", datagram, "--verify-content", *side.words]


def _pin(pid: int, core: int) -> None:
    usable = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(pid, {usable[core % len(usable)]})


class RunningLoad:
    """
    The load as a process of its own.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def hear(self, event: str, *, timeout_s: float) -> dict[str, Any]:
        """
        Wait for a line.

        Raises:
            RunError: The load failed, ended or says nothing.
        """
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], timeout_s)
        if not ready:
            raise RunError(f'the load has not said "{event}" within {timeout_s:.0f} s')
        line = self.process.stdout.readline()
        if not line:
            raise RunError(f"the load ended with {self.process.wait()}")
        said: dict[str, Any] = json.loads(line)
        if said["event"] != event:
            raise RunError(f"the load failed: {said.get('why', line.strip())}")
        return said

    def tell(self) -> None:
        """Let it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextlib.contextmanager
def running_load(server: RunningServer, work: Work, *, is_pinned: bool) -> Iterator[RunningLoad]:
    """
    Start the load, on its core, and end it afterwards.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.load", *server.load_words(work)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        if is_pinned:
            _pin(process.pid, LOAD_CORE)
        yield RunningLoad(process)
        process.communicate(timeout=_END_TIMEOUT_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def run_side(side: Side, work: Work) -> Outcome:
    """
    Start a server, move the work, end the server; what it cost.

    Raises:
        RunError: A byte was wrong or missing, or a process failed.
    """
    with tempfile.TemporaryDirectory(prefix="quiclab-bench-") as name:
        directory = Path(name)
        with running_server(side, work, directory) as server:
            return run_load(server, work, is_pinned=side.is_pinned)


def run_load(server: RunningServer, work: Work, *, is_pinned: bool = True) -> Outcome:
    """
    Move the work through a running server.

    Raises:
        RunError: A byte was wrong or missing, or a process failed.
    """
    with running_load(server, work, is_pinned=is_pinned) as load:
        load.hear("ready", timeout_s=_READY_TIMEOUT_S)
        server.ask("reset")
        machine, began_s = machine_times(), time.monotonic()
        before = [cpu_ns([pid]) for pid in server.pids]
        load.tell()
        done = load.hear("done", timeout_s=_DONE_TIMEOUT_S)
        after = [cpu_ns([pid]) for pid in server.pids]
        machine_after, lasted_s = machine_times(), time.monotonic() - began_s
        report = _settled_report(server, work)
        load.tell()
    _check(work, done, report)
    workers = tuple(late - early for early, late in zip(before, after, strict=True))
    return Outcome(
        total_bytes=int(done["bytes"]),
        seconds=float(done["seconds"]),
        server_ns=sum(workers),
        worker_ns=workers,
        load_ns=int(done["cpu_ns"]),
        load_received_datagrams=int(done["received_datagrams"]),
        load_sent_datagrams=int(done["sent_datagrams"]),
        load_dropped_datagrams=int(done["dropped_datagrams"]),
        busy_ns=machine_after.busy_ns - machine.busy_ns,
        steal_ns=machine_after.steal_ns - machine.steal_ns,
        lasted_s=lasted_s,
        report=report["total"],
    )


def _settled_report(server: RunningServer, work: Work) -> dict[str, Any]:
    """Ask until the counter of what was moved is full: an answer may wait for the loop."""
    deadline_s = time.monotonic() + _SETTLE_S
    while True:
        report = server.ask("report")
        if _counted_bytes(work, report) >= work.total_bytes or time.monotonic() > deadline_s:
            return report
        time.sleep(_LOOK_S)


def _counted_bytes(work: Work, report: dict[str, Any]) -> int:
    name = "upload_byte_count" if work.direction == "upload" else "answer_byte_count"
    return int(report["total"]["perf"][name])


def _check(work: Work, done: dict[str, Any], report: dict[str, Any]) -> None:
    counted_bytes = _counted_bytes(work, report)
    if not done["bytes"] == counted_bytes == work.total_bytes:
        raise RunError(
            f"{work.total_bytes:,} bytes were to move; the load counts {done['bytes']:,}, "
            f"the server {counted_bytes:,}"
        )
    wrong_count = report["total"]["perf"]["content_error_count"]
    if wrong_count:
        raise RunError(f"the server found {wrong_count} pieces of the upload with a wrong byte")


def check_cores() -> None:
    """
    Raises:
        MachineError: Server and load cannot have a core each.
    """
    if len(os.sched_getaffinity(0)) < 2:
        raise MachineError("a measurement needs 2 cores, one for the server and one for the load")
