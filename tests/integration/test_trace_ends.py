"""
However a real run ends, it ends in order and leaves nothing but its folder.
"""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from quiclab import experiment
from quiclab.artifacts import load_manifest
from quiclab.errors import ExitCode
from quiclab.killed import label_killed_runs
from quiclab.leftovers import is_run_alive
from quiclab.observer import Phase
from quiclab.scenario import Scenario
from quiclab.trace.ndjson import parse_trace
from tests.integration.lab import find_remains, make_runner, running_lab, wait_for_phase

pytestmark = [pytest.mark.real, pytest.mark.slow]

RUNNERS = pytest.mark.parametrize(
    "name", ["local", pytest.param("docker", marks=pytest.mark.docker)]
)
END_LIMIT_S = 20.0  # orderly ends take two or three seconds; this machine may be busy


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let records of live runs lie in the test's own folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@RUNNERS
@pytest.mark.parametrize(
    ("phase", "number", "code"),
    [
        (Phase.SERVER, signal.SIGTERM, 143),
        (Phase.TRACER, signal.SIGINT, 130),
        (Phase.LOAD, signal.SIGINT, 130),
    ],
    ids=["TERM-server", "INT-tracer", "INT-load"],
)
def test_signal_ends_a_run_in_order(
    tmp_path: Path, name: str, phase: Phase, number: signal.Signals, code: int
) -> None:
    """INT as a terminal sends it, and TERM: labelled, the right exit code, nothing left."""
    with running_lab(name, tmp_path) as lab:
        wait_for_phase(lab, phase)
        os.killpg(lab.pid, number)
        assert code == lab.wait(END_LIMIT_S)
    assert "interrupted" == load_manifest(tmp_path / "latest").state
    assert [] == find_remains(name, tmp_path)


def test_interrupted_load_leaves_its_final_maps(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a load keeps what was traced until then, and says so."""
    with running_lab("local", tmp_path) as lab:
        wait_for_phase(lab, Phase.LOAD)
        with pytest.raises(subprocess.TimeoutExpired):
            lab.wait(0.7)
        os.killpg(lab.pid, signal.SIGINT)
        assert 130 == lab.wait(END_LIMIT_S)
    folder = tmp_path / "latest"
    trace = parse_trace((folder / "trace.jsonl").read_bytes())
    assert (False, True) == (trace.is_truncated, (trace.event_count("@tx_arg_counts") or 0) > 0)
    verdict = load_manifest(folder).verdict
    assert verdict is not None
    assert "invalid" == verdict.word


@RUNNERS
def test_killed_lab_is_cleaned_up_by_the_next_run(tmp_path: Path, name: str) -> None:
    """After SIGKILL the folder says "running"; whoever comes next labels it, removes the rest."""
    with running_lab(name, tmp_path) as lab:
        wait_for_phase(lab, Phase.LOAD)
        os.kill(lab.pid, signal.SIGKILL)
        lab.wait(END_LIMIT_S)
    dead = next(path for path in tmp_path.iterdir() if (path / "manifest.json").exists())
    manifest = load_manifest(dead)
    assert ("running", False) == (manifest.state, is_run_alive(manifest.run_id))
    assert [f"labelled {dead} as killed"] == label_killed_runs()
    said = make_runner(name).remove_leftovers()
    assert any(manifest.run_id in line for line in said)
    assert ([], None) == (find_remains(name, tmp_path), is_run_alive(manifest.run_id))
    assert "killed" == load_manifest(dead).state


def run_in_a_row(name: str, output: Path, *, count: int) -> None:
    """Make short runs one after the other; each must be ok and leave only its folder."""
    scenario = Scenario.model_validate({"script": ("udp-syscall",), "duration": 0.5})
    runner = make_runner(name)
    descriptor_counts = []
    for _ in range(count):
        result = experiment.run(scenario, runner=runner, output=output)
        assert ExitCode.OK == result.exit_code, result.verdict
        assert [] == find_remains(name, output)
        descriptor_counts.append(len(list(Path("/proc/self/fd").iterdir())))
    assert count == len(list(output.glob("2*")))
    # The first run fills the Docker SDK's pool of connections, which later runs use again.
    assert descriptor_counts[-1] <= descriptor_counts[0] + 2, descriptor_counts


@RUNNERS
def test_three_runs_in_a_row_leave_nothing(tmp_path: Path, name: str) -> None:
    """No process, container, network or temporary file stays, and no descriptor leaks."""
    run_in_a_row(name, tmp_path, count=3)


@RUNNERS
@pytest.mark.endurance
def test_twenty_runs_in_a_row_leave_nothing(tmp_path: Path, name: str) -> None:
    """The same, long enough to see what grows slowly."""
    run_in_a_row(name, tmp_path, count=20)
