"""
Whole runs on real servers, clients and tracers, where they run locally and in containers.
"""

import json
import os
from pathlib import Path

import psutil
import pytest

from quiclab import experiment
from quiclab.artifacts import load_manifest
from quiclab.errors import ExitCode
from quiclab.experiment import RunResult
from quiclab.histogram import Histogram
from quiclab.observer import SilentObserver
from quiclab.scenario import Scenario
from tests.integration.lab import find_remains, make_runner

pytestmark = [pytest.mark.real, pytest.mark.slow]

ALL_SCRIPTS = ("udp-syscall", "io-latencies", "generic-offload", "recv-buffers")
RUNNERS = pytest.mark.parametrize(
    "name", ["local", pytest.param("docker", marks=pytest.mark.docker)]
)


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let records of live runs lie in the test's own folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run(name: str, output: Path, **words: object) -> RunResult:
    """Make one short run."""
    scenario = Scenario.model_validate({"script": ALL_SCRIPTS, "duration": 1.0, **words})
    return experiment.run(scenario, runner=make_runner(name), output=output)


def explain(result: RunResult) -> str:
    """Say why a run is not ok."""
    return "\n".join(finding.text for finding in result.verdict.findings)


@RUNNERS
@pytest.mark.parametrize("direction", ["download", "upload"])
def test_all_scripts_agree_with_the_server(tmp_path: Path, name: str, direction: str) -> None:
    """Four tracers in one run: every map that can fill does, every count is the server's own."""
    result = run(name, tmp_path, direction=direction, buffer=8_000_000)
    assert ExitCode.OK == result.exit_code, explain(result)
    assert set(ALL_SCRIPTS) == set(result.traces)
    assert [] == find_remains(name, tmp_path)


@RUNNERS
def test_two_workers_are_traced_by_one_attach(tmp_path: Path, name: str) -> None:
    """Both workers serve, and their events add up to their counters."""
    for connection_count in (8, 16):  # which worker a connection meets is chance
        result = run(name, tmp_path, direction="both", workers=2, connections=connection_count)
        assert ExitCode.OK == result.exit_code, explain(result)
        assert result.counters is not None
        served = [worker["connections"]["opened_count"] for worker in result.counters["workers"]]
        if all(served):
            break
    assert [True, True] == [count > 0 for count in served]


@RUNNERS
def test_run_folder_is_whole_and_belongs_to_its_owner(tmp_path: Path, name: str) -> None:
    """Every promised file is there, can be read, and is owned like the output folder."""
    output = tmp_path / "my artifacts"
    output.mkdir()
    os.chown(output, 1234, 2345)
    result = run(
        name, output, script=("udp-syscall",), duration=None, bytes=1_000_000, **{"map-keys": 100}
    )
    assert ExitCode.OK == result.exit_code, explain(result)
    folder = output / "latest"
    manifest = load_manifest(folder)
    assert ("done", 1_000_000) == (
        manifest.state,
        json.loads((folder / "client.json").read_text())["bytes_received"],
    )
    assert {"bpftrace", "python", "aioquic"} <= set(manifest.versions)
    assert json.loads((folder / "trace.jsonl").read_text().splitlines()[0])
    assert "@tx_arg_counts:" in (folder / "trace.txt").read_text()
    paths = [*folder.resolve().rglob("*"), folder]
    assert {(1234, 2345)} == {(path.lstat().st_uid, path.lstat().st_gid) for path in paths}


@pytest.mark.parametrize(
    ("datagram_bytes", "total_bytes"),
    [pytest.param(None, 100_000_000, id="full"), pytest.param(1200, 40_000_000, id="1200")],
)
def test_small_ring_sends_one_message_a_call_and_a_large_one_many(
    tmp_path: Path, datagram_bytes: int | None, total_bytes: int
) -> None:
    """The original's picture: 128k is a ring of one slot; 8M carries bursts, which wait."""
    words = {"datagram": datagram_bytes, "bytes": total_bytes, "duration": None}
    scripts = ("udp-syscall", "io-latencies")
    small = run("local", tmp_path, script=scripts, buffer=128_000, **words)
    large = run("local", tmp_path, script=scripts, buffer=8_000_000, **words)
    for result in (small, large):
        assert ExitCode.OK == result.exit_code, explain(result)
    ones = find_histogram(small, "udp-syscall", "@tx_arg_counts")
    assert [1] == [bucket.low for bucket in ones.buckets if bucket.count]
    assert find_histogram(large, "udp-syscall", "@tx_arg_counts").share_from(16) >= 0.8
    medians_ns = [
        find_histogram(result, "io-latencies", "@tx_latencies").quantile_bucket(0.5).low or 0
        for result in (small, large)
    ]
    # Bounds of buckets, which double: eight times as long may show as four times.
    assert medians_ns[1] >= 4 * medians_ns[0]


def find_histogram(result: RunResult, script: str, name: str) -> Histogram:
    """Find a map that must be there."""
    histogram = result.traces[script].histogram(name)
    assert histogram is not None
    return histogram


class ServerKiller(SilentObserver):
    """Kills the server in the middle of the load."""

    def progress(self, fraction: float, *, left_s: float | None) -> None:
        """Find it among this process's children by its command line."""
        del left_s
        for process in psutil.Process().children() if fraction > 0.02 else ():
            if ["-m", "server"] == process.cmdline()[1:3]:
                process.kill()


def test_server_killed_under_load_fails_the_run_and_keeps_what_was_traced(tmp_path: Path) -> None:
    """A dead server: the run names it, and what was traced until then is kept and labelled."""
    result = experiment.run(
        Scenario.model_validate({"script": ("udp-syscall",), "duration": 30.0}),
        runner=make_runner("local"),
        output=tmp_path,
        observer=ServerKiller(),
    )
    assert ("failed", ExitCode.INVALID) == (result.manifest.state, result.exit_code)
    assert "server exited 137 after " in result.manifest.reason
    assert result.traces["udp-syscall"].event_count("@tx_arg_counts")
    assert [] == find_remains("local", tmp_path)
