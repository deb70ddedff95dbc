"""
Short runs in a row, place by place, and what they came to.
"""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import psutil

from quiclab import experiment
from quiclab.errors import LabError
from quiclab.runner.base import Runner
from quiclab.scenario import Scenario

_DURATION_S: Final = 0.5
SCENARIOS: Final[tuple[Mapping[str, Any], ...]] = (
    {"script": ("udp-syscall",), "direction": "both"},
    {"script": ("recv-buffers", "io-latencies"), "direction": "upload"},
    {"script": ("generic-offload",), "direction": "download", "workers": 2, "connections": 4},
    {"script": ("message-wait",), "direction": "both", "connections": 3, "streams": 3},
)
"""Made in turn: every shipped script, both directions, one worker and two."""


@dataclass(slots=True)
class Tally:
    """
    What the runs came to.

    Args:
        words: Runs by place and verdict.
        doubts: Each run that was not ok: place, verdict, its folder.
        errors: Runs that could not be made at all.
        run_ids: All of them.
        resident_bytes: This process's memory after each run.
    """

    words: Counter[str] = field(default_factory=Counter)
    doubts: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    run_ids: set[str] = field(default_factory=set)
    resident_bytes: list[int] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Runs that were made or tried."""
        return sum(self.words.values()) + len(self.errors)

    @property
    def has_failed(self) -> bool:
        """A run was not to be trusted, or could not be made."""
        return bool(self.errors) or any(word.endswith("invalid") for word in self.words)


def soak(
    runners: Mapping[str, Runner],
    *,
    duration_s: float,
    output: Path,
    say: Callable[[str], None],
    tally: Tally,
) -> None:
    """
    Make runs until the time is over, at least one in each place.

    The folder of a run that was ok is removed: an hour makes a thousand of them.

    Args:
        runners: Where, by name; in turn.
        duration_s: How long.
        output: For the folders that are kept.
        say: Hears one line for each run that was not ok, and every fifty runs.
        tally: Is filled; whoever interrupts the soak still has it.

    Raises:
        InterruptedRunError: INT or TERM came.
    """
    ends_s = time.monotonic() + duration_s
    scenarios = cycle(SCENARIOS)
    while True:
        words = next(scenarios)
        for name, runner in runners.items():
            _make(name, runner, words, output=output, say=say, tally=tally)
        if time.monotonic() >= ends_s:
            return


def _make(
    name: str,
    runner: Runner,
    words: Mapping[str, Any],
    *,
    output: Path,
    say: Callable[[str], None],
    tally: Tally,
) -> None:
    scenario = Scenario.model_validate({**words, "duration": _DURATION_S})
    clock = getattr(runner, "clock", None)  # the fake runner brings its own
    try:
        result = experiment.run(scenario, runner=runner, output=output, clock=clock)
    except LabError as error:
        if isinstance(error, experiment.RunInterruptedError):
            tally.run_ids.add(error.result.manifest.run_id)
            raise
        tally.errors.append(f"{name}: {error}")
        say(tally.errors[-1])
        return
    tally.run_ids.add(result.manifest.run_id)
    tally.words[f"{name} {result.verdict.word}"] += 1
    tally.resident_bytes.append(psutil.Process().memory_info().rss)
    if result.verdict.word == "ok":
        shutil.rmtree(result.directory)
    else:
        tally.doubts.append(f"{name}: {result.verdict.summary} ({result.directory.name})")
        say(tally.doubts[-1])
    if tally.count % 50 == 0:
        say(f"{tally.count} runs: {render_words(tally)}")


def render_words(tally: Tally) -> str:
    """How many runs came to what."""
    return ", ".join(f"{count} {word}" for word, count in sorted(tally.words.items())) or "none"
