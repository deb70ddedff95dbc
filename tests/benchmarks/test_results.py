"""
Documents: what is kept, and that it reads back.
"""

import json
from pathlib import Path

import pytest

from benchmarks.results import (
    SCHEMA,
    SCHEMA_HISTORY,
    CaseResult,
    RunResult,
    load_document,
    render_document,
)
from quiclab.artifacts import ArtifactError
from tests.benchmarks.samples import (
    find_case,
    make_case_result,
    make_document,
    make_outcome,
    make_pair,
)


def test_document_reads_back_as_it_was(tmp_path: Path) -> None:
    """Dump and load lose nothing."""
    document = make_document(make_case_result())
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(render_document(document)))
    assert load_document(path) == document


def test_document_says_its_schema() -> None:
    """Whoever reads it later knows the form."""
    assert render_document(make_document())["schema"] == SCHEMA
    assert list(SCHEMA_HISTORY) == list(range(1, SCHEMA + 1))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema": 99}', '{"schema": 1, "state": "done"}'],
    ids=["empty", "a list", "no schema", "newer", "half"],
)
def test_damaged_document_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    """The file is named, and nothing else happens."""
    path = tmp_path / "bench.json"
    path.write_text(text)
    with pytest.raises(ArtifactError, match=r"bench\.json"):
        load_document(path)


def test_run_turns_times_into_rates() -> None:
    """20 CPU-s/GB in 2 s for 0.1 GB is a full core at 50 MB/s."""
    run = RunResult.of(make_outcome())
    assert run.cpu_s_per_gb == pytest.approx(20.0)
    assert run.mb_per_s == pytest.approx(50.0)
    assert run.server_busy == pytest.approx(1.0)
    assert run.load_busy == pytest.approx(0.15)


def test_comparison_takes_the_median_of_its_pairs() -> None:
    """×2, ×3 and ×4 are ×3, which is at least what was asked."""
    result = make_case_result()
    assert result.value is not None
    assert (result.value.least, result.value.median, result.value.most) == (2.0, 3.0, 4.0)
    assert result.verdict == "at least"
    assert result.is_reliable


def test_comparison_of_disturbed_pairs_is_kept_and_marked() -> None:
    """Figures stay, with the word that they are not to be relied on."""
    result = make_case_result(foreign_ns=3_000_000_000)
    assert not result.is_reliable
    assert result.counted_pair_count == 3
    assert result.value is not None


def test_disturbed_pairs_are_left_out_when_others_suffice() -> None:
    """Two of three are quiet: the third's figure does not count."""
    quiet = make_outcome()
    pairs = [make_pair(quiet, quiet, value=value) for value in (2.0, 2.2)]
    pairs.append(make_pair(quiet, make_outcome(foreign_ns=3_000_000_000), value=9.0))
    result = CaseResult.of(find_case("stock-download-1200"), pairs)
    assert result.value is not None
    assert result.value.most == 2.2
    assert result.counted_pair_count == 2
    assert result.is_reliable


def test_comparison_that_failed_has_no_figure() -> None:
    """Its reason stands in its place."""
    result = CaseResult.of(find_case("traced-1200"), [], failure="needs root")
    assert result.value is None
    assert result.verdict == ""
    assert result.failure == "needs root"
