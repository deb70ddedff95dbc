"""
What the documents promise is there: tests that they name exist.
"""

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(path.name for path in (PROJECT / "docs").glob("*.md"))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_test_that_a_document_names_exists(name: str) -> None:
    """A promise that nobody checks any more is found when its test is renamed."""
    named = set(re.findall(r"`(test_\w+)`", (PROJECT / "docs" / name).read_text()))
    files = list((PROJECT / "tests").rglob("test_*.py"))
    written = "\n".join(path.read_text() for path in files)
    defined = set(re.findall(r"def (test_\w+)\(", written)) | {path.stem for path in files}
    assert set() == named - defined
