"""
Slow and stalled are told apart by progress alone.
"""

from client.progress import StallWatch


def test_stall_watch_lets_a_load_be_slow() -> None:
    """
    A load that moves one byte just before each limit never counts as stalled.
    """
    watch = StallWatch(began_s=100.0, limit_s=10.0)

    stalled = [watch.note(count, now_s=100.0 + 9.9 * count) for count in range(50)]

    assert not any(stalled)


def test_stall_watch_sees_a_load_that_stands_still() -> None:
    """
    The same figure for the whole limit is a stall, and the deadline said when.
    """
    watch = StallWatch(began_s=100.0, limit_s=10.0)
    watch.note(7, now_s=103.0)

    assert watch.deadline_s == 113.0
    assert not watch.note(7, now_s=112.9)
    assert watch.note(7, now_s=113.0)
    assert watch.still_s(113.0) == 10.0


def test_stall_watch_begins_anew_when_the_figure_grows() -> None:
    """
    One byte after nine still seconds gives the load its whole limit again.
    """
    watch = StallWatch(began_s=0.0, limit_s=10.0)
    watch.note(0, now_s=0.0)
    watch.note(1, now_s=9.0)

    assert not watch.note(1, now_s=18.9)
