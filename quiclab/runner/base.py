"""
The one seam between a run and the place it runs in.

A `Runner` opens a `Place` for one run. In it up to three kinds of role live:
`server`, `client` and one `tracer` per script (`tracer`, `tracer-2`, ...). The
experiment names files and talks to roles through the place, so that it never
knows whether it speaks to containers, processes or the fake that tests use.

One contract suite (tests/quiclab/runner/) runs against all three.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from quiclab.errors import RunError
from quiclab.runner.reading import Reading

RoleT = TypeVar("RoleT")

SERVER = "server"
CLIENT = "client"
TRACER = "tracer"


def tracer_roles(count: int) -> list[str]:
    """
    The roles of so many tracers: `tracer`, `tracer-2` and so on.
    """
    return [TRACER if index == 1 else f"{TRACER}-{index}" for index in range(1, count + 1)]


def find_started(roles: Mapping[str, RoleT], role: str) -> RoleT:
    """
    What a place keeps of a role.

    Raises:
        RunError: It was not started.
    """
    try:
        return roles[role]
    except KeyError:
        raise RunError(f"{role} was not started in this run") from None


@dataclass(frozen=True, slots=True)
class PlaceFacts:
    """
    What a place grants and is made of; goes into the manifest.

    Args:
        runner_name: "docker", "local" or "fake".
        summary: One line for the terminal, such as "docker (engine 20.10), image quiclab:1f2e".
        versions: Tool versions by name: "bpftrace", "python", "aioquic", "engine" and so on.
        details: Everything else worth keeping: image digest, network name, MTU, notes.
        notes: Things a reader must know (what was negotiated down and why), one line each.
    """

    runner_name: str
    summary: str
    versions: Mapping[str, str]
    details: Mapping[str, Any]
    notes: Sequence[str] = ()


class Place(Protocol):
    """
    Where one run lives. Leaving the `with` block removes everything it made.
    """

    facts: PlaceFacts

    def path(self, role: str, name: str) -> str:
        """Path of a file of the role, as that role sees it. Outlives the role's end."""

    def probe_directory(self) -> str:
        """Folder for the provider file, as the server sees it; writable, may hold code to map."""

    def provider_path_for_tracer(self, server_path: str) -> str:
        """How a tracer names a file that the server sees as `server_path`. Server is running."""

    def server_address(self) -> str:
        """The IP address the server is told to bind and the client to call."""

    def write(self, role: str, name: str, data: bytes) -> None:
        """Put a file in the role's folder, before or after it starts."""

    def read(self, role: str, name: str) -> bytes:
        """
        Fetch a file from the role's folder, also after it ended.

        Raises:
            FileNotFoundError: There is no such file.
        """

    def start(self, role: str, argv: Sequence[str], *, environment: Mapping[str, str]) -> None:
        """
        Start a role; its argv[0] is "python" or "bpftrace", which are the place's own.

        "timed" before "bpftrace" lets the kernel time the tracer's programs (docker/timed).

        It is not waited for: `request` waits until a role answers, so that
        roles that do not need each other get ready side by side.

        Raises:
            RunError: It cannot be started; the message carries the reason.
        """

    def request(self, role: str, op: str, **arguments: Any) -> Mapping[str, Any]:
        """
        One question over the role's control socket (server/control.py), one answer.

        The role was started with `--control path(role, "control.sock")`. Waits
        until the socket is there.

        Raises:
            RoleExitedError: The role is gone.
            RunError: No answer in time, or the role answered with an error.
        """

    def exit_status(self, role: str) -> int | None:
        """None while it runs, else its exit code, 128 + n when signal n ended it."""

    def wait(self, role: str, *, timeout_s: float) -> int:
        """
        Wait for a role's end; its exit status.

        Raises:
            TimeoutError: It still runs.
        """

    def interrupt(self, role: str) -> None:
        """Send SIGINT; a role that is already gone is no error."""

    def terminate(self, role: str) -> None:
        """Send SIGTERM; a role that is already gone is no error."""

    def kill(self, role: str) -> None:
        """Send SIGKILL; a role that is already gone is no error."""

    def output(self, role: str) -> tuple[str, str]:
        """What the role wrote to stdout and stderr so far."""

    def uptime_s(self, role: str) -> float:
        """Seconds since the role started, until now or until its end."""

    def read_costs(self) -> Reading:
        """
        Look at what the roles cost and what the server's sockets lost so far.

        Called while the server runs, twice: before the load and after it.
        """


class Runner(Protocol):
    """
    Opens places. Knows what it needs and how to get it.
    """

    name: str

    def preflight(self, *, is_traced: bool = True) -> None:
        """
        Check, before anything is created, that a run can work here.

        Args:
            is_traced: By bpftrace; else only server and client must work.

        Raises:
            MachineError: It cannot; the line says what is missing and what to do.
        """

    def open(
        self, run_id: str, *, max_mtu_bytes: int, tracer_count: int
    ) -> AbstractContextManager[Place]:
        """
        A context manager that makes the place and removes it again.

        What can be made before it is known what each role shall do is made here, at once.
        """

    def remove_leftovers(self) -> list[str]:
        """Remove what dead runs of this user left, and only that; says what, one line each."""
