"""
Instructions per datagram: the server's own layers, aioquic's share, and the floor.

Wall time swings by ±20 % on a shared machine; instructions under callgrind do not
(some 0.05 % from run to run). Each case is counted in processes of their own
(`benchmarks.instructions_work`), and of several kinds:

- the server, twice: all of a turn of its loop, and of that what it asked of aioquic
  (callbacks from aioquic into the server, such as the pacer, are in there);
- the floor: aioquic's server connection alone, joined to the same peer in memory, with
  the server's own perf logic and capped window, as any server has an application;
- the server once more with a name for every Python call, which makes calls dearer
  by some 4 %: from that come the shares of files and functions.

What the kernel does for the server is in none of these figures.

    python -m benchmarks.instructions [--only "download 1200, 10"] [--top 15] [--json FILE]
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Final, Self

from benchmarks import children
from benchmarks.counting import build_counting
from benchmarks.instructions_callgrind import CallgrindError, parse_callgrind
from benchmarks.instructions_cases import CASES, REFERENCE, Case, Done, Work
from benchmarks.instructions_report import (
    Counted,
    InstructionReport,
    per_datagram,
    render_instructions,
    report_case,
)
from quiclab.errors import ExitCode, LabError, MachineError, RunError, UsageError
from quiclab.machine.setup import Need, find_program
from server.build import BuildError

__all__ = ["InstructionReport", "measure_instructions", "render_instructions"]

REPEAT_COUNT: Final = 2
TOP_COUNT: Final = 15
WORK_TIMEOUT_S: Final = 300.0  # some 15 s each on a quiet machine
_LAST_WORDS: Final = 300
_MOST_AT_ONCE: Final = 4


NEEDS: Final = (
    Need(
        "valgrind",
        "valgrind",
        "to count instructions",
        lambda: find_program("valgrind") is not None,
    ),
)
"""What counting takes besides the lab's own needs, for who may install it."""


def measure_instructions(
    *,
    cases: Sequence[Case] = CASES,
    reference: Work = REFERENCE,
    repeat_count: int = REPEAT_COUNT,
    top_count: int = TOP_COUNT,
    on_progress: Callable[[str, float], None] = lambda _step, _fraction: None,
) -> InstructionReport:
    """
    Count every case; some minutes.

    Args:
        cases: What is counted.
        reference: What is counted besides, both ends of it.
        repeat_count: Runs of the server and of the reference, whose spread is told.
        top_count: Functions that are named for each case.
        on_progress: Hears what is being done, and the fraction that is done.

    Raises:
        MachineError: valgrind or a compiler is missing.
        RunError: A process failed.
    """
    valgrind = find_program("valgrind")
    if valgrind is None:
        raise MachineError(
            "valgrind is needed to count instructions: sudo apt-get install valgrind"
        )
    try:
        build_counting()
    except BuildError as error:
        raise MachineError(str(error)) from error
    works = [reference] * repeat_count
    for case in cases:
        works += [case.work] * repeat_count
        works += [case.work.at("floor"), case.work.followed()]
    counted: list[Counted] = []
    with _Counting(valgrind) as counting:
        for done in counting.count(works):
            counted.append(done)
            on_progress("counting instructions", len(counted) / len(works))
    references = counted[:repeat_count]
    per_case_count = repeat_count + 2
    return InstructionReport(
        versions=_versions(valgrind),
        reference=tuple(per_datagram(each.instruction_count, done) for each, done in references),
        cases=tuple(
            report_case(case, counted[begin : begin + per_case_count], top_count)
            for case, begin in zip(
                cases, range(repeat_count, len(counted), per_case_count), strict=True
            )
        ),
    )


class _Counting:
    """
    Processes under callgrind, as many at a time as there are cores; none outlives this.

    Instructions don't mind what else goes on, so side by side costs no accuracy.
    """

    def __init__(self, valgrind: str) -> None:
        self._valgrind = valgrind
        self._folder = Path()
        self._undo = ExitStack()
        self._pool = ThreadPoolExecutor(min(_MOST_AT_ONCE, len(os.sched_getaffinity(0))))
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        self._folder = self._undo.enter_context(children.own_folder("instructions"))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()  # nothing happens to one that has ended
        self._pool.shutdown()
        self._undo.close()

    def count(self, works: Sequence[Work]) -> Iterator[Counted]:
        """
        Do works; what was counted, in order.

        Raises:
            RunError: One failed.
        """
        return self._pool.map(self._count, works, range(len(works)))

    def _count(self, work: Work, index: int) -> Counted:
        output = self._folder / f"{index}.out"
        argv = [
            *(self._valgrind, "--tool=callgrind", "--instr-atstart=no"),
            *("--toggle-collect=counted_measured", f"--callgrind-out-file={output}"),
            *children.python("-m", "benchmarks.instructions_work", json.dumps(asdict(work))),
        ]
        with children.start(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            environment={"PYTHONHASHSEED": "0"},
        ) as process:
            self._processes.append(process)
            try:
                said, complained = process.communicate(timeout=WORK_TIMEOUT_S)
            except subprocess.TimeoutExpired as error:
                process.kill()
                raise RunError(f"{work.name}: over {WORK_TIMEOUT_S:.0f} s in callgrind") from error
        if process.returncode != 0:
            words = [line for line in complained.splitlines() if not line.startswith("==")]
            last_words = (words or ["it said nothing"])[-1][:_LAST_WORDS]
            raise RunError(f"{work.name}: exited {process.returncode} in callgrind: {last_words}")
        try:
            return parse_callgrind(output.read_text()), Done.load(said)
        except (OSError, ValueError, CallgrindError) as error:
            raise RunError(f"{work.name}: {error}") from error


def _versions(valgrind: str) -> dict[str, str]:
    said = subprocess.run(
        [valgrind, "--version"], check=False, capture_output=True, text=True, timeout=20
    )
    return {
        "python": platform.python_version(),
        "valgrind": said.stdout.strip().removeprefix("valgrind-"),
        **{name: version(name) for name in ("aioquic", "qh3", "cryptography")},
    }


def main() -> ExitCode:
    """
    Count and print.
    """
    parser = argparse.ArgumentParser(prog="benchmarks.instructions", allow_abbrev=False)
    parser.add_argument(
        "--only", action="append", default=[], help="a case's name; may be given again"
    )
    parser.add_argument(
        "--repeat", type=int, default=REPEAT_COUNT, help="runs of each, for the spread"
    )
    parser.add_argument("--top", type=int, default=TOP_COUNT, help="functions named a case")
    parser.add_argument("--json", type=Path, help="write all of it there")
    words = parser.parse_args()
    try:
        names = [case.name for case in CASES]
        for name in words.only:
            if name not in names:
                raise UsageError(f"no case {name!r}; there are {', '.join(names)}")
        report = measure_instructions(
            cases=[case for case in CASES if not words.only or case.name in words.only],
            repeat_count=words.repeat,
            top_count=words.top,
        )
    except LabError as error:
        print(f"benchmarks.instructions: {error}", file=sys.stderr)
        return error.exit_code
    print("\n".join(render_instructions(report, top_count=words.top)))
    if words.json is not None:
        words.json.write_text(report.model_dump_json(indent=2, by_alias=True) + "\n")
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
