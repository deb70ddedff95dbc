"""
Errands in a running container, by one process that stays there (docker/courier).

A command of its own (an exec) for each question would cost 85 ms, one for each
file 50 to 100 ms (an archive call); by a courier either takes 2 ms. It speaks
over the engine's attached streams, so that an engine on another host works the same.
"""

import base64
import contextlib
import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from quiclab.containers.engine import Engine

COURIER: Final = "/opt/quiclab/docker/courier"
# Output without a terminal comes in frames: stream, three zeros, length (Engine API, attach).
_FRAME: Final = struct.Struct(">BxxxI")
_STDOUT: Final = 1
# Beside the time that a question itself may take: an answer is there in 2 ms, and a process
# that is just starting on a busy machine was seen to take 3 s.
ERRAND_LIMIT_S: Final = 30.0


class CourierGoneError(Exception):
    """It ended, as it does together with its container, or the engine went away."""


class Stream:
    """
    A connection to the engine that became a stream of bytes to and from a process.

    Args:
        response: What the SDK gave for it.
    """

    def __init__(self, response: Any) -> None:
        self._response = response
        # A file object around the socket, but with TLS the socket itself.
        self._socket: socket.socket = getattr(response, "_sock", response)

    def send(self, data: bytes, *, limit_s: float) -> None:
        """Write all of it."""
        self._socket.settimeout(limit_s)
        self._socket.sendall(data)

    def receive(self, size_bytes: int) -> bytes:
        """
        Read exactly so much.

        Raises:
            CourierGoneError: The stream ended before.
        """
        data = bytearray()
        while len(data) < size_bytes:
            chunk = self._socket.recv(size_bytes - len(data))
            if not chunk:
                raise CourierGoneError
            data += chunk
        return bytes(data)

    def close(self) -> None:
        """Give the connection back; the process sees its stdin end."""
        with contextlib.suppress(OSError):  # the other side was first
            self._socket.shutdown(socket.SHUT_RDWR)
        # The SDK hangs the HTTP answer, which owns the connection, on the file object.
        with contextlib.suppress(OSError, ValueError):  # it was closed from below
            getattr(self._response, "_response", self._response).close()


class Courier:
    """
    One courier in one container.

    Args:
        engine: Who runs the container.
        container_id: Where it goes; the container runs.
        python: The interpreter there.
    """

    def __init__(self, engine: Engine, container_id: str, *, python: str) -> None:
        api = engine.client.api
        made = api.exec_create(container_id, [python, COURIER], stdin=True)
        self._stream = Stream(api.exec_start(made["Id"], socket=True))
        self._said = bytearray()

    def read(self, path: str) -> bytes:
        """
        Fetch a file.

        Raises:
            FileNotFoundError: It cannot be read.
            CourierGoneError: The container ends.
        """
        done = self._run({"read": path}, limit_s=ERRAND_LIMIT_S)
        if "data" not in done:
            raise FileNotFoundError(done["absent"])
        return base64.b64decode(done["data"])

    def look(self, patterns: Sequence[str]) -> Mapping[str, str]:
        """
        Fetch files by patterns, and of links where they point to; none is an answer, too.

        Raises:
            CourierGoneError: The container ends.
        """
        errand = {"look": list(patterns)}
        found: Mapping[str, str] = self._run(errand, limit_s=ERRAND_LIMIT_S)["found"]
        return found

    def ask(
        self, socket_path: str, op: str, arguments: Mapping[str, Any], *, wait_s: float
    ) -> Mapping[str, Any] | None:
        """
        Put a question to a control socket; None when nobody listens there in time.

        Raises:
            CourierGoneError: The container ends.
        """
        errand = {"ask": op, "of": socket_path, "with": arguments, "wait_s": wait_s}
        answer: Mapping[str, Any] | None = self._run(errand, limit_s=wait_s + ERRAND_LIMIT_S).get(
            "answer"
        )
        return answer

    def _run(self, errand: Mapping[str, Any], *, limit_s: float) -> Mapping[str, Any]:
        try:
            self._stream.send(json.dumps(errand).encode() + b"\n", limit_s=limit_s)
            done: Mapping[str, Any] = json.loads(self._read_line())
        except (OSError, ValueError) as error:  # the second: the socket was closed, or no JSON
            raise CourierGoneError(str(error)) from error
        return done

    def _read_line(self) -> bytes:
        """
        One line of its stdout; what it or the engine says elsewhere can only be its end.
        """
        complaint = bytearray()
        searched_bytes = 0  # a long answer comes in many frames, and is looked through once
        while (end := self._said.find(b"\n", searched_bytes)) < 0:
            searched_bytes = len(self._said)
            try:
                stream, size_bytes = _FRAME.unpack(self._stream.receive(_FRAME.size))
                data = self._stream.receive(size_bytes)
            except CourierGoneError:
                words = complaint.decode(errors="replace").strip()
                raise CourierGoneError(words.rpartition("\n")[2] or "it ended") from None
            # Besides stderr there is a stream of the engine's own errors.
            (self._said if stream == _STDOUT else complaint).extend(data)
        line = bytes(self._said[:end])
        del self._said[: end + 1]
        return line

    def close(self) -> None:
        """End it."""
        self._stream.close()
