"""
`python -m server` as a process of its own, for tests that come from outside.
"""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.control import request

START_TIMEOUT_S = 20.0
END_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """
    A server that listens.

    Args:
        process: It.
        control_path: Its control socket.
        ip: Where it listens.
        port: Where it listens.
        server_name: A name in its certificate.
        ca_path: What a client trusts.
    """

    process: subprocess.Popen[str]
    control_path: Path
    ip: str
    port: int
    server_name: str
    ca_path: Path

    def report(self) -> dict[str, Any]:
        """
        Its counters.
        """
        return request(self.control_path, "report")

    def wait_for(
        self, is_so: Callable[[dict[str, Any]], bool], *, timeout_s: float = 60.0
    ) -> dict[str, Any]:
        """
        Its counters, once something is true of their total.
        """
        deadline_s = time.monotonic() + timeout_s
        while not is_so((report := self.report())["total"]):
            assert time.monotonic() < deadline_s, report["total"]
            time.sleep(0.02)
        return report

    def reset(self) -> None:
        """
        Let it count from zero.
        """
        request(self.control_path, "reset")

    def client_words(self) -> list[str]:
        """
        The words of `python -m client` that name this server.
        """
        return [
            *("--ip", self.ip, "--port", str(self.port)),
            *("--server-name", self.server_name, "--ca-file", str(self.ca_path)),
        ]


@contextlib.contextmanager
def run_server(directory: Path, *words: str, ip: str = "127.0.0.1") -> Iterator[ServerProcess]:
    """
    Start a server without probes, and end it in order.
    """
    control_path = directory / "server.sock"
    argv = [sys.executable, "-m", "server", "--ip", ip, "--probes", "off"]
    process = subprocess.Popen(
        [*argv, "--control", str(control_path), *words], stdout=subprocess.PIPE, text=True
    )
    try:
        description = request(control_path, "describe", wait_s=START_TIMEOUT_S)
        ca_path = directory / "ca.pem"
        ca_path.write_text(description["certificate_pem"])
        yield ServerProcess(
            process=process,
            control_path=control_path,
            ip=description["address"][0],
            port=description["address"][1],
            server_name=description["server_name"],
            ca_path=ca_path,
        )
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=END_TIMEOUT_S)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
