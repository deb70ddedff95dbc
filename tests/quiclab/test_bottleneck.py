"""
Who held a load back, told by figures; nothing is claimed where nothing was measured.
"""

from typing import Any

import pytest

from quiclab.answers import ClientResult, CounterReport
from quiclab.bottleneck import Bottleneck, find_bottleneck
from quiclab.evidence import Evidence
from quiclab.runner.drops import UdpSocket
from quiclab.runner.reading import MachineCost, Reading, RoleCost
from quiclab.runner.recorded import load_recording
from tests.quiclab.verdict.plants import make_evidence

LOAD_S = 5.0


def make_load(
    *,
    server_s: tuple[float, ...] = (2.0,),
    client: dict[str, Any] | None = None,
    total: dict[str, dict[str, Any]] | None = None,
) -> Evidence:
    """Make the evidence of a load of 5 s in which server and client used so much CPU."""
    evidence = make_evidence()
    result = {**load_recording("client-result"), "load_s": LOAD_S, "cpu_system_s": 0.0}
    evidence.client_result = ClientResult.read({**result, "cpu_user_s": 2.0, **(client or {})})
    raw = load_recording("server-report")
    raw["workers"] = [{"cpu_user_s": used_s, "cpu_system_s": 0.0} for used_s in server_s]
    for part, figures in (total or {}).items():
        raw["total"][part] = {**raw["total"].get(part, {}), **figures}
    evidence.counters = CounterReport.read(raw)
    return evidence


def read_machine(
    evidence: Evidence, *, busy_s: float = 5.0, steal_s: float = 0.0, tracer_s: float = 0.5
) -> None:
    """Let two CPUs have been read before and after the load."""
    for name, scale in (("costs_before", 0.0), ("costs_after", 1.0)):
        reading = Reading(
            at_s=10.0 + LOAD_S * scale,
            machine=MachineCost(cpu_count=2, busy_s=busy_s * scale, steal_s=steal_s * scale),
            roles={"tracer": RoleCost(user_s=0.0, system_s=tracer_s * scale)},
        )
        setattr(evidence, name, reading)


def find(evidence: Evidence) -> Bottleneck:
    """Find the bottleneck, which there is."""
    found = find_bottleneck(evidence)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("evidence", "limit", "words"),
    [
        (
            make_load(server_s=(4.9,)),
            "server",
            "the server's CPU (server 0.98 of 1 core, client 0.40 of 1)",
        ),
        (
            make_load(server_s=(4.9, 2.0)),
            "server",
            "the server's CPU (server 0.98 + 0.40 of 2 cores, client 0.40 of 1)",
        ),
        (
            make_load(client={"is_bottleneck": True, "bottleneck_note": "its core is full"}),
            "client",
            "the client: its core is full (server 0.40 of 1 core, client 0.40 of 1)",
        ),
        (
            make_load(server_s=(4.9,), client={"cpu_user_s": 4.8}),
            "both",
            "the CPU of both ends (server 0.98 of 1 core, client 0.96 of 1)",
        ),
        (
            make_load(total={"loop": {"window_wait_ns": 3_000_000_000}}),
            "window",
            "QUIC's window: the server slept 60 % of the time behind a full one",
        ),
        (
            make_load(total={"tx": {"send_call_count": 100, "blocked_count": 40}}),
            "socket",
            "the server's socket, full at 40 of 100 send calls",
        ),
        (
            make_load(total={"loop": {"late_timer_count": 40, "timer_count": 100}}),
            "machine",
            "late wake-ups: 40 of 100 timers",
        ),
        (make_load(), "unclear", "nothing that stands out (server 0.40 of 1 core"),
    ],
    ids=["server", "a worker", "client", "both", "window", "socket", "timers", "unclear"],
)
def test_the_limit_is_named_with_its_figures(evidence: Evidence, limit: str, words: str) -> None:
    """The first thing that is plain is named, and the cores that everybody used stand behind."""
    found = find(evidence)
    assert limit == found.limit
    assert words in found.text


def test_a_hypervisor_that_takes_time_comes_first() -> None:
    """With CPU time stolen even a busy server says little of itself."""
    evidence = make_load(server_s=(4.9,))
    read_machine(evidence, steal_s=1.0)
    found = find(evidence)
    assert "hypervisor" == found.limit
    assert "took 0.20 cores away" in found.text
    assert "tracer 0.10, machine 1.00 of 2, stolen 0.20" in found.text


def test_a_full_machine_is_named_when_no_end_is() -> None:
    """Nobody fills a core and both are full: the parts stand in each other's way."""
    evidence = make_load(server_s=(4.0,), client={"cpu_user_s": 4.0})
    read_machine(evidence, busy_s=9.9)
    assert "machine" == find(evidence).limit


def test_a_receiver_that_dropped_is_named() -> None:
    """Datagrams lost at the server's socket slow a load more than anything after it."""
    evidence = make_load()
    evidence.costs_after = Reading(at_s=1.0, sockets=[UdpSocket("::", 4433, 12)])
    found = find(evidence)
    assert ("receiver", True) == (found.limit, "12 datagrams dropped" in found.text)


def test_nothing_is_claimed_where_nothing_was_measured() -> None:
    """A run that failed early has no bottleneck, nor has one without CPU times."""
    evidence = make_load()
    evidence.client_result = None
    assert find_bottleneck(evidence) is None
    assert find_bottleneck(make_load(client={"load_s": 0.0})) is None
    assert find_bottleneck(make_load(server_s=(0.0,))) is None


def test_a_ring_that_is_full_is_no_limit() -> None:
    """A ring of one message is full after each; it is emptied at once, nobody waits for it."""
    ring = {"ring_full_count": 900, "message_written_count": 1000}
    assert "unclear" == find(make_load(total={"tx": ring})).limit


def test_goodput_speaks_of_the_server_only_where_it_limits() -> None:
    """A busy client's goodput is its own."""
    assert find(make_load(server_s=(4.9,))).is_server
    assert not find(make_load(client={"cpu_user_s": 4.9})).is_server
