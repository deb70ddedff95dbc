"""
Cells of the table that are shown on the fake runner, where time flies.
"""

import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from quiclab import experiment
from quiclab.clock import FakeClock
from quiclab.errors import LabError
from quiclab.observer import Phase
from quiclab.runner.fake import FakeRunner
from quiclab.runner.faults import Death, Faults, Strike
from quiclab.scenario import Scenario
from tests.faults.checks import check_folder
from tests.faults.table import CELLS, Cell, Part

FAKE = [cell for cell in CELLS if cell.part is Part.FAKE]
PLANTS = {
    "machine cannot": Faults(preflight="tracing needs root: sudo ./invoke trace"),
    "port taken": Faults(
        deaths=[Death("server", Phase.SERVER, exit_status=4, last_words="UDP port 4433 is in use")]
    ),
    "clock stepped": Faults(),
    "worker not attached": Faults(missing_probe_count=1),
    "events uncounted": Faults(uncounted_count=1),
    "lost events": Faults(lost_event_count=3),
    "socket drops": Faults(dropped_datagram_count=9),
    "connections stay": Faults(open_connection_count=2),
    "trace cut": Faults(is_trace_cut=True),
    "tracer never attaches": Faults(attach_s=float("inf")),
    "time limit": Faults(never_ending=["client"]),
}
# Set back by an hour as the run's folder gets its name, and on by a day while it lasts.
STEPS_S = (-3600.0, 86_400.0)


@dataclass(frozen=True, slots=True)
class Ended:
    """What a run came to."""

    exit_code: int
    said: str = ""


def plant(cell: Cell) -> Faults:
    """Give the fake runner's word for a fault in a phase."""
    role, _, what = cell.fault.partition(" ")
    if what == "killed":
        assert cell.phase is not None
        return Faults(deaths=[Death(role, cell.phase, exit_status=137)])
    if cell.fault in {"INT", "TERM"}:
        assert cell.phase is not None
        number = signal.Signals[f"SIG{cell.fault}"]
        is_waiting = cell.phase not in {Phase.PREFLIGHT, Phase.PLACE}
        return Faults(strikes=[Strike(number, cell.phase, is_while_waiting=is_waiting)])
    return PLANTS[cell.fault]


def make_run(runner: FakeRunner, output: Path) -> Ended:
    """Make a short run."""
    scenario = Scenario.model_validate({"script": ("udp-syscall",), "duration": 5})
    try:
        result = experiment.run(scenario, runner=runner, output=output, clock=runner.clock)
    except LabError as error:
        return Ended(int(error.exit_code), str(error))
    return Ended(int(result.exit_code))


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records lie in the test's own folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.parametrize("cell", FAKE, ids=str)
def test_fault_ends_a_run_as_the_table_says(tmp_path: Path, cell: Cell) -> None:
    """Verdict, exit code, what is kept and what it says; then the next run is ok."""
    runner = FakeRunner(plant(cell))
    if cell.fault == "clock stepped":
        runner.clock = FakeClock(STEPS_S)
    ended = make_run(runner, tmp_path / "out")
    check_folder(cell, tmp_path / "out", exit_code=ended.exit_code, said=ended.said)
    assert not any(place.is_open for place in runner.places)
    assert [] == list((tmp_path / "state").rglob("*.jsonl"))
    assert Ended(0) == make_run(FakeRunner(), tmp_path / "next")


def test_a_wall_clock_that_is_set_back_costs_no_duration(tmp_path: Path) -> None:
    """A run ends after it began, and took as long as the monotonic clock says."""
    runner = FakeRunner()
    runner.clock = FakeClock(STEPS_S)
    scenario = Scenario.model_validate({"script": ("udp-syscall",), "duration": 5})
    result = experiment.run(scenario, runner=runner, output=tmp_path, clock=runner.clock)
    manifest = result.manifest
    assert manifest.ended_at is not None
    assert manifest.timing is not None
    took_s = (manifest.ended_at - manifest.started_at).total_seconds()
    assert 5.0 < took_s < 15.0
    assert took_s == pytest.approx(manifest.timing.total_s, abs=0.001)
