"""
Can this run be trusted? Every reason it might not be is one row of `rules.RULES`.

A rule looks at the evidence and says nothing, or one sentence per fault, with
the figure. A note changes nothing; "degraded" leaves a complete run with a
reservation; after "invalid" the figures must not be used. docs/verdict.md is
the same table for people; a test holds both equal.
"""

from quiclab.verdict.model import Finding, Rule, Severity, Verdict, Word
from quiclab.verdict.rules import RULES, judge

__all__ = ["RULES", "Finding", "Rule", "Severity", "Verdict", "Word", "judge"]
