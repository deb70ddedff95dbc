"""
A measurement from end to end, with runs that are told instead of made.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from benchmarks.measure import Calibration
from benchmarks.results import DOCUMENT, load_document, render_document
from benchmarks.session import bench, measure_case, plan_measurement
from benchmarks.sides import OpenSide, Outcome, Side, Work
from quiclab.command.words import BenchWords
from quiclab.errors import ExitCode, MachineError, RunError, UsageError
from tests.benchmarks.samples import find_case, make_hits_report, make_outcome


class Sides:
    """Opens sides that cost what their label says, and notes who ran."""

    def __init__(self, **cost: float) -> None:
        self._cost = cost
        self.labels: list[str] = []
        self.answers: list[float] = []
        self.opened_count = 0
        self.open_count = 0

    @contextmanager
    def open(self, side: Side, _work: Work) -> Iterator[OpenSide]:
        """Be a side for a while."""

        def run(answered_every: float) -> Outcome:
            self.labels.append(side.label)
            self.answers.append(answered_every)
            return make_outcome(cpu_s_per_gb=self._cost[side.label])

        self.opened_count += 1
        self.open_count += 1
        yield OpenSide(run)
        self.open_count -= 1


def test_sides_take_turns_in_going_first() -> None:
    """A B B A A B, after a run of each that counts for nothing: what drifts favours neither."""
    sides = Sides(stock=60.0, ours=20.0)
    case = find_case("stock-download-1200")
    pairs = measure_case(case, pair_count=3, opened=sides.open)
    assert sides.labels[2:] == ["stock", "ours", "ours", "stock", "stock", "ours"]
    assert [pair.order for pair in pairs] == ["AB", "BA", "AB"]
    assert [pair.value for pair in pairs] == pytest.approx([3.0] * 3)
    assert sides.open_count == 0


def test_many_pairs_are_not_left_to_one_process() -> None:
    """Twelve pairs see three processes of each side."""
    sides = Sides(stock=60.0, ours=20.0)
    case = find_case("stock-download-1200")
    assert len(measure_case(case, pair_count=12, opened=sides.open)) == 12
    assert sides.opened_count == 6


def test_floor_answers_as_often_as_the_run_it_is_compared_with() -> None:
    """The server's client is asked first, also for the run that counts for nothing."""
    sides = Sides(floor=18.0, ours=20.0)
    measure_case(find_case("floor-1200-10"), pair_count=2, opened=sides.open)
    assert sides.labels == ["ours", "floor", "floor", "ours", "ours", "floor"]
    told = [
        every for label, every in zip(sides.labels, sides.answers, strict=True) if label == "floor"
    ]
    assert told == [20.0, 20.0, 20.0]


def test_progress_is_told_after_every_run_that_counts() -> None:
    """Two a pair."""
    said: list[None] = []
    measure_case(
        find_case("probes-off"),
        pair_count=2,
        opened=Sides(**{"probes off": 20.0, "not traced": 20.2}).open,
        on_run=lambda: said.append(None),
    )
    assert len(said) == 4


@pytest.mark.parametrize(
    "words",
    [
        BenchWords(only=["nonsense"]),
        BenchWords(only=["hits,nonsense"]),
        BenchWords(only=[","]),
        BenchWords(pairs="0"),
        BenchWords(pairs="many"),
        BenchWords(datagram="1199"),
        BenchWords(datagram="8973"),
        BenchWords(buffer="8Q"),
        BenchWords(instructions=True, quick=True),
        BenchWords(instructions=True, datagram="1200"),
        BenchWords(instructions=True, buffer="8M"),
    ],
    ids=[
        "only",
        "hits",
        "comma",
        "no pairs",
        "pairs",
        "small",
        "large",
        "buffer",
        "instructions",
        "counted size",
        "counted ring",
    ],
)
def test_wrong_word_is_refused(words: BenchWords) -> None:
    """Before anything begins."""
    with pytest.raises(UsageError):
        plan_measurement(words, speed=1.0)


def test_quick_measures_fewer_pairs_of_less() -> None:
    """About a minute."""
    usual = plan_measurement(BenchWords(), speed=1.0)
    quick = plan_measurement(BenchWords(quick=True), speed=1.0)
    assert (usual.pair_count, quick.pair_count) == (7, 3)
    assert quick.cases[0].b_work.total_bytes < usual.cases[0].b_work.total_bytes


def test_small_effects_take_more_pairs() -> None:
    """Probes and tracing cost some percent, less than this machine's mood."""
    plan = plan_measurement(BenchWords(only=["probes-off", "workers-2"], pairs="4"), speed=1.0)
    assert [plan.pairs_of(case) for case in plan.cases] == [8, 4]
    assert plan.run_count == 24


def test_only_takes_commas_and_repetition() -> None:
    """`--only a,b --only c` is three comparisons."""
    plan = plan_measurement(
        BenchWords(only=["stock-download-1200,workers-2", "probes-off"]), speed=1.0
    )
    assert [case.name for case in plan.cases] == ["stock-download-1200", "workers-2", "probes-off"]
    assert plan.is_chosen


def test_plan_touches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What would be measured is said; no folder is made, nothing is calibrated or started."""
    monkeypatch.chdir(tmp_path)
    assert bench(BenchWords(plan=True, only=["workers-2"])) is ExitCode.OK
    said = capsys.readouterr().out
    assert "two workers against one" in said
    assert "7 pairs" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real
@pytest.mark.slow
def test_measurement_leaves_a_document_and_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pair of real runs: a row for people, a document that reads back for programs."""
    words = BenchWords(only=["probes-off"], pairs="1", output=str(tmp_path), json=True)
    assert bench(words) in {ExitCode.OK, ExitCode.INCONCLUSIVE}
    said = capsys.readouterr()
    (folder,) = tmp_path.iterdir()
    document = load_document(folder / DOCUMENT)
    assert json.loads(said.out) == render_document(document)
    assert [case.name for case in document.cases] == ["probes-off"]
    assert "probes-off\n  probes off  " in said.err


class Quarrel:
    """Opens sides whose second one fails in its third run."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self._count = 0

    @contextmanager
    def open(self, side: Side, _work: Work) -> Iterator[OpenSide]:
        """Be a side that may fail."""

        def run(_answered_every: float) -> Outcome:
            self._count += side.label == "ours"
            if self._count > 2:
                raise self._error
            return make_outcome(cpu_s_per_gb=20.0)

        yield OpenSide(run)


@pytest.fixture
def bare_bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A `bench` that builds and calibrates nothing, in a folder of its own."""
    monkeypatch.setattr("benchmarks.session.Readiness.prepare_build", lambda _self: None)
    monkeypatch.setattr("benchmarks.session.check_cores", lambda: None)
    monkeypatch.setattr("benchmarks.session.children.remove_leftovers", list)
    calibration = Calibration(loop_ns=75.0, aead_mb_per_s=1500.0)
    monkeypatch.setattr("benchmarks.session.calibrate", lambda: calibration)
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("error", "failure", "state"),
    [
        (RunError("a byte was wrong"), "a byte was wrong", "done"),
        (KeyboardInterrupt(), "interrupted", "interrupted"),
    ],
    ids=["wrong", "interrupted"],
)
def test_pairs_before_a_failure_are_kept(
    bare_bench: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    failure: str,
    state: str,
) -> None:
    """What was measured is in the document, without a figure made of it."""
    measure = partial(measure_case, opened=Quarrel(error).open)
    monkeypatch.setattr("benchmarks.session.measure_case", measure)
    words = BenchWords(only=["stock-download-1200"], output=str(bare_bench))
    if isinstance(error, RunError):
        assert bench(words) is ExitCode.INVALID
    else:
        with pytest.raises(KeyboardInterrupt):
            bench(words)
    (folder,) = bare_bench.iterdir()
    document = load_document(folder / DOCUMENT)
    (case,) = document.cases
    assert (document.state, case.failure, len(case.pairs), case.value) == (state, failure, 1, None)


def test_interruption_before_the_first_pair_leaves_no_folder(
    bare_bench: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty folder would say nothing."""

    def measure(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("benchmarks.session.measure_case", measure)
    with pytest.raises(KeyboardInterrupt):
        bench(BenchWords(only=["workers-2"], output=str(bare_bench)))
    assert list(bare_bench.iterdir()) == []


def test_output_that_is_a_file_is_told_before_anything_is_measured(
    bare_bench: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after minutes."""
    monkeypatch.setattr("benchmarks.session.calibrate", lambda: pytest.fail("it measured"))
    bare_bench.write_text("")
    with pytest.raises(UsageError, match="is a file"):
        bench(BenchWords(output=str(bare_bench)))


@pytest.mark.parametrize("name", ["traced-1200", "hits"])
def test_named_measurement_that_cannot_trace_is_refused_at_once(
    bare_bench: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """One line, and no folder."""
    monkeypatch.setattr("benchmarks.session.calibrate", lambda: pytest.fail("it measured"))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(MachineError, match="root"):
        bench(BenchWords(only=[name], output=str(bare_bench)))
    assert not bare_bench.exists()


def test_instructions_need_one_core_alone(
    bare_bench: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is counted minds no neighbour."""

    def refuse() -> None:
        raise MachineError("a measurement needs 2 cores")

    counted: list[BenchWords] = []
    monkeypatch.setattr("benchmarks.session.check_cores", refuse)

    def count(words: BenchWords, *_: object) -> ExitCode:
        counted.append(words)
        return ExitCode.OK

    monkeypatch.setattr("benchmarks.session._count_instructions", count)
    words = BenchWords(instructions=True, output=str(bare_bench))
    assert bench(words) is ExitCode.OK
    assert counted == [words]


def test_hits_are_measured_when_named(
    bare_bench: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shown, and kept in a document that reads back; a default run leaves them out."""
    monkeypatch.setattr("benchmarks.session.find_tracer", list)
    monkeypatch.setattr("benchmarks.session.Readiness.prepare_programs", lambda *_: None)
    report = make_hits_report()
    monkeypatch.setattr("benchmarks.hits.measure_hits", lambda **_: report)
    words = BenchWords(only=["hits"], output=str(bare_bench), json=True)
    assert bench(words) is ExitCode.OK
    said = capsys.readouterr()
    assert "A traced hit" in said.err
    assert "comparison, A and B" not in said.err
    (folder,) = bare_bench.iterdir()
    document = load_document(folder / DOCUMENT)
    assert (document.hits, document.cases) == (report, ())
    assert json.loads(said.out) == render_document(document)
    assert not plan_measurement(BenchWords(), speed=1.0).has_hits


def test_plan_lists_hits_among_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    """With the default words as what can be asked for, by name as what will be done."""
    bench(BenchWords(plan=True))
    assert "hits: what a traced hit costs (needs root and bpftrace); only by name" in (
        capsys.readouterr().out
    )
    bench(BenchWords(plan=True, only=["hits"]))
    said = capsys.readouterr().out
    assert "only by name" not in said
    assert "some 2 min" in said
