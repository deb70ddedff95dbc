"""
A tracer that the kernel times ends like any other, and the kernel's switch is as before.
"""

import os
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quiclab.runner.look import STATISTICS
from quiclab.runner.process import TIMED
from tests.conftest import need

TIMED_TRUE = [sys.executable, "-IS", str(TIMED), "true"]
# Runs docker/timed with a switch of its own, as where the kernel has no descriptor for it.
BY_SWITCH = """
import os, pathlib, runpy, sys
timed = runpy.run_path(sys.argv[1])
timed["turn_switch"](pathlib.Path(sys.argv[2]))
os.execvp("sleep", ["sleep", "60"])
"""


def start_by_switch(switch: Path) -> subprocess.Popen[bytes]:
    """Start something for whose life the switch is on; wait until it is."""
    argv = [sys.executable, "-c", BY_SWITCH, str(TIMED), str(switch)]
    process = subprocess.Popen(argv, process_group=0)
    wait_until(switch, "1")
    return process


def wait_until(switch: Path, value: str) -> None:
    """Look until the switch has a value; fail when it never has."""
    for _ in range(500):
        if switch.read_text().strip() == value:
            return
        time.sleep(0.01)
    pytest.fail(f"{switch} did not become {value}")


@pytest.mark.real
def test_tracer_holds_the_kernels_descriptor() -> None:
    """What the tracer became has it open; it goes with the tracer."""
    need(os.geteuid() == 0, "root, for bpf(2)")
    argv = [sys.executable, "-IS", str(TIMED), "sh", "-c", "readlink /proc/$$/fd/*"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert STATISTICS in done.stdout.splitlines()


def test_program_that_is_not_there_is_named() -> None:
    """The exit status is a shell's, and the line says which."""
    argv = [*TIMED_TRUE[:-1], "no-such-program"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (127, "no-such-program: No such file or directory\n") == (done.returncode, done.stderr)


@pytest.mark.parametrize("how", ["kill", "terminate"])
def test_switch_is_put_back_however_the_tracer_ends(tmp_path: Path, how: str) -> None:
    """Also after a KILL of its whole process group, which leaves it no time for anything."""
    switch = tmp_path / "switch"
    switch.write_text("0\n")
    process = start_by_switch(switch)
    if how == "kill":
        os.killpg(process.pid, 9)
    else:
        process.terminate()
    process.wait()
    wait_until(switch, "0")


@pytest.mark.parametrize("text", ["1\n", None], ids=["on-already", "absent"])
def test_switch_of_somebody_else_is_left_alone(tmp_path: Path, text: str | None) -> None:
    """Who turned it on turns it off; where there is none nothing is made."""
    switch = tmp_path / "switch"
    if text is not None:
        switch.write_text(text)
    runpy.run_path(str(TIMED))["turn_switch"](switch)
    assert (text is not None) == switch.exists()
    assert text in {None, switch.read_text() if text else None}
