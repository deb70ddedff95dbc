"""
A Debian base image without a registry: debootstrap on this host, imported by the engine.

The mirror is the one that the host's own apt uses, so that company mirrors and
proxies keep working; where the host's apt knows no Debian, debootstrap's own
default is taken.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from docker.errors import APIError

from quiclab.containers.engine import Engine, host_architecture
from quiclab.errors import MachineError

APT_FOLDER = Path("/etc/apt")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
WORK_FOLDER = Path("/var/tmp")  # noqa: S108  /tmp is often mounted nodev, which debootstrap refuses
_BOOTSTRAP_LINES = 405  # what debootstrap 1.0.128 prints for trixie's minbase
_REMOVAL_TRIES = 10
_REMOVAL_PAUSE_S = 0.1
_BOOTSTRAP_SHARE = 0.9  # of the time; the import takes the rest (measured: 28 s and 3 s)

# As in Debian's own slim images: no documentation, no services, no fsync per file.
_BASE_FILES = {
    "etc/dpkg/dpkg.cfg.d/quiclab": (
        "force-unsafe-io\n"
        "path-exclude /usr/share/doc/*\n"
        "path-include /usr/share/doc/*/copyright\n"
        "path-exclude /usr/share/man/*\n"
        "path-exclude /usr/share/info/*\n"
        "path-exclude /usr/share/locale/*\n"
    ),
    "etc/apt/apt.conf.d/99quiclab": (
        'Acquire::Languages "none";\n'
        'APT::Install-Recommends "false";\n'
        'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb || true"; };\n'
        'Dir::Cache::pkgcache "";\n'
        'Dir::Cache::srcpkgcache "";\n'
    ),
    "usr/sbin/policy-rc.d": "#!/bin/sh\nexit 101\n",
}
_LEFT_OUT = (
    "./dev/*", "./proc/*", "./sys/*", "./run/*", "./tmp/*", "./debootstrap",
    "./var/cache/apt/*", "./var/lib/apt/lists/*", "./var/log/*.log", "./etc/apt/sources.list",
    "./usr/share/doc/*", "./usr/share/man/*", "./usr/share/info/*", "./usr/share/locale/*",
    "./etc/hostname", "./etc/resolv.conf",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AptSource:
    """
    One place apt takes binary packages from.
    """

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mirrors:
    """
    Where Debian's packages come from. None: the host's apt knows no such place.
    """

    main: str | None
    security: str | None


def parse_apt_sources(text: str, *, is_deb822: bool) -> list[AptSource]:
    """
    Read a `.sources` file (deb822) or a `.list` file (one line each), see sources.list(5).

    Source packages and disabled entries are left out.
    """
    return _parse_deb822(text) if is_deb822 else _parse_one_line(text)


def _parse_deb822(text: str) -> list[AptSource]:
    sources = []
    for stanza in _split_stanzas(text):
        if "deb" not in stanza.get("types", "").split() or stanza.get("enabled") == "no":
            continue
        suites = tuple(stanza.get("suites", "").split())
        components = tuple(stanza.get("components", "").split())
        sources += [AptSource(uri, suites, components) for uri in stanza.get("uris", "").split()]
    return sources


def _split_stanzas(text: str) -> Iterator[dict[str, str]]:
    stanza: dict[str, str] = {}
    key = ""
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if stanza:
                yield stanza
            stanza, key = {}, ""
        elif line[0].isspace() and key:
            stanza[key] += f" {line.strip()}"
        elif ":" in line:
            key, _, value = line.partition(":")
            key = key.strip().lower()
            stanza[key] = value.strip()


def _parse_one_line(text: str) -> list[AptSource]:
    sources = []
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if not words or words[0] != "deb":
            continue
        del words[0]
        if words and words[0].startswith("["):  # options, which may hold blanks
            while words and not words[0].endswith("]"):
                del words[0]
            del words[:1]
        if len(words) >= 3:  # noqa: PLR2004  uri, suite, at least one component
            sources.append(AptSource(words[0], (words[1],), tuple(words[2:])))
    return sources


def find_mirrors(sources: Iterable[AptSource]) -> Mirrors:
    """
    Choose Debian's own places among the host's sources: by path, since any host may mirror them.
    """
    main = security = None
    for source in sources:
        folder = source.uri.rstrip("/").rpartition("/")[2]
        if "main" not in source.components:
            continue
        if folder == "debian-security":
            security = security or source.uri
        elif folder == "debian":
            main = main or source.uri
    return Mirrors(main, security)


def load_apt_sources(folder: Path = APT_FOLDER) -> list[AptSource]:
    """
    Read the host's apt sources; none where the host has no apt.
    """
    paths = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]
    sources = []
    for path in paths:
        if path.suffix in {".list", ".sources"} and path.is_file():
            text = path.read_text(errors="replace")
            sources += parse_apt_sources(text, is_deb822=path.suffix == ".sources")
    return sources


def render_base_sources(suite: str, mirrors: Mirrors, *, default: str) -> str:
    """
    Write the base image's apt sources: the release, its updates, its security fixes.

    Args:
        suite: The release.
        mirrors: The host's places.
        default: What debootstrap wrote, for where the host's apt knows no Debian.
    """
    if mirrors.main is None:
        return default
    lines = [f"deb {mirrors.main} {suite} main"]
    if suite != "sid":
        lines.append(f"deb {mirrors.main} {suite}-updates main")
        if mirrors.security is not None:
            lines.append(f"deb {mirrors.security} {suite}-security main")
    return "".join(f"{line}\n" for line in lines)


def find_missing_packages() -> list[str]:
    """
    Name the Debian packages this host lacks for making a base image.
    """
    missing = [] if shutil.which("debootstrap", path=_system_path()) else ["debootstrap"]
    return missing if KEYRING.exists() else [*missing, "debian-archive-keyring"]


def _system_path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def bootstrap_base(
    engine: Engine,
    suite: str,
    tag: str,
    *,
    privilege: Sequence[str],
    on_progress: Callable[[str, float], None],
) -> None:
    """
    Make a minimal Debian on this host and import it as an image.

    Args:
        engine: Who imports it.
        suite: "trixie" and so on.
        tag: The image's name.
        privilege: What makes a command run as root: () for root, ("sudo", "-n") for others.
        on_progress: Called with a step and the fraction done.

    Raises:
        MachineError: debootstrap is missing or fails, or the engine has another architecture.
    """
    missing = find_missing_packages()
    if missing:
        raise MachineError(
            f"no registry has the base image, and {' and '.join(missing)} to make it is missing: "
            f"sudo apt-get install {' '.join(missing)}"
        )
    if engine.facts.architecture != host_architecture():
        raise MachineError(
            f"no registry has the base image, and this {host_architecture()} host cannot make "
            f"one for the engine's {engine.facts.architecture}; pull one there by hand"
        )
    mirrors = find_mirrors(load_apt_sources())
    with _work_folder(privilege) as folder:
        root = folder / "root"
        _run_debootstrap(suite, root, mirrors, privilege=privilege, on_progress=on_progress)
        on_progress("importing the base image", _BOOTSTRAP_SHARE)
        default = (root / "etc/apt/sources.list").read_text()
        files = {
            **_BASE_FILES,
            "etc/apt/sources.list": render_base_sources(suite, mirrors, default=default),
        }
        _write_files(folder / "extra", files)
        _import(engine, tag, folder, privilege=privilege)


@contextmanager
def _work_folder(privilege: Sequence[str]) -> Iterator[Path]:
    prefix = f"quiclab-base-{os.getuid()}-"
    for stale in WORK_FOLDER.glob(f"{prefix}*"):  # image.py's lock: none of them is in use
        _remove_folder(stale, privilege)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=WORK_FOLDER))
    folder.chmod(0o755)  # apt's unprivileged user must reach what is below
    try:
        yield folder
    finally:
        _remove_folder(folder, privilege)


def _remove_folder(folder: Path, privilege: Sequence[str]) -> None:
    argv = [*privilege, "rm", "-rf", "--one-file-system", "--", str(folder)]
    for _ in range(_REMOVAL_TRIES):
        if subprocess.run(argv, check=False, capture_output=True).returncode == 0:
            return
        time.sleep(_REMOVAL_PAUSE_S)  # what was killed just now may still be writing


def _run_debootstrap(
    suite: str,
    root: Path,
    mirrors: Mirrors,
    *,
    privilege: Sequence[str],
    on_progress: Callable[[str, float], None],
) -> None:
    # In namespaces of its own, so that nothing of it, process or mount, outlives it or us.
    argv = [*privilege, "setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid"]
    argv += ["--fork", "--kill-child", "--", "debootstrap", "--variant=minbase"]
    argv += ["--force-check-gpg", suite, str(root)]
    if mirrors.main is not None:
        argv.append(mirrors.main)
    last_lines: list[str] = []
    environment: Mapping[str, str] = {**os.environ, "PATH": _system_path(), "LC_ALL": "C"}
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        for count, line in enumerate(process.stdout):
            last_lines = [*last_lines[-4:], line.strip()]
            done = min(1.0, count / _BOOTSTRAP_LINES) * _BOOTSTRAP_SHARE
            on_progress("making the base image from Debian packages", done)
        status = process.wait()
    finally:
        if process.poll() is None:  # an exception or a signal came out of the loop
            # unshare does not listen to TERM while it waits for its child.
            subprocess.run([*privilege, "kill", "-KILL", str(process.pid)], check=False)
            process.wait()
    if status != 0:
        raise MachineError(
            f"debootstrap of {suite} ended with {status}: {' / '.join(last_lines)}; check that "
            "this host's apt sources can be reached"
        )


def _write_files(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if text.startswith("#!") else 0o644)


def _import(engine: Engine, tag: str, folder: Path, *, privilege: Sequence[str]) -> None:
    repository, _, version = tag.partition(":")
    archive = folder / "base.tar"
    argv = [*privilege, "tar", "--create", "--numeric-owner"]
    argv += [f"--directory={folder / 'root'}", *(f"--exclude={name}" for name in _LEFT_OUT), "."]
    with archive.open("wb") as file:
        subprocess.run(argv, check=True, stdout=file)
    # These belong to the caller here and to root in the image. Files alone: the
    # engine takes no path twice, not even a folder.
    second = folder / "extra.tar"
    argv = ["tar", "--create", f"--file={second}", "--owner=0", "--group=0"]
    argv += [f"--directory={folder / 'extra'}", *(f"./{name}" for name in _BASE_FILES)]
    subprocess.run([*argv, "./etc/apt/sources.list"], check=True)
    subprocess.run(["tar", "--concatenate", f"--file={archive}", str(second)], check=True)
    try:
        answer = engine.client.api.import_image_from_file(
            str(archive),
            repository=repository,
            tag=version,
            changes=['LABEL quiclab.image="base"', 'CMD ["/bin/sh"]'],
        )
    except APIError as error:
        raise MachineError(f"the engine refused the base image: {error.explanation}") from error
    if '"error"' in answer:
        raise MachineError(f"the engine refused the base image: {answer.strip()[-200:]}")
