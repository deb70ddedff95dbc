"""
A lab as a process of its own, for tests that end it from outside; and what it leaves.

    python -m tests.integration.lab RUNNER OUTPUT DURATION

makes one run and prints a line as each phase begins, and the verdict at the end.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quiclab import experiment, leftovers
from quiclab.artifacts import load_manifest
from quiclab.containers.compose import load_compose
from quiclab.errors import InterruptedRunError
from quiclab.observer import Phase, SilentObserver
from quiclab.runner.base import Runner
from quiclab.runner.docker import DockerRunner, find_runs
from quiclab.runner.process import ProcessRunner
from quiclab.scenario import Scenario
from tests.docker_lab import need_engine, need_image
from tests.quiclab.runner.test_process import find_marked, need_local_tracing

PROJECT = Path(__file__).resolve().parents[2]


def make_runner(name: str) -> Runner:
    """Make a real runner, or skip where it cannot work."""
    if name == "docker":
        return DockerRunner(need_engine(), need_image(), load_compose({}))
    need_local_tracing()
    return ProcessRunner()


def find_remains(name: str, output: Path) -> list[str]:
    """Name folders, processes, containers and networks of the runs that an output folder holds."""
    manifests = output.glob("2*/manifest.json")
    run_ids = {load_manifest(path.parent).run_id for path in manifests}
    remains = [
        str(path)
        for base in ("/tmp", "/var/tmp", "/run", "/dev/shm")
        for run_id in run_ids
        for path in Path(base).glob(f"{leftovers.DIRECTORY_PREFIX}{run_id}")
    ]
    if name == "docker":
        return remains + [run_id for run_id in find_runs(need_engine()) if run_id in run_ids]
    return remains + [str(one) for run_id in run_ids for one in find_marked(run_id)]


@contextmanager
def running_lab(
    name: str, output: Path, *, duration_s: float = 60.0
) -> Iterator[subprocess.Popen[str]]:
    """Start a lab in a process group of its own, as a terminal would."""
    make_runner(name)  # whatever it takes is made here, or the test is skipped
    argv = [sys.executable, "-m", "tests.integration.lab", name, str(output), str(duration_s)]
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, cwd=PROJECT, process_group=0
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def wait_for_phase(process: subprocess.Popen[str], phase: Phase) -> None:
    """Read what the lab says until a phase has begun."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        if line.strip() == phase:
            return
        said.append(line)
    raise AssertionError(f"the lab ended before {phase}: {said}")


class _Printer(SilentObserver):
    def phase_started(self, phase: Phase) -> None:
        print(phase, flush=True)


def main() -> int:
    """Make one run; the exit code is the one that the command line has."""
    name, output, duration_s = sys.argv[1:]
    scenario = Scenario.model_validate({"script": ("udp-syscall",), "duration": float(duration_s)})
    try:
        result = experiment.run(
            scenario, runner=make_runner(name), output=Path(output), observer=_Printer()
        )
    except InterruptedRunError as interruption:
        return interruption.exit_code
    print(result.verdict.summary, flush=True)
    return result.exit_code


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
