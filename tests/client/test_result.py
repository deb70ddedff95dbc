"""
The result: what limits is said, and a load without streams is no division by zero.
"""

import json

import pytest

from client.result import LoadCost, describe_bottleneck, find_load_span, render_result


def cost(**changes: float) -> LoadCost:
    """
    A load of two seconds that took half a core.
    """
    values = {"load_s": 2.0, "wall_s": 2.0, "cpu_user_s": 0.9, "cpu_system_s": 0.1}
    drop_count = int(changes.pop("drops", 0))
    times = values | changes
    return LoadCost(dropped_datagram_count=drop_count, recovery={}, loop={}, **times)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({}, "", id="half-a-core"),
        pytest.param({"cpu_user_s": 1.7}, "the client used 0.90 of one core", id="busy"),
        pytest.param({"drops": 7}, "dropped 7 datagrams", id="drops"),
        pytest.param({"wall_s": 0.0, "load_s": 0.0}, "", id="nothing-happened"),
    ],
)
def test_describe_bottleneck_speaks_when_the_client_limits(
    changes: dict[str, float], words: str
) -> None:
    """
    A busy core or dropped datagrams make the client suspect; half a core does not.
    """
    note = describe_bottleneck(cost(**changes))

    assert bool(note) == bool(words)
    assert words in note


def test_render_result_of_a_load_that_never_began_is_valid() -> None:
    """
    No connection, no stream: still a complete JSON object that says why.
    """
    assert find_load_span([], now_s=5.0) == (5.0, 5.0)

    result = render_result(
        [], reason="no answer", cost=cost(load_s=0.0), granted={}, versions={"python": "3"}
    )

    assert json.loads(json.dumps(result)) == result
    assert (result["ok"], result["reason"]) == (False, "no answer")
    assert (result["goodput_bytes_per_s"], result["streams"]) == (0.0, [])
