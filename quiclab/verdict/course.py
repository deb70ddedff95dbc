"""
Rules about the course of a run: did it come to its end, and did everybody end well?
"""

from collections.abc import Iterator, Sequence
from typing import Final

from quiclab.evidence import Evidence
from quiclab.runner.base import CLIENT, TRACER
from quiclab.verdict.model import AGAIN, LOGS, Rule


def _ended_early(evidence: Evidence) -> Iterator[str]:
    if evidence.failure:
        yield evidence.failure


def _interrupted(evidence: Evidence) -> Iterator[str]:
    if evidence.interruption and not evidence.is_load_complete:
        yield f"ended by {evidence.interruption} before the load was complete"


def _interrupted_late(evidence: Evidence) -> Iterator[str]:
    if evidence.interruption and evidence.is_load_complete:
        yield f"{evidence.interruption} came when the load was already complete"


def _bad_exits(evidence: Evidence) -> Iterator[str]:
    result = evidence.client_result
    is_clients_said = result is not None and not result.ok
    for role, facts in evidence.roles.items():
        if role.startswith(TRACER) and evidence.tracer_kind == "in-process":
            continue  # the recorder stands in for it; the rule "in-process" says why
        if facts.is_killed_by_lab:
            yield f"{role} did not end when asked and was killed"
        elif evidence.failure or evidence.interruption or (role == CLIENT and is_clients_said):
            continue  # said by another rule
        elif facts.exit_status:
            yield f"{role} exited {facts.exit_status}"


def _not_collected(evidence: Evidence) -> Iterator[str]:
    yield from (f"could not be collected: {what}" for what in evidence.missing)


RULES: Final[Sequence[Rule]] = (
    Rule(
        "ended-early",
        "invalid",
        _ended_early,
        meaning="a role, the engine or a limit ended the run; the reason names it",
        remedy="mend what the reason names; " + LOGS,
    ),
    Rule(
        "interrupted",
        "invalid",
        _interrupted,
        meaning="INT or TERM came before the load was complete",
        remedy=AGAIN,
    ),
    Rule(
        "interrupted-late",
        "note",
        _interrupted_late,
        meaning="INT or TERM came when the load was complete",
    ),
    Rule(
        "exit-status",
        "degraded",
        _bad_exits,
        meaning="exit status of a role ≠ 0, or it had to be killed",
        remedy=LOGS,
    ),
    Rule(
        "not-collected",
        "degraded",
        _not_collected,
        meaning="something of the run could not be fetched; what, and why",
        remedy=AGAIN,
    ),
)
