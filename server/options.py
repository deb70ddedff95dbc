"""
How connections are driven: values alone, so that a command line can be read without them.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

from server.admission import AdmissionOptions

LEAST_WINDOW_BYTES: Final = 1200
"""A window below one datagram (RFC 9000, Section 14) lets nothing through."""

PacingName = Literal["ring", "aioquic", "off"]
CongestionControlName = Literal["reno", "cubic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions:
    """
    How connections are driven.

    Args:
        pacing: "ring": the TX ring alone holds back; "aioquic": its own pacer; "off": nothing.
        is_peer_limit_kept: Never send a datagram larger than the peer said it takes.
        congestion_control: "reno" or "cubic".
        window_cap_bytes: Largest congestion window of a connection; 0: no cap.
        window_budget_bytes: What the capped windows of all connections of an endpoint may
            have together; 0: no budget.
        receive_budget_bytes: What peers of all connections of an endpoint may have sent
            that nobody has taken yet, together, besides 256 KiB of each (server/window.py).
        admission: Who may come.
    """

    pacing: PacingName = "ring"
    is_peer_limit_kept: bool = False
    congestion_control: CongestionControlName = "reno"
    window_cap_bytes: int = 2_500_000
    # Eight connections with the largest window each.
    window_budget_bytes: int = 20_000_000
    receive_budget_bytes: int = 256 * 1024 * 1024
    admission: AdmissionOptions = field(default_factory=AdmissionOptions)
