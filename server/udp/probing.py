"""
Who listens to the probes: asked once per turn of the loop, then a plain attribute.
"""

from server.udp import _native


class Listening:
    """
    The set of probes that are traced right now.
    """

    __slots__ = ("mask",)

    def __init__(self) -> None:
        self.mask = 0
        """Bit n is set while someone traces probe n."""

    def refresh(self) -> None:
        """
        Look at the probe sites.
        """
        self.mask = _native.listening()
