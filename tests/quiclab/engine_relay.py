"""
A wire to the real engine that a test can cut.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Relay:
    """
    Listens on one Unix socket and passes everything on to another.
    """

    def __init__(self, path: Path, engine_path: str) -> None:
        self.url = f"unix://{path}"
        self._engine_path = engine_path
        self._is_cut = False
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._run(self._accept)

    def _run(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was shut
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                far.connect(self._engine_path)
                with self._lock:
                    self._ends += [near, far]
                    if self._is_cut:
                        return
                self._run(self._pass_on, near, far)
                self._run(self._pass_on, far, near)

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):  # one end went away
            while data := source.recv(65_536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """
        From now on nobody answers, and every open connection has ended.
        """
        with self._lock:
            self._is_cut = True
            for end in [self._listener, *self._ends]:
                with contextlib.suppress(OSError):  # it was closed from the other side
                    end.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join()
        for end in [self._listener, *self._ends]:
            end.close()


@contextmanager
def relay_engine(folder: Path, engine_url: str) -> Iterator[Relay]:
    """
    A relay for the length of the block.
    """
    relay = Relay(folder / "relay.sock", engine_url.removeprefix("unix://"))
    try:
        yield relay
    finally:
        relay.cut()
