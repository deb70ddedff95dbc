"""
server.udp.transmit: the TX ring against a kernel that answers as kernels do.
"""

import errno
import os
import socket
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.udp import _native
from server.udp.batch import TrainLimits
from server.udp.model import Degradation, UdpOptions, pack_address
from server.udp.probing import Listening
from server.udp.ring import Ring
from server.udp.sockets import UdpSocket, open_socket
from server.udp.transmit import TxPath

PEER = pack_address(("127.0.0.1", 9))
OTHER = pack_address(("127.0.0.1", 10))


class ScriptedKernel:
    """
    A kernel that gives the answers of a list, then takes everything.

    Args:
        answers: A number of messages to take at most, or minus errno.
    """

    def __init__(self, answers: Any = ()) -> None:
        self.answers = list(answers)
        self.taken: list[tuple[bytes, bytes]] = []
        self.calls: list[int] = []

    def _answer(self, count: Any) -> Any:
        return min(self.answers.pop(0), count) if self.answers else count

    def send(self, fd: Any, slots: Any, first: Any, count: Any) -> Any:
        """Take a run of messages."""
        answer = self._answer(count)
        self.calls.append(count)
        for index in range(first, first + max(0, answer)):
            address, datagrams = slots[index % len(slots)]
            self.taken += [(address, datagram) for datagram in datagrams]
        return answer

    def send_one(self, fd: Any, slots: Any, slot: Any) -> Any:
        """Take one message."""
        return self.send(fd, slots, slot, 1)

    def send_apart(self, fd: Any, slots: Any, slot: Any) -> Any:
        """Take the datagrams of one message."""
        address, datagrams = slots[slot]
        answer = self._answer(len(datagrams))
        self.calls.append(len(datagrams))
        self.taken += [(address, datagram) for datagram in datagrams[: max(0, answer)]]
        return answer


def _make_path(
    kernel: Any, *, capacity: Any = 4, datagram_count: Any = 3, has_mmsg: Any = True
) -> Any:
    degradations: list[Degradation] = []
    path = TxPath(
        0,
        kernel,
        ring=Ring(capacity),
        limits=TrainLimits(datagram_count=datagram_count, message_bytes=1000),
        has_mmsg=has_mmsg,
        channel=1,
        listening=Listening(),
        on_degraded=degradations.append,
    )
    return path, degradations


def _write_all(path: Any, writes: Any) -> None:
    path.acquire()
    for address, datagrams in writes:
        path.write(address, datagrams)
    for _ in range(1000):
        path.flush()
        if path.is_empty:
            return
    pytest.fail("the ring never became empty")


WRITES = st.lists(
    st.tuples(
        st.sampled_from([PEER, OTHER]),
        st.lists(st.integers(1, 3).map(lambda n: os.urandom(8) * n), min_size=1, max_size=9),
    ),
    max_size=12,
)
ANSWERS = st.lists(
    st.one_of(
        st.integers(1, 4),
        st.sampled_from([-errno.EAGAIN, -errno.ENOBUFS, -errno.EINTR, -errno.ENOMEM]),
    ),
    max_size=20,
)


@settings(max_examples=60, deadline=None)
@given(WRITES, ANSWERS, st.sampled_from([1, 2, 4]), st.sampled_from(["mmsg", "lost", "single"]))
def test_no_datagram_is_lost_doubled_or_reordered(
    writes: Any, answers: Any, capacity: Any, mmsg: Any
) -> None:
    """Partial sends, full buffers, interrupts, a lost sendmmsg: no datagram or order is lost."""
    kernel = ScriptedKernel([-errno.ENOSYS, *answers] if mmsg == "lost" else answers)
    path, degradations = _make_path(kernel, capacity=capacity, has_mmsg=mmsg != "single")
    _write_all(path, writes)
    assert kernel.taken == [(address, one) for address, many in writes for one in many]
    written = sum(len(many) for _, many in writes)
    counters = path.counters
    assert counters.datagram_written_count == counters.datagram_sent_count == written
    assert counters.message_written_count == counters.message_sent_count
    assert counters.byte_sent_count == sum(len(one) for _, many in writes for one in many)
    assert [one.what for one in degradations] == (["mmsg"] if mmsg == "lost" and writes else [])
    calls = counters.send_call_count + counters.single_send_call_count
    assert sum(counters.messages_per_call) == calls == len(kernel.calls)


@pytest.mark.parametrize("refusal", [errno.EIO, errno.EINVAL], ids=["EIO", "EINVAL"])
@pytest.mark.parametrize("has_mmsg", [True, False], ids=["mmsg", "single"])
def test_a_refused_train_is_sent_apart_and_gso_stays_off(refusal: Any, has_mmsg: Any) -> None:
    """The first refusal of GSO is recorded once; the same datagrams leave one by one."""
    kernel = ScriptedKernel([-refusal])
    path, degradations = _make_path(kernel, has_mmsg=has_mmsg)
    datagrams = [bytes([n]) * 100 for n in range(8)]
    _write_all(path, [(PEER, datagrams)])
    _write_all(path, [(PEER, datagrams)])
    assert [one for _, one in kernel.taken] == datagrams * 2
    assert [(one.what, one.effect) for one in degradations] == [("gso", "one datagram per message")]
    assert degradations[0].reason == f"{errno.errorcode[refusal]} at segment size 100"
    assert path.limits.datagram_count == 1
    assert path.counters.error_counts == {errno.errorcode[refusal]: 1}


def test_a_message_that_can_never_be_sent_does_not_stop_the_ring() -> None:
    """EMSGSIZE costs that message alone; it is counted by name and recorded."""
    kernel = ScriptedKernel([-errno.EMSGSIZE])
    path, degradations = _make_path(kernel)
    _write_all(path, [(PEER, [b"a" * 500]), (PEER, [b"b" * 600])])
    assert [one for _, one in kernel.taken] == [b"b" * 600]
    assert path.counters.error_counts == {"EMSGSIZE": 1}
    assert path.counters.datagram_dropped_count == 1
    assert [one.what for one in degradations] == ["datagram_size"]


def test_the_datagram_that_was_too_large_is_the_one_named() -> None:
    """Of a train that is sent apart, EMSGSIZE costs the first alone, and its size is recorded."""
    kernel = ScriptedKernel([-errno.EIO, -errno.EMSGSIZE])
    path, degradations = _make_path(kernel)
    _write_all(path, [(PEER, [b"a" * 500, b"b" * 40])])
    assert [one for _, one in kernel.taken] == [b"b" * 40]
    assert "EMSGSIZE at 500 bytes" == degradations[-1].reason
    assert (1, 1) == (path.counters.datagram_dropped_count, path.counters.datagram_sent_count)


@pytest.mark.parametrize("full", [errno.EAGAIN, errno.ENOBUFS], ids=["EAGAIN", "ENOBUFS"])
def test_a_full_socket_keeps_everything_for_later(full: Any) -> None:
    """What a full socket refuses stays in order, in the ring and behind it."""
    kernel = ScriptedKernel([-full] * 3)
    path, _ = _make_path(kernel, capacity=2)
    datagrams = [bytes([n]) * 100 for n in range(20)]
    path.acquire()
    path.write(PEER, datagrams)
    assert not path.can_write()
    assert path.blocked_by == full
    assert path.is_blocked_by_room == (full == errno.EAGAIN)
    path.flush()
    path.flush()
    assert kernel.taken == []
    path.flush()
    assert [one for _, one in kernel.taken] == datagrams
    assert path.counters.blocked_count == 3
    assert path.counters.error_counts == {errno.errorcode[full]: 3}
    assert path.blocked_by == 0


def test_a_ring_of_one_slot_sends_each_message_alone() -> None:
    """With one slot every call carries one message: the ring's size is structural."""
    kernel = ScriptedKernel()
    path, _ = _make_path(kernel, capacity=1)
    _write_all(path, [(PEER, [b"x" * 100] * 30)])
    assert kernel.calls == [1] * 10
    assert path.counters.report()["messages_per_call"] == [{"min": 1, "max": 1, "count": 10}]


def test_a_large_ring_waits_until_it_is_full_or_flushed() -> None:
    """Nothing is sent while slots are free; then all filled ones go in one call."""
    kernel = ScriptedKernel()
    path, _ = _make_path(kernel, capacity=8)
    path.acquire()
    path.write(PEER, [b"x" * 100] * 24)
    assert kernel.calls == []
    path.write(PEER, [b"x" * 100])
    assert kernel.calls == [8]
    path.flush()
    assert kernel.calls == [8, 1]


def test_refused_gso_on_a_real_socket_delivers_the_same_bytes() -> None:
    """A socket without checksums gives the kernel's own EINVAL; nothing is lost by it."""
    so_no_check = 11
    receiver = open_socket(("127.0.0.1", 0), is_port_shared=False)
    udp = UdpSocket(
        open_socket(("127.0.0.1", 0), is_port_shared=False), UdpOptions(), listening=Listening()
    )
    udp.sock.setsockopt(socket.SOL_SOCKET, so_no_check, 1)
    datagrams = [bytes([n]) * 1200 for n in range(25)]
    udp.tx.acquire()
    udp.tx.write(pack_address(receiver.getsockname()), datagrams)
    udp.tx.flush()
    assert [receiver.recv(2000) for _ in datagrams] == datagrams
    assert [(one.what, one.reason) for one in udp.degradations] == [
        ("gso", "EINVAL at segment size 1200")
    ]
    udp.close()
    receiver.close()


def test_a_really_full_socket_says_eagain_and_goes_on() -> None:
    """A real socket that is full blocks the ring; draining it lets the rest out in order."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.setblocking(False)
    path = TxPath(
        ours.fileno(),
        _native.Sender(4, 1),
        ring=Ring(4),
        limits=TrainLimits(datagram_count=1, message_bytes=65_000),
        has_mmsg=True,
        channel=1,
        listening=Listening(),
        on_degraded=lambda degradation: pytest.fail(str(degradation)),
    )
    datagrams = [n.to_bytes(4, "big") * 1000 for n in range(400)]
    path.acquire()
    path.write(b"", datagrams)  # no address: the pair's other end
    path.flush()
    assert path.is_blocked_by_room
    received: list[bytes] = []
    while len(received) < len(datagrams):
        received.append(theirs.recv(5000))
        path.flush()
    assert received == datagrams
    assert path.is_empty
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    ("segments", "datagram_bytes"), [(64, 500), (64, 1400), (10, 8972), (54, 1200)]
)
def test_messages_stay_within_what_the_kernel_takes(segments: Any, datagram_bytes: Any) -> None:
    """64 of 500 bytes fit, 64 of 1,400 would not: no combination is refused by the kernel."""
    receiver = open_socket(("127.0.0.1", 0), is_port_shared=False)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_000_000)
    udp = UdpSocket(
        open_socket(("127.0.0.1", 0), is_port_shared=False),
        UdpOptions(tx_ring_bytes=8_000_000, max_segments=segments),
        listening=Listening(),
    )
    datagrams = [bytes([n]) * datagram_bytes for n in range(130)]
    udp.tx.acquire()
    udp.tx.write(pack_address(receiver.getsockname()), datagrams)
    udp.tx.flush()
    assert udp.tx.counters.error_counts == {}
    assert udp.tx.counters.datagram_sent_count == 130
    assert udp.degradations == []
    assert [receiver.recv(10_000) for _ in datagrams] == datagrams
    udp.close()
    receiver.close()
