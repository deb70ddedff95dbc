"""
Live runs are known as alive, dead ones by what they left; nothing else is touched.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from quiclab import leftovers
from quiclab.errors import MachineError

RUN = "20261130T120000Z-k3f9"
PROJECT = Path(__file__).resolve().parents[2]

# A lab that registers a run, makes a folder and a child, says so and is then killed.
LAB = """
import subprocess, sys, time
from pathlib import Path
from quiclab import leftovers
from quiclab.errors import MachineError

run_id, directory, mark = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
with leftovers.register(run_id, runner_name="local") as record:
    record.note_directory(directory)
    directory.mkdir()
    (directory / "file").touch()
    child = subprocess.Popen(
        ["sleep", "60"], env={leftovers.RUN_MARK: run_id} if mark == "mark" else {}
    )
    if mark == "note":
        record.note_process(child.pid)
    print(child.pid, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records lie in the test's own folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@contextmanager
def lab(directory: Path, *, run_id: str = RUN, mark: str = "note") -> Iterator[tuple[int, int]]:
    """Start a lab in a process of its own; gives its pid and its child's."""
    process = subprocess.Popen(
        [sys.executable, "-c", LAB, run_id, str(directory), mark],
        stdout=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
    )
    assert process.stdout is not None
    child_pid = int(process.stdout.readline())
    try:
        yield process.pid, child_pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        for one in psutil.process_iter():
            if one.pid == child_pid and one.name() == "sleep":
                one.kill()


def wait_until_dead(pid: int) -> None:
    """Wait for a process that somebody else has to reap."""
    deadline_s = time.monotonic() + 5
    while time.monotonic() < deadline_s and psutil.pid_exists(pid):
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.01)
    assert not psutil.pid_exists(pid)


def records() -> list[str]:
    """List the records there are."""
    return sorted(path.name for path in leftovers.state_directory().iterdir())


# Alive, dead, unknown ----------------------------------------------------------


def test_registered_run_is_alive_and_forgotten_afterwards() -> None:
    """While its block runs a run is alive; after it nobody knows it."""
    with leftovers.register(RUN, runner_name="local"):
        assert leftovers.is_run_alive(RUN) is True
    assert (None, []) == (leftovers.is_run_alive(RUN), records())


def test_run_may_be_registered_twice_in_one_process() -> None:
    """Experiment and place both register; the outermost block counts."""
    with leftovers.register(RUN, runner_name="local") as outer:
        with leftovers.register(RUN, runner_name="local") as inner:
            assert outer is inner
        assert leftovers.is_run_alive(RUN) is True
    assert [] == records()


def test_run_that_fails_is_forgotten_too() -> None:
    """An exception ends the registration like everything else."""
    with pytest.raises(ZeroDivisionError), leftovers.register(RUN, runner_name="local"):
        raise ZeroDivisionError
    assert [] == records()


@pytest.mark.parametrize("run_id", ["", "../../etc/passwd", "a/b", ".hidden", "x" * 200])
def test_odd_run_id_is_unknown_and_refused(run_id: str) -> None:
    """A label that anybody could have written never becomes a path."""
    assert leftovers.is_run_alive(run_id) is None
    with pytest.raises(ValueError, match="run id"), leftovers.register(run_id, runner_name="x"):
        pass


def test_run_of_a_killed_process_is_dead(tmp_path: Path) -> None:
    """After SIGKILL the kernel has dropped the lock, and the record tells."""
    with lab(tmp_path / f"quiclab-{RUN}") as (pid, _):
        assert leftovers.is_run_alive(RUN) is True
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert leftovers.is_run_alive(RUN) is False


# Removing ----------------------------------------------------------------------


@pytest.mark.parametrize("mark", ["note", "mark"])
def test_dead_run_is_removed_with_its_folder_and_child(tmp_path: Path, mark: str) -> None:
    """A child is found by its noted pid, and by the mark in its environment."""
    directory = tmp_path / f"quiclab-{RUN}"
    with lab(directory, mark=mark) as (pid, child_pid):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        said = leftovers.remove_dead_runs("local")
        wait_until_dead(child_pid)
    assert [
        f"killed process {child_pid} (sleep) of dead run {RUN}",
        f"removed {directory} of dead run {RUN}",
    ] == said
    assert (False, []) == (directory.exists(), records())


def test_live_run_of_another_process_is_left_alone(tmp_path: Path) -> None:
    """What a live lab uses stays, whoever cleans."""
    directory = tmp_path / f"quiclab-{RUN}"
    with lab(directory) as (_, child_pid):
        assert [] == leftovers.remove_dead_runs("local")
        assert directory.exists()
        assert psutil.pid_exists(child_pid)


def test_dead_run_of_another_runner_is_left_to_it(tmp_path: Path) -> None:
    """Containers are docker's to remove, so the record stays until it has."""
    with lab(tmp_path / f"quiclab-{RUN}") as (pid, _):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert [] == leftovers.remove_dead_runs("docker")
        assert [] == leftovers.find_settled_runs("docker", engine_url="unix:///a")
        assert leftovers.is_run_alive(RUN) is False


def write_record(text: str) -> None:
    """Leave a record that no process holds."""
    (leftovers.state_directory() / f"{RUN}.jsonl").write_text(text)


@pytest.mark.parametrize(
    "name", ["elsewhere", "quiclab-20261130T120000Z-zzzz", f"quiclab-{RUN}/below"]
)
def test_record_cannot_name_a_folder_that_is_not_its_own(tmp_path: Path, name: str) -> None:
    """Only a folder called after the run is removed, whatever a record says."""
    directory = tmp_path / name
    directory.mkdir(parents=True)
    write_record(f'{{"runner": "local"}}\n{{"directory": "{directory}"}}\n')
    assert [] == leftovers.remove_dead_runs("local")
    assert (True, []) == (directory.exists(), records())


def test_symlink_in_place_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    """Somebody's symlink under the run's name leads nowhere."""
    (tmp_path / "precious").mkdir()
    (tmp_path / f"quiclab-{RUN}").symlink_to("precious")
    write_record(f'{{"runner": "local"}}\n{{"directory": "{tmp_path}/quiclab-{RUN}"}}\n')
    assert [] == leftovers.remove_dead_runs("local")
    assert (tmp_path / "precious").is_dir()


def test_process_that_took_over_a_pid_is_spared() -> None:
    """A pid whose start time differs belongs to somebody else now."""
    write_record(f'{{"runner": "local"}}\n{{"pid": {os.getppid()}, "started_s": 1.0}}\n')
    assert [] == leftovers.remove_dead_runs("local")


def test_half_written_record_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """A lab killed while it wrote leaves half a line; the whole ones count."""
    directory = tmp_path / f"quiclab-{RUN}"
    directory.mkdir()
    write_record(f'{{"runner": "local"}}\n{{"directory": "{directory}"}}\n{{"pid": 1')
    assert [f"removed {directory} of dead run {RUN}"] == leftovers.remove_dead_runs("local")


# Where records lie -------------------------------------------------------------


# What stays on record ----------------------------------------------------------


def make_record(*, engine_url: str = "", is_asking: bool = False, age_s: float = 0.0) -> None:
    """Leave the record of a dead docker run, as a killed lab would."""
    with leftovers.register(RUN, runner_name="docker") as run:
        run.has_remains = True
        if engine_url:
            run.note_engine(engine_url)
        with run.creation():
            pass
        if is_asking:
            run.append({"asked": 1})
    path = leftovers.state_directory() / f"{RUN}.jsonl"
    changed_s = time.time() - age_s
    os.utime(path, (changed_s, changed_s))


def test_run_whose_removal_failed_stays_on_record_as_dead() -> None:
    """An engine that was gone at the end of a run is asked again by the next one."""

    def fail() -> None:
        with leftovers.register(RUN, runner_name="docker") as run, run.removal():
            raise MachineError("the engine is gone")

    with pytest.raises(MachineError), leftovers.register(RUN, runner_name="docker"):
        fail()
    assert leftovers.is_run_alive(RUN) is False


@pytest.mark.parametrize(
    ("engine_url", "is_asking", "age_s", "is_settled"),
    [
        ("unix:///a", False, 0.0, True),
        ("", False, 0.0, True),
        ("unix:///b", False, 3600.0, False),  # its containers are elsewhere
        ("unix:///a", True, 0.0, False),  # what was asked for last may still be under way
        ("unix:///a", True, 3600.0, True),
    ],
)
def test_dead_run_is_forgotten_only_where_its_things_can_be_and_none_can_come(
    engine_url: str, is_asking: bool, age_s: float, is_settled: bool
) -> None:
    """Without its record a run is unknown, and what it left would stay for good."""
    make_record(engine_url=engine_url, is_asking=is_asking, age_s=age_s)
    found = leftovers.find_settled_runs("docker", engine_url="unix:///a")
    assert found == ([RUN] if is_settled else [])
    leftovers.forget_runs(found)
    assert records() == ([] if is_settled else [f"{RUN}.jsonl"])


def test_second_run_with_the_same_name_is_refused() -> None:
    """Else each would remove what the other made."""
    make_record()
    with (
        pytest.raises(MachineError, match="another run"),
        leftovers.register(RUN, runner_name="docker"),
    ):
        pytest.fail("both are on record")


def test_record_that_was_never_finished_goes_when_it_is_old() -> None:
    """A lab killed while it wrote its record had made nothing else; a new one is not touched."""
    old, new = (leftovers.state_directory() / name for name in (".new-old", ".new-new"))
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    leftovers.remove_dead_runs("local")
    assert records() == [".new-new"]


def test_state_folder_follows_the_environment(tmp_path: Path) -> None:
    """XDG_STATE_HOME decides."""
    assert tmp_path / "state" / "quiclab" / "runs" == leftovers.state_directory()


def test_relative_state_home_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The XDG specification says so; the home folder decides then."""
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tmp_path / ".local/state/quiclab/runs" == leftovers.state_directory()


def test_temporary_state_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where anybody may make a folder, somebody else's is refused in one line."""
    (tmp_path / "file").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"quiclab-state-{os.geteuid()}").symlink_to("elsewhere")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(MachineError, match="set XDG_STATE_HOME"):
        leftovers.state_directory()


def test_state_folder_without_a_usable_home_is_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home that cannot hold it (here: a file is in the way) is no reason to fail."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert tmp_path / f"quiclab-state-{os.geteuid()}" == leftovers.state_directory()
