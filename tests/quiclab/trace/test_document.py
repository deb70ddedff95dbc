"""A trace as JSON values and back."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from quiclab.trace.document import DocumentError, trace_from_json, trace_to_json
from quiclab.trace.ndjson import parse_trace
from tests.quiclab.trace.conftest import RECORDINGS


@pytest.mark.parametrize(
    "path",
    sorted(RECORDINGS.glob("*/*.jsonl")),
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_a_stored_trace_is_read_back_equal(path: Path) -> None:
    """Through a JSON file nothing of a trace changes but the printed texts, which are left out."""
    trace = parse_trace(path.read_bytes())
    stored = json.loads(json.dumps(trace_to_json(trace)))
    assert replace(trace, printed=(), printed_values=()) == trace_from_json(stored)


def test_another_schema_is_refused() -> None:
    """A document of another schema is named, not half read."""
    with pytest.raises(DocumentError, match="has schema 99; this version reads 1"):
        trace_from_json({**trace_to_json(parse_trace("")), "schema": 99})


@pytest.mark.parametrize(
    "damage",
    [
        {"maps": 5},
        {"maps": {"@x": [{"kind": "hist"}]}},
        {"maps": {"@x": [{"kind": "map", "entries": [{"key": None, "value": {}}]}]}},
        {"helper_errors": [{}]},
        {"unparsed": None},
    ],
    ids=["maps", "entries", "value", "helper-errors", "unparsed"],
)
def test_a_damaged_document_is_named(damage: dict[str, object]) -> None:
    """A document that lost a part is an error of the lab's with one line."""
    with pytest.raises(DocumentError, match="damaged"):
        trace_from_json({**trace_to_json(parse_trace("")), **damage})
