"""
Who fills the maps, on the fake runner: bpftrace, the server's recorder, both or nobody.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from quiclab import experiment
from quiclab.artifacts import Manifest, load_manifest
from quiclab.errors import ExitCode, MachineError, UsageError
from quiclab.experiment import RunResult
from quiclab.observer import Phase
from quiclab.runner.fake import FakeRunner
from quiclab.runner.faults import Death, Faults
from quiclab.scenario import Scenario

REFUSED = "tracing needs root: sudo ./invoke trace"


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of live runs lie in the test's own folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run(output: Path, faults: Faults | None = None, **words: Any) -> RunResult:
    """Make one fake run."""
    runner = FakeRunner(faults)
    scenario = Scenario.model_validate(
        {"script": ("udp-syscall",), "buffer": 8_000_000, "direction": "both", **words}
    )
    return experiment.run(scenario, runner=runner, output=output, clock=runner.clock)


def tracer_of(result: RunResult) -> tuple[str, str, str]:
    """Who was asked, who it was, and why."""
    manifest: Manifest = load_manifest(result.directory)
    return (manifest.tracer["asked"], manifest.tracer["kind"], manifest.tracer["reason"])


def test_verify_compares_every_map_of_both_witnesses(tmp_path: Path) -> None:
    """All of the script's maps are held against the recorder's, which is kept, too."""
    result = run(tmp_path, verify=True)
    assert ExitCode.OK == result.exit_code, result.verdict
    compared = load_manifest(result.directory).verify
    assert 8 == len(compared)
    assert [] == [each for each in compared if each["difference"]]
    assert (result.directory / "recording.json").exists()
    assert ("bpftrace", "bpftrace", "") == tracer_of(result)


def test_verify_finds_what_bpftrace_did_not_see(tmp_path: Path) -> None:
    """Of an event that only the recorder has, the run says so and is invalid."""
    runner = FakeRunner()
    scenario = Scenario.model_validate(
        {"script": ("udp-syscall",), "direction": "both", "verify": True}
    )

    def lose(rules: Any) -> Any:
        recording = original(rules)
        recording["maps"]["udp-syscall@rx_ret_counts"]["count"] += 1
        return recording

    original, runner.record_maps = runner.record_maps, lose
    result = experiment.run(scenario, runner=runner, output=tmp_path, clock=runner.clock)
    assert ExitCode.INVALID == result.exit_code
    assert "verify-differs" in {finding.rule for finding in result.verdict.findings}


def test_in_process_starts_no_tracer_and_is_labelled(tmp_path: Path) -> None:
    """The maps are there, and every place that shows them says who filled them."""
    result = run(tmp_path, tracer="in-process")
    assert ExitCode.OK == result.exit_code, result.verdict
    assert ("in-process", "in-process", "") == tracer_of(result)
    manifest = load_manifest(result.directory)
    assert {"server", "client"} == set(manifest.roles)
    first = json.loads((result.directory / "trace.jsonl").read_text().splitlines()[0])
    assert "without bpftrace" in first["data"]
    assert "without bpftrace" in result.verdict.summary
    assert result.traces["udp-syscall"].event_count("@tx_arg_counts")


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        (Faults(preflight=REFUSED), REFUSED),
        (
            Faults(
                deaths=[
                    Death(
                        role="tracer",
                        phase=Phase.TRACER,
                        exit_status=1,
                        last_words="ERROR: Could not create map: Operation not permitted",
                    )
                ]
            ),
            "Operation not permitted",
        ),
        (Faults(attach_s=60.0, never_ending=("tracer",)), "did not attach within 30 s"),
    ],
    ids=["before-the-start", "at-the-attach", "never-attached-and-never-ending"],
)
def test_auto_takes_the_recorder_where_bpftrace_is_refused_and_says_why(
    tmp_path: Path, faults: Faults, reason: str
) -> None:
    """Never in silence: the reason stands in manifest and verdict."""
    result = run(tmp_path, faults, tracer="auto")
    assert ExitCode.OK == result.exit_code, result.verdict
    asked, kind, why = tracer_of(result)
    assert ("auto", "in-process") == (asked, kind)
    assert reason in why
    assert any(reason in finding.text for finding in result.verdict.findings)


def test_auto_that_cannot_verify_is_degraded(tmp_path: Path) -> None:
    """Two witnesses were asked for, and one was had."""
    result = run(tmp_path, Faults(preflight=REFUSED), tracer="auto", verify=True)
    assert (ExitCode.DEGRADED, "not-verified") == (
        result.exit_code,
        result.verdict.findings[0].rule,
    )


def test_auto_takes_bpftrace_where_it_works(tmp_path: Path) -> None:
    """The recorder stays off then."""
    result = run(tmp_path, tracer="auto")
    assert ("auto", "bpftrace", "") == tracer_of(result)
    assert not (result.directory / "recording.json").exists()


@pytest.mark.parametrize("words", [{"tracer": "in-process"}, {"verify": True}, {"tracer": "auto"}])
def test_a_script_that_the_recorder_does_not_know_is_refused_before_anything_is_made(
    tmp_path: Path, words: dict[str, Any]
) -> None:
    """One line names those it knows; no folder is left."""
    script = tmp_path / "mine.bt"
    script.write_text('BEGIN { printf("x"); }\n')
    with pytest.raises(UsageError, match="knows generic-offload"):
        run(tmp_path / "out", script=(str(script),), **words)
    assert not (tmp_path / "out").exists()


def test_what_bpftrace_was_asked_for_is_not_replaced(tmp_path: Path) -> None:
    """Without --tracer auto a machine that cannot trace makes no run."""
    with pytest.raises(MachineError, match="needs root"):
        run(tmp_path / "out", Faults(preflight=REFUSED))
    assert not (tmp_path / "out").exists()


def test_verify_without_bpftrace_makes_no_sense() -> None:
    """Two witnesses are compared, or none."""
    with pytest.raises(UsageError, match="leaves bpftrace out"):
        Scenario.model_validate({"script": ("udp-syscall",), "verify": True, "tracer": "none"})
