"""
The table of rules, and the judge who asks them all.
"""

from collections.abc import Sequence
from typing import Final

from quiclab.evidence import Evidence
from quiclab.verdict.counting import RULES as COUNTING_RULES
from quiclab.verdict.course import RULES as COURSE_RULES
from quiclab.verdict.machine import RULES as MACHINE_RULES
from quiclab.verdict.model import Finding, Rule, Severity, Verdict, Word
from quiclab.verdict.network import RULES as NETWORK_RULES
from quiclab.verdict.tracing import RULES as TRACING_RULES

RULES: Final[Sequence[Rule]] = (
    *COURSE_RULES,
    *TRACING_RULES,
    *COUNTING_RULES,
    *NETWORK_RULES,
    *MACHINE_RULES,
)
"""Every reason for doubt; the order is the order of telling among equals."""
_WORST_FIRST: Final[Sequence[Severity]] = ("invalid", "degraded", "note")


def judge(evidence: Evidence) -> Verdict:
    """
    Ask every rule.
    """
    findings = [
        Finding(rule=rule.name, severity=rule.severity, text=text, remedy=rule.remedy)
        for rule in RULES
        for text in rule.look(evidence)
    ]
    findings.sort(key=lambda finding: _WORST_FIRST.index(finding.severity))
    faults = [finding for finding in findings if finding.severity != "note"]
    if not faults:
        return Verdict(word="ok", summary=_render_trust(evidence), findings=findings)
    worst = faults[0]
    word: Word = "invalid" if worst.severity == "invalid" else "degraded"
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return Verdict(word=word, summary=worst.text + more, findings=findings)


def _render_trust(evidence: Evidence) -> str:
    """What a run that nothing speaks against is trusted for."""
    if evidence.tracer_kind == "none":
        return "not traced; all that was asked for came"
    parts = ["recorded in process, without bpftrace"]
    if evidence.tracer_kind == "bpftrace":
        attached_count = sum(t.announced_probe_count or 0 for t in evidence.tracers)
        parts = [f"{attached_count} of {attached_count} probes", "nothing lost"]
    counted = {
        result.check.counter: result.counted or 0
        for tracer in evidence.tracers
        for result in evidence.check_trace(tracer)
        if result.check.counter is not None
    }
    if counted:
        total = f"{sum(counted.values()):,}"
        verb = "traced" if evidence.tracer_kind == "bpftrace" else "recorded"
        parts.append(f"{total} events {verb} = {total} counted by the server")
    return ", ".join(parts)
