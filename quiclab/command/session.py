"""
What one `trace` command does: its runs, one after the other, in one place.

    words -> scenarios (quiclab.command.plan) -> a runner, set up -> a run each
    (quiclab.experiment) -> what a person sees (quiclab.command.terminal) -> worst exit code
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from quiclab.clock import Clock, process_age_s
from quiclab.command.comparing import tell_overhead
from quiclab.command.plan import plan_quartets, plan_scenarios
from quiclab.command.readiness import Readiness, chosen_engine
from quiclab.command.summary import render_json, render_logs, render_result, render_verdict
from quiclab.command.terminal import Detail, Terminal
from quiclab.command.words import TraceWords
from quiclab.errors import ExitCode, worst_exit_code
from quiclab.overhead import plan_sides
from quiclab.runner.base import Runner
from quiclab.scenario import Scenario
from quiclab.trace.script import Script, load_script
from quiclab.units import render_bytes
from quiclab.wording import render_load

if TYPE_CHECKING:
    from quiclab.experiment import RunResult


def trace(words: TraceWords) -> ExitCode:
    """
    Make the runs that were asked for.

    Raises:
        UsageError: A word makes no sense; nothing was started.
        MachineError: It cannot be done here; nothing was started.
        InterruptedRunError: INT or TERM ended a run; it is shown as far as it came.
    """
    started_s = process_age_s()
    scenarios = plan_scenarios(words)
    quartet_count = plan_quartets(words)
    runs = [(each, [load_script(name) for name in each.scripts]) for each in scenarios]
    terminal = make_terminal(words)
    if words.plan:
        show_plan(terminal, runs, words)
        return ExitCode.OK
    with opened_runner(words, terminal) as runner:
        from quiclab import experiment  # noqa: F401, PLC0415  (so that its time is told as set-up)

        return run_all(
            runs,
            runner=runner,
            terminal=terminal,
            output=output_folder(words),
            before_s={"start": started_s, "set-up": process_age_s() - started_s},
            quartet_count=quartet_count,
        )


def run_all(
    runs: Sequence[tuple[Scenario, Sequence[Script]]],
    *,
    runner: Runner,
    terminal: Terminal,
    output: Path,
    clock: Clock | None = None,
    before_s: Mapping[str, float] | None = None,
    quartet_count: int = 0,
) -> ExitCode:
    """
    One run after the other; of several the worst code counts.

    Args:
        runs: What to run, with the scripts that trace it.
        runner: Where.
        terminal: Hears of it.
        output: Parent of the run folders.
        clock: Time; the fake runner brings its own.
        before_s: What the command spent before the first run, by what on.
        quartet_count: How often each is held against untraced twins (quiclab/overhead.py).

    A run that is not to be trusted does not keep the next one from being made;
    a machine that cannot do one cannot do the others either.

    Raises:
        LabError: A run could not begin, or a signal ended it.
    """
    series = _Series(runner, terminal, output, clock, before_s or {})
    plans = [plan_sides(scenario, quartet_count=quartet_count) for scenario, _ in runs]
    series.run_count = sum(map(len, plans)) if quartet_count else len(runs)
    for (scenario, scripts), sides in zip(runs, plans, strict=True):
        if not quartet_count:
            series.make(scenario, scripts)
            continue
        made = [(side, series.make(each, scripts)) for side, each in sides]
        series.codes.append(tell_overhead(terminal, made))
    return worst_exit_code(series.codes)


@dataclass(slots=True)
class _Series:
    """The runs of one command, made one after the other and shown."""

    runner: Runner
    terminal: Terminal
    output: Path
    clock: Clock | None
    before_s: Mapping[str, float]
    run_count: int = 0
    codes: list[ExitCode] = field(default_factory=list)

    def make(self, scenario: Scenario, scripts: Sequence[Script]) -> "RunResult":
        """
        Make the next run and show it.

        Raises:
            LabError: It could not begin, or a signal ended it.
        """
        from quiclab import experiment  # noqa: PLC0415  (0.1 s that `--help` need not wait)

        self.terminal.begin_run(scenario, index=len(self.codes) + 1, count=self.run_count)
        try:
            result = experiment.run(
                scenario,
                runner=self.runner,
                output=self.output,
                observer=self.terminal,
                clock=self.clock,
                before_s=self.before_s,
            )
        except experiment.RunInterruptedError as interruption:
            show_result(self.terminal, interruption.result, scenario, scripts)
            raise
        finally:
            self.terminal.end_step()
        ended_s = process_age_s()
        show_result(self.terminal, result, scenario, scripts)
        self.before_s = {"start": process_age_s() - ended_s}
        self.codes.append(result.exit_code)
        return result


def output_folder(words: TraceWords) -> Path:
    """Where the run folders go: below the caller's directory unless said otherwise."""
    return Path(words.output or "artifacts")


def make_terminal(words: TraceWords) -> Terminal:
    """
    A terminal of the detail that was asked for; `--quiet` beats `--verbose`.
    """
    detail = Detail.VERBOSE if words.verbose else Detail.NORMAL
    return Terminal(detail=Detail.QUIET if words.quiet else detail, is_json=words.json)


def show_result(
    terminal: Terminal, result: "RunResult", scenario: Scenario, scripts: Sequence[Script]
) -> None:
    """
    Figures, what was granted, the verdict, and the folder last.
    """
    if terminal.detail is Detail.QUIET:
        terminal.say([next(render_verdict(result.verdict))])
    else:
        is_verbose = terminal.detail is Detail.VERBOSE
        if is_verbose:
            terminal.say(render_logs(result.directory))
        terminal.say(render_result(result, scenario, scripts, is_verbose=is_verbose))
    terminal.say_folder(result.directory)
    if terminal.is_json:
        terminal.say_json(render_json(result))


@contextmanager
def opened_runner(words: TraceWords, terminal: Terminal) -> Iterator[Runner]:
    """
    Choose the runner and make it ready.

    Raises:
        MachineError: What was asked for cannot be had, or something is missing.
    """
    readiness = Readiness(terminal, may_install=words.install, is_agreed=words.yes)
    with chosen_engine(
        words.runner, on_local=lambda why: terminal.note("runner", f"local: {why}")
    ) as engine:
        if engine is None:
            for name in ("privileged", "host_headers"):
                if getattr(words, name):
                    option = f"--{name.replace('_', '-')}"
                    terminal.note("note", f"{option} is for containers and means nothing here")
            yield readiness.prepare_local(words.tracer or "bpftrace")
        else:
            from quiclab.containers.compose import load_compose  # noqa: PLC0415
            from quiclab.containers.engine import check_engine_can_trace  # noqa: PLC0415
            from quiclab.runner.docker import DockerRunner  # noqa: PLC0415

            if words.tracer in {"", "bpftrace"}:  # before minutes go into an image
                check_engine_can_trace(engine.facts)
            yield DockerRunner(
                engine,
                readiness.prepare_image(engine),
                load_compose(os.environ),
                is_privileged=words.privileged,
                has_host_headers=words.host_headers,
            )


def show_plan(
    terminal: Terminal,
    runs: Sequence[tuple[Scenario, Sequence[Script]]],
    words: TraceWords,
) -> None:
    """
    Say what would be done; nothing is started or made.
    """
    if words.json:
        for scenario, _ in runs:
            terminal.say_json(json.dumps(scenario.model_dump(mode="json", by_alias=True)))
        return
    with chosen_engine(
        words.runner, on_local=lambda why: terminal.note("runner", f"local: {why}")
    ) as engine:
        if engine is not None:
            terminal.note("runner", f"docker ({engine.facts.summary})")
    for index, (scenario, scripts) in enumerate(runs, start=1):
        counts = [script.expected_probe_count for script in scripts]
        names = ", ".join(
            script.name if count is None else f"{script.name} ({count} probes)"
            for script, count in zip(scripts, counts, strict=True)
        )
        terminal.note("run", f"{index} of {len(runs)}: {names}")
        terminal.note("server", f"TX ring of {render_bytes(scenario.tx_buffer_bytes)}")
        terminal.note("load", render_load(scenario))
    if quartet_count := plan_quartets(words):
        terminal.note(
            "overhead",
            f"each of them {quartet_count} times untraced, traced, traced, untraced, and once "
            "timed by the kernel",
        )
    terminal.note("folder", str(output_folder(words)))
