"""
The accounts of a run: what was seen, what is outstanding, what must balance.
"""

from typing import Any

import pytest

from quiclab.accounting import Accounts, Balance, account
from quiclab.answers import ClientResult, CounterReport
from quiclab.evidence import Evidence
from quiclab.runner.reading import ProgramCost, Reading
from quiclab.runner.recorded import load_recording
from tests.quiclab.verdict.plants import add_line, count, make_evidence


def tell_streams(evidence: Evidence, *, client: dict[str, Any], perf: dict[str, Any]) -> None:
    """Let client and server have told more of their streams."""
    evidence.client_result = ClientResult.read({**load_recording("client-result"), **client})
    raw = load_recording("server-report")
    raw["total"]["perf"].update(perf)
    evidence.counters = CounterReport.read(raw)


def find_balance(evidence: Evidence, what: str) -> Balance | None:
    """Find a balance by what it counts."""
    return next((each for each in account(evidence).balances if each.what == what), None)


def test_a_recorded_run_balances() -> None:
    """Probes, maps, pairs and balances of a real run: nothing is outstanding, all is kept."""
    accounts = account(make_evidence())
    script = accounts.scripts["udp-syscall"]
    assert (6, 6, False) == (
        script.expected_probe_count,
        script.attached_probe_count,
        script.is_cut_off,
    )
    send, receive = script.pairs
    assert (83, 83, 0, 0) == (
        send.start_count,
        send.matched_count,
        send.unmatched_count,
        send.outstanding_count,
    )
    assert (290, 0, 4096) == (
        receive.start_count,
        receive.outstanding_count,
        receive.key_limit,
    )
    assert 9 == len(accounts.balances)
    assert all(balance.is_kept for balance in accounts.balances)


def test_starts_without_an_end_are_outstanding() -> None:
    """Starts less matched ends, beside what the scratch map can keep."""
    evidence = make_evidence("io-latencies", map_key_limit=500)
    add_line(evidence, count("@tx_starts", 1300))
    add_line(evidence, count("@tx_unmatched", 4))
    pair = account(evidence).scripts["io-latencies"].pairs[0]
    assert (40, 4, 500) == (pair.outstanding_count, pair.unmatched_count, pair.key_limit)


def test_what_was_lost_is_counted_by_kind() -> None:
    """Lost events, helper errors, unread lines and unknown records each have a figure."""
    evidence = make_evidence()
    for line in (
        '{"type": "lost_events", "data": {"events": 40}}',
        '{"type": "helper_error", "msg": "no", "helper": "probe_read", "retcode": -1}',
        '{"type": "helper_error", "msg": "no", "helper": "probe_read", "retcode": -1}',
        '{"type": "tseries", "data": {}}',
        "garbage",
    ):
        add_line(evidence, line)
    script = account(evidence).scripts["udp-syscall"]
    assert (40, 2, 1, 1) == (
        script.lost_event_count,
        script.helper_error_count,
        script.unread_line_count,
        script.unknown_record_count,
    )


def test_runs_of_programs_are_those_during_the_load() -> None:
    """What a program did before the load is taken off; a program that came later counts whole."""
    evidence = make_evidence()
    old = ProgramCost(program_id=1, run_count=5, run_time_ns=500, recursion_miss_count=1)
    now = ProgramCost(program_id=1, run_count=25, run_time_ns=2500, recursion_miss_count=1)
    new = ProgramCost(program_id=2, run_count=3, run_time_ns=300, recursion_miss_count=0)
    evidence.costs_before = Reading(at_s=1.0, programs={"tracer": [old]})
    evidence.costs_after = Reading(at_s=2.0, programs={"tracer": [now, new]})
    script = account(evidence).scripts["udp-syscall"]
    assert (23, 2300, 0) == (script.run_count, script.run_time_ns, script.skipped_count)


def test_a_kernel_that_does_not_tell_is_not_guessed_for() -> None:
    """Without the kernel's figures they are absent, not 0."""
    evidence = make_evidence()
    silent = ProgramCost(program_id=1)
    evidence.costs_before = evidence.costs_after = Reading(at_s=1.0, programs={"tracer": [silent]})
    script = account(evidence).scripts["udp-syscall"]
    assert (None, None, None) == (script.run_count, script.run_time_ns, script.skipped_count)


@pytest.mark.parametrize(
    ("client", "perf", "what", "is_kept"),
    [
        (9, 9, "bytes of completed downloads", True),
        (8, 9, "bytes of completed downloads", False),
        (10, 9, "bytes of completed downloads", False),
        (8, 9, "bytes of stopped downloads", True),
        (10, 9, "bytes of stopped downloads", False),
        (8, 9, "bytes of completed uploads", False),
    ],
)
def test_streams_are_held_against_each_other(
    client: int, perf: int, what: str, is_kept: bool
) -> None:
    """Completed streams must agree to the byte; a stopped one may have lost what was under way."""
    names = {
        "bytes of completed downloads": ("completed_received_bytes", "download_completed"),
        "bytes of stopped downloads": ("stopped_received_bytes", "download_stopped"),
        "bytes of completed uploads": ("completed_sent_bytes", "upload_completed"),
    }
    client_name, server_name = names[what]
    evidence = make_evidence()
    tell_streams(evidence, client={client_name: client}, perf={f"{server_name}_byte_count": perf})
    balance = find_balance(evidence, what)
    assert balance is not None
    assert is_kept == balance.is_kept


def test_a_figure_that_nobody_tells_is_no_row() -> None:
    """A server that does not count by how streams ended makes no balance of it."""
    evidence = make_evidence()
    raw = load_recording("server-report")
    raw["total"]["perf"].pop("download_completed_byte_count", None)
    evidence.counters = CounterReport.read(raw)
    assert find_balance(evidence, "bytes of completed downloads") is None


@pytest.mark.parametrize(
    ("words", "is_there", "is_kept"),
    [
        ({"bytes": 76_315_120, "duration": None, "direction": "download"}, True, True),
        ({"bytes": 76_315_121, "duration": None, "direction": "download"}, True, False),
        ({"bytes": 76_315_121, "duration": 1.0, "direction": "download"}, False, False),
        ({"bytes": 76_315_121, "duration": None, "direction": "upload"}, False, False),
    ],
    ids=["exact", "one short", "time ended it", "other direction"],
)
def test_bytes_that_were_asked_for_must_have_come(
    words: dict[str, Any], is_there: bool, is_kept: bool
) -> None:
    """With --bytes alone exactly so many move, in each direction that was asked for."""
    balance = find_balance(make_evidence(**words), "bytes of the download asked for")
    assert is_there == (balance is not None)
    assert is_kept == (balance is not None and balance.is_kept)


def test_streams_of_an_unsettled_run_are_not_compared() -> None:
    """While a connection is open, bytes are under way."""
    evidence = make_evidence()
    raw = load_recording("server-report")
    raw["total"]["connections"]["open_count"] = 1
    evidence.counters = CounterReport.read(raw)
    assert find_balance(evidence, "bytes of all uploads") is None


def test_a_broken_balance_says_both_figures() -> None:
    """The sign turns round, and nobody's figure is hidden."""
    broken = Balance(
        what="bytes", left="client a", left_count=12_345, relation="≤", right="server b",
        right_count=7,
    )  # fmt: skip
    assert "bytes: client a 12,345 > server b 7" == broken.render()
    unknown = broken.model_copy(update={"relation": "=", "right_count": None})
    assert "bytes: client a 12,345 ≠ server b unknown" == unknown.render()


def test_a_run_that_never_loaded_has_accounts() -> None:
    """Nothing was counted: every figure is 0 or absent, and no balance is claimed."""
    evidence = make_evidence()
    evidence.counters = evidence.client_result = evidence.tracers[0].trace = None
    accounts = account(evidence)
    assert (0, (), None) == (
        accounts.scripts["udp-syscall"].event_count,
        tuple(accounts.balances),
        accounts.client_drop_count,
    )


def test_accounts_read_back_as_they_were_written() -> None:
    """Dump and load are a pair."""
    accounts = account(make_evidence())
    assert accounts == Accounts.model_validate_json(accounts.model_dump_json())
