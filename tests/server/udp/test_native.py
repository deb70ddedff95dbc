"""
server.udp._native: the probe sites and the calls beside them.

A site here is a Python callback behind a C function pointer. Its first byte is no
nop, so it counts as traced; calling it records the arguments. So every probe and
argument is seen without root and without bpftrace.
"""

import ctypes
import errno
import os
import re
import resource
import select
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from server import probes
from server.udp import _native
from server.udp.model import UdpOptions, pack_address
from server.udp.probing import Listening
from server.udp.sockets import UdpSocket, open_socket
from tests.conftest import need

HEADER = Path(_native.__file__).parent / "native" / "probes.h"
SITE = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)
PROBE_COUNT = len(probes.PROBES)


class Recording:
    """
    What was fired, in order: the probe's number and as many arguments as it has.
    """

    def __init__(self) -> None:
        self.fired: list[tuple[int, ...]] = []
        self._sites = [SITE(self._make_site(number)) for number in range(PROBE_COUNT)]
        self.addresses = [ctypes.cast(site, ctypes.c_void_p).value or 0 for site in self._sites]

    def _make_site(self, number: Any) -> Any:
        count = len(probes.PROBES[number].arguments)

        def site(*arguments: Any) -> None:
            self.fired.append((number, *arguments[:count]))

        return site

    def of(self, number: Any) -> Any:
        """Arguments of each firing of one probe."""
        return [arguments for fired, *arguments in self.fired if fired == number]


@pytest.fixture
def recording() -> Any:
    """All probes traced by Python."""
    made = Recording()
    _native.set_sites(made.addresses)
    yield made
    _native.set_sites([0] * PROBE_COUNT)


def _open_pair(options: Any = None, *, listening: Any = None) -> Any:
    listening = listening or Listening()
    listening.refresh()
    options = options or UdpOptions(tx_ring_bytes=8 * 65_535)
    pair = [
        UdpSocket(
            open_socket(("127.0.0.1", 0), is_port_shared=False),
            options,
            listening=listening,
            first_channel=channel,
        )
        for channel in (1, 11)
    ]
    return pair[0], pair[1]


def test_the_enum_lists_the_probes_of_the_table_in_order() -> None:
    """The C enum and server.probes name the same probes in the same order."""
    body = re.search(r"enum probe \{(.*?)PROBE_COUNT", HEADER.read_text(), re.DOTALL)
    assert body is not None
    names = re.findall(r"\b[A-Z][A-Z_]+\b", body[1])
    assert [getattr(probes, name) for name in names] == list(range(PROBE_COUNT))
    assert _native.PROBE_COUNT == PROBE_COUNT
    for name in names:
        words = probes.PROBES[getattr(probes, name)].name
        assert words.replace("__", "_").endswith(name.lower())


def test_listening_tells_nops_from_what_a_tracer_wrote() -> None:
    """Sites that start with a nop are untraced, a breakpoint or call is traced, 0 is absent."""
    if os.uname().machine == "x86_64":
        codes = {b"\x0f\x1f\x44\x00\x00\xc3": 0, b"\x90\xc3": 0, b"\xcc\xc3": 1, b"\xe8\xc3": 1}
    else:
        codes = {b"\x1f\x20\x03\xd5": 0, b"\x00\x00\x20\xd4": 1}
    kept = [ctypes.create_string_buffer(code) for code in codes]
    addresses = [ctypes.addressof(buffer) for buffer in kept]
    _native.set_sites(addresses + [0] * (PROBE_COUNT - len(addresses)))
    expected = sum(traced << index for index, traced in enumerate(codes.values()))
    assert expected == _native.listening()
    _native.set_sites([0] * PROBE_COUNT)
    assert _native.listening() == 0


def test_set_sites_refuses_another_number_of_sites() -> None:
    """A provider with other probes than the module's is an error, not a wrong call."""
    with pytest.raises(ValueError, match=f"3 sites were given, and there are {PROBE_COUNT} probes"):
        _native.set_sites([0, 0, 0])


@pytest.mark.parametrize("number", range(PROBE_COUNT), ids=[p.name for p in probes.PROBES])
def test_fire_passes_every_argument_exactly(recording: Any, number: Any) -> None:
    """Each probe arrives with all its arguments, signed and 8 bytes wide."""
    arguments = [-1, 2**63 - 1, -(2**63), 12345678901][: len(probes.PROBES[number].arguments)]
    _native.fire(number, *arguments)
    assert recording.fired == [(number, *arguments)]


def test_fire_refuses_what_is_no_probe() -> None:
    """A wrong number or too many arguments raise instead of jumping somewhere."""
    with pytest.raises(ValueError, match=f"there is no probe {PROBE_COUNT}"):
        _native.fire(PROBE_COUNT)
    with pytest.raises(TypeError, match="up to 4 integers"):
        _native.fire(0, 1, 2, 3, 4, 5)
    with pytest.raises(TypeError):
        _native.fire(0, 1.5)  # type: ignore[arg-type]


def test_sending_fires_the_originals_probes_in_order(recording: Any) -> None:
    """Two messages through the ring fire write, finish, release, the call, and its finish."""
    sender, receiver = _open_pair()
    address = pack_address(receiver.address)
    sender.tx.acquire()
    sender.tx.write(address, [b"a" * 1200] * 10 + [b"b" * 1200, b"c" * 700])
    sender.tx.flush()
    fd = sender.fileno()
    (start,) = recording.of(probes.MMSG_START_SEND)
    header = start[1]
    waits_ns = [wait_ns for *_, wait_ns in recording.of(probes.MESSAGE_SENT)]
    assert recording.fired == [
        (probes.RING_PRODUCER_ACQUIRE, 1, 0, 8, 8),
        (probes.IO_TX_ACQUIRE, 1, 8),
        *[(probes.IO_TX_WRITE, 1, 0, index, 1200) for index in range(10)],
        (probes.IO_TX_FINISH_WRITE, 1, 0, 10, 1200),
        (probes.IO_TX_WRITE, 1, 1, 0, 1200),
        (probes.IO_TX_WRITE, 1, 1, 1, 700),
        (probes.IO_TX_FINISH_WRITE, 1, 1, 2, 1200),
        (probes.RING_PRODUCER_RELEASE, 1, 0, 2, 8),
        (probes.IO_TX_RELEASE, 1, 2),
        (probes.RING_CONSUMER_ACQUIRE, 1, 0, 2, 8),
        (probes.TASK_TX_ACQUIRE, 1, 2),
        (probes.MMSG_START_SEND, fd, header, 2),
        (probes.MMSG_FINISH_SEND, fd, header, 2, 0),
        *[(probes.MESSAGE_SENT, 1, slot, wait_ns) for slot, wait_ns in enumerate(waits_ns)],
        (probes.TASK_TX_FINISH, 1, 0),
        (probes.TASK_TX_FINISH, 1, 1),
        (probes.TASK_TX_RELEASE, 1, 2),
        (probes.RING_CONSUMER_RELEASE, 1, 0, 2, 8),
    ]
    sender.close()
    receiver.close()


def test_message_sent_tells_how_long_each_message_waited(recording: Any) -> None:
    """From a message's first datagram to the end of its call, by the monotonic clock."""
    sender, receiver = _open_pair()
    address = pack_address(receiver.address)
    before_ns = time.monotonic_ns()
    sender.tx.write(address, [b"a" * 1200])
    first_begun_ns = time.monotonic_ns()
    time.sleep(0.002)
    sender.tx.write(address, [b"a" * 1200] * 10)
    sender.tx.flush()
    most_ns = time.monotonic_ns() - before_ns
    (channel, slot, first_ns), (_, next_slot, next_ns) = recording.of(probes.MESSAGE_SENT)
    assert (channel, slot, next_slot) == (1, 0, 1)
    assert 0 < next_ns <= first_ns - 2_000_000 <= first_ns <= most_ns
    assert first_begun_ns > before_ns
    sender.close()
    receiver.close()


def test_message_sent_knows_no_wait_of_what_was_begun_unheard(recording: Any) -> None:
    """A message begun while nobody listened is told with 0; no older start is taken for its own."""
    listening = Listening()
    sender, receiver = _open_pair(listening=listening)
    address = pack_address(receiver.address)
    sender.tx.write(address, [b"a" * 1200])  # begun while someone listens, sent while nobody does
    _native.set_sites([0] * PROBE_COUNT)
    listening.refresh()
    sender.tx.flush()
    for _ in range(sender.tx.ring.capacity):  # so that its slot is used again
        sender.tx.write(address, [b"b" * 1200, b"c" * 700])
    _native.set_sites(recording.addresses)
    listening.refresh()
    sender.tx.flush()
    waits = recording.of(probes.MESSAGE_SENT)
    assert sorted(waits) == [[1, slot, 0] for slot in range(sender.tx.ring.capacity)]
    sender.close()
    receiver.close()


def test_receiving_fires_the_originals_probes_in_order(recording: Any) -> None:
    """A joined and a single datagram fire the calls, finish, read and release; then EAGAIN."""
    sender, receiver = _open_pair(UdpOptions(rx_ring_bytes=4 * 65_535))
    sender.tx.acquire()
    sender.tx.write(pack_address(receiver.address), [b"a" * 1200] * 3)
    sender.tx.flush()
    sender.tx.write(pack_address(receiver.address), [b"b" * 40])
    sender.tx.flush()
    recording.fired.clear()
    assert receiver.rx.receive() == 2
    fd = receiver.fileno()
    got = [(address, [len(one) for one in many]) for address, many in receiver.rx.read()]
    assert got == [(sender.address, [1200] * 3), (sender.address, [40])]
    (first, header, vlen), (_, next_header, next_vlen) = recording.of(probes.MMSG_START_RECV)
    assert (first, vlen, next_vlen) == (fd, 4, 2)
    assert recording.fired == [
        (probes.RING_PRODUCER_ACQUIRE, 12, 0, 4, 4),
        (probes.TASK_RX_ACQUIRE, 12, 4),
        (probes.MMSG_START_RECV, fd, header, 4),
        (probes.MMSG_FINISH_RECV, fd, header, 2, 0),
        (probes.TASK_RX_FINISH, 12, 0),
        (probes.TASK_RX_FINISH, 12, 1),
        (probes.TASK_RX_RELEASE, 12, 2),
        (probes.RING_PRODUCER_RELEASE, 12, 0, 2, 4),
        (probes.RING_PRODUCER_ACQUIRE, 12, 2, 2, 4),
        (probes.TASK_RX_ACQUIRE, 12, 2),
        (probes.MMSG_START_RECV, fd, next_header, 2),
        (probes.MMSG_FINISH_RECV, fd, next_header, 0, errno.EAGAIN),
        (probes.RING_CONSUMER_ACQUIRE, 12, 0, 2, 4),
        (probes.IO_RX_ACQUIRE, 12, 2),
        *[(probes.IO_RX_READ, 12, 0, index, 1200) for index in range(3)],
        (probes.IO_RX_FINISH_READ, 12, 0, 3, 1200),
        (probes.IO_RX_READ, 12, 1, 0, 40),
        (probes.IO_RX_FINISH_READ, 12, 1, 1, 40),
        (probes.IO_RX_RELEASE, 12, 2),
        (probes.RING_CONSUMER_RELEASE, 12, 0, 2, 4),
    ]
    sender.close()
    receiver.close()


def test_without_gso_a_message_reports_no_segments(recording: Any) -> None:
    """finish_write says 0 segments for a message that GSO does not cut, as the original does."""
    sender, receiver = _open_pair(UdpOptions(tx_ring_bytes=8_000_000, is_gso_on=False))
    sender.tx.acquire()
    sender.tx.write(pack_address(receiver.address), [b"a" * 1200] * 2)
    sender.tx.flush()
    assert recording.of(probes.IO_TX_FINISH_WRITE) == [[1, 0, 0, 1200], [1, 1, 0, 1200]]
    sender.close()
    receiver.close()


def test_one_message_calls_fire_their_own_probes(recording: Any) -> None:
    """The fallback fires msg probes with the error in the third place, and no mmsg probe."""
    receiver = _native.Receiver(1, 2000)
    sender = _native.Sender(1, 1)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    assert sender.send_one(ours.fileno(), [(b"", [b"x"])], 0) == 1
    assert receiver.receive_one(theirs.fileno(), 0) == 1
    assert receiver.receive_one(theirs.fileno(), 0) == -errno.EAGAIN
    numbers = [number for number, *_ in recording.fired]
    assert numbers == [
        probes.MSG_START_SEND,
        probes.MSG_FINISH_SEND,
        probes.MSG_START_RECV,
        probes.MSG_FINISH_RECV,
        probes.MSG_START_RECV,
        probes.MSG_FINISH_RECV,
    ]
    assert [one[2] for one in recording.of(probes.MSG_FINISH_RECV)] == [0, errno.EAGAIN]
    ours.close()
    theirs.close()


def test_untraced_nothing_is_fired_and_nothing_computed(recording: Any) -> None:
    """While nobody listens no probe of the rings fires; the mask is asked once per turn."""
    _native.set_sites([0] * PROBE_COUNT)
    sender, receiver = _open_pair()
    sender.tx.acquire()
    sender.tx.write(pack_address(receiver.address), [b"a" * 1200] * 3)
    sender.tx.flush()
    assert recording.fired == []
    sender.close()
    receiver.close()


def test_wait_runs_signal_handlers_and_reports_nothing() -> None:
    """A signal ends a wait without an exception of its own; its handler has run by then."""
    happened = []
    before = signal.signal(signal.SIGALRM, lambda *_: happened.append("alarm"))
    try:
        ours, theirs = socket.socketpair()
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert _native.wait([ours.fileno()], [select.POLLIN], 10_000_000_000) == [0]
        assert happened == ["alarm"]
        theirs.send(b"x")
        assert _native.wait([ours.fileno()], [select.POLLIN], -1) == [select.POLLIN]
    finally:
        signal.signal(signal.SIGALRM, before)
        ours.close()
        theirs.close()


def test_wait_watches_as_many_descriptors_as_a_process_may_have() -> None:
    """Thousands of connections, each with a socket, are no error."""
    count = 5000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need(hard >= count or hard == resource.RLIM_INFINITY, f"{count} descriptors for one process")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))  # ppoll keeps to it
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"x")
        happened = _native.wait([ours.fileno()] * count, [select.POLLIN] * count, -1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert happened == [select.POLLIN] * count


def test_wait_returns_when_the_time_is_over() -> None:
    """Nothing happens: the answer comes no earlier than the timeout."""
    start_s = time.monotonic()
    assert _native.wait([], [], 20_000_000) == []
    assert time.monotonic() - start_s >= 0.02


@pytest.mark.parametrize(
    ("slots", "first", "count"),
    [([None], 0, 1), ([(b"", [])], 0, 1), ([(b"", ["x"])], 0, 1), ([(b"", [b"x"])], 1, 1)],
    ids=["empty", "no-datagram", "no-bytes", "beyond"],
)
def test_sender_refuses_slots_that_hold_no_message(slots: Any, first: Any, count: Any) -> None:
    """A slot without a proper message raises; the kernel never sees a wild pointer."""
    with pytest.raises((TypeError, ValueError)):
        _native.Sender(1, 1).send(0, slots, first, count)


@pytest.mark.parametrize("entries", [0, 2**20 + 1])
def test_rings_of_impossible_sizes_are_refused(entries: Any) -> None:
    """No ring without slots, and none beyond a million."""
    with pytest.raises(ValueError, match="cannot be"):
        _native.Sender(entries, 1)
    with pytest.raises(ValueError, match="cannot be"):
        _native.Receiver(entries, 1)
