"""
What a local run needs on this machine, and how it gets there.

The rules of installing (`docs/exit-codes.md`, code 4): root installs and names
each package; anybody else is asked when there is somebody to ask, else must
have said `--yes`, and then `sudo -n` is used; `--no-install` only says what is
missing. apt's lists are fetched only when what they hold did not do.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from quiclab.errors import MachineError

ROOT = Path(__file__).resolve().parents[2]
_APT_LOCK_TIMEOUT_S = 120  # another apt, such as unattended-upgrades, may hold it for a while
_DOWNLOAD_SHARE = 0.4  # of an install's time; bpftrace with its LLVM: 6 s of 16 (measured)
_STATUS = re.compile(r"(dl|pm)status:[^:]*:([0-9.]+):(.*)")

Progress = Callable[[str, float], None]
"""Called with the step in words and the fraction of the whole that is done, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Need:
    """
    Something that must be on this machine.

    Args:
        what: Its name, for people.
        package: The Debian package that brings it.
        purpose: What it is for.
        is_there: Asks the machine.
    """

    what: str
    package: str
    purpose: str
    is_there: Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallRules:
    """
    What the user allowed.

    Args:
        may_install: False: only say what is missing.
        is_agreed: `--yes` was given.
    """

    may_install: bool
    is_agreed: bool


class Desk(Protocol):
    """Who is at the keyboard and how commands are run here; tests put another in its place."""

    is_root: bool
    is_interactive: bool

    def find(self, program: str) -> str | None:
        """Path of a program, or None."""

    def ask(self, question: str) -> bool:
        """Ask a yes-or-no question."""

    def run(self, argv: Sequence[str], on_line: Callable[[str], None]) -> int:
        """Run a command; its exit code."""


class Installer:
    """
    Installs Debian packages under the rules.

    Args:
        rules: What the user allowed.
        desk: Who is at the keyboard.
        announce: Hears of each package before it is installed; must not be lost.
        on_progress: Hears how far it is.
    """

    def __init__(
        self,
        rules: InstallRules,
        desk: Desk,
        *,
        announce: Callable[[str], None],
        on_progress: Progress,
    ) -> None:
        self._rules = rules
        self._desk = desk
        self._announce = announce
        self._on_progress = on_progress
        self._is_agreed = rules.is_agreed or desk.is_root

    @property
    def privilege(self) -> tuple[str, ...]:
        """What stands before a command that needs root."""
        return () if self._desk.is_root else ("sudo", "-n")

    def install(self, packages: Sequence[str], *, purpose: str) -> None:
        """
        Install packages, or say in one line what to install.

        Raises:
            MachineError: They may not or cannot be installed.
        """
        needed = f"{', '.join(packages)} {'is' if len(packages) == 1 else 'are'} needed {purpose}"
        advice = f"{needed}: sudo apt-get install {' '.join(packages)}"
        if self._desk.find("apt-get") is None:
            raise MachineError(
                f"{needed} (names of Debian packages); install with this system's package manager"
            )
        if not self._rules.may_install:
            raise MachineError(advice)
        self._agree(needed, advice)
        for package in packages:
            self._announce(f"installing Debian package {package}")
        self._install(packages)

    def _agree(self, needed: str, advice: str) -> None:
        if not self._is_agreed:
            if not self._desk.is_interactive:
                raise MachineError(f"{advice} (or agree with --yes)")
            if not self._desk.ask(f"{needed}; install with sudo?"):
                raise MachineError(advice)
            self._is_agreed = True
        if not self._desk.is_root and self._desk.run([*self.privilege, "true"], lambda _: None):
            raise MachineError(f"{advice} (sudo wants a password, and none can be given here)")

    def _install(self, packages: Sequence[str]) -> None:
        apt = [*self.privilege, "env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C", "apt-get"]
        options = ["-qy", "--no-install-recommends", "-o", "APT::Status-Fd=1"]
        options += ["-o", f"DPkg::Lock::Timeout={_APT_LOCK_TIMEOUT_S}"]
        said: list[str] = []

        def hear(line: str) -> None:
            status = _STATUS.match(line)
            if status is None:
                said.append(line)
                return
            done = float(status[2]) / 100
            if status[1] == "dl":
                self._on_progress("fetching Debian packages", done * _DOWNLOAD_SHARE)
            else:
                rest = done * (1 - _DOWNLOAD_SHARE)
                self._on_progress(status[3].strip(), _DOWNLOAD_SHARE + rest)

        command = [*apt, *options, "install", *packages]
        if self._desk.run(command, hear) == 0:
            return
        self._on_progress("fetching Debian's package lists", 0.0)
        self._desk.run([*apt, "-q", "update"], said.append)
        if self._desk.run(command, hear) != 0:
            reasons = (
                [line for line in said if line.startswith("E:")] or said or ["no reason given"]
            )
            raise MachineError(
                f"apt-get could not install {' '.join(packages)}: {reasons[-1].strip()}; "
                "mend apt's sources, or install it by hand"
            )


class RealDesk:
    """
    This process's own keyboard and machine.
    """

    def __init__(self) -> None:
        self.is_root = os.geteuid() == 0
        self.is_interactive = sys.stdin.isatty() and sys.stderr.isatty()

    def find(self, program: str) -> str | None:
        """Look in PATH and in the folders of system commands, which users' PATHs often lack."""
        return find_program(program)

    def ask(self, question: str) -> bool:
        """Ask on stderr, so that stdout stays what was asked for."""
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in {"y", "yes"}

    def run(self, argv: Sequence[str], on_line: Callable[[str], None]) -> int:
        """Run a command to its end; it is ended, too, when this process is told to end."""
        with subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    on_line(line.rstrip("\n"))
                return process.wait()
            finally:
                if process.poll() is None:
                    process.terminate()


def find_program(name: str) -> str | None:
    """
    Path of a program in PATH or among the system's commands, or None.
    """
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _has_compiler() -> bool:
    asked = os.environ.get("CC")
    return any(find_program(name) for name in ([asked] if asked else ["cc", "gcc", "clang"]))


def _has_python_headers() -> bool:
    return (Path(sysconfig.get_path("include")) / "Python.h").exists()


RUN_NEEDS = (
    Need("bpftrace", "bpftrace", "to trace", lambda: find_program("bpftrace") is not None),
)
"""What a local run starts."""

BUILD_NEEDS = (
    Need("a C compiler", "gcc", "to build the server's native module", _has_compiler),
    Need(
        "the C library's headers",
        "libc6-dev",
        "to build the server's native module",
        lambda: Path("/usr/include/stdio.h").exists(),
    ),
    Need(
        "Python's headers",
        "python3-dev",
        "to build the server's native module",
        _has_python_headers,
    ),
)
"""What building the native parts takes; asked only when something has to be built."""

VALGRIND = Need(
    "valgrind", "valgrind", "to count instructions", lambda: find_program("valgrind") is not None
)


def _has_emulator() -> bool:
    other = "x86_64" if platform.machine() == "aarch64" else "aarch64"
    return any(find_program(f"qemu-{other}{form}") for form in ("", "-static"))


TEST_NEEDS = (
    Need(
        "an emulator of the other architecture",
        "qemu-user",
        "to run the other architecture's provider files",
        _has_emulator,
    ),
    Need(
        "readelf",
        "binutils",
        "to look into provider files",
        lambda: find_program("readelf") is not None,
    ),
    VALGRIND,
)
"""What the ordinary tests start besides what a run starts."""


def prepare_local(installer: Installer, desk: Desk, *, on_progress: Progress) -> None:
    """
    Make this machine ready for local runs: packages, then the native parts.

    Raises:
        MachineError: Something is missing and may not or cannot be installed.
    """
    _prepare(RUN_NEEDS, installer, desk, on_progress=on_progress)


def prepare_build(installer: Installer, desk: Desk, *, on_progress: Progress) -> None:
    """
    Build the native parts, with the packages that this takes.

    Raises:
        MachineError: Something is missing and may not or cannot be installed.
    """
    _prepare((), installer, desk, on_progress=on_progress)


def install_missing(needs: Sequence[Need], installer: Installer) -> None:
    """
    Install what is not there of some needs.

    Raises:
        MachineError: Something is missing and may not or cannot be installed.
    """
    missing = [need for need in needs if not need.is_there()]
    if missing:
        _refuse_foreign_python(missing)
        purposes = dict.fromkeys(need.purpose for need in missing)
        installer.install([need.package for need in missing], purpose=" and ".join(purposes))


def _prepare(
    needs: Sequence[Need], installer: Installer, desk: Desk, *, on_progress: Progress
) -> None:
    reason = build_native(desk)
    install_missing((*needs, *(BUILD_NEEDS if reason else ())), installer)
    if reason:
        on_progress("building the server's native module", 0.0)
        reason = build_native(desk)
    if reason:
        raise MachineError(reason)


def build_native(desk: Desk) -> str:
    """
    Build the server's C parts when their sources changed.

    Returns:
        "" or why it could not be done, one line.
    """
    said: list[str] = []
    argv = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "server.build"]
    return "" if desk.run(argv, said.append) == 0 else (said or ["server.build said nothing"])[-1]


def _refuse_foreign_python(missing: Sequence[Need]) -> None:
    """Debian's headers fit Debian's Python alone."""
    is_debian = Path(os.path.realpath(sys.executable)).parent == Path("/usr/bin")
    if not is_debian and any(need.package == "python3-dev" for need in missing):
        raise MachineError(
            f"{os.path.realpath(sys.executable)} has no Python.h, and no Debian package brings "
            "it; set QUICLAB_PYTHON=/usr/bin/python3, or install its headers"
        )
