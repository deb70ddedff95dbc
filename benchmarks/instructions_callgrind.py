"""
Reads callgrind's output, as far as counting needs it: text in, figures out.

The format is described in Valgrind's manual ("Callgrind Format Specification").
A function's lines hold its own cost; a `calls=` line names how often it called
another, and the line after it what that took in all, the called function's own
calls included. Names are written once, `(12) name`, and later as `(12)`.
"""

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_NAMED: Final = re.compile(r"\((\d+)\)(?: (.*))?")
_RECURSION: Final = re.compile(r"'\d+$")  # callgrind's mark of a function inside itself
_COST: Final = re.compile(r"(?:[+-]?\d+|\*)(?: (\d+))?$")


class CallgrindError(Exception):
    """A file is not what callgrind writes."""


@dataclass(frozen=True, slots=True)
class Place:
    """A function and the file of the program it is in."""

    object_name: str
    function: str


@dataclass(frozen=True, slots=True)
class Calls:
    """
    What calls of one function by another took.

    Args:
        call_count: How many there were.
        instruction_count: In all, with what was called in turn.
    """

    call_count: int
    instruction_count: int


@dataclass(frozen=True, slots=True)
class CallgrindProfile:
    """
    What was collected.

    Args:
        instruction_count: All of it.
        own: By function, without what it called.
        calls: By caller and called.
    """

    instruction_count: int
    own: dict[Place, int]
    calls: dict[tuple[Place, Place], Calls]

    def called(self, function: str) -> Calls:
        """
        What all calls of a function took; right for one that is never inside itself.
        """
        found = [calls for (_, to), calls in self.calls.items() if to.function == function]
        return Calls(
            sum(each.call_count for each in found),
            sum(each.instruction_count for each in found),
        )

    def entered(self, object_part: str) -> Calls:
        """
        What calls into an object file took, from others and with all they called.

        Args:
            object_part: A part of its path.
        """
        found = [
            calls
            for (by, to), calls in self.calls.items()
            if object_part in to.object_name and object_part not in by.object_name
        ]
        return Calls(
            sum(each.call_count for each in found),
            sum(each.instruction_count for each in found),
        )


class _Names:
    """Names that were given a number."""

    def __init__(self) -> None:
        self._by_number: dict[str, str] = {}

    def read(self, text: str) -> str:
        """The name that a line means."""
        match = _NAMED.match(text)
        if match is None:
            return text
        number, name = match.groups()
        if name is not None:
            self._by_number[number] = name
        try:
            return self._by_number[number]
        except KeyError:
            raise CallgrindError(f"name ({number}) is used before it is given") from None


class _Reader:
    """
    Takes an output file line by line.
    """

    def __init__(self) -> None:
        self.own: dict[Place, int] = defaultdict(int)
        self.calls: dict[tuple[Place, Place], Calls] = {}
        self._objects, self._functions = _Names(), _Names()
        self._at = self._to = Place("", "")
        self._call_count: int | None = None
        self._readers: dict[str, Callable[[str], None]] = {
            "ob": self._read_object,
            "fn": self._read_function,
            "cob": self._read_called_object,
            "cfn": self._read_called_function,
            "calls": self._read_call_count,
        }

    def read(self, line: str) -> None:
        """Take one line."""
        key, _, value = line.partition("=")
        reader = self._readers.get(key)
        if reader is not None:
            reader(value)
        elif line.startswith("events:"):
            if line.split()[1:] != ["Ir"]:
                raise CallgrindError(f"{line!r} counts more than instructions (Ir)")
        elif (cost := _COST.match(line)) is not None:
            self._read_cost(int(cost[1] or 0))

    def _read_object(self, value: str) -> None:
        self._at = self._to = Place(self._objects.read(value), "")

    def _read_function(self, value: str) -> None:
        self._at = Place(self._at.object_name, _plain(self._functions.read(value)))

    def _read_called_object(self, value: str) -> None:
        self._to = Place(self._objects.read(value), "")

    def _read_called_function(self, value: str) -> None:
        self._to = Place(self._to.object_name, _plain(self._functions.read(value)))

    def _read_call_count(self, value: str) -> None:
        self._call_count = int(value.split(maxsplit=1)[0])

    def _read_cost(self, instruction_count: int) -> None:
        if self._call_count is None:
            self.own[self._at] += instruction_count
            return
        arc = self._at, self._to
        before = self.calls.get(arc, Calls(0, 0))
        self.calls[arc] = Calls(
            before.call_count + self._call_count, before.instruction_count + instruction_count
        )
        self._call_count = None
        self._to = Place(self._at.object_name, "")  # another object is named each time


def _plain(function: str) -> str:
    return _RECURSION.sub("", function)


def parse_callgrind(text: str) -> CallgrindProfile:
    """
    Read one output file.

    Raises:
        CallgrindError: It counts something else than instructions, is damaged or empty.
    """
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            reader.read(line)
        except (CallgrindError, ValueError, IndexError) as error:
            raise CallgrindError(f"callgrind's output, line {number}: {error}") from error
    if not reader.own:
        raise CallgrindError("callgrind's output holds no cost: nothing was collected")
    return CallgrindProfile(sum(reader.own.values()), dict(reader.own), reader.calls)
