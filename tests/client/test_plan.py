"""
The plan: exact totals, shared out evenly, and a time limit that grows with them.
"""

from hypothesis import given, strategies

from client.plan import StreamPlan, plan_streams, time_limit_s


@given(
    total_bytes=strategies.integers(0, 10**9),
    connection_count=strategies.integers(1, 9),
    stream_count=strategies.integers(1, 9),
)
def test_plan_streams_shares_out_the_exact_total(
    total_bytes: int, connection_count: int, stream_count: int
) -> None:
    """
    However many streams there are, their shares add up to what was asked, evenly.
    """
    plans = plan_streams(
        direction="download",
        connection_count=connection_count,
        stream_count=stream_count,
        receive_bytes=total_bytes,
        send_bytes=None,
    )

    shares = [plan.receive_bytes or 0 for streams in plans for plan in streams]
    assert [len(streams) for streams in plans] == [stream_count] * connection_count
    assert sum(shares) == total_bytes
    assert max(shares) - min(shares) <= 1
    assert all(plan.send_bytes == 0 for streams in plans for plan in streams)


def test_plan_streams_of_both_directions_alternates_kinds_on_each_connection() -> None:
    """
    "both" means so many streams of each kind, at once, none of them a mixture.
    """
    plans = plan_streams(
        direction="both",
        connection_count=2,
        stream_count=2,
        receive_bytes=10,
        send_bytes=None,
    )

    assert plans == [
        [StreamPlan(3, 0), StreamPlan(0, None), StreamPlan(3, 0), StreamPlan(0, None)],
        [StreamPlan(2, 0), StreamPlan(0, None), StreamPlan(2, 0), StreamPlan(0, None)],
    ]


def test_plan_streams_without_a_total_has_no_ends() -> None:
    """
    An upload without a number of bytes goes on until time is up.
    """
    plans = plan_streams(
        direction="upload",
        connection_count=1,
        stream_count=2,
        receive_bytes=None,
        send_bytes=None,
    )

    assert plans == [[StreamPlan(0, None), StreamPlan(0, None)]]


def test_time_limit_grows_with_the_payload() -> None:
    """
    Ten times the payload gets ten times the time, beside the same grace.
    """
    grace_s = time_limit_s([[StreamPlan(0, 0)]], duration_s=None)
    small_s = time_limit_s([[StreamPlan(10**8, 0)]], duration_s=None) - grace_s
    large_s = time_limit_s([[StreamPlan(5 * 10**8, 5 * 10**8)]], duration_s=None) - grace_s

    assert grace_s > 0
    assert large_s == 10 * small_s


def test_time_limit_of_a_load_with_a_duration_is_the_duration_and_grace() -> None:
    """
    A duration ends a load, so its bytes do not prolong it.
    """
    endless = time_limit_s([[StreamPlan(None, 0)]], duration_s=5.0)
    large = time_limit_s([[StreamPlan(10**12, 0)]], duration_s=5.0)

    assert 5.0 < endless == large
