"""
One small real run of each kind of side: every byte arrives, and what it cost is known.
"""

import pytest

from benchmarks import children
from benchmarks.sides import Direction, Side, Work, run_side, running_server, server_words
from quiclab.errors import RunError

SIDES = [
    Side(kind="ours", words=("--probes", "off")),
    Side(kind="stock"),
]


@pytest.mark.slow
@pytest.mark.parametrize("datagram_bytes", [1200, 8900])
@pytest.mark.parametrize("direction", ["download", "upload"])
@pytest.mark.parametrize("side", SIDES, ids=lambda side: side.kind)
def test_server_moves_all_and_its_cost_is_known(
    side: Side, direction: Direction, datagram_bytes: int
) -> None:
    """Both servers count the same bytes as the load, both ways, on several streams."""
    work = Work(
        direction=direction,
        total_bytes=1_000_003,
        datagram_bytes=datagram_bytes,
        connection_count=3,
        stream_count=2,
    )
    outcome = run_side(side, work)
    assert outcome.total_bytes == work.total_bytes
    assert outcome.server_ns > 0
    assert outcome.load_ns > 0
    assert outcome.load_received_datagrams > 0
    assert outcome.report["connections"]["open_count"] == work.connection_count


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["download", "upload"])
def test_floor_moves_all_and_its_cost_is_known(direction: Direction) -> None:
    """The same bytes in memory."""
    work = Work(direction=direction, total_bytes=1_000_003, datagram_bytes=1200, stream_count=2)
    outcome = run_side(Side(kind="floor"), work, answered_every=20.0)
    assert outcome.total_bytes == work.total_bytes
    assert outcome.server_ns > 0


@pytest.mark.slow
def test_floors_receiver_answers_as_often_as_told() -> None:
    """Acknowledgements are part of the floor, so their number is given."""
    work = Work(direction="download", total_bytes=4_000_000, datagram_bytes=1200)
    often, rarely = (
        run_side(Side(kind="floor"), work, answered_every=every).answered_every
        for every in (5.0, 40.0)
    )
    assert often == pytest.approx(5.0, rel=0.2)
    assert rarely == pytest.approx(40.0, rel=0.2)


@pytest.mark.slow
def test_client_that_counts_datagrams_answers_after_so_many() -> None:
    """With `--answer-every` stock gets no more acknowledgements than ours."""
    work = Work(direction="download", total_bytes=4_000_000, datagram_bytes=1200, answer_every=10)
    assert run_side(Side(kind="stock"), work).answered_every > 6


@pytest.mark.slow
def test_several_workers_are_counted_one_by_one() -> None:
    """What each of two processes did is known."""
    work = Work(
        direction="download", total_bytes=1_000_000, datagram_bytes=1200, connection_count=8
    )
    side = Side(kind="ours", words=("--probes", "off", "--workers", "2"), is_pinned=False)
    outcome = run_side(side, work)
    assert len(outcome.worker_ns) == 2
    assert sum(outcome.worker_ns) == outcome.server_ns


@pytest.mark.slow
def test_server_that_does_not_start_says_why() -> None:
    """Its last words are in the error."""
    work = Work(direction="download", total_bytes=1_000, datagram_bytes=1200)
    with pytest.raises(RunError, match="--max-segments"):
        run_side(Side(kind="ours", words=("--max-segments", "0")), work)


@pytest.mark.parametrize(
    ("side", "expected"),
    [
        (SIDES[0], ["-m", "server", "--datagram", "1200", "--verify-content", "--probes", "off"]),
        (SIDES[1], ["-m", "benchmarks.stock", "--datagram", "1200"]),
    ],
    ids=["ours", "stock"],
)
def test_both_servers_check_what_is_uploaded(side: Side, expected: list[str]) -> None:
    """Ours is told to; stock always does."""
    work = Work(direction="upload", total_bytes=1, datagram_bytes=1200)
    assert server_words(side, work) == expected


@pytest.mark.slow
def test_worker_that_vanishes_is_one_line() -> None:
    """Its figures are gone with it."""
    work = Work(direction="download", total_bytes=1_000, datagram_bytes=1200)
    with (
        children.own_folder("bench") as folder,
        running_server(SIDES[0], work, folder) as server,
    ):
        server.process.kill()
        server.process.wait()
        with pytest.raises(RunError, match="gone"):
            server.spent_ns()
