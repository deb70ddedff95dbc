"""
What tracing cost: traced runs beside untraced twins, in turn (A B B A). Pure.

Two figures are compared: goodput, and the server's CPU time for what was moved.
Beside them stands what the probes should have cost, hits × cost of a hit. A last
run, traced and timed, lets the kernel itself count and time the programs; it is not
compared, as the timing makes each hit dearer.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field

from quiclab.artifacts import Manifest
from quiclab.comparison import MOST_STEAL, Change, choose_quiet
from quiclab.errors import ExitCode
from quiclab.probecost import ProbeCost
from quiclab.runner.base import TRACER
from quiclab.scenario import Scenario

SCHEMA: Final = 1
# What else may run beside a run that counts, in parts of all cores: the lab's own look at its
# roles and the engine's part in it were seen to take up to 0.05.
MOST_FOREIGN: Final = 0.1
_GB: Final = 1e9


class Side(StrEnum):
    """The kinds of runs."""

    UNTRACED = "untraced"
    TRACED = "traced"
    TIMED = "timed"


QUARTET: Final = (Side.UNTRACED, Side.TRACED, Side.TRACED, Side.UNTRACED)


def plan_sides(scenario: Scenario, *, quartet_count: int) -> list[tuple[Side, Scenario]]:
    """
    The runs that tell what tracing costs, in their order.

    Args:
        scenario: The traced run that was asked for.
        quartet_count: How often untraced, traced, traced, untraced.
    """
    what = scenario.label or "+".join(scenario.scripts)
    changes: dict[Side, dict[str, Any]] = {
        Side.UNTRACED: {
            "tracer": "none",
            "is_verified": False,
            "are_programs_timed": False,
            "label": f"untraced twin of {what}",
        },
        Side.TRACED: {},
        Side.TIMED: {"are_programs_timed": True, "label": f"{what}, timed by the kernel"},
    }
    # The recorder in the server has no BPF programs that the kernel could time.
    has_programs = scenario.tracer in {"bpftrace", "auto"}
    is_apart = has_programs and not scenario.are_programs_timed
    sides = [*QUARTET * quartet_count, *([Side.TIMED] if is_apart else [])]
    return [(side, scenario.model_copy(update=changes[side])) for side in sides]


class ComparedRun(BaseModel):
    """
    What one run adds to the comparison.

    Args:
        side: Which kind.
        run_id: Names its folder.
        is_usable: It came to its end, and its figures may be used.
        goodput_bytes_per_s: Stream bytes a second, both directions.
        cpu_s: The server's CPU time.
        cpu_s_per_gb: The same for 10^9 of them.
        limit: Who held the load back ("server", "client" ...).
        is_server_limit: It was the server, so that goodput says something about it.
        steal: Part of all cores that the hypervisor kept.
        foreign: Part of all cores that went to anything but the run's roles.
        costs: What the probes should have cost, by script.
    """

    model_config = ConfigDict(frozen=True)

    side: Side
    run_id: str
    is_usable: bool
    goodput_bytes_per_s: float = 0.0
    cpu_s: float = 0.0
    cpu_s_per_gb: float = 0.0
    limit: str = ""
    is_server_limit: bool = False
    steal: float | None = None
    foreign: float | None = None
    costs: Mapping[str, ProbeCost] = Field(default_factory=dict)

    @classmethod
    def of(cls, side: Side, manifest: Manifest, client: Mapping[str, Any] | None) -> Self:
        """Take from a finished run what is compared; a twin that was traced is none."""
        accounts, bottleneck = manifest.accounts, manifest.bottleneck
        is_traced = any(role.startswith(TRACER) for role in manifest.roles)
        is_other = is_traced and side is Side.UNTRACED
        is_invalid = manifest.verdict is None or manifest.verdict.exit_code is ExitCode.INVALID
        moved_bytes = 0 if client is None else client["bytes_received"] + client["bytes_sent"]
        if is_other or is_invalid or client is None or not moved_bytes or accounts is None:
            return cls(side=side, run_id=manifest.run_id, is_usable=False)
        steal = foreign = None
        if bottleneck is not None and bottleneck.cpu_count and bottleneck.machine_share is not None:
            own = sum(bottleneck.server_shares) + bottleneck.client_share
            own += bottleneck.tracer_share or 0.0
            foreign = round((bottleneck.machine_share - own) / bottleneck.cpu_count, 3)
            steal = round((bottleneck.steal_share or 0.0) / bottleneck.cpu_count, 3)
        costs = {name: script.cost for name, script in accounts.scripts.items()}
        return cls(
            side=side,
            run_id=manifest.run_id,
            is_usable=True,
            goodput_bytes_per_s=client["goodput_bytes_per_s"],
            cpu_s=accounts.server_cpu_s or 0.0,
            cpu_s_per_gb=round((accounts.server_cpu_s or 0.0) / moved_bytes * _GB, 6),
            limit="" if bottleneck is None else bottleneck.limit,
            is_server_limit=bottleneck is not None and bottleneck.is_server,
            steal=steal,
            foreign=foreign,
            costs={name: cost for name, cost in costs.items() if cost is not None},
        )

    @property
    def is_disturbed(self) -> bool:
        """Too much else went on for its figures to be compared."""
        return (self.steal or 0.0) > MOST_STEAL or (self.foreign or 0.0) > MOST_FOREIGN


class Overhead(BaseModel):
    """
    The comparison, as it stands in `overhead.json` and in the traced runs' manifests.

    Args:
        runs: All of them, in the order they were made.
        goodput: Its change by tracing; None when it could not be compared.
        server_cpu: The change of the server's CPU time for what was moved; None likewise.
        limits: Who held the load back in runs where that was not the server: goodput then
            says nothing about the server.
        is_disturbed: Too much else went on in more than half of the quartets.
        failure: Why there is no comparison, or "".
    """

    model_config = ConfigDict(frozen=True)

    schema_number: int = Field(default=SCHEMA, serialization_alias="schema")
    runs: Sequence[ComparedRun]
    goodput: Change | None = None
    server_cpu: Change | None = None
    limits: Sequence[str] = ()
    is_disturbed: bool = False
    failure: str = ""

    @property
    def exit_code(self) -> ExitCode:
        """What the comparison itself answers with; each run has a code of its own."""
        if self.is_disturbed or self.failure:
            return ExitCode.INCONCLUSIVE
        return ExitCode.DEGRADED if self.limits else ExitCode.OK

    @property
    def weighed(self) -> ComparedRun | None:
        """The run whose hits were counted and weighed: by the kernel, else by the server."""
        by_side = {run.side: run for run in self.runs if run.costs}
        return by_side.get(Side.TIMED) or by_side.get(Side.TRACED)

    @property
    def costs(self) -> Mapping[str, ProbeCost]:
        """What the probes should have cost, by script."""
        return {} if self.weighed is None else self.weighed.costs

    @property
    def reckoned(self) -> float | None:
        """By how much hits × their cost should have raised the server's CPU time; 0.1: a tenth."""
        hits_s = sum(cost.cpu_s for cost in self.costs.values())
        without_s = 0.0 if self.weighed is None else self.weighed.cpu_s - hits_s
        return hits_s / without_s if without_s > 0 else None


def compare(runs: Sequence[ComparedRun]) -> Overhead:
    """
    Hold traced runs against their untraced twins.

    Args:
        runs: As `plan_sides` ordered them; fewer when some could not be made.
    """
    compared = [run for run in runs if run.side is not Side.TIMED]
    size = len(QUARTET)
    quartets = [compared[i : i + size] for i in range(0, len(compared) // size * size, size)]
    unusable = [run.run_id for run in compared if not run.is_usable]
    if unusable or not quartets:
        return Overhead(
            runs=runs,
            failure=f"runs are not to be trusted: {', '.join(unusable)}" if unusable else "no runs",
        )
    indexes, is_reliable = choose_quiet([any(r.is_disturbed for r in q) for q in quartets])
    counted = [quartets[index] for index in indexes]
    limits = {run.limit for quartet in counted for run in quartet if not run.is_server_limit}
    return Overhead(
        runs=runs,
        goodput=_change(counted, "goodput_bytes_per_s"),
        server_cpu=_change(counted, "cpu_s_per_gb"),
        limits=sorted(limits),
        is_disturbed=not is_reliable,
    )


def _change(quartets: Sequence[Sequence[ComparedRun]], figure: str) -> Change | None:
    def of(quartet: Sequence[ComparedRun], side: Side) -> list[float]:
        return [float(getattr(run, figure)) for run in quartet if run.side is side]

    return Change.of([(of(each, Side.UNTRACED), of(each, Side.TRACED)) for each in quartets])


def render_overhead(overhead: Overhead) -> Iterator[str]:
    """
    The comparison in lines for people, each with its figures.
    """
    if overhead.failure:
        yield f"not compared: {overhead.failure}"
        return
    if overhead.is_disturbed:
        noisy = [run for run in overhead.runs if run.is_disturbed]
        yield (
            f"inconclusive: in {len(noisy)} of {len(overhead.runs)} runs the hypervisor took more "
            f"than {MOST_STEAL:.0%} of the cores, or others more than {MOST_FOREIGN:.0%}; "
            "repeat it on a quieter machine"
        )
    if overhead.goodput is not None:
        yield (
            f"goodput {overhead.goodput.render()}: {overhead.goodput.before / 1e6:.1f} MB/s "
            f"untraced, {overhead.goodput.after / 1e6:.1f} MB/s traced"
        )
    if overhead.limits:
        yield (
            "goodput says nothing about the server, which was not the limit in every run; "
            f"there was also: {', '.join(limit or 'unknown' for limit in overhead.limits)}"
        )
    if overhead.server_cpu is not None:
        yield (
            f"server's CPU {overhead.server_cpu.render()}: {overhead.server_cpu.before:.3f} "
            f"CPU-s a GB untraced, {overhead.server_cpu.after:.3f} traced"
        )
    for name, cost in overhead.costs.items():
        by = "the kernel's count and clock" if cost.is_counted_by_kernel else "the server's count"
        yield f"{name}: {cost.render()}, by {by}"
    if overhead.reckoned is not None:
        yield f"reckoned by these hits alone, the server's CPU grows by {overhead.reckoned:.1%}"
