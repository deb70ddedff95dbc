"""
What a traced hit costs with each release's bpftrace, for the scripts' headers.

`python -m tests.scripts.cost [RELEASE ...]` (root, the server built, the userlands
prepared) runs the measurement of `invoke bench --only hits` by the bpftrace of each
userland; without names by all of them. It ends with lines that are ready to paste.
"""

import sys
from collections.abc import Sequence

from benchmarks.hits import measure_hits
from benchmarks.hits_report import render_hits
from quiclab.errors import LabError
from tests.userland import SUITES, find_userland


def main(suite_names: Sequence[str]) -> int:
    """Measure and print."""
    for name in suite_names or SUITES:
        userland = find_userland(SUITES[name])
        if userland is None:
            print(f"{name}: not prepared: python -m tests.userland --prepare", file=sys.stderr)
            continue
        try:
            report = measure_hits(tracer_words=userland.command(["bpftrace"]), say=_say)
        except LabError as error:
            print(error, file=sys.stderr)
            return int(error.exit_code)
        print("\n".join(render_hits(report)), flush=True)
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
