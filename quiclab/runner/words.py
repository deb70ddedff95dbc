"""
What a role said last, for the line that tells of its end. Pure.
"""

import re
from typing import Final

# bpftrace names the place in a script, then quotes and underlines the script's line.
_PLACED_ERROR: Final = re.compile(r"(?:\S*/)?(?P<words>[^\s/]+:\d+(?::\d+)?-\d+: ERROR: .*)")


def find_last_words(stderr: str) -> str:
    """
    Choose the line of a role's stderr that tells most: its last error, else its last line.

    Of errors in a script the first counts, as what follows may follow from it; the
    folder that the script lay in goes with the run and is left out. bpftrace complains
    about memlock where the limit cannot be raised, and works.
    """
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    lines = [line for line in lines if "memlock" not in line.lower()]
    for line in lines:
        if placed := _PLACED_ERROR.fullmatch(line):
            return placed["words"]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or [""])[-1]
