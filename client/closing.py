"""
Why a connection ended, in words: error codes of QUIC and alerts of TLS by name.
"""

from dataclasses import dataclass
from typing import Final, Literal

from aioquic.quic.packet import QuicErrorCode
from aioquic.tls import AlertDescription

ClosedBy = Literal["client", "server", "idle"]

# RFC 9001, Section 4.8: a TLS alert travels as 0x100 plus its number.
FIRST_TLS_ALERT_CODE: Final = 0x100
LAST_TLS_ALERT_CODE: Final = 0x1FF


@dataclass(frozen=True, slots=True)
class Close:
    """
    How a connection ended, as its client saw it.

    Args:
        connection: The connection's number in the load.
        error_code: QUIC's transport error, or the application's when `frame_type` is None.
        frame_type: What caused it; None for a close by the application.
        reason: The words that came with it.
        by: Which end closed; "idle" when both fell silent.
    """

    connection: int
    error_code: int
    frame_type: int | None
    reason: str
    by: ClosedBy

    @property
    def error_name(self) -> str:
        """
        The code by name, such as `no_error` or `TLS alert 42 (bad_certificate)`.
        """
        if FIRST_TLS_ALERT_CODE <= self.error_code <= LAST_TLS_ALERT_CODE:
            alert = self.error_code - FIRST_TLS_ALERT_CODE
            return f"TLS alert {alert} ({_find_name(AlertDescription, alert)})"
        if self.error_code == 0:
            return "no_error"
        if self.frame_type is None:
            return f"application error {self.error_code}"
        return _find_name(QuicErrorCode, self.error_code)

    def render(self) -> str:
        """
        One sentence: which connection, by whom, why.
        """
        words = f": {self.reason}" if self.reason else ""
        if self.by == "idle":
            return f"connection {self.connection} ended because neither side was heard{words}"
        return (
            f"connection {self.connection} was closed by the {self.by} ({self.error_name}){words}"
        )


def _find_name(enum: type[QuicErrorCode | AlertDescription], number: int) -> str:
    try:
        return str(enum(number).name).lower()
    except ValueError:
        return f"code {number}"
