"""
What tracing adds to the server's CPU time under a load, measured within one run.

    python -m benchmarks.hits_server FOLDER TASK     (a Task as JSON; its Windows come back)

Hits that are fired one after another find everything in the caches; in a server
they don't, and what the server does next finds them colder. On a machine whose
speed changes from second to second two runs cannot show that, so one does: while
tracers stay attached, the server's sites are taken away and given back every 20 ms,
and a window with them is compared with the two beside it without.
"""

import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import children
from benchmarks.hits_tracing import are_traced, attached, probe_mask
from benchmarks.sides import LOAD_CORE, SERVER_CORE, Work
from quiclab.errors import ExitCode, LabError, MachineError, RunError
from quiclab.trace.script import load_script
from server.probes import load_provider
from server.settings import parse_settings
from server.starting import find_certificate, open_sockets
from server.udp import _native
from server.worker import Worker, make_configuration

# A turn of the loop takes up to that long, and sites change between turns alone.
_WINDOW_S: Final = 0.02
_WARM_UP_S: Final = 0.2
_FEWEST_DATAGRAMS: Final = 50  # fewer: the window waited more than it worked
_LIMIT_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """
    What to measure.

    Args:
        tracer: The command that runs bpftrace.
        scripts: Attached at once.
        work: The load.
    """

    tracer: tuple[str, ...]
    scripts: tuple[str, ...]
    work: Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """
    CPU time for a datagram with data, nanoseconds.

    Args:
        untraced_ns: The median of the windows without probes.
        added_ns: What each window with them adds, against those beside it.
    """

    untraced_ns: float
    added_ns: tuple[float, ...]

    @property
    def median_ns(self) -> float:
        """The median of what is added."""
        return statistics.median(self.added_ns)

    @property
    def error_ns(self) -> float:
        """
        By how much the median errs, one sigma.

        Of a normal distribution the quartiles are 1.35 sigma apart, and a median
        errs by 1.25 sigma over the root of the number of windows.
        """
        low, _, high = statistics.quantiles(self.added_ns, n=4)
        return 1.25 * (high - low) / 1.35 / math.sqrt(len(self.added_ns))


def measure_windows(task: Task) -> Windows:
    """
    Measure in a process of its own.

    Raises:
        RunError: It failed; the line says how.
        MachineError: It cannot be done here.
    """
    with children.own_folder("hits") as directory:
        words = ["-m", "benchmarks.hits_server", str(directory), json.dumps(asdict(task))]
        process = children.start(
            children.python(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            said, complaint = process.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired as error:
            raise RunError(f"the traced server has not ended within {_LIMIT_S:.0f} s") from error
        finally:
            if process.poll() is None:
                process.kill()  # and with it the load and the tracers
                process.communicate()
    if process.returncode == ExitCode.MACHINE_CANNOT:
        raise MachineError(complaint.strip()[-300:])
    if process.returncode != 0:
        raise RunError(f"the traced server failed: {complaint.strip()[-300:]}")
    found = json.loads(said.splitlines()[-1])
    return Windows(untraced_ns=found["untraced_ns"], added_ns=tuple(found["added_ns"]))


class _Switch:
    """
    Takes the sites away and gives them back, and keeps what a window cost.
    """

    def __init__(self, worker: Worker, sites: Sequence[int], *, is_upload: bool) -> None:
        self.windows: list[tuple[bool, float]] = []
        self._worker = worker
        self._sites = sites
        self._is_upload = is_upload
        self._is_on = True
        self._began = self._look()

    def turn(self, now_s: float) -> None:
        """End a window and begin the next."""
        began_ns, began_count = self._began
        now_ns, count = self._look()
        if count - began_count >= _FEWEST_DATAGRAMS:
            self.windows.append((self._is_on, (now_ns - began_ns) / (count - began_count)))
        self._is_on = not self._is_on
        _native.set_sites(self._sites if self._is_on else [0] * len(self._sites))
        loop = self._worker.loop
        loop.look_who_listens()
        self._began = self._look()
        loop.call_at(now_s + _WINDOW_S, self.turn)

    def _look(self) -> tuple[int, int]:
        total = self._worker.report()
        count = (
            total["rx"]["datagram_read_count"]
            if self._is_upload
            else total["tx"]["datagram_sent_count"]
        )
        return time.thread_time_ns(), count


def compare_windows(windows: Sequence[tuple[bool, float]]) -> Windows:
    """
    Hold each window with probes against the two without that lie beside it.

    Raises:
        RunError: There are too few to say anything.
    """
    added = tuple(
        on - (before + after) / 2
        for (was_on, before), (is_on, on), (will_be_on, after) in zip(
            windows, windows[1:], windows[2:], strict=False
        )
        if (was_on, is_on, will_be_on) == (False, True, False)
    )
    if len(added) < 2:
        raise RunError(f"{len(windows)} windows are too few to compare; move more bytes")
    return Windows(
        untraced_ns=statistics.median(ns for is_on, ns in windows if not is_on), added_ns=added
    )


def _serve(task: Task, directory: Path) -> list[tuple[bool, float]]:
    """
    Serve the load in this thread, tracers around it.
    """
    words = ["--ip", "127.0.0.1", "--port", "0", "--verify-content"]
    settings = parse_settings([*words, "--datagram", str(task.work.datagram_bytes)])
    certificate = find_certificate(settings)
    (sock,) = open_sockets(settings)
    worker = Worker(
        settings, sock, index=0, configuration=make_configuration(settings, certificate)
    )
    (directory / "ca.pem").write_text(certificate.trust_pem)
    ip, port = sock.getsockname()[:2]
    provider = load_provider(directory / "provider")
    if provider.path is None:
        raise MachineError(provider.note)
    _native.set_sites(provider.site_addresses)
    scripts = [load_script(name) for name in task.scripts]
    switch = _Switch(worker, provider.site_addresses, is_upload=task.work.direction == "upload")
    load = [
        *children.python("-m", "benchmarks.load", "--ip", ip, "--port", str(port)),
        *("--server-name", certificate.server_name, "--ca-file", str(directory / "ca.pem")),
        *("--direction", task.work.direction, "--bytes", str(task.work.total_bytes)),
        *("--connections", str(task.work.connection_count)),
        *("--streams", str(task.work.stream_count)),
        *("--datagram", str(task.work.datagram_bytes)),
    ]
    with attached(
        task.tracer,
        [script.path for script in scripts],
        provider.path,
        directory,
        is_on=partial(are_traced, probe_mask(scripts)),
        is_off=partial(are_traced, 0),
    ):
        said: list[str] = []
        driver = threading.Thread(target=_drive, args=(load, worker, said), daemon=True)
        os.sched_setaffinity(0, {_core(SERVER_CORE)})
        driver.start()
        worker.loop.call_at(worker.loop.now_s() + _WARM_UP_S, switch.turn)
        worker.run()
        driver.join(_LIMIT_S)
        _native.set_sites(provider.site_addresses)
    check_load(said)
    return switch.windows


def _core(core: int) -> int:
    usable = sorted(os.sched_getaffinity(os.getppid()))
    return usable[core % len(usable)]


def check_load(said: Sequence[str]) -> None:
    """
    Look whether the load did what it was to do, by the lines it said.

    Raises:
        RunError: A byte was wrong or missing, or it ended early.
    """
    events = [json.loads(line) for line in said if line]
    if [each["event"] for each in events] != ["ready", "done"]:
        raise RunError(f"the load failed: {events[-1].get('why', 'it ended') if events else '?'}")


def _drive(argv: Sequence[str], worker: Worker, said: list[str]) -> None:
    """Run the load, keep what it says, then let the server end."""
    try:
        with children.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as load:
            os.sched_setaffinity(load.pid, {_core(LOAD_CORE)})
            assert load.stdin is not None
            assert load.stdout is not None
            for _ in ("ready", "done"):
                said.append(load.stdout.readline())
                with contextlib.suppress(BrokenPipeError):  # what it said last tells why
                    load.stdin.write("\n")
                    load.stdin.flush()
    finally:
        worker.loop.stop()


def main() -> int:
    """
    Do one task; the exit code of what went wrong.
    """
    folder, text = sys.argv[1:]
    words = json.loads(text)
    task = Task(
        tracer=tuple(words["tracer"]),
        scripts=tuple(words["scripts"]),
        work=Work(**words["work"]),
    )
    try:
        windows = compare_windows(_serve(task, Path(folder)))
    except LabError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    print(json.dumps(asdict(windows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
