"""
server.udp.batch: datagrams into trains and back.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.udp.batch import (
    LARGEST_MESSAGE_BYTES_IPV4,
    Train,
    TrainError,
    TrainLimits,
    join_trains,
    split_train,
)

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=40)


def _numbered(sizes: Any) -> Any:
    return [bytes([index % 256]) * size for index, size in enumerate(sizes)]


@given(SIZES, st.integers(1, 12), st.integers(40, 300))
def test_split_undoes_join_for_any_datagrams(
    sizes: Any, most_datagrams: Any, most_bytes: Any
) -> None:
    """Cutting each train at the size of its first datagram gives back what was joined."""
    datagrams = _numbered(sizes)
    limits = TrainLimits(datagram_count=most_datagrams, message_bytes=most_bytes)
    trains = join_trains(datagrams, limits)
    split = [
        datagram
        for train in trains
        for datagram in split_train(b"".join(train), segment_bytes=len(train[0]))
    ]
    assert split == datagrams


@given(SIZES, st.integers(1, 12), st.integers(40, 300))
def test_trains_are_what_gso_can_cut(sizes: Any, most_datagrams: Any, most_bytes: Any) -> None:
    """All datagrams of a train have one size, save a shorter last; no limit is passed."""
    limits = TrainLimits(datagram_count=most_datagrams, message_bytes=most_bytes)
    for train in join_trains(_numbered(sizes), limits):
        assert 1 <= len(train) <= most_datagrams
        assert sum(map(len, train)) <= most_bytes
        assert {len(datagram) for datagram in train[:-1]} <= {len(train[0])}
        assert len(train[-1]) <= len(train[0])


@given(SIZES, st.integers(0, 40))
def test_train_fed_in_pieces_equals_train_fed_whole(sizes: Any, cut: Any) -> None:
    """It makes no difference in how many calls the datagrams of a message come."""
    datagrams = _numbered(sizes)
    limits = TrainLimits(datagram_count=8, message_bytes=200)
    whole = Train(b"", limits)
    whole.add(datagrams, 0)
    pieces = Train(b"", limits)
    first = datagrams[: max(1, cut)]
    taken = pieces.add(first, 0)
    if not pieces.is_closed and taken == len(first) < len(datagrams):
        pieces.add(datagrams, taken)
    assert pieces.datagrams == whole.datagrams


@pytest.mark.parametrize(
    ("segments", "datagram_bytes", "expected"),
    [
        pytest.param(10, 8972, 7, id="bytes-limit-the-default"),
        pytest.param(10, 1200, 10, id="count-limits-small-datagrams"),
        pytest.param(64, 1200, 54, id="64-of-1200-are-too-many-bytes"),
        pytest.param(64, 1023, 64, id="64-fit"),
        pytest.param(64, 1024, 63, id="64-of-1024-pass-65507"),
        pytest.param(1, 1200, 1, id="gso-off"),
        pytest.param(10, 70_000, 1, id="too-large-goes-alone"),
    ],
)
def test_message_capacity_keeps_to_count_and_bytes(
    segments: Any, datagram_bytes: Any, expected: Any
) -> None:
    """A message carries as many full datagrams as both limits allow, and at least one."""
    limits = TrainLimits(datagram_count=segments, message_bytes=LARGEST_MESSAGE_BYTES_IPV4)
    assert expected == limits.capacity(datagram_bytes)


def test_train_without_room_for_a_full_datagram_is_closed_at_once() -> None:
    """A message that is full by its bytes does not wait for a datagram that it must refuse."""
    train = Train(b"", TrainLimits(datagram_count=10, message_bytes=LARGEST_MESSAGE_BYTES_IPV4))
    assert 7 == train.add([bytes(8972)] * 7, 0)
    assert train.is_closed


@pytest.mark.parametrize(("held", "expected"), [(1, 6), (3, 4), (6, 1)])
def test_room_is_what_completes_a_train(held: int, expected: int) -> None:
    """As many full datagrams as room says close the train exactly."""
    train = Train(b"", TrainLimits(datagram_count=10, message_bytes=LARGEST_MESSAGE_BYTES_IPV4))
    train.add([bytes(8972)] * held, 0)
    assert expected == train.room(8972)
    train.add([bytes(8972)] * expected, 0)
    assert (7, True) == (len(train.datagrams), train.is_closed)


def test_split_train_keeps_a_short_last_datagram() -> None:
    """A train whose last datagram is shorter is cut so that it stays short."""
    assert split_train(b"aabbc", segment_bytes=2) == [b"aa", b"bb", b"c"]


def test_split_train_keeps_a_buffer_that_was_not_joined() -> None:
    """Without a reported size a buffer is one datagram, even an empty one."""
    assert split_train(b"aabb", segment_bytes=0) == [b"aabb"]
    assert split_train(b"", segment_bytes=3) == [b""]


def test_split_train_refuses_a_negative_size() -> None:
    """A size that no kernel reports is an error that says so."""
    with pytest.raises(TrainError, match="segment size -1 is negative"):
        split_train(b"a", segment_bytes=-1)
