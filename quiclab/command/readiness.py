"""
Where runs take place, chosen and made ready.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from quiclab.command.terminal import Terminal
from quiclab.errors import MachineError
from quiclab.machine.setup import (
    Desk,
    Installer,
    InstallRules,
    Need,
    RealDesk,
    install_missing,
    prepare_build,
    prepare_local,
)
from quiclab.runner.base import Runner

if TYPE_CHECKING:
    from quiclab.containers.engine import Engine
    from quiclab.containers.image import Image, Recipe

_SET_UP: Final = "set-up"


class Readiness:
    """
    Makes a place ready, within what the user allowed, and says so.

    Args:
        terminal: Where steps are heard of.
        may_install: False after `--no-install`.
        is_agreed: True after `--yes`.
        desk: Who is at the keyboard.
    """

    def __init__(
        self,
        terminal: Terminal,
        *,
        may_install: bool,
        is_agreed: bool,
        desk: Desk | None = None,
    ) -> None:
        self._terminal = terminal
        self.desk = desk or RealDesk()
        rules = InstallRules(may_install=may_install, is_agreed=is_agreed)
        self.installer = Installer(
            rules,
            self.desk,
            announce=lambda text: terminal.announce(_SET_UP, text),
            on_progress=self.step,
        )

    def step(self, text: str, fraction: float) -> None:
        """Say how far the set-up is."""
        self._terminal.step(_SET_UP, text, fraction)

    def prepare_local(self, tracer: str = "bpftrace") -> Runner:
        """
        Packages and native parts for runs on this machine.

        Without bpftrace neither root nor packages are needed; with "auto" the run itself
        finds out what there is, and says it.

        Raises:
            MachineError: Not root, or something is missing and may not be installed.
        """
        from quiclab.runner.process import ProcessRunner  # noqa: PLC0415

        is_optional = tracer != "bpftrace"
        if not self.desk.is_root and not is_optional:
            raise MachineError(
                "tracing needs root: sudo ./invoke trace ..., or use --runner docker"
            )
        if tracer in {"in-process", "none"} or not self.desk.is_root:
            self.prepare_build()
            return ProcessRunner()
        try:
            prepare_local(self.installer, self.desk, on_progress=self.step)
        except MachineError as error:
            if not is_optional:
                raise
            self._terminal.note("note", f"bpftrace is not made ready: {error}")
            self.prepare_build()
        self._terminal.end_step()
        return ProcessRunner()

    def prepare_build(self) -> None:
        """
        The server's native parts, and what building them takes.

        Raises:
            MachineError: Something is missing and may not be installed.
        """
        prepare_build(self.installer, self.desk, on_progress=self.step)
        self._terminal.end_step()

    def prepare_programs(self, needs: Sequence[Need]) -> None:
        """
        Programs that something besides a run starts.

        Raises:
            MachineError: One is missing and may not or cannot be installed.
        """
        install_missing(needs, self.installer)
        self._terminal.end_step()

    def prepare_image(self, engine: "Engine", recipe: "Recipe | None" = None) -> "Image":
        """
        The image for this tree, built when it is missing.

        Raises:
            MachineError: It cannot be built here.
        """
        from quiclab.containers.image import ensure_image  # noqa: PLC0415

        image = ensure_image(
            engine,
            recipe,
            on_progress=self.step,
            privilege=self.installer.privilege,
            install=lambda packages: self.installer.install(
                packages, purpose="to make a base image"
            ),
        )
        self._terminal.end_step()
        return image


@contextmanager
def chosen_engine(
    asked: str, *, on_local: Callable[[str], None], environment: Mapping[str, str] = os.environ
) -> Iterator["Engine | None"]:
    """
    The Docker engine to run in, or None for this machine's own processes.

    `auto` takes an engine that answers, and this machine where none does and
    nobody named one.

    Args:
        asked: "auto", "docker" or "local"; "" is "auto".
        on_local: Hears why no engine is taken, when that was not asked for.
        environment: Names the engine.

    Raises:
        MachineError: An engine was asked for or named, and it does not answer.
    """
    if asked == "local":
        yield None
        return
    # Imported late: the SDK takes 0.2 s that a local run need not wait.
    from quiclab.containers.engine import connect_engine, find_engine_address  # noqa: PLC0415

    address = find_engine_address(environment)
    try:
        engine = connect_engine(address)
    except MachineError as error:
        if address.is_chosen or asked == "docker":
            raise
        on_local(str(error).partition("; ")[0])
        engine = None
    if engine is None:
        yield None
        return
    try:
        yield engine
    finally:
        engine.close()
