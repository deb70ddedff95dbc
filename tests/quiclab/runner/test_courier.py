"""
A courier's answers are told from everything else that its stream may bring.
"""

import base64
import json
import socket
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quiclab.containers.engine import Engine
from quiclab.runner.courier import Courier, CourierGoneError

STDOUT, STDERR = 1, 2


def frame(stream: int, data: bytes) -> bytes:
    """Data as the engine sends it on."""
    return struct.pack(">BxxxI", stream, len(data)) + data


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The lab's end and the container's."""
    near, far = socket.socketpair()
    with near, far:
        yield near, far


@pytest.fixture
def courier(ends: tuple[socket.socket, socket.socket]) -> Courier:
    """A courier on an engine that gives the lab its end of a wire."""
    api = SimpleNamespace(
        exec_create=lambda *_, **__: {"Id": "1"}, exec_start=lambda *_, **__: ends[0]
    )
    engine = cast("Engine", SimpleNamespace(client=SimpleNamespace(api=api)))
    return Courier(engine, "container", python="python")


def say(far: socket.socket, *frames: bytes) -> None:
    """Let the container's end have spoken."""
    far.sendall(b"".join(frames))


def answer(value: Any) -> bytes:
    """One line of JSON."""
    return json.dumps(value).encode() + b"\n"


def test_answer_in_pieces_among_complaints_is_put_together(
    ends: tuple[socket.socket, socket.socket], courier: Courier
) -> None:
    """The engine cuts where it likes, and stderr shares the wire."""
    line = answer({"data": base64.b64encode(b"\x00\xff").decode()})
    say(ends[1], frame(STDOUT, line[:3]), frame(STDERR, b"hm\n"), frame(STDOUT, line[3:]))
    assert courier.read("/file") == b"\x00\xff"
    assert json.loads(ends[1].recv(4096)) == {"read": "/file"}


def test_two_answers_in_one_frame_are_two(
    ends: tuple[socket.socket, socket.socket], courier: Courier
) -> None:
    """What was read too much is the next errand's."""
    say(ends[1], frame(STDOUT, answer({"answer": {"a": 1}}) + answer({"answer": {"b": 2}})))
    assert [courier.ask("/s", op, {}, wait_s=1.0) for op in "ab"] == [{"a": 1}, {"b": 2}]


def test_file_that_is_not_there_and_socket_that_nobody_serves_are_answers(
    ends: tuple[socket.socket, socket.socket], courier: Courier
) -> None:
    """Neither ends the courier."""
    say(ends[1], frame(STDOUT, answer({"absent": "no such file"}) * 2))
    with pytest.raises(FileNotFoundError, match="no such file"):
        courier.read("/file")
    assert courier.ask("/s", "describe", {}, wait_s=1.0) is None


def test_look_brings_what_there_is(
    ends: tuple[socket.socket, socket.socket], courier: Courier
) -> None:
    """Many files come by one errand, under the names that the container has for them."""
    say(ends[1], frame(STDOUT, answer({"found": {"/proc/1/stat": "1 (held) R"}})))
    assert courier.look(["/proc/*/stat", "/none"]) == {"/proc/1/stat": "1 (held) R"}
    errand = json.loads(ends[1].recv(1000))
    assert errand == {"look": ["/proc/*/stat", "/none"]}


def test_courier_that_ends_says_its_last_words(
    ends: tuple[socket.socket, socket.socket], courier: Courier
) -> None:
    """Half an answer is none."""
    say(ends[1], frame(STDERR, b"Traceback\nNameError: x\n"), frame(STDOUT, b'{"data'))
    ends[1].shutdown(socket.SHUT_WR)
    with pytest.raises(CourierGoneError, match="NameError: x"):
        courier.read("/file")


def test_engines_own_error_is_the_couriers_end(
    ends: tuple[socket.socket, socket.socket], courier: Courier
) -> None:
    """It comes as a third stream."""
    say(ends[1], frame(3, b"the container is not running\n"))
    ends[1].shutdown(socket.SHUT_WR)
    with pytest.raises(CourierGoneError, match="is not running"):
        courier.read("/file")


def test_line_that_is_no_answer_is_the_couriers_end(
    ends: tuple[socket.socket, socket.socket], courier: Courier
) -> None:
    """A courier that speaks otherwise is given up, as one that ended."""
    say(ends[1], frame(STDOUT, b"Fatal Python error\n"))
    with pytest.raises(CourierGoneError):
        courier.read("/file")
