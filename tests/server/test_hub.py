"""
server.hub: one answer of many workers', and their end.
"""

import json
import socket
import threading

import pytest

from server.control import ControlError, make_pair
from server.hub import Hub


def _end_as_a_worker(sock: socket.socket) -> None:
    """What a worker does at its end: it answers the last question, then says what it counted."""
    assert json.loads(sock.recv(1000))["op"] == "stop"
    sock.sendall(b'{"ok":true}\n{"index":0}\n')
    sock.close()


def test_nobody_takes_the_last_report_away() -> None:
    """A question that comes while the workers end is refused; the reports are complete."""
    link, theirs = make_pair()
    hub = Hub({}, [link])
    worker = threading.Thread(target=_end_as_a_worker, args=(theirs,))
    worker.start()
    reports = hub.stop()
    worker.join()
    assert reports == [{"index": 0}]
    with pytest.raises(ControlError, match="'report' was not answered: the server ends"):
        hub.answer({"op": "report"})
    link.close()
