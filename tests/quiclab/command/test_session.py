"""
One `trace` command: its runs in order, what they print, and the code they end with.
"""

import io
import json
import signal
from pathlib import Path

import pytest

from quiclab.command.plan import plan_quartets, plan_scenarios
from quiclab.command.readiness import chosen_engine
from quiclab.command.session import make_terminal, opened_runner, run_all, show_plan, trace
from quiclab.command.summary import render_logs
from quiclab.command.terminal import Detail, Terminal
from quiclab.command.words import TraceWords
from quiclab.errors import ExitCode, InterruptedRunError, MachineError, UsageError
from quiclab.observer import Phase
from quiclab.runner.fake import FakeRunner
from quiclab.runner.faults import Death, Faults, Strike
from quiclab.trace.script import load_script
from tests.conftest import without_rights


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of runs lie in the test's own folder, as does the caller's directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def run_words(
    words: TraceWords, *, faults: Faults | None = None, terminal: Terminal | None = None
) -> ExitCode:
    """Make the runs of a command in the fake place, below the caller's directory."""
    runner = FakeRunner(faults)
    runs = [(each, [load_script(name) for name in each.scripts]) for each in plan_scenarios(words)]
    return run_all(
        runs,
        runner=runner,
        terminal=terminal or Terminal(out=io.StringIO()),
        output=Path("artifacts"),
        clock=runner.clock,
        quartet_count=plan_quartets(words),
    )


def test_a_run_is_told_in_order_and_the_folder_comes_last(tmp_path: Path) -> None:
    """Runner, server, tracer, load, histograms, limit, verdict, folder: as docs show it."""
    out = io.StringIO()
    assert run_words(TraceWords(buffer=("8M",)), terminal=Terminal(out=out)) is ExitCode.OK
    lines = out.getvalue().splitlines()
    labels = [line[:10].strip() for line in lines]
    order = ["runner", "server", "tracer", "load", "@tx_arg_co", "granted", "verdict"]
    places = [labels.index(label) for label in order]
    assert places == sorted(places)
    (folder,) = [path for path in (tmp_path / "artifacts").iterdir() if not path.is_symlink()]
    assert lines[-1] == f"artifacts/{folder.name}"


def test_several_runs_leave_a_folder_each(tmp_path: Path) -> None:
    """Two scripts and two buffers are four runs and four folders."""
    out = io.StringIO()
    words = TraceWords(script=("udp-syscall,generic-offload",), buffer=("128k,8M",))
    assert run_words(words, terminal=Terminal(out=out)) is ExitCode.OK
    folders = [each for each in (tmp_path / "artifacts").iterdir() if not each.is_symlink()]
    assert len(folders) == 4
    assert "run       4 of 4: generic-offload, TX ring of 8,000,000 B" in out.getvalue()


def test_two_tracers_share_one_run(tmp_path: Path) -> None:
    """`a+b` is one folder with a trace of each."""
    assert run_words(TraceWords(script=("udp-syscall+io-latencies",))) is ExitCode.OK
    (folder,) = [each for each in (tmp_path / "artifacts").iterdir() if not each.is_symlink()]
    assert sorted(path.name for path in folder.glob("trace-*.jsonl")) == [
        "trace-io-latencies.jsonl",
        "trace-udp-syscall.jsonl",
    ]


def test_the_worst_code_counts_and_later_runs_are_still_made(tmp_path: Path) -> None:
    """A run that is not to be trusted does not keep the next one from being made."""
    words = TraceWords(buffer=("128k,8M",))
    code = run_words(words, faults=Faults(lost_event_count=3))
    assert code is not ExitCode.OK
    assert len([each for each in (tmp_path / "artifacts").iterdir() if not each.is_symlink()]) == 2


def test_overhead_keeps_all_runs_and_says_what_tracing_cost(tmp_path: Path) -> None:
    """Twins and traced runs lie side by side; the comparison lies in the traced ones."""
    out = io.StringIO()
    words = TraceWords(overhead=True, repeat="2", label="mine")
    run_words(words, terminal=Terminal(out=out))
    folders = [each for each in (tmp_path / "artifacts").iterdir() if not each.is_symlink()]
    manifests = {folder: json.loads((folder / "manifest.json").read_text()) for folder in folders}
    labels = [manifest["label"] for manifest in manifests.values()]
    assert {"untraced twin of mine": 4, "mine": 4, "mine, timed by the kernel": 1} == {
        label: labels.count(label) for label in labels
    }
    for folder, manifest in manifests.items():
        is_twin = manifest["label"] == "untraced twin of mine"
        assert ("none" if is_twin else "bpftrace") == manifest["asked"]["tracer"]
        assert is_twin == (manifest["overhead"] is None)
        assert is_twin != (folder / "overhead.json").exists()
    assert "overhead  server's CPU not resolvable: zero lies inside" in out.getvalue()


def test_overhead_of_runs_that_failed_is_not_told(tmp_path: Path) -> None:
    """Figures of a run that is not to be trusted are compared with nothing."""
    out = io.StringIO()
    code = run_words(
        TraceWords(overhead=True),
        faults=Faults(lost_event_count=3, deaths=[Death("server", Phase.LOAD)]),
        terminal=Terminal(out=out),
    )
    assert code is ExitCode.INVALID
    assert "overhead  not compared: runs are not to be trusted" in out.getvalue()
    assert any((tmp_path / "artifacts").glob("*/overhead.json"))


def test_a_machine_that_cannot_makes_nothing(tmp_path: Path) -> None:
    """What the preflight refuses is an error with the machine's code, and no folder."""
    with pytest.raises(MachineError, match="no uprobes here"):
        run_words(TraceWords(), faults=Faults(preflight="no uprobes here"))
    assert not (tmp_path / "artifacts").exists()


def test_an_interrupted_run_is_shown_as_far_as_it_came() -> None:
    """INT in the load ends the series; verdict and folder are said before the error."""
    out = io.StringIO()
    faults = Faults(strikes=[Strike(signal.SIGINT, Phase.LOAD)])
    words = TraceWords(buffer=("128k,8M",))
    with pytest.raises(InterruptedRunError) as caught:
        run_words(words, faults=faults, terminal=Terminal(out=out))
    assert caught.value.exit_code is ExitCode.INTERRUPTED
    lines = out.getvalue().splitlines()
    assert any(line.startswith("verdict   invalid") for line in lines)
    assert lines[-1].startswith("artifacts/")
    assert sum(line.startswith("run ") for line in lines) == 1


def test_a_run_that_ended_before_its_load_claims_nothing_of_maps() -> None:
    """A script that bpftrace refuses has one reason, and no map is said to be empty."""
    out = io.StringIO()
    words = "own.bt:1:2-3: ERROR: syntax error"
    faults = Faults(deaths=[Death("tracer", Phase.TRACER, last_words=words)])
    run_words(TraceWords(), faults=faults, terminal=Terminal(out=out))
    assert words in out.getvalue()
    assert "@" not in out.getvalue()


def test_quiet_prints_the_verdict_and_the_folder_alone() -> None:
    """Two lines a run, whatever happened."""
    out = io.StringIO()
    run_words(TraceWords(), terminal=Terminal(detail=Detail.QUIET, out=out))
    first, second = out.getvalue().splitlines()
    assert first.startswith("verdict   ok: ")
    assert second.startswith("artifacts/")


def test_verbose_prints_what_the_tools_said(tmp_path: Path) -> None:
    """The stderr of each role stands under its name."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/tracer.stderr").write_text("ERROR: memlock\n\n")
    (tmp_path / "logs/server.stdout").write_text("{}\n")
    assert [(line.label, line.text) for line in render_logs(tmp_path)] == [
        ("tracer", "ERROR: memlock")
    ]


def test_verbose_says_where_the_seconds_went() -> None:
    """Every phase has a line, and what was not the load one of its own."""
    out = io.StringIO()
    terminal = Terminal(out=out, detail=Detail.VERBOSE)
    assert run_words(TraceWords(), terminal=terminal) is ExitCode.OK
    times = [line.split()[1] for line in out.getvalue().splitlines() if line.startswith("time ")]
    assert times == [*(phase.value for phase in Phase), "total", "beyond"]


def test_json_is_one_object_a_run() -> None:
    """A program reads the folder, the code and the whole manifest from stdout."""
    out, err = io.StringIO(), io.StringIO()
    run_words(TraceWords(buffer=("128k,8M",)), terminal=Terminal(is_json=True, out=out, err=err))
    documents = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [each["manifest"]["asked"]["buffer"] for each in documents] == [128_000, 8_000_000]
    assert [each["exit_code"] for each in documents] == [0, 0]
    assert all((Path(each["folder"]) / "manifest.json").exists() for each in documents)
    assert "verdict   ok" in err.getvalue()


def test_json_keeps_every_letter_in_any_locale() -> None:
    """A label of other letters, or of a stray byte, reads back as it was given."""
    out = io.StringIO()
    label = "é “x” \udcff"
    run_words(TraceWords(label=label), terminal=Terminal(is_json=True, out=out, err=io.StringIO()))
    assert out.getvalue().isascii()
    assert json.loads(out.getvalue())["manifest"]["label"] == label


@pytest.mark.parametrize(
    ("words", "detail"),
    [
        (TraceWords(), Detail.NORMAL),
        (TraceWords(verbose=True), Detail.VERBOSE),
        (TraceWords(quiet=True, verbose=True), Detail.QUIET),
    ],
    ids=["neither", "verbose", "both"],
)
def test_quiet_beats_verbose(words: TraceWords, detail: Detail) -> None:
    """Of two that contradict each other the quieter holds."""
    assert make_terminal(words).detail is detail


def test_a_plan_is_said_and_nothing_is_made(tmp_path: Path) -> None:
    """`--plan` names every run and its probes, and leaves the disk alone."""
    out = io.StringIO()
    words = TraceWords(buffer=("128k,8M",), plan=True, runner="local", output="there")
    runs = [(each, [load_script(name) for name in each.scripts]) for each in plan_scenarios(words)]
    show_plan(Terminal(out=out), runs, words)
    assert out.getvalue().splitlines() == [
        "run       1 of 2: udp-syscall (6 probes)",
        "server    TX ring of 128,000 B",
        "load      download, 1 connection, 5 s",
        "run       2 of 2: udp-syscall (6 probes)",
        "server    TX ring of 8,000,000 B",
        "load      download, 1 connection, 5 s",
        "folder    there",
    ]
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_script_names_the_known_and_starts_nothing(tmp_path: Path) -> None:
    """A typing error is found before anything is chosen or made."""
    with pytest.raises(UsageError, match=r"did you mean udp-syscall\?"):
        trace(TraceWords(script=("udp-sycall",)))
    assert list(tmp_path.iterdir()) == []


def test_a_named_engine_that_is_dead_is_an_error(tmp_path: Path) -> None:
    """`auto` does not fall back when DOCKER_HOST says which engine is meant."""
    environment = {"DOCKER_HOST": f"unix://{tmp_path}/none.sock", "HOME": str(tmp_path)}
    with (
        pytest.raises(MachineError, match=r"none\.sock .*DOCKER_HOST"),
        chosen_engine("auto", on_local=_never, environment=environment),
    ):
        pass


def test_local_asks_no_engine(tmp_path: Path) -> None:
    """`--runner local` does not care about a dead engine."""
    environment = {"DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    with chosen_engine("local", on_local=_never, environment=environment) as engine:
        assert engine is None


def test_options_of_containers_are_not_dropped_in_silence() -> None:
    """A local run that was asked for a privileged container says that there is none."""
    out = io.StringIO()
    words = TraceWords(runner="local", privileged=True)
    with (
        without_rights(),
        pytest.raises(MachineError, match="tracing needs root"),
        opened_runner(words, Terminal(out=out)),
    ):
        pass
    assert out.getvalue() == "note      --privileged is for containers and means nothing here\n"


def _never(why: str) -> None:
    raise AssertionError(why)
