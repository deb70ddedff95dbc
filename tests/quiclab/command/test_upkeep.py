"""
The lab's own upkeep: what `test` selects, and what its exit code means.
"""

import pytest

from quiclab.command import upkeep, words
from quiclab.errors import ExitCode, UsageError


def test_quick_and_endurance_exclude_each_other() -> None:
    """Two selections at once are refused before anything is set up."""
    with pytest.raises(UsageError, match="exclude each other"):
        upkeep.test(words.TestWords(quick=True, endurance=True))


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
