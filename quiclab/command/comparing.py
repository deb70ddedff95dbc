"""
`trace --overhead`: what its runs come to, told and kept beside the runs.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from quiclab.artifacts import RunFolder
from quiclab.command.summary import Line
from quiclab.command.terminal import Terminal
from quiclab.errors import ExitCode
from quiclab.overhead import ComparedRun, Side, compare, render_overhead

if TYPE_CHECKING:
    from quiclab.experiment import RunResult

DOCUMENT = "overhead.json"


def tell_overhead(terminal: Terminal, made: Sequence[tuple[Side, "RunResult"]]) -> ExitCode:
    """
    Compare finished runs, say what came out, and keep it in the folders of the traced ones.

    Args:
        terminal: Hears of it.
        made: All runs of one comparison, in the order they were made.

    Returns:
        What the comparison answers with; each run has a code of its own.

    Raises:
        MachineError: A folder cannot be written into.
    """
    overhead = compare([ComparedRun.of(side, run.manifest, run.client) for side, run in made])
    document = overhead.model_dump(mode="json", by_alias=True)
    for side, run in made:
        if side is not Side.UNTRACED:
            folder = RunFolder.reopen(run.directory)
            folder.write_json(DOCUMENT, document)
            folder.write_manifest(run.manifest.model_copy(update={"overhead": document}))
    lines = [Line("overhead", text) for text in render_overhead(overhead)]
    terminal.say([Line("", ""), *lines])
    if terminal.is_json:
        terminal.say_json(json.dumps(document))
    return overhead.exit_code
