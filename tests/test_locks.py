"""
What is installed is locked by hash, the same everywhere, and names no registry.
"""

import re
import tomllib
from pathlib import Path

import pytest

from quiclab import VERSION

ROOT = Path(__file__).resolve().parents[1]
LOCKS = sorted(
    path.relative_to(ROOT)
    for pattern in ("requirements.lock", "*/requirements.lock", "tests/*/requirements.lock")
    for path in ROOT.glob(pattern)
)


def parse_lock(path: Path) -> dict[str, tuple[str, str]]:
    """Version and everything else of each package, by its name."""
    packages = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", (ROOT / path).read_text()):
        found = re.match(r"([A-Za-z0-9._-]+)==([^\s;]+)", block)
        if found is not None:
            name = re.sub(r"[-_.]+", "-", found[1]).lower()
            packages[name] = (found[2], block)
    return packages


def read_names(path: Path) -> list[str]:
    """Names of the packages that a requirements.in asks for."""
    lines = (ROOT / path).read_text().splitlines()
    return [
        re.sub(r"[-_.]+", "-", re.split(r"[<>=!~;\[ ]", line)[0]).lower()
        for line in lines
        if line and not line.startswith(("#", "-"))
    ]


@pytest.mark.parametrize("lock", LOCKS, ids=str)
def test_a_lock_holds_hashes_and_no_address(lock: Path) -> None:
    """Every package has a SHA-256, and nothing says where it comes from."""
    packages = parse_lock(lock)
    assert packages
    assert [name for name, (_, block) in packages.items() if "--hash=sha256:" not in block] == []
    assert "://" not in (ROOT / lock).read_text()


@pytest.mark.parametrize("lock", LOCKS, ids=str)
def test_a_lock_holds_what_was_asked_for(lock: Path) -> None:
    """The lock was made after the last change of the requirements beside it."""
    missing = set(read_names(lock.with_suffix(".in"))) - set(parse_lock(lock))
    assert missing == set()


def test_the_lab_and_the_image_run_the_same_versions() -> None:
    """What both hold is the same: local and docker runs differ in nothing that pip brings."""
    lab, image = parse_lock(Path("requirements.lock")), parse_lock(Path("server/requirements.lock"))
    differing = {name for name in image if name in lab and image[name][0] != lab[name][0]}
    assert differing == set()
    assert set(image) <= set(lab)


def test_the_project_depends_on_what_the_lock_holds() -> None:
    """Each dependency of pyproject.toml is locked, in a version that it allows at its lower end."""
    packages = parse_lock(Path("requirements.lock"))
    with (ROOT / "pyproject.toml").open("rb") as file:
        dependencies = tomllib.load(file)["project"]["dependencies"]
    for dependency in dependencies:
        name, bound = re.fullmatch(r"([A-Za-z0-9._-]+)[=>]=([0-9.]+).*", dependency).groups()  # type: ignore[union-attr]
        locked = packages[re.sub(r"[-_.]+", "-", name).lower()][0]
        assert [int(part) for part in locked.split(".")[:2]] >= [
            int(part) for part in bound.split(".")[:2]
        ]


def test_the_project_and_the_lab_say_the_same_version() -> None:
    """What `--version` and manifests say is what pyproject.toml says."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert VERSION == tomllib.load(file)["project"]["version"]
