"""
benchmarks.hits: kinds of hits cover the scripts, and windows are compared fairly.
"""

import pytest

from benchmarks.hits_report import ALL_FOUR, KINDS, HitCost, kinds_of, weigh
from benchmarks.hits_server import check_load, compare_windows
from quiclab.errors import RunError
from quiclab.trace.script import find_scripts
from server.probes import PROBES

COUNTERS = {
    "tx": {
        "datagram_sent_count": 70,
        "datagram_written_count": 70,
        "message_written_count": 10,
        "message_sent_count": 10,
        "send_call_count": 2,
    },
    "rx": {
        "datagram_read_count": 3,
        "message_received_count": 3,
        "message_read_count": 3,
        "receive_call_count": 5,
    },
    "receive_buffer": {"alloc_count": 0, "write_count": 0, "pop_count": 0},
}


def test_every_probe_of_every_shipped_script_is_measured() -> None:
    """A script or probe that joins later is not left out in silence."""
    shipped = {(script.name, probe) for script in find_scripts() for probe in script.usdt_names}
    assert shipped == {(kind.script, PROBES[kind.firing[0]].name) for kind in KINDS}


def test_four_scripts_at_once_share_the_hits_of_one_probe() -> None:
    """A probe that two scripts listen to is hit once."""
    firings = [kind.firing for kind in kinds_of(ALL_FOUR)]
    assert len(set(firings)) == len(firings)
    assert "message_sent" not in {PROBES[firing[0]].name for firing in firings}


def test_costs_and_counts_make_the_cost_of_a_load() -> None:
    """70 writes in 10 messages: 10 begin one, 60 do not, and each kind has its price."""
    ns = {"io tx write, a message's first": 500.0, "io tx write, further ones": 300.0}
    costs = [
        HitCost(script=kind.script, name=kind.name, ns=ns.get(kind.name, 0.0), least_ns=0.0)
        for kind in KINDS
    ]
    load = weigh(
        "io-latencies",
        costs,
        COUNTERS,
        direction="download",
        datagram_bytes=1200,
        total_bytes=1000,
    )
    assert (70 + 10 + 3 + 3, 10 * 500 + 60 * 300) == (load.hit_count, load.hit_ns)
    assert load.hits_a_datagram == 86 / 70
    assert load.added_cpu_s_per_gb == 23.0


def test_a_machine_that_slows_down_adds_nothing() -> None:
    """A window is held against both beside it, so that drift is no cost."""
    windows = [(index % 2 == 1, 100.0 + index + 7 * (index % 2)) for index in range(9)]
    found = compare_windows(windows)
    assert found.added_ns == (7.0,) * 4
    assert (7.0, 0.0) == (found.median_ns, found.error_ns)


def test_windows_that_were_left_out_are_not_bridged() -> None:
    """Only a window between two without probes counts; too few say nothing."""
    with pytest.raises(RunError, match="too few"):
        compare_windows([(False, 1.0), (True, 2.0), (True, 2.0), (False, 1.0)])


def test_windows_of_a_load_that_failed_are_not_taken() -> None:
    """A wrong byte while probes come and go is told, as in every measurement."""
    done = '{"event": "done", "bytes": 1}\n'
    check_load(['{"event": "ready"}\n', done])
    for said in (
        ['{"event": "ready"}\n', '{"event": "failed", "why": "byte 7 is wrong"}\n'],
        ['{"event": "failed", "why": "byte 7 is wrong"}\n', ""],
    ):
        with pytest.raises(RunError, match="byte 7 is wrong"):
            check_load(said)
