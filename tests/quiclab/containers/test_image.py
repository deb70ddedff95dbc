"""
Promises of quiclab/containers/image.py and of the Dockerfile.
"""

import contextlib
import fcntl
import gc
import io
import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiclab.containers.engine import EngineAddress, connect_engine
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
from quiclab.leftovers import state_directory
from tests.docker_lab import need_engine, need_image
from tests.quiclab.fake_engine import serve_engine

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


def test_lock_of_an_editor_is_no_part_of_the_tree(tree: Path) -> None:
    """Emacs marks a file that is being edited by a link to nothing."""
    before = (render_tag(Recipe(root=tree)), pack_context(tree, extra_ca=None))
    (tree / "server/.#ring.py").symlink_to("somebody@somewhere.1:2")
    assert (render_tag(Recipe(root=tree)), pack_context(tree, extra_ca=None)) == before


def test_tree_that_changes_while_its_build_waits_is_built_under_its_new_name(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the old name would stand for the new content for good."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    recipe = Recipe(base="here:1", root=tree)
    before = render_tag(recipe)
    with serve_engine(tmp_path) as fake, (state_directory() / "image.lock").open("w") as lock:
        fake.images.add("here:1")
        fcntl.flock(lock, fcntl.LOCK_EX)

        def change_and_let_go(step: str, _fraction: float) -> None:
            if step.startswith("waiting"):
                (tree / "server/udp/ring.py").write_text("changed")
                fcntl.flock(lock, fcntl.LOCK_UN)

        engine = connect_engine(EngineAddress(fake.url, "test", is_chosen=True))
        built = ensure_image(engine, recipe, on_progress=change_and_let_go, environment={})
        engine.close()
    assert built.tag == render_tag(recipe) != before
    assert fake.images == {"here:1", built.tag}


@pytest.mark.parametrize(
    ("base", "asked"),
    [
        ("registry.invalid:5000/debian", "registry.invalid%3A5000%2Fdebian latest"),
        ("debian", "debian latest"),
        ("debian:trixie", "debian trixie"),
        ("own@sha256:" + "0" * 64, "own sha256%3A" + "0" * 64),
    ],
)
def test_base_is_pulled_by_the_name_that_was_given(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str, asked: str
) -> None:
    """With a port in it, without a version, by digest: the engine is asked for that one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with serve_engine(tmp_path) as fake:
        engine = connect_engine(EngineAddress(fake.url, "test", is_chosen=True))
        with contextlib.suppress(MachineError):
            ensure_image(
                engine,
                Recipe(base=base, root=tree),
                on_progress=stop_before_bootstrap,
                environment={},
            )
        engine.close()
    (pulled,) = (path for path in fake.requests if "/images/create" in path)
    repository, tag = asked.split()
    assert {f"fromImage={repository}", f"tag={tag}"} <= set(pulled.partition("?")[2].split("&"))


def stop_before_bootstrap(step: str, _fraction: float) -> None:
    """
    Keep a test from making a base.
    """
    if step.startswith("no registry"):
        raise MachineError(step)


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # the SDK's, when refused
def test_engine_that_goes_away_before_a_build_is_one_line(tmp_path: Path) -> None:
    """Not a traceback of the SDK."""
    with serve_engine(tmp_path) as fake:
        engine = connect_engine(EngineAddress(fake.url, "test", is_chosen=True))
    (tmp_path / "engine.sock").unlink()
    with pytest.raises(MachineError, match="does not say whether it has image a:b: No such file"):
        find_image(engine, "a:b")
    engine.close()
    gc.collect()


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
