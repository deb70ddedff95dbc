"""
Keeping the lab itself in order: what `build`, `clean`, `test` and `check` do.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from quiclab.command.readiness import Readiness, chosen_engine
from quiclab.command.terminal import Detail, Terminal
from quiclab.command.words import BuildWords, CleanWords, TestWords
from quiclab.errors import ExitCode, MachineError, UsageError
from quiclab.killed import label_killed_runs
from quiclab.machine.setup import ROOT, TEST_NEEDS
from quiclab.units import parse_duration

if TYPE_CHECKING:
    from quiclab.containers.engine import Engine

# pytest's exit codes (pytest.ExitCode) in ours.
_PYTEST_CODES: Final = {
    0: ExitCode.OK,
    2: ExitCode.INTERRUPTED,
    4: ExitCode.USAGE,
    5: ExitCode.USAGE,  # nothing was selected
}
_QUICK: Final = "not (real or docker or slow or endurance or faults or fuzz or soak)"
# The quick part has neither tracers nor loads that could disturb each other.
_SIDE_BY_SIDE: Final = ("--numprocesses", "logical", "--maxprocesses", "4")
_ORDINARY: Final = "not (endurance or faults or fuzz or soak)"
_PARTS: Final = ("quick", "endurance", "faults", "fuzz", "soak")


def build(words: BuildWords) -> ExitCode:
    """
    Build what runs are made of: the native parts here, the image where an engine answers.

    Raises:
        MachineError: Something is missing, or an engine that was chosen does not answer.
    """
    terminal = Terminal(detail=Detail.QUIET if words.quiet else Detail.NORMAL)
    readiness = Readiness(terminal, may_install=words.install, is_agreed=words.yes)
    readiness.prepare_build()
    terminal.note("native", "the server's C parts are up to date")
    with chosen_engine(
        "auto", on_local=lambda why: terminal.note("image", f"none; {why}")
    ) as engine:
        if engine is not None:
            image = readiness.prepare_image(engine)
            terminal.note("image", f"{image.summary}, {engine.facts.summary}")
    return ExitCode.OK


def clean(words: CleanWords) -> ExitCode:
    """
    Remove what dead runs left, and with `--images` the images the lab built.

    Raises:
        MachineError: An engine that was chosen does not answer.
    """
    from quiclab.runner.process import ProcessRunner  # noqa: PLC0415

    terminal = Terminal()
    said = [*label_killed_runs(), *ProcessRunner().remove_leftovers()]
    with chosen_engine(
        "auto", on_local=lambda why: terminal.note("docker", f"skipped; {why}")
    ) as engine:
        if engine is not None:
            said += _clean_engine(engine, has_images=words.images)
    for line in said or ["nothing was left"]:
        terminal.note("clean", line)
    return ExitCode.OK


def _clean_engine(engine: "Engine", *, has_images: bool) -> list[str]:
    from quiclab.containers.compose import load_compose  # noqa: PLC0415
    from quiclab.containers.image import Image, remove_images  # noqa: PLC0415
    from quiclab.runner.docker import DockerRunner  # noqa: PLC0415

    no_image = Image("", "", "", is_cached=False)  # cleaning runs nothing
    runner = DockerRunner(engine, no_image, load_compose(os.environ))
    return [*runner.remove_leftovers(), *(remove_images(engine) if has_images else ())]


def test(words: TestWords) -> ExitCode:
    """
    Set up what the tests need, then run pytest, or the fuzzer or the soak.

    Raises:
        UsageError: Two choices exclude each other.
        MachineError: Something cannot be set up.
    """
    part = _choose_part(words)
    soak_s = parse_duration(words.soak, option="--soak") if words.soak else 0.0
    terminal = Terminal()
    readiness = Readiness(terminal, may_install=words.install, is_agreed=words.yes)
    if part == "quick":
        readiness.prepare_build()
        return run_pytest(_QUICK, words.args, _SIDE_BY_SIDE)
    if part == "fuzz":
        readiness.prepare_build()
        return run_program("tests.fuzz", words.args)
    if readiness.desk.is_root:
        readiness.prepare_local()
        readiness.prepare_programs(TEST_NEEDS)
    else:
        terminal.note("note", "not root: tests that trace are skipped")
        readiness.prepare_build()
    with chosen_engine(
        "auto", on_local=lambda why: terminal.note("docker", f"skipped; {why}")
    ) as engine:
        if engine is not None:
            _prepare_images(readiness, engine)
    if readiness.desk.is_root and not part:
        _prepare_userlands(readiness)
    terminal.end_step()
    if part == "soak":
        return run_program("tests.soak", words.args, ["--duration", str(soak_s)])
    return run_pytest(part or _ORDINARY, words.args)


def _choose_part(words: TestWords) -> str:
    """Name the part of the tests that was asked for; "" for the ordinary ones."""
    given = [name for name in _PARTS if getattr(words, name)]
    if len(given) > 1:
        raise UsageError(f"--{given[0]} and --{given[1]} exclude each other; give one")
    return given[0] if given else ""


def _prepare_images(readiness: Readiness, engine: "Engine") -> None:
    from quiclab.containers.image import Recipe  # noqa: PLC0415

    readiness.prepare_image(engine)
    readiness.prepare_image(engine, Recipe(target="interop"))


def _prepare_userlands(readiness: Readiness) -> None:
    """Other Debian releases' bpftrace, so that each claimed version is tried."""
    from quiclab.containers.debian import find_missing_packages  # noqa: PLC0415

    missing = find_missing_packages()
    if missing:
        readiness.installer.install(missing, purpose="to try other releases' bpftrace")
    said: list[str] = []

    def hear(line: str) -> None:
        said.append(line)
        readiness.step(line, 0.0)

    argv = ["env", "--chdir", str(ROOT), sys.executable, "-m", "tests.userland", "--prepare"]
    if readiness.desk.run(argv, hear) != 0:
        raise MachineError(f"a Debian userland for the tests cannot be made: {said[-1]}")


def run_pytest(markers: str, more: str, options: Sequence[str] = ()) -> ExitCode:
    """
    Run pytest in the repository, its words to the caller's terminal.
    """
    argv = [sys.executable, "-m", "pytest", "-m", markers, *options, *shlex.split(more)]
    print(f"pytest    {shlex.join(argv[3:])}", flush=True)
    done = subprocess.run(argv, cwd=ROOT, check=False)
    return _PYTEST_CODES.get(done.returncode, ExitCode.INTERNAL)


def run_program(module: str, more: str, options: Sequence[str] = ()) -> ExitCode:
    """
    Run a program of the tests that is no pytest, its words to the caller's terminal.

    It answers 0 when it found nothing, 1 when it did, else with a code of ours.
    """
    argv = [sys.executable, "-m", module, *options, *shlex.split(more)]
    print(f"{module.rpartition('.')[2]:<9} {shlex.join(argv[2:])}", flush=True)
    done = subprocess.run(argv, cwd=ROOT, check=False)
    try:
        return ExitCode(done.returncode)
    except ValueError:
        return ExitCode.INTERNAL


def check() -> ExitCode:
    """
    Lint, format and types; all three are run, whatever the first says.
    """
    codes = []
    for argv in (
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy", "--strict"],
    ):
        print(f"check     {shlex.join(argv)}", flush=True)
        codes.append(
            subprocess.run([sys.executable, "-m", *argv], cwd=ROOT, check=False).returncode
        )
    return ExitCode.INTERNAL if any(codes) else ExitCode.OK
