"""
What aioquic may send when: its pacer replaced, its windows capped. Written against 1.7.2.

With `server.internals` the only place that touches what aioquic keeps private.
"""

import math
from typing import Final, Protocol

from aioquic.quic.congestion.base import QuicCongestionControl, register_congestion_control
from aioquic.quic.congestion.cubic import CubicCongestionControl
from aioquic.quic.congestion.reno import RenoCongestionControl
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet_builder import QuicSentPacket

from server.window import CappedWindow, WindowCap

# Pacing ------------------------------------------------------------------------


class Pacer(Protocol):
    """What aioquic asks of `connection._loss._pacer`."""

    def next_send_time(self, now: float) -> float | None:
        """None: send now; else not before that time."""

    def update_after_send(self, now: float) -> None:
        """A packet was built."""

    def update_rate(self, congestion_window: int, smoothed_rtt: float) -> None:
        """The window or the round-trip time changed."""


class RingPacer:
    """
    Says "not now" when a connection has used up its room in the TX ring.

    A call of `datagrams_to_send` may then build so many datagrams and no more.
    aioquic asks no pacer before a datagram with a due ACK, so one more can come.
    """

    __slots__ = ("credit", "is_refused")

    def __init__(self) -> None:
        self.credit = 0
        """Datagrams that may still be built."""
        self.is_refused = False
        """Whether anything was held back since this was last set to False."""

    def next_send_time(self, now: float) -> float | None:  # noqa: ARG002
        """None while there is credit; else infinity, which sets no timer."""
        if self.credit > 0:
            return None
        self.is_refused = True
        return math.inf

    def update_after_send(self, now: float) -> None:  # noqa: ARG002
        """Debit a datagram."""
        self.credit -= 1

    def update_rate(self, congestion_window: int, smoothed_rtt: float) -> None:
        """Time plays no part here."""


class NoPacer:
    """
    Never says "not now": a call returns whatever the window allows.
    """

    __slots__ = ()

    def next_send_time(self, now: float) -> float | None:  # noqa: ARG002
        """Send now."""
        return None

    def update_after_send(self, now: float) -> None:
        """Nothing to note."""

    def update_rate(self, congestion_window: int, smoothed_rtt: float) -> None:
        """Nothing to note."""


def set_pacer(connection: QuicConnection, pacer: Pacer) -> None:
    """
    Put a pacer of ours in the place of aioquic's.
    """
    connection._loss._pacer = pacer  # type: ignore[assignment]  # noqa: SLF001


# Windows -----------------------------------------------------------------------


# aioquic leaves slow start when the round-trip time rises, lest the window overshoot
# (HyStart). With a cap it cannot, and here the time rises because messages wait in
# the ring, which is what is studied. Left in, one run in some fifteen on a busy
# machine stayed at a small window for seconds and showed calls of a few messages.


class _CappedReno(RenoCongestionControl):
    cap: WindowCap

    def on_packet_acked(self, *, now: float, packet: QuicSentPacket) -> None:
        cap_bytes = self.cap.cap_bytes
        if self.congestion_window >= cap_bytes:
            # Full grown, as nearly always: all that is left of reno's part is this.
            self.bytes_in_flight -= packet.sent_bytes
            self.congestion_window = cap_bytes
            return
        super().on_packet_acked(now=now, packet=packet)
        if self.congestion_window > cap_bytes:  # noqa: PLR1730 - min() is a call a packet
            self.congestion_window = cap_bytes

    def on_rtt_measurement(self, *, now: float, rtt: float) -> None:
        """Stay in slow start until something is lost or the cap is reached."""


class _CappedCubic(CubicCongestionControl):
    cap: WindowCap

    def on_packet_acked(self, *, now: float, packet: QuicSentPacket) -> None:
        super().on_packet_acked(now=now, packet=packet)
        if self.congestion_window > self.cap.cap_bytes:  # noqa: PLR1730 - the same
            self.congestion_window = self.cap.cap_bytes

    def on_rtt_measurement(self, *, now: float, rtt: float) -> None:  # noqa: ARG002
        """Note the time, which cubic's growth needs, and stay in slow start."""
        self.rtt = rtt


_CAPPED: Final[dict[str, type[_CappedReno] | type[_CappedCubic]]] = {
    "reno": _CappedReno,
    "cubic": _CappedCubic,
}


def capped_congestion_control(name: str, *, cap_bytes: int) -> str:
    """
    Name a congestion controller whose window stays within a cap.

    aioquic's own grow without bound on loopback (reno was seen at 44 MB). A capped
    one stays in slow start until the cap or a loss.

    Args:
        name: "reno" or "cubic".
        cap_bytes: Largest window; 0 leaves aioquic's controller as it is.

    Returns:
        What to write into `QuicConfiguration.congestion_control_algorithm`.
    """
    if not cap_bytes:
        return name
    controller = _CAPPED[name]

    def make(*, max_datagram_size: int) -> QuicCongestionControl:
        made = controller(max_datagram_size=max_datagram_size)
        made.cap = WindowCap(cap_bytes)
        made.congestion_window = min(made.congestion_window, cap_bytes)
        return made

    capped_name = f"{name}-capped-{cap_bytes}"
    register_congestion_control(capped_name, make)
    return capped_name


def find_capped_window(connection: QuicConnection) -> CappedWindow | None:
    """
    Find what a cap is kept by; None for a connection without one.
    """
    controller = connection._loss._cc  # noqa: SLF001
    return controller if isinstance(controller, _CappedReno | _CappedCubic) else None


def share_cap(connection: QuicConnection, cap: WindowCap) -> None:
    """
    Put a cap that others have too in the place of a capped window's own.
    """
    controller = connection._loss._cc  # noqa: SLF001
    if isinstance(controller, _CappedReno | _CappedCubic):
        controller.cap = cap


def window_bytes(connection: QuicConnection) -> int:
    """
    Read the congestion window.
    """
    return connection._loss._cc.congestion_window  # noqa: SLF001


def in_flight_bytes(connection: QuicConnection) -> int:
    """
    Read what was sent and is neither acknowledged nor lost.
    """
    return connection._loss._cc.bytes_in_flight  # noqa: SLF001
