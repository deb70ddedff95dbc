"""
The local runner: a run's roles are processes of this machine.

Each has a folder in the run's own temporary directory and a process group of
its own, so that Ctrl-C in the terminal reaches the lab alone, and dies with the
lab (PR_SET_PDEATHSIG) even when that is killed. What still outlives it (forked
workers) carries the run's mark in its environment; see `quiclab.leftovers`.
"""

import errno
import functools
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from quiclab import leftovers
from quiclab.errors import MachineError, RoleExitedError, RunError
from quiclab.machine.host import detect_features
from quiclab.runner.base import PlaceFacts, find_started
from quiclab.runner.look import Watched, look_here, take_reading
from quiclab.runner.reading import Reading
from quiclab.runner.words import find_last_words

PROJECT: Final = Path(__file__).resolve().parents[2]
TRACER_ENTRY: Final = PROJECT / "docker" / "tracer-entry"
TIMED: Final = PROJECT / "docker" / "timed"
ANSWER_LIMIT_S: Final = 10.0
CONTROL_WAIT_S: Final = 20.0  # Python, aioquic and the probes' library load in 0.5 s
GONE_LIMIT_S: Final = 3.0
_POLL_S: Final = 0.005  # between two looks for a role's socket, each of which takes 20 µs
# prctl(PR_SET_PDEATHSIG) and then exec; in util-linux, which every Debian has. Not by
# preexec_fn: that forks the lab, whose terminal may have a thread at work.
_DIE_WITH_PARENT: Final = ("setpriv", "--pdeathsig", "KILL", "--")
# Mounted in a mount namespace of the tracer's own, tracefs goes away with it. What is below
# /sys is made private there before; unshare's own way, from the root down, fails where the
# root is no mount point, as in a chroot.
_ALONE: Final = """
mount --make-rprivate /sys && exec "$@"
echo "tracefs is not mounted, and a tracer cannot mount it for itself alone; do it by hand:" \\
  "mount -t tracefs tracefs /sys/kernel/tracing" >&2
exit 4
"""
OWN_MOUNTS: Final = ("unshare", "--mount", "--propagation", "unchanged", "sh", "-c", _ALONE, "sh")
# sun_path holds 107 bytes (unix(7)); what is left of it holds "/server/control.sock".
_LONGEST_DIRECTORY: Final = 80


class ProcessRunner:
    """
    Runs everything as processes of this machine, with the bpftrace that PATH finds.
    """

    name = "local"

    def preflight(self, *, is_traced: bool = True) -> None:
        """
        Check that this user can trace here, or at least run server and client.

        Raises:
            MachineError: It cannot; the line says what to do.
        """
        if is_traced:
            _find_bpftrace()
            if os.geteuid() != 0:
                raise MachineError(
                    "tracing needs root: sudo ./invoke trace …, or use --runner docker"
                )
        _find_base_directory()

    @contextmanager
    def open(
        self, run_id: str, *, max_mtu_bytes: int, tracer_count: int
    ) -> Iterator["ProcessPlace"]:
        """
        Make the run's directory; leaving ends every process and removes it.

        Raises:
            MachineError: The loopback device cannot carry the MTU, or there is no room.
        """
        _check_loopback(max_mtu_bytes)
        directory = _find_base_directory() / f"{leftovers.DIRECTORY_PREFIX}{run_id}"
        with ExitStack() as undo:
            record = undo.enter_context(leftovers.register(run_id, runner_name=self.name))
            record.note_directory(directory)
            try:
                directory.mkdir(mode=0o700)
            except OSError as error:
                raise MachineError(f"cannot make {directory}: {error.strerror}") from error
            undo.callback(_remove, directory, record)
            place = ProcessPlace(directory, record, is_traced=tracer_count > 0)
            undo.callback(place.end_all)
            yield place

    def remove_leftovers(self) -> list[str]:
        """
        End processes and remove directories of local runs whose lab is dead.
        """
        return leftovers.remove_dead_runs(self.name)


@dataclass(slots=True)
class _Role:
    process: subprocess.Popen[bytes]
    started_s: float
    is_timed: bool
    ended_s: float | None = field(default=None)


class ProcessPlace:
    """
    One run's processes and their directory.
    """

    def __init__(
        self, directory: Path, record: leftovers.LiveRun, *, is_traced: bool = True
    ) -> None:
        self._directory = directory
        self._record = record
        self._roles: dict[str, _Role] = {}
        self._bpftrace = _find_bpftrace() if is_traced else shutil.which("bpftrace") or ""
        self._has_tracefs = detect_features().is_tracefs_mounted
        version = _ask_version(self._bpftrace) if self._bpftrace else ""
        notes = []
        if is_traced and not self._has_tracefs:
            notes.append("tracefs is not mounted here; each tracer mounts it for itself alone")
        self.facts = PlaceFacts(
            runner_name=ProcessRunner.name,
            summary="local (processes on this machine)"
            + (f", bpftrace {version}" if version else ""),
            versions={"bpftrace": version} if version else {},
            details={
                "directory": str(directory),
                "bpftrace_path": self._bpftrace,
                "python_path": sys.executable,
                "is_tracefs_mounted": self._has_tracefs,
            },
            notes=notes,
        )

    def path(self, role: str, name: str) -> str:
        """Path of a file of the role."""
        return str(self._folder(role) / name)

    def probe_directory(self) -> str:
        """Folder for the provider file: the run's own, so that no other run maps the file."""
        return str(self._folder("probes"))

    def provider_path_for_tracer(self, server_path: str) -> str:
        """All roles share one view of the file system."""
        return server_path

    def server_address(self) -> str:
        """Loopback, as a number: `localhost` may mean ::1 where IPv6 is off."""
        return "127.0.0.1"

    def write(self, role: str, name: str, data: bytes) -> None:
        """Put a file in the role's folder."""
        (self._folder(role) / name).write_bytes(data)

    def read(self, role: str, name: str) -> bytes:
        """Read a file of the role's folder."""
        return (self._folder(role) / name).read_bytes()

    def start(self, role: str, argv: Sequence[str], *, environment: Mapping[str, str]) -> None:
        """
        Start a process in a group of its own, its output in files of its folder.

        Raises:
            RunError: It cannot be started.
        """
        if role in self._roles:
            raise RunError(f"{role} was already started in this run")
        folder = self._folder(role)
        full_environment = {
            **os.environ,
            "PYTHONPATH": str(PROJECT),
            "PYTHONUNBUFFERED": "1",
            leftovers.RUN_MARK: self._record.run_id,
            **environment,
        }
        try:
            with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
                process = subprocess.Popen(
                    self._localize(argv),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    cwd=folder,
                    env=full_environment,
                    process_group=0,
                )
        except OSError as error:
            raise RunError(f"{role} cannot be started: {argv[0]}: {error.strerror}") from error
        self._roles[role] = _Role(process, started_s=time.monotonic(), is_timed=argv[0] == "timed")
        self._record.note_process(process.pid)

    def request(self, role: str, op: str, **arguments: Any) -> Mapping[str, Any]:
        """
        Ask over the role's Unix socket.

        Raises:
            RoleExitedError: The role is gone.
            RunError: No answer in time, or the role answered with an error.
        """
        path = self.path(role, "control.sock")
        deadline_s = time.monotonic() + CONTROL_WAIT_S
        while True:
            try:
                answer = _ask(path, {**arguments, "op": op})
            except TimeoutError as error:
                raise RunError(
                    f"{role} did not answer {op!r} within {ANSWER_LIMIT_S:.0f} s"
                ) from error
            except (OSError, ValueError) as error:
                # Not there yet, or no longer: only the process itself can tell.
                self._check_alive(role)
                if time.monotonic() > deadline_s:
                    raise RunError(f"{role} does not answer {op!r}: {error}") from error
                time.sleep(_POLL_S)
                continue
            if "error" in answer:
                raise RunError(f"{role} answered {op!r} with an error: {answer['error']}")
            return answer

    def exit_status(self, role: str) -> int | None:
        """None while it runs; 128 + n when signal n ended it."""
        started = find_started(self._roles, role)
        code = started.process.poll()
        if code is None:
            return None
        started.ended_s = started.ended_s or time.monotonic()
        return code if code >= 0 else 128 - code

    def wait(self, role: str, *, timeout_s: float) -> int:
        """
        Wait for its end.

        Raises:
            TimeoutError: It still runs.
        """
        _await_end(find_started(self._roles, role).process, timeout_s=timeout_s)
        status = self.exit_status(role)
        if status is None:
            raise TimeoutError(f"{role} still runs after {timeout_s:.1f} s")
        return status

    def interrupt(self, role: str) -> None:
        """Send SIGINT to the process itself; its workers are its own affair."""
        find_started(self._roles, role).process.send_signal(signal.SIGINT)

    def terminate(self, role: str) -> None:
        """Send SIGTERM to the process itself."""
        find_started(self._roles, role).process.send_signal(signal.SIGTERM)

    def kill(self, role: str) -> None:
        """Send SIGKILL to the process and all that it forked."""
        _kill_group(find_started(self._roles, role).process.pid)

    def output(self, role: str) -> tuple[str, str]:
        """What it wrote so far."""
        folder = self._folder(role)
        return _read(folder / "stdout"), _read(folder / "stderr")

    def uptime_s(self, role: str) -> float:
        """Seconds since its start, until now or its end."""
        self.exit_status(role)
        started = find_started(self._roles, role)
        return (started.ended_s or time.monotonic()) - started.started_s

    def read_costs(self) -> Reading:
        """
        Look at this machine's own `/proc`.
        """
        watched = {
            role: Watched(look_here, started.process.pid, is_timed=started.is_timed)
            for role, started in self._roles.items()
        }
        return take_reading(watched, at_s=time.monotonic(), is_namespace_shared=True)

    def end_all(self) -> None:
        """
        End whatever still runs, with everything that it forked.
        """
        for started in self._roles.values():
            _kill_group(started.process.pid)
        for started in self._roles.values():
            # One that sits in the kernel may not have ended then; the lab ends anyway.
            _await_end(started.process, timeout_s=GONE_LIMIT_S)
            started.process.poll()

    def _folder(self, role: str) -> Path:
        folder = self._directory / role
        folder.mkdir(exist_ok=True, mode=0o700)
        return folder

    def _check_alive(self, role: str) -> None:
        status = self.exit_status(role)
        if status is not None:
            raise RoleExitedError(
                role,
                exit_status=status,
                last_words=find_last_words(self.output(role)[1]),
                after_s=self.uptime_s(role),
            )

    def _localize(self, argv: Sequence[str]) -> list[str]:
        """The place's own programs for "python" and "bpftrace", to die with the lab."""
        local = self._find_program(argv)
        return [*_DIE_WITH_PARENT, *local] if shutil.which(_DIE_WITH_PARENT[0]) else local

    def _find_program(self, argv: Sequence[str]) -> list[str]:
        program, *arguments = argv
        if program == "python":
            local = [sys.executable, *arguments]
        elif program == "timed":
            local = [sys.executable, "-IS", str(TIMED), *self._find_program(arguments)]
        elif program == "bpftrace":
            entry = [] if self._has_tracefs else [*OWN_MOUNTS, str(TRACER_ENTRY)]
            local = [*entry, self._bpftrace, *arguments]
        elif shutil.which(program) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)
        else:
            local = list(argv)
        return local


def _ask(path: str, question: Mapping[str, Any]) -> dict[str, Any]:
    """One JSON line there, one back (server/control.py)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(ANSWER_LIMIT_S)
        sock.connect(path)
        sock.sendall(json.dumps(question).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            chunk = sock.recv(65_536)
            if not chunk:
                break
            answer += chunk
    value = json.loads(answer)
    return value if isinstance(value, dict) else {"error": f"no JSON object: {value!r:.100}"}


def _await_end(process: subprocess.Popen[bytes], *, timeout_s: float) -> None:
    """
    Wait until it has ended, or so long. `Popen.wait` looks every 50 ms, the kernel tells at once.
    """
    if process.poll() is not None:
        return
    descriptor = os.pidfd_open(process.pid)
    try:
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        waiting.poll(timeout_s * 1000)
    finally:
        os.close(descriptor)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _find_bpftrace() -> str:
    found = shutil.which("bpftrace")
    if found is None:
        raise MachineError(
            "bpftrace is not installed: sudo apt-get install bpftrace, or use --runner docker"
        )
    return found


@functools.cache  # 30 ms that the runs of one command need not each spend
def _ask_version(bpftrace: str) -> str:
    try:
        done = subprocess.run(
            [bpftrace, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(f"{bpftrace} --version does not answer: {error}") from error
    match = re.search(r"v?(\d+\.\d+[\w.+-]*)", done.stdout)
    if match is None:
        raise MachineError(f"{bpftrace} --version says {done.stdout!r}; expected a version")
    return match[1]


def _find_base_directory() -> Path:
    """
    A temporary folder where a provider file may be mapped as code and a socket's path fits.

    Raises:
        MachineError: There is none.
    """
    for candidate in (tempfile.gettempdir(), "/var/tmp", "/run", "/dev/shm"):  # noqa: S108
        base = Path(candidate).resolve()
        if len(os.fsencode(base)) > _LONGEST_DIRECTORY - 40 or not os.access(base, os.W_OK):
            continue
        if not os.statvfs(base).f_flag & os.ST_NOEXEC:
            return base
    raise MachineError(
        "no temporary folder with a short name allows executable files; set TMPDIR to one "
        "(the probes live in a file that is mapped as code)"
    )


def _check_loopback(max_mtu_bytes: int) -> None:
    mtu = _read("/sys/class/net/lo/mtu").strip()
    if mtu.isdecimal() and int(mtu) < max_mtu_bytes:
        raise MachineError(
            f"--max-mtu {max_mtu_bytes} does not fit the loopback device, whose MTU is {mtu}: "
            f"sudo ip link set lo mtu 65536"
        )


def _read(path: Path | str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _remove(directory: Path, record: leftovers.LiveRun) -> None:
    try:
        with record.removal():
            shutil.rmtree(directory)
    except OSError as error:
        raise RunError(f"{directory} cannot be removed: {error}") from error
