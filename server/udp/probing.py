"""
Who listens to the probes: asked once per turn of the loop, then plain attributes.

One attribute for each probe that fires once a message or oftener, so that a script
pays for the probes it listens to and for no other; one for all that fire once a
call. Those of the calls themselves cost one nop each and are never asked about.
"""

from typing import Final

from server.probes import (
    IO_RX_ACQUIRE,
    IO_RX_FINISH_READ,
    IO_RX_READ,
    IO_RX_RELEASE,
    IO_TX_ACQUIRE,
    IO_TX_FINISH_WRITE,
    IO_TX_RELEASE,
    IO_TX_WRITE,
    MESSAGE_SENT,
    RING_CONSUMER_ACQUIRE,
    RING_CONSUMER_RELEASE,
    RING_PRODUCER_ACQUIRE,
    RING_PRODUCER_RELEASE,
    TASK_RX_ACQUIRE,
    TASK_RX_FINISH,
    TASK_RX_RELEASE,
    TASK_TX_ACQUIRE,
    TASK_TX_FINISH,
    TASK_TX_RELEASE,
)
from server.udp import _native

_CURSOR_MASK: Final = sum(
    1 << probe
    for probe in (
        IO_RX_ACQUIRE,
        IO_RX_RELEASE,
        IO_TX_ACQUIRE,
        IO_TX_RELEASE,
        RING_CONSUMER_ACQUIRE,
        RING_CONSUMER_RELEASE,
        RING_PRODUCER_ACQUIRE,
        RING_PRODUCER_RELEASE,
        TASK_RX_ACQUIRE,
        TASK_RX_RELEASE,
        TASK_TX_ACQUIRE,
        TASK_TX_RELEASE,
    )
)


class Listening:
    """
    The set of probes that are traced right now.
    """

    __slots__ = (
        "has_cursors",
        "has_message_sent",
        "has_rx_finish_read",
        "has_rx_read",
        "has_task_rx_finish",
        "has_task_tx_finish",
        "has_tx_finish_write",
        "has_tx_write",
        "mask",
    )

    def __init__(self) -> None:
        self._set(0)

    def refresh(self) -> bool:
        """
        Look at the probe sites; whether the set has changed.
        """
        mask = _native.listening()
        if mask == self.mask:
            return False
        self._set(mask)
        return True

    def _set(self, mask: int) -> None:
        self.mask = mask
        """Bit n is set while someone traces probe n."""
        self.has_cursors = bool(mask & _CURSOR_MASK)
        """Any of the acquire and release probes, of rings, endpoint or socket."""
        self.has_tx_write = bool(mask >> IO_TX_WRITE & 1)
        self.has_tx_finish_write = bool(mask >> IO_TX_FINISH_WRITE & 1)
        self.has_task_tx_finish = bool(mask >> TASK_TX_FINISH & 1)
        self.has_message_sent = bool(mask >> MESSAGE_SENT & 1)
        self.has_task_rx_finish = bool(mask >> TASK_RX_FINISH & 1)
        self.has_rx_read = bool(mask >> IO_RX_READ & 1)
        self.has_rx_finish_read = bool(mask >> IO_RX_FINISH_READ & 1)
