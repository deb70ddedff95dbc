"""The shipped scripts on the real server: every event traced is one the server counted."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quiclab.trace.ndjson import parse_trace
from quiclab.trace.script import evaluate_checks, find_scripts
from tests.conftest import need
from tests.scripts.tracing import traced
from tests.userland import REPOSITORY, Userland

pytestmark = [pytest.mark.real, pytest.mark.slow]

SERVER_END_LIMIT_S = 15
CLIENT_LIMIT_S = 60
WORKER_COUNT = 2
# So many that both workers get some: with 8 on 2 workers one got none in 2 of 200 tries.
CONNECTION_COUNT = 8
STREAM_BYTES = 200_000


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[dict[str, Any]]:
    """Run a server with its probes on; its first line. Its counters are in stats.json after."""
    argv = [
        *(sys.executable, "-m", "server", "--ip", "127.0.0.1", "--port", "0"),
        *("--workers", str(WORKER_COUNT), "--queue-send-buffer-size", "8000000"),
        *("--probe-directory", str(folder), "--stats-file", str(folder / "stats.json")),
    ]
    with subprocess.Popen(
        argv, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
            process.send_signal(signal.SIGINT)
            assert 0 == process.wait(timeout=SERVER_END_LIMIT_S)
        finally:
            process.kill()


def load(server: dict[str, Any], folder: Path) -> None:
    """Up and down by several connections, to the end."""
    (folder / "ca.pem").write_text(server["certificate_pem"])
    ip, port = server["address"]
    argv = [
        *(sys.executable, "-m", "client", "--ip", ip, "--port", str(port)),
        *("--server-name", server["server_name"], "--ca-file", str(folder / "ca.pem")),
        *("--connections", str(CONNECTION_COUNT), "--direction", "both"),
        *("--send", str(STREAM_BYTES), "--receive", str(STREAM_BYTES)),
        *("--output", str(folder / "client.json")),
    ]
    subprocess.run(argv, cwd=REPOSITORY, check=True, timeout=CLIENT_LIMIT_S)


def test_counts_agree_with_the_servers_own_for_two_workers(
    userland: Userland, tmp_path: Path
) -> None:
    """All scripts at once, attached by path: each map equals the counters of both workers."""
    scripts = find_scripts()
    # The server ends before the tracers, so that its last datagrams are traced as well.
    with contextlib.ExitStack() as tracers, serving(tmp_path) as server:
        need(server["probes"]["is_on"], f"the probe library: {server['probes']['note']}")
        provider = Path(server["probes"]["provider_path"])
        for script in scripts:
            output = tmp_path / f"{script.name}.jsonl"
            tracers.enter_context(traced(userland, script.path, provider, output=output))
        load(server, tmp_path)
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert WORKER_COUNT == sum(
        worker["tx"]["datagram_sent_count"] > 0 for worker in stats["workers"]
    )
    for script in scripts:
        trace = parse_trace((tmp_path / f"{script.name}.jsonl").read_bytes())
        results = evaluate_checks(script, trace, stats["total"])
        assert [] == [result.render() for result in results if not result.is_equal]
        for note in script.maps:
            if not note.name.endswith("unmatched"):
                assert trace.event_count(note.name), f"{script.name} {note.name} is empty"
