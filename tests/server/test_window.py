"""
server.window: a budget of windows and who gets how much of it.
"""

import sys
from dataclasses import dataclass

import pytest

from server.congestion import window_bytes
from server.options import EndpointOptions
from server.window import WindowBudget
from tests.server.world import World


@pytest.mark.parametrize(
    ("open_count", "expected"),
    [
        pytest.param(0, 2_500, id="nobody"),
        pytest.param(1, 2_500, id="one-has-its-cap"),
        pytest.param(8, 2_500, id="as-many-as-the-budget-holds"),
        pytest.param(9, 2_222, id="one-more-and-all-share"),
        pytest.param(64, 312, id="many"),
        pytest.param(500, 100, id="never-less-than-the-least"),
    ],
)
def test_each_connection_has_its_cap_or_an_equal_part(open_count: int, expected: int) -> None:
    """However many are open, none has more than its cap, nor less than the least."""
    budget = WindowBudget(cap_bytes=2_500, total_bytes=20_000, least_bytes=100)
    for _ in range(open_count):
        budget.join(None)
    assert expected == budget.shared.cap_bytes


def test_what_others_give_back_is_shared_again() -> None:
    """A connection that ends leaves its part to the others; the lowest part is remembered."""
    budget = WindowBudget(cap_bytes=2_500, total_bytes=20_000, least_bytes=100)
    for _ in range(10):
        budget.join(None)
    for _ in range(9):
        budget.leave(None)
    assert (2_500, 2_000) == (budget.shared.cap_bytes, budget.lowest_cap_bytes)
    budget.reset()
    assert 2_500 == budget.lowest_cap_bytes


@pytest.mark.parametrize("total_bytes", [0, 20_000])
def test_without_a_cap_there_is_no_budget(total_bytes: int) -> None:
    """Windows that nobody caps have no part of a budget, and no cap is reported for them."""
    budget = WindowBudget(cap_bytes=0, total_bytes=total_bytes, least_bytes=100)
    for _ in range(20):
        budget.join(None)
    assert (sys.maxsize, 0) == (budget.shared.cap_bytes, budget.lowest_cap_bytes)


def test_a_cap_without_a_budget_is_everyones() -> None:
    """Budget 0: however many are open, each has the whole cap."""
    budget = WindowBudget(cap_bytes=2_500, total_bytes=0, least_bytes=100)
    for _ in range(500):
        budget.join(None)
    assert (2_500, 2_500) == (budget.shared.cap_bytes, budget.lowest_cap_bytes)


@dataclass(eq=False)
class Window:
    """A congestion controller, as far as a budget knows one."""

    congestion_window: int


def test_an_idle_window_falls_with_the_cap() -> None:
    """Who has nothing to acknowledge keeps to a cap that fell; it grows again by itself alone."""
    budget = WindowBudget(cap_bytes=2_500, total_bytes=20_000, least_bytes=100)
    grown, small, gone = Window(2_500), Window(300), Window(2_500)
    for window in (grown, small, gone):
        budget.join(window)
    budget.leave(gone)
    for _ in range(8):
        budget.join(None)
    new = Window(5_000)
    budget.join(new)
    assert [1_818, 300, 1_818, 2_500] == [
        one.congestion_window for one in (grown, small, new, gone)
    ]
    budget.set_cap(200)
    assert [200, 200, 200] == [one.congestion_window for one in (grown, small, new)]
    budget.set_cap(0)
    assert [200, 200, 200] == [one.congestion_window for one in (grown, small, new)]


def test_windows_of_many_connections_stay_within_the_budget() -> None:
    """What all connections have in flight together is bounded, and all bytes come."""
    options = EndpointOptions(window_cap_bytes=100_000, window_budget_bytes=200_000)
    with World(options=options) as world:
        for _ in range(6):
            world.add_client(asked_bytes=400_000)
        largest = 0
        while not all(one.is_over for one in world.applications):
            world.loop.turn(most_wait_s=0.05)
            sessions = world.server._by_connection.values()
            if len(sessions) == 6:
                in_flight = [session.connection._loss.bytes_in_flight for session in sessions]
                largest = max(largest, sum(in_flight))
        # A probe or an ACK may pass a window by a datagram (RFC 9002, Section 7).
        assert 50_000 < largest <= 200_000 + 6 * 2 * 1200
        assert all(len(one.received) == 400_000 for one in world.applications)
        world.run()
        assert 100_000 == world.server.budget.shared.cap_bytes
        assert 33_333 == world.server.budget.lowest_cap_bytes


def test_a_connection_without_acknowledgements_makes_room_for_others() -> None:
    """One that had its whole cap is brought down when others come, whatever its peer does."""
    options = EndpointOptions(window_cap_bytes=100_000, window_budget_bytes=200_000)
    with World(options=options) as world:
        world.add_client(asked_bytes=2**40)
        sessions = world.server._by_connection
        while not sessions or window_bytes(next(iter(sessions))) < 100_000:
            world.loop.turn(most_wait_s=0.05)
        world.clients[0].receive = lambda now_s: None  # type: ignore[method-assign]
        for _ in range(5):
            world.add_client(asked_bytes=1000)
        while sum(session.has_joined for session in sessions.values()) < 6:
            world.loop.turn(most_wait_s=0.05)
        assert 33_333 == window_bytes(next(iter(sessions)))
