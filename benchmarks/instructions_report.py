"""
What counting instructions tells: pure, from callgrind's figures to a report and its table.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from benchmarks.instructions_callgrind import CallgrindProfile
from benchmarks.instructions_cases import Case, CodeName, Done
from quiclab.machine.setup import ROOT

SCHEMA: Final = 1
_ARC: Final = re.compile(r"counted_arc_([0-3]+)")
_NATIVE: Final = "/udp/_native"  # in the path of the server's C module

Counted = tuple[CallgrindProfile, Done]

Layer = Literal["perf", "endpoint", "loop", "tx", "rx", "other"]

_LAYERS: Final[dict[str, Layer]] = {
    "server/perf.py": "perf",
    "server/loop.py": "loop",
    "server/udp/transmit.py": "tx",
    "server/udp/batch.py": "tx",
    "server/udp/receive.py": "rx",
    "server/udp/ring.py": "tx",
    "server/udp/probing.py": "loop",
}


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FunctionCost(_Model):
    """
    One Python function: instructions per datagram, calls per datagram.

    `own` has what it called in C in it, and no other Python function.
    """

    name: str
    where: str
    own: float
    inclusive: float
    calls: float


class CaseReport(_Model):
    """
    One case; instructions are per datagram.

    Args:
        name: As `--only` takes it.
        work: What was done.
        datagram_count: How many the figures are from.
        answer_datagrams: Datagrams for each datagram in the other direction.
        own: The server's layers, one figure a run.
        aioquic: What the server asked of aioquic, one figure a run.
        floor: aioquic's server connection alone.
        native: Of `own`, what was spent in the server's C module and what it called.
        layers: Shares of the server's files, from the run in which calls are named.
        callbacks: Of `aioquic`, what was spent in the server's functions that it calls.
        functions: The server's dearest, by `own`.
        aioquic_functions: aioquic's dearest, by `own`.
    """

    name: str
    work: dict[str, Any]
    datagram_count: int
    answer_datagrams: float
    own: tuple[float, ...]
    aioquic: tuple[float, ...]
    floor: float
    native: float
    layers: dict[Layer, float]
    callbacks: float
    functions: tuple[FunctionCost, ...]
    aioquic_functions: tuple[FunctionCost, ...]

    @property
    def floor_share(self) -> float:
        """The floor over all that the server took, 1 at best."""
        return self.floor / (_mean(self.own) + _mean(self.aioquic))


class InstructionReport(_Model):
    """
    What was counted, and by what.

    Args:
        reference: Instructions a packet of aioquic with both ends in memory, one a run.
    """

    schema_number: int = Field(
        default=SCHEMA,
        serialization_alias="schema",
        validation_alias=AliasChoices("schema", "schema_number"),
    )
    versions: dict[str, str]
    reference: tuple[float, ...]
    cases: tuple[CaseReport, ...]

    @property
    def spread(self) -> float:
        """The widest difference between runs of one kind, as a share."""
        kinds = [self.reference, *(case.own for case in self.cases)]
        kinds += [case.aioquic for case in self.cases]
        return max((_spread(kind) for kind in kinds if kind), default=0.0)


def report_case(case: Case, counted: Sequence[Counted], top_count: int) -> CaseReport:
    """
    Put a case's runs together.

    Args:
        case: What they did.
        counted: The server's runs, then the floor, then the run whose calls are named.
        top_count: Functions to name.
    """
    *runs, (floor, floor_done), (followed, followed_done) = counted
    asked = [profile.called("counted_in_aioquic").instruction_count for profile, _ in runs]
    functions, callbacks = attribute_functions(followed, followed_done)
    layers: dict[Layer, float] = defaultdict(float)
    for function in functions:
        if function.where.startswith("server/") and not callbacks.get(function.where):
            layers[find_layer(function.where)] += function.own
    profile, done = runs[0]
    return CaseReport(
        name=case.name,
        work=asdict(case.work),
        datagram_count=done.datagram_count,
        answer_datagrams=done.datagram_count / max(1, done.answer_count),
        own=tuple(
            per_datagram(profile.instruction_count - in_aioquic, done)
            for (profile, done), in_aioquic in zip(runs, asked, strict=True)
        ),
        aioquic=tuple(
            per_datagram(in_aioquic, done)
            for (_, done), in_aioquic in zip(runs, asked, strict=True)
        ),
        floor=per_datagram(floor.instruction_count, floor_done),
        native=per_datagram(profile.entered(_NATIVE).instruction_count, done),
        layers=dict(layers),
        callbacks=sum(callbacks.values()),
        functions=tuple(_top(functions, "server/", top_count)),
        aioquic_functions=tuple(_top(functions, "aioquic/", top_count)),
    )


def attribute_functions(
    profile: CallgrindProfile, done: Done
) -> tuple[list[FunctionCost], dict[str, float]]:
    """
    What each Python function took, and what those of the server took that aioquic calls.
    """
    inclusive: dict[CodeName, int] = defaultdict(int)
    below: dict[CodeName, int] = defaultdict(int)
    call_counts: dict[CodeName, int] = defaultdict(int)
    callbacks: dict[str, float] = defaultdict(float)
    for (_, to), calls in profile.calls.items():
        match = _ARC.fullmatch(to.function)
        if match is None:
            continue
        caller, called = done.arcs[int(match[1], base=4)]
        inclusive[called] += calls.instruction_count
        call_counts[called] += calls.call_count
        if caller is not None:
            below[caller] += calls.instruction_count
    functions = []
    for called, instruction_count in inclusive.items():
        where = f"{_shorten(called[0])}:{called[1]}"
        own = per_datagram(instruction_count - below[called], done)
        functions.append(
            FunctionCost(
                name=called[2],
                where=where,
                own=own,
                inclusive=per_datagram(instruction_count, done),
                calls=call_counts[called] / done.datagram_count,
            )
        )
    for caller, called in done.arcs:
        if caller is not None and _shorten(caller[0]).startswith("aioquic/"):
            where = f"{_shorten(called[0])}:{called[1]}"
            if where.startswith("server/"):
                callbacks[where] = next((f.own for f in functions if f.where == where), 0.0)
    return functions, callbacks


def find_layer(where: str) -> Layer:
    """
    Which layer of the server a place in its code, `file:line`, belongs to.
    """
    path = where.partition(":")[0]
    if path in _LAYERS:
        return _LAYERS[path]
    return "other" if path.startswith("server/udp/") else "endpoint"


def _top(functions: Sequence[FunctionCost], prefix: str, count: int) -> list[FunctionCost]:
    found = [each for each in functions if each.where.startswith(prefix)]
    return sorted(found, key=lambda each: -each.own)[:count]


def _shorten(path: str) -> str:
    """A file as its package knows it."""
    if path.startswith(f"{ROOT}/") and "site-packages" not in path:
        return path.removeprefix(f"{ROOT}/")
    return path.rpartition("site-packages/")[2]


def per_datagram(instruction_count: int, done: Done) -> float:
    """
    Spread a count over the datagrams it was for.
    """
    return instruction_count / done.datagram_count


def _mean(figures: Sequence[float]) -> float:
    return sum(figures) / len(figures)


def _spread(figures: Sequence[float]) -> float:
    return (max(figures) - min(figures)) / _mean(figures)


def render_instructions(report: InstructionReport, *, top_count: int = 5) -> list[str]:
    """
    A table of all cases, then each one's dearest functions.
    """
    head = f"{'case':<22}{'own':>9}{'aioquic':>10}{'floor':>10}{'floor/all':>11}"
    lines = [
        "instructions a datagram (the kernel's are not counted)",
        f"{head}{'native':>8}{'spread':>9}",
    ]
    for case in report.cases:
        spread = max(_spread(case.own), _spread(case.aioquic))
        lines.append(
            f"{case.name:<22}{_mean(case.own):>9,.0f}{_mean(case.aioquic):>10,.0f}"
            f"{case.floor:>10,.0f}{case.floor_share:>11.3f}{case.native:>8,.0f}{spread:>9.3%}"
        )
    if report.reference:
        lines.append(
            f"{'aioquic, both ends':<22}{'':>9}{_mean(report.reference):>10,.0f}"
            f"{'':>29}{_spread(report.reference):>9.3%}"
        )
    for case in report.cases:
        shares = ", ".join(
            f"{name} {cost:,.0f}"
            for name, cost in sorted(case.layers.items(), key=lambda each: -each[1])
        )
        lines += ["", f"{case.name}: {shares}; called by aioquic: {case.callbacks:,.0f}"]
        lines.append(f"  {'own':>8}{'inclusive':>11}{'calls':>8}  function")
        lines += [
            f"  {each.own:>8,.0f}{each.inclusive:>11,.0f}{each.calls:>8.3f}  "
            f"{each.name} ({each.where})"
            for each in (*case.functions[:top_count], *case.aioquic_functions[:top_count])
        ]
    return lines
