"""
The processes of a run as its story speaks to them: started, asked, looked after.
"""

from collections.abc import Mapping
from typing import Any

from quiclab.errors import RoleExitedError
from quiclab.evidence import Evidence, RoleEvidence
from quiclab.interrupts import Interrupts
from quiclab.runner.base import TRACER, Place
from quiclab.runner.words import find_last_words


class Roles:
    """
    Server, client and tracers of one run. What is started is noted in the evidence.

    Args:
        place: Where they live.
        evidence: Of the run.
        interrupts: A question may be broken off by a signal, a start may not.
    """

    def __init__(self, place: Place, evidence: Evidence, interrupts: Interrupts) -> None:
        self.place = place
        self.interrupts = interrupts
        self._evidence = evidence

    def start(
        self, role: str, argv: list[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """
        Start one.

        Raises:
            RunError: It cannot be started.
        """
        environment = environment or {}
        self._evidence.roles[role] = RoleEvidence(command=argv, environment=environment)
        self.place.start(role, argv, environment=environment)
        self._evidence.roles[role].is_started = True

    def ask(self, role: str, op: str, **arguments: Any) -> Mapping[str, Any]:
        """
        Put a question to one.

        Raises:
            RoleExitedError: It is gone.
            RunError: It does not answer, or answers with an error.
        """
        with self.interrupts.allowed():
            return self.place.request(role, op, **arguments)

    def check_alive(self, role: str) -> None:
        """
        Make sure that one still runs.

        Raises:
            RoleExitedError: It ended; the error says how, and its last words.
        """
        status = self.place.exit_status(role)
        if status is not None:
            raise self.exited(role, status)

    def exited(self, role: str, status: int) -> RoleExitedError:
        """
        The error that says that one is gone.
        """
        return RoleExitedError(
            role,
            exit_status=status,
            last_words=self.last_words(role),
            after_s=self.place.uptime_s(role),
        )

    def last_words(self, role: str) -> str:
        """
        What one said last, "" when nothing.
        """
        stdout, stderr = self.place.output(role)
        # bpftrace 0.17 says "No probes to attach" on stdout.
        is_tracer = role.startswith(TRACER)
        return find_last_words(stderr) or (find_last_words(stdout) if is_tracer else "")
