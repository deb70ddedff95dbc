"""
The comparisons, each of two sides under the same load, and what each should reach.

The server's TX ring is that of the lab's runs, 128,000 bytes, unless `--buffer` says
otherwise; its MTU is the lab's 9,000, and `--datagram` alone chooses a datagram's size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.pairs import Figure, Goal
from benchmarks.sides import Direction, Side, Work
from quiclab.errors import UsageError

NO_GOAL: Final = Goal()
SMALL_BYTES: Final = 1_200
LARGE_BYTES: Final = 8_900
DEFAULT_BUFFER_BYTES: Final = 128_000
_SEGMENTS_OF_THE_LAB: Final = 10
_MANY_PAIRS: Final = 2
_MB: Final = 1_000_000
HITS: Final = "hits"
"""What `--only` calls the measurement of traced hits: no comparison (`benchmarks.hits`)."""

# A run lasts 1 to 2 s with these on a machine whose calibration loop takes `REFERENCE_LOOP_NS`.
_SMALL_LOAD_BYTES: Final = 32 * _MB
_LARGE_LOAD_BYTES: Final = 240 * _MB
REFERENCE_LOOP_NS: Final = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """
    A comparison.

    Args:
        name: As `--only` takes it.
        question: What it answers.
        a: The one to compare with.
        b: The one that is compared.
        a_work: What `a` moves.
        b_work: What `b` moves.
        figure: What is computed of each pair.
        goal: What it should be.
        is_core: Whether `--quick` runs it.
        is_sized: Whether it is about one size of datagram, which a user's wish leaves alone.
        pair_factor: How many times the usual number of pairs; small effects take more.
    """

    name: str
    question: str
    a: Side
    b: Side
    a_work: Work
    b_work: Work
    figure: Figure
    goal: Goal = NO_GOAL
    is_core: bool = False
    is_sized: bool = False
    pair_factor: int = 1

    @property
    def needs_tracer(self) -> bool:
        """Whether it needs root and bpftrace."""
        return self.a.is_traced or self.b.is_traced


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """
    What a user may change of all cases.

    Args:
        datagram_bytes: Size of a full datagram in the cases that are not about a size; 0: theirs.
        buffer_bytes: TX ring of our server.
        speed: How many times faster than the reference this machine is; scales the loads.
    """

    datagram_bytes: int = 0
    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    speed: float = 1.0


def make_cases(wishes: Wishes) -> tuple[Case, ...]:
    """
    All comparisons, in the order in which they are run.
    """
    cases = (
        *_stock_cases(),
        *_floor_cases(),
        *_probe_cases(),
        _workers_case(),
        *_growth_cases(),
    )
    return tuple(_apply(case, wishes) for case in cases)


def choose_cases(cases: Sequence[Case], *, only: Sequence[str], is_quick: bool) -> list[Case]:
    """
    Those to run: the named ones, or the core ones, or all.

    A name may be the beginning of several: `stock` means all that begin with "stock-".

    Raises:
        UsageError: A name fits none.
    """
    if not only:
        return [case for case in cases if case.is_core or not is_quick]
    chosen: list[Case] = []
    for name in only:
        if name == HITS:
            continue
        found = [case for case in cases if case.name == name or case.name.startswith(f"{name}-")]
        if not found:
            known = ", ".join([*(case.name for case in cases), HITS])
            raise UsageError(f"--only {name} names no comparison; there are {known}")
        chosen += [case for case in found if case not in chosen]
    return chosen


def _apply(case: Case, wishes: Wishes) -> Case:
    """Let a user's wishes change a case."""
    datagram_bytes = 0 if case.is_sized else wishes.datagram_bytes

    def work(given: Work) -> Work:
        size_bytes = datagram_bytes or given.datagram_bytes
        total_bytes = given.total_bytes
        if datagram_bytes:
            # What a byte costs falls with the datagram's size, less than in proportion.
            total_bytes = int(total_bytes * (datagram_bytes / given.datagram_bytes) ** 0.8)
        megabytes = max(1, round(total_bytes * wishes.speed / _MB))
        return replace(given, datagram_bytes=size_bytes, total_bytes=megabytes * _MB)

    def side(given: Side) -> Side:
        if given.kind != "ours":
            return given
        ring = ("--queue-send-buffer-size", str(wishes.buffer_bytes))
        return replace(given, words=(*ring, *given.words))

    return replace(
        case,
        a=side(case.a),
        b=side(case.b),
        a_work=work(case.a_work),
        b_work=work(case.b_work),
    )


_OURS: Final = Side(label="ours", kind="ours")
_STOCK: Final = Side(label="stock", kind="stock")
_FLOOR: Final = Side(label="floor", kind="floor")


def _work(direction: Direction, datagram_bytes: int) -> Work:
    is_large = datagram_bytes == LARGE_BYTES
    return Work(
        direction=direction,
        total_bytes=_LARGE_LOAD_BYTES if is_large else _SMALL_LOAD_BYTES,
        datagram_bytes=datagram_bytes,
    )


def _stock_cases() -> list[Case]:
    goals: dict[tuple[Direction, int], Goal] = {
        ("download", SMALL_BYTES): Goal(2.5, 3.2),
        ("download", LARGE_BYTES): Goal(2.2, 2.6),
        ("upload", SMALL_BYTES): Goal(1.8, 2.2),
        ("upload", LARGE_BYTES): NO_GOAL,
    }
    cases = []
    for (direction, size_bytes), goal in goals.items():
        work = _work(direction, size_bytes)
        if direction == "upload":
            work = replace(work, total_bytes=work.total_bytes // 2)
        cases.append(
            Case(
                name=f"stock-{direction}-{size_bytes}",
                question=f"ours against stock aioquic, {direction}, {size_bytes:,}-byte datagrams",
                a=_STOCK,
                b=_OURS,
                a_work=work,
                b_work=work,
                figure=Figure.CPU_SAVED,
                goal=goal,
                is_core=(direction, size_bytes) != ("upload", LARGE_BYTES),
                is_sized=True,
            )
        )
    work = replace(_work("download", SMALL_BYTES), answer_every=_SEGMENTS_OF_THE_LAB)
    cases.append(
        Case(
            name=f"stock-even-{SMALL_BYTES}",
            question="ours against stock aioquic, the client answers every "
            f"{_SEGMENTS_OF_THE_LAB} datagrams of either",
            a=_STOCK,
            b=_OURS,
            a_work=work,
            b_work=work,
            figure=Figure.CPU_SAVED,
            is_sized=True,
        )
    )
    return cases


def _floor_cases() -> list[Case]:
    cases = []
    for size_bytes, segment_count, goal in (
        (SMALL_BYTES, 64, Goal(0.90, 0.97)),
        (SMALL_BYTES, 10, Goal(0.80, 0.92)),
        (LARGE_BYTES, 10, Goal(0.70, 0.82)),
    ):
        work = _work("download", size_bytes)
        cases.append(
            Case(
                name=f"floor-{size_bytes}-{segment_count}",
                question=f"aioquic in memory against ours, {size_bytes:,}-byte datagrams, "
                f"up to {segment_count} a message",
                a=_FLOOR,
                b=replace(_OURS, words=("--max-segments", str(segment_count))),
                a_work=work,
                b_work=work,
                figure=Figure.CPU_SAVED,
                goal=goal,
                is_core=segment_count == _SEGMENTS_OF_THE_LAB,
                is_sized=True,
            )
        )
    return cases


def _many_short(direction: Direction, datagram_bytes: int) -> Work:
    """
    A load for an effect of some percent: the machine drifts less within shorter pairs.
    """
    work = _work(direction, datagram_bytes)
    return replace(work, total_bytes=work.total_bytes // 2)


def _probe_cases() -> list[Case]:
    untraced = replace(_OURS, label="not traced")
    small = _many_short("download", SMALL_BYTES)
    cases = [
        Case(
            name="probes-off",
            question="probes on, not traced, against none",
            a=replace(_OURS, label="probes off", words=("--probes", "off")),
            b=untraced,
            a_work=small,
            b_work=small,
            figure=Figure.CPU_GROWN,
            goal=Goal(0.03, 0.01),
            pair_factor=_MANY_PAIRS,
        )
    ]
    for size_bytes, goal in ((LARGE_BYTES, Goal(0.7, 0.3)), (SMALL_BYTES, Goal(2.0, 1.0))):
        work = _many_short("download", size_bytes)
        cases.append(
            Case(
                name=f"traced-{size_bytes}",
                question=f"all four scripts at once against none, {size_bytes:,}-byte datagrams",
                a=untraced,
                b=replace(_OURS, label="traced", is_traced=True),
                a_work=work,
                b_work=work,
                figure=Figure.CPU_ADDED,
                goal=goal,
                is_sized=True,
                pair_factor=_MANY_PAIRS,
            )
        )
    return cases


def _workers_case() -> Case:
    work = replace(_work("download", SMALL_BYTES), connection_count=16)
    return Case(
        name="workers-2",
        question="two workers against one, all on the same 2 cores, 16 connections",
        a=replace(_OURS, label="1 worker", is_pinned=False),
        b=replace(_OURS, label="2 workers", is_pinned=False, words=("--workers", "2")),
        a_work=work,
        b_work=work,
        figure=Figure.GOODPUT,
        goal=Goal(1.25),
    )


def _growth_cases() -> list[Case]:
    work = _work("download", SMALL_BYTES)
    grown = [("connection", count, replace(work, connection_count=count)) for count in (8, 64, 500)]
    grown += [("stream", count, replace(work, stream_count=count)) for count in (16, 100)]
    return [
        Case(
            name=f"{noun}s-{count}",
            question=f"{count} {noun}s against 1, total goodput",
            a=replace(_OURS, label=f"1 {noun}"),
            b=replace(_OURS, label=f"{count} {noun}s"),
            a_work=work,
            b_work=b_work,
            figure=Figure.GOODPUT,
            goal=Goal(0.8, 0.95) if (noun, count) == ("connection", 64) else NO_GOAL,
        )
        for noun, count, b_work in grown
    ]
