"""
Nothing that a measurement starts or makes outlives it.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks import children
from benchmarks.processes import RunningLoad
from quiclab import leftovers
from quiclab.errors import RunError

_SLEEPER = children.python("-c", "import time; time.sleep(60)")


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of these tests alone, folders in a place of their own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_ctrl_c_in_the_terminal_is_not_the_childrens() -> None:
    """They are in another process group: they are ended in order instead."""
    with children.start(_SLEEPER) as process:
        assert os.getpgid(process.pid) == process.pid != os.getpgid(0)
        process.kill()


def test_children_die_with_a_killed_measurement() -> None:
    """A tracer that stayed would go on tracing for ever."""
    program = (
        "import time; from benchmarks import children; "
        "print(children.start(children.python('-c', 'import time; time.sleep(60)')).pid, "
        "flush=True); time.sleep(60)"
    )
    with children.start(children.python("-c", program), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        deadline_s = time.monotonic() + 10
        while "setpriv" in child.cmdline()[0] and time.monotonic() < deadline_s:
            time.sleep(0.01)  # it has not said yet what is to end it
        process.kill()
    child.wait(10)


def test_folder_is_removed_and_forgotten() -> None:
    """Also when the measurement fails."""
    with pytest.raises(RunError), children.own_folder("bench") as folder:
        raise RunError("no")
    assert folder.name.startswith("quiclab-bench-")
    assert not folder.exists()
    assert list(leftovers.state_directory().iterdir()) == []


def test_folder_of_a_killed_measurement_is_removed_by_the_next() -> None:
    """With all that is in it; nobody else's is touched."""
    program = (
        "import time; from benchmarks import children\n"
        "with children.own_folder('bench') as folder:\n"
        "    (folder / 'file').touch(); print(folder, flush=True); time.sleep(60)"
    )
    with children.own_folder("bench") as mine:
        environment = {"TMPDIR": str(mine.parent)}
        with children.start(
            children.python("-c", program), stdout=subprocess.PIPE, environment=environment
        ) as process:
            assert process.stdout is not None
            folder = Path(process.stdout.readline().strip())
            process.kill()
        assert folder.exists()
        (line,) = children.remove_leftovers()
        assert str(folder) in line
        assert not folder.exists()
        assert mine.exists()


def test_load_that_does_not_heed_its_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement says so, in words of its own."""
    monkeypatch.setattr("benchmarks.processes.END_TIMEOUT_S", 0.1)
    process = children.start(_SLEEPER, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with pytest.raises(RunError, match="has not ended"), RunningLoad(process).ended():
        pass
    assert process.returncode == -signal.SIGKILL


def test_load_that_says_something_else_is_no_fault_of_ours() -> None:
    """One line, not a traceback."""
    argv = [sys.executable, "-c", "print('hm')"]
    process = children.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with pytest.raises(RunError, match="hm"), RunningLoad(process).ended() as load:
        load.hear("ready", timeout_s=20)


def test_pipes_of_a_load_that_ended_by_itself_are_closed() -> None:
    """Many runs in a row must not collect descriptors."""
    argv = [sys.executable, "-c", ""]
    process = children.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.wait(20)
    with pytest.raises(RunError), RunningLoad(process).ended() as load:
        load.hear("ready", timeout_s=20)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdin.closed
    assert process.stdout.closed
