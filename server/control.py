"""
Asking a running server or client: one JSON line in, one JSON line out.

A process listens on a Unix socket in a thread of its own, which never touches the
process's work: it relays each question over a socket pair to the event loop, and
the loop answers between two turns. So a question costs the traced loop no system
call besides those on the pair itself.

    python -m server.control PATH [--wait SECONDS] OP [JSON-ARGUMENTS]

prints the answer. Status 0; 1: the answer is an error; 4: nobody answers there.
"""

import argparse
import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from server.exits import ExitStatus

Question = Mapping[str, Any]
Answer = Mapping[str, Any]

ANSWER_TIMEOUT_S: Final = 10.0
_RETRY_S: Final = 0.02
_LEAST_WAIT_S: Final = 0.001  # 0 would make a socket that does not wait at all
_CHUNK_BYTES: Final = 65_536
# A question is small; whoever sends more without a newline is not asking one.
_LARGEST_QUESTION_BYTES: Final = 1024 * 1024


class ControlError(Exception):
    """A question cannot be asked or answered; one line says why."""


class NobodyThereError(ControlError):
    """No process listens on the socket."""


# Asking --------------------------------------------------------------------------


def request(
    path: Path,
    op: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    wait_s: float = 0.0,
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> dict[str, Any]:
    """
    Ask a process and return its answer, which may be `{"error": ...}`.

    Args:
        path: Its control socket.
        op: What is asked, such as "describe".
        arguments: What belongs to it.
        wait_s: How long to wait for the socket to be there.
        timeout_s: How long to wait for the answer.

    Raises:
        NobodyThereError: Nobody listens there.
        ControlError: The answer is late or damaged.
    """
    sock = _connect(path, wait_s=wait_s)
    with sock:
        sock.settimeout(timeout_s)
        try:
            sock.sendall(_to_line({**(arguments or {}), "op": op}))
            line = _read_line(sock)
        except TimeoutError as error:
            raise ControlError(f"{path}: no answer to {op!r} within {timeout_s:g} s") from error
        except OSError as error:
            raise ControlError(f"{path}: {op!r} was not answered: {error.strerror}") from error
    return _from_line(line, f"{path}: the answer to {op!r}")


def _connect(path: Path, *, wait_s: float) -> socket.socket:
    deadline_s = time.monotonic() + wait_s
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            with _short_name(path) as name:
                sock.connect(name)
        except OSError as error:
            sock.close()
            if time.monotonic() >= deadline_s:
                raise NobodyThereError(
                    f"nobody listens on {path} ({error.strerror}); is the process running, "
                    "and was it started with --control?"
                ) from error
            time.sleep(_RETRY_S)
        else:
            return sock


@contextlib.contextmanager
def _short_name(path: Path) -> Iterator[str]:
    """
    Name a socket so that it fits: sun_path holds 107 bytes (unix(7)), a folder may be longer.
    """
    longest = 107
    if len(os.fsencode(path)) <= longest:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def _to_line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _from_line(line: bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:  # the second: nested without an end
        raise ControlError(f"{what} is not JSON: {line[:100]!r}") from error
    if not isinstance(value, dict):
        raise ControlError(f"{what} is {line[:100]!r}; expected a JSON object")
    return value


def _read_line(sock: socket.socket) -> bytes:
    """
    Read up to a newline, or to the end.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        chunk = sock.recv(_CHUNK_BYTES)
        if not chunk:
            break
        line += chunk
        if len(line) > _LARGEST_QUESTION_BYTES * 16:
            raise ControlError(f"a line of more than {len(line)} bytes came; expected a short one")
    return bytes(line)


# Answering -----------------------------------------------------------------------


class ControlServer:
    """
    Listens on a Unix socket and answers each question with a function's result.

    Args:
        path: Where to listen; only this user may connect. A socket that a dead
            process left there is replaced.
        answer: Called in this server's thread, one question at a time.

    Raises:
        ControlError: Another process listens there, or the place cannot be used.
    """

    def __init__(self, path: Path, answer: Callable[[Question], Answer]) -> None:
        self._path = path
        self._answer = answer
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._bind()
        except OSError as error:
            self._sock.close()
            raise ControlError(f"--control {path}: {error.strerror}") from error
        except ControlError:
            self._sock.close()
            raise
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)

    def _bind(self) -> None:
        if self._path.is_socket():
            try:
                _connect(self._path, wait_s=0.0).close()
            except NobodyThereError:
                self._path.unlink()
            else:
                raise ControlError(f"--control {self._path}: another process listens there")
        # Bound under another name and moved, so that whoever sees it can connect.
        hidden = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        hidden.unlink(missing_ok=True)
        with _short_name(hidden) as name:
            self._sock.bind(name)
        hidden.chmod(0o600)
        self._sock.listen(8)
        hidden.rename(self._path)

    def start(self) -> None:
        """
        Begin to answer.
        """
        self._thread.start()

    def close(self) -> None:
        """
        Answer no more, and take the socket away.
        """
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._sock.accept()
            except OSError:
                return  # closed
            with connection:
                connection.settimeout(ANSWER_TIMEOUT_S)
                # Whoever asked may be gone; the next question is another's.
                with contextlib.suppress(OSError):
                    connection.sendall(_to_line(self._answer_line(connection)))

    def _answer_line(self, connection: socket.socket) -> Answer:
        try:
            return self._answer(_from_line(_read_line(connection), "the question"))
        except ControlError as error:
            return {"error": str(error)}


class Link:
    """
    The asking end of a socket pair; the event loop holds the other, a `Mailbox`.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._received = bytearray()
        self._late_count = 0  # answers that nobody waits for any more

    def request(self, question: Question, *, timeout_s: float = ANSWER_TIMEOUT_S) -> Answer:
        """
        Ask the loop.

        Raises:
            ControlError: It has ended, or is too busy to answer in time.
        """
        op = question.get("op")
        with self._lock:
            try:
                self._sock.settimeout(timeout_s)
                self._sock.sendall(_to_line(question))
            except OSError as error:
                raise ControlError(f"{op!r} was not answered: {error.strerror}") from error
            return self._read(f"answer to {op!r}", timeout_s)

    def receive(self, what: str, *, timeout_s: float = ANSWER_TIMEOUT_S) -> Answer:
        """
        Take a line that the loop's side sends on its own.

        Raises:
            ControlError: None comes.
        """
        with self._lock:
            return self._read(what, timeout_s)

    def _read(self, what: str, timeout_s: float) -> Answer:
        deadline_s = time.monotonic() + timeout_s
        try:
            while self._late_count:
                self._read_line(deadline_s)
                self._late_count -= 1
            line = self._read_line(deadline_s)
        except TimeoutError as error:
            # When it comes it must not be taken for the next one's.
            self._late_count += 1
            raise ControlError(f"no {what} within {timeout_s:g} s") from error
        except OSError as error:
            raise ControlError(f"no {what}: {error}") from error
        if not line:
            raise ControlError(f"no {what}: the loop has ended")
        return _from_line(line, f"the {what}")

    def _read_line(self, deadline_s: float) -> bytes:
        """
        Take one line, b"" at the end; what was read of it outlives a TimeoutError.
        """
        while b"\n" not in self._received:
            self._sock.settimeout(max(_LEAST_WAIT_S, deadline_s - time.monotonic()))
            chunk = self._sock.recv(_CHUNK_BYTES)
            if not chunk:
                return b""
            self._received += chunk
        line, _, rest = self._received.partition(b"\n")
        self._received = rest
        return bytes(line)

    def close(self) -> None:
        """
        Let the mailbox see the end.
        """
        self._sock.close()


class Mailbox:
    """
    The answering end, which an event loop polls.

    Args:
        sock: One end of a socket pair.
        answer: Called between two turns; a ControlError becomes an error answer.
        on_end: Called when the asking end is gone.
    """

    def __init__(
        self,
        sock: socket.socket,
        answer: Callable[[Question], Answer],
        *,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self._sock = sock
        self._answer = answer
        self._on_end = on_end
        self._buffer = bytearray()

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._sock.fileno()

    def handle(self) -> None:
        """
        Answer what has come; call it when the descriptor is readable.
        """
        # Whoever asked may have given up meanwhile; that must not end the loop.
        try:
            chunk = self._sock.recv(_CHUNK_BYTES)
            if chunk:
                self._answer_lines(chunk)
                return
        except OSError:
            pass
        if self._on_end is not None:
            self._on_end()

    def _answer_lines(self, chunk: bytes) -> None:
        self._buffer += chunk
        while b"\n" in self._buffer:
            line, _, rest = self._buffer.partition(b"\n")
            self._buffer = bytearray(rest)
            try:
                answer = self._answer(_from_line(bytes(line), "the question"))
            except ControlError as error:
                answer = {"error": str(error)}
            self._sock.sendall(_to_line(answer))

    def close(self) -> None:
        """
        Answer no more.
        """
        self._sock.close()


def make_pair() -> tuple[Link, socket.socket]:
    """
    Make a link and the socket for its mailbox.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Link(ours), theirs


# Command line --------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage text in front of it."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(ExitStatus.USAGE, f"{self.prog}: {message}\n")


def main(argv: list[str] | None = None) -> ExitStatus:
    """
    Ask one question from a shell.
    """
    parser = _Parser(prog="server.control", description="Asks a running server or client.")
    parser.add_argument("path", type=Path, help="its control socket")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds to wait for the socket")
    parser.add_argument("op", help="describe, reset, report, configure, start")
    parser.add_argument("arguments", nargs="?", default="{}", help="a JSON object")
    words = parser.parse_args(argv)
    try:
        arguments = _from_line(words.arguments.encode(), "JSON-ARGUMENTS")
    except ControlError as error:
        parser.error(str(error))
    try:
        answer = request(words.path, words.op, arguments, wait_s=words.wait)
    except NobodyThereError as error:
        print(f"server.control: {error}", file=sys.stderr)
        return ExitStatus.MACHINE_CANNOT
    except ControlError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer, separators=(",", ":")))
    return ExitStatus.INTERNAL if "error" in answer else ExitStatus.OK


if __name__ == "__main__":
    sys.exit(main())
