"""The shipped scripts on every bpftrace version, around events that are known beforehand."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from quiclab.histogram import Histogram
from quiclab.trace.events import Trace
from quiclab.trace.ndjson import parse_trace
from quiclab.trace.script import load_script
from tests.scripts.player import (
    Event,
    Player,
    buffered,
    read_message,
    receive_call,
    received_message,
    send_call,
    sent_message,
    told_message,
    written_message,
)
from tests.scripts.tracing import TracingError, traced
from tests.userland import Userland, render_moved

pytestmark = [pytest.mark.real, pytest.mark.slow]

RUN_LIMIT_S = 30


def trace_events(
    userland: Userland, player: Player, folder: Path, *, script: str, events: Iterable[Event]
) -> Trace:
    """
    Trace a script while events are played; what it recorded, with nothing odd about it.
    """
    output = folder / "trace.jsonl"
    loaded = load_script(script)
    with traced(userland, loaded.path, player.path, output=output):
        player.play(events)
    trace = parse_trace(output.read_bytes())
    assert loaded.expected_probe_count == trace.announced_probe_count
    assert (f"{script}: tracing the probes in {player.path}\n",) == trace.printed
    assert () == (*trace.unparsed, *trace.unknown, *trace.helper_errors)
    return trace


def filled(trace: Trace, name: str) -> dict[tuple[int | None, int | None], int]:
    """The buckets of a map that hold something."""
    histogram = trace.histogram(name)
    assert isinstance(histogram, Histogram)
    return {(bucket.low, bucket.high): bucket.count for bucket in histogram.buckets if bucket.count}


def test_sid_still_has_the_pinned_bpftrace(userland: Userland) -> None:
    """A release whose bpftrace has moved on is named, so that the pin can follow."""
    moved = render_moved(userland)
    if moved is not None:
        pytest.skip(moved)


def test_udp_syscall_counts_calls_and_matches_their_ends(
    userland: Userland, player: Player, tmp_path: Path
) -> None:
    """Sizes land in their buckets, every pair is timed, a lone end is told apart."""
    events = [
        *send_call(asked=1, sent=1),
        *send_call(asked=40, sent=40) * 3,
        *send_call(asked=128, sent=0, error=11),
        *receive_call(asked=128, received=5),
        *receive_call(asked=128, received=0, error=11) * 2,
        *send_call(asked=9, sent=9, fd=6)[1:],
        *receive_call(asked=9, received=9, fd=6)[1:],
        *send_call(asked=2, sent=2, fd=7)[:1],
    ]
    trace = trace_events(userland, player, tmp_path, script="udp-syscall", events=events)
    assert {(1, 1): 1, (2, 3): 1, (32, 63): 3, (128, 255): 1} == filled(trace, "@tx_arg_counts")
    assert {(0, 0): 1, (1, 1): 1, (8, 15): 1, (32, 63): 3} == filled(trace, "@tx_ret_counts")
    assert {(128, 255): 3} == filled(trace, "@rx_arg_counts")
    assert {(0, 0): 2, (4, 7): 1, (8, 15): 1} == filled(trace, "@rx_ret_counts")
    assert (5, 3) == (trace.event_count("@tx_latencies"), trace.event_count("@rx_latencies"))
    assert (1, 1) == (trace.event_count("@tx_unmatched"), trace.event_count("@rx_unmatched"))
    assert not any(name in trace.maps for name in ("@tx_start", "@rx_start"))


def test_io_latencies_matches_messages_by_channel_and_slot(
    userland: Userland, player: Player, tmp_path: Path
) -> None:
    """
    A message is timed from its first datagram, per channel and slot, and never twice.

    No time is zero, and none is "since boot", which a lone end would give.
    """
    events = [
        *written_message(0, sizes=[1200, 1200, 700]),
        *written_message(1, sizes=[1200]),
        *written_message(0, sizes=[1200], channel=9),
        sent_message(0),
        sent_message(0),
        sent_message(0, channel=9),
        received_message(3),
        read_message(3, count=1, size=40),
        read_message(3, count=1, size=40),
        read_message(3, count=1, size=40, channel=9),
    ]
    trace = trace_events(userland, player, tmp_path, script="io-latencies", events=events)
    assert 3 == trace.event_count("@tx_starts")
    assert 1 == trace.event_count("@tx_unmatched")
    latencies = trace.histogram("@tx_latencies")
    assert latencies is not None
    assert 2 == latencies.total_count == latencies.count_from(64)
    assert 0 == latencies.count_from(2**31)
    assert 1 == trace.event_count("@rx_starts")
    assert 1 == trace.event_count("@rx_latencies")
    assert 2 == trace.event_count("@rx_unmatched")


def test_generic_offload_counts_segments_and_sizes(
    userland: Userland, player: Player, tmp_path: Path
) -> None:
    """Segments and bytes of messages land in their buckets, unbundled ones at 0."""
    single: list[Event] = [(written_message(0, sizes=[900])[-1][0], (1, 0, 0, 900))]
    events = [
        *written_message(0, sizes=[8972] * 7),
        *written_message(1, sizes=[1200] * 10),
        *single,
        read_message(0, count=1, size=45),
        read_message(1, count=12, size=1200),
    ]
    trace = trace_events(userland, player, tmp_path, script="generic-offload", events=events)
    assert {(0, 0): 1, (4, 7): 1, (8, 15): 1} == filled(trace, "@gso_count")
    assert {(512, 1023): 1, (1024, 2047): 1, (8192, 16383): 1} == filled(trace, "@gso_size")
    assert {(1, 1): 1, (8, 15): 1} == filled(trace, "@gro_count")
    assert {(32, 63): 1, (1024, 2047): 1} == filled(trace, "@gro_size")


def test_recv_buffers_counts_bytes(userland: Userland, player: Player, tmp_path: Path) -> None:
    """Bytes allocated, written and taken land in their buckets."""
    events = [
        *buffered(capacity=4096, written=1100, popped=0),
        *buffered(capacity=65536, written=1, popped=3_000_000_000),
    ]
    trace = trace_events(userland, player, tmp_path, script="recv-buffers", events=events)
    assert {(4096, 8191): 1, (65536, 131071): 1} == filled(trace, "@allocs")
    assert {(1, 1): 1, (1024, 2047): 1} == filled(trace, "@writes")
    pops = trace.histogram("@pops")
    assert pops is not None
    assert (2, 1) == (pops.total_count, pops.count_from(2**31))


def test_message_wait_takes_the_servers_own_time(
    userland: Userland, player: Player, tmp_path: Path
) -> None:
    """Waits land in their buckets; a message that nobody saw begin is told apart."""
    waits_ns = (1, 40_000, 60_000, 3_000_000_000, 0)
    events = [told_message(message, wait_ns=wait_ns) for message, wait_ns in enumerate(waits_ns)]
    trace = trace_events(userland, player, tmp_path, script="message-wait", events=events)
    waits = trace.histogram("@wait_ns")
    assert waits is not None
    assert (4, 1) == (waits.total_count, waits.count_from(2**31))
    found = filled(trace, "@wait_ns")
    assert (1, 2) == (found[1, 1], found[32768, 65535])
    assert 1 == trace.event_count("@unmatched")


def test_two_processes_never_share_a_start(
    userland: Userland, player: Player, tmp_path: Path
) -> None:
    """A start in one process is not matched by an end in another that uses the same numbers."""
    output = tmp_path / "trace.jsonl"
    with traced(userland, load_script("io-latencies").path, player.path, output=output):
        player.play(written_message(0, sizes=[1200]))
        player.play([sent_message(0)])
    trace = parse_trace(output.read_bytes())
    assert (1, 1) == (trace.event_count("@tx_starts"), trace.event_count("@tx_unmatched"))
    assert 0 == trace.event_count("@tx_latencies")


def test_without_the_file_with_the_probes_bpftrace_says_so(
    userland: Userland, tmp_path: Path
) -> None:
    """A file that is not there ends the tracer with its name, before anything is traced."""
    nowhere = tmp_path / "nowhere"
    with (
        pytest.raises(TracingError, match=r"nowhere' does not exist"),
        traced(userland, load_script("udp-syscall").path, nowhere, output=tmp_path / "trace.jsonl"),
    ):
        pass


def test_no_mount_is_left_behind(userland: Userland) -> None:
    """A command in a userland leaves this machine's mounts as they were."""
    mounts = Path("/proc/self/mounts")
    before = mounts.read_text()
    result = userland.run(["ls", "/sys/kernel/tracing/trace"], timeout_s=RUN_LIMIT_S)
    assert (0, before) == (result.returncode, mounts.read_text())
