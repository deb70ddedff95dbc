"""
What every run must have come to, whatever went wrong: a cell's promise, held against a folder.
"""

import re
from pathlib import Path

from quiclab.artifacts import Manifest, load_manifest
from tests.faults.table import FILES, Cell, Kept


def find_folder(output: Path) -> Path | None:
    """Find the one run folder below an output folder."""
    folders = [path for path in output.glob("2*") if path.is_dir()] if output.is_dir() else []
    assert len(folders) <= 1, folders
    return folders[0] if folders else None


def check_folder(cell: Cell, output: Path, *, exit_code: int | None, said: str = "") -> None:
    """
    Hold what a run left and answered against its cell.

    Args:
        cell: What was promised.
        output: Parent of the run's folder; no other run has one there.
        exit_code: What was answered; None when the command was killed.
        said: The error, where the command ended with one.
    """
    folder = find_folder(output)
    if cell.kept is Kept.NOTHING:
        assert (None, cell.exit_code) == (folder, exit_code), said
        assert re.search(cell.says, said), said
        return
    assert folder is not None, said
    manifest = load_manifest(folder)
    told = f"{_tell(manifest)} {said}"
    verdict = "" if manifest.verdict is None else manifest.verdict.word
    assert (cell.state, cell.verdict, cell.exit_code) == (manifest.state, verdict, exit_code), told
    assert re.search(cell.says, told), told
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert set() == FILES[cell.kept] - there
    assert [] == [name for name in there if Path(name).name.startswith(".")]  # half-written


def _tell(manifest: Manifest) -> str:
    findings = () if manifest.verdict is None else manifest.verdict.findings
    return " | ".join([manifest.reason, *(f"{each.rule}: {each.text}" for each in findings)])
