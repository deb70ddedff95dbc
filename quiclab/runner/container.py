"""
One container of a run: files in, start, questions, end, files out. The SDK's border.

Errors of the engine become the lab's own here. Nothing of the caller's file
system is mounted: files travel through the engine's archive calls, so that an
engine on another host works the same.
"""

import io
import tarfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from docker.errors import APIError, NotFound

from quiclab.containers.engine import SDK_ERRORS, Engine, engine_errors
from quiclab.errors import RoleExitedError, RunError
from quiclab.runner.words import find_last_words

_GONE = (404, 409)  # HTTP: no such container; it is not running
_END_NOTICED_S = 5.0  # the engine tells of an end within milliseconds, unless it is busy


@dataclass(frozen=True, slots=True)
class ExecResult:
    """
    What a command inside a container said.
    """

    exit_status: int | None
    stdout: str
    stderr: str


class Container:
    """
    A container that runs one role. Its end is watched by a thread, so that asking costs nothing.
    """

    def __init__(self, engine: Engine, container_id: str, role: str) -> None:
        self._api = engine.client.api
        self.container_id = container_id
        self.role = role
        self._started_s = 0.0
        self._exit_status: int | None = None
        self._ended = threading.Event()

    def start(self) -> None:
        """
        Start it.

        Raises:
            RunError: The engine cannot; the message carries its reason.
        """
        with engine_errors(f"the {self.role} container cannot be started"):
            self._api.start(self.container_id)
        self._started_s = time.monotonic()
        threading.Thread(target=self._watch, name=f"watch-{self.role}", daemon=True).start()

    def _watch(self) -> None:
        try:
            self._exit_status = int(self._api.wait(self.container_id, timeout=None)["StatusCode"])
        except SDK_ERRORS:
            self._exit_status = None  # removed meanwhile, or the engine itself went away
        self._ended.set()

    def exit_status(self) -> int | None:
        """
        None while it runs.
        """
        return self._exit_status if self._ended.is_set() else None

    def wait(self, *, timeout_s: float) -> int:
        """
        Wait for its end.

        Raises:
            TimeoutError: It still runs.
            RunError: The engine cannot say how it ended.
        """
        if not self._ended.wait(timeout_s):
            raise TimeoutError(f"{self.role} still runs after {timeout_s:g} s")
        if self._exit_status is None:
            raise RunError(f"the engine does not say how the {self.role} container ended")
        return self._exit_status

    def signal(self, name: str) -> None:
        """
        Send a signal to its main process; a container that is gone is no error.
        """
        with engine_errors(f"{name} cannot be sent to the {self.role} container"):
            try:
                self._api.kill(self.container_id, name)
            except APIError as error:
                if error.status_code not in _GONE:
                    raise

    def host_pid(self) -> int:
        """
        Its main process, as the engine's host counts.

        Raises:
            RoleExitedError: It does not run.
        """
        with engine_errors(f"the PID of the {self.role} container cannot be read"):
            pid = int(self._api.inspect_container(self.container_id)["State"]["Pid"])
        if pid == 0:
            raise self.exited()
        return pid

    def put(self, folder: str, files: Mapping[str, bytes]) -> None:
        """
        Put files into one of its folders; it need not run.

        Raises:
            RunError: The engine cannot.
        """
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name, data in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                member.mtime = int(time.time())
                archive.addfile(member, io.BytesIO(data))
        with engine_errors(f"{', '.join(files)} cannot be put into the {self.role} container"):
            self._api.put_archive(self.container_id, folder, buffer.getvalue())

    def get(self, path: str) -> bytes:
        """
        Fetch one file; it need not run any more.

        Raises:
            FileNotFoundError: There is none.
            RunError: The engine cannot.
        """
        with engine_errors(f"{path} cannot be fetched from the {self.role} container"):
            try:
                chunks, _ = self._api.get_archive(self.container_id, path)
                content = io.BytesIO(b"".join(chunks))
            except NotFound as error:
                raise FileNotFoundError(f"{path} in the {self.role} container") from error
        with tarfile.open(fileobj=content) as archive:
            file = archive.extractfile(archive.next() or tarfile.TarInfo(path))
            if file is None:
                raise FileNotFoundError(f"{path} in the {self.role} container is no file")
            return file.read()

    def run(self, argv: Sequence[str]) -> ExecResult:
        """
        Run a command beside its main process.

        Raises:
            RoleExitedError: It does not run (any more).
            RunError: The engine cannot.
        """
        with engine_errors(f"{argv[0]} cannot be run in the {self.role} container"):
            try:
                exec_id = self._api.exec_create(self.container_id, list(argv))["Id"]
                stdout, stderr = self._api.exec_start(exec_id, demux=True)
                status = self._api.exec_inspect(exec_id)["ExitCode"]
            except APIError as error:
                if error.status_code in _GONE and self._ended.wait(_END_NOTICED_S):
                    raise self.exited() from error
                raise
        return ExecResult(status, _decode(stdout), _decode(stderr))

    def output(self) -> tuple[str, str]:
        """
        What it wrote to stdout and stderr so far.
        """
        with engine_errors(f"the output of the {self.role} container cannot be read"):
            stdout = self._api.logs(self.container_id, stdout=True, stderr=False)
            stderr = self._api.logs(self.container_id, stdout=False, stderr=True)
        return _decode(stdout), _decode(stderr)

    def uptime_s(self) -> float:
        """
        Seconds since it started, until its end or until now.
        """
        if not self._started_s:
            return 0.0
        if self._ended.is_set():
            with engine_errors(f"the times of the {self.role} container cannot be read"):
                state = self._api.inspect_container(self.container_id)["State"]
            begun, ended = (
                datetime.fromisoformat(state[key]) for key in ("StartedAt", "FinishedAt")
            )
            return max(0.0, (ended - begun).total_seconds())
        return time.monotonic() - self._started_s

    def exited(self) -> RoleExitedError:
        """
        The error that says that it is gone, with its last words.
        """
        self._ended.wait(_END_NOTICED_S)
        return RoleExitedError(
            self.role,
            exit_status=self._exit_status,
            last_words=find_last_words(self.output()[1]),
            after_s=self.uptime_s(),
        )


def _decode(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")
