"""
One container of a run: start, files in, questions, end, files out. The SDK's border.

Errors of the engine become the lab's own here. Nothing of the caller's file
system is mounted: files travel through the engine's streams and archive calls, so
that an engine on another host works the same.
"""

import base64
import io
import json
import tarfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from docker.errors import APIError, NotFound

from quiclab.containers.engine import SDK_ERRORS, Engine, engine_errors, find_reason
from quiclab.errors import RoleExitedError, RunError
from quiclab.runner.courier import Courier, CourierGoneError, Stream
from quiclab.runner.words import find_last_words

AnswerT = TypeVar("AnswerT")

_GONE = (404, 409)  # HTTP: no such container; it is not running
_END_NOTICED_S = 5.0  # the engine tells of an end within milliseconds, unless it is busy
_JUST_ENDING_S = 0.5  # from a refusal on until the end that was its cause is told
_TELL_LIMIT_S = 10.0  # some kilobytes into a pipe; a script of the user's own may be larger


@dataclass(frozen=True, slots=True)
class Words:
    """
    What a held container is told to become (docker/held).
    """

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


class Container:
    """
    A container that runs one role. Its end is watched by a thread, so that asking costs nothing.

    It is started before it is known what it shall do, and told later.

    Args:
        engine: Who runs it.
        container_id: It was created; its first process is docker/held.
        role: Whose it is.
        python: The interpreter in it.
    """

    def __init__(self, engine: Engine, container_id: str, role: str, *, python: str) -> None:
        self._engine = engine
        self._api = engine.client.api
        self._python = python
        self.container_id = container_id
        self.role = role
        self._told_s = 0.0
        self._ended_s = 0.0
        self._exit_status: int | None = None
        self._ended = threading.Event()
        self._stdin: Stream | None = None
        self._courier: Courier | None = None

    @property
    def is_told(self) -> bool:
        """Whether it was told what to become."""
        return self._told_s > 0

    def start(self) -> None:
        """
        Start it; it waits for its words.

        Raises:
            RunError: The engine cannot; the message carries its reason.
        """
        with engine_errors(f"the {self.role} container cannot be started"):
            self._stdin = Stream(
                self._api.attach_socket(self.container_id, {"stdin": 1, "stream": 1})
            )
            self._api.start(self.container_id)
        threading.Thread(target=self._watch, name=f"watch-{self.role}", daemon=True).start()

    def tell(self, words: Words) -> None:
        """
        Say what it shall become; it does so at once.

        Raises:
            RoleExitedError: It ended before it heard.
            RunError: It cannot be told.
        """
        files = {name: base64.b64encode(data).decode() for name, data in words.files.items()}
        line = {"argv": list(words.argv), "environment": dict(words.environment), "files": files}
        self._told_s = time.monotonic()
        assert self._stdin is not None
        try:
            self._stdin.send(json.dumps(line).encode() + b"\n", limit_s=_TELL_LIMIT_S)
        except (OSError, ValueError) as error:
            if self._ended.wait(_END_NOTICED_S):
                raise self.exited() from error
            raise RunError(f"the {self.role} container cannot be started: {error}") from error

    def close(self) -> None:
        """
        Give back what it holds here; the container itself is the engine's affair.
        """
        for held in (self._stdin, self._courier):
            if held is not None:
                held.close()
        self._stdin = self._courier = None

    def _watch(self) -> None:
        try:
            self._exit_status = int(self._api.wait(self.container_id, timeout=None)["StatusCode"])
        except SDK_ERRORS:
            self._exit_status = None  # removed meanwhile, or the engine itself went away
        self._ended_s = time.monotonic()
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

    def inspect(self) -> Mapping[str, Any]:
        """
        What the engine says of it: its PID as the engine's host counts, its addresses.
        """
        with engine_errors(f"the facts of the {self.role} container cannot be read"):
            facts: Mapping[str, Any] = self._api.inspect_container(self.container_id)
        return facts

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

        By the courier while it runs: 2 ms, where `unpack` takes 50 to 100.

        Raises:
            FileNotFoundError: There is none.
            RunError: The engine cannot.
        """
        try:
            return self._send(lambda courier: courier.read(path))
        except CourierGoneError:
            return self.unpack(path)  # it has ended, or is ending just now

    def look(self, patterns: Sequence[str]) -> Mapping[str, str]:
        """
        Fetch files as its processes see them, by patterns; nothing when it has ended.

        Raises:
            RunError: The engine cannot.
        """
        try:
            return self._send(lambda courier: courier.look(patterns))
        except CourierGoneError:
            return {}

    def unpack(self, path: str) -> bytes:
        """
        Fetch one file by an archive call, which asks nothing of the container itself.

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

    def ask(
        self, socket_path: str, op: str, arguments: Mapping[str, Any], *, wait_s: float
    ) -> Mapping[str, Any]:
        """
        Put a question to the control socket of its role.

        Raises:
            RoleExitedError: It does not run (any more).
            RunError: Nobody listens there, or the engine cannot.
        """
        try:
            answer = self._send(
                lambda courier: courier.ask(socket_path, op, arguments, wait_s=wait_s)
            )
        except CourierGoneError as error:
            if self._ended.wait(_END_NOTICED_S):
                raise self.exited() from error
            raise RunError(f"{self.role} cannot be asked {op!r}: {error}") from error
        if answer is None:
            # It may be just ending, and have taken its socket away before.
            if self._ended.wait(_END_NOTICED_S):
                raise self.exited()
            raise RunError(f"{self.role} did not listen for questions within {wait_s:g} s")
        return answer

    def _send(self, errand: Callable[[Courier], AnswerT]) -> AnswerT:
        """
        Have an errand run by the courier, which comes with the first.

        After an errand that was broken off its answer may still come, so that
        courier is given up; the next errand takes another.
        """
        if self._ended.is_set():
            raise CourierGoneError
        if self._courier is None:
            with engine_errors(f"nothing can be run in the {self.role} container"):
                try:
                    self._courier = Courier(self._engine, self.container_id, python=self._python)
                except APIError as error:
                    # An end in the middle of it comes in several codes.
                    if error.status_code in _GONE or self._ended.wait(_JUST_ENDING_S):
                        raise CourierGoneError(find_reason(error)) from error
                    raise
        try:
            return errand(self._courier)
        except FileNotFoundError:
            raise  # an answer like others
        except BaseException:
            self._courier.close()
            self._courier = None
            raise

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
        Seconds since it was told what to become, until its end or until now.
        """
        if not self.is_told:
            return 0.0
        return (self._ended_s or time.monotonic()) - self._told_s

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
