"""
server.udp.batch: datagrams into trains and back.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.udp import _native
from server.udp.batch import (
    LARGEST_MESSAGE_BYTES_IPV4,
    TrainError,
    TrainLimits,
    extend_train,
    join_trains,
    split_train,
    train_bytes,
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
        assert sum(map(len, train)) == train_bytes(train) <= most_bytes
        assert {len(datagram) for datagram in train[:-1]} <= {len(train[0])}
        assert len(train[-1]) <= len(train[0])


@given(SIZES, st.integers(0, 40))
def test_train_fed_in_pieces_equals_train_fed_whole(sizes: Any, cut: Any) -> None:
    """It makes no difference in how many calls the datagrams of a message come."""
    datagrams = _numbered(sizes)
    limits = TrainLimits(datagram_count=8, message_bytes=200)
    whole: list[bytes] = []
    extend_train(whole, datagrams, 0, limits)
    pieces: list[bytes] = []
    first = datagrams[: max(1, cut)]
    is_closed = extend_train(pieces, first, 0, limits)
    if not is_closed and len(pieces) < len(datagrams):
        extend_train(pieces, datagrams, len(pieces), limits)
    assert pieces == whole


@given(SIZES, SIZES, st.integers(1, 12), st.integers(40, 300))
def test_native_module_joins_as_this_module_does(
    held: Any, sizes: Any, most_datagrams: Any, most_bytes: Any
) -> None:
    """From any train that is open, C takes the same datagrams and tells the same end."""
    limits = TrainLimits(datagram_count=most_datagrams, message_bytes=most_bytes)
    train: list[bytes] = []
    if extend_train(train, _numbered(held), 0, limits):
        train = []
    datagrams = _numbered(sizes)
    for start in range(len(datagrams)):
        ours, native = train.copy(), train.copy()
        is_closed = extend_train(ours, datagrams, start, limits)
        assert is_closed == _native.extend_train(
            native, datagrams, start, most_datagrams, most_bytes
        )
        assert ours == native


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
    limits = TrainLimits(datagram_count=10, message_bytes=LARGEST_MESSAGE_BYTES_IPV4)
    train: list[bytes] = []
    assert extend_train(train, [bytes(8972)] * 7, 0, limits)
    assert 7 == len(train)


def test_train_longer_than_a_lowered_limit_takes_no_more() -> None:
    """A message that was begun before GSO was given up is closed as it stands."""
    limits = TrainLimits(datagram_count=1, message_bytes=LARGEST_MESSAGE_BYTES_IPV4)
    train, same = [bytes(1200)] * 3, [bytes(1200)] * 3
    assert extend_train(train, [bytes(1200)], 0, limits)
    assert _native.extend_train(same, [bytes(1200)], 0, 1, LARGEST_MESSAGE_BYTES_IPV4)
    assert 3 == len(train) == len(same)


@pytest.mark.parametrize(("held", "expected"), [(1, 6), (3, 4), (6, 1)])
def test_room_is_what_completes_a_train(held: int, expected: int) -> None:
    """As many full datagrams as room says close the train exactly."""
    limits = TrainLimits(datagram_count=10, message_bytes=LARGEST_MESSAGE_BYTES_IPV4)
    train = [bytes(8972)] * held
    assert expected == limits.room(train, 8972)
    assert extend_train(train, [bytes(8972)] * expected, 0, limits)
    assert 7 == len(train)


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
