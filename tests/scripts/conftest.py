"""The versions of bpftrace that scripts must run on, and something to trace."""

import pytest

from tests.conftest import need
from tests.scripts.player import Player, find_compiler
from tests.userland import SUITES, Userland, require_userland


@pytest.fixture(params=list(SUITES), scope="session")
def userland(request: pytest.FixtureRequest) -> Userland:
    """Each release's bpftrace."""
    return require_userland(request.param)


@pytest.fixture(scope="session")
def player(tmp_path_factory: pytest.TempPathFactory) -> Player:
    """A program whose probes fire on command."""
    need(find_compiler() is not None, "a C compiler")
    return Player.build(tmp_path_factory.mktemp("player"))
