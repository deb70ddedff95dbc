"""
`python -m client`: loads a QUIC perf server and writes how it went, as JSON.

Ends by itself. Exit status 0: all that was asked for came; 5: it did not (the
reason is in the JSON and on stderr); 2 and 4: nothing was sent, one line says why;
130 and 143: ended by INT or TERM, in order, with what there was until then.
"""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from client.exits import ClientError, ExitStatus, MachineError
from client.load import Load
from client.settings import Settings, parse_settings
from server.control import Answer, ControlError, ControlServer, Mailbox, Question, make_pair
from server.loop import Loop

_BY_SIGNAL = {"SIGINT": ExitStatus.INTERRUPTED, "SIGTERM": ExitStatus.TERMINATED}


def main(argv: Sequence[str] | None = None) -> ExitStatus:
    """
    Run one load from a command line.
    """
    settings = parse_settings(sys.argv[1:] if argv is None else argv)
    # aioquic warns of every failed handshake; the result tells the same in one line.
    logging.getLogger("quic").addHandler(logging.NullHandler())
    try:
        return _run(settings)
    except ClientError as error:
        print(f"client: {error}", file=sys.stderr)
        return error.status
    except ControlError as error:
        print(f"client: {error}", file=sys.stderr)
        return ExitStatus.MACHINE_CANNOT


def _run(settings: Settings) -> ExitStatus:
    _check_output(settings.output_path)
    loop = Loop()
    load = Load(settings, loop)
    _interrupt_on_signals(load)
    try:
        close_control = _open_control(settings.control_path, load, loop)
        try:
            if not settings.is_held:
                load.start()
            while load.turn():
                pass
            result = load.result()
        finally:
            close_control()
    finally:
        load.close()
    if result is not None:
        _dump(result, settings.output_path)
        if result["reason"]:
            print(f"client: {result['reason']}", file=sys.stderr)
    if load.interrupted_by:
        return _BY_SIGNAL[load.interrupted_by]
    return ExitStatus.OK if result is not None and result["ok"] else ExitStatus.INCOMPLETE


def _check_output(path: Path | None) -> None:
    """
    Refuse a place for the result before the load, not after it.
    """
    if path is not None and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise MachineError(f"--output {path}: {path.parent} is no folder that can be written to")


def _interrupt_on_signals(load: Load) -> None:
    def interrupt(number: int, _frame: FrameType | None) -> None:
        load.interrupt(signal.Signals(number).name)

    for name in _BY_SIGNAL:
        signal.signal(signal.Signals[name], interrupt)


def _open_control(path: Path | None, load: Load, loop: Loop) -> Callable[[], None]:
    """
    Answer `describe`, `start` and `report`; returns what ends that.
    """
    if path is None:
        return lambda: None
    link, sock = make_pair()
    mailbox = Mailbox(
        sock,
        lambda question: _answer(load, question),
        # An end stays readable: left with the loop it would be a turn without a wait.
        on_end=lambda: loop.remove_reader(sock.fileno()),
    )
    loop.add_reader(mailbox.fileno(), mailbox.handle)
    server = ControlServer(path, link.request)
    server.start()

    def close() -> None:
        server.close()
        loop.remove_reader(mailbox.fileno())
        mailbox.close()

    return close


def _answer(load: Load, question: Question) -> Answer:
    op = question.get("op")
    if op == "describe":
        return {**load.describe(), "pid": os.getpid()}
    if op == "report":
        return load.report()
    if op == "start":
        load.start()
        return load.report()
    raise ControlError(f"the client cannot {op!r}; it can describe, start and report")


def _dump(result: dict[str, Any], path: Path | None) -> None:
    """
    Write the result where it was asked for; a file appears when it is complete.
    """
    text = json.dumps(result, indent=2) + "\n"
    if path is None:
        sys.stdout.write(text)
        return
    try:
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        unfinished.write_text(text)
        unfinished.replace(path)
    except OSError as error:
        raise MachineError(f"--output {path}: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
