"""
What was in effect during the load, read back; what nobody tells is no row.
"""

from typing import Any

import pytest

from quiclab.answers import ClientDescription, CounterReport, ServerDescription
from quiclab.evidence import Evidence
from quiclab.grants import Grant
from quiclab.readback import list_readback, render_cpus
from quiclab.runner.reading import Reading, RoleCost
from quiclab.runner.recorded import load_recording
from tests.quiclab.verdict.plants import make_evidence


def make_described(
    *, server: dict[str, Any] | None = None, client: dict[str, Any] | None = None, **words: Any
) -> Evidence:
    """Make the evidence of a recorded run in which both ends described themselves."""
    evidence = make_evidence(**words)
    evidence.server = ServerDescription.read(load_recording("server-describe") | (server or {}))
    evidence.client = ClientDescription.read(load_recording("client-describe") | (client or {}))
    return evidence


def find(evidence: Evidence, what: str) -> Grant | None:
    """Find a row by its name."""
    return next((row for row in list_readback(evidence) if row.what == what), None)


def test_workers_are_told_as_they_serve_and_are_traced() -> None:
    """Asked, started and traced are three figures."""
    workers = [{"index": 0, "pid": 1}, {"index": 1, "pid": 2}]
    evidence = make_described(server={"workers": workers}, workers=3)
    evidence.untraced = ["a_probe in worker 1", "another in worker 1"]
    serving, traced = find(evidence, "workers"), find(evidence, "workers traced")
    assert serving is not None
    assert traced is not None
    assert ("3", "2", True) == (serving.asked, serving.granted, serving.is_short)
    assert ("2", "1", True) == (traced.asked, traced.granted, traced.is_short)
    assert "a_probe in worker 1 saw no tracer" == traced.reason


def test_offloads_are_told_as_they_were_used() -> None:
    """On says little: so many messages carried more than one datagram."""
    evidence = make_described()
    raw = load_recording("server-report")
    raw["total"]["tx"].update(gso_message_count=1200, message_sent_count=1260)
    raw["total"]["tx"]["datagram_sent_count"] = 8820
    evidence.counters = CounterReport.read(raw)
    row = find(evidence, "server GSO")
    assert row is not None
    assert "in 1,200 of 1,260 messages, 7.0 datagrams a message" == row.granted


def test_the_ring_is_told_as_it_filled() -> None:
    """The most messages that waited at once, of its slots, and how often it was full."""
    evidence = make_described()
    raw = load_recording("server-report")
    raw["total"]["tx"].update(most_filled_count=54, ring_full_count=3)
    evidence.counters = CounterReport.read(raw)
    row = find(evidence, "server TX ring")
    assert row is not None
    assert "at most 54 of 128 filled, full 3 times" == row.granted


def test_a_server_that_does_not_count_offloads_has_no_row_of_them() -> None:
    """Nothing is guessed from a switch that is on."""
    evidence = make_described()
    raw = load_recording("server-report")
    raw["total"]["tx"].pop("gso_message_count", None)
    evidence.counters = CounterReport.read(raw)
    assert find(evidence, "server GSO") is None


@pytest.mark.parametrize(
    ("mtu_bytes", "is_short", "fix"),
    [(9000, False, ""), (65_536, False, ""), (1500, True, "--datagram 1472")],
)
def test_a_path_too_narrow_names_the_datagram_that_fits(
    mtu_bytes: int, is_short: bool, fix: str
) -> None:
    """The MTU stands beside what a full datagram needs, with the option that would fit."""
    row = find(make_described(client={"path_mtu_bytes": mtu_bytes}), "path MTU")
    assert row is not None
    assert (is_short, fix) == (row.is_short, row.fix)


def test_roles_that_share_their_cpus_share_a_row() -> None:
    """The client, which has ended by the second reading, is told by the first."""
    evidence = make_described()
    both, one = (0, 1), (1,)
    evidence.costs_before = Reading(
        at_s=1.0, roles={"client": RoleCost(user_s=1.0, system_s=1.0, cpu_ids=one)}
    )
    evidence.costs_after = Reading(
        at_s=2.0,
        roles={
            name: RoleCost(user_s=1.0, system_s=1.0, cpu_ids=both) for name in ("server", "tracer")
        },
    )
    rows = {row.what: row.granted for row in list_readback(evidence)}
    assert ("1", "0-1") == (rows["CPUs of client"], rows["CPUs of server, tracer"])


def test_cpu_numbers_are_written_as_the_kernel_does() -> None:
    """Runs become ranges."""
    assert "0-3,8,10-11" == render_cpus([3, 0, 1, 2, 8, 11, 10])


def test_a_certificate_is_told_with_its_key_and_its_end() -> None:
    """Whose it is, which key, until when."""
    facts = {"is_own": True, "key": "EC 256 bits", "not_after": "2026-12-08"}
    row = find(make_described(server={"certificate": facts}), "certificate")
    assert row is not None
    assert "made for this run, EC 256 bits, valid until 2026-12-08" == row.granted


def test_a_run_that_never_began_reads_nothing_back() -> None:
    """Without a server there is nothing to say."""
    evidence = make_evidence()
    evidence.server = evidence.client = evidence.counters = None
    assert [] == list_readback(evidence)
