"""
server.window: a budget of windows and who gets how much of it.
"""

import sys

import pytest

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
        budget.join()
    assert expected == budget.shared.cap_bytes


def test_what_others_give_back_is_shared_again() -> None:
    """A connection that ends leaves its part to the others; the lowest part is remembered."""
    budget = WindowBudget(cap_bytes=2_500, total_bytes=20_000, least_bytes=100)
    for _ in range(10):
        budget.join()
    for _ in range(9):
        budget.leave()
    assert (2_500, 2_000) == (budget.shared.cap_bytes, budget.lowest_cap_bytes)
    budget.reset()
    assert 2_500 == budget.lowest_cap_bytes


@pytest.mark.parametrize("total_bytes", [0, 20_000])
def test_without_a_cap_only_the_budget_counts(total_bytes: int) -> None:
    """0 stands for no cap, and for no budget."""
    budget = WindowBudget(cap_bytes=0, total_bytes=total_bytes, least_bytes=100)
    assert 0 == budget.lowest_cap_bytes
    budget.join()
    assert (total_bytes or sys.maxsize) == budget.shared.cap_bytes


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
