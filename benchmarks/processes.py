"""
The processes of a measurement: a server under test, the load against it.
"""

import contextlib
import json
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks import children
from benchmarks.measure import cpu_ns
from benchmarks.work import Side, Work
from quiclab.errors import RunError
from server.control import ControlError, request

SERVER_CORE: Final = 0
LOAD_CORE: Final = 1
END_TIMEOUT_S: Final = 10.0
_START_TIMEOUT_S: Final = 20.0


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

    def spent_ns(self) -> list[int]:
        """
        Read how long each of its processes has been on a CPU, nanoseconds.

        Raises:
            RunError: One is gone.
        """
        try:
            return [cpu_ns([pid]) for pid in self.pids]
        except OSError as error:
            raise RunError("a process of the server under test is gone") from error

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
        process = children.start(
            children.python(*argv),
            core=SERVER_CORE if side.is_pinned else None,
            stderr=log,
            environment=children.mark(directory),  # its workers are not this process's children
        )
        try:
            yield RunningServer(process, control_path, directory / "ca.pem")
        except RunError as error:
            words = (directory / "server.log").read_text().strip().rpartition("\n")[2]
            raise RunError(f"{error}{f' ({words})' if words else ''}") from error
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(END_TIMEOUT_S)
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
        try:
            said: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise RunError(f"the load says {line.strip()!r:.100}") from error
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
        self.hear("closed", timeout_s=END_TIMEOUT_S)

    @contextlib.contextmanager
    def ended(self) -> Iterator["RunningLoad"]:
        """
        Have it ended after the block: by the end of its stdin, else by force.

        Raises:
            RunError: It did not heed the end of its stdin.
        """
        try:
            yield self
            self.process.communicate(timeout=END_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise RunError(f"the load has not ended within {END_TIMEOUT_S:.0f} s") from error
        finally:
            if self.process.poll() is None:
                self.process.kill()
            with contextlib.suppress(BrokenPipeError), self.process:
                pass  # its pipes are closed, also where it has ended by itself


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
    process = children.start(
        children.python("-m", "benchmarks.load", *words),
        core=LOAD_CORE if is_pinned else None,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with RunningLoad(process).ended() as load:
        yield load
