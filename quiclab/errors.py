"""
Errors a user can meet, each with the exit code that `docs/exit-codes.md` documents.

Every error is one line: what happened, the value, what was expected, what to
do. Boundary modules turn `docker.errors.*`, `OSError` and the like into these
with `raise ... from`.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process answers with; of several runs the worst counts (see `worst_exit_code`)."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    REGRESSION = 3
    MACHINE_CANNOT = 4
    INVALID = 5
    DEGRADED = 6
    INCONCLUSIVE = 7
    INTERRUPTED = 130
    TERMINATED = 143


_WORST_FIRST = (
    ExitCode.INTERRUPTED,
    ExitCode.TERMINATED,
    ExitCode.INTERNAL,
    ExitCode.USAGE,
    ExitCode.MACHINE_CANNOT,
    ExitCode.INVALID,
    ExitCode.REGRESSION,
    ExitCode.INCONCLUSIVE,
    ExitCode.DEGRADED,
    ExitCode.OK,
)


def worst_exit_code(codes: list[ExitCode]) -> ExitCode:
    """
    Choose the code that several runs together end with; no run at all is OK.
    """
    return min(codes, key=_WORST_FIRST.index, default=ExitCode.OK)


class LabError(Exception):
    """Base of all errors that are shown as one line instead of a traceback."""

    exit_code = ExitCode.INTERNAL


class UsageError(LabError):
    """What was asked makes no sense; nothing was started."""

    exit_code = ExitCode.USAGE


class MachineError(LabError):
    """This machine (or its engine) cannot do what was asked, or lacks something."""

    exit_code = ExitCode.MACHINE_CANNOT


class RunError(LabError):
    """A run began and could not be completed; what was measured is kept and labelled."""

    exit_code = ExitCode.INVALID


class RoleExitedError(RunError):
    """
    Server, client or tracer ended when it should not have, or with an error.

    Args:
        role: Which one.
        exit_status: Its exit code; 128 + n when signal n ended it; None when unknown.
        last_words: The last line it wrote to stderr, or "".
        after_s: How long it had been running, seconds.
    """

    def __init__(
        self, role: str, *, exit_status: int | None, last_words: str, after_s: float
    ) -> None:
        self.role = role
        self.exit_status = exit_status
        self.last_words = last_words
        self.after_s = after_s
        words = f": {last_words}" if last_words else ""
        status = "without a known status" if exit_status is None else f"{exit_status}"
        super().__init__(f"{role} exited {status} after {after_s:.1f} s{words}")


class InterruptedRunError(LabError):
    """INT or TERM reached the command; the run was ended in order."""

    def __init__(self, signal_name: str) -> None:
        self.exit_code = ExitCode.INTERRUPTED if signal_name == "SIGINT" else ExitCode.TERMINATED
        super().__init__(f"ended by {signal_name}")
