"""
UDP traffic that belongs to no run: two sockets on loopback that keep each other busy.

    python -m tests.integration.chatter

ends when its stdin does, or after two minutes.
"""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parents[2]
LIMIT_S: Final = 120.0
_DATAGRAM: Final = bytes(1200)


@contextmanager
def unrelated_traffic() -> Iterator[subprocess.Popen[str]]:
    """Let another Python process send and receive datagrams meanwhile."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.chatter"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert "talking\n" == process.stdout.readline()
        yield process
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def main() -> None:
    """Talk until nobody wants it any more, then say how much was said."""
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as left,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as right,
    ):
        for each in (left, right):
            each.bind(("127.0.0.1", 0))
        print("talking", flush=True)
        ends_s = time.monotonic() + LIMIT_S
        while time.monotonic() < ends_s and not _is_over.is_set():
            for sender, receiver in ((left, right), (right, left)):
                sender.sendto(_DATAGRAM, receiver.getsockname())
                receiver.recvfrom(len(_DATAGRAM))
            time.sleep(0.001)  # company, not a load that takes a core


_is_over = threading.Event()


def _end_with_stdin() -> None:
    sys.stdin.read()
    _is_over.set()


if __name__ == "__main__":
    main()
