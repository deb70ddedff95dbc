"""
server.loop: waiting, timers, readers; and that a question costs the traced socket nothing.
"""

import socket
from functools import partial

from server.control import Mailbox, make_pair
from server.loop import Loop
from tests.server.world import World


def _note(fired: list[float], delay_s: float, _now_s: float) -> None:
    fired.append(delay_s)


def test_timers_fire_in_the_order_of_their_times() -> None:
    """Calls come by time, not by when they were asked for, and each once."""
    loop = Loop()
    fired: list[float] = []
    now_s = loop.now_s()
    for delay_s in (0.02, 0.0, 0.01):
        loop.call_at(now_s + delay_s, partial(_note, fired, delay_s))
    while len(fired) < 3:
        loop.turn()
    assert fired == [0.0, 0.01, 0.02]
    loop.turn(most_wait_s=0.0)
    assert len(fired) == 3


def test_a_cancelled_timer_never_fires() -> None:
    """A call that was cancelled is not made, also when cancelled by an earlier one."""
    loop = Loop()
    fired = []
    now_s = loop.now_s()
    later = loop.call_at(now_s + 0.002, lambda _: fired.append("later"))
    loop.call_at(now_s + 0.001, lambda _: loop.cancel(later))
    loop.call_at(now_s + 0.004, lambda _: fired.append("last"))
    while not fired:
        loop.turn()
    assert fired == ["last"]


def test_cancelled_timers_do_not_pile_up() -> None:
    """Far timers that are replaced again and again leave no heap of dead entries."""
    loop = Loop()
    for _ in range(10_000):
        loop.cancel(loop.call_at(loop.now_s() + 3600, lambda _: None))
    assert len(loop._timers) < 200


def test_a_reader_is_called_when_its_descriptor_is_readable() -> None:
    """Other descriptors are waited for beside the sockets, until they are forgotten."""
    loop = Loop()
    ours, theirs = socket.socketpair()
    read = []
    loop.add_reader(ours.fileno(), lambda: read.append(ours.recv(10)))
    theirs.send(b"x")
    loop.turn()
    loop.remove_reader(ours.fileno())
    theirs.send(b"y")
    loop.turn(most_wait_s=0.0)
    assert read == [b"x"]
    ours.close()
    theirs.close()


def test_a_question_costs_no_receive_call() -> None:
    """Answering over the control link makes no call on the socket that is traced."""
    with World() as world:
        link, theirs = make_pair()
        mailbox = Mailbox(theirs, lambda question: {"echo": question["op"]})
        world.loop.add_reader(mailbox.fileno(), mailbox.handle)
        link._sock.sendall(b'{"op":"report"}\n')
        world.loop.turn()
        assert link._sock.recv(100) == b'{"echo":"report"}\n'
        counts = world.counts()
        assert counts["rx"]["receive_call_count"] == 0
        assert counts["tx"]["send_call_count"] == 0
        world.loop.remove_reader(mailbox.fileno())
        link.close()
        mailbox.close()


def test_a_call_that_came_late_is_counted_with_its_delay() -> None:
    """A timer that was due 50 ms ago is late; one that is just due is not."""
    loop = Loop()
    loop.call_at(loop.now_s() - 0.05, lambda _: None)
    loop.turn(most_wait_s=0.0)
    counters = loop.counters
    assert (1, 1) == (counters.timer_count, counters.late_timer_count)
    assert counters.latest_timer_ns >= 50_000_000


def test_sleep_behind_a_full_window_is_told_from_other_sleep() -> None:
    """While the peer takes nothing the server sleeps for want of a window, before it does not."""
    with World() as world:
        world.loop.turn(most_wait_s=0.02)
        counters = world.loop.counters
        assert counters.wait_ns > 0 == counters.window_wait_ns
        world.add_client(asked_bytes=2**40)
        world.clients[0].receive = lambda now_s: None  # type: ignore[method-assign]
        while not world.server.is_window_blocked:
            world.clients[0].udp.rx.receive()
            for address, datagrams in world.clients[0].udp.rx.read():
                world.clients[0]._receive_train(datagrams, address, world.loop.now_s())
            world.loop.turn(most_wait_s=0.01)
        before_ns = counters.window_wait_ns
        for _ in range(5):
            world.loop.turn(most_wait_s=0.01)
        assert counters.window_wait_ns > before_ns
