"""
Promises of quiclab/containers/image.py and of the Dockerfile.
"""

import io
import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiclab.containers.image import (
    ROOT,
    Recipe,
    ensure_image,
    find_image,
    list_context_files,
    pack_context,
    read_recipe,
    remove_images,
    render_tag,
)
from quiclab.errors import MachineError
from tests.docker_lab import need_engine, need_image

TEST_LABEL = "quiclab.test-image"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree as small as an image can be made from."""
    for name in ("Dockerfile", ".dockerignore"):
        shutil.copy(ROOT / name, tmp_path)
    for name in (
        "server/udp/ring.py",
        "client/__init__.py",
        "bpftrace/a.bt",
        "docker/tracer-entry",
        "docker/extra-ca/README.md",
        "tests/interop/requirements.lock",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path


def test_context_holds_what_the_dockerfile_copies_and_nothing_else() -> None:
    """Neither the lab itself nor what the host has built goes into the image."""
    names = list_context_files()
    tops = {name.partition("/")[0] for name in names}
    assert tops <= {"Dockerfile", "server", "client", "bpftrace", "docker", "tests"}
    assert [n for n in names if n.startswith("tests/") and not n.startswith("tests/interop")] == []
    assert [n for n in names if n.endswith((".so", ".stamp", ".pyc"))] == []
    assert {"server/requirements.lock", "docker/tracer-entry", "bpftrace/udp-syscall.bt"} <= set(
        names
    )


@pytest.mark.parametrize(
    "name", ["server/udp/ring.py", "client/__init__.py", "bpftrace/a.bt", "Dockerfile"]
)
def test_tag_moves_with_what_goes_into_the_image(tree: Path, name: str) -> None:
    """A changed tree never runs a stale image."""
    before = render_tag(Recipe(root=tree))
    with (tree / name).open("a") as file:
        file.write("\n# changed\n")
    assert re.fullmatch("quiclab:[0-9a-f]{12}", before)
    assert render_tag(Recipe(root=tree)) != before


@pytest.mark.parametrize(
    "name",
    [
        "quiclab/command/cli.py",
        "server/udp/_native.so",
        "server/__pycache__/x.pyc",
        "docker/extra-ca/company.crt",
        "tests/interop/requirements.lock",
        "bpftrace/README.md",
    ],
)
def test_tag_stays_when_nothing_that_is_traced_changes(tree: Path, name: str) -> None:
    """The lab's own code, build products, certificates and other targets' files do not count."""
    before = render_tag(Recipe(root=tree))
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("changed")
    assert render_tag(Recipe(root=tree)) == before


def test_tag_moves_with_the_arguments(tree: Path) -> None:
    """Another base, other headers and another target are other images."""
    recipes = [
        Recipe(root=tree),
        Recipe(root=tree, base="debian:sid-slim"),
        Recipe(root=tree, kernel_headers="linux-headers-amd64"),
        Recipe(root=tree, target="interop"),
    ]
    assert len({render_tag(recipe) for recipe in recipes}) == len(recipes)


def test_recipe_takes_base_and_headers_from_the_environment() -> None:
    """The same two variables as in compose.yaml; empty ones change nothing."""
    given = {"QUICLAB_BASE": "debian:sid-slim", "QUICLAB_KERNEL_HEADERS": "linux-headers-amd64"}
    assert read_recipe(given) == Recipe(
        base="debian:sid-slim", kernel_headers="linux-headers-amd64"
    )
    assert read_recipe({"QUICLAB_BASE": ""}) == Recipe()


def test_tag_does_not_depend_on_the_umask_of_the_clone(tree: Path) -> None:
    """Of a mode only what git keeps counts."""
    before = render_tag(Recipe(root=tree))
    (tree / "client/__init__.py").chmod(0o600)
    assert render_tag(Recipe(root=tree)) == before
    (tree / "client/__init__.py").chmod(0o755)
    assert render_tag(Recipe(root=tree)) != before


def test_context_is_the_same_bytes_for_the_same_tree_and_carries_the_hosts_certificates(
    tree: Path,
) -> None:
    """Times and owners are fixed, so that the engine's build cache is hit."""
    first = pack_context(tree, extra_ca=b"PEM")
    (tree / "client/__init__.py").touch()
    assert pack_context(tree, extra_ca=b"PEM") == first
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        file = archive.extractfile("docker/extra-ca/host.crt")
        assert file is not None
        assert file.read() == b"PEM"


def test_dockerfile_keeps_to_what_both_builders_know() -> None:
    """No frontend line, no mounts, no here-documents."""
    text = (ROOT / "Dockerfile").read_text()
    assert not re.search(r"^#\s*syntax", text, re.MULTILINE | re.IGNORECASE)
    assert "--mount" not in text
    assert "<<" not in text
    assert "--chmod" not in text


@pytest.mark.docker
def test_image_of_an_unchanged_tree_is_found_and_not_built() -> None:
    """The second time nothing happens at all."""
    image = need_image()
    steps: list[str] = []
    found = ensure_image(need_engine(), on_progress=lambda step, fraction: steps.append(step))
    assert (found.image_id, found.is_cached, steps) == (image.image_id, True, [])


@pytest.mark.docker
def test_base_that_cannot_be_had_is_refused_with_the_registrys_reason(tree: Path) -> None:
    """A base of the user's own is never replaced by another one."""
    recipe = Recipe(root=tree, base="localhost:1/absent:none")
    with pytest.raises(MachineError, match=r"localhost:1/absent:none cannot be pulled \(.*refused"):
        ensure_image(need_engine(), recipe, on_progress=lambda step, fraction: None)


@pytest.fixture
def small_recipe(tree: Path) -> Iterator[Recipe]:
    """A recipe that takes a second: the lab's image with a file more, removed afterwards."""
    image = need_image()
    text = f"ARG BASE\nFROM ${{BASE}} AS lab\nLABEL {TEST_LABEL}=1\n"
    (tree / "Dockerfile").write_text(text)
    yield Recipe(root=tree, base=image.tag, target="lab")
    remove_images(need_engine(), label=TEST_LABEL)


@pytest.mark.docker
@pytest.mark.slow
def test_image_is_built_once_and_removed_with_its_label(small_recipe: Recipe) -> None:
    """Building, finding and removing are one circle; other images stay."""
    engine = need_engine()
    built = ensure_image(engine, small_recipe, on_progress=lambda step, fraction: None)
    again = ensure_image(engine, small_recipe, on_progress=lambda step, fraction: None)
    assert (built.is_cached, again.is_cached) == (False, True)
    assert built.image_id == again.image_id
    removed = remove_images(engine, label=TEST_LABEL)
    assert f"removed image {built.tag}" in removed
    assert find_image(engine, built.tag) is None
    assert find_image(engine, need_image().tag) is not None


@pytest.mark.docker
@pytest.mark.slow
def test_build_that_fails_says_at_which_step_and_why(small_recipe: Recipe) -> None:
    """The telling line of apt or pip is in the message, not only that a step failed."""
    path = small_recipe.root / "Dockerfile"
    path.write_text(path.read_text() + 'RUN echo "E: Unable to locate package x"; exit 100\n')
    with pytest.raises(MachineError, match=r"'RUN echo .*: E: Unable to locate package x;"):
        ensure_image(need_engine(), small_recipe, on_progress=lambda step, fraction: None)
