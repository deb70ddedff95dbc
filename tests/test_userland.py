"""The helper that gives tests several bpftrace versions."""

import json
from pathlib import Path

import pytest

from tests.userland import (
    MIRROR_VARIABLE,
    STAMP_NAME,
    SUITES,
    Userland,
    UserlandError,
    cache_folder,
    find_debian_mirror,
    find_userland,
    main,
    parse_bpftrace_version,
    render_moved,
)


@pytest.mark.parametrize(
    ("suite", "version", "is_pinned"),
    [
        ("bookworm", "0.17.0", True),
        ("trixie", "0.23.2", True),
        ("trixie", "0.230.1", False),
        ("sid", "0.27.1", True),
        ("sid", "0.27.10", False),
        ("sid", "0.28.0", False),
    ],
)
def test_a_pin_is_a_prefix_of_whole_numbers(suite: str, version: str, is_pinned: bool) -> None:
    """A pin holds for every patch of its version, and for no other number."""
    assert is_pinned == SUITES[suite].has_pinned(version)


def test_a_release_that_moved_is_said_with_both_versions() -> None:
    """When sid has moved on, one line says from which version to which, and what to do."""
    moved = render_moved(Userland(SUITES["sid"], None, "0.28.0"))
    assert moved is not None
    assert moved.startswith("sid has moved: its bpftrace is 0.28.0 now, and the tests")
    assert render_moved(Userland(SUITES["sid"], None, "0.27.1")) is None


def test_version_is_read_from_bpftraces_words() -> None:
    """The version is taken from what `bpftrace --version` prints; other text is an error."""
    assert "0.23.2" == parse_bpftrace_version("bpftrace v0.23.2\n")
    with pytest.raises(UserlandError, match="holds no version"):
        parse_bpftrace_version("command not found")


def test_the_cache_follows_the_users_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Userlands lie in the user's cache folder, wherever XDG_CACHE_HOME puts it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tmp_path / "quiclab" / "userland" == cache_folder()


def test_only_a_complete_userland_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder counts as a userland when its stamp, written last, is there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    root = cache_folder() / "sid"
    root.mkdir(parents=True)
    assert find_userland(SUITES["sid"]) is None
    (root / STAMP_NAME).write_text(json.dumps({"bpftrace_version": "0.27.1"}))
    assert Userland(SUITES["sid"], root, "0.27.1") == find_userland(SUITES["sid"])


def test_the_mirror_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the host's apt has no Debian archive, a variable names one."""
    monkeypatch.setenv(MIRROR_VARIABLE, "file:/srv/debian")
    assert "file:/srv/debian" == find_debian_mirror()


def test_an_unknown_release_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A release that is not known ends with the list of those that are."""
    with pytest.raises(SystemExit) as caught:
        main(["--prepare", "potato"])
    assert 2 == caught.value.code
    assert "unknown release potato; there are bookworm, trixie, sid" in capsys.readouterr().err
