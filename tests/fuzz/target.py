"""
A real server that harm is done to, looked at from outside while it is.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import psutil

from tests.server.process import ServerProcess

OPEN_TO_ALL: Final = (
    *("--retry", "off", "--handshake-limit", "1"),
    *("--most-half-open", "100000", "--most-connections", "100000"),
)
_OPTIONS: Final = (
    *("--ip", "127.0.0.1", "--port", "0", "--verify-content"),
    # As much as the kernel lets a process have: what is sent should arrive.
    *("--socket-recv-buffer", str(8 * 1024 * 1024)),
)
_MEGABYTE: Final = 1_000_000
_LONGEST_BARRIER_S: Final = 30.0
_EMPTYING_LIMIT_S: Final = 30.0  # any idle timeout used here, probe timeouts, a busy machine
_LOOK_S: Final = 0.1
_IDLE_LOOK_S: Final = 2.0
_DESCRIPTOR_LOOKS: Final = 4
_SOCKET_LOOKS: Final = 20


class TargetError(Exception):
    """The server is not what it was: dead, deaf, or in the wrong."""


@dataclass(frozen=True, slots=True)
class Health:
    """
    A server's process at one moment.
    """

    rss_bytes: int
    peak_rss_bytes: int
    descriptor_count: int
    thread_count: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class SocketQueue:
    """
    What waits at a socket, and what found no room there since it was opened.
    """

    queued_bytes: int
    dropped_count: int


class Target:
    """
    A server with its socket to the kernel.

    Args:
        server: The process.
    """

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        ip, port = server.description["address"]
        self.address: tuple[str, int] = (ip, port)
        self.trust_pem: str = server.description["certificate_pem"]
        self.slowest_answer_s = 0.0
        self.good_packet_count = 0
        """Packets of well-behaved clients: not fewer than their datagrams."""
        self._process = psutil.Process(server.process.pid)
        self._known_fault_count = 0
        self._inodes = {
            str(link.readlink()).removeprefix("socket:[").removesuffix("]")
            for link in Path(f"/proc/{self._process.pid}/fd").iterdir()
        }

    def report(self) -> dict[str, Any]:
        """
        Ask for the counters over the control socket.

        Raises:
            TargetError: Nobody answers.
        """
        begun_s = time.monotonic()
        try:
            report = self.server.ask("report")
        except Exception as error:
            raise TargetError(f"the control socket is silent: {error}; {self.errors}") from error
        self.slowest_answer_s = max(self.slowest_answer_s, time.monotonic() - begun_s)
        total: dict[str, Any] = report["total"] | {"rings_empty": report["rings_empty"]}
        return total

    @property
    def rss_bytes(self) -> int:
        """How much memory the process has now."""
        rss_bytes: int = self._process.memory_info().rss
        return rss_bytes

    @property
    def errors(self) -> str:
        """What it wrote to stderr."""
        return self.server.errors

    def await_quiet(self) -> dict[str, Any]:
        """
        Wait until everything that was sent has been read and answered.

        Raises:
            TargetError: It does not read on, or it tripped over a fault.
        """
        until_s = time.monotonic() + _LONGEST_BARRIER_S
        while self.look_at_socket().queued_bytes:
            if self.server.process.poll() is not None:
                raise TargetError(f"it is dead: {self.errors}")
            if time.monotonic() > until_s:
                raise TargetError("it has stopped reading its socket")
        total = self.report()  # answered between two turns of the loop
        fault_count = count_faults(total)
        if fault_count > self._known_fault_count:
            self._known_fault_count = fault_count
            raise TargetError(f"{fault_count} faults so far: {self.errors}")
        return total

    def look_at_socket(self) -> SocketQueue:
        """
        Ask the kernel about the server's socket.
        """
        # The kernel writes the table in pieces: while others open and close sockets, a line
        # may be missing from it.
        for _ in range(_SOCKET_LOOKS):
            for line in Path("/proc/net/udp").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[9] in self._inodes:
                    queued_bytes = int(fields[4].partition(":")[2], base=16)
                    return SocketQueue(queued_bytes=queued_bytes, dropped_count=int(fields[-1]))
            time.sleep(_LOOK_S)
        raise TargetError(f"the server has no UDP socket any more: {self.errors}")

    def health(self) -> Health:
        """
        Look at the process.
        """
        cpu = self._process.cpu_times()
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        peak_kib = next(
            int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")
        )
        return Health(
            rss_bytes=self.rss_bytes,
            peak_rss_bytes=peak_kib * 1024,
            descriptor_count=self._count_descriptors(),
            thread_count=self._process.num_threads(),
            cpu_s=cpu.user + cpu.system,
        )

    def _count_descriptors(self) -> int:
        """The fewest of several looks: who has just asked over the control socket holds one."""
        counts = []
        for _ in range(_DESCRIPTOR_LOOKS):
            counts.append(self._process.num_fds())
            time.sleep(_LOOK_S)
        return min(counts)

    def await_empty(self) -> dict[str, Any]:
        """
        Wait until no connection is left and both rings are empty.

        One that closed in its handshake counts as half open until it is forgotten.

        Raises:
            TargetError: Some stay for longer than any timeout explains.
        """
        until_s = time.monotonic() + _EMPTYING_LIMIT_S
        while True:
            total = self.report()
            open_count = total["connections"]["open_count"]
            half_open_count = total["admission"]["half_open_count"]
            if not open_count and not half_open_count and total["rings_empty"]:
                return total
            if time.monotonic() > until_s:
                raise TargetError(
                    f"{open_count} connections are left, {half_open_count} half open, after "
                    f"{_EMPTYING_LIMIT_S:.0f} s of silence"
                )
            time.sleep(_LOOK_S)

    def idle_cpu_share(self) -> float:
        """
        Measure how much of a core it takes when nobody wants anything.
        """
        before = self.health().cpu_s
        time.sleep(_IDLE_LOOK_S)
        return (self.health().cpu_s - before) / _IDLE_LOOK_S


def count_faults(total: dict[str, Any]) -> int:
    """
    Read how often the server tripped over itself from its counters.
    """
    dropped: dict[str, int] = total["rx"]["datagram_dropped_counts"]
    return dropped.get("fault", 0)


@contextmanager
def start_target(directory: Path, *options: str, idle_timeout_s: int) -> Iterator[Target]:
    """
    Start a server, and let one client have its bytes: what is made once is made by then.
    """
    directory.mkdir(parents=True, exist_ok=True)
    timeout = ("--max-idle-timeout", str(idle_timeout_s))
    with ServerProcess(directory, *_OPTIONS, *timeout, *options) as server:
        target = Target(server)
        load(target)
        target.await_empty()
        yield target


# The well-behaved client -------------------------------------------------------------

_RECEIVED_BYTES: Final = 2 * _MEGABYTE
_SENT_BYTES: Final = _MEGABYTE // 5
_PAUSE_S: Final = 0.5


def load(target: Target) -> dict[str, Any]:
    """
    Let a well-behaved client move bytes both ways and compare each; its result.
    """
    result = target.server.load(
        *("--receive", str(_RECEIVED_BYTES), "--send", str(_SENT_BYTES)),
        *("--streams", "2", "--verify-content", "--max-mtu", "1500"),
    )
    target.good_packet_count += result["recovery"]["packet_sent_count"]
    if not result["ok"] or result["bytes_received"] != _RECEIVED_BYTES:
        raise TargetError(f"a well-behaved client did not get its bytes: {result['reason']}")
    return result


class GoodClients:
    """
    One well-behaved client after another, as long as the harm lasts.

    Args:
        target: Whom they load.
    """

    def __init__(self, target: Target) -> None:
        self.served_count = 0
        self.slowest_load_s = 0.0
        self.complaints: list[str] = []
        self._target = target
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                result = load(self._target)
            except Exception as error:  # noqa: BLE001 - each is told at the end
                self.complaints.append(f"{type(error).__name__}: {error}")
            else:
                self.served_count += 1
                self.slowest_load_s = max(self.slowest_load_s, result["wall_s"])
            self._is_over.wait(_PAUSE_S)
