"""
Counting instructions: callgrind's output read, attributed and shown; one real count.
"""

import json
from pathlib import Path

import pytest

from benchmarks.instructions import measure_instructions
from benchmarks.instructions_callgrind import CallgrindError, parse_callgrind
from benchmarks.instructions_cases import CASES, Case, Done, Work
from benchmarks.instructions_report import (
    CaseReport,
    InstructionReport,
    attribute_functions,
    find_layer,
    render_instructions,
    report_case,
)
from quiclab.machine.setup import find_program
from tests.conftest import need

DATA = Path(__file__).resolve().parents[1] / "data" / "callgrind"
PROFILE = parse_callgrind((DATA / "program.out").read_text())
DONE = Done.load(
    json.dumps(
        {
            "datagram_count": 2,
            "answer_count": 1,
            "payload_bytes": 2400,
            "turn_count": 3,
            "arcs": json.loads((DATA / "program.json").read_text()),
        }
    )
)


def test_parse_callgrind_adds_up_to_callgrinds_own_total() -> None:
    """Own costs of all functions are what the file names as its total."""
    (total,) = (
        int(line.split()[1])
        for line in (DATA / "program.out").read_text().splitlines()
        if line.startswith("totals:")
    )
    assert total == PROFILE.instruction_count


def test_parse_callgrind_finds_what_calls_of_a_function_took() -> None:
    """Everything happened inside the measured calls, and their number is right."""
    measured = PROFILE.called("counted_measured")
    assert (3, PROFILE.instruction_count) == (measured.call_count, measured.instruction_count)


def test_a_wrapped_method_that_calls_another_counts_once() -> None:
    """Only the outermost of nested calls into aioquic is counted as one."""
    assert PROFILE.called("counted_in_aioquic").call_count == 6


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("events: Ir Dr\n", "counts more than instructions"),
        ("fn=(7)\n0 3\n", r"name \(7\) is used before"),
        ("calls=x 0\n", "line 1"),
        ("events: Ir\n", "nothing was collected"),
    ],
    ids=["other events", "unknown name", "no number", "empty"],
)
def test_parse_callgrind_says_what_is_wrong_with_a_file(text: str, words: str) -> None:
    """Damage is told with its line, and is no figure of zero."""
    with pytest.raises(CallgrindError, match=words):
        parse_callgrind(text)


def test_functions_are_told_apart_and_add_up() -> None:
    """Each Python function's own instructions, a recursive one's too, add up to the whole."""
    functions, _ = attribute_functions(PROFILE, DONE)

    by_name = {each.name: each for each in functions}
    assert set(by_name) == {"outer", "Connection.ask", "Connection.answer", "inner"}
    assert by_name["outer"].inclusive == pytest.approx(sum(each.own for each in functions))
    assert (1.5, 3, 3, 6) == tuple(
        by_name[name].calls for name in ("outer", "Connection.ask", "Connection.answer", "inner")
    )


@pytest.mark.parametrize(
    ("where", "layer"),
    [
        ("server/perf.py:83", "perf"),
        ("server/endpoint.py:1", "endpoint"),
        ("server/internals.py:114", "endpoint"),
        ("server/udp/transmit.py:9", "tx"),
        ("server/udp/receive.py:9", "rx"),
        ("server/udp/model.py:9", "other"),
    ],
)
def test_find_layer_knows_the_servers_files(where: str, layer: str) -> None:
    """A file that nobody has placed yet is still in a layer."""
    assert layer == find_layer(where)


def test_report_case_splits_the_server_from_aioquic() -> None:
    """The two shares of a run are all of it."""
    counted = [(PROFILE, DONE)] * 4

    report = report_case(CASES[0], counted, 3)

    assert len(report.own) == len(report.aioquic) == 2
    assert report.own[0] + report.aioquic[0] == PROFILE.instruction_count / 2
    assert report.floor_share == pytest.approx(1.0)


def test_render_instructions_names_cases_spread_and_functions() -> None:
    """One line a case with its figures, then the functions."""
    case = report_case(CASES[0], [(PROFILE, DONE)] * 4, 3)
    report = InstructionReport(
        versions={},
        reference=(310_600.0, 310_755.3),
        cases=(CaseReport.model_validate(case.model_dump()),),
    )

    lines = render_instructions(report)

    assert any(line.startswith("download 1200, 10") and "0.000%" in line for line in lines)
    assert any("310,678" in line and "0.050%" in line for line in lines)
    assert report.spread == pytest.approx(0.0005, rel=0.01)


def test_cases_have_names_of_their_own() -> None:
    """A name means one work, from one result to the next."""
    assert len(CASES) == len({case.name for case in CASES})


@pytest.mark.real
@pytest.mark.slow
def test_instructions_of_a_real_server_are_the_same_twice() -> None:
    """A short transfer costs the server and aioquic the same number in two runs, nearly."""
    need(find_program("valgrind") is not None, "valgrind")
    work = Work(warm_up_count=60, datagram_count=120)

    report = measure_instructions(
        cases=[Case(name="short", work=work)], reference=work.at("memory"), top_count=5
    )

    (case,) = report.cases
    assert report.spread < 0.01
    assert 0 < min(case.own) < min(case.aioquic)
    assert case.layers["tx"] > 0
    assert {each.where.partition("/")[0] for each in case.functions} == {"server"}
