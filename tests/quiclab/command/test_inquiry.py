"""
Questions that start nothing are answered for people and for programs.
"""

import json

import pytest

from quiclab.command import inquiry
from quiclab.command.words import ScriptsWords
from quiclab.errors import ExitCode
from quiclab.trace.script import find_scripts


def test_scripts_are_listed_with_their_question_and_their_maps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each shipped script says what it answers and what it fills, within 96 columns."""
    assert inquiry.scripts(ScriptsWords()) is ExitCode.OK
    page = capsys.readouterr().out
    for script in find_scripts():
        assert f"\n{script.name} " in f"\n{page}"
        assert all(note.name in page for note in script.maps)
    assert max(len(line) for line in page.splitlines()) <= 96


def test_scripts_are_listed_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON object a script, with its probes and units."""
    assert inquiry.scripts(ScriptsWords(json=True)) is ExitCode.OK
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["name"] for each in documents] == [script.name for script in find_scripts()]
    assert all(each["maps"] and each["probe_count"] for each in documents)
