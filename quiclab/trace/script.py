"""
Scripts: what each asks, what it needs, and how its figures can be checked.

A shipped script says these things in its header, in lines of `// Key: text`
(bpftrace/README.md lists the keys). A script of the user's own needs no header;
what can be read from its probes is.
"""

import difflib
import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal

from quiclab.errors import MachineError, UsageError
from quiclab.trace.attach import AttachPoint, ProbeBlock, find_result_maps, parse_blocks
from quiclab.trace.events import Trace
from quiclab.trace.kernel import KernelProbes
from server.probes import PROBES

MapDirection = Literal["download", "upload", "any"]

SHIPPED_FOLDER: Final = Path(__file__).resolve().parents[2] / "bpftrace"
SUFFIX: Final = ".bt"
LARGEST_SCRIPT_BYTES: Final = 1_000_000  # far above any script; keeps a wrong path harmless
_HEADER_LINE: Final = re.compile(r"//\s?(?:([A-Z][A-Za-z ]*):(?:\s+(.*))?|(.*))$")
_TIME_UNITS: Final = frozenset({"ns", "us", "ms", "s"})
_DIRECTIONS: Final[Mapping[str, MapDirection]] = {
    "download": "download",
    "upload": "upload",
    "any": "any",
}
_NEED_WORDS: Final = {
    "kprobe": "kprobes",
    "kretprobe": "kprobes",
    "fentry": "fentry and fexit (kfunc)",
    "fexit": "fentry and fexit (kfunc)",
}


@dataclass(frozen=True, slots=True)
class MapNote:
    """
    What a map holds, from a `Map:` line.

    Args:
        name: With its sign, such as "@tx_latencies".
        unit: "ns", "bytes", "messages" and so on; "" when nothing says it.
        description: What is measured, without the unit.
        direction: Which direction's run fills it.
    """

    name: str
    unit: str
    description: str
    direction: MapDirection = "any"

    def is_filled_by(self, direction: str) -> bool:
        """Tell whether a run in a direction (download, upload or both) must fill the map."""
        return self.direction == "any" or direction in (self.direction, "both")

    @property
    def label(self) -> str:
        """Unit and description as one phrase: "time in sendmmsg, ns", "messages sent by ..."."""
        if not self.unit:
            return self.description
        if self.unit in _TIME_UNITS:
            return f"{self.description}, {self.unit}"
        return f"{self.unit} {self.description}"


@dataclass(frozen=True, slots=True)
class Check:
    """
    A promise that a map's events equal a counter of the server's, from a `Check:` line.

    Args:
        map_name: Whose events are counted.
        counter: Path in the server's counters, such as "tx.send_call_count"; None when
            a fixed count is expected.
        expected_count: That count; None when a counter is named.
    """

    map_name: str
    counter: str | None
    expected_count: int | None


@dataclass(frozen=True, slots=True)
class Pair:
    """
    Maps that belong to one measurement from a start to an end, from a `Pair:` line.

    Args:
        starts: Counts the starts.
        matched: Counts the ends whose start was found; holds what was measured.
        unmatched: Counts the ends whose start was not.
        scratch: Keeps each start until its end; a full one drops further starts.
    """

    starts: str
    matched: str
    unmatched: str
    scratch: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    """
    A check held against one run.

    Args:
        check: Which one.
        traced_count: Events in the map; None when the map does not tell.
        counted: What the server counted, or the fixed count; None when it counts no such thing.
    """

    check: Check
    traced_count: int | None
    counted: int | None

    @property
    def is_equal(self) -> bool:
        """Tell whether both are known and equal."""
        return self.traced_count is not None and self.traced_count == self.counted

    def render(self) -> str:
        """Say both figures: `@tx_arg_counts 145 = tx.send_call_count 145`."""
        sign = "=" if self.is_equal else "≠"
        right = self.check.counter or "expected"
        traced = "unknown" if self.traced_count is None else self.traced_count
        counted = "unknown" if self.counted is None else self.counted
        return f"{self.check.map_name} {traced} {sign} {right} {counted}"


@dataclass(frozen=True, slots=True)
class Script:
    """
    A script, ready to be run by bpftrace with the provider file as `$1`.

    Args:
        name: Fit for file names: the shipped name, or a path's last part without .bt.
        path: Where it lies on this machine.
        text: All of it.
        is_shipped: It is one of the lab's own.
        summary: The header's first line, after the file name.
        question: What it answers.
        notes: Every other header text by its key in lower case ("output", "not seen",
            "cost", "needs", "sample"), lines joined by newlines.
        maps: Maps that the header explains; of a script without header, those it fills.
        checks: What must equal the server's counters.
        pairs: Which maps are two ends of one measurement.
        blocks: Its probes.
    """

    name: str
    path: Path
    text: str
    is_shipped: bool = False
    summary: str = ""
    question: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)
    maps: tuple[MapNote, ...] = ()
    checks: tuple[Check, ...] = ()
    pairs: tuple[Pair, ...] = ()
    blocks: tuple[ProbeBlock, ...] = ()

    @property
    def attach_points(self) -> tuple[AttachPoint, ...]:
        """Every attach point, in order."""
        return tuple(point for block in self.blocks for point in block.attach_points)

    @property
    def expected_probe_count(self) -> int | None:
        """
        How many probes bpftrace must announce (BEGIN and END count); None with wildcards.
        """
        points = self.attach_points
        return len(points) if all(point.is_one_probe for point in points) else None

    @property
    def prints_at_begin(self) -> bool:
        """Tell whether a BEGIN probe prints: the text proves that attaching is over."""
        return any(
            "printf" in block.body
            for block in self.blocks
            if any(point.provider == "BEGIN" for point in block.attach_points)
        )

    @property
    def usdt_names(self) -> tuple[str, ...]:
        """Name the USDT probes it attaches to, each once; wildcards as they are."""
        return tuple(
            dict.fromkeys(
                point.probe_name for point in self.attach_points if point.provider == "usdt"
            )
        )

    @property
    def server_probe_names(self) -> tuple[str, ...]:
        """Name the server's probes among them, wildcards spelled out."""
        return tuple(
            probe.name
            for probe in PROBES
            if any(fnmatch.fnmatchcase(probe.name, name) for name in self.usdt_names)
        )

    def note(self, map_name: str) -> MapNote | None:
        """Find what the header says of a map; None when it says nothing."""
        return next((note for note in self.maps if note.name == map_name), None)

    def probes_of(self, map_name: str) -> tuple[str, ...]:
        """Name the attach points whose body fills a map, to say what did not fire."""
        return tuple(
            point.text
            for block in self.blocks
            if block.fills(map_name)
            for point in block.attach_points
            if point.provider not in {"BEGIN", "END"}  # which make its buckets, or empty it
        )


def find_scripts(folder: Path = SHIPPED_FOLDER) -> tuple[Script, ...]:
    """Find the shipped scripts, in order of their names."""
    return tuple(
        parse_script(path.read_text(), path=path, is_shipped=True)
        for path in sorted(folder.glob(f"*{SUFFIX}"))
    )


def load_script(asked: str, *, folder: Path = SHIPPED_FOLDER, base: Path | None = None) -> Script:
    """
    Find a script by what a user typed: a shipped name, or a path.

    It is a path when it holds a "/" or ends in ".bt". A shipped name with ".bt"
    behind it means the shipped script, unless such a file lies in the caller's folder.

    Args:
        asked: What was typed.
        folder: Where the shipped scripts lie.
        base: What a relative path starts from; None is the current folder.

    Raises:
        UsageError: There is no such script, or the file is none.
    """
    known = {path.stem: path for path in sorted(folder.glob(f"*{SUFFIX}"))}
    if asked in known:
        return _load_file(known[asked], asked=asked, is_shipped=True)
    if "/" not in asked and not asked.endswith(SUFFIX):
        raise UsageError(_render_unknown(asked, list(known)))
    path = _find_path(asked, base or Path.cwd())
    if path is None:
        shipped = known.get(asked.removesuffix(SUFFIX)) if "/" not in asked else None
        if shipped is None:
            raise UsageError(f'no file "{asked}"; {_render_known(list(known))}')
        return _load_file(shipped, asked=asked, is_shipped=True)
    is_shipped = path.resolve().parent == folder.resolve()
    return _load_file(path, asked=asked, is_shipped=is_shipped)


def _find_path(asked: str, base: Path) -> Path | None:
    """Where a path leads; None when there is nothing, or the name cannot be one."""
    try:
        path = base / Path(asked).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError):  # longer than names may be; `~` of a user not known here
        return None


def parse_script(text: str, *, path: Path, is_shipped: bool = False) -> Script:
    """
    Read a script's header and probes.

    Raises:
        UsageError: A header line has not the form its key promises.
    """
    summary, entries = _read_header(text)
    blocks = parse_blocks(text)
    directions = dict(_parse_direction(entry) for entry in entries.get("Direction", []))
    every = directions.get("", "any")
    notes = tuple(
        _parse_map_note(entry, directions, every=every) for entry in entries.get("Map", [])
    )
    explained = {"Map", "Check", "Pair", "Direction", "Question"}
    return Script(
        name=_file_name(path),
        path=path,
        text=text,
        is_shipped=is_shipped,
        summary=summary,
        question=" ".join(" ".join(entries.get("Question", [])).split()),
        notes={
            key.lower(): "\n".join(values)
            for key, values in entries.items()
            if key not in explained
        },
        maps=notes or tuple(MapNote(name, "", "") for name in find_result_maps(blocks)),
        checks=tuple(_parse_check(entry) for entry in entries.get("Check", [])),
        pairs=tuple(_parse_pair(entry) for entry in entries.get("Pair", [])),
        blocks=blocks,
    )


def check_against_kernel(script: Script, kernel: KernelProbes) -> None:
    """
    Refuse a script whose probes the kernel surely cannot have; what is unknown may try.

    Raises:
        MachineError: It needs kinds of probes that the kernel lacks; the line names them.
    """
    lacking = [point for point in script.attach_points if kernel.has(point.provider) is False]
    if lacking:
        names = ", ".join(dict.fromkeys(point.text for point in lacking[:3]))
        what = _NEED_WORDS.get(lacking[0].provider, lacking[0].provider)
        raise MachineError(
            f"{script.name} attaches to {names}, and this kernel has no {what}; "
            "use a script on USDT probes or tracepoints"
        )


def evaluate_checks(
    script: Script, trace: Trace, counters: Mapping[str, Any]
) -> tuple[CheckResult, ...]:
    """
    Hold a trace against the server's counters over the same time.

    Args:
        script: Whose checks.
        trace: What it recorded.
        counters: The server's `total` counters: {"tx": {"send_call_count": 1}, ...}.
    """
    return tuple(
        CheckResult(
            check,
            trace.event_count(check.map_name),
            check.expected_count
            if check.counter is None
            else find_counter(counters, check.counter),
        )
        for check in script.checks
    )


def _load_file(path: Path, *, asked: str, is_shipped: bool) -> Script:
    try:
        if not path.is_file():
            raise UsageError(f'"{asked}" is not a file; give the path of a .bt file')
        if path.stat().st_size > LARGEST_SCRIPT_BYTES:
            raise UsageError(
                f'"{asked}" has {path.stat().st_size} bytes, too many for a script; '
                "give the path of a .bt file"
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f'"{asked}" cannot be read: {error.strerror}') from error
    except UnicodeDecodeError as error:
        raise UsageError(f'"{asked}" is no text; give the path of a .bt file') from error
    script = parse_script(text, path=path, is_shipped=is_shipped)
    if not script.blocks:
        raise UsageError(
            f'"{asked}" holds no probe, such as usdt:$1:name {{ ... }}; '
            "give the path of a bpftrace script"
        )
    return script


def _read_header(text: str) -> tuple[str, dict[str, list[str]]]:
    """
    Read the first run of comment lines: the summary, and the texts by their keys.

    A line that starts with no key continues the text before it.
    """
    summary = ""
    entries: dict[str, list[str]] = {}
    key = ""
    for line in text.splitlines():
        if line.startswith("#!"):
            continue
        found = _HEADER_LINE.match(line)
        if found is None:
            break
        if found.group(1):
            key = found.group(1)
            entries.setdefault(key, []).append((found.group(2) or "").rstrip())
        elif key:
            entries[key][-1] += f"\n{found.group(3).rstrip()}"
        elif not summary:
            summary = re.sub(r"^\S+\.bt\s+", "", found.group(3).strip())
    return summary, {name: [text.strip("\n") for text in texts] for name, texts in entries.items()}


def _parse_direction(entry: str) -> tuple[str, MapDirection]:
    """Read `upload`, which is for all maps, or `upload @allocs`, which is for one."""
    match entry.split():
        case [word] if word in _DIRECTIONS:
            return "", _DIRECTIONS[word]
        case [word, map_name] if word in _DIRECTIONS and map_name.startswith("@"):
            return map_name, _DIRECTIONS[word]
    raise UsageError(
        f"header line 'Direction: {entry}' is not understood; "
        "write download, upload or any, and a map when it holds for that one alone"
    )


def _parse_map_note(
    entry: str, directions: Mapping[str, MapDirection], *, every: MapDirection
) -> MapNote:
    match entry.split():
        case [name, unit, *words] if name.startswith("@") and words:
            return MapNote(name, unit, " ".join(words), directions.get(name, every))
    raise UsageError(
        f"header line 'Map: {entry}' is not understood; write '@name unit description'"
    )


def _parse_check(entry: str) -> Check:
    match entry.split():
        case [name, "=", count] if name.startswith("@") and count.isdigit():
            return Check(name, None, int(count))
        case [name, "=", counter] if name.startswith("@"):
            return Check(name, counter, None)
    raise UsageError(
        f"header line 'Check: {entry}' is not understood; write '@map = tx.counter' or '@map = 0'"
    )


def _parse_pair(entry: str) -> Pair:
    names = entry.split()
    if len(names) == len(fields(Pair)) and all(name.startswith("@") for name in names):
        return Pair(*names)
    raise UsageError(
        f"header line 'Pair: {entry}' is not understood; "
        "write four maps: '@starts @matched @unmatched @scratch'"
    )


def find_counter(counters: Mapping[str, Any], path: str) -> int | None:
    """
    Look a counter up by its path, such as "tx.send_call_count"; None when there is none.
    """
    value: Any = counters
    for part in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value if isinstance(value, int) else None


def _file_name(path: Path) -> str:
    """Make a name that is safe in file names of what the user called the script."""
    name = path.name.removesuffix(SUFFIX)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "script"


def _render_unknown(asked: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(asked, known, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f'no script "{asked}"; {_render_known(known, hint)}'


def _render_known(known: Sequence[str], hint: str = "") -> str:
    return f"there are {', '.join(known)}{hint}, or give the path of a .bt file"
