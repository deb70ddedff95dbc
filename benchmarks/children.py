"""
What a measurement starts and makes: none of it outlives the measurement, however that ends.

Each process has a process group of its own, so that Ctrl-C in the terminal reaches
the measuring process alone, which ends the others in order; and it dies with that
one (PR_SET_PDEATHSIG), should it be killed. Folders are on record as those of a
local run (`quiclab.leftovers`): `clean`, and the next measurement, remove what a
killed one left.
"""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from quiclab import leftovers
from quiclab.errors import MachineError
from quiclab.machine.setup import ROOT

_RUNNER: Final = "local"  # whose records `clean` and runs on this machine look after
_DIE_WITH_PARENT: Final = ("setpriv", "--pdeathsig", "KILL", "--")

Output = IO[Any] | int


def start(
    argv: Sequence[str],
    *,
    core: int | None = None,
    stdin: Output = subprocess.DEVNULL,
    stdout: Output = subprocess.DEVNULL,
    stderr: Output | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """
    Start a program.

    Args:
        argv: What to run, in the project's folder.
        core: Which of the usable cores it is kept on; None: any.
        stdin: As `subprocess.Popen` has it.
        stdout: The same.
        stderr: The same; None: where this process's goes.
        environment: Variables besides this process's own.
    """
    if core is not None:
        usable = sorted(os.sched_getaffinity(0))
        argv = ["taskset", "--cpu-list", str(usable[core % len(usable)]), *argv]
    if shutil.which(_DIE_WITH_PARENT[0]):
        argv = [*_DIE_WITH_PARENT, *argv]
    return subprocess.Popen(
        argv,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        text=True,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        process_group=0,
    )


def python(*words: str) -> list[str]:
    """The command line of a Python program with this interpreter."""
    return [sys.executable, *words]


@contextmanager
def own_folder(name: str) -> Iterator[Path]:
    """
    Make a temporary folder, and remove it afterwards.

    Args:
        name: What for, for whoever finds it.

    Raises:
        MachineError: It cannot be made.
    """
    run_id = f"{name}-{secrets.token_hex(4)}"
    directory = Path(tempfile.gettempdir()) / f"{leftovers.DIRECTORY_PREFIX}{run_id}"
    with leftovers.register(run_id, runner_name=_RUNNER) as record:
        record.note_directory(directory)
        try:
            directory.mkdir(mode=0o700)
        except OSError as error:
            raise MachineError(f"cannot make {directory}: {error.strerror}") from error
        try:
            yield directory
        finally:
            with record.removal():
                shutil.rmtree(directory)


def mark(folder: Path) -> dict[str, str]:
    """
    Say in a program's environment which folder it belongs to: forked processes inherit it.
    """
    return {leftovers.RUN_MARK: folder.name.removeprefix(leftovers.DIRECTORY_PREFIX)}


def remove_leftovers() -> list[str]:
    """
    Remove what killed measurements and local runs left; says what, one line each.
    """
    return leftovers.remove_dead_runs(_RUNNER)
