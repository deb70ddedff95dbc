"""
A real server in a process of its own, and a real client of ours to load it.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from server.control import request

REPOSITORY = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 20.0
END_TIMEOUT_S = 10.0
LOAD_TIMEOUT_S = 40.0


class ServerProcess:
    """
    `python -m server` with a control socket and a stats file in a folder.

    Args:
        directory: For its files.
        options: Besides those.
        prefix: Words before the command, such as a program that starts it.
    """

    def __init__(self, directory: Path, *options: str, prefix: Sequence[str] = ()) -> None:
        self.directory = directory
        self.control_path = directory / "control.sock"
        self.stats_path = directory / "server.json"
        self._errors_path = directory / "server.err"
        with self._errors_path.open("w") as errors:
            self.process = subprocess.Popen(
                [
                    *prefix,
                    *(sys.executable, "-m", "server"),
                    *("--control", str(self.control_path), "--stats-file", str(self.stats_path)),
                    *("--probe-directory", str(directory / "probes")),
                    *options,
                ],
                cwd=REPOSITORY,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.description: dict[str, Any] = json.loads(line) if line else {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def errors(self) -> str:
        """What it wrote to stderr."""
        return self._errors_path.read_text()

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """
        Ask over its control socket.
        """
        return request(self.control_path, op, arguments, wait_s=START_TIMEOUT_S)

    def load(self, *options: str) -> dict[str, Any]:
        """
        Run a client to its end; its result.
        """
        ca_path = self.directory / "ca.pem"
        ca_path.write_text(self.description["certificate_pem"])
        ip, port = self.description["address"]
        done = subprocess.run(
            [
                *(sys.executable, "-m", "client"),
                *("--ip", ip, "--port", str(port), "--ca-file", str(ca_path)),
                *options,
            ],
            cwd=REPOSITORY,
            check=False,
            capture_output=True,
            text=True,
            timeout=LOAD_TIMEOUT_S,
        )
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def settle(self) -> dict[str, Any]:
        """
        Wait until all connections are closed and the rings empty; the counters then.
        """
        for _ in range(1000):
            report = self.ask("report")
            if report["total"]["connections"]["open_count"] == 0 and report["rings_empty"]:
                return report
        raise AssertionError(f"not settled: {report}")

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        """
        Send a signal and wait; the exit status.
        """
        self.process.send_signal(number)
        return self.process.wait(timeout=END_TIMEOUT_S)

    def stats(self) -> dict[str, Any]:
        """
        What it wrote when it ended.
        """
        written: dict[str, Any] = json.loads(self.stats_path.read_text())
        return written
