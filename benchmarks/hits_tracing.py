"""
bpftrace around a measurement: attached when the sites say so, gone afterwards.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks import children
from quiclab.errors import MachineError, RunError
from quiclab.machine.host import find_tracefs
from quiclab.runner.process import OWN_MOUNTS, TRACER_ENTRY
from quiclab.trace.script import Script
from server.probes import PROBES
from server.udp import _native

_ATTACH_LIMIT_S: Final = 30.0
_STOP_LIMIT_S: Final = 5.0  # bpftrace 0.17 misses a SIGINT now and then, and heeds SIGTERM alike
_LOOK_S: Final = 0.02


def find_tracer(words: Sequence[str] = ()) -> list[str]:
    """
    Find the command that runs bpftrace on this machine.

    Args:
        words: The command to use instead; () finds one.

    Raises:
        MachineError: Nobody can trace here; the line says what is missing.
    """
    if os.geteuid() != 0:
        raise MachineError("measuring what a traced hit costs needs root: sudo ./invoke bench …")
    if words:
        return list(words)
    found = shutil.which("bpftrace")
    if found is None:
        raise MachineError("bpftrace is not installed: sudo apt-get install bpftrace")
    return [found] if find_tracefs() else [*OWN_MOUNTS, str(TRACER_ENTRY), found]


def ask_version(tracer: Sequence[str]) -> str:
    """
    Ask bpftrace for its version.

    Raises:
        MachineError: It does not answer.
    """
    done = subprocess.run([*tracer, "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"v(\d+(?:\.\d+)+)", done.stdout)
    if version is None:
        raise MachineError(f"{tracer[-1]} --version says {done.stdout + done.stderr!r}")
    return version[1]


@contextlib.contextmanager
def attached(
    tracer: Sequence[str],
    scripts: Sequence[Path],
    provider_path: Path,
    directory: Path,
    *,
    is_on: Callable[[], bool],
    is_off: Callable[[], bool],
) -> Iterator[None]:
    """
    Trace with several scripts while the block runs.

    Args:
        tracer: The command that runs bpftrace.
        scripts: Which scripts; a bpftrace for each.
        provider_path: The file that holds the probes.
        directory: Where they write.
        is_on: Whether all their probes are traced, by what the sites hold.
        is_off: Whether none is any more.

    Raises:
        RunError: A tracer ended, or the probes did not turn on or off in time.
    """
    with contextlib.ExitStack() as stack:
        tracers = [
            stack.enter_context(_running(tracer, script, provider_path, directory))
            for script in scripts
        ]
        _wait(is_on, "on", tracers, directory)
        yield
    _wait(is_off, "off", (), directory)


@contextlib.contextmanager
def _running(
    tracer: Sequence[str], script: Path, provider_path: Path, directory: Path
) -> Iterator[subprocess.Popen[str]]:
    output, log = directory / f"{script.stem}.jsonl", directory / f"{script.stem}.log"
    argv = [*tracer, "-f", "json", "-o", str(output), str(script), str(provider_path)]
    with log.open("w") as words:
        process = children.start(argv, stdout=words, stderr=words)
    try:
        yield process
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_LIMIT_S)
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_LIMIT_S)
    finally:
        process.kill()
        process.wait()


def _wait(
    is_so: Callable[[], bool],
    what: str,
    tracers: Sequence[subprocess.Popen[str]],
    directory: Path,
) -> None:
    deadline_s = time.monotonic() + _ATTACH_LIMIT_S
    while not is_so():
        if any(tracer.poll() is not None for tracer in tracers):
            words = " ".join(log.read_text() for log in sorted(directory.glob("*.log"))).split()
            raise RunError(f"bpftrace ended: {' '.join(words)[-300:]}")
        if time.monotonic() > deadline_s:
            raise RunError(f"the probes were not {what} within {_ATTACH_LIMIT_S:.0f} s")
        time.sleep(_LOOK_S)


def probe_mask(scripts: Sequence[Script]) -> int:
    """
    The probes that scripts listen to, as `_native.listening` tells them: bit n is probe n.
    """
    traced = {name for script in scripts for name in script.server_probe_names}
    return sum(1 << index for index, probe in enumerate(PROBES) if probe.name in traced)


def are_traced(mask: int) -> bool:
    """
    Whether just these probes are listened to in this process now.
    """
    return _native.listening() == mask
