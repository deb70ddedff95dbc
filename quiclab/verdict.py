"""
Can this run be trusted? Every reason it might not be is one row of `RULES`.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from quiclab.errors import ExitCode

Severity = Literal["note", "degraded", "invalid"]
Word = Literal["ok", "degraded", "invalid"]

_EXIT_CODES: dict[Word, ExitCode] = {
    "ok": ExitCode.OK,
    "degraded": ExitCode.DEGRADED,
    "invalid": ExitCode.INVALID,
}


class Finding(BaseModel):
    """
    One rule that spoke.

    Args:
        rule: Its name, stable, for programs.
        severity: What it does to the run.
        text: One sentence with the figure, for people.
    """

    model_config = ConfigDict(frozen=True)

    rule: str
    severity: Severity
    text: str


class Verdict(BaseModel):
    """
    What a reader may do with the figures.

    Args:
        word: "ok", "degraded" (complete, with a reservation) or "invalid" (don't use it).
        summary: One line: why.
        findings: What spoke, the worst first; notes do not change the word.
    """

    model_config = ConfigDict(frozen=True)

    word: Word
    summary: str
    findings: Sequence[Finding] = ()

    @property
    def exit_code(self) -> ExitCode:
        """What the process answers with for this run."""
        return _EXIT_CODES[self.word]
