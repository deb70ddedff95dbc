"""
A run that nothing speaks against is "ok", every time, also where a core is busy with other work.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quiclab import experiment
from quiclab.scenario import Scenario
from tests.integration.lab import find_remains, make_runner

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.endurance]

REPEAT_COUNT = 50
BURN_LIMIT_S = 1800


@contextmanager
def busy_core() -> Iterator[subprocess.Popen[bytes]]:
    """Keep the last core busy, as a neighbour's job does; bounded in time."""
    burn = (
        f"import time\nend = time.monotonic() + {BURN_LIMIT_S}\nwhile time.monotonic() < end: pass"
    )
    process = subprocess.Popen([sys.executable, "-c", burn])
    os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(0))})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", ["local", pytest.param("docker", marks=pytest.mark.docker)])
def test_clean_run_is_ok_each_time_beside_a_busy_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Fifty of fifty; the doubts of those that are not are shown."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    scenario = Scenario.model_validate(
        {"script": ("udp-syscall", "io-latencies"), "direction": "both", "duration": 0.5}
    )
    runner = make_runner(name)
    doubts = []
    with busy_core() as other:
        for index in range(REPEAT_COUNT):
            verdict = experiment.run(scenario, runner=runner, output=tmp_path / "runs").verdict
            if verdict.word != "ok":
                doubts.append((index, verdict.word, verdict.summary))
        assert other.poll() is None
    assert [] == doubts
    assert [] == find_remains(name, tmp_path / "runs")
