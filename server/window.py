"""
How much all connections of an endpoint may have in flight together, and how much received.

One connection gains nothing from a window beyond its cap, but of hundreds each with
a full one gigabytes would wait in streams' buffers, in the kernel and in caches that
are too small for them. So they share a budget: what one may have is its cap or, when
more are open, an equal part of the budget; a few messages at least.
"""

import sys
from collections.abc import Iterable
from typing import Protocol


class CappedWindow(Protocol):
    """
    What a budget holds down: a congestion controller.
    """

    congestion_window: int


class WindowCap:
    """
    The largest window of the connections that hold this object; it may change meanwhile.
    """

    __slots__ = ("cap_bytes",)

    def __init__(self, cap_bytes: int) -> None:
        self.cap_bytes = cap_bytes


class WindowBudget:
    """
    Shares out a budget among the connections that are open.

    Args:
        cap_bytes: What one connection may have, however few are open; 0: no cap, no budget.
        total_bytes: What all may have together; 0: no budget.
        least_bytes: What each may have, however many are open.
    """

    def __init__(self, *, cap_bytes: int, total_bytes: int, least_bytes: int) -> None:
        self.shared = WindowCap(sys.maxsize)
        """What each connection may have now."""
        self._cap_bytes = cap_bytes
        self._total_bytes = total_bytes
        self._least_bytes = least_bytes
        self._open_count = 0
        self._windows: set[CappedWindow] = set()
        self._lowest_cap_bytes = sys.maxsize
        self._share()

    @property
    def lowest_cap_bytes(self) -> int:
        """The least that one connection could have since the last reset; 0: no cap."""
        return self._lowest_cap_bytes if self._lowest_cap_bytes < sys.maxsize else 0

    def set_cap(self, cap_bytes: int) -> None:
        """
        Change what one connection may have; 0: no cap, no budget.
        """
        self._cap_bytes = cap_bytes
        self._share()

    def join(self, window: CappedWindow | None) -> None:
        """
        One more connection is open; None: one whose window nobody caps.
        """
        self._open_count += 1
        self._share()
        if window is not None:
            self._windows.add(window)
            self._hold((window,))

    def leave(self, window: CappedWindow | None) -> None:
        """
        One less is open.
        """
        self._open_count -= 1
        if window is not None:
            self._windows.discard(window)
        self._share()

    def reset(self) -> None:
        """
        Look for the lowest cap from now on.
        """
        self._lowest_cap_bytes = self.shared.cap_bytes

    def _share(self) -> None:
        cap_bytes = self._cap_bytes or sys.maxsize
        if self._cap_bytes and self._total_bytes and self._open_count:
            share_bytes = max(self._least_bytes, self._total_bytes // self._open_count)
            cap_bytes = min(cap_bytes, share_bytes)
        is_lowered = cap_bytes < self.shared.cap_bytes
        self.shared.cap_bytes = cap_bytes
        self._lowest_cap_bytes = min(self._lowest_cap_bytes, cap_bytes)
        if is_lowered:
            self._hold(self._windows)

    def _hold(self, windows: Iterable[CappedWindow]) -> None:
        """
        Bring windows down to the cap.

        They look at it themselves, but at acknowledgements alone: one that has grown and
        is idle would begin again with all it had. Only a cap that falls costs a walk, and
        it stops falling when each has the least.
        """
        cap_bytes = self.shared.cap_bytes
        for window in windows:
            window.congestion_window = min(window.congestion_window, cap_bytes)


class ReceiveBudget:
    """
    Shares out what peers may have sent that nobody has taken yet.

    A limit that a peer was told is never taken back (RFC 9000, Section 4.1), so equal parts
    of the budget would come to several times of it while connections come one by one. A
    newcomer gets a quarter of what is left at most; each time that a connection's limit
    grows its window comes nearer to an equal part. Together they are never more than the
    budget, besides the least of each.

    Args:
        total_bytes: What all may have together.
        usual_bytes: What one may have while few are open.
        least_bytes: What each may have, however many are open.
    """

    def __init__(self, *, total_bytes: int, usual_bytes: int, least_bytes: int) -> None:
        self.granted_bytes = 0
        """What all have now."""
        self._total_bytes = total_bytes
        self._usual_bytes = usual_bytes
        self._least_bytes = least_bytes
        self._count = 0

    def join(self) -> int:
        """
        One more is there; how much it may have.
        """
        self._count += 1
        return self._grant(0)

    def exchange(self, had_bytes: int, *, least_bytes: int) -> int:
        """
        Say how much a connection may have now instead.

        Args:
            had_bytes: What it was granted before.
            least_bytes: What it cannot give back.
        """
        self.granted_bytes -= had_bytes
        return self._grant(least_bytes)

    def leave(self, had_bytes: int) -> None:
        """
        One less is there.
        """
        self._count -= 1
        self.granted_bytes -= had_bytes

    def _grant(self, least_bytes: int) -> int:
        left_bytes = self._total_bytes - self.granted_bytes
        share_bytes = min(self._total_bytes // self._count, left_bytes // 4)
        window_bytes = min(self._usual_bytes, max(self._least_bytes, share_bytes))
        window_bytes = max(window_bytes, least_bytes)
        self.granted_bytes += window_bytes
        return window_bytes
