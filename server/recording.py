"""
A recorder in the server's own process: it counts at the probe points what a tracer would.

Rules say what: they come over the control socket (`record`), and what was counted goes
back the same way (`recorded`). A map may count events, put an argument into a histogram,
or measure the time from a start to its end. The work is done in C (native/recorder.c).

It is a second witness beside a tracer, and the only one where the kernel refuses BPF.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from server.counters import add_up
from server.probes import PROBES
from server.udp import _native

_KINDS: Final[Mapping[str, int]] = {"count": 0, "hist": 1, "start": 2, "elapsed": 3}
_NO_CONDITION: Final = (-1, 0, 0)
_PROBE_NUMBERS: Final = {probe.name: number for number, probe in enumerate(PROBES)}


class RecordingError(Exception):
    """Rules that make no sense; one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """
    What an event of one probe does to one map.

    Args:
        probe: The probe's name.
        kind: "count" the event, its argument's "hist", "start" a time, the time "elapsed".
        map: The map's name; of a "start" the table of times.
        argument: Of a "hist": which of the probe's arguments.
        keys: Of a "start" and an "elapsed": the arguments that an end shares with its start.
        table: Of an "elapsed": where its starts are.
        unmatched: Of an "elapsed": the map that counts ends without a start.
        where: An argument and the value that it must have; None: always.
        where_not: An argument and the value that it must not have.
    """

    probe: str
    kind: Literal["count", "hist", "start", "elapsed"]
    map: str
    argument: int = 0
    keys: Sequence[int] = ()
    table: str = ""
    unmatched: str = ""
    where: tuple[int, int] | None = None
    where_not: tuple[int, int] | None = None


def parse_rules(raw: object) -> list[Rule]:
    """
    Read rules as they come over the control socket.

    Raises:
        RecordingError: They are no list of rules, or name what is not there.
    """
    if not isinstance(raw, list):
        raise RecordingError(f"rules is {raw!r}; expected a list of rules")
    rules = []
    for item in raw:
        try:
            rule = Rule(**item)
        except TypeError as error:
            raise RecordingError(f"{item!r} is no rule: {error}") from error
        fault = _find_fault(rule)
        if fault:
            raise RecordingError(f"{item!r} is no rule: {fault}")
        if rule.probe not in _PROBE_NUMBERS or rule.kind not in _KINDS:
            raise RecordingError(f"there is no probe {rule.probe!r}, or no kind {rule.kind!r}")
        rules.append(rule)
    return rules


def _find_fault(rule: Rule) -> str:
    """
    Say what is wrong with the parts of a rule, which may be anything; "" when nothing is.
    """
    words = (rule.probe, rule.kind, rule.map, rule.table, rule.unmatched)
    conditions = [one for one in (rule.where, rule.where_not) if one is not None]
    is_pair = rule.kind in ("start", "elapsed")
    if not all(isinstance(word, str) for word in words):
        return "names must be words"
    if not all(_are_numbers(one) and len(one) == 2 for one in conditions):  # noqa: PLR2004
        return "a condition is the number of an argument, and a value"
    if not _are_numbers([rule.argument]) or not _are_numbers(rule.keys):
        return "arguments are told by their numbers"
    if is_pair and len(rule.keys) not in (1, 2):
        return "a start and an end share one argument or two"
    if rule.kind == "elapsed" and not (rule.table and rule.unmatched):
        return "a time needs the table of its starts, and a map of ends without one"
    return ""


def _are_numbers(value: object) -> bool:
    return isinstance(value, list | tuple) and all(type(each) is int for each in value)


class Recorder:
    """
    The process's recorder; there is one, because its probes are the process's.
    """

    def __init__(self) -> None:
        self._maps: list[str] = []
        self._kinds: dict[str, str] = {}

    def arm(self, rules: Sequence[Rule]) -> list[str]:
        """
        Record by these rules from now on, from zero; none ends it.

        Returns:
            Names of the probes that are recorded.

        Raises:
            RecordingError: There are more rules than the recorder holds, or numbers that
                are too large; nothing is recorded then.
        """
        self._kinds = {}
        tables = list(dict.fromkeys(rule.map for rule in rules if rule.kind == "start"))
        for rule in rules:
            if rule.kind != "start":
                self._kinds[rule.map] = rule.kind
            if rule.unmatched:
                self._kinds.setdefault(rule.unmatched, "count")
        self._maps = list(self._kinds)
        try:
            _native.record([self._compile(rule, tables) for rule in rules])
        except (ValueError, OverflowError) as error:
            _native.record([])  # the rules of before would go on, under these maps' names
            raise RecordingError(f"{len(rules)} rules cannot be recorded: {error}") from error
        return recorded_probes()

    def _compile(self, rule: Rule, tables: list[str]) -> tuple[int, ...]:
        condition = _NO_CONDITION
        if rule.where is not None:
            condition = (rule.where[0], 1, rule.where[1])
        elif rule.where_not is not None:
            condition = (rule.where_not[0], 0, rule.where_not[1])
        table = {"start": rule.map, "elapsed": rule.table}.get(rule.kind, "")
        keys = (*rule.keys, *rule.keys)[:2] or (0, 0)
        return (
            _PROBE_NUMBERS[rule.probe],
            _KINDS[rule.kind],
            0 if rule.kind == "start" else self._maps.index(rule.map),
            rule.argument,
            *condition,
            tables.index(table) if table else 0,
            *keys,
            self._maps.index(rule.unmatched) if rule.unmatched else 0,
        )

    def clear(self) -> None:
        """
        Record from zero.
        """
        _native.clear_recorded()

    def report(self) -> dict[str, Any]:
        """
        What was counted so far.

        A map's `buckets` have inclusive bounds, as bpftrace writes them. Of an elapsed time
        `least` and `most` hold what a tracer at the same sites can have measured, event by
        event; `widths` is how far these two are apart.
        """
        maps, widths, largest_width_ns, event_count, lost_count = _native.read_recorded()
        return {
            "maps": {
                name: self._render_map(name, *counted)
                for name, counted in zip(self._maps, maps, strict=False)
            },
            "widths": render_buckets(widths),
            "largest_width_ns": largest_width_ns,
            "event_count": event_count,
            "lost_start_count": lost_count,
        }

    def _render_map(
        self, name: str, count: int, own: list[int], least: list[int], most: list[int]
    ) -> dict[str, Any]:
        kind = self._kinds[name]
        rendered: dict[str, Any] = {"kind": kind, "count": count}
        if kind != "count":
            rendered["buckets"] = render_buckets(own)
        if kind == "elapsed":
            rendered |= {"least": render_buckets(least), "most": render_buckets(most)}
        return rendered


def recorded_probes() -> list[str]:
    """
    Name the probes that are recorded in this process now.
    """
    mask = _native.recorded()
    return [probe.name for number, probe in enumerate(PROBES) if mask >> number & 1]


def render_buckets(counts: Sequence[int]) -> list[dict[str, int]]:
    """
    Write the buckets that are not empty; that of all values below 0 begins at -2^63.
    """
    return [
        {"min": low, "max": high, "count": count}
        for (low, high), count in zip(_bounds(len(counts)), counts, strict=True)
        if count
    ]


def _bounds(count: int) -> Iterable[tuple[int, int]]:
    yield -(2**63), -1
    yield 0, 0
    for power in range(count - 2):
        yield 1 << power, (1 << (power + 1)) - 1


def merge_recordings(workers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """
    Make one answer of the workers' recordings: counts add up, of widths the largest counts.

    Raises:
        RecordingError: They do not record the same, so a sum would count some events only.
    """
    names = list(workers[0]["maps"])
    if any(set(worker["maps"]) != set(names) for worker in workers):
        raise RecordingError("the workers record different maps; send `record` again")
    return {
        "maps": {name: _merge_map([worker["maps"][name] for worker in workers]) for name in names},
        "widths": add_up([{"widths": worker["widths"]} for worker in workers])["widths"],
        "largest_width_ns": max(worker["largest_width_ns"] for worker in workers),
        "event_count": sum(worker["event_count"] for worker in workers),
        "lost_start_count": sum(worker["lost_start_count"] for worker in workers),
    }


def _merge_map(maps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    counted = [{name: value for name, value in one.items() if name != "kind"} for one in maps]
    return {"kind": maps[0]["kind"], **add_up(counted)}
