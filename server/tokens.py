"""
Retry (RFC 9000, Section 8.1.2): tokens that show a client's address, and what is said with them.

aioquic's own handler makes the tokens: sealed, bound to address and connection ID, and
valid for 30 seconds. Nothing is kept for a client that was sent one.
"""

import os

from aioquic._buffer import Buffer, BufferReadError
from aioquic.quic.packet import QuicPacketType, encode_quic_retry, pull_quic_header
from aioquic.quic.retry import QuicRetryTokenHandler

from server.routing import CONNECTION_ID_BYTES, LongHeader
from server.udp.model import Address


def read_initial_token(datagram: bytes) -> bytes | None:
    """
    Read the token of an Initial packet, b"" when it has none.

    None when the datagram does not begin with an Initial packet.
    """
    try:
        header = pull_quic_header(Buffer(data=datagram), host_cid_length=CONNECTION_ID_BYTES)
    except (ValueError, BufferReadError):
        return None
    return header.token if header.packet_type == QuicPacketType.INITIAL else None


class RetryTokens:
    """
    Makes Retry packets, and reads the tokens that come back.
    """

    def __init__(self) -> None:
        self._handler = QuicRetryTokenHandler()

    def make_retry(self, header: LongHeader, address: Address, *, now_s: float) -> bytes:
        """
        Write the Retry packet that answers a first datagram.
        """
        source_cid = os.urandom(CONNECTION_ID_BYTES)
        token = self._handler.create_token(
            address=address,
            original_destination_connection_id=header.destination_cid,
            retry_source_connection_id=source_cid,
            now=now_s,
        )
        return encode_quic_retry(
            version=header.version,
            source_cid=source_cid,
            destination_cid=header.source_cid,
            original_destination_cid=header.destination_cid,
            retry_token=token,
        )

    def find_original_cid(
        self, header: LongHeader, address: Address, token: bytes, *, now_s: float
    ) -> bytes | None:
        """
        Read which connection ID the client began with.

        None when the token was not made here, for another address, or too long ago.
        """
        try:
            return self._handler.validate_token(
                address=address, destination_cid=header.destination_cid, token=token, now=now_s
            )
        except ValueError:
            return None
