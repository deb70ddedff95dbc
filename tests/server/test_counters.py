"""
server.counters: what adds up to what.
"""

from server.counters import ConnectionCounters, RxCounters, TxCounters, add_up, merge_reports


def test_messages_per_call_are_kept_by_powers_of_two() -> None:
    """The histogram's bounds are inclusive and empty buckets are left out."""
    counters = TxCounters()
    for messages in (0, 1, 1, 2, 3, 16, 31, 32, 1024):
        counters.messages_per_call[messages.bit_length()] += 1
    assert counters.report()["messages_per_call"] == [
        {"min": 0, "max": 0, "count": 1},
        {"min": 1, "max": 1, "count": 2},
        {"min": 2, "max": 3, "count": 2},
        {"min": 16, "max": 31, "count": 2},
        {"min": 32, "max": 63, "count": 1},
        {"min": 1024, "max": 2047, "count": 1},
    ]


def test_counts_of_workers_add_up_by_name_and_bucket() -> None:
    """Numbers, errors by name and histograms are summed, each to its own."""
    total = add_up(
        [
            {"n": 1, "errors": {"EIO": 1}, "h": [{"min": 1, "max": 1, "count": 2}]},
            {"n": 2, "errors": {"EAGAIN": 5}, "h": [{"min": 2, "max": 3, "count": 1}]},
            {"n": 3, "errors": {"EIO": 4}, "h": [{"min": 1, "max": 1, "count": 7}]},
        ]
    )
    assert total == {
        "n": 6,
        "errors": {"EIO": 5, "EAGAIN": 5},
        "h": [{"min": 1, "max": 1, "count": 9}, {"min": 2, "max": 3, "count": 1}],
    }


def test_a_report_without_workers_still_has_every_name() -> None:
    """Whoever reads totals finds zeros, not gaps, when no worker could report."""
    report = merge_reports([])
    assert report["total"]["tx"] == TxCounters().report()
    assert report["total"]["rx"] == RxCounters().report()
    assert report["total"]["connections"]["closed_count"] == 0


def test_close_reasons_are_counted_and_bounded() -> None:
    """Equal reasons are counted together; beyond a bound, peers' inventions are only counted."""
    counters = ConnectionCounters()
    for number in range(ConnectionCounters.MOST_REASONS + 10):
        counters.on_opened()
        counters.on_closed(error_code=number, frame_type=None, reason="x" * 999, closed_by="peer")
    counters.on_opened()
    counters.on_closed(error_code=0, frame_type=None, reason="x" * 999, closed_by="peer")
    reasons = counters.report_reasons()
    assert len(reasons) == ConnectionCounters.MOST_REASONS + 1
    assert reasons[0] == {
        "error_code": 0,
        "frame_type": None,
        "reason": "x" * 200,
        "by": "peer",
        "count": 2,
    }
    assert reasons[-1] == {"reason": "(others)", "count": 10}


def test_a_reset_keeps_connections_that_are_open() -> None:
    """Zeroed counters still know what is open, so that a window can begin at any time."""
    counters = ConnectionCounters()
    counters.on_opened()
    counters.reset()
    assert counters.report() == {
        "opened_count": 0,
        "open_count": 1,
        "closed_count": 0,
        "window_blocked_count": 0,
    }


def test_of_peaks_the_highest_counts() -> None:
    """What was the most in one worker is not added to what was the most in another."""
    total = add_up([{"most_filled_count": 7, "latest_timer_ns": 1}, {"most_filled_count": 3}])
    assert total == {"most_filled_count": 7, "latest_timer_ns": 1}
