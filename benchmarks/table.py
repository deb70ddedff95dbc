"""
Comparisons for people: a table, and what its figures alone would hide. Pure.
"""

import io
from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.pairs import Figure, Spread
from benchmarks.results import CalibrationFacts, CaseResult, RunResult
from quiclab.wording import render_count

# A core counts as full from here on: ticks and a wake-up now and then make up the rest.
_FULL: Final = 0.93
_TABLE_COLUMNS: Final = 160  # the table takes what it needs (80) and is never wrapped
_COLUMNS: Final = (
    ("comparison", "left"),
    ("CPU-s/GB", "right"),
    ("MB/s", "right"),
    ("full core", "left"),
    ("figure, min … max", "left"),
    ("at least; aim", "left"),
)


def render_table(cases: Sequence[CaseResult]) -> list[str]:
    """
    Three lines for each comparison: its name, A, B.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title, justify in _COLUMNS:
        table.add_column(title, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for case in cases:
        for row in render_rows(case):
            table.add_row(*row)
    out = io.StringIO()
    Console(file=out, width=_TABLE_COLUMNS, color_system=None, highlight=False).print(table)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def render_rows(case: CaseResult) -> list[list[str]]:
    """
    The cells of one comparison: its name, then medians of each side.

    Beside A stand the figure and its goal, beside B the figure's spread and what was reached.
    """
    if case.value is None:
        return [[case.name], ["  not measured", *[""] * 4, render_goal(case)]]
    a_runs, b_runs = _sides(case)
    render = case.figure.render
    marks = "" if case.is_reliable else " (disturbed)"
    spread = f"{render(case.value.least)} … {render(case.value.most)}"
    return [
        [case.name],
        [*_render_side(case.a.label, a_runs), render(case.value.median), render_goal(case)],
        [*_render_side(case.b.label, b_runs), spread, f"{case.verdict}{marks}".strip()],
    ]


def _render_side(label: str, runs: Sequence[RunResult]) -> list[str]:
    return [
        f"  {label}",
        f"{_median(runs, 'cpu_s_per_gb'):.2f}",
        _render_rate(_median(runs, "mb_per_s")),
        find_full(runs),
    ]


def render_notes(case: CaseResult) -> Iterator[str]:
    """
    What a reader of the row should know besides.
    """
    if case.failure:
        yield case.failure
    if case.value is None:
        return
    a_runs, b_runs = _sides(case)
    if not case.is_reliable:
        steal, foreign = (
            max(max(getattr(pair.a, name), getattr(pair.b, name)) for pair in case.pairs)
            for name in ("steal", "foreign")
        )
        yield (
            "the machine was disturbed in most pairs, don't rely on it: "
            f"up to {steal:.0%} steal, {foreign:.0%} of the cores used by others"
        )
    elif case.counted_pair_count < len(case.pairs):
        yield f"{len(case.pairs) - case.counted_pair_count} disturbed pairs are left out"
    repeated_count = sum(len(pair.discarded_a + pair.discarded_b) for pair in case.pairs)
    if repeated_count:
        yield f"{render_count(repeated_count, 'run')} more, disturbed and made again"
    if case.figure is Figure.GOODPUT:
        pairs = case.counted_pairs
        grown = Spread.of([pair.b.cpu_s_per_gb / pair.a.cpu_s_per_gb for pair in pairs]).median
        yield f"server CPU of B / of A: ×{grown:.2f}"
    if len(b_runs[0].worker_shares) > 1:
        shares = sorted(max(run.worker_shares) for run in b_runs)
        yield f"the busier worker did {shares[0]:.0%} to {shares[-1]:.0%} of the server's work"
    if case.a.direction == "download" and case.figure is Figure.CPU_SAVED:
        rates = [_median(runs, "received_datagrams") for runs in (a_runs, b_runs)]
        answers = [max(1.0, _median(runs, "sent_datagrams")) for runs in (a_runs, b_runs)]
        yield (
            f"the client answered every {rates[0] / answers[0]:.1f} datagrams of A, "
            f"every {rates[1] / answers[1]:.1f} of B"
        )
    dropped_count = sum(pair.a.dropped_datagrams + pair.b.dropped_datagrams for pair in case.pairs)
    if dropped_count:
        yield f"the load's sockets dropped {dropped_count:,} datagrams"


def render_goal(case: CaseResult) -> str:
    """
    What the figure should be: `×2.50; ×3.20`.
    """
    bounds = [case.figure.render(each) for each in (case.at_least, case.aim) if each is not None]
    return "; ".join(bounds)


def render_calibration(before: CalibrationFacts, after: CalibrationFacts | None) -> str:
    """
    How fast the machine is, so that tables of two machines are not compared blindly.
    """
    text = f"{before.loop_ns:.0f} ns a loop, AES-128-GCM {before.aead_mb_per_s:,.0f} MB/s"
    if after is not None:
        text += f"; at the end {after.loop_ns:.0f} ns, {after.aead_mb_per_s:,.0f} MB/s"
    return text


def find_full(runs: Sequence[RunResult]) -> str:
    """
    Say whose core was full: goodput tells something of the server only when its was.
    """
    names = [
        name
        for name, part in (
            ("server", _median(runs, "server_busy")),
            ("load", _median(runs, "load_busy")),
        )
        if part >= _FULL
    ]
    return "+".join(names) or "none"


def _sides(case: CaseResult) -> tuple[list[RunResult], list[RunResult]]:
    pairs = case.counted_pairs
    return [pair.a for pair in pairs], [pair.b for pair in pairs]


def _render_rate(mb_per_s: float) -> str:
    if not mb_per_s:
        return "-"
    return f"{mb_per_s:.0f}" if mb_per_s >= 100 else f"{mb_per_s:.1f}"


def _median(runs: Sequence[RunResult], name: str) -> float:
    return Spread.of([float(getattr(run, name)) for run in runs]).median
