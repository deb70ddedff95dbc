"""
From the words of `trace` to scenarios: pure, nothing is asked of the machine.

Several scripts or buffers mean several runs, in the order written; `a+b` means
one run with a tracer for each. What was not given keeps `Scenario`'s default.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from quiclab.command.cli import render_choice
from quiclab.command.words import DEFAULT_SCRIPT, TraceWords
from quiclab.errors import UsageError
from quiclab.scenario import Direction, RunnerName, Scenario, TracerName
from quiclab.units import parse_count, parse_duration, parse_size

_SIZES = ("rx_buffer", "socket_buffer", "max_mtu", "datagram", "bytes")
_COUNTS = ("max_segments", "connections", "streams", "workers", "map_keys")
_CHOICES = {
    "direction": get_args(Direction),
    "runner": get_args(RunnerName),
    "tracer": get_args(TracerName),
}
_AS_THEY_ARE = (
    "gso",
    "gro",
    "verify_content",
    "verify",
    "time_programs",
    "privileged",
    "host_headers",
    "label",
)


def plan_scenarios(words: TraceWords) -> list[Scenario]:
    """
    Read what was written into one scenario a run.

    Raises:
        UsageError: A value makes no sense; the line names its option.
    """
    sizes: list[int | None] = [
        parse_size(each, option="--buffer") for each in _split(words.buffer, name="--buffer")
    ]
    common = _read_common_fields(words)
    return [
        _validate({"script": scripts, **({"buffer": size} if size else {}), **common})
        for scripts in plan_scripts(words.script)
        for size in sizes or [None]
    ]


def plan_quartets(words: TraceWords) -> int:
    """
    How often a run is held against its untraced twins; 0: not at all.

    Raises:
        UsageError: It is asked for where there is nothing to compare, or is no number.
    """
    if not words.overhead:
        if words.repeat:
            raise UsageError("--repeat says how often --overhead compares; give both or none")
        return 0
    if words.tracer == "none":
        raise UsageError(
            "--overhead compares traced runs with untraced ones, and --tracer none leaves "
            "nothing to compare; give one of the two"
        )
    if words.verify:
        raise UsageError(
            "--overhead would charge bpftrace with what the recorder of --verify costs; "
            "give one of the two"
        )
    return parse_count(words.repeat, option="--repeat") if words.repeat else 1


def plan_scripts(written: Sequence[str]) -> list[tuple[str, ...]]:
    """
    Which scripts each run traces: `,` parts runs, `+` joins the tracers of one run.

    Raises:
        UsageError: A name is empty, or a run would trace the same script twice.
    """
    runs = []
    for piece in _split(written, name="--script"):
        names = [piece] if _is_file(piece) else piece.split("+")
        if not all(names):
            raise UsageError(f"--script {piece} has an empty name; write a, a,b or a+b")
        if len(set(names)) < len(names):
            raise UsageError(f"--script {piece} names a script twice in one run; name it once")
        runs.append(tuple(names))
    return runs or [(DEFAULT_SCRIPT,)]


def _split(written: Iterable[str], *, name: str) -> list[str]:
    """Part values at commas, except in the path of a file that exists."""
    pieces = []
    for text in written:
        pieces += [text] if _is_file(text) else text.split(",")
    if not all(pieces):
        raise UsageError(f"{name} {','.join(written)} has an empty value; write a or a,b")
    return pieces


def _is_file(text: str) -> bool:
    """A list of many values may be longer than any file's name can be."""
    try:
        return Path(text).is_file()
    except OSError:
        return False


def _read_common_fields(words: TraceWords) -> dict[str, Any]:
    """What was given besides scripts and buffers, by its spelling on the command line."""
    fields: dict[str, Any] = {}
    for readers, names in ((parse_size, _SIZES), (parse_count, _COUNTS), (_parse_choice, _CHOICES)):
        for name in names:
            spelling = name.replace("_", "-")
            text = getattr(words, name)
            if text:
                fields[spelling] = readers(text, option=f"--{spelling}")
    for name in _AS_THEY_ARE:
        fields[name.replace("_", "-")] = getattr(words, name)
    if words.duration:
        fields["duration"] = parse_duration(words.duration, option="--duration")
    elif words.bytes:
        fields["duration"] = None  # only the bytes end the run
    return fields


def _parse_choice(text: str, *, option: str) -> str:
    known = _CHOICES[option.removeprefix("--")]
    if text not in known:
        raise UsageError(f"{option} {text} is unknown; {render_choice(text, known)}")
    return text


def _validate(fields: dict[str, Any]) -> Scenario:
    try:
        return Scenario.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        name, what = ".".join(str(part) for part in first["loc"]), first["msg"]
        what = what.replace("Input should be", "must be")
        raise UsageError(f"--{name} {first['input']} {what}") from error
