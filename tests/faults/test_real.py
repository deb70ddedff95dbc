"""
Cells of the table on real parts: real server, client, tracer, kernel, engine and signals.

A few stand for all in the ordinary tests; the rest carries the marker `faults`.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from quiclab import experiment
from quiclab.artifacts import load_manifest
from quiclab.containers.compose import load_compose
from quiclab.containers.engine import EngineAddress, connect_engine
from quiclab.errors import LabError
from quiclab.killed import label_killed_runs
from quiclab.observer import Phase, SilentObserver
from quiclab.runner.base import Runner
from quiclab.runner.docker import DockerRunner
from quiclab.scenario import Scenario
from server.probes import LIBRARY
from tests.docker_lab import need_engine, need_image
from tests.faults.checks import check_folder, find_folder
from tests.faults.table import CELLS, Cell, Part
from tests.integration.lab import (
    PROJECT,
    find_remains,
    make_runner,
    running_lab,
    wait_for_phase,
)
from tests.quiclab.engine_relay import Relay, relay_engine
from tests.quiclab.runner.test_process import need_local_tracing

END_LIMIT_S: Final = 30.0
LOAD_S: Final = 1.0
LONG_LOAD_S: Final = 30.0  # one that the fault ends
TMPFS_KB: Final = 512
NO_ROOM_KB: Final = 64
ORDINARY: Final = {"server_killed-load-local", "KILL-load-docker", "disk_full-load-local"}
SIGNALS: Final = {"INT", "TERM", "second TERM", "KILL"}
WORDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "map full": {"script": ("io-latencies",), "map-keys": 2},
}


def _params(is_wanted: Callable[[Cell], bool]) -> list[Any]:
    params = []
    for cell in CELLS:
        if cell.part is not Part.REAL or not is_wanted(cell):
            continue
        for place in cell.places:
            name = f"{cell}-{place}"
            marks = [pytest.mark.real, pytest.mark.slow]
            marks += [pytest.mark.docker] if place == "docker" else []
            marks += [] if name in ORDINARY else [pytest.mark.faults]
            params.append(pytest.param(cell, place, marks=marks, id=name))
    return params


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records lie in the test's own folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@dataclass(slots=True)
class At(SilentObserver):
    """
    Does something once, when a phase has begun; in the load, when bytes have moved.
    """

    phase: Phase
    act: Callable[[], None]
    is_done: bool = False

    def phase_started(self, phase: Phase) -> None:
        """Act, unless the load has yet to start."""
        if phase is self.phase and phase is not Phase.LOAD:
            self._act_once()

    def progress(self, fraction: float, *, left_s: float | None) -> None:
        """Act in the load's middle."""
        del left_s
        if self.phase is Phase.LOAD and fraction > 0.01:
            self._act_once()

    def _act_once(self) -> None:
        if not self.is_done:
            self.is_done = True
            self.act()


def kill_role(role: str, place: str, output: Path) -> None:
    """Send SIGKILL to a role of the one run under way."""
    if place == "docker":
        folder = find_folder(output)
        assert folder is not None
        run_id = load_manifest(folder).run_id
        need_engine().client.containers.get(f"quiclab-{run_id}-{role}").kill("SIGKILL")
        return
    for process in psutil.Process().children(recursive=True):
        words = process.cmdline()
        is_it = process.name() == "bpftrace" if role == "tracer" else words[1:3] == ["-m", role]
        if is_it:
            process.kill()


def fill(directory: Path) -> None:
    """Take all the room that is left in a file system."""
    with (directory / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


@contextmanager
def small_disk(path: Path, *, size_kb: int, is_writable: bool = True) -> Iterator[Path]:
    """Mount a tiny file system of the test's own, and take it away again."""
    path.mkdir()
    options = f"size={size_kb}k,mode=755,{'rw' if is_writable else 'ro'}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


def make_run(
    place: str | Runner, output: Path, observer: SilentObserver | None = None, **words: Any
) -> tuple[int, str]:
    """Make a run in this process; its exit code, and the error if it ended with one."""
    scenario = Scenario.model_validate({"script": ("udp-syscall",), "duration": LOAD_S, **words})
    runner = make_runner(place) if isinstance(place, str) else place
    try:
        result = experiment.run(scenario, runner=runner, output=output, observer=observer)
    except LabError as error:
        return int(error.exit_code), str(error)
    return int(result.exit_code), ""


def check_afterwards(place: str, tmp_path: Path) -> None:
    """Nothing of the run is left, and the next one is ok."""
    assert [] == find_remains(place, tmp_path / "out")
    assert [] == list((tmp_path / "state").rglob("*.jsonl"))
    assert (0, "") == make_run(place, tmp_path / "next", duration=0.5)


@pytest.mark.parametrize(("cell", "place"), _params(lambda cell: cell.fault.endswith("killed")))
def test_role_that_is_killed(tmp_path: Path, cell: Cell, place: str) -> None:
    """The run names who died and how, keeps what there is, and removes the rest."""
    role = cell.fault.partition(" ")[0]
    output = tmp_path / "out"
    assert cell.phase is not None
    killer = At(cell.phase, lambda: kill_role(role, place, output))
    is_during = cell.phase in {Phase.CLIENT, Phase.TRACER, Phase.LOAD}
    code, said = make_run(place, output, killer, duration=LONG_LOAD_S if is_during else LOAD_S)
    assert killer.is_done
    check_folder(cell, output, exit_code=code, said=said)
    check_afterwards(place, tmp_path)


@pytest.mark.parametrize(("cell", "place"), _params(lambda cell: cell.fault in SIGNALS))
def test_command_that_gets_a_signal(tmp_path: Path, cell: Cell, place: str) -> None:
    """INT and TERM end it in order; after KILL the next one labels the folder and cleans up."""
    output = tmp_path / "out"
    assert cell.phase is not None
    number = signal.Signals[f"SIG{cell.fault.rpartition(' ')[2]}"]
    with running_lab(place, output, duration_s=2.0 if cell.phase is Phase.COLLECT else 60.0) as lab:
        if cell.fault == "second TERM":
            wait_for_phase(lab, Phase.LOAD)
            time.sleep(0.5)
            os.killpg(lab.pid, number)
        wait_for_phase(lab, cell.phase)
        if cell.phase is Phase.LOAD:
            time.sleep(0.7)
        os.killpg(lab.pid, number)
        status = lab.wait(END_LIMIT_S)
    if number == signal.SIGKILL:
        assert -signal.SIGKILL == status
        folder = find_folder(output)
        assert [f"labelled {folder} as killed"] == label_killed_runs()
        wait_until_clean(place, output)
    check_folder(cell, output, exit_code=None if status < 0 else status)
    check_afterwards(place, tmp_path)


def wait_until_clean(place: str, output: Path) -> None:
    """
    The engine may still be making what the dead lab asked of it; who cleans comes again.
    """
    runner = make_runner(place)
    ends_s = time.monotonic() + 90.0
    state = Path(os.environ["XDG_STATE_HOME"])
    while time.monotonic() < ends_s:
        runner.remove_leftovers()
        if not find_remains(place, output) and not list(state.rglob("*.jsonl")):
            return
        time.sleep(1.0)


@pytest.mark.parametrize(("cell", "place"), _params(lambda cell: cell.fault == "disk full"))
def test_disk_that_is_full(tmp_path: Path, cell: Cell, place: str) -> None:
    """Before the run it is refused; during it, the manifest is written all the same."""
    is_early = cell.phase is Phase.PREFLIGHT
    with small_disk(tmp_path / "disk", size_kb=NO_ROOM_KB if is_early else TMPFS_KB) as disk:
        output = disk / "out"
        filler = At(Phase.LOAD, lambda: fill(disk))
        code, said = make_run(place, output, filler)
        assert filler.is_done is not is_early
        check_folder(cell, output, exit_code=code, said=said)
        assert [] == find_remains(place, output)
    check_afterwards(place, tmp_path)


@pytest.mark.parametrize(
    ("cell", "place"), _params(lambda cell: cell.fault == "output not writable")
)
def test_output_that_cannot_be_written(tmp_path: Path, cell: Cell, place: str) -> None:
    """One line before anything is started."""
    with small_disk(tmp_path / "disk", size_kb=TMPFS_KB, is_writable=False) as disk:
        code, said = make_run(place, disk / "out")
        check_folder(cell, disk / "out", exit_code=code, said=said)
    check_afterwards(place, tmp_path)


@pytest.mark.parametrize(("cell", "place"), _params(lambda cell: cell.fault == "image missing"))
def test_image_that_is_gone(tmp_path: Path, cell: Cell, place: str) -> None:
    """The engine's word for it is one line of the run's."""
    gone = replace(need_image(), tag="quiclab:000000000000", image_id="sha256:" + "0" * 64)
    runner = DockerRunner(need_engine(), gone, load_compose({}))
    code, said = make_run(runner, tmp_path / "out")
    check_folder(cell, tmp_path / "out", exit_code=code, said=said)
    check_afterwards(place, tmp_path)


# The SDK does not close sockets whose other end went away; the garbage collector does.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("cell", "place"), _params(lambda cell: cell.fault == "engine gone"))
def test_engine_that_is_gone(tmp_path: Path, cell: Cell, place: str) -> None:
    """What it still holds is removed by the next run, once the engine is back."""
    output = tmp_path / "out"
    assert cell.phase is not None
    with relayed_runner(tmp_path) as (runner, relay):
        cutter = At(cell.phase, relay.cut)
        code, said = make_run(runner, output, cutter, duration=2.0)
        assert cutter.is_done
        check_folder(cell, output, exit_code=code, said=said)
        assert [] != find_remains(place, output)
    with relayed_runner(tmp_path) as (runner, _):
        assert (0, "") == make_run(runner, tmp_path / "next", duration=0.5)
        assert [] == find_remains(place, output)
    check_afterwards(place, tmp_path)


@contextmanager
def relayed_runner(folder: Path) -> Iterator[tuple[Runner, Relay]]:
    """A runner whose wire to the engine can be cut; the next one finds the same address."""
    image = need_image()
    (folder / "relay.sock").unlink(missing_ok=True)
    with relay_engine(folder, need_engine().address.url) as relay:
        engine = connect_engine(EngineAddress(relay.url, "test", is_chosen=True))
        try:
            yield DockerRunner(engine, image, load_compose({})), relay
        finally:
            engine.close()


@pytest.mark.parametrize(("cell", "place"), _params(lambda cell: cell.fault == "probes missing"))
def test_probes_that_cannot_be_loaded(tmp_path: Path, cell: Cell, place: str) -> None:
    """A lab with a mount namespace of its own, where something else lies over the library."""
    need_local_tracing()
    cover = 'mount --bind /dev/null "$1" && shift && exec "$@"'
    argv = ["unshare", "--mount", "sh", "-c", cover, "sh", str(LIBRARY), sys.executable]
    argv += ["-m", "tests.integration.lab", place, str(tmp_path / "out"), str(LOAD_S)]
    done = subprocess.run(argv, cwd=PROJECT, check=False, capture_output=True, text=True)
    check_folder(cell, tmp_path / "out", exit_code=done.returncode, said=done.stderr)
    check_afterwards(place, tmp_path)


@pytest.mark.parametrize(("cell", "place"), _params(lambda cell: cell.fault in WORDS))
def test_run_that_is_granted_less(tmp_path: Path, cell: Cell, place: str) -> None:
    """It ends by itself, and the verdict says what was not had."""
    code, said = make_run(place, tmp_path / "out", **WORDS[cell.fault])
    check_folder(cell, tmp_path / "out", exit_code=code, said=said)
    check_afterwards(place, tmp_path)
