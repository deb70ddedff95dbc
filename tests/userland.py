"""
bpftrace as three Debian releases ship it, for tests that must hold on each.

The host's own bpftrace serves when it is the wanted version; the others come
from small Debian userlands in the user's cache, made by debootstrap from the
mirror that the host's own apt uses. Kernel, processes and files stay the host's:
a userland brings programs and libraries only.

Prepare them once: `python -m tests.userland --prepare` (root, a minute or two).
"""

import argparse
import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from quiclab.containers.debian import find_mirrors, load_apt_sources
from tests.conftest import need

MIRROR_VARIABLE = "QUICLAB_DEBIAN_MIRROR"
# Root's tools, where a user's PATH may lack them.
_SYSTEM_PATH = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
DEBOOTSTRAP_LIMIT_S = 1200
APT_LIMIT_S = 1200
VERSION_LIMIT_S = 30
TOLD_LINE_INTERVAL = 40  # of debootstrap's 405 lines and apt-get's, every so many are told
STAMP_NAME = "quiclab-userland.json"  # in the userland's root, written last
REPOSITORY = Path(__file__).resolve().parent.parent

# Mounts live in a mount namespace of the one command, so that they end with it
# and a killed test leaves none behind. Arguments: root, "binds", "--", command.
_ENTER = """
set -eu
root=$1; shift
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
[ -e "$root/sys/kernel/tracing/trace" ] || mount -t tracefs tracefs "$root/sys/kernel/tracing"
mount --rbind /dev "$root/dev"
while [ "$1" != -- ]; do
    mkdir -p "$root$1"
    mount --rbind "$1" "$root$1"
    shift
done
shift
exec chroot "$root" "$@"
"""
_ENTER_HOST = """
set -eu
[ -e /sys/kernel/tracing/trace ] || mount -t tracefs tracefs /sys/kernel/tracing
exec "$@"
"""


class UserlandError(Exception):
    """A userland cannot be had here; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Suite:
    """
    A Debian release and the bpftrace the tests expect of it.

    Args:
        name: The release's code name.
        version_prefix: What its bpftrace version must start with.
        is_moving: The release changes daily; its bpftrace may outrun the pinned one.
    """

    name: str
    version_prefix: str
    is_moving: bool = False

    def has_pinned(self, version: str) -> bool:
        """Tell whether a bpftrace version is the one the tests were written against."""
        return version == self.version_prefix or version.startswith(self.version_prefix + ".")


SUITES = {
    "bookworm": Suite("bookworm", "0.17"),
    "trixie": Suite("trixie", "0.23"),
    "sid": Suite("sid", "0.27.1", is_moving=True),
}


@dataclass(frozen=True, slots=True)
class Userland:
    """
    Programs of one release, run over the host's kernel, processes and files.

    Args:
        suite: Which release.
        root: The userland's root folder; None is the host itself.
        bpftrace_version: As its bpftrace says, such as "0.23.2".
    """

    suite: Suite
    root: Path | None
    bpftrace_version: str

    def command(self, argv: Sequence[str], *, folders: Sequence[Path] = ()) -> list[str]:
        """
        Build an argv that runs `argv` here, under the same PID from start to end.

        The repository and the temporary folder keep their paths inside.

        Args:
            argv: The command.
            folders: More of the host's folders that must keep their paths inside.
        """
        unshare = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
        if self.root is None:
            return [*unshare, _ENTER_HOST, "enter-host", *argv]
        kept = [REPOSITORY, Path(tempfile.gettempdir()).resolve(), *folders]
        binds = [str(path) for path in dict.fromkeys(kept)]
        return [*unshare, _ENTER, "enter", str(self.root), *binds, "--", *argv]

    def run(
        self, argv: Sequence[str], *, timeout_s: float, folders: Sequence[Path] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end and hand back its status and output."""
        return subprocess.run(
            self.command(argv, folders=folders),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )


def cache_folder() -> Path:
    """Name the folder that holds all userlands."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "quiclab" / "userland"


def parse_bpftrace_version(text: str) -> str:
    """
    Read what `bpftrace --version` prints: "bpftrace v0.23.2".

    Raises:
        UserlandError: There is no version in it.
    """
    found = re.search(r"v(\d+(?:\.\d+)+)", text)
    if found is None:
        raise UserlandError(f"bpftrace --version printed {text!r}, which holds no version")
    return found.group(1)


def find_userland(suite: Suite) -> Userland | None:
    """
    Find a release's bpftrace that is ready for use: the host's own, or a prepared one.
    """
    host_version = _detect_host_version()
    if host_version is not None and suite.has_pinned(host_version):
        return Userland(suite, None, host_version)
    root = cache_folder() / suite.name
    try:
        stamp = json.loads((root / STAMP_NAME).read_text())
    except FileNotFoundError:
        return None
    return Userland(suite, root, str(stamp["bpftrace_version"]))


def require_userland(suite_name: str) -> Userland:
    """
    Hand a test its userland, or skip it with what is missing (in CI: fail).
    """
    suite = SUITES[suite_name]
    need(os.geteuid() == 0, "root, to trace")
    userland = find_userland(suite)
    need(
        userland is not None,
        f"bpftrace {suite.version_prefix} of {suite.name}: python -m tests.userland --prepare",
    )
    assert userland is not None
    return userland


def render_moved(userland: Userland) -> str | None:
    """
    Say that a release's bpftrace is not the one the tests know; None when it is.
    """
    suite = userland.suite
    if suite.has_pinned(userland.bpftrace_version):
        return None
    return (
        f"{suite.name} has moved: its bpftrace is {userland.bpftrace_version} now, and the tests "
        f"were written against {suite.version_prefix}. Look through what fails, record "
        f"tests/data/bpftrace anew and move the pin in tests/userland.py."
    )


def prepare_userland(suite: Suite, *, say: Callable[[str], None]) -> Userland:
    """
    Make a release's bpftrace ready, from the cache or anew.

    It is built beside its place and renamed when complete, under a lock, so that
    two callers share one build and a killed one leaves nothing that looks ready.

    Args:
        suite: Which release.
        say: Receives one line per step.

    Raises:
        UserlandError: It cannot be made here.
    """
    found = find_userland(suite)
    if found is not None:
        return found
    if os.geteuid() != 0:
        raise UserlandError(f"the {suite.name} userland is made by debootstrap, as root; use sudo")
    if shutil.which("debootstrap", path=_SYSTEM_PATH) is None:
        raise UserlandError("debootstrap not found: apt-get install debootstrap")
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / f"{suite.name}.lock"):
        found = find_userland(suite)
        if found is not None:
            return found
        for stale in folder.glob(f"{suite.name}.partial-*"):
            shutil.rmtree(stale)
        partial = folder / f"{suite.name}.partial-{os.getpid()}"
        try:
            _build(suite, partial, say=say)
            partial.rename(folder / suite.name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    userland = find_userland(suite)
    assert userland is not None
    return userland


def find_debian_mirror() -> str | None:
    """
    Find the Debian mirror that the host's own apt uses; the variable overrides it.

    None where its apt knows no Debian: debootstrap's own default is taken then.
    """
    return os.environ.get(MIRROR_VARIABLE) or find_mirrors(load_apt_sources()).main


def _build(suite: Suite, partial: Path, *, say: Callable[[str], None]) -> None:
    mirror = find_debian_mirror()
    began_s = time.monotonic()

    def step(line: str) -> None:
        say(f"{suite.name:9} {time.monotonic() - began_s:4.0f} s  {line}")

    step("debootstrap: the base system")
    # In a mount namespace of its own, so that what it mounts ends with it.
    namespace = ["unshare", "--mount", "--propagation", "private"]
    bootstrap = ["debootstrap", "--variant=minbase", "--force-check-gpg", suite.name, str(partial)]
    _run_told(
        f"debootstrap of {suite.name}",
        [*namespace, *bootstrap, *([] if mirror is None else [mirror])],
        step=step,
        timeout_s=DEBOOTSTRAP_LIMIT_S,
    )
    # An archive that lags behind carries an expired Release file of a moving release.
    settings = partial / "etc/apt/apt.conf.d/99quiclab"
    settings.write_text(
        'Acquire::Check-Valid-Until "false";\nAPT::Install-Recommends "false";\n'
        'Acquire::Languages "none";\n'
    )
    step("apt-get: bpftrace")
    inside = Userland(suite, partial, "")
    for argv in (
        ["apt-get", "update"],
        ["apt-get", "install", "--yes", "--no-install-recommends", "bpftrace"],
        ["apt-get", "clean"],
    ):
        plain = ["env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", *argv]
        _run_told(" ".join(argv), inside.command(plain), step=step, timeout_s=APT_LIMIT_S)
    result = inside.run(["bpftrace", "--version"], timeout_s=VERSION_LIMIT_S)
    version = parse_bpftrace_version(result.stdout + result.stderr)
    if not suite.has_pinned(version) and not suite.is_moving:
        raise UserlandError(
            f"{suite.name} carries bpftrace {version}, and {suite.version_prefix} was expected"
        )
    stamp = {"suite": suite.name, "bpftrace_version": version, "built_s": int(time.time())}
    (partial / STAMP_NAME).write_text(json.dumps(stamp))
    step(f"ready: bpftrace {version}")


def _run_told(
    what: str,
    argv: Sequence[str],
    *,
    step: Callable[[str], None],
    timeout_s: float,
) -> None:
    """Run a long command, passing on some of its lines, and show its end when it fails."""
    tail: list[str] = []
    with subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PATH": _SYSTEM_PATH, "LC_ALL": "C"},
    ) as process:
        watchdog = threading.Timer(timeout_s, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            for number, line in enumerate(process.stdout):
                tail = [*tail[-9:], line.rstrip()]
                if number % TOLD_LINE_INTERVAL == TOLD_LINE_INTERVAL - 1:
                    step(line.strip()[:90])
        except BaseException:
            process.kill()
            raise
        finally:
            watchdog.cancel()
    if process.returncode == 0:
        return
    took = f"took over {timeout_s:.0f} s" if process.returncode < 0 else "failed"
    said = "\n  ".join(tail)
    raise UserlandError(f"{what} {took}; can this host's apt sources be reached?\n  {said}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _detect_host_version() -> str | None:
    if shutil.which("bpftrace") is None:
        return None
    result = subprocess.run(
        ["bpftrace", "--version"],
        capture_output=True,
        text=True,
        timeout=VERSION_LIMIT_S,
        check=False,
    )
    return parse_bpftrace_version(result.stdout + result.stderr)


def main(arguments: Sequence[str]) -> int:
    """Prepare or list the userlands."""
    parser = argparse.ArgumentParser(prog="python -m tests.userland", description=__doc__)
    parser.add_argument("--prepare", action="store_true", help="make what is missing (root)")
    parser.add_argument("suites", nargs="*", help=f"of {', '.join(SUITES)}; default: all")
    options = parser.parse_args(arguments)
    unknown = set(options.suites) - set(SUITES)
    if unknown:
        parser.error(f"unknown release {min(unknown)}; there are {', '.join(SUITES)}")
    status = 0
    for name in options.suites or SUITES:
        suite = SUITES[name]
        try:
            userland = (
                prepare_userland(suite, say=lambda line: print(line, flush=True))
                if options.prepare
                else find_userland(suite)
            )
        except UserlandError as error:
            print(f"{name:9} {error}", file=sys.stderr, flush=True)
            status = 4
            continue
        if userland is None:
            print(f"{name:9} not prepared")
            continue
        place = "the host's own" if userland.root is None else str(userland.root)
        print(f"{name:9} bpftrace {userland.bpftrace_version}, {place}", flush=True)
        moved = render_moved(userland)
        if moved:
            print(f"{name:9} {moved}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
