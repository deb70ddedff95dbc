"""
What `python -m client` ends with, and the errors that end it before it began.
"""

from enum import IntEnum


class ExitStatus(IntEnum):
    """A process's exit status; the server's and the lab's agree with these."""

    OK = 0
    USAGE = 2
    MACHINE_CANNOT = 4
    INCOMPLETE = 5
    """Not everything that was asked for came."""
    INTERRUPTED = 130
    TERMINATED = 143


class ClientError(Exception):
    """Something that one line tells; nothing was sent."""

    status = ExitStatus.USAGE


class MachineError(ClientError):
    """This machine does not let the client do it."""

    status = ExitStatus.MACHINE_CANNOT
