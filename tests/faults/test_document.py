"""
The table is whole, and the document says what it says.
"""

from tests.faults.document import DOCUMENT, render
from tests.faults.table import CELLS, FAULTS, Part


def test_document_says_what_the_table_says() -> None:
    """Else: python -m tests.faults.document."""
    assert render() == DOCUMENT.read_text()


def test_every_fault_has_a_cell_and_every_cell_a_fault() -> None:
    """Nothing is promised that no cell shows."""
    assert set(FAULTS) == {cell.fault for cell in CELLS}


def test_every_cell_can_be_tried() -> None:
    """On real parts somewhere, or by a test that is named."""
    for cell in CELLS:
        assert bool(cell.places) is (cell.part is Part.REAL), cell
        assert bool(cell.shown_by) is (cell.part is Part.ELSEWHERE), cell
