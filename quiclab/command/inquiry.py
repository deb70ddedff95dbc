"""
Questions that start nothing: what the scripts answer, and whether a run can work here.
"""

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from quiclab.command.words import DoctorWords, ScriptsWords
from quiclab.errors import ExitCode
from quiclab.machine.doctor import collect_machine, exit_code, judge, render_check, to_json
from quiclab.trace.script import Script, find_scripts

_NAME_COLUMN = 18
_WIDTH = 96  # columns; the notes of a script are prose


def scripts(words: ScriptsWords) -> ExitCode:
    """
    List the shipped scripts.
    """
    for script in find_scripts():
        if words.json:
            print(json.dumps(script_to_json(script)))
        else:
            print("\n".join(render_script(script)), end="\n\n")
    return ExitCode.OK


def render_script(script: Script) -> Iterator[str]:
    """
    A script for people: its question, what it fills, what it needs and costs.
    """
    yield from _row(script.name, script.question)
    for note in script.maps:
        direction = "" if note.direction == "any" else f" ({note.direction})"
        yield from _row(f"  {note.name}", f"{note.label}{direction}")
    for key in ("needs", "cost"):
        if key in script.notes:
            yield from _row(f"  {key}", " ".join(script.notes[key].split()))


def _row(name: str, text: str) -> Iterator[str]:
    indent = " " * _NAME_COLUMN
    first = f"{name:<{_NAME_COLUMN - 1}} "
    yield from textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=indent)


def script_to_json(script: Script) -> dict[str, object]:
    """
    A script for programs.
    """
    return {
        "name": script.name,
        "question": script.question,
        "probe_count": script.expected_probe_count,
        "maps": [
            {
                "name": note.name,
                "unit": note.unit,
                "description": note.description,
                "direction": note.direction,
            }
            for note in script.maps
        ],
        "notes": dict(script.notes),
    }


def doctor(words: DoctorWords) -> ExitCode:
    """
    Check every precondition; 4 when a run cannot work here.
    """
    if sys.stderr.isatty():
        print("asking the machine ...", end="\r", file=sys.stderr, flush=True)
    checks = judge(collect_machine(Path(words.output or "artifacts").absolute()))
    for check in checks:
        print(json.dumps(to_json(check)) if words.json else render_check(check))
    return exit_code(checks)
