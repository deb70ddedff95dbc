"""
Wrong words are one line with exit code 2, right ones reach their task as written.
"""

import signal
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType

import pytest
from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit

import tasks
from quiclab.command.cli import answered_errors, lab_task, main
from quiclab.command.words import TraceWords, option
from quiclab.errors import ExitCode, MachineError

ROOT = Path(__file__).resolve().parents[3]
NAMES = ["bench", "build", "check", "clean", "doctor", "profile", "scripts", "test", "trace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParcelWords:
    """Options of a task that only this page has."""

    place: str = option("where to; a,b is one each")
    size: tuple[str, ...] = option("how large", is_many=True)
    wrap: bool = option("wrap it up", default=True)
    within: str = option("how soon; at once when no time is given", if_bare="1h")
    plan: bool = option("only say it", default=False)


def make_module() -> tuple[ModuleType, list[ParcelWords]]:
    """A module of two tasks, and what reached them."""
    heard: list[ParcelWords] = []

    @lab_task(ParcelWords)
    def parcel(words: ParcelWords) -> int:
        """Send a parcel."""
        heard.append(words)
        if words.place == "nowhere":
            raise MachineError("nowhere cannot be reached; name a place")
        return ExitCode.DEGRADED if words.place == "far" else ExitCode.OK

    @lab_task(EmptyWords)
    def letter(_words: EmptyWords) -> int:
        """Send a letter."""
        return ExitCode.OK

    module = ModuleType("parcels")
    module.parcel, module.letter = parcel, letter  # type: ignore[attr-defined]
    return module, heard


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyWords:
    """No options."""


def call(*words: str) -> tuple[int, list[ParcelWords]]:
    """Run the parcel module's program; exit code and what reached the task."""
    module, heard = make_module()
    with pytest.raises(SystemExit) as caught:
        main(module, ["./invoke", *words])
    code = caught.value.code
    assert isinstance(code, int | None)
    return code or 0, heard


def test_values_reach_the_task_as_text() -> None:
    """Nothing is parsed on the way; an option that may be given twice is a tuple."""
    code, heard = call("parcel", "--place=8Q", "--size", "1", "--size", "2,3", "--no-wrap")
    assert code == 0
    assert heard == [ParcelWords(place="8Q", size=("1", "2,3"), wrap=False)]


def test_nothing_given_is_the_default() -> None:
    """An option that was not given is empty text, False or True."""
    assert call("parcel") == (0, [ParcelWords()])


def test_a_value_may_begin_with_one_dash() -> None:
    """`--size -1` is a bad size, which is for the task to say."""
    assert call("parcel", "--size", "-1")[1] == [ParcelWords(size=("-1",))]


@pytest.mark.parametrize(
    ("given", "within"),
    [
        (("--within",), "1h"),
        (("--within", "2h"), "2h"),
        (("--within=2h",), "2h"),
        (("--within", "--no-wrap"), "1h"),
        ((), ""),
    ],
    ids=["bare", "value", "equals", "before an option", "not given"],
)
def test_an_option_may_do_without_its_value(given: tuple[str, ...], within: str) -> None:
    """Where it says so: bare it has one that is written beside its help."""
    _, heard = call("parcel", *given)
    assert [within] == [words.within for words in heard]


def test_two_tasks_in_one_line_are_both_run() -> None:
    """Words after a second task's name belong to that one."""
    _, heard = call("letter", "parcel", "--place", "a", "letter")
    assert heard == [ParcelWords(place="a")]


@pytest.mark.parametrize(
    "words", [("--dry", "parcel"), ("parcel", "--dry"), ("parcel", "--plan")], ids=" ".join
)
def test_dry_means_plan(words: tuple[str, ...]) -> None:
    """`--dry` before or behind the task is the task's own `--plan`."""
    assert call(*words) == (0, [ParcelWords(plan=True)])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("parcle",), 'invoke: no task "parcle"; there are letter, parcel (did you mean parcel?)'),
        (
            ("parcel", "--sise"),
            "parcel: no option --sise; did you mean --size? ./invoke parcel --help lists all",
        ),
        (
            ("parcel", "--Size", "a"),
            "parcel: no option --Size; did you mean --size? ./invoke parcel --help lists all",
        ),
        (("parcel", "--place"), "parcel: --place needs a value: where to; a,b is one each"),
        (
            ("parcel", "--place", "--plan"),
            "parcel: --place needs a value: where to; a,b is one each",
        ),
        (("parcel", "--place", ""), "parcel: --place needs a value: where to; a,b is one each"),
        (("parcel", "--size"), "parcel: --size needs a value: how large"),
        (("parcel", "--size", "--plan"), "parcel: --size needs a value: how large"),
        (
            ("parcel", "--place", "a", "--place", "b"),
            "parcel: --place is given twice; give it once",
        ),
        (
            ("parcel", "--", "--plan"),
            'parcel: "--plan" stands behind --, where nothing is read; leave out the --',
        ),
        (("parcel", "--plan=yes"), "parcel: --plan is a switch; leave out =yes"),
        (
            ("parcel", "home"),
            (
                'parcel: "home" is neither an option nor a task; options begin with --, '
                "and ./invoke parcel --help lists them"
            ),
        ),
        (("letter", "--dry"), "letter: has no --plan, so --dry means nothing to it"),
        (("--bogus", "parcel"), "invoke: no option --bogus; ./invoke --help lists all"),
        (
            ("--help", "parcle"),
            'invoke: no task "parcle"; there are letter, parcel (did you mean parcel?)',
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_words_are_one_line_and_exit_2(
    words: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the word and what would have worked, and no task is run."""
    assert call(*words) == (2, [])
    assert capsys.readouterr() == ("", f"{line}\n")


def test_an_error_of_a_task_is_one_line_and_its_own_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The task's name stands before the error, and its exit code passes."""
    assert call("parcel", "--place", "nowhere")[0] == ExitCode.MACHINE_CANNOT
    assert capsys.readouterr().err == "parcel: nowhere cannot be reached; name a place\n"


def test_an_exit_code_of_a_task_passes_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    """A run that is degraded said so itself."""
    assert call("parcel", "--place", "far")[0] == ExitCode.DEGRADED
    assert capsys.readouterr() == ("", "")


def test_python_goes_on_caching_bytecode() -> None:
    """Plain invoke turns the cache off for its program, which would slow every start."""
    before = sys.dont_write_bytecode
    call("parcel")
    assert sys.dont_write_bytecode is before


def test_every_task_is_there_and_has_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong key in one task's help would break every task: list and help them all."""
    assert sorted(Collection.from_module(tasks).task_names) == NAMES
    for words in (["--list"], ["--help"], *[[name, "--help"] for name in NAMES]):
        with pytest.raises(SystemExit) as caught:
            main(tasks, ["./invoke", *words])
        assert caught.value.code in (0, None), words
        assert capsys.readouterr().out


def test_help_of_trace_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    """Each option stands in the help as the command line spells it, with what it means."""
    with pytest.raises(SystemExit):
        main(tasks, ["./invoke", "trace", "--help"])
    page = capsys.readouterr().out
    for each in fields(TraceWords):
        name = each.name.replace("_", "-")
        assert (f"--[no-]{name}" if each.default is True else f"--{name}") in page
        assert "".join(each.metadata["help"].split()) in "".join(page.split())


def test_plain_invoke_runs_the_same_tasks() -> None:
    """In an active environment `invoke` finds the tasks from below the repository, too."""
    done = subprocess.run(
        [sys.executable, "-m", "invoke", "trace", "--buffer", "8Q"],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "trace: --buffer 8Q is not a size; write bytes (8000000), 128k, 8M, 64KiB or 8MiB\n"
    )


def test_plain_invoke_gives_an_exit_code_too() -> None:
    """The code travels in invoke's own Exit, which its program understands."""
    module, _ = make_module()
    with pytest.raises(Exit) as caught:
        module.parcel(Context(), place="far")
    assert caught.value.code == ExitCode.DEGRADED


def test_task_under_nohup_outlives_its_terminal() -> None:
    """A HUP that the caller ignores stays ignored; else closing the terminal would end the task."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with answered_errors("trace"):
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
