"""
Run a script by a userland's bpftrace around something that fires its probes.
"""

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from quiclab.trace.ndjson import TraceParser
from tests.userland import Userland

ATTACH_LIMIT_S = 30
STOP_LIMIT_S = 10
POLL_S = 0.02


class TracingError(AssertionError):
    """The tracer did not start; the message holds its last words."""


@contextlib.contextmanager
def traced(
    userland: Userland, script: Path, provider: Path, *, output: Path
) -> Iterator[subprocess.Popen[str]]:
    """
    Trace while the block runs: attached before it, ended in order after it.

    Args:
        userland: Whose bpftrace.
        script: Which script.
        provider: The file that holds the probes, `$1`.
        output: Where bpftrace writes its JSON.

    Raises:
        TracingError: The probes were not attached in time.
    """
    argv = userland.command(
        ["bpftrace", "-f", "json", "-o", str(output), str(script), str(provider)]
    )
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            _wait_until_attached(process, output)
            yield process
            _stop(process)
        finally:
            process.kill()


def _stop(process: subprocess.Popen[str]) -> None:
    """
    Ask for the final maps; bpftrace 0.17 misses a SIGINT now and then, and heeds SIGTERM alike.
    """
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=STOP_LIMIT_S / 2)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=STOP_LIMIT_S)


def _wait_until_attached(process: subprocess.Popen[str], output: Path) -> None:
    deadline_s = time.monotonic() + ATTACH_LIMIT_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            _, words = process.communicate()
            raise TracingError(f"bpftrace exited {process.returncode}: {words}")
        if output.exists():
            parser = TraceParser()
            parser.feed(output.read_bytes())
            if parser.snapshot().has_begun:
                return
        time.sleep(POLL_S)
    raise TracingError(f"no probe attached within {ATTACH_LIMIT_S} s")
