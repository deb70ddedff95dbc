"""
The accounts of real runs: three parties that know nothing of each other count the same.
"""

from pathlib import Path

import pytest

from quiclab import experiment
from quiclab.accounting import Accounts
from quiclab.errors import ExitCode
from quiclab.experiment import RunResult
from quiclab.probecost import count_hits
from quiclab.scenario import Scenario
from quiclab.trace.script import load_script
from tests.integration.lab import make_runner

pytestmark = [pytest.mark.real, pytest.mark.slow]

RUNNERS = pytest.mark.parametrize(
    "name", ["local", pytest.param("docker", marks=pytest.mark.docker)]
)


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let records of live runs lie in the test's own folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run(name: str, output: Path, **words: object) -> RunResult:
    """Make one short run."""
    scenario = Scenario.model_validate({"duration": 0.5, "buffer": 8_000_000, **words})
    return experiment.run(scenario, runner=make_runner(name), output=output)


def find_accounts(result: RunResult) -> Accounts:
    """Find the accounts, which every run has."""
    assert result.manifest.accounts is not None
    return result.manifest.accounts


@RUNNERS
def test_bytes_that_were_asked_for_are_in_every_account(tmp_path: Path, name: str) -> None:
    """Client, server and --bytes agree to the byte, both ways, over two workers."""
    words = {"direction": "both", "bytes": 6_000_000, "duration": None, "workers": 2}
    result = run(name, tmp_path, script=("generic-offload",), connections=4, streams=3, **words)
    assert ExitCode.OK == result.exit_code, result.verdict.summary
    balances = {balance.what: balance for balance in find_accounts(result).balances}
    for what in ("completed downloads", "completed uploads", "all uploads"):
        balance = balances[f"bytes of {what}"]
        assert (6_000_000, 6_000_000) == (balance.left_count, balance.right_count)
    assert balances["bytes of the download asked for"].is_kept
    assert balances["bytes of the upload asked for"].is_kept


@RUNNERS
def test_stopped_downloads_lack_only_what_was_under_way(tmp_path: Path, name: str) -> None:
    """A stream that STOP_SENDING ended gave the client no more than the server handed out."""
    result = run(name, tmp_path, script=("message-wait",))
    assert ExitCode.OK == result.exit_code, result.verdict.summary
    balance = next(
        each for each in find_accounts(result).balances if "stopped downloads" in each.what
    )
    assert 0 < (balance.left_count or 0) <= (balance.right_count or 0)


@RUNNERS
def test_the_kernel_ran_the_programs_as_often_as_the_server_counted(
    tmp_path: Path, name: str
) -> None:
    """Runs of BPF programs, by the kernel's own count, are the events of the server's counters."""
    scripts = ("udp-syscall", "io-latencies")
    result = run(name, tmp_path, script=scripts, **{"time-programs": True})
    assert ExitCode.OK == result.exit_code, result.verdict.summary
    assert result.counters is not None
    accounts = find_accounts(result)
    if accounts.scripts["udp-syscall"].run_count is None:
        pytest.skip("this kernel does not time BPF programs")
    total = result.counters["total"]
    assert {script: count_hits(load_script(script), total) for script in scripts} == {
        script: accounts.scripts[script].run_count for script in scripts
    }


def test_a_full_map_of_starts_is_found_and_named(tmp_path: Path) -> None:
    """Bpftrace drops the starts and exits 0; the run is invalid, and the map is told."""
    result = run("local", tmp_path, script=("io-latencies",), **{"map-keys": 2})
    assert ExitCode.INVALID == result.exit_code
    assert {"counts-differ", "starts-dropped"} <= {each.rule for each in result.verdict.findings}
    assert "@tx_start was full" in result.verdict.summary
