"""
docs/verdict.md and the rules say the same.
"""

from pathlib import Path

from quiclab.verdict import RULES

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "verdict.md"


def test_document_and_rules_are_equal() -> None:
    """Each rule is a row: name, severity, when it speaks, what to do; there is no other."""
    lines = DOCUMENT.read_text().splitlines()
    first = lines.index("| rule | severity | speaks when (figure) | what to do |") + 2
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append(tuple(cell.strip() for cell in line.strip("|").split("|")))
    expected = [
        (f"`{rule.name}`", rule.severity, rule.meaning, rule.remedy or "-")
        for severity in ("invalid", "degraded", "note")
        for rule in RULES
        if rule.severity == severity
    ]
    assert expected == rows


def test_every_reservation_has_a_remedy() -> None:
    """What spoils a run is told together with what can be done."""
    assert [] == [rule.name for rule in RULES if rule.severity != "note" and not rule.remedy]
