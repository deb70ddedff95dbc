"""
The event loop: waits for sockets, timers and control requests, and hands them out.

One thread, one ppoll a turn. Timers are a heap whose stale entries are skipped,
so that work grows with what happened and not with what is open.
"""

import heapq
import itertools
import math
import select
import time
from collections.abc import Callable
from typing import Final, Protocol

from server.counters import LoopCounters
from server.udp import _native
from server.udp.probing import Listening

_READABLE: Final = select.POLLIN | select.POLLERR | select.POLLHUP
# How long to wait before asking again when the kernel has no memory for a packet;
# it tells of no later moment (ENOBUFS is not followed by POLLOUT).
NO_MEMORY_WAIT_S: Final = 0.001
_MOST_CANCELLED: Final = 64


class Driven(Protocol):
    """What the loop drives: an endpoint."""

    @property
    def is_waiting_for_room(self) -> bool:
        """Its socket took no more, and POLLOUT will tell when it does."""

    @property
    def is_window_blocked(self) -> bool:
        """Some connection could not send although it had something to say: its window is full."""

    def fileno(self) -> int:
        """The descriptor to wait for."""

    def receive(self, now_s: float) -> None:
        """Its socket is readable."""

    def transmit(self, now_s: float) -> None:
        """Send what came of this turn."""

    def wait_limit_s(self) -> float:
        """How long it may be left alone: 0 when it has work, else until told."""


class Handle:
    """
    A call at a later time, known by what `call_at` returned.
    """

    __slots__ = ("at_s", "call")

    def __init__(self, at_s: float, call: Callable[[float], None]) -> None:
        self.at_s = at_s
        self.call: Callable[[float], None] | None = call


class Loop:
    """
    Drives endpoints until `stop`.
    """

    def __init__(self) -> None:
        self.listening = Listening()
        self.counters = LoopCounters()
        self.on_listening: Callable[[int], None] | None = None
        """Called with the new set of traced probes when it changed."""
        self._endpoints: list[Driven] = []
        self._readers: dict[int, Callable[[], None]] = {}
        self._timers: list[tuple[float, int, Handle]] = []
        self._sequence = itertools.count()
        self._cancelled_count = 0
        self._is_stopped = False

    @staticmethod
    def now_s() -> float:
        """The loop's clock, seconds."""
        return time.monotonic()

    def add(self, endpoint: Driven) -> None:
        """
        Drive an endpoint.
        """
        self._endpoints.append(endpoint)

    def remove(self, endpoint: Driven) -> None:
        """
        Stop driving an endpoint; its socket is closed by whoever opened it.
        """
        self._endpoints.remove(endpoint)

    def add_reader(self, fd: int, call: Callable[[], None]) -> None:
        """
        Call whenever a descriptor is readable. It costs no system call of its own.
        """
        self._readers[fd] = call

    def remove_reader(self, fd: int) -> None:
        """
        Forget a descriptor.
        """
        self._readers.pop(fd, None)

    def call_at(self, at_s: float, call: Callable[[float], None]) -> Handle:
        """
        Call once, with the time, not before `at_s`.
        """
        handle = Handle(at_s, call)
        heapq.heappush(self._timers, (at_s, next(self._sequence), handle))
        return handle

    def cancel(self, handle: Handle) -> None:
        """
        Never make a call that was asked for.
        """
        if handle.call is None:
            return
        handle.call = None
        self._cancelled_count += 1
        # Entries far in the future (idle timeouts) would pile up: one per ACK timer.
        if self._cancelled_count > _MOST_CANCELLED and (
            2 * self._cancelled_count > len(self._timers)
        ):
            self._timers = [entry for entry in self._timers if entry[2].call is not None]
            heapq.heapify(self._timers)
            self._cancelled_count = 0

    def stop(self) -> None:
        """
        End `run` after this turn. A signal handler may call this.
        """
        self._is_stopped = True

    def run(self) -> None:
        """
        Turn until stopped.
        """
        while not self._is_stopped:
            self.turn()

    def turn(self, *, most_wait_s: float = math.inf) -> None:
        """
        Wait for something to happen, and do what it asks for.

        Args:
            most_wait_s: Return after so long even if nothing happens.
        """
        endpoints = self._endpoints[:]
        readers = list(self._readers.items())
        fds = [endpoint.fileno() for endpoint in endpoints]
        fds += [fd for fd, _ in readers]
        events = [
            select.POLLIN | select.POLLOUT if endpoint.is_waiting_for_room else select.POLLIN
            for endpoint in endpoints
        ]
        events += [select.POLLIN] * len(readers)
        happened = self._wait(fds, events, self._wait_ns(endpoints, most_wait_s))
        self.look_who_listens()
        now_s = self.now_s()
        for endpoint, event in zip(endpoints, happened, strict=False):
            if event & _READABLE:
                endpoint.receive(now_s)
        self._run_timers(now_s)
        for (_, call), event in zip(readers, happened[len(endpoints) :], strict=True):
            if event:
                call()
        for endpoint in endpoints:
            endpoint.transmit(now_s)

    def _wait(self, fds: list[int], events: list[int], timeout_ns: int) -> list[int]:
        """
        Sleep until something happens, and note how long, and whether for want of a window.
        """
        self.counters.turn_count += 1
        if not timeout_ns:
            return _native.wait(fds, events, 0)
        is_window_blocked = any(endpoint.is_window_blocked for endpoint in self._endpoints)
        began_ns = time.monotonic_ns()
        happened = _native.wait(fds, events, timeout_ns)
        waited_ns = time.monotonic_ns() - began_ns
        self.counters.wait_ns += waited_ns
        if is_window_blocked:
            self.counters.window_wait_ns += waited_ns
        return happened

    def _wait_ns(self, endpoints: list[Driven], most_wait_s: float) -> int:
        wait_s = most_wait_s
        for endpoint in endpoints:
            wait_s = min(wait_s, endpoint.wait_limit_s())
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
            self._cancelled_count -= 1
        if self._timers:
            wait_s = min(wait_s, self._timers[0][0] - self.now_s())
        if wait_s == math.inf:
            return -1
        return max(0, math.ceil(wait_s * 1e9))

    def _run_timers(self, now_s: float) -> None:
        while self._timers and self._timers[0][0] <= now_s:
            at_s, _, handle = heapq.heappop(self._timers)
            call, handle.call = handle.call, None
            if call is None:
                self._cancelled_count -= 1
            else:
                self.counters.on_timer(int((now_s - at_s) * 1e9))
                call(now_s)

    def look_who_listens(self) -> None:
        """
        Find out which probes are traced from now on.
        """
        if self.listening.refresh() and self.on_listening is not None:
            self.on_listening(self.listening.mask)
