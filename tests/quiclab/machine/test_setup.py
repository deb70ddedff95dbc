"""
Packages are installed by the rules, and nothing happens without being allowed.
"""

import re
import sys
from collections.abc import Callable, Sequence

import pytest

from quiclab.errors import MachineError
from quiclab.machine.setup import (
    BUILD_NEEDS,
    ROOT,
    RUN_NEEDS,
    TEST_NEEDS,
    Installer,
    InstallRules,
    Need,
    RealDesk,
    build_native,
    install_missing,
)


class FakeDesk:
    """
    A machine whose commands are written down instead of run.

    Args:
        is_root: Who calls.
        is_interactive: Somebody could answer.
        answer: What they answer.
        programs: What is installed.
        exit_codes: Of the commands in their order; 0 when used up.
        lines: What every command says.
    """

    def __init__(
        self,
        *,
        is_root: bool = True,
        is_interactive: bool = False,
        answer: bool = False,
        programs: Sequence[str] = ("apt-get",),
        exit_codes: Sequence[int] = (),
        lines: Sequence[str] = (),
    ) -> None:
        self.is_root = is_root
        self.is_interactive = is_interactive
        self.commands: list[list[str]] = []
        self.questions: list[str] = []
        self._answer = answer
        self._programs = programs
        self._exit_codes = list(exit_codes)
        self._lines = lines

    def find(self, program: str) -> str | None:
        """Only what the test says is installed."""
        return f"/usr/bin/{program}" if program in self._programs else None

    def ask(self, question: str) -> bool:
        """Answer as the test says."""
        self.questions.append(question)
        return self._answer

    def run(self, argv: Sequence[str], on_line: Callable[[str], None]) -> int:
        """Write the command down."""
        self.commands.append(list(argv))
        for line in self._lines:
            on_line(line)
        return self._exit_codes.pop(0) if self._exit_codes else 0

    @property
    def installed(self) -> list[str]:
        """The packages of the last apt-get install."""
        argv = self.commands[-1]
        return argv[argv.index("install") + 1 :] if "install" in argv else []


def make_installer(
    desk: FakeDesk, *, may_install: bool = True, is_agreed: bool = False
) -> tuple[Installer, list[tuple[str, float]]]:
    """An installer at a desk, and what it will say."""
    said: list[tuple[str, float]] = []
    rules = InstallRules(may_install=may_install, is_agreed=is_agreed)
    installer = Installer(
        rules,
        desk,
        announce=lambda text: said.append((text, 0.0)),
        on_progress=lambda step, part: said.append((step, part)),
    )
    return installer, said


def test_root_installs_and_names_each_package() -> None:
    """As root nothing is asked, and every package is named before apt runs."""
    desk = FakeDesk()
    installer, said = make_installer(desk)
    installer.install(["bpftrace", "gcc"], purpose="to trace")
    assert desk.installed == ["bpftrace", "gcc"]
    assert [step for step, _ in said] == [
        "installing Debian package bpftrace",
        "installing Debian package gcc",
    ]
    assert "sudo" not in desk.commands[-1]


def test_no_install_says_what_to_install_and_runs_nothing() -> None:
    """`--no-install` is one line with the command, also for root."""
    desk = FakeDesk()
    installer, _ = make_installer(desk, may_install=False)
    with pytest.raises(MachineError, match=r"sudo apt-get install bpftrace$"):
        installer.install(["bpftrace"], purpose="to trace")
    assert desk.commands == []


def test_a_user_nobody_can_ask_must_have_agreed() -> None:
    """Without a terminal and without `--yes` nothing is installed."""
    desk = FakeDesk(is_root=False)
    installer, _ = make_installer(desk)
    with pytest.raises(MachineError, match="agree with --yes"):
        installer.install(["bpftrace"], purpose="to trace")
    assert desk.commands == []


def test_yes_installs_with_sudo_that_never_asks() -> None:
    """`--yes` stands for the answer, and `sudo -n` cannot hang on a password."""
    desk = FakeDesk(is_root=False)
    installer, _ = make_installer(desk, is_agreed=True)
    installer.install(["bpftrace"], purpose="to trace")
    assert [argv[:2] for argv in desk.commands] == [["sudo", "-n"]] * 2
    assert desk.installed == ["bpftrace"]


def test_an_interactive_user_is_asked_once() -> None:
    """A yes holds for the rest of the command."""
    desk = FakeDesk(is_root=False, is_interactive=True, answer=True)
    installer, _ = make_installer(desk)
    installer.install(["bpftrace"], purpose="to trace")
    installer.install(["gcc"], purpose="to build")
    assert desk.questions == ["bpftrace is needed to trace; install with sudo?"]
    assert desk.installed == ["gcc"]


def test_an_interactive_no_installs_nothing() -> None:
    """A no is answered with the command to type."""
    desk = FakeDesk(is_root=False, is_interactive=True, answer=False)
    installer, _ = make_installer(desk)
    with pytest.raises(MachineError, match="sudo apt-get install bpftrace"):
        installer.install(["bpftrace"], purpose="to trace")
    assert desk.commands == []


def test_sudo_that_wants_a_password_is_one_line() -> None:
    """Where `sudo -n` is refused, apt is not even tried."""
    desk = FakeDesk(is_root=False, exit_codes=[1])
    installer, _ = make_installer(desk, is_agreed=True)
    with pytest.raises(MachineError, match="sudo wants a password"):
        installer.install(["bpftrace"], purpose="to trace")
    assert desk.commands == [["sudo", "-n", "true"]]


def test_lists_are_fetched_only_when_the_install_failed() -> None:
    """One update and one more try follow a failed install; a good one has neither."""
    desk = FakeDesk(exit_codes=[100, 0, 0])
    installer, _ = make_installer(desk)
    installer.install(["bpftrace"], purpose="to trace")
    assert [
        next(word for word in argv if word in {"install", "update"}) for argv in desk.commands
    ] == ["install", "update", "install"]


def test_a_failed_install_shows_the_reason_apt_gave() -> None:
    """The last error line of apt is in the message."""
    desk = FakeDesk(
        exit_codes=[100, 0, 100],
        lines=["Reading package lists...", "E: Unable to locate package bpftrace"],
    )
    installer, _ = make_installer(desk)
    with pytest.raises(MachineError, match="Unable to locate package bpftrace"):
        installer.install(["bpftrace"], purpose="to trace")


def test_a_system_without_apt_gets_the_name_of_what_is_missing() -> None:
    """Elsewhere than on Debian one line says what is missing."""
    installer, _ = make_installer(FakeDesk(programs=()))
    with pytest.raises(MachineError, match=r"bpftrace .* this system's package manager"):
        installer.install(["bpftrace"], purpose="to trace")


def test_progress_follows_apts_own_status_lines() -> None:
    """Fetching and unpacking become one growing fraction."""
    desk = FakeDesk(
        lines=[
            "dlstatus:1:50.0:Retrieving file 1 of 2 (3s remaining)",
            "pmstatus:bpftrace:0.0:Preparing bpftrace (amd64)",
            "pmstatus:bpftrace:100.0:Installed bpftrace (amd64)",
        ]
    )
    installer, said = make_installer(desk)
    installer.install(["bpftrace"], purpose="to trace")
    assert [
        said[1],
        said[-1],
    ] == [("fetching Debian packages", 0.2), ("Installed bpftrace (amd64)", 1.0)]


def test_a_command_that_fails_gives_its_exit_code_and_lines() -> None:
    """The real desk hears stdout and stderr and reports the code."""
    lines: list[str] = []
    code = RealDesk().run(
        [sys.executable, "-c", "import sys; print('a'); sys.exit('b')"], lines.append
    )
    assert (code, sorted(lines)) == (1, ["a", "b"])


def test_a_build_that_cannot_be_done_is_told_in_its_last_line() -> None:
    """What the build said last becomes the reason; a good build has none."""
    failing = FakeDesk(exit_codes=[4], lines=["first", "server.build: no C compiler was found"])
    assert build_native(failing) == "server.build: no C compiler was found"
    assert build_native(FakeDesk()) == ""


def test_only_what_is_missing_is_installed() -> None:
    """A need that is met costs nothing; one that is not is named with its purpose."""
    desk = FakeDesk()
    installer, _ = make_installer(desk, may_install=False)
    there = Need("a shell", "dash", "to speak", lambda: True)
    absent = Need("an emulator", "qemu-user", "to try the other architecture", lambda: False)
    install_missing([there], installer)
    with pytest.raises(MachineError, match=r"needed to try the other .* install qemu-user$"):
        install_missing([there, absent], installer)


def test_what_tests_ask_a_machine_for_is_installed_by_their_set_up() -> None:
    """A test that names a Debian package it lacks finds it there after `./invoke test`."""
    asked = {
        package
        for path in (ROOT / "tests").rglob("*.py")
        for package in re.findall(r"need\(.*apt-get install ([\w.+-]+)", path.read_text())
    }
    set_up = {need.package for need in (*RUN_NEEDS, *BUILD_NEEDS, *TEST_NEEDS)}
    assert "qemu-user" in asked
    assert asked <= set_up
