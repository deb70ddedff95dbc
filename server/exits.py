"""
What `python -m server` and its tools end with; the lab's own codes agree with these.
"""

from enum import IntEnum


class ExitStatus(IntEnum):
    """A process's exit status."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    MACHINE_CANNOT = 4
    INTERRUPTED = 130
