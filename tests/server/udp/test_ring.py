"""
server.udp.ring: how many slots a ring has, and who owns which.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.udp.ring import Ring, ring_entries, rx_payload_bytes, tx_payload_bytes

ASKED_BYTES = (64_000, 128_000, 131_072, 512_000, 1_000_000, 4_000_000, 8_000_000, 8 * 1024 * 1024)

# The original's own figures (s2n-quic): entries for the sizes above.
ENTRIES = {
    (9000, 10): (1, 1, 2, 8, 16, 64, 128, 128),
    (9000, 1): (8, 16, 16, 64, 128, 512, 1024, 1024),
    (1500, 10): (4, 8, 8, 64, 128, 512, 1024, 1024),
}

TABLE = [
    pytest.param(mtu, segments, asked, entries, id=f"mtu{mtu}-segments{segments}-{asked}")
    for (mtu, segments), row in ENTRIES.items()
    for asked, entries in zip(ASKED_BYTES, row, strict=True)
]


@pytest.mark.parametrize(("mtu", "segments", "asked", "expected"), TABLE)
def test_tx_ring_has_as_many_slots_as_the_originals(
    mtu: Any, segments: Any, asked: Any, expected: Any
) -> None:
    """A TX ring of each size, MTU and segment count has the original's number of slots."""
    payload_bytes = tx_payload_bytes(max_mtu_bytes=mtu, max_segments=segments)
    assert expected == ring_entries(asked, payload_bytes=payload_bytes)


def test_rx_slots_hold_a_whole_train_only_with_gro() -> None:
    """An RX slot is the largest UDP payload with GRO, and the MTU without."""
    assert rx_payload_bytes(max_mtu_bytes=9000, is_gro_on=True) == 65_535
    assert rx_payload_bytes(max_mtu_bytes=9000, is_gro_on=False) == 9000


@given(st.integers(1, 10**9), st.integers(1, 65_535))
def test_ring_entries_are_a_power_of_two_that_is_large_enough(asked: Any, payload: Any) -> None:
    """The number of slots is the least power of two that holds what was asked, or 1."""
    entries = ring_entries(asked, payload_bytes=payload)
    assert entries & (entries - 1) == 0
    assert entries >= asked // payload
    assert entries == 1 or entries // 2 < asked // payload


@given(st.integers(1, 9), st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_ring_hands_slots_out_in_order_and_never_twice(capacity: Any, steps: Any) -> None:
    """Whatever both sides do, slots are consumed in the order they were filled, each once."""
    ring = Ring(capacity)
    filled: list[int] = []
    next_in = next_out = 0
    for is_producing, asked in steps:
        if is_producing:
            count = min(asked, ring.free_count)
            filled += [(ring.producer_index + n) % capacity for n in range(count)]
            ring.produce(count)
            next_in += count
        else:
            count = min(asked, ring.filled_count)
            taken = [(ring.consumer_index + n) % capacity for n in range(count)]
            assert taken == filled[:count]
            del filled[:count]
            ring.consume(count)
            next_out += count
        assert ring.filled_count == next_in - next_out == len(filled)
        assert ring.free_count == capacity - len(filled)
        assert len(set(filled)) == len(filled)


def test_ring_refuses_to_fill_or_free_more_than_there_is() -> None:
    """A cursor never passes the other; the error says how many slots there are."""
    ring = Ring(2)
    with pytest.raises(ValueError, match="3 slots cannot be filled; 2 are free"):
        ring.produce(3)
    with pytest.raises(ValueError, match="1 slots cannot be freed; 0 are filled"):
        ring.consume(1)
