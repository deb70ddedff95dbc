"""
Facts one a line, progress where somebody looks, JSON alone where a program reads.
"""

import io
import os
import pty
from collections.abc import Callable
from pathlib import Path

import pytest

from quiclab.command.summary import Line
from quiclab.command.terminal import Detail, Terminal
from quiclab.observer import Observer, Phase
from quiclab.scenario import Scenario


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        """The time that the test set."""
        return self.now_s


class Screen(io.StringIO):
    """Text that is kept, as if a person had it before them."""

    def isatty(self) -> bool:
        """Pretend to be a terminal."""
        return True


def test_a_terminal_is_an_observer() -> None:
    """A run can tell a terminal what it does."""
    observer: Observer = Terminal(out=io.StringIO())
    observer.note("runner", "local")


def test_facts_stand_in_two_columns() -> None:
    """The label comes first, and facts line up below each other."""
    out = io.StringIO()
    terminal = Terminal(out=out)
    terminal.note("runner", "docker (engine 20.10 answers)")
    terminal.note("server", "1 worker")
    assert out.getvalue() == "runner    docker (engine 20.10 answers)\nserver    1 worker\n"


def test_quiet_keeps_facts_and_progress_back() -> None:
    """`--quiet` prints what is said outright, and nothing else."""
    out = io.StringIO()
    terminal = Terminal(detail=Detail.QUIET, out=out)
    terminal.note("runner", "local")
    terminal.step("set-up", "installing Debian package gcc", 0.0)
    terminal.phase_started(Phase.LOAD)
    terminal.say([Line("verdict", "ok: 8 of 8 probes")])
    assert out.getvalue() == "verdict   ok: 8 of 8 probes\n"


def test_quiet_still_names_what_changes_the_machine() -> None:
    """An installed package is named whatever the detail, on stderr when quiet."""
    out, err = io.StringIO(), io.StringIO()
    Terminal(detail=Detail.QUIET, out=out, err=err).announce("set-up", "installing gcc")
    assert (out.getvalue(), err.getvalue()) == ("", "set-up    installing gcc\n")


def test_verbose_names_every_phase() -> None:
    """`--verbose` says each phase as it begins."""
    out = io.StringIO()
    terminal = Terminal(detail=Detail.VERBOSE, out=out)
    for phase in Phase:
        terminal.phase_started(phase)
    assert out.getvalue().split() == [word for phase in Phase for word in ("phase", phase.value)]


def test_json_leaves_stdout_to_the_program() -> None:
    """With `--json` facts go to stderr, and stdout holds the JSON line alone."""
    out, err = io.StringIO(), io.StringIO()
    terminal = Terminal(is_json=True, out=out, err=err)
    terminal.note("runner", "local")
    terminal.say_json('{"folder": "x"}')
    assert (out.getvalue(), err.getvalue()) == ('{"folder": "x"}\n', "runner    local\n")


def test_plain_progress_says_a_step_once_and_then_now_and_then() -> None:
    """A log gets a line when a step begins and one every five seconds, not hundreds."""
    out, clock = io.StringIO(), Clock()
    terminal = Terminal(out=out, now_s=clock)
    for eighth in range(81):
        terminal.step("set-up", "building the image", eighth / 80)
        clock.now_s += 0.125
    lines = out.getvalue().splitlines()
    assert lines == [
        "set-up    building the image",
        "set-up    building the image (50% done, 5 s left)",
        "set-up    building the image (100% done)",
    ]


def test_plain_load_is_a_line_with_the_time_left_after_a_while() -> None:
    """A long load is heard of again, with the seconds left that the run knows."""
    out, clock = io.StringIO(), Clock()
    terminal = Terminal(out=out, now_s=clock)
    terminal.phase_started(Phase.LOAD)
    terminal.note("load", "download, 1 connection, 20 s")
    clock.now_s += 10
    terminal.progress(0.5, left_s=10.0)
    assert out.getvalue().splitlines() == [
        "load      download, 1 connection, 20 s",
        "load      download, 1 connection, 20 s (50% done, 10 s left)",
    ]


def test_a_live_step_leaves_nothing_behind() -> None:
    """On a terminal the bar is drawn and taken away before the next fact."""
    screen = Screen()
    terminal = Terminal(out=screen)
    terminal.step("set-up", "building the image", 0.5)
    drawn = screen.getvalue()
    terminal.note("server", "1 worker")
    after = screen.getvalue()[len(drawn) :]
    assert "building the image" in drawn
    assert after.endswith("\x1b[2Kserver    1 worker\n")  # ESC[2K clears the bar's line


def test_long_facts_are_folded_under_their_label_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What does not fit goes on below, still in the second column."""
    monkeypatch.setenv("COLUMNS", "40")
    screen = Screen()
    Terminal(out=screen).note("socket", "SO_SNDBUF 4,194,304 B of 8,000,000 B asked")
    assert screen.getvalue() == (
        "socket    SO_SNDBUF 4,194,304 B of\n          8,000,000 B asked\n"
    )


@pytest.mark.parametrize(("no_colour", "is_coloured"), [("", True), ("1", False)])
def test_colour_is_for_terminals_that_want_it(
    monkeypatch: pytest.MonkeyPatch, no_colour: str, *, is_coloured: bool
) -> None:
    """The verdict's word is coloured, unless NO_COLOR says no; files never get colour."""
    monkeypatch.setenv("NO_COLOR", no_colour)
    screen, file = Screen(), io.StringIO()
    line = Line("verdict", "ok: 8 of 8 probes", tone="good")
    Terminal(out=screen).say([line])
    Terminal(out=file).say([line])
    assert ("\033[32mok\033[0m: 8" in screen.getvalue()) is is_coloured
    assert file.getvalue() == "verdict   ok: 8 of 8 probes\n"


def test_several_runs_are_told_apart() -> None:
    """Each run of several says which it is; a single one does not."""
    out = io.StringIO()
    terminal = Terminal(out=out)
    scenario = Scenario.model_validate({"script": ("udp-syscall",), "buffer": 8_000_000})
    terminal.begin_run(scenario, index=1, count=1)
    terminal.begin_run(scenario, index=2, count=2)
    assert out.getvalue() == "\nrun       2 of 2: udp-syscall, TX ring of 8,000,000 B\n"


def test_the_folder_is_shown_as_a_shell_here_can_use_it(tmp_path: Path) -> None:
    """Below the caller's directory the path is relative, elsewhere it is whole."""
    out = io.StringIO()
    terminal = Terminal(out=out)
    terminal.say_folder(Path.cwd() / "artifacts" / "x")
    terminal.say_folder(tmp_path / "x")
    assert out.getvalue() == f"artifacts/x\n{tmp_path / 'x'}\n"


def test_a_reader_who_leaves_does_not_end_the_run() -> None:
    """After a broken pipe facts go nowhere, and saying them is no error."""
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w") as stream:
        terminal = Terminal(out=stream)
        terminal.note("server", "1 worker")
        terminal.note("tracer", "8 of 8 probes")


def test_a_bar_works_on_a_real_terminal() -> None:
    """rich, a pseudo-terminal and no thread: the bar is drawn and cleared."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        terminal = Terminal(out=stream)
        terminal.phase_started(Phase.LOAD)
        terminal.note("load", "download, 1 connection, 5 s")
        terminal.progress(0.4, left_s=3.0)
        terminal.say([Line("verdict", "ok")])
        shown = _read_all(ours, until=b"verdict")
    os.close(ours)
    assert b"download, 1 connection, 5 s" in shown
    assert b"3 s left" in shown


def _read_all(fd: int, *, until: bytes, read: Callable[[int, int], bytes] = os.read) -> bytes:
    shown = b""
    while until not in shown:
        shown += read(fd, 4096)
    return shown
