"""
A Docker engine in a page: answers over a Unix socket what a test tells it to.

The real SDK talks to it, so that what engines elsewhere say (rootless ones, old
ones, ones that remap users) can be shown on a machine that has another.
"""

import json
import re
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

VERSION = {
    "Version": "99.1",
    "ApiVersion": "1.41",
    "Os": "linux",
    "Arch": "amd64",
    "Components": [{"Name": "Engine", "Version": "99.1"}, {"Name": "runc", "Version": "1.2"}],
}
INFO = {
    "OSType": "linux",
    "Architecture": "x86_64",
    "KernelVersion": "6.1.0",
    "OperatingSystem": "Testing OS",
    "Driver": "overlay2",
    "CgroupVersion": "2",
    "SecurityOptions": ["name=seccomp,profile=default"],
}


class FakeEngine(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """
    Args:
        path: Its socket.
        info: What differs from `INFO`.
        unknown_capabilities: Names it refuses, as engines before 23 refuse newer ones.
    """

    daemon_threads = True

    def __init__(
        self, path: Path, info: Mapping[str, Any], unknown_capabilities: frozenset[str]
    ) -> None:
        super().__init__(str(path), _Handler)
        self.url = f"unix://{path}"
        self.info = {**INFO, **info}
        self.unknown_capabilities = unknown_capabilities
        self.requests: list[str] = []
        self.images: set[str] = set()


class _Handler(BaseHTTPRequestHandler):
    server: FakeEngine

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        if self.path.endswith("/version"):
            self._answer(200, VERSION)
        elif self.path.endswith("/info"):
            self._answer(200, self.server.info)
        elif match := re.search(r"/images/(.+)/json", self.path):
            name = unquote(match[1])
            if name in self.server.images:
                self._answer(200, {"Id": f"sha256:{name}", "Architecture": "amd64"})
            else:
                self._answer(404, {"message": f"No such image: {name}"})
        else:
            self._answer(404, {"message": f"no {self.path}"})

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append(self.path)
        if re.search(r"/containers/create", self.path):
            for name in json.loads(asked)["HostConfig"].get("CapAdd") or []:
                if name in self.server.unknown_capabilities:
                    words = f'invalid CapAdd: unknown capability: "CAP_{name}"'
                    self._answer(400, {"message": words})
                    return
        if "/build" in self.path:
            self.server.images.update(parse_qs(urlsplit(self.path).query).get("t", []))
            self._answer(200, {"stream": "Step 1/1 : FROM scratch\n"})
            return
        self._answer(404, {"message": "No such image: none"})

    def _answer(self, status: int, body: Mapping[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Say nothing."""


@contextmanager
def serve_engine(
    folder: Path,
    *,
    info: Mapping[str, Any] | None = None,
    unknown_capabilities: frozenset[str] = frozenset(),
) -> Iterator[FakeEngine]:
    """
    Run one while the block runs.
    """
    with FakeEngine(folder / "engine.sock", info or {}, unknown_capabilities) as engine:
        thread = threading.Thread(target=engine.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield engine
        finally:
            engine.shutdown()
            thread.join()
