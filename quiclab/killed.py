"""
Folders of runs whose lab was killed: they say "running" until somebody looks.
"""

from contextlib import suppress
from pathlib import Path

from quiclab import leftovers
from quiclab.artifacts import MANIFEST, ArtifactError, RunFolder, load_manifest
from quiclab.errors import LabError

REASON = "the lab's process was killed before it could write down what was measured"


def label_killed_runs() -> list[str]:
    """
    Write "killed" into the folders of dead runs; call it before their records are removed.

    A run is dead when nobody holds the lock on its record, which the kernel drops with
    the process: a folder of a live run is never touched, nor one that no record names.

    Returns:
        What was done, one line each.
    """
    return [
        line
        for run_id, folder in leftovers.find_dead_folders()
        if (line := _label(run_id, folder)) is not None
    ]


def _label(run_id: str, path: Path) -> str | None:
    if path.is_symlink() or not path.is_dir():
        return None  # it was taken away or never made
    try:
        _remove_half_written(path)
        if not (path / MANIFEST).exists():
            return _remove_empty(run_id, path)
        manifest = load_manifest(path)
        if manifest.run_id != run_id or manifest.state != "running":
            return None
        labelled = manifest.model_copy(update={"state": "killed", "reason": REASON})
        RunFolder.reopen(path).write_manifest(labelled)
    except (LabError, ArtifactError, OSError) as error:
        return f"cannot label the folder of dead run {run_id}: {error}"
    return f"labelled {path} as killed"


def _remove_half_written(path: Path) -> None:
    """What has no final name yet, and the room that was set aside."""
    for folder in (path, path / "logs"):
        for file in folder.glob(".*"):
            if file.is_file() and not file.is_symlink():
                file.unlink()


def _remove_empty(run_id: str, path: Path) -> str | None:
    """The lab was killed while it made the folder."""
    with suppress(OSError):  # somebody has put something there
        (path / "logs").rmdir()
        path.rmdir()
        return f"removed the empty folder of dead run {run_id}"
    return None
