"""
One run of one side: a server under test, the load against it, what both cost.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import psutil

from benchmarks.hits_tracing import attached, find_tracer
from benchmarks.measure import cpu_ns, machine_times
from quiclab.errors import MachineError, RunError
from quiclab.trace.script import Script, load_script
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
# A server is done with 500 closed connections when it takes less than this of its core.
_CALM_SHARE: Final = 0.05
_CALM_LOOK_S: Final = 0.05
_CALM_LIMIT_S: Final = 5.0

# The four names of the original's scripts; those that came later are beside them.
SCRIPTS: Final = ("generic-offload", "io-latencies", "recv-buffers", "udp-syscall")

SideKind = Literal["ours", "stock", "floor"]
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
        answer_every: Datagrams that the load takes before it answers; 0: four messages.
    """

    direction: Direction
    total_bytes: int
    datagram_bytes: int
    connection_count: int = 1
    stream_count: int = 1
    answer_every: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """
    What stands on one side of a comparison: a server under test, or the floor.

    Args:
        kind: Which server.
        label: A name for people.
        words: More words of its command line.
        is_pinned: Whether server and load have a core each.
        is_traced: Whether all four scripts are attached while it is measured.
    """

    kind: SideKind
    label: str = ""
    words: tuple[str, ...] = ()
    is_pinned: bool = True
    is_traced: bool = False


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
        foreign_ns: All cores, for others than this measurement.
        steal_ns: All cores, taken by the hypervisor.
        lasted_s: The time that the last two are about.
        report: The server's own counters.
    """

    total_bytes: int
    seconds: float
    server_ns: int
    foreign_ns: int
    steal_ns: int
    lasted_s: float
    worker_ns: tuple[int, ...] = ()
    load_ns: int = 0
    load_received_datagrams: int = 0
    load_sent_datagrams: int = 0
    load_dropped_datagrams: int = 0
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def cpu_s_per_gb(self) -> float:
        """CPU-seconds of the server for 10^9 bytes."""
        return self.server_ns / self.total_bytes

    @property
    def mb_per_s(self) -> float:
        """Goodput, 10^6 bytes a second; 0 for the floor."""
        return self.total_bytes / self.seconds / 1e6 if self.seconds else 0.0

    @property
    def steal(self) -> float:
        """Part of the cores that the hypervisor kept."""
        return self.steal_ns / 1e9 / self.lasted_s / _core_count()

    @property
    def foreign(self) -> float:
        """Part of the cores that other processes used; ticks of 10 ms may make it negative."""
        return self.foreign_ns / 1e9 / self.lasted_s / _core_count()

    @property
    def answered_every(self) -> float:
        """
        Datagrams that the receiving end took for each that it sent.

        The load counts both ways; for an upload they swap places.
        """
        received, sent = self.load_received_datagrams, self.load_sent_datagrams
        return max(received, sent) / max(1, min(received, sent))


def _descendants() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def _core_count() -> int:
    return len(os.sched_getaffinity(0))


class _Watch:
    """
    Measures how much else goes on while something is measured.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        # This process and those that are measured; whatever else runs is foreign, the
        # other side of a comparison with it.
        self._pids = {os.getpid(), *pids}
        self._machine, self._began_s = machine_times(), time.monotonic()
        self._own_ns = self._read_own_ns()

    def stop(self) -> dict[str, Any]:
        """Fields of an Outcome."""
        own_ns = self._read_own_ns() - self._own_ns
        machine, lasted_s = machine_times(), time.monotonic() - self._began_s
        return {
            "foreign_ns": machine.busy_ns - self._machine.busy_ns - own_ns,
            "steal_ns": machine.steal_ns - self._machine.steal_ns,
            "lasted_s": lasted_s,
        }

    def _read_own_ns(self) -> int:
        own_ns = 0
        for pid in self._pids:
            with contextlib.suppress(OSError):
                own_ns += cpu_ns([pid])
        return own_ns


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

    def traced_probes(self) -> set[str]:
        """
        Name the probes that every worker's sites show as traced.
        """
        workers = self.ask("reset")["workers"]
        return set.intersection(*(set(worker["traced_probes"]) for worker in workers))

    def load_words(self, work: Work) -> list[str]:
        """The load's command line against this server."""
        ip, port = self.description["address"][:2]
        return [
            *("--ip", ip, "--port", str(port)),
            *("--server-name", self.description["server_name"], "--ca-file", str(self.ca_path)),
            *("--direction", work.direction, "--bytes", str(work.total_bytes)),
            *("--connections", str(work.connection_count), "--streams", str(work.stream_count)),
            *("--datagram", str(work.datagram_bytes), "--answer-every", str(work.answer_every)),
        ]


@contextlib.contextmanager
def running_server(side: Side, work: Work, directory: Path) -> Iterator[RunningServer]:
    """
    Start a server under test, on its core, and end it afterwards.

    Raises:
        RunError: It does not start.
    """
    control_path = directory / "server.sock"
    argv = [*server_words(side, work), "--control", str(control_path)]
    if side.kind == "ours":
        argv += ["--probe-directory", str(directory)]
    with (directory / "server.log").open("w") as log:
        process = subprocess.Popen(
            _command(argv, SERVER_CORE if side.is_pinned else None),
            stdout=subprocess.DEVNULL,
            stderr=log,
            text=True,
            cwd=ROOT,
        )
        try:
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


def _command(words: Sequence[str], core: int | None) -> list[str]:
    """A Python program on a core, which ends when this process does."""
    argv = [sys.executable, *words]
    if core is not None:
        usable = sorted(os.sched_getaffinity(0))
        argv = ["taskset", "--cpu-list", str(usable[core % len(usable)]), *argv]
    if shutil.which("setpriv"):
        argv = ["setpriv", "--pdeathsig", "KILL", *argv]
    return argv


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
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # what it says next, or that it says nothing, tells more

    def leave(self) -> None:
        """
        Close its connections; it stays.

        Raises:
            RunError: It failed.
        """
        self.tell()
        self.hear("closed", timeout_s=_READY_TIMEOUT_S)


@contextlib.contextmanager
def running_load(
    server: RunningServer, work: Work, *, is_pinned: bool, is_held: bool = False
) -> Iterator[RunningLoad]:
    """
    Start the load, on its core, and end it afterwards.

    Args:
        server: Its server.
        work: What it moves.
        is_pinned: Whether it has a core of its own.
        is_held: Whether it waits for a word before it opens the first connections.
    """
    words = [*server.load_words(work), *(["--hold"] if is_held else [])]
    process = subprocess.Popen(
        _command(
            ["-m", "benchmarks.load", *words],
            LOAD_CORE if is_pinned else None,
        ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        yield RunningLoad(process)
        process.communicate(timeout=_END_TIMEOUT_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


class OpenSide:
    """
    A side that is up: its server listens, its load waits. It may run many times.

    Args:
        run: Makes a run; is told how often the floor's receiver answers.
    """

    def __init__(self, run: Callable[[float], Outcome]) -> None:
        self._run = run

    def run(self, *, answered_every: float = 0.0) -> Outcome:
        """
        Move the work once, over new connections; what it cost.

        Args:
            answered_every: How often the floor's receiver answers; of no meaning to a server.

        Raises:
            RunError: A byte was wrong or missing, or a process failed.
        """
        return self._run(answered_every)


@contextlib.contextmanager
def opened_side(side: Side, work: Work) -> Iterator[OpenSide]:
    """
    Start what a side consists of, and end it afterwards.

    Both sides of a comparison can be up at once: who has nothing to do takes no CPU.

    Raises:
        RunError: A process failed.
        MachineError: A traced side cannot be traced here.
    """
    if side.kind == "floor":
        yield OpenSide(lambda every: run_floor(work, answered_every=every))
        return
    tracer = find_tracer() if side.is_traced else []
    others = _descendants()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quiclab-bench-")))
        server = stack.enter_context(running_server(side, work, directory))
        load = stack.enter_context(
            running_load(server, work, is_pinned=side.is_pinned, is_held=True)
        )
        load.hear("closed", timeout_s=_READY_TIMEOUT_S)
        if not side.is_traced:
            pids = _descendants() - others
            yield OpenSide(lambda _: _run_open(server, load, work, pids))
            return
        wanted = stack.enter_context(_traced(server, tracer, directory))

        traced_pids = _descendants() - others

        def run_traced(_: float) -> Outcome:
            outcome = _run_open(server, load, work, traced_pids)
            if not server.traced_probes() >= wanted:
                raise RunError("a tracer ended while the server was measured")
            return outcome

        yield OpenSide(run_traced)


def run_side(side: Side, work: Work, *, answered_every: float = 0.0) -> Outcome:
    """
    Open a side, run it once, close it.

    Raises:
        RunError: A byte was wrong or missing, or a process failed.
        MachineError: A traced side cannot be traced here.
    """
    with opened_side(side, work) as opened:
        return opened.run(answered_every=answered_every)


@contextlib.contextmanager
def _traced(server: RunningServer, tracer: Sequence[str], directory: Path) -> Iterator[set[str]]:
    provider_path = server.description["probes"]["provider_path"]
    if provider_path is None:
        raise MachineError(f"nothing can be traced: {server.description['probes']['note']}")
    scripts: list[Script] = [load_script(name) for name in SCRIPTS]
    wanted = {name for script in scripts for name in script.server_probe_names}
    with attached(
        tracer,
        [script.path for script in scripts],
        Path(provider_path),
        directory,
        is_on=lambda: server.traced_probes() >= wanted,
        is_off=lambda: not server.traced_probes(),
    ):
        yield wanted


def run_floor(work: Work, *, answered_every: float) -> Outcome:
    """
    Move the work in memory, in a process of its own on the server's core.

    Raises:
        RunError: A byte was wrong or missing.
    """
    words = [
        *("--direction", work.direction, "--bytes", str(work.total_bytes)),
        *("--datagram", str(work.datagram_bytes), "--streams", str(work.stream_count)),
        *("--answered-every", f"{answered_every:.3f}"),
    ]
    process = subprocess.Popen(
        _command(["-m", "benchmarks.floor", *words], SERVER_CORE),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        floor = RunningLoad(process)
        watch = _Watch([process.pid])
        done = floor.hear("done", timeout_s=_DONE_TIMEOUT_S)
        noise = watch.stop()
        process.communicate(timeout=_END_TIMEOUT_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    server, client = int(done["server_datagrams"]), int(done["client_datagrams"])
    return Outcome(
        total_bytes=int(done["total_bytes"]),
        seconds=0.0,
        server_ns=int(done["server_ns"]),
        worker_ns=(int(done["server_ns"]),),
        load_received_datagrams=server,
        load_sent_datagrams=client,
        **noise,
    )


def run_load(server: RunningServer, work: Work, *, is_pinned: bool = True) -> Outcome:
    """
    Move the work once through a running server.

    Raises:
        RunError: A byte was wrong or missing, or a process failed.
    """
    with running_load(server, work, is_pinned=is_pinned) as load:
        load.hear("ready", timeout_s=_READY_TIMEOUT_S)
        return _move(server, load, work, _descendants())


def _run_open(server: RunningServer, load: RunningLoad, work: Work, pids: Iterable[int]) -> Outcome:
    """Open connections, move the work, close them, and let the server be done with that."""
    load.tell()
    load.hear("ready", timeout_s=_READY_TIMEOUT_S)
    outcome = _move(server, load, work, pids)
    load.leave()
    deadline_s = time.monotonic() + _CALM_LIMIT_S
    spent_ns = cpu_ns(server.pids)
    is_calm = False
    while not is_calm and time.monotonic() < deadline_s:
        time.sleep(_CALM_LOOK_S)
        before_ns, spent_ns = spent_ns, cpu_ns(server.pids)
        is_calm = spent_ns - before_ns < _CALM_SHARE * _CALM_LOOK_S * 1e9
    return outcome


def _move(server: RunningServer, load: RunningLoad, work: Work, pids: Iterable[int]) -> Outcome:
    server.ask("reset")
    watch = _Watch(pids)
    before = [cpu_ns([pid]) for pid in server.pids]
    load.tell()
    done = load.hear("done", timeout_s=_DONE_TIMEOUT_S)
    after = [cpu_ns([pid]) for pid in server.pids]
    noise = watch.stop()
    report = _settled_report(server, work)
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
        report=report["total"],
        **noise,
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
