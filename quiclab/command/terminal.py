"""
What a person sees while the lab works, and what a program reads.

One fact a line, the label first. On a terminal the running step has a bar with
the time left, and it goes away when the step ends; elsewhere a line says that
a step began, and one now and then that it goes on. `--json` keeps stdout for
JSON alone and moves everything else to stderr.
"""

import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from quiclab.command.summary import LABEL_COLUMN, Line
from quiclab.observer import Phase
from quiclab.scenario import Scenario
from quiclab.units import render_duration

if TYPE_CHECKING:
    from rich.progress import TaskID

_SAY_AGAIN_S: Final = 5.0  # between two plain lines of one step, so that logs stay readable
_LEAST_DONE: Final = 0.02  # below, the time left is a guess nobody should read
_COLOURS: Final = {"good": "32", "doubtful": "33", "bad": "31"}  # ANSI: green, yellow, red
_PHASE_WORDS: Final = {
    Phase.PREFLIGHT: ("check", "what the run needs"),
    Phase.PLACE: ("place", "making it"),
    Phase.SERVER: ("server", "starting"),
    Phase.CLIENT: ("client", "starting"),
    Phase.TRACER: ("tracer", "attaching"),
    Phase.LOAD: ("load", ""),
    Phase.SETTLE: ("load", "waiting until everything is closed"),
    Phase.COLLECT: ("collect", "ending the roles, fetching what they left"),
    Phase.REMOVE: ("remove", "what the run made"),
    Phase.WRITE: ("write", "the run folder"),
}


class Detail(StrEnum):
    """How much is printed."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"


class Terminal:
    """
    Says facts, shows progress; hears a run as its observer.

    Args:
        detail: How much is printed.
        is_json: Keep stdout for JSON.
        out: Where results go.
        err: Where people look when stdout is not theirs.
        now_s: A clock, for the time left.
    """

    def __init__(
        self,
        *,
        detail: Detail = Detail.NORMAL,
        is_json: bool = False,
        out: TextIO | None = None,
        err: TextIO | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.detail = detail
        self.is_json = is_json
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._stream = self._err if is_json else self._out
        self._is_live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._has_colour = self._is_live and not os.environ.get("NO_COLOR")
        self._now_s = now_s
        self._bar: Bar | None = None
        self._step = ("", "")
        self._step_began_s = 0.0
        self._said_at_s = 0.0

    def begin_run(self, scenario: Scenario, *, index: int, count: int) -> None:
        """
        Several runs in one command are told apart.
        """
        if count > 1:
            what = "+".join(scenario.scripts)
            if index > 1:
                self.say([Line("", "")])
            buffer = scenario.tx_buffer_bytes
            self.note("run", f"{index} of {count}: {what}, TX ring of {buffer:,} B")

    def note(self, label: str, text: str) -> None:
        """Say one fact; that of the load is a step, which goes on for a while."""
        if label == "load":
            self._show(label, text, 0.0, left_s=None)
        elif self.detail is not Detail.QUIET:
            self.say([Line(label, text)])

    def announce(self, label: str, text: str) -> None:
        """Say what changes this machine: also with `--quiet`, but then to stderr."""
        if self.detail is Detail.QUIET:
            self._print(self._err, self._render(Line(label, text)))
        else:
            self.note(label, text)

    def say(self, lines: Iterable[Line]) -> None:
        """
        Print lines, whatever the detail.
        """
        self.end_step()
        self._print(self._stream, *(self._render(line) for line in lines))

    def say_folder(self, directory: Path) -> None:
        """The last line of a run: where it lies, as short as a shell here can use it."""
        try:
            shown = directory.relative_to(Path.cwd())
        except ValueError:
            shown = directory
        self.say([Line("", str(shown), is_preformatted=True)])

    def say_json(self, line: str) -> None:
        """Print a line for programs."""
        self._print(self._out, line)

    def step(self, label: str, text: str, fraction: float) -> None:
        """
        Say how far a step of the set-up is; the time left is reckoned from its pace.
        """
        if self._step[0] != label:
            self._step_began_s = self._now_s()
        passed_s = self._now_s() - self._step_began_s
        is_known = _LEAST_DONE <= fraction < 1
        self._show(
            label,
            text,
            fraction,
            left_s=passed_s * (1 - fraction) / fraction if is_known else None,
        )

    def end_step(self) -> None:
        """The running step is over; its bar goes away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        self._step = ("", "")

    def phase_started(self, phase: Phase) -> None:
        """A phase of the run begins (see `Observer`)."""
        label, text = _PHASE_WORDS[phase]
        if self.detail is Detail.VERBOSE:
            self.say([Line("phase", phase.value)])
        elif self._is_live:
            self._show(label, text, 0.0, left_s=None)

    def progress(self, fraction: float, *, left_s: float | None) -> None:
        """The running phase goes on (see `Observer`)."""
        if self._step[0]:
            self._show(*self._step, fraction, left_s=left_s)

    def _show(self, label: str, text: str, fraction: float, *, left_s: float | None) -> None:
        is_new = (label, text) != self._step
        self._step = (label, text)
        if self.detail is Detail.QUIET:
            return
        if self._is_live:
            self._bar = self._bar or Bar(self._stream)
            self._bar.show(label, text, fraction, left_s)
            return
        waited_s = self._now_s() - self._said_at_s
        if (is_new and fraction == 0.0) or waited_s >= _SAY_AGAIN_S:
            done = (
                f" ({fraction:.0%} done{_render_left(left_s)})" if fraction >= _LEAST_DONE else ""
            )
            self._print(self._stream, self._render(Line(label, text + done)))
            self._said_at_s = self._now_s()

    @staticmethod
    def _print(stream: TextIO, *lines: str) -> None:
        """
        Neither a reader who left (`| head -3`) nor a full disk ends the run that is told.
        """
        try:
            print(*lines, sep="\n", file=stream, flush=True)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if not isinstance(error, BrokenPipeError) and stream is not sys.stderr:
                print(f"note      what is printed here is lost: {error.strerror}", file=sys.stderr)

    def _render(self, line: Line) -> str:
        if line.is_preformatted:
            return line.text
        text = line.text
        if self._is_live:
            columns = shutil.get_terminal_size().columns
            indent = " " * LABEL_COLUMN
            text = "\n".join(
                textwrap.wrap(
                    text,
                    columns,
                    initial_indent=indent,
                    subsequent_indent=indent,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            ).lstrip(" ")
        if line.tone and self._has_colour:
            word, colon, rest = text.partition(":")
            text = f"\033[{_COLOURS[line.tone]}m{word}\033[0m{colon}{rest}"
        return f"{line.label:<{LABEL_COLUMN}}{text}".rstrip()


class Bar:
    """
    One line that moves and leaves nothing behind.

    rich is imported here: it takes 0.1 s, and logs and pipes need none of it.
    """

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415

        self._progress = Progress(
            TextColumn("{task.fields[label]:<9}", markup=False),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[left]}", markup=False),
            console=Console(file=stream, highlight=False),
            transient=True,
            auto_refresh=False,  # no thread beside the one that forks and traces
        )
        self._task: TaskID = self._progress.add_task("", total=1.0, label="", left="")

    def show(self, label: str, text: str, fraction: float, left_s: float | None) -> None:
        """Draw it anew."""
        self._progress.start()  # does nothing when it has started
        self._progress.update(
            self._task,
            description=text,
            completed=fraction,
            label=label,
            left=_render_left(left_s).removeprefix(", "),
            refresh=True,
        )

    def close(self) -> None:
        """Take it away."""
        self._progress.stop()


def _render_left(left_s: float | None) -> str:
    return "" if left_s is None else f", {render_duration(max(1.0, float(round(left_s))))} left"
