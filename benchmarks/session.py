"""
What one `bench` command does: choose, measure in pairs, keep, show.
"""

import json
import platform
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from benchmarks import children
from benchmarks.cases import HITS, REFERENCE_LOOP_NS, Case, Wishes, choose_cases, make_cases
from benchmarks.hits_report import HitsReport, render_hits
from benchmarks.hits_tracing import find_tracer
from benchmarks.measure import Calibration, calibrate
from benchmarks.pairs import Order, orders, run_until_quiet
from benchmarks.results import (
    DOCUMENT,
    CalibrationFacts,
    CaseResult,
    Document,
    PairResult,
    RunResult,
    render_document,
)
from benchmarks.sides import OpenSide, Outcome, Side, Work, check_cores, opened_side
from benchmarks.table import render_calibration, render_notes, render_table
from quiclab.artifacts import RunFolder, render_folder_name
from quiclab.command.readiness import Readiness
from quiclab.command.summary import Line
from quiclab.command.terminal import Terminal
from quiclab.command.words import BenchWords
from quiclab.errors import ExitCode, MachineError, RunError, UsageError, worst_exit_code
from quiclab.machine.host import collect_git, collect_host
from quiclab.machine.setup import ROOT, RUN_NEEDS
from quiclab.units import parse_count, parse_size, render_size
from server.settings import LARGEST_DATAGRAM_BYTES, SMALLEST_DATAGRAM_BYTES

_PAIR_COUNT: Final = 7
_QUICK_PAIR_COUNT: Final = 3
_PAIRS_OF_A_PROCESS: Final = 5
_MOST_PAIRS: Final = 100
_QUICK_LOAD: Final = 0.6  # of the usual bytes
# A machine outside these is measured with loads that last longer or shorter.
_SLOWEST, _FASTEST = 0.25, 4.0
_USUAL_RUN_S: Final = 1.3
_OVERHEAD_S: Final = 0.5  # of each run, for processes that start and shake hands
_HITS_S: Final = 90.0
_QUICK_HITS_S: Final = 30.0
_INTERRUPTED: Final = "interrupted"
_VERSIONS: Final = ("aioquic", "qh3", "cryptography")

Opener = Callable[[Side, Work], AbstractContextManager[OpenSide]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """
    What is to be measured.

    Args:
        asked: The words, as kept in the document.
        cases: The comparisons, in order.
        pair_count: Of each, more of those with a small effect.
        is_chosen: Whether the user named the comparisons.
        has_hits: Whether the cost of traced hits is measured as well; only by name, since
            it is about the scripts and not the server.
        is_quick: Whether a minute's version was asked for.
    """

    asked: Mapping[str, Any]
    cases: Sequence[Case]
    pair_count: int
    is_chosen: bool
    has_hits: bool = False
    is_quick: bool = False

    @property
    def must_trace(self) -> bool:
        """Whether something was named that takes root and bpftrace."""
        return self.is_chosen and (self.has_hits or any(case.needs_tracer for case in self.cases))

    def pairs_of(self, case: Case) -> int:
        """How many pairs a comparison gets."""
        return self.pair_count * case.pair_factor

    @property
    def run_count(self) -> int:
        """How many runs count in all."""
        return sum(2 * self.pairs_of(case) for case in self.cases)


@dataclass(slots=True)
class _Progress:
    """What has been measured so far; an interruption leaves it as it is."""

    folder: RunFolder
    results: list[CaseResult] = field(default_factory=list)
    hits: HitsReport | None = None
    done_count: int = 0


def bench(words: BenchWords) -> ExitCode:
    """
    Measure what was asked for.

    Raises:
        UsageError: A word makes no sense; nothing was started.
        MachineError: It cannot be measured here; nothing was started.
    """
    terminal = Terminal(is_json=words.json)
    if words.plan:
        show_plan(terminal, plan_measurement(words, speed=1.0), words)
        return ExitCode.OK
    plan = plan_measurement(words, speed=1.0)  # a wrong word is told before anything begins
    readiness = Readiness(terminal, may_install=words.install, is_agreed=words.yes)
    if words.instructions:
        readiness.prepare_build()
        return _count_instructions(words, terminal, readiness)
    check_cores()
    if plan.must_trace:
        if readiness.desk.is_root:
            readiness.prepare_programs(RUN_NEEDS)
        find_tracer()
    readiness.prepare_build()
    for line in children.remove_leftovers():
        terminal.note("clean", line)
    progress = _Progress(_make_folder(words, datetime.now(UTC), plan.asked["buffer_bytes"]))
    try:
        terminal.step("machine", "calibrating", 0.0)
        before = calibrate()
        terminal.note("machine", render_calibration(CalibrationFacts.of(before), None))
        plan = plan_measurement(words, speed=_speed(before))
        return _measure(plan, words, terminal, progress, before)
    finally:
        terminal.end_step()
        if not progress.results and progress.hits is None:
            progress.folder.remove()


def plan_measurement(words: BenchWords, *, speed: float) -> Plan:
    """
    Turn the words into comparisons.

    Args:
        words: As written.
        speed: How many times faster than the reference this machine is.

    Raises:
        UsageError: A word makes no sense.
    """
    if words.instructions and any(
        (words.only, words.quick, words.pairs, words.datagram, words.buffer)
    ):
        raise UsageError(
            "--instructions counts its own cases; leave out --only, --quick, --pairs, --datagram "
            "and --buffer"
        )
    datagram_bytes = 0
    if words.datagram:
        datagram_bytes = parse_count(
            words.datagram,
            option="--datagram",
            least=SMALLEST_DATAGRAM_BYTES,
            # What the server's MTU of 9,000 carries.
            most=min(LARGEST_DATAGRAM_BYTES, 9_000 - 28),
        )
    wishes = Wishes(
        datagram_bytes=datagram_bytes,
        speed=speed * (_QUICK_LOAD if words.quick else 1.0),
        **({"buffer_bytes": parse_size(words.buffer, option="--buffer")} if words.buffer else {}),
    )
    usual = _QUICK_PAIR_COUNT if words.quick else _PAIR_COUNT
    pair_count = (
        parse_count(words.pairs, option="--pairs", most=_MOST_PAIRS) if words.pairs else usual
    )
    only = [name for each in words.only for name in each.split(",") if name]
    if words.only and not only:
        raise UsageError(f"--only {words.only[0]} names nothing; --plan lists the names")
    return Plan(
        asked={
            "only": only,
            "quick": words.quick,
            "pairs": pair_count,
            "datagram_bytes": datagram_bytes,
            "buffer_bytes": wishes.buffer_bytes,
        },
        cases=choose_cases(make_cases(wishes), only=only, is_quick=words.quick),
        pair_count=pair_count,
        is_chosen=bool(only),
        has_hits=HITS in only,
        is_quick=words.quick,
    )


def show_plan(terminal: Terminal, plan: Plan, words: BenchWords) -> None:
    """
    Say what would be measured; nothing is started or made.
    """
    if words.instructions:
        terminal.note("bench", "instructions per datagram, under valgrind")
        return
    for case in plan.cases:
        needs = " (needs root and bpftrace)" if case.needs_tracer else ""
        terminal.note("bench", f"{case.name}: {case.question}{needs}")
        terminal.note(
            "", f"{plan.pairs_of(case)} pairs of {case.b_work.total_bytes / 1e6:.0f} MB a run"
        )
    seconds = plan.run_count * (_OVERHEAD_S + _USUAL_RUN_S)
    if plan.has_hits:
        seconds += _QUICK_HITS_S if plan.is_quick else _HITS_S
    if plan.has_hits or not plan.is_chosen:
        when = "" if plan.has_hits else "; only by name"
        terminal.note("bench", f"{HITS}: what a traced hit costs (needs root and bpftrace){when}")
    minutes = seconds / 60
    terminal.note("time", f"{plan.run_count} runs, some {max(1.0, minutes):.0f} min")
    terminal.note("folder", words.output or "artifacts")


def measure_case(
    case: Case,
    *,
    pair_count: int,
    opened: Opener = opened_side,
    on_run: Callable[[], None] = lambda: None,
    on_pair: Callable[[PairResult], None] = lambda _: None,
) -> list[PairResult]:
    """
    Measure one comparison, with both sides up all the time and new processes now and then.

    What a machine can do changes within seconds, so the runs of a pair follow each other
    without a pause; and how a process happens to lie in memory counts for some percent,
    so a comparison is not left to one process of each.

    Args:
        case: Which one.
        pair_count: How many pairs.
        opened: Opens a side.
        on_run: Called after each run that counts.
        on_pair: Is given each pair at once, so that it is kept whatever comes.

    Raises:
        RunError: A run went wrong.
        MachineError: This machine cannot do it.
    """
    pairs: list[PairResult] = []
    todo = list(orders(pair_count))
    while todo:
        some, todo = todo[:_PAIRS_OF_A_PROCESS], todo[_PAIRS_OF_A_PROCESS:]
        with opened(case.a, case.a_work) as a, opened(case.b, case.b_work) as b:
            for pair in _measure_pairs(case, a, b, some, on_run):
                pairs.append(pair)
                on_pair(pair)
    return pairs


def _measure_pairs(
    case: Case, a: OpenSide, b: OpenSide, todo: Sequence[Order], on_run: Callable[[], None]
) -> Iterator[PairResult]:
    # The first run of a process is no figure (caches are cold), but it tells how often
    # the client answers, which the floor must know.
    answered_every = b.run().answered_every
    a.run(answered_every=answered_every)
    for order in todo:
        outcomes: dict[str, Outcome] = {}
        discarded: dict[str, list[Outcome]] = {"A": [], "B": []}
        for name in order:
            side = a if name == "A" else b
            outcomes[name] = run_until_quiet(
                partial(side.run, answered_every=answered_every), discard=discarded[name].append
            )
            if name == "B":
                answered_every = outcomes[name].answered_every
            on_run()
        costs = outcomes["A"], outcomes["B"]
        first, second = (RunResult.of(each) for each in costs)
        yield PairResult(
            order=order,
            a=first,
            b=second,
            value=case.figure.of(*costs),
            discarded_a=tuple(map(RunResult.of, discarded["A"])),
            discarded_b=tuple(map(RunResult.of, discarded["B"])),
        )


def _speed(calibration: Calibration) -> float:
    return min(_FASTEST, max(_SLOWEST, REFERENCE_LOOP_NS / calibration.loop_ns))


def _measure(
    plan: Plan,
    words: BenchWords,
    terminal: Terminal,
    progress: _Progress,
    before: Calibration,
) -> ExitCode:
    started_at = datetime.now(UTC)
    host, git = collect_host(), collect_git(ROOT)

    def describe(after: CalibrationFacts | None) -> Document:
        return Document(
            state="interrupted" if after is None else "done",
            label=words.label,
            started_at=started_at,
            ended_at=datetime.now(UTC),
            asked=plan.asked,
            host=host,
            git=git,
            python_build=f"{platform.python_build()[0]} {platform.python_compiler()}",
            versions={name: version(name) for name in _VERSIONS},
            calibration_before=CalibrationFacts.of(before),
            calibration_after=after,
            cases=tuple(progress.results),
            hits=progress.hits,
        )

    after = None
    codes = []
    try:
        for case in plan.cases:
            codes.append(_measure_one(case, plan, progress, terminal))
            # Minutes of measuring are kept even if this process is killed.
            progress.folder.write_json(DOCUMENT, render_document(describe(None)))
        if plan.has_hits:
            progress.hits = _measure_hits(plan, terminal)
        after = CalibrationFacts.of(calibrate())
    finally:
        if progress.results or progress.hits is not None:
            _show(describe(after), words, terminal, progress.folder)
    return worst_exit_code(codes)


def _measure_hits(plan: Plan, terminal: Terminal) -> HitsReport:
    from benchmarks.hits import measure_hits  # noqa: PLC0415 - loads the probes into this process

    return measure_hits(
        is_quick=plan.is_quick,
        say=lambda line: terminal.step(HITS, line.removeprefix(HITS).strip(), 0.0),
    )


def _measure_one(case: Case, plan: Plan, progress: _Progress, terminal: Terminal) -> ExitCode:
    pair_count = plan.pairs_of(case)
    began_at = progress.done_count

    def say(done_count: int) -> None:
        pair = min(pair_count, (done_count - began_at) // 2 + 1)
        terminal.step(
            "bench", f"{case.name}, pair {pair} of {pair_count}", done_count / plan.run_count
        )

    def on_run() -> None:
        progress.done_count += 1
        say(progress.done_count)

    say(progress.done_count)
    code = ExitCode.OK
    pairs: list[PairResult] = []
    failure = _INTERRUPTED
    try:
        if case.needs_tracer:
            find_tracer()
        measure_case(case, pair_count=pair_count, on_run=on_run, on_pair=pairs.append)
        failure = ""
    except MachineError as error:
        failure = str(error)
        code = ExitCode.MACHINE_CANNOT if plan.is_chosen else ExitCode.OK
    except RunError as error:
        failure = str(error)
        code = ExitCode.INVALID
    finally:
        if pairs or failure != _INTERRUPTED:
            progress.results.append(CaseResult.of(case, pairs, failure=failure))
    progress.done_count = began_at + 2 * pair_count
    if not failure and not progress.results[-1].is_reliable:
        code = worst_exit_code([code, ExitCode.INCONCLUSIVE])
    return code


def _show(document: Document, words: BenchWords, terminal: Terminal, folder: RunFolder) -> None:
    lines = []
    if document.cases:
        lines += [Line("", row, is_preformatted=True) for row in render_table(document.cases)]
    for case in document.cases:
        lines += [Line("note", f"{case.name}: {note}") for note in render_notes(case)]
    if document.hits is not None:
        lines += [Line("", row, is_preformatted=True) for row in render_hits(document.hits)]
        lines.append(Line("", ""))
    lines.append(
        Line(
            "machine",
            render_calibration(document.calibration_before, document.calibration_after),
        )
    )
    terminal.say([Line("", ""), *lines])
    value = render_document(document)
    folder.write_json(DOCUMENT, value)
    terminal.say_folder(folder.path)
    if words.json:
        terminal.say_json(json.dumps(value))


def _make_folder(words: BenchWords, started_at: datetime, buffer_bytes: int) -> RunFolder:
    """Before anything is measured: an output that takes no folder is told at once."""
    name = render_folder_name(
        started_at=started_at,
        scripts=["bench"],
        buffer=render_size(buffer_bytes),
        short_id=secrets.token_hex(2),
    )
    folder = RunFolder.create(Path(words.output or "artifacts"), name)
    (folder.path / "logs").rmdir()  # no role of this leaves any
    return folder


def _count_instructions(words: BenchWords, terminal: Terminal, readiness: Readiness) -> ExitCode:
    from benchmarks.instructions import (  # noqa: PLC0415 - nothing else needs valgrind
        NEEDS,
        measure_instructions,
        render_instructions,
    )

    readiness.prepare_programs(NEEDS)
    folder = _make_folder(words, datetime.now(UTC), Wishes().buffer_bytes)
    try:
        report = measure_instructions(
            on_progress=lambda text, fraction: terminal.step("bench", text, fraction)
        )
    except BaseException:
        folder.remove()
        raise
    finally:
        terminal.end_step()
    value = report.model_dump(mode="json", by_alias=True)
    folder.write_json("instructions.json", value)
    terminal.say([Line("", line, is_preformatted=True) for line in render_instructions(report)])
    terminal.say_folder(folder.path)
    if words.json:
        terminal.say_json(json.dumps(value))
    return ExitCode.OK
