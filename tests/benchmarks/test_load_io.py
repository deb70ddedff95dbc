"""
The load's sockets: what leaves in one message.
"""

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load import split_evenly
from benchmarks.load_io import LoadSocket, split_trains


@given(st.lists(st.sampled_from([30, 1199, 1200, 8900]).map(bytes), max_size=200))
def test_trains_hold_all_datagrams_in_order(datagrams: list[bytes]) -> None:
    """Split and joined again they are what they were, each train as the kernel takes it."""
    trains = split_trains(datagrams)
    assert [each for train, _ in trains for each in train] == datagrams
    for train, segment_bytes in trains:
        assert [len(each) for each in train[:-1]] == [segment_bytes] * (len(train) - 1)
        assert len(train[-1]) <= segment_bytes
        assert len(train) <= 64
        assert sum(map(len, train)) <= 65_507


def test_equal_datagrams_travel_together() -> None:
    """54 of 1,200 bytes fit one message; a shorter one may end it."""
    trains = split_trains([bytes(1200)] * 55 + [bytes(40)])
    assert [(len(train), size) for train, size in trains] == [(54, 1200), (2, 1200)]


@given(st.integers(1, 10**9), st.integers(1, 600))
def test_shares_are_whole_and_even(total: int, count: int) -> None:
    """Nothing is lost, and none has more than one byte above another."""
    shares = split_evenly(total, count)
    assert sum(shares) == total
    assert len(shares) == count
    assert max(shares) - min(shares) <= 1


def test_a_train_comes_back_as_one_message() -> None:
    """GSO out and GRO in, over loopback; the size of its datagrams is told."""
    receiver = LoadSocket("127.0.0.1", 9)
    port = receiver.sock.getsockname()[1]
    sender = LoadSocket("127.0.0.1", port)
    receiver.sock.connect(sender.sock.getsockname())
    datagrams = [bytes([number]) * 1200 for number in range(10)]
    try:
        sender.send(datagrams)
        assert receiver.receive() == (b"".join(datagrams), 1200)
        assert receiver.receive() is None
        assert (sender.sent_message_count, receiver.received_datagram_count) == (1, 10)
        assert receiver.drop_count == 0
    finally:
        sender.sock.close()
        receiver.sock.close()
