"""
The run folder: names, owners, whole files, a manifest that can be read years later.
"""

import json
import os
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from quiclab.artifacts import (
    SCHEMA,
    SCHEMA_HISTORY,
    ArtifactError,
    Manifest,
    RunFolder,
    load_manifest,
    render_folder_name,
)
from quiclab.errors import MachineError, UsageError
from quiclab.grants import Grant
from quiclab.machine.host import collect_git, collect_host
from quiclab.verdict import Finding, Verdict
from tests.conftest import need

NOON = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)


def make_manifest(**fields: object) -> Manifest:
    """Make a manifest with the little that every one has."""
    common = {
        "run_id": "20261130T120000Z-k3f9",
        "state": "done",
        "started_at": NOON,
        "asked": {"script": ["udp-syscall"]},
        "host": collect_host(),
        "git": collect_git(Path(__file__).parent),
    }
    return Manifest.model_validate({**common, **fields})


def names(directory: Path) -> set[str]:
    """List what lies in a folder."""
    return {path.name for path in directory.iterdir()}


# Names -----------------------------------------------------------------------


def test_folder_name_holds_time_script_buffer_and_id() -> None:
    """The folder's name says when, what and which ring, without being opened."""
    name = render_folder_name(
        started_at=NOON, scripts=["udp-syscall"], buffer="8M", short_id="k3f9"
    )
    assert "20261130T120000Z-udp-syscall-8M-k3f9" == name


def test_folder_name_is_in_utc_and_joins_scripts() -> None:
    """Another time zone gives the same name; several scripts are joined by a plus."""
    east = NOON.astimezone(timezone(timedelta(hours=5)))
    name = render_folder_name(started_at=east, scripts=["a", "b"], buffer="128k", short_id="0000")
    assert "20261130T120000Z-a+b-128k-0000" == name


def test_folder_name_of_a_run_that_nobody_traced_says_so() -> None:
    """The twin of a traced run has no script."""
    name = render_folder_name(started_at=NOON, scripts=[], buffer="128k", short_id="0000")
    assert "20261130T120000Z-untraced-128k-0000" == name


def test_folder_name_keeps_odd_letters_out() -> None:
    """A script's name cannot lead out of the output folder."""
    name = render_folder_name(started_at=NOON, scripts=["../x y"], buffer="1", short_id="0000")
    assert "20261130T120000Z-.._x_y-1-0000" == name


# Manifest --------------------------------------------------------------------


def test_manifest_reads_back_as_it_was_written(tmp_path: Path) -> None:
    """Dump and load are a pair."""
    manifest = make_manifest(
        granted=[Grant(what="x", asked="2", granted="1", is_short=True, reason="r", fix="f")],
        verdict=Verdict(
            word="degraded",
            summary="s",
            findings=[Finding(rule="r", severity="degraded", text="t")],
        ),
        durations_s={"load": 5.0},
        ended_at=NOON,
    )
    folder = RunFolder.create(tmp_path, "one")
    folder.write_manifest(manifest)
    assert manifest == load_manifest(folder.path)
    assert SCHEMA == json.loads((folder.path / "manifest.json").read_text())["schema"]


def test_schema_history_explains_every_number() -> None:
    """Whoever meets an old folder finds what its schema number means."""
    assert list(range(1, SCHEMA + 1)) == sorted(SCHEMA_HISTORY)
    assert all(SCHEMA_HISTORY.values())


def test_manifest_of_schema_1_still_loads(tmp_path: Path) -> None:
    """What the first schema required is enough, and unknown fields do no harm."""
    raw = json.loads(make_manifest().model_dump_json(by_alias=True))
    oldest = {k: raw[k] for k in ("run_id", "state", "started_at", "asked", "host", "git")}
    (tmp_path / "manifest.json").write_text(json.dumps({**oldest, "schema": 1, "later": True}))
    assert "done" == load_manifest(tmp_path).state


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "no schema number"),
        ('{"schema": "1"}', "no schema number"),
        ('{"schema": 999}', "reads up to"),
        ('{"schema": 1}', "run_id: Field required"),
    ],
)
def test_damaged_manifest_is_refused_with_the_reason(tmp_path: Path, text: str, words: str) -> None:
    """What is no manifest is named as what it is, in one line."""
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ArtifactError, match=words) as caught:
        load_manifest(tmp_path)
    assert "\n" not in str(caught.value)


def test_folder_without_manifest_is_refused(tmp_path: Path) -> None:
    """A folder that is no run's is said to be none."""
    with pytest.raises(ArtifactError, match=r"holds no manifest\.json"):
        load_manifest(tmp_path)


# Files -----------------------------------------------------------------------


def test_file_is_replaced_whole_and_leaves_no_other(tmp_path: Path) -> None:
    """A second writing replaces the first; no temporary name stays."""
    folder = RunFolder.create(tmp_path, "one")
    folder.write("a.txt", "first, and longer")
    folder.write("a.txt", b"second")
    assert "second" == (folder.path / "a.txt").read_text()
    assert {"a.txt", "logs"} == names(folder.path)


def test_file_that_cannot_be_written_keeps_the_old_one(tmp_path: Path) -> None:
    """A failed writing leaves the file that was there, and one line that names it."""
    folder = RunFolder.create(tmp_path, "one")
    folder.write("a.txt", "first")
    (folder.path / "a.txt").unlink()
    (folder.path / "a.txt").mkdir()
    with pytest.raises(MachineError, match=r"cannot write .*a\.txt"):
        folder.write("a.txt", "second")
    assert {"a.txt", "logs"} == names(folder.path)


def test_output_that_is_a_file_is_a_usage_error(tmp_path: Path) -> None:
    """An output folder cannot be a file."""
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file; give a folder"):
        RunFolder.create(tmp_path / "file", "one")


def test_output_of_an_unknown_user_is_a_usage_error() -> None:
    """`~name` of nobody is told in one line."""
    with pytest.raises(UsageError, match="--output ~nobody-of-that-name names no user"):
        RunFolder.create(Path("~nobody-of-that-name"), "one")


def test_output_with_too_long_a_name_is_one_line(tmp_path: Path) -> None:
    """The system's reason is shown."""
    with pytest.raises(MachineError, match="File name too long"):
        RunFolder.create(tmp_path / ("x" * 300), "one")


def test_manifest_keeps_names_that_are_no_utf_8(tmp_path: Path) -> None:
    """A label or a path with a stray byte is written, and reads back as it was."""
    folder = RunFolder.create(tmp_path, "one")
    folder.write_manifest(make_manifest(label="a\udcff\n\x1b"))
    assert "a\udcff\n\x1b" == load_manifest(folder.path).label


def test_output_below_a_file_is_one_line(tmp_path: Path) -> None:
    """A folder that cannot be made is told with the system's reason."""
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match="Not a directory"):
        RunFolder.create(tmp_path / "file" / "below", "one")


def test_output_may_have_spaces_and_be_nested_and_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing parents are made; a relative folder starts from the caller's directory."""
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create(Path("a b/c d"), "one")
    assert tmp_path / "a b" / "c d" / "one" == folder.path


# latest ----------------------------------------------------------------------


def test_latest_points_to_the_newest_folder_by_a_relative_name(tmp_path: Path) -> None:
    """`latest` moves on with each run and survives a move of the output folder."""
    for name in ("one", "two"):
        assert RunFolder.create(tmp_path, name).point_latest()
    assert "two" == str((tmp_path / "latest").readlink())


def test_latest_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    """A folder of the user's own called `latest` stays as it is."""
    (tmp_path / "latest").mkdir()
    assert not RunFolder.create(tmp_path, "one").point_latest()
    assert (tmp_path / "latest").is_dir()
    assert not (tmp_path / "latest").is_symlink()


# Owners ----------------------------------------------------------------------


def owners(directory: Path) -> set[tuple[int, int]]:
    """Find who owns a folder and all in it."""
    paths = [directory, *directory.rglob("*")]
    return {(facts.st_uid, facts.st_gid) for facts in (path.lstat() for path in paths)}


def test_files_belong_to_the_owner_of_the_output_folder(tmp_path: Path) -> None:
    """Root writes into somebody's folder, and that somebody owns what appears."""
    need(os.geteuid() == 0, "root, who alone can give files away")
    output = tmp_path / "out"
    output.mkdir()
    os.chown(output, 1234, 2345)
    folder = RunFolder.create(output / "deeper", "one")
    folder.write("a.txt", "x")
    folder.point_latest()
    assert {(1234, 2345)} == owners(output)


def test_files_belong_to_the_caller_of_sudo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder of root's, sudo's caller owns what appears."""
    need(os.geteuid() == 0, "root, who alone can give files away")
    monkeypatch.setenv("SUDO_UID", "1234")
    monkeypatch.setenv("SUDO_GID", "2345")
    folder = RunFolder.create(tmp_path / "out", "one")
    folder.write("a.txt", "x")
    folder.point_latest()
    assert {(1234, 2345)} == owners(tmp_path / "out")


def test_owner_of_the_folder_wins_over_sudo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that belongs to somebody says more than who called sudo."""
    need(os.geteuid() == 0, "root, who alone can give files away")
    monkeypatch.setenv("SUDO_UID", "1")
    os.chown(tmp_path, 1234, 2345)
    assert {(1234, 2345)} == owners(RunFolder.create(tmp_path, "one").path)
