"""
What tracing cost: planned, compared and told from the figures of finished runs.
"""

from collections.abc import Sequence

import pytest

from quiclab.errors import ExitCode
from quiclab.overhead import (
    ComparedRun,
    Overhead,
    Side,
    compare,
    plan_sides,
    render_overhead,
)
from quiclab.probecost import ProbeCost
from quiclab.scenario import Scenario

COST = ProbeCost(
    hit_count=1000, is_counted_by_kernel=True, hit_ns=500.0, run_ns=210.0, cpu_s=0.0005
)


def make_run(side: Side, **changes: object) -> ComparedRun:
    """A run that tracing made a tenth slower and a fifth dearer."""
    is_traced = side is not Side.UNTRACED
    return ComparedRun.model_validate(
        {
            "side": side,
            "run_id": f"run-{side}",
            "is_usable": True,
            "goodput_bytes_per_s": 90e6 if is_traced else 100e6,
            "cpu_s": 0.0105,
            "cpu_s_per_gb": 12.0 if is_traced else 10.0,
            "limit": "server",
            "is_server_limit": True,
            "steal": 0.0,
            "foreign": 0.01,
            "costs": {"udp-syscall": COST} if is_traced else {},
            **changes,
        }
    )


def make_runs(count: int = 1, **changes: object) -> list[ComparedRun]:
    """Quartets of such runs; the last run of all is changed."""
    sides = [Side.UNTRACED, Side.TRACED, Side.TRACED, Side.UNTRACED] * count
    return [*map(make_run, sides[:-1]), make_run(sides[-1], **changes)]


def test_plan_is_quartets_and_a_timed_run() -> None:
    """Twins differ from what was asked in nothing but that nobody traces them."""
    scenario = Scenario.model_validate({"script": ["udp-syscall"], "verify": True})
    sides = plan_sides(scenario, quartet_count=2)
    assert "UTTUUTTUT" == "".join(side[0].upper() for side, _ in sides)
    twin, traced, timed = sides[0][1], sides[1][1], sides[-1][1]
    assert scenario == traced
    assert ("none", False) == (twin.tracer, twin.is_verified)
    assert (
        twin.model_copy(update={"tracer": "bpftrace", "is_verified": True, "label": ""}) == scenario
    )
    assert timed.are_programs_timed


@pytest.mark.parametrize(
    "asked", [{"tracer": "in-process"}, {"time-programs": True}], ids=["no-programs", "all-timed"]
)
def test_plan_leaves_out_a_timed_run_that_tells_nothing(asked: dict[str, object]) -> None:
    """Without programs there is nothing to time, and where all are timed one more is too much."""
    scenario = Scenario.model_validate({"script": ["udp-syscall"], **asked})
    assert Side.TIMED not in [side for side, _ in plan_sides(scenario, quartet_count=1)]


def test_change_is_told_with_its_figures() -> None:
    """Both figures, their spread, and what the probes should have cost."""
    overhead = compare([*make_runs(3), make_run(Side.TIMED)])
    assert ExitCode.OK is overhead.exit_code
    goodput, server_cpu, costs, reckoned = render_overhead(overhead)
    spread = "(-10.0% to -10.0%; equal runs look so one time in 108)"
    assert f"goodput -10.0% {spread}: 100.0 MB/s untraced, 90.0 MB/s traced" == goodput
    spread = "(+20.0% to +20.0%; equal runs look so one time in 108)"
    figures = "10.000 CPU-s a GB untraced, 12.000 traced"
    assert f"server's CPU +20.0% {spread}: {figures}" == server_cpu
    assert f"udp-syscall: {COST.render()}, by the kernel's count and clock" == costs
    # Half a millisecond of hits in 10.5 ms of CPU time.
    assert "reckoned by these hits alone, the server's CPU grows by 5.0%" == reckoned


def test_timed_run_is_not_compared() -> None:
    """Its hits are dearer than those that were asked about."""
    assert (
        compare(make_runs()).server_cpu
        == compare([*make_runs(), make_run(Side.TIMED, cpu_s_per_gb=50.0)]).server_cpu
    )


def test_client_that_was_the_limit_degrades_the_comparison() -> None:
    """Goodput tells nothing of the server then; its CPU time still does."""
    overhead = compare(make_runs(limit="client", is_server_limit=False))
    assert ExitCode.DEGRADED is overhead.exit_code
    assert overhead.server_cpu is not None
    assert overhead.server_cpu.is_resolved
    assert any("says nothing about the server" in line for line in render_overhead(overhead))


def test_timed_run_that_failed_spoils_nothing() -> None:
    """The comparison does not stand on it; what a hit costs is then told by the others."""
    overhead = compare([*make_runs(), make_run(Side.TIMED, is_usable=False, costs={})])
    assert "" == overhead.failure
    assert {"udp-syscall": COST} == overhead.costs


@pytest.mark.parametrize(
    "noise", [{"steal": 0.03}, {"foreign": 0.2}], ids=["hypervisor", "other-processes"]
)
def test_disturbed_quartets_are_left_out_while_half_remain(noise: dict[str, object]) -> None:
    """Of one the comparison is inconclusive; of two the other one counts alone."""
    alone = compare(make_runs(1, **noise, cpu_s_per_gb=99.0))
    assert ExitCode.INCONCLUSIVE is alone.exit_code
    assert next(render_overhead(alone)).startswith("inconclusive: in 1 of 4 runs")
    two = compare(make_runs(2, **noise, cpu_s_per_gb=99.0))
    assert ExitCode.OK is two.exit_code
    assert two.server_cpu is not None
    assert 1 == two.server_cpu.group_count


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        (make_runs(is_usable=False), "runs are not to be trusted: run-untraced"),
        (make_runs()[:3], "no runs"),
    ],
    ids=["invalid", "too-few"],
)
def test_runs_that_cannot_be_compared_are_not(runs: Sequence[ComparedRun], why: str) -> None:
    """No figure stands on a run that is not to be trusted."""
    overhead = compare(runs)
    assert (why, None, None) == (overhead.failure, overhead.goodput, overhead.server_cpu)
    assert ExitCode.INCONCLUSIVE is overhead.exit_code
    assert [f"not compared: {why}"] == list(render_overhead(overhead))


def test_document_reads_back() -> None:
    """What is written can be read again, schema number and all."""
    overhead = compare(make_runs())
    document = overhead.model_dump(mode="json", by_alias=True)
    assert 1 == document.pop("schema")
    assert overhead == Overhead.model_validate(document)
