"""
The fake keeps the promises of every place, and its clock moves only when somebody waits.
"""

import time

import pytest

from quiclab.clock import FakeClock
from quiclab.runner.base import SERVER, Runner
from quiclab.runner.fake import FakeRunner
from quiclab.runner.faults import Faults
from tests.quiclab.runner.contract import PlaceContract, open_place, start_server


class TestFakePlace(PlaceContract):
    """The contract, on the fake."""

    @pytest.fixture
    def runner(self) -> FakeRunner:
        """Play the recordings that ship."""
        return FakeRunner()

    def find_remains(self, runner: Runner, run_id: str) -> list[str]:
        """Name places that nobody left."""
        assert isinstance(runner, FakeRunner)
        return [run_id for place in runner.places if place.is_open]


def test_clock_moves_only_by_waiting() -> None:
    """A minute of the fake clock takes no time."""
    clock = FakeClock()
    began_s = time.monotonic()
    clock.sleep(60.0)
    assert 60.0 == clock.now_s()
    assert time.monotonic() - began_s < 30.0


def test_role_that_never_ends_has_to_be_killed() -> None:
    """A role told not to listen survives INT and not KILL."""
    with open_place(FakeRunner(Faults(never_ending=[SERVER]))) as place:
        start_server(place)
        place.interrupt(SERVER)
        with pytest.raises(TimeoutError):
            place.wait(SERVER, timeout_s=60.0)
        place.kill(SERVER)
        assert 137 == place.wait(SERVER, timeout_s=1.0)
