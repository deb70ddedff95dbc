"""
The image that server, client and tracer run in: named by its content, made when it is missing.

The tag is a hash of what the Dockerfile copies and of the build's arguments, so
an unchanged tree never builds twice and a changed one never runs a stale image.
Extra certificates are no part of it: they say how this host reaches the network
and change nothing that is traced.
"""

import fcntl
import hashlib
import io
import os
import re
import stat
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.errors import APIError, ImageNotFound
from docker.utils import parse_repository_tag
from docker.utils.build import exclude_paths

from quiclab.containers.debian import bootstrap_base, find_missing_packages
from quiclab.containers.engine import SDK_ERRORS, Engine, find_reason
from quiclab.errors import MachineError
from quiclab.leftovers import state_directory

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "quiclab"
DEFAULT_BASE = "debian:trixie-slim"
IMAGE_LABEL = "quiclab.image"
_EXTRA_CA = "docker/extra-ca/"
_INTEROP_ONLY = "tests/"
_PULL_SILENCE_S = 15  # a registry that says nothing for so long does not answer
_BUILD_SILENCE_S = 600  # one step, apt's or pip's, may be silent for minutes on a slow line
_BUILD_S = 110.0  # the Dockerfile on 2 cores (measured), for the time left; nothing depends on it
_BASE_SHARE = 0.3  # of the time, where the base must be made as well
_STEP = re.compile(r"^Step (\d+)/(\d+) : (.*)")
_BOOTSTRAPPED = re.compile(r"debian:([a-z]+)(?:-slim)?")
_PROXY_NAMES = ("http_proxy", "https_proxy", "no_proxy")

Progress = Callable[[str, float], None]
"""Called with the step in words and the fraction of the whole that is done, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """
    What to build: a target of the Dockerfile and its arguments.
    """

    target: str = "lab"
    base: str = DEFAULT_BASE
    kernel_headers: str = ""
    root: Path = ROOT
    """Folder of the Dockerfile and of all it copies."""


def read_recipe(environment: Mapping[str, str]) -> Recipe:
    """
    Take the lab's recipe, with what `QUICLAB_BASE` and `QUICLAB_KERNEL_HEADERS` change in it.

    compose.yaml reads the same two.
    """
    return Recipe(
        base=environment.get("QUICLAB_BASE") or DEFAULT_BASE,
        kernel_headers=environment.get("QUICLAB_KERNEL_HEADERS", ""),
    )


@dataclass(frozen=True, slots=True)
class Image:
    """
    An image that the engine has.

    Args:
        tag: `quiclab:<12 hex>`, made from the content.
        image_id: The engine's digest of it.
        architecture: "amd64", "arm64".
        is_cached: It was there before anybody asked.
    """

    tag: str
    image_id: str
    architecture: str
    is_cached: bool

    @property
    def summary(self) -> str:
        """
        The image in three words.
        """
        return f"image {self.tag} {'cached' if self.is_cached else 'built'}"


def list_context_files(root: Path = ROOT) -> list[str]:
    """
    List what a build may copy, by the rules of .dockerignore; folders included, sorted.
    """
    patterns = [
        line.strip()
        for line in (root / ".dockerignore").read_text().splitlines()
        if line.strip() and not line.startswith("#")
    ]
    included: set[str] = exclude_paths(str(root), patterns, dockerfile="Dockerfile")
    # An editor's lock is a link to nothing; it is no part of the tree.
    return sorted(name for name in included - {"", ".dockerignore"} if (root / name).exists())


def render_tag(recipe: Recipe) -> str:
    """
    Name the image after its content.
    """
    digest = hashlib.sha256()
    for words in (recipe.target, recipe.base, recipe.kernel_headers):
        digest.update(words.encode() + b"\0")
    for name in list_context_files(recipe.root):
        path = recipe.root / name
        if path.is_dir() or name.startswith(_EXTRA_CA):
            continue
        if name.startswith(_INTEROP_ONLY) and recipe.target == "lab":
            continue
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{name}\0{_file_mode(path):o}\0{content}\0".encode())
    return f"{REPOSITORY}:{digest.hexdigest()[:12]}"


def _file_mode(path: Path) -> int:
    """
    0755 or 0644: all that git keeps of a mode, whatever the umask of the clone was.
    """
    return 0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644


def pack_context(root: Path, *, extra_ca: bytes | None) -> bytes:
    """
    Pack the build context; owners and times are fixed, so that equal trees hit the build cache.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in list_context_files(root):
            path = root / name
            member = tarfile.TarInfo(name)
            member.mode = _file_mode(path)
            if path.is_dir():
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            else:
                _add_file(archive, member, path.read_bytes())
        if extra_ca is not None:
            _add_file(archive, tarfile.TarInfo(f"{_EXTRA_CA}host.crt"), extra_ca)
    return buffer.getvalue()


def _pack_named(recipe: Recipe, *, extra_ca: bytes | None) -> tuple[str, bytes]:
    """
    A context and the tag that is true of it: a tree may change while a build waits its turn.
    """
    while True:
        tag = render_tag(recipe)
        context = pack_context(recipe.root, extra_ca=extra_ca)
        if render_tag(recipe) == tag:
            return tag, context


def _add_file(archive: tarfile.TarFile, member: tarfile.TarInfo, data: bytes) -> None:
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def find_image(engine: Engine, tag: str) -> Image | None:
    """
    Look an image up; None when the engine does not have it.

    Raises:
        MachineError: The engine does not say.
    """
    try:
        found = engine.client.images.get(tag)
    except ImageNotFound:
        return None
    except SDK_ERRORS as error:
        raise MachineError(
            f"the engine does not say whether it has image {tag}: {find_reason(error)}"
        ) from error
    return Image(tag, str(found.id), str(found.attrs["Architecture"]), is_cached=True)


def ensure_image(
    engine: Engine,
    recipe: Recipe | None = None,
    *,
    on_progress: Progress,
    privilege: Sequence[str] = (),
    install: Callable[[list[str]], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Image:
    """
    Give the image for this tree, building what is missing.

    The base is the engine's own, else pulled, else made from Debian packages.

    Args:
        engine: Who builds and keeps it.
        recipe: What to build; the lab's image by default, see `read_recipe`.
        on_progress: Hears the step and the fraction done.
        privilege: What makes a command run as root, see `bootstrap_base`.
        install: Installs Debian packages on this host; None forbids it.
        environment: Where SSL_CERT_FILE, proxies and the recipe are looked up.

    Raises:
        MachineError: It cannot be built here; the line says at which step and why.
    """
    environment = os.environ if environment is None else environment
    recipe = recipe or read_recipe(environment)
    tag = render_tag(recipe)
    found = find_image(engine, tag)
    if found is not None:
        _tag_latest(engine, recipe, found)
        return found
    with _lock(on_progress):
        found = find_image(engine, tag)  # another process may just have built it
        if found is not None:
            return found
        base, done = _ensure_base(
            engine, recipe.base, on_progress=on_progress, privilege=privilege, install=install
        )
        tag, context = _pack_named(recipe, extra_ca=_load_extra_ca(environment))
        arguments = {"BASE": base, "KERNEL_HEADERS": recipe.kernel_headers}
        arguments |= {k: v for k, v in environment.items() if k.lower() in _PROXY_NAMES}
        _build(
            engine,
            tag,
            recipe.target,
            context=context,
            arguments=arguments,
            on_progress=lambda step, part: on_progress(step, done + (1 - done) * part),
        )
    built = find_image(engine, tag)
    if built is None:
        raise MachineError(f"the engine built {tag} and does not have it; run invoke build again")
    _tag_latest(engine, recipe, built)
    return Image(tag, built.image_id, built.architecture, is_cached=False)


def _tag_latest(engine: Engine, recipe: Recipe, image: Image) -> None:
    """
    Give this tree's image the name that compose.yaml uses, for `docker-compose up` by hand.
    """
    if recipe.target == "lab" and recipe.root == ROOT:
        latest = find_image(engine, f"{REPOSITORY}:latest")
        if latest is None or latest.image_id != image.image_id:
            try:
                engine.client.api.tag(image.tag, REPOSITORY, "latest", force=True)
            except SDK_ERRORS as error:
                raise MachineError(
                    f"the engine does not name image {image.tag} {REPOSITORY}:latest: "
                    f"{find_reason(error)}"
                ) from error


@contextmanager
def _lock(on_progress: Progress) -> Iterator[None]:
    """
    One build at a time for each user: a second one would only do the same work again.
    """
    with (state_directory() / "image.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_progress("waiting for another build of the image", 0.0)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _load_extra_ca(environment: Mapping[str, str]) -> bytes | None:
    name = environment.get("SSL_CERT_FILE", "")
    if not name:
        return None
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise MachineError(
            f"SSL_CERT_FILE names {name}, which cannot be read ({error.strerror}); "
            "correct it or unset it"
        ) from error


def _ensure_base(
    engine: Engine,
    base: str,
    *,
    on_progress: Progress,
    privilege: Sequence[str],
    install: Callable[[list[str]], None] | None,
) -> tuple[str, float]:
    """
    The name of a base image that the engine has, and the share of the work that is done.
    """
    if find_image(engine, base) is not None:
        return base, 0.0
    match = _BOOTSTRAPPED.fullmatch(base)
    own_base = f"{REPOSITORY}-base:{match[1]}" if match else ""
    if own_base and find_image(engine, own_base) is not None:
        return own_base, 0.0
    on_progress(f"pulling {base}", 0.0)
    reason = _pull(engine, base)
    if reason is None:
        return base, 0.0
    if match is None:
        raise MachineError(
            f"base image {base} cannot be pulled ({reason}) and is not one that can be made here; "
            "pull it by hand, or leave BASE at debian:trixie-slim"
        )
    on_progress(f"no registry answers ({reason}): making the base from Debian packages", 0.0)
    missing = find_missing_packages()
    if missing and install is not None:
        install(missing)
    bootstrap_base(
        engine,
        match[1],
        own_base,
        privilege=privilege,
        on_progress=lambda step, part: on_progress(step, part * _BASE_SHARE),
    )
    return own_base, _BASE_SHARE


def _pull(engine: Engine, name: str) -> str | None:
    """
    Pull an image; the reason when that fails. Silence counts as failure after some seconds.
    """
    api = engine.client.api
    repository, tag = parse_repository_tag(name)
    work_timeout_s, api.timeout = api.timeout, _PULL_SILENCE_S
    try:
        for event in api.pull(repository, tag=tag or "latest", stream=True, decode=True):
            if "error" in event:
                return _shorten(str(event["error"]))
    except SDK_ERRORS as error:
        return _shorten(find_reason(error))
    finally:
        api.timeout = work_timeout_s
    return None if find_image(engine, name) is not None else "the pull brought no image"


def _shorten(reason: str) -> str:
    """
    The innermost words of the engine's nested error, such as "no such host".
    """
    return reason.strip().strip('"').rpartition(": ")[2][:120]


def _build(
    engine: Engine,
    tag: str,
    target: str,
    *,
    context: bytes,
    arguments: Mapping[str, str],
    on_progress: Progress,
) -> None:
    started_s = time.monotonic()
    step = "starting the build"
    lines: list[str] = []
    try:
        events: Iterator[dict[str, Any]] = engine.client.api.build(
            fileobj=io.BytesIO(context),
            custom_context=True,
            tag=tag,
            target=target,
            buildargs=dict(arguments),
            rm=True,
            forcerm=True,
            decode=True,
            timeout=_BUILD_SILENCE_S,
        )
        for event in events:
            if "error" in event:
                raise MachineError(_render_build_error(step, str(event["error"]), lines))
            for line in str(event.get("stream", "")).splitlines():
                if match := _STEP.match(line):
                    step = match[3]
                elif line.strip():
                    lines = [*lines[-30:], line.strip()]
            done = min(0.99, (time.monotonic() - started_s) / _BUILD_S)
            on_progress(f"building the image: {step[:60]}", done)
    except SDK_ERRORS as error:
        raise MachineError(
            f"the engine gave up building {tag} at {step!r}: {find_reason(error)}"
        ) from error


def _render_build_error(step: str, error: str, lines: Sequence[str]) -> str:
    # apt and pip say why some lines before they say that they failed.
    telling = [line for line in lines if re.match(r"(E:|ERROR|error|fatal|W: Failed)", line)]
    words = " / ".join(telling[-3:] or lines[-3:])
    return (
        f"building the image failed at {step[:80]!r}: {words or error}; "
        "the registries must be reachable from containers (a company's certificates: "
        "set SSL_CERT_FILE)"
    )


def remove_images(engine: Engine, *, label: str = IMAGE_LABEL) -> list[str]:
    """
    Remove every image this project built, the base it made included; says what, one line each.

    An image that a container still uses stays, and is named.

    Args:
        engine: Who keeps them.
        label: What marks them.
    """
    api = engine.client.api
    removed: list[str] = []
    while True:  # parents go after their children, so go round until nothing moves
        kept: list[str] = []
        moved_count = 0
        for found in api.images(filters={"label": label}):
            name = next(iter(found.get("RepoTags") or []), found["Id"][:19])
            try:
                api.remove_image(found["Id"], force=True)
            except ImageNotFound:
                continue  # it went together with another
            except APIError as error:
                kept.append(f"kept image {name}: {error.explanation}")
                continue
            moved_count += 1
            if not name.startswith(("sha256:", "<none>")):
                removed.append(f"removed image {name}")
        if not moved_count:
            return removed + kept
