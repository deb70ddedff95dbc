"""
`docs/faults.md`, written from the table:  python -m tests.faults.document
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.faults.table import CELLS, FAULTS, Cell, Part

DOCUMENT: Final = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
_HEAD: Final = """\
# What can go wrong, and what a run then comes to

Written from `tests/faults/table.py` by `python -m tests.faults.document`; a test holds the two
equal. Each line is tried: on real parts by `./invoke test --faults` (a few of them with every
`./invoke test`), on the fake runner with every `./invoke test`, or by the test that it names.

However a run ends, no process, container, network, mount or temporary file of it stays, its
record is gone, its folder holds no half-written file, and the next run is ok. A command that was
killed cannot clean up: the next run, or `./invoke clean`, removes what it left and writes
"killed" into its folder, once its process is gone. Where the engine was still at work for it,
that takes up to a minute.

While a run lasts, its folder holds 128 KiB set aside (`.reserve`) for the last manifest, so that
a disk that fills up can still be told what was lost. Folders and run ids are named by the wall
clock; whatever is a duration comes from the monotonic one.

Phases stand in their order: preflight, place, server, client, tracer, load, settle, collect,
remove, write. "any" is a fault for which that makes no difference. A "-" stands for what is not
there: a folder before it was made, the exit code of a command that was killed, a run where the
named test is about server and client alone.
"""
_COLUMNS: Final = """\
| phase | state | verdict | exit code | kept, at least | shown on |
|---|---|---|---|---|---|
"""


def render() -> str:
    """
    The whole document.
    """
    return "\n".join([_HEAD, *(_render_fault(name) for name in FAULTS)])


def _render_fault(name: str) -> str:
    rows: dict[tuple[str, ...], list[str]] = {}
    for cell in CELLS:
        if cell.fault == name:
            shown = rows.setdefault(tuple(_facts(cell)), [])
            shown += [each for each in _shown(cell) if each not in shown]
    lines = (f"| {' | '.join([*facts, '; '.join(shown)])} |\n" for facts, shown in rows.items())
    return (
        f"## {name}\n\n{FAULTS[name][:1].upper()}{FAULTS[name][1:]}.\n\n{_COLUMNS}{''.join(lines)}"
    )


def _facts(cell: Cell) -> Iterator[str]:
    yield "any" if cell.phase is None else cell.phase.value
    yield cell.state or "-"
    yield cell.verdict or "-"
    yield "-" if cell.exit_code is None else str(cell.exit_code)
    yield cell.kept.value


def _shown(cell: Cell) -> Iterator[str]:
    if cell.part is Part.REAL:
        yield f"{cell.part.value}, {' and '.join(cell.places)}"
    elif cell.part is Part.FAKE:
        yield cell.part.value
    yield from (f"`{name}`" for name in cell.shown_by)


if __name__ == "__main__":
    DOCUMENT.write_text(render())
