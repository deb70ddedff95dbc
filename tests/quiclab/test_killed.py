"""
The folder of a killed lab is labelled once its process is gone, and not before.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quiclab import experiment
from quiclab.artifacts import MANIFEST, RESERVE, load_manifest
from quiclab.killed import label_killed_runs
from quiclab.runner.fake import FakeRunner
from quiclab.scenario import Scenario

PROJECT = Path(__file__).resolve().parents[2]

# A lab that says the phase it is in and stays there.
LAB = """
import sys, time
from pathlib import Path
from quiclab import experiment
from quiclab.observer import Phase, SilentObserver
from quiclab.runner.fake import FakeRunner
from quiclab.scenario import Scenario

class Stop(SilentObserver):
    def phase_started(self, phase):
        if phase == sys.argv[2]:
            print(phase, flush=True)
            time.sleep(60)

runner = FakeRunner()
scenario = Scenario.model_validate({"script": ("udp-syscall",), "duration": 1})
experiment.run(
    scenario, runner=runner, output=Path(sys.argv[1]), observer=Stop(), clock=runner.clock
)
"""


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records lie in the test's own folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@contextmanager
def stopped_lab(output: Path, phase: str) -> Iterator[subprocess.Popen[str]]:
    """Start a lab that stays in a phase."""
    process = subprocess.Popen(
        [sys.executable, "-c", LAB, str(output), phase],
        stdout=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
    )
    assert process.stdout is not None
    assert f"{phase}\n" == process.stdout.readline()
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def make_run(output: Path) -> experiment.RunResult:
    """Make the next run."""
    runner = FakeRunner()
    scenario = Scenario.model_validate({"script": ("udp-syscall",), "duration": 1})
    return experiment.run(scenario, runner=runner, output=output, clock=runner.clock)


@pytest.mark.parametrize("phase", ["place", "load", "write"])
def test_a_killed_labs_folder_is_labelled_by_the_next_run(tmp_path: Path, phase: str) -> None:
    """State and reason say it, and neither the set-aside room nor half a file stays."""
    with stopped_lab(tmp_path / "out", phase) as lab:
        (folder,) = (tmp_path / "out").glob("2*")
        (folder / ".trace.jsonl.x1").write_bytes(b"half")
        lab.send_signal(signal.SIGKILL)
        lab.wait()
    assert "ok" == make_run(tmp_path / "out").verdict.word
    manifest = load_manifest(folder)
    assert "killed" == manifest.state
    assert "process was killed" in manifest.reason
    assert [] == list(folder.glob(".*"))


def test_a_live_labs_folder_is_left_alone(tmp_path: Path) -> None:
    """It says "running", keeps the room for its last manifest, and nobody labels it."""
    with stopped_lab(tmp_path / "out", "load"):
        assert [] == label_killed_runs()
        make_run(tmp_path / "other")
        (folder,) = (tmp_path / "out").glob("2*")
        assert "running" == load_manifest(folder).state
        assert (folder / RESERVE).exists()


def test_a_folder_that_was_put_elsewhere_costs_nothing(tmp_path: Path) -> None:
    """The user may have removed it, or put something of the same name there."""
    with stopped_lab(tmp_path / "out", "load"):
        pass
    (folder,) = (tmp_path / "out").glob("2*")
    (folder / MANIFEST).write_text("not ours")
    assert ["cannot label"] == [line[:12] for line in label_killed_runs()]
    assert "not ours" == (folder / MANIFEST).read_text()
    assert "ok" == make_run(tmp_path / "other").verdict.word
