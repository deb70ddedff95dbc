"""
bpftrace and the server's own recorder over the same window, on real parts: they agree exactly.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quiclab.artifacts import load_manifest
from quiclab.errors import ExitCode
from tests.conftest import need
from tests.integration.lab import PROJECT
from tests.integration.test_trace import ALL_SCRIPTS, RUNNERS, explain, run

pytestmark = [pytest.mark.real, pytest.mark.slow]

FIVE_SCRIPTS = (*ALL_SCRIPTS, "message-wait")
MAP_COUNT = 23


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let records of live runs lie in the test's own folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@RUNNERS
@pytest.mark.parametrize("worker_count", [1, 2])
def test_both_witnesses_agree_on_every_map(tmp_path: Path, name: str, worker_count: int) -> None:
    """Counts and sizes bucket for bucket, times within each event's own bounds."""
    result = run(
        name,
        tmp_path,
        script=FIVE_SCRIPTS,
        direction="both",
        buffer=8_000_000,
        workers=worker_count,
        connections=4 * worker_count,
        verify=True,
        **{"socket-buffer": 8_000_000},
    )
    assert ExitCode.OK == result.exit_code, explain(result)
    compared = load_manifest(result.directory).verify
    assert (MAP_COUNT, []) == (len(compared), [each for each in compared if each["difference"]])
    assert all(each["recorded_count"] for each in compared if "unmatched" not in each["map_name"])


@RUNNERS
def test_recorder_alone_fills_the_maps(tmp_path: Path, name: str) -> None:
    """No tracer runs, and each map equals the server's counter all the same."""
    result = run(name, tmp_path, direction="both", tracer="in-process")
    assert ExitCode.OK == result.exit_code, explain(result)
    assert {"server", "client"} == set(load_manifest(result.directory).roles)
    assert result.traces["io-latencies"].event_count("@tx_latencies")


def test_auto_without_root_records_in_process_and_says_why(tmp_path: Path) -> None:
    """A user who may not trace gets a labelled run instead of a refusal."""
    need(os.geteuid() == 0, "root, to become a user without rights")
    output = tmp_path / "out"
    output.mkdir()
    output.chmod(0o777)
    for parent in [*output.parents][:-1]:
        if parent.is_relative_to(tmp_path.parents[1]):
            parent.chmod(0o755)
    done = subprocess.run(
        [
            *(sys.executable, "tasks.py", "trace", "--runner", "local", "--tracer", "auto"),
            *("--duration", "300ms", "--output", str(output), "--no-install"),
        ],
        cwd=PROJECT,
        env={**os.environ, "XDG_STATE_HOME": str(output / "state"), "HOME": str(output)},
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "recorded in process, without bpftrace (tracing needs root" in done.stdout
    manifest = load_manifest(output / "latest")
    assert ("auto", "in-process") == (manifest.tracer["asked"], manifest.tracer["kind"])
