"""
server.build: two compiler calls, made only when something changed.
"""

from pathlib import Path

import pytest

from server import build as builder
from server.build import BuildError, Part, build, find_compiler, find_parts
from server.exits import ExitStatus
from tests.conftest import need

SOURCE = "int answer(void) { return 42; }\n"


@pytest.fixture
def part(tmp_path: Path) -> Part:
    """A shared object of one function, and the header it depends on."""
    need(find_compiler() is not None, "a C compiler")
    (tmp_path / "answer.c").write_text(SOURCE)
    (tmp_path / "answer.h").write_text("")
    return Part(
        target=tmp_path / "answer.so",
        sources=(tmp_path / "answer.c",),
        headers=(tmp_path / "answer.h",),
        flags=(),
    )


def test_a_part_is_built_once_and_again_when_a_file_changed(part: Part) -> None:
    """Unchanged, nothing is done; a changed source or header is built again."""
    assert build(part)
    first = part.target.read_bytes()
    assert first.startswith(b"\x7fELF")
    assert not build(part)
    part.headers[0].write_text("/* changed */\n")
    assert build(part)
    part.sources[0].write_text(SOURCE.replace("42", "43"))
    assert build(part)
    assert part.target.read_bytes() != first


def test_a_part_that_was_removed_is_built_again(part: Part) -> None:
    """A stamp without the file it is for does not count."""
    build(part)
    part.target.unlink()
    assert build(part)
    assert part.target.exists()


def test_a_failed_build_leaves_what_was_there(part: Part) -> None:
    """A source that does not compile is one line, and the old file stays as it was."""
    build(part)
    before = part.target.read_bytes()
    part.sources[0].write_text("int answer(void) { return nonsense; }\n")
    with pytest.raises(BuildError, match=r"answer\.so could not be built: .*nonsense") as failed:
        build(part)
    assert "\n" not in str(failed.value)
    assert part.target.read_bytes() == before
    assert sorted(path.suffix for path in part.target.parent.iterdir()) == [
        ".c",
        ".h",
        ".so",
        ".stamp",
    ]


def test_a_missing_header_says_which_package_brings_it(part: Part) -> None:
    """Without Python.h the error names the package to install."""
    part.sources[0].write_text('#include "nowhere/Python.h"\n')
    with pytest.raises(BuildError, match="sudo apt-get install python3-dev"):
        build(part)


def test_without_a_compiler_one_line_says_what_to_install(
    part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No compiler: the line names the packages."""
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(BuildError, match="sudo apt-get install gcc libc6-dev python3-dev"):
        build(part)


def test_the_command_builds_what_the_server_needs(capsys: pytest.CaptureFixture[str]) -> None:
    """Both parts are there afterwards, each told in a line."""
    need(find_compiler() is not None, "a C compiler")
    assert builder.main() == ExitStatus.OK
    said = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[2] for line in said] == ["up to date"] * 2
    assert all(part.target.exists() for part in find_parts())
