"""
The lab's own upkeep: what `test` selects, and what its exit code means.
"""

from dataclasses import fields

import pytest

from quiclab.command import upkeep, words
from quiclab.errors import ExitCode, UsageError


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (words.TestWords(quick=True, endurance=True), "--quick and --endurance"),
        (words.TestWords(faults=True, soak="1h"), "--faults and --soak"),
        (words.TestWords(endurance=True, fuzz=True), "--endurance and --fuzz"),
    ],
    ids=["quick", "faults", "fuzz"],
)
def test_two_parts_of_the_tests_exclude_each_other(chosen: words.TestWords, said: str) -> None:
    """Two selections at once are refused before anything is set up."""
    with pytest.raises(UsageError, match=f"{said} exclude each other"):
        upkeep.test(chosen)


def test_a_soak_of_no_duration_is_refused_before_anything_is_set_up() -> None:
    """Its value is read as every duration is."""
    with pytest.raises(UsageError, match="--soak soon is not a duration"):
        upkeep.test(words.TestWords(soak="soon"))


@pytest.mark.parametrize("part", ["endurance", "faults", "fuzz", "soak"])
def test_the_ordinary_tests_are_without_the_long_ones(part: str) -> None:
    """What takes minutes has a marker that both selections name, and an option of its own."""
    assert part in upkeep._ORDINARY
    assert part in upkeep._QUICK
    assert part in {each.name for each in fields(words.TestWords)}


def test_a_program_of_the_tests_answers_with_its_own_code(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The soak and the fuzzer say themselves what they came to."""
    assert upkeep.run_program("json.tool", "--no-such-option") is ExitCode.USAGE
    assert capfd.readouterr().out.startswith("tool      json.tool --no-such-option")


@pytest.mark.parametrize(
    ("more", "code"),
    [("--version", ExitCode.OK), ("--no-such-option", ExitCode.USAGE)],
    ids=["well", "wrong words"],
)
def test_pytests_exit_code_becomes_ours(
    more: str, code: ExitCode, capfd: pytest.CaptureFixture[str]
) -> None:
    """What pytest came to is told by the lab's own codes, and its words are not swallowed."""
    assert upkeep.run_pytest("not endurance", more) is code
    said = capfd.readouterr()
    assert said.out.startswith("pytest    -m 'not endurance'")
    assert said.out.partition("\n")[2] or said.err
