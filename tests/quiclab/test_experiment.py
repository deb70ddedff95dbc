"""
The main path on the fake runner: what a run does, and what it leaves, whatever happens to it.
"""

import json
import os
import resource
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from quiclab import experiment, leftovers
from quiclab.artifacts import load_manifest
from quiclab.clock import SystemClock
from quiclab.errors import ExitCode, InterruptedRunError, MachineError, UsageError
from quiclab.evidence import Evidence
from quiclab.experiment import RunInterruptedError, RunResult
from quiclab.observer import Phase, SilentObserver
from quiclab.record import Record
from quiclab.runner.fake import FakeRunner
from quiclab.runner.faults import Death, Faults, Strike
from quiclab.scenario import Scenario

ALL_SCRIPTS = ("udp-syscall", "io-latencies", "generic-offload", "recv-buffers")
WHOLE_FOLDER = {
    "manifest.json",
    "trace.jsonl",
    "histograms.json",
    "trace.txt",
    "server.json",
    "client.json",
    "logs",
}


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of live runs lie in the test's own folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@dataclass
class Listener:
    """An observer that remembers, and can raise a signal when a phase begins."""

    strike_at: Phase | None = None
    phases: list[Phase] = field(default_factory=list)
    fractions: list[float] = field(default_factory=list)
    lefts_s: list[float | None] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)

    def phase_started(self, phase: Phase) -> None:
        """Remember it."""
        self.phases.append(phase)
        if phase is self.strike_at:
            signal.raise_signal(signal.SIGTERM)

    def progress(self, fraction: float, *, left_s: float | None) -> None:
        """Remember it."""
        self.fractions.append(fraction)
        self.lefts_s.append(left_s)

    def note(self, label: str, text: str) -> None:
        """Remember it."""
        self.notes.append((label, text))


def make_scenario(**words: Any) -> Scenario:
    """Make the scenario most tests ask for."""
    return Scenario.model_validate({"script": ("udp-syscall",), "buffer": 8_000_000, **words})


def run(
    runner: FakeRunner, output: Path, *, observer: Listener | None = None, **words: Any
) -> RunResult:
    """Run it on the fake clock."""
    return experiment.run(
        make_scenario(**words),
        runner=runner,
        output=output,
        observer=observer,
        clock=runner.clock,
    )


def files(directory: Path) -> set[str]:
    """Names in a folder."""
    return {path.name for path in directory.iterdir()}


def rules(result: RunResult) -> set[str]:
    """Which rules spoke."""
    return {finding.rule for finding in result.verdict.findings}


def assert_nothing_is_left(runner: FakeRunner) -> None:
    """Every place was left, and no run is on record."""
    assert [False] * len(runner.places) == [place.is_open for place in runner.places]
    assert [] == list(leftovers.state_directory().iterdir())


# A run without faults --------------------------------------------------------


def test_run_without_faults_is_ok_and_leaves_the_whole_folder(tmp_path: Path) -> None:
    """A good run ends with verdict ok, exit code 0, and every promised file."""
    runner = FakeRunner()
    result = run(runner, tmp_path / "out")
    assert ("ok", ExitCode.OK) == (result.verdict.word, result.exit_code)
    assert WHOLE_FOLDER == files(result.directory)
    assert "done" == load_manifest(result.directory).state
    assert (
        "6 of 6 probes, nothing lost, 373 events traced = 373 counted by the server"
        == result.verdict.summary
    )
    assert_nothing_is_left(runner)


def test_run_tells_its_phases_in_order(tmp_path: Path) -> None:
    """An observer hears every phase once, in the order of the story."""
    listener = Listener()
    run(FakeRunner(), tmp_path, observer=listener)
    assert list(Phase) == listener.phases


def test_run_tells_progress_up_to_the_end(tmp_path: Path) -> None:
    """Progress grows from 0 to 1 while the time left shrinks to 0."""
    listener = Listener()
    run(FakeRunner(), tmp_path, observer=listener, duration=2.0)
    assert (0.0, 1.0) == (listener.fractions[0], listener.fractions[-1])
    assert sorted(listener.fractions) == listener.fractions
    assert (2.0, 0.0) == (listener.lefts_s[0], listener.lefts_s[-1])
    assert len(listener.fractions) > 5


def test_run_with_bytes_tells_progress_by_bytes(tmp_path: Path) -> None:
    """Where a total is asked for, progress is the part of it that has moved."""
    listener = Listener()
    run(FakeRunner(), tmp_path, observer=listener, duration=None, bytes=50_000_000)
    assert 0.7 < listener.fractions[-2] <= 1.0


def test_run_notes_what_was_granted_for_what_was_asked(tmp_path: Path) -> None:
    """The ring's slots stand beside the bytes that were asked for."""
    listener = Listener()
    run(FakeRunner(), tmp_path, observer=listener, buffer=128_000)
    server = dict(listener.notes)["server"]
    assert "TX ring 1 message × 65,535 B for 128,000 B asked" in server


def test_run_of_several_scripts_keeps_a_trace_of_each(tmp_path: Path) -> None:
    """`a+b` means one run with a tracer each, and a file for each one's output."""
    result = run(FakeRunner(), tmp_path, script=ALL_SCRIPTS, direction="both")
    assert "ok" == result.verdict.word
    assert {f"trace-{name}.jsonl" for name in ALL_SCRIPTS} <= files(result.directory)
    assert set(ALL_SCRIPTS) == set(result.traces)
    assert {"server", "client", "tracer", "tracer-2", "tracer-3", "tracer-4"} == set(
        result.manifest.roles
    )


def test_manifest_says_what_was_asked_in_the_words_of_the_command_line(tmp_path: Path) -> None:
    """The manifest's `asked` reads back as the same scenario."""
    scenario = make_scenario(label="mine", **{"socket-buffer": 4096, "map-keys": 7})
    runner = FakeRunner()
    result = experiment.run(scenario, runner=runner, output=tmp_path, clock=runner.clock)
    asked = json.loads((result.directory / "manifest.json").read_text())["asked"]
    assert {"buffer": 8_000_000, "socket-buffer": 4096, "map-keys": 7}.items() <= asked.items()
    assert scenario == Scenario.model_validate(asked)


def test_manifest_holds_commands_versions_machine_and_durations(tmp_path: Path) -> None:
    """What a reader needs years later stands in the manifest."""
    manifest = run(FakeRunner(), tmp_path).manifest
    assert ["python", "-m", "server"] == list(manifest.roles["server"].command)[:3]
    assert "bpftrace" == manifest.roles["tracer"].command[0]
    assert {"quiclab", "docker-sdk", "invoke", "bpftrace", "aioquic", "python"} <= set(
        manifest.versions
    )
    assert os.uname().release == manifest.host.kernel
    assert "net.core.rmem_max" in manifest.host.sysctls
    assert {phase.value for phase in Phase} == set(manifest.durations_s)
    assert 64 == len(manifest.scripts["udp-syscall"])


def test_durations_add_up_to_the_total_and_name_what_was_not_the_load(tmp_path: Path) -> None:
    """What the command did before counts, too; the load is the client's own figure."""
    runner = FakeRunner()
    before_s = {"start": 0.25, "set-up": 0.5}
    result = experiment.run(
        make_scenario(), runner=runner, output=tmp_path, clock=runner.clock, before_s=before_s
    )
    timing, durations_s = result.manifest.timing, result.manifest.durations_s
    assert timing is not None
    assert timing.load_s is not None
    assert before_s.items() <= durations_s.items()
    assert timing.total_s == pytest.approx(sum(durations_s.values()), abs=0.002)
    assert result.client is not None
    assert result.client["load_s"] == timing.load_s
    assert timing.beyond_load_s == pytest.approx(timing.total_s - timing.load_s, abs=0.002)


def test_map_key_limit_reaches_the_tracer_under_both_names(tmp_path: Path) -> None:
    """The variable was renamed in bpftrace; both spellings are set."""
    manifest = run(FakeRunner(), tmp_path, map_key_limit=99).manifest
    assert {
        "BPFTRACE_MAP_KEYS_MAX": "99",
        "BPFTRACE_MAX_MAP_KEYS": "99",
    } == manifest.roles["tracer"].environment


def test_output_with_a_space_and_a_symlink_and_relative_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An output folder may have a space in its name, be a symlink, and be relative."""
    (tmp_path / "real folder").mkdir()
    (tmp_path / "link").symlink_to("real folder")
    monkeypatch.chdir(tmp_path)
    result = run(FakeRunner(), Path("link"))
    assert WHOLE_FOLDER == files(tmp_path / "real folder" / result.directory.name)
    assert result.directory.name == str((tmp_path / "link" / "latest").readlink())


def test_script_of_the_users_own_is_kept_and_may_be_silent_at_begin(tmp_path: Path) -> None:
    """Of a script whose BEGIN prints nothing the server tells when it is attached."""
    script = tmp_path / "mine.bt"
    script.write_text("usdt:$1:s2n_quic_platform__syscall__mmsg__start_send { @calls = count(); }")
    (tmp_path / "mine.jsonl").write_text(
        '{"type": "attached_probes", "data": {"probes": 1}}\n\n'
        '{"type": "map", "data": {"@calls": 83}}\n'
    )
    runner = FakeRunner(Faults(traced_after_s=2.0), recordings=tmp_path)
    result = run(runner, tmp_path / "out", script=(str(script),))
    assert "ok" == result.verdict.word
    assert script.read_text() == (result.directory / "mine.bt").read_text()


# Windows ---------------------------------------------------------------------


def test_download_window_is_lowered_to_what_the_client_holds(tmp_path: Path) -> None:
    """A client with a small receive buffer lowers the server's window cap, and it is said."""
    runner = FakeRunner(Faults(holdable_bytes=170_000))
    result = run(runner, tmp_path)
    assert 170_000 == runner.places[0].window_cap_bytes
    row = next(g for g in result.manifest.granted if "window" in g.what)
    assert ("2,500,000 B", "170,000 B") == (row.asked, row.granted)
    assert ("ok", True) == (result.verdict.word, "clamped" in rules(result))


def test_upload_window_is_lowered_to_what_the_server_holds(tmp_path: Path) -> None:
    """In an upload the server's receive buffer is what must hold a window."""
    runner = FakeRunner()
    result = run(runner, tmp_path, direction="upload", connections=2)
    command = list(result.manifest.roles["client"].command)
    assert "42598" == command[command.index("--max-window") + 1]
    assert runner.places[0].window_cap_bytes is None


# Faults ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "phase"),
    [
        ("server", Phase.SERVER),
        ("server", Phase.CLIENT),
        ("server", Phase.TRACER),
        ("server", Phase.LOAD),
        ("server", Phase.SETTLE),
        ("client", Phase.CLIENT),
        ("client", Phase.TRACER),
        ("client", Phase.LOAD),
        ("tracer", Phase.TRACER),
        ("tracer", Phase.LOAD),
    ],
)
def test_role_that_dies_makes_a_failed_run_that_names_it(
    tmp_path: Path, role: str, phase: Phase
) -> None:
    """Whoever dies, whenever: the run is invalid, says who and how, and removes everything."""
    death = Death(role, phase, exit_status=137, last_words="out of memory")
    runner = FakeRunner(Faults(deaths=[death]))
    result = run(runner, tmp_path)
    assert ("failed", "invalid") == (result.manifest.state, result.verdict.word)
    assert ExitCode.INVALID == result.exit_code
    assert f"{role} exited 137 after " in result.manifest.reason
    assert "out of memory" in result.manifest.reason
    assert "manifest.json" in files(result.directory)
    assert_nothing_is_left(runner)


def test_server_death_under_load_keeps_what_was_traced(tmp_path: Path) -> None:
    """Partial data of a failed run is kept, labelled."""
    runner = FakeRunner(Faults(deaths=[Death("server", Phase.LOAD, exit_status=137)]))
    result = run(runner, tmp_path)
    assert {"trace.jsonl", "histograms.json", "trace.txt"} <= files(result.directory)
    assert 83 == result.traces["udp-syscall"].event_count("@tx_arg_counts")


def test_role_that_says_the_machine_cannot_ends_with_that_exit_code(tmp_path: Path) -> None:
    """A server's exit status 4 is the run's, too."""
    death = Death("server", Phase.SERVER, exit_status=4, last_words="port 4433 in use")
    result = run(FakeRunner(Faults(deaths=[death])), tmp_path)
    assert ExitCode.MACHINE_CANNOT == result.exit_code


def test_client_that_tells_no_progress_is_waited_for_all_the_same(tmp_path: Path) -> None:
    """A question about progress that meets a client just ending does not decide the run."""
    runner = FakeRunner(Faults(is_client_mute=True))
    result = run(runner, tmp_path, duration=None, bytes=76_315_120)  # as recorded
    assert "ok" == result.verdict.word


def test_tracer_that_misses_the_first_request_to_end_is_asked_again(tmp_path: Path) -> None:
    """A SIGINT that bpftrace missed costs seconds, not the final maps."""
    result = run(FakeRunner(Faults(missing_interrupt=["tracer"])), tmp_path)
    assert ("ok", False) == (
        result.verdict.word,
        result.manifest.roles["tracer"].is_killed_by_lab,
    )
    assert 3.0 <= result.manifest.durations_s["collect"] < 5.0


def test_client_that_never_ends_is_stopped_by_the_labs_own_limit(tmp_path: Path) -> None:
    """A client that hangs is killed, and the run says so."""
    runner = FakeRunner(Faults(never_ending=["client"]))
    result = run(runner, tmp_path, duration=5.0)
    assert "the client did not end within 50 s and was stopped" == result.manifest.reason
    assert result.manifest.roles["client"].is_killed_by_lab
    assert_nothing_is_left(runner)


def test_slow_attach_delays_the_load_and_nothing_else(tmp_path: Path) -> None:
    """A tracer that takes 5 s to attach is waited for."""
    runner = FakeRunner(Faults(attach_s=5.0))
    result = run(runner, tmp_path)
    assert "ok" == result.verdict.word
    assert 5.0 <= result.manifest.durations_s["tracer"] < 5.5


def test_tracer_that_never_attaches_fails_the_run_before_the_load(tmp_path: Path) -> None:
    """Without an attach record no packet is sent."""
    result = run(FakeRunner(Faults(attach_s=float("inf"))), tmp_path)
    assert "udp-syscall: bpftrace did not attach within 30 s" == result.manifest.reason
    assert "load" not in result.manifest.durations_s


@pytest.mark.parametrize(
    ("faults", "word", "rule"),
    [
        pytest.param(Faults(traced_after_s=60.0), "invalid", "untraced", id="untraced"),
        pytest.param(Faults(missing_probe_count=1), "invalid", "probes-missing", id="probes"),
        pytest.param(Faults(lost_event_count=3), "degraded", "events-lost", id="lost"),
        pytest.param(Faults(uncounted_count=1), "invalid", "counts-differ", id="counts"),
        pytest.param(Faults(is_trace_cut=True), "invalid", "trace-missing", id="cut"),
        pytest.param(Faults(never_ending=["tracer"]), "invalid", "trace-missing", id="killed"),
        pytest.param(Faults(never_ending=["server"]), "degraded", "exit-status", id="stuck"),
        pytest.param(Faults(is_client_incomplete=True), "invalid", "client-failed", id="client"),
        pytest.param(Faults(open_connection_count=2), "degraded", "unsettled", id="open"),
        pytest.param(Faults(dropped_datagram_count=9), "degraded", "server-drops", id="drops"),
    ],
)
def test_faults_reach_the_verdict(tmp_path: Path, faults: Faults, word: str, rule: str) -> None:
    """A run that went through is judged by what was found, and its exit code follows."""
    runner = FakeRunner(faults)
    result = run(runner, tmp_path)
    assert (word, "done") == (result.verdict.word, result.manifest.state)
    assert rule in rules(result)
    assert {"invalid": 5, "degraded": 6}[word] == result.exit_code
    assert_nothing_is_left(runner)


def test_a_file_that_cannot_be_written_costs_that_file_alone(tmp_path: Path) -> None:
    """What else was measured is kept, and the manifest says that the run failed, and why."""
    output = tmp_path / "out"

    class Obstacle(Listener):
        """Puts a folder where a file belongs."""

        def phase_started(self, phase: Phase) -> None:
            """Do so when writing begins."""
            super().phase_started(phase)
            if phase is Phase.WRITE:
                (folder,) = output.iterdir()
                (folder / "trace.jsonl").mkdir()

    runner = FakeRunner()
    with pytest.raises(MachineError, match=r"cannot write .*trace\.jsonl: .*--output"):
        run(runner, output, observer=Obstacle())
    (folder,) = output.iterdir()
    assert {"histograms.json", "server.json", "client.json", "trace.txt"} <= files(folder)
    manifest = load_manifest(folder)
    assert manifest.state == "failed"
    assert "cannot write" in manifest.reason
    assert_nothing_is_left(runner)


def test_a_folder_that_takes_no_manifest_is_taken_away(tmp_path: Path) -> None:
    """A full disk before the run leaves no empty folder behind."""
    record = Record(
        Evidence(scenario=make_scenario(), tracers=[]),
        observer=SilentObserver(),
        clock=SystemClock(),
    )
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(MachineError, match="cannot write"):
            record.open(tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / "out").iterdir()) == []


def test_machine_that_cannot_is_refused_before_anything_exists(tmp_path: Path) -> None:
    """A failed preflight leaves no folder and opens no place."""
    runner = FakeRunner(Faults(preflight="no engine answers"))
    with pytest.raises(MachineError, match="no engine answers"):
        run(runner, tmp_path / "out")
    assert ([], False) == (runner.places, (tmp_path / "out").exists())


def test_unknown_script_is_refused_before_anything_exists(tmp_path: Path) -> None:
    """A script that is not there ends with a usage error and leaves nothing."""
    with pytest.raises(UsageError, match="udp-syscall"):
        run(FakeRunner(), tmp_path / "out", script=("udp-sycall",))
    assert not (tmp_path / "out").exists()


def test_fault_of_our_own_leaves_a_labelled_folder_and_nothing_else(tmp_path: Path) -> None:
    """An exception that is none of ours is raised again, after the folder says "failed"."""

    class Broken(Listener):
        def progress(self, fraction: float, *, left_s: float | None) -> None:
            """Fail."""
            raise ZeroDivisionError("boom")

    runner = FakeRunner()
    with pytest.raises(ZeroDivisionError):
        run(runner, tmp_path, observer=Broken())
    manifest = load_manifest(tmp_path / "latest")
    assert ("failed", "internal error: ZeroDivisionError: boom") == (
        manifest.state,
        manifest.reason,
    )
    assert_nothing_is_left(runner)


# Signals ---------------------------------------------------------------------

WAITING_PHASES = (Phase.SERVER, Phase.CLIENT, Phase.TRACER, Phase.LOAD, Phase.SETTLE)
MAKING_PHASES = (Phase.PLACE, *WAITING_PHASES, Phase.COLLECT, Phase.REMOVE)
SIGNALS = pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143)],
    ids=["INT", "TERM"],
)


@SIGNALS
@pytest.mark.parametrize(
    ("phase", "is_while_waiting"),
    [(phase, True) for phase in WAITING_PHASES] + [(phase, False) for phase in MAKING_PHASES],
)
def test_signal_at_any_phase_ends_the_run_in_order(
    tmp_path: Path, number: signal.Signals, code: int, phase: Phase, is_while_waiting: bool
) -> None:
    """INT and TERM, whenever: labelled, collected, removed, the right exit code, within seconds."""
    before = signal.getsignal(number)
    runner = FakeRunner(Faults(strikes=[Strike(number, phase, is_while_waiting)]))
    with pytest.raises(RunInterruptedError) as caught:
        run(runner, tmp_path, duration=60.0)
    result = caught.value.result
    assert (code, code) == (caught.value.exit_code, result.exit_code)
    assert "interrupted" == load_manifest(result.directory).state
    durations_s = result.manifest.durations_s
    assert sum(durations_s.get(name, 0.0) for name in ("collect", "remove", "write")) < 8.0
    assert_nothing_is_left(runner)
    assert before == signal.getsignal(number)


@SIGNALS
def test_signal_before_the_folder_exists_leaves_none(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """Interrupted in the preflight, a run has left nothing at all."""
    runner = FakeRunner(Faults(strikes=[Strike(number, Phase.PREFLIGHT, is_while_waiting=False)]))
    with pytest.raises(InterruptedRunError) as caught:
        run(runner, tmp_path / "out")
    assert (code, False) == (caught.value.exit_code, (tmp_path / "out").exists())


@pytest.mark.parametrize("phase", [Phase.SERVER, Phase.CLIENT, Phase.TRACER])
def test_role_that_was_not_ready_yet_is_not_waited_for(tmp_path: Path, phase: Phase) -> None:
    """INT is lost on a first process that does not listen for it yet; nothing needs saving."""
    role = {Phase.SERVER: "server", Phase.CLIENT: "client", Phase.TRACER: "tracer"}[phase]
    runner = FakeRunner(Faults(strikes=[Strike(signal.SIGINT, phase)], never_ending=[role]))
    with pytest.raises(RunInterruptedError) as caught:
        run(runner, tmp_path)
    assert caught.value.result.manifest.durations_s["collect"] < 2.0
    assert_nothing_is_left(runner)


def test_signal_under_load_still_collects_the_final_maps(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a load keeps what was traced until then."""
    runner = FakeRunner(Faults(strikes=[Strike(signal.SIGINT, Phase.LOAD)]))
    with pytest.raises(RunInterruptedError) as caught:
        run(runner, tmp_path, duration=60.0)
    result = caught.value.result
    assert WHOLE_FOLDER == files(result.directory)
    assert 83 == result.traces["udp-syscall"].event_count("@tx_arg_counts")
    assert "invalid" == result.verdict.word
    assert "interrupted" in rules(result)


def test_signal_after_the_load_leaves_the_figures_usable(tmp_path: Path) -> None:
    """A run that was interrupted when everything was measured says that it was."""
    with pytest.raises(RunInterruptedError) as caught:
        run(FakeRunner(), tmp_path, observer=Listener(strike_at=Phase.WRITE))
    result = caught.value.result
    assert ("interrupted", "ok", 143) == (
        result.manifest.state,
        result.verdict.word,
        result.exit_code,
    )


def test_second_signal_does_not_break_the_orderly_end(tmp_path: Path) -> None:
    """Whoever presses Ctrl-C twice gets the same orderly end."""
    strikes = [
        Strike(signal.SIGINT, Phase.LOAD),
        Strike(signal.SIGINT, Phase.COLLECT),
        Strike(signal.SIGTERM, Phase.REMOVE, is_while_waiting=False),
    ]
    runner = FakeRunner(Faults(strikes=strikes))
    with pytest.raises(RunInterruptedError) as caught:
        run(runner, tmp_path)
    assert 130 == caught.value.exit_code
    assert WHOLE_FOLDER == files(caught.value.result.directory)
    assert_nothing_is_left(runner)


def test_manifest_holds_the_accounts_and_who_held_the_load_back(tmp_path: Path) -> None:
    """What the verdict rests on is written down in every run."""
    manifest = load_manifest(run(FakeRunner(), tmp_path).directory)
    assert manifest.accounts is not None
    assert manifest.bottleneck is not None
    assert 83 == manifest.accounts.scripts["udp-syscall"].pairs[0].matched_count
    assert [] == [each.what for each in manifest.accounts.balances if not each.is_kept]
    assert "workers traced" in {row.what for row in manifest.granted}
