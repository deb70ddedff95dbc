"""
The folder a run leaves behind: its layout, its manifest, who owns it.

    <output>/<UTC time>-<script>-<buffer>-<id>/
        manifest.json     what was asked, granted, used and judged; first "running", last final
        trace.jsonl       bpftrace's output, untouched (trace-<script>.jsonl when several traced)
        <script>.bt       a script of the user's own, as it was run
        histograms.json   the same maps, parsed
        trace.txt         the same maps as text, in bpftrace's own form
        server.json       the server's counters over the traced window
        client.json       what the client measured
        recording.json    what the server's own recorder counted (--verify, --tracer in-process)
        logs/             stdout and stderr of every role
    <output>/latest       the newest folder

A file appears whole or not at all: it is written under another name and then
renamed. The manifest comes first with the state "running" and last with the
final one. The folder of a lab that was killed says "running" until the next run
or `clean` finds that its process is gone and writes "killed" (quiclab/killed.py).
While a run lasts, `.reserve` holds the room that the last manifest takes: a disk
that fills up meanwhile can still be told what was lost.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from quiclab.accounting import Accounts
from quiclab.bottleneck import Bottleneck
from quiclab.errors import LabError, MachineError, UsageError
from quiclab.evidence import RoleEvidence
from quiclab.grants import Grant
from quiclab.machine.host import GitFacts, Host
from quiclab.runner.base import PlaceFacts
from quiclab.verdict import Verdict

SCHEMA = 1
SCHEMA_HISTORY: Mapping[int, str] = {
    1: "first form",
}
"""What changed with each schema number; a reader of old folders starts here."""

MANIFEST = "manifest.json"
RESERVE = ".reserve"
RESERVE_BYTES = 128 * 1024
"""Room for a manifest: they take 20 to 40 kB, measured; with many workers more."""
LATEST = "latest"

State = Literal["running", "done", "failed", "interrupted", "killed"]


class ArtifactError(LabError):
    """A run folder cannot be read as one."""


class RunnerFacts(BaseModel):
    """The place a run took place in (`PlaceFacts`, kept)."""

    model_config = ConfigDict(frozen=True)

    name: str
    summary: str
    details: Mapping[str, Any] = Field(default_factory=dict)
    notes: Sequence[str] = ()

    @classmethod
    def of(cls, place: PlaceFacts) -> Self:
        """Keep what a place says of itself."""
        return cls(
            name=place.runner_name,
            summary=place.summary,
            details=dict(place.details),
            notes=tuple(place.notes),
        )


class RoleFacts(BaseModel):
    """How one process of the run was started and how it ended."""

    model_config = ConfigDict(frozen=True)

    command: Sequence[str]
    environment: Mapping[str, str] = Field(default_factory=dict)
    exit_status: int | None = None
    """Its exit code, 128 + n when signal n ended it; None when it is not known."""
    uptime_s: float | None = None
    is_killed_by_lab: bool = False

    @classmethod
    def of(cls, role: RoleEvidence) -> Self:
        """Keep what is known of a role; its output goes into the logs."""
        return cls(
            command=role.command,
            environment=dict(role.environment),
            exit_status=role.exit_status,
            uptime_s=role.uptime_s,
            is_killed_by_lab=role.is_killed_by_lab,
        )


class Timing(BaseModel):
    """
    What a run took, and how much of that was the load it was asked for.
    """

    model_config = ConfigDict(frozen=True)

    total_s: float
    """From the command's start to the final manifest; of a later run of one command from the
    end of the run before. What is printed then, and the process's exit, come on top."""
    load_asked_s: float | None
    load_s: float | None
    """By the client's own clock; None when it left no result."""
    beyond_load_s: float
    """The lab's own cost: the total less the load."""


class Manifest(BaseModel):
    """
    Everything a reader needs to understand, compare and repeat a run.
    """

    model_config = ConfigDict(frozen=True)

    schema_number: int = Field(
        default=SCHEMA,
        serialization_alias="schema",
        validation_alias=AliasChoices("schema", "schema_number"),
    )
    run_id: str
    state: State
    reason: str = ""
    """Why it failed or was interrupted, one line."""
    label: str = ""
    started_at: datetime
    ended_at: datetime | None = None
    asked: Mapping[str, Any]
    """The scenario in the spelling of the command line."""
    granted: Sequence[Grant] = ()
    server: Mapping[str, Any] | None = None
    """The server's own description (`describe`), without its certificate."""
    client: Mapping[str, Any] | None = None
    """The client's own description."""
    runner: RunnerFacts | None = None
    roles: Mapping[str, RoleFacts] = Field(default_factory=dict)
    tracer: Mapping[str, str] = Field(default_factory=dict)
    """Who was asked to fill the maps, who did, and why it was another."""
    verify: list[Mapping[str, Any]] = Field(default_factory=list)
    """bpftrace's maps beside the recorder's, one by one (quiclab/trace/witness.py)."""
    scripts: Mapping[str, str] = Field(default_factory=dict)
    """SHA-256 of each script's text, by name."""
    versions: Mapping[str, str] = Field(default_factory=dict)
    host: Host
    image_digest: str | None = None
    git: GitFacts
    durations_s: Mapping[str, float] = Field(default_factory=dict)
    """Seconds spent in each phase of the run, in their order, which add up to the total; of
    what came before it under "start" (interpreter, imports) and "set-up" (engine, image)."""
    timing: Timing | None = None
    costs: Mapping[str, Any] = Field(default_factory=dict)
    """CPU time, BPF programs, sockets before and after the load (quiclab/runner/reading.py)."""
    accounts: Accounts | None = None
    """What was seen and lost, and what must balance (quiclab/accounting.py)."""
    bottleneck: Bottleneck | None = None
    """What held the load back, with the figures that say so."""
    overhead: Mapping[str, Any] | None = None
    """What tracing cost, by untraced twins (quiclab/overhead.py); None when not asked for."""
    verdict: Verdict | None = None


def load_manifest(directory: Path) -> Manifest:
    """
    Read the manifest of a run folder, of this schema or an older one.

    Raises:
        ArtifactError: There is none, it is damaged, or it is newer than this code.
    """
    path = directory / MANIFEST
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ArtifactError(f"{directory} holds no {MANIFEST}; give the folder of a run") from error
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}") from error
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if not isinstance(schema, int) or schema < 1:
        raise ArtifactError(f"{path} has no schema number; it is no manifest of quiclab")
    if schema > SCHEMA:
        raise ArtifactError(
            f"{path} has schema {schema}, and this quiclab reads up to {SCHEMA}; update quiclab"
        )
    try:
        return Manifest.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ArtifactError(
            f"{path}: {where}: {first['msg']}; the file is damaged, record the run again"
        ) from error


def render_folder_name(
    *, started_at: datetime, scripts: Sequence[str], buffer: str, short_id: str
) -> str:
    """
    Name of a run's folder: time, what traced, the buffer as asked, a few random letters.
    """
    what = re.sub(r"[^A-Za-z0-9._+-]", "_", "+".join(scripts))[:80] or "untraced"
    return f"{started_at.astimezone(UTC):%Y%m%dT%H%M%SZ}-{what}-{buffer}-{short_id}"


def render_json(value: object) -> str:
    """
    JSON that people can read and diff.
    """
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


class RunFolder:
    """
    One run's folder. Everything it writes belongs to the owner of the output folder.
    """

    def __init__(self, path: Path, *, owner: tuple[int, int] | None) -> None:
        self.path = path
        self._owner = owner

    @classmethod
    def create(cls, output: Path, name: str) -> "RunFolder":
        """
        Make the folder, and the output folder above it when it is not there yet.

        Raises:
            UsageError: The output is a file.
            MachineError: It cannot be made.
        """
        output = absolute(output)
        try:
            if output.exists() and not output.is_dir():
                raise UsageError(f"--output {output} is a file; give a folder")
            owner = _find_owner(output)
            for directory in reversed(_missing_parts(output)):
                directory.mkdir(exist_ok=True)  # another run may make it at the same time
                _give(directory, owner)
            for directory in (output / name, output / name / "logs"):
                directory.mkdir()
                _give(directory, owner)
        except OSError as error:
            raise MachineError(
                f"cannot make a folder in {output}: {error.strerror}; give another --output"
            ) from error
        return cls(output / name, owner=owner)

    @classmethod
    def reopen(cls, path: Path) -> "RunFolder":
        """
        A folder that a run has left; what is written into it belongs to whom the rest belongs to.
        """
        return cls(path, owner=_find_owner(path))

    def write(self, name: str, data: bytes | str) -> None:
        """
        Write one file, whole or not at all.

        Raises:
            MachineError: The disk is full or refuses.
        """
        path = self.path / name
        # A name that is no UTF-8 (a script's path, a label) is kept as JSON spells it.
        data = data.encode(errors="backslashreplace") if isinstance(data, str) else data
        try:
            fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            try:
                with os.fdopen(fd, "wb") as file:
                    file.write(data)
                Path(temporary).chmod(0o644)
                _give(Path(temporary), self._owner)
                Path(temporary).replace(path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise MachineError(
                f"cannot write {path}: {error.strerror}; make room there, or give another --output"
            ) from error

    def reserve(self) -> None:
        """
        Set room aside for the last manifest.

        Raises:
            MachineError: There is not so much.
        """
        path = self.path / RESERVE
        try:
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise MachineError(
                f"{self.path.parent} has no room for a run's folder: {error.strerror}; "
                "make room there, or give another --output"
            ) from error

    def release(self) -> None:
        """Give the room free that was set aside."""
        (self.path / RESERVE).unlink(missing_ok=True)

    def remove(self) -> None:
        """Take the folder away again: the run did not begin."""
        shutil.rmtree(self.path, ignore_errors=True)

    def write_json(self, name: str, value: object) -> None:
        """Write a value as JSON that people can read and diff."""
        self.write(name, render_json(value))

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest, in place of the one before."""
        self.write_json(MANIFEST, manifest.model_dump(mode="json", by_alias=True))

    def point_latest(self) -> bool:
        """
        Let `latest` beside the folder point to it; False when something else has that name.
        """
        latest = self.path.parent / LATEST
        if latest.exists() and not latest.is_symlink():
            return False
        temporary = self.path.parent / f".{LATEST}.{self.path.name}"
        try:
            temporary.symlink_to(self.path.name, target_is_directory=True)
            _give(temporary, self._owner)
            temporary.replace(latest)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise MachineError(f"cannot set {latest}: {error.strerror}") from error
        return True


def absolute(output: Path) -> Path:
    """
    The output folder from the root on; a symbolic link stays one.

    Raises:
        UsageError: It begins with `~name` of a user not known here.
    """
    try:
        return Path(os.path.abspath(output.expanduser()))  # noqa: PTH100 - it would follow links
    except RuntimeError as error:
        raise UsageError(
            f"--output {output} names no user known here; give a folder's path"
        ) from error


def _missing_parts(directory: Path) -> list[Path]:
    """The folder and its parents, as far as they do not exist; innermost first."""
    missing = []
    while not directory.exists():
        missing.append(directory)
        directory = directory.parent
    return missing


def _find_owner(output: Path) -> tuple[int, int] | None:
    """
    Whom the files belong to, when it is for us to say.

    Only root can give files away. The owner of the output folder (or of the
    nearest folder that exists) gets them, unless that is root and sudo says who
    called.
    """
    if os.geteuid() != 0:
        return None
    nearest = output
    while not nearest.exists():
        nearest = nearest.parent
    facts = nearest.stat()
    sudo_uid, sudo_gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if facts.st_uid == 0 and sudo_uid.isdecimal():
        return int(sudo_uid), int(sudo_gid) if sudo_gid.isdecimal() else facts.st_gid
    return facts.st_uid, facts.st_gid


def _give(path: Path, owner: tuple[int, int] | None) -> None:
    if owner is not None:
        os.chown(path, *owner, follow_symlinks=False)
