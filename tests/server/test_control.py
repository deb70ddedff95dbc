"""
server.control: questions and answers over a Unix socket.
"""

import json
import os
import socket
import threading
from typing import Any

import pytest

from server.control import (
    ControlError,
    ControlServer,
    Link,
    Mailbox,
    NobodyThereError,
    main,
    make_pair,
    request,
)


def _echo(question: Any) -> Any:
    if question["op"] == "fail":
        raise ControlError("it was planted")
    return {"heard": dict(question)}


@pytest.fixture
def path(tmp_path: Any) -> Any:
    """A control socket that echoes."""
    made = ControlServer(tmp_path / "control.sock", _echo)
    made.start()
    yield tmp_path / "control.sock"
    made.close()


def test_a_question_is_answered_with_its_arguments(path: Any) -> None:
    """Op and arguments arrive as one JSON object; the answer comes back as one."""
    answer = request(path, "configure", {"window_cap_bytes": 5})
    assert answer == {"heard": {"window_cap_bytes": 5, "op": "configure"}}


def test_only_this_user_may_ask(path: Any) -> None:
    """The socket is no one else's to connect to."""
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_question_that_is_no_json_gets_an_error_and_the_next_is_answered(path: Any) -> None:
    """Rubbish on the socket is answered with an error line; the process goes on."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        sock.sendall(b"rubbish\n")
        assert "is not JSON" in json.loads(sock.makefile().readline())["error"]
    assert request(path, "x")["heard"] == {"op": "x"}


def test_a_question_nested_without_end_gets_an_error_and_the_next_is_answered(path: Any) -> None:
    """JSON too deep for the parser is rubbish as any other; the answering thread lives on."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        sock.sendall(b"[" * 100_000 + b"\n")
        assert "is not JSON" in json.loads(sock.makefile().readline())["error"]
    assert request(path, "x")["heard"] == {"op": "x"}


def test_an_asker_that_hangs_up_does_not_stop_the_answers(path: Any) -> None:
    """Whoever connects and leaves without a word costs nothing."""
    for _ in range(3):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
    assert request(path, "x")["heard"] == {"op": "x"}


def test_a_path_too_long_for_a_socket_works(tmp_path: Any) -> None:
    """A folder deeper than sun_path's 107 bytes is no obstacle, for either side."""
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    made = ControlServer(directory / "control.sock", _echo)
    made.start()
    assert request(directory / "control.sock", "x")["heard"] == {"op": "x"}
    made.close()
    assert not (directory / "control.sock").exists()


def test_a_dead_processs_socket_is_replaced_and_a_living_ones_is_not(tmp_path: Any) -> None:
    """A leftover file is taken over; a socket that answers is another process's."""
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    made = ControlServer(path, _echo)
    made.start()
    with pytest.raises(ControlError, match="another process listens there"):
        ControlServer(path, _echo)
    assert request(path, "x")["heard"] == {"op": "x"}
    made.close()


def test_asking_waits_for_the_socket_to_appear(tmp_path: Any) -> None:
    """A question may be asked before the process is up."""
    path = tmp_path / "control.sock"
    made = []

    def start() -> None:
        made.append(ControlServer(path, _echo))
        made[0].start()

    timer = threading.Timer(0.1, start)
    timer.start()
    assert request(path, "x", wait_s=5)["heard"] == {"op": "x"}
    timer.join()
    made[0].close()


def test_nobody_there_is_said_so(tmp_path: Any) -> None:
    """Without a process the error names the path and what to look at."""
    with pytest.raises(NobodyThereError, match=r"nobody listens on .*control\.sock"):
        request(tmp_path / "control.sock", "x")


@pytest.mark.parametrize(
    ("op", "status", "answer"),
    [("x", 0, {"heard": {"op": "x"}}), ("fail", 1, {"error": "it was planted"})],
)
def test_the_command_prints_the_answer_and_ends_by_it(
    path: Any, capsys: Any, op: Any, status: Any, answer: Any
) -> None:
    """The shell sees the answer line; an error answer ends with status 1."""
    assert main([str(path), op]) == status
    assert json.loads(capsys.readouterr().out) == answer


def test_the_command_ends_with_4_when_nobody_is_there(tmp_path: Any, capsys: Any) -> None:
    """Nothing to ask: one line on stderr, status 4."""
    assert main([str(tmp_path / "none.sock"), "x"]) == 4
    assert capsys.readouterr().err.startswith("server.control: nobody listens on")


def test_the_command_refuses_arguments_that_are_no_object(path: Any, capsys: Any) -> None:
    """Arguments that are not a JSON object are a usage error."""
    with pytest.raises(SystemExit) as ended:
        main([str(path), "x", "[1]"])
    assert ended.value.code == 2
    assert "expected a JSON object" in capsys.readouterr().err


def _ask_in_thread(link: Any, question: Any) -> Any:
    answers = []

    def ask() -> None:
        try:
            answers.append(link.request(question, timeout_s=5))
        except ControlError as error:
            answers.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, answers


def test_a_mailbox_answers_questions_that_come_in_pieces() -> None:
    """Lines may arrive split or joined; each is answered once, in order."""
    link, theirs = make_pair()
    mailbox = Mailbox(theirs, _echo)
    for piece in (b'{"op":', b'"a"}\n{"op":"b"}\n{"o', b'p":"c"}\n'):
        link._sock.sendall(piece)
        mailbox.handle()
    lines = link._sock.recv(1000).splitlines()
    assert [json.loads(line)["heard"]["op"] for line in lines] == ["a", "b", "c"]
    link.close()
    mailbox.close()


def test_a_link_to_a_loop_that_ended_says_so() -> None:
    """Asking after the loop's end is an error with words, not a hang."""
    link, theirs = make_pair()
    thread, answers = _ask_in_thread(link, {"op": "report"})
    assert theirs.recv(100)
    theirs.close()
    thread.join()
    link.close()
    assert isinstance(answers[0], ControlError)
    assert "no answer to 'report': the loop has ended" in str(answers[0])


def test_a_link_gives_up_on_a_loop_that_is_stuck() -> None:
    """No answer in time is an error; a late one is not taken for the next one's."""
    ours, theirs = socket.socketpair()
    link = Link(ours)
    for _ in range(2):
        with pytest.raises(ControlError, match=r"no answer to 'report' within 0\.05 s"):
            link.request({"op": "report"}, timeout_s=0.05)
    theirs.sendall(b'{"late":1}\n{"late":2}\n{"heard":"describe"}\n')
    assert link.request({"op": "describe"}) == {"heard": "describe"}
    theirs.close()
    link.close()


def test_a_mailbox_tells_when_the_asking_end_is_gone() -> None:
    """A worker learns that its supervisor has died."""
    ended = []
    link, theirs = make_pair()
    mailbox = Mailbox(theirs, _echo, on_end=lambda: ended.append(os.getpid()))
    link.close()
    mailbox.handle()
    assert ended == [os.getpid()]
    mailbox.close()


@pytest.mark.parametrize("has_late_answer", [False, True], ids=["question", "unread-answer"])
def test_an_asker_that_gave_up_does_not_end_the_loop(has_late_answer: bool) -> None:
    """A question whose asker is gone leads to an end of the mailbox, never to an exception."""
    ended = []
    link, theirs = make_pair()
    mailbox = Mailbox(theirs, _echo, on_end=lambda: ended.append("end"))
    if has_late_answer:
        link._sock.sendall(b'{"op":"a"}\n')
        mailbox.handle()
    else:
        link._sock.sendall(b'{"op":"b"}\n')
    link.close()
    mailbox.handle()
    assert ended == ["end"]
    mailbox.close()
