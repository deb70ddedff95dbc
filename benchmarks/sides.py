"""
One run of one side: a server under test, the load against it, what both cost.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks import children
from benchmarks.hits_tracing import attached, find_tracer
from benchmarks.measure import cpu_ns, machine_times
from benchmarks.processes import (
    LOAD_CORE,
    SERVER_CORE,
    RunningLoad,
    RunningServer,
    running_load,
    running_server,
    server_words,
)
from benchmarks.work import Direction, Outcome, Side, SideKind, Work
from quiclab.errors import MachineError, RunError
from quiclab.machine.setup import ROOT
from quiclab.trace.script import Script, load_script

__all__ = [
    "LOAD_CORE",
    "ROOT",
    "SERVER_CORE",
    "Direction",
    "OpenSide",
    "Outcome",
    "RunningLoad",
    "RunningServer",
    "Side",
    "SideKind",
    "Work",
    "check_cores",
    "opened_side",
    "run_load",
    "run_side",
    "running_load",
    "running_server",
    "server_words",
]

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


def _descendants() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


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
        directory = stack.enter_context(children.own_folder("bench"))
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
    process = children.start(
        children.python("-m", "benchmarks.floor", *words),
        core=SERVER_CORE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with RunningLoad(process).ended() as floor:
        watch = _Watch([process.pid])
        done = floor.hear("done", timeout_s=_DONE_TIMEOUT_S)
        noise = watch.stop()
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
    spent_ns = sum(server.spent_ns())
    is_calm = False
    while not is_calm and time.monotonic() < deadline_s:
        time.sleep(_CALM_LOOK_S)
        before_ns, spent_ns = spent_ns, sum(server.spent_ns())
        is_calm = spent_ns - before_ns < _CALM_SHARE * _CALM_LOOK_S * 1e9
    return outcome


def _move(server: RunningServer, load: RunningLoad, work: Work, pids: Iterable[int]) -> Outcome:
    server.ask("reset")
    watch = _Watch(pids)
    before = server.spent_ns()
    load.tell()
    done = load.hear("done", timeout_s=_DONE_TIMEOUT_S)
    after = server.spent_ns()
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
