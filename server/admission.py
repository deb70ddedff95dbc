"""
Who may open a connection: a server on an open port is open to everybody.

A first datagram costs its sender nothing, not even an address of its own, and the
server a handshake. So connections are bounded, those whose client has not shown that
it is there even more so, and when many of these wait, a Retry (RFC 9000, Section
8.1.2) makes newcomers show their address before anything is kept for them.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

RetryName = Literal["off", "auto", "always"]
Decision = Literal["accept", "retry", "refuse"]

# From this share of the half-open connections on, newcomers must show their address.
_RETRY_SHARE: Final = 1 / 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionOptions:
    """
    How many may come.

    Args:
        most_connections: Kept at once, in one worker: open ones, and those that have closed
            and still wait for late packets (RFC 9000, Section 10.2).
        most_half_open: Of these, without a finished handshake and with an address that
            nobody has validated.
        handshake_limit_s: How long a handshake may take.
        retry: "off", "auto" (when many are half open) or "always".
    """

    most_connections: int = 2048
    most_half_open: int = 1024
    handshake_limit_s: float = 10.0
    retry: RetryName = "auto"


class Admission:
    """
    Decides about first datagrams, and counts what it decided.
    """

    def __init__(self, options: AdmissionOptions) -> None:
        self.options = options
        self.half_open_count = 0
        """Connections that are kept and whose handshake was not finished."""
        self.reset()

    def reset(self) -> None:
        """Count from zero; handshakes under way stay so."""
        self.retry_sent_count = 0
        self.invalid_token_count = 0
        self.handshake_timeout_count = 0
        self.refused_counts: dict[str, int] = {}

    def decide(self, *, kept_count: int, is_validated: bool) -> Decision:
        """
        Say what a first datagram of a newcomer gets.

        Args:
            kept_count: Connections that are kept.
            is_validated: It brought a token that shows its address.
        """
        options = self.options
        if kept_count >= options.most_connections:
            return self._refuse("connections")
        if is_validated:
            return "accept"
        if options.retry == "always":
            return "retry"
        is_crowded = self.half_open_count >= options.most_half_open * _RETRY_SHARE
        if options.retry == "auto" and is_crowded:
            return "retry"
        if self.half_open_count >= options.most_half_open:
            return self._refuse("half_open")
        return "accept"

    def _refuse(self, cause: str) -> Decision:
        self.refused_counts[cause] = self.refused_counts.get(cause, 0) + 1
        return "refuse"

    def report(self) -> dict[str, Any]:
        """As it stands in the report."""
        return {
            "half_open_count": self.half_open_count,
            "retry_sent_count": self.retry_sent_count,
            "invalid_token_count": self.invalid_token_count,
            "handshake_timeout_count": self.handshake_timeout_count,
            "refused_counts": dict(self.refused_counts),
        }
