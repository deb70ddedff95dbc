"""
What a verdict is made of: rules, what they find, and the word for all of it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from quiclab.errors import ExitCode
from quiclab.evidence import Evidence

Severity = Literal["note", "degraded", "invalid"]
Word = Literal["ok", "degraded", "invalid"]

AGAIN: Final = "record the run again"
LOGS: Final = "look into logs/ of the run folder"
_EXIT_CODES: Final[dict[Word, ExitCode]] = {
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
        remedy: What can be done about it; "" when nothing needs to be.
    """

    model_config = ConfigDict(frozen=True)

    rule: str
    severity: Severity
    text: str
    remedy: str = ""


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


@dataclass(frozen=True, slots=True)
class Rule:
    """
    One reason for doubt; a row of docs/verdict.md.

    Args:
        name: Stable, for programs.
        severity: What it does to the run when it speaks.
        look: Yields one sentence per fault found, with its figure.
        meaning: When it speaks, and by which figure.
        remedy: What a user can do, "" when nothing needs to be done.
    """

    name: str
    severity: Severity
    look: Callable[[Evidence], Iterator[str]]
    meaning: str
    remedy: str = ""
