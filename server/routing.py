"""
What a datagram's first bytes tell before any connection looks at it.

The invariants of QUIC (RFC 8999) hold for every version; with them a server
finds the connection, answers a version it does not speak, and recognises what
cannot be QUIC at all. Pure: bytes in, values out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aioquic.quic.packet import encode_quic_version_negotiation

CONNECTION_ID_BYTES: Final = 8  # of the IDs we issue (QuicConfiguration.connection_id_length)
SMALLEST_INITIAL_DATAGRAM_BYTES: Final = 1200  # RFC 9000, Section 14.1
SMALLEST_FIRST_CONNECTION_ID_BYTES: Final = 8  # RFC 9000, Section 7.2
VERSION_NEGOTIATION: Final = 0

_LONG_HEADER: Final = 0x80
_FIXED_BIT: Final = 0x40
_SHORT_HEADER_BYTES: Final = 1 + CONNECTION_ID_BYTES
_VERSION_END: Final = 5


@dataclass(frozen=True, slots=True)
class LongHeader:
    """
    The parts of a long header that all versions share.
    """

    first_byte: int
    version: int
    destination_cid: bytes
    source_cid: bytes


def short_header_cid(datagram: bytes) -> bytes | None:
    """
    Read the connection ID after a short header; None when it is none of ours.
    """
    if len(datagram) < _SHORT_HEADER_BYTES or not datagram[0] & _FIXED_BIT:
        return None
    return datagram[1:_SHORT_HEADER_BYTES]


def has_long_header(datagram: bytes) -> bool:
    """
    Whether a datagram starts with a long header (RFC 8999, Section 5.1).
    """
    return bool(datagram) and bool(datagram[0] & _LONG_HEADER)


def parse_long_header(datagram: bytes) -> LongHeader | None:
    """
    Read the version and both connection IDs; None when the datagram is too short.
    """
    position = _VERSION_END
    if len(datagram) < position + 1:
        return None
    destination_end = position + 1 + datagram[position]
    if len(datagram) < destination_end + 1:
        return None
    source_end = destination_end + 1 + datagram[destination_end]
    if len(datagram) < source_end:
        return None
    return LongHeader(
        first_byte=datagram[0],
        version=int.from_bytes(datagram[1:_VERSION_END], "big"),
        destination_cid=datagram[position + 1 : destination_end],
        source_cid=datagram[destination_end + 1 : source_end],
    )


def answer_version(
    header: LongHeader, *, datagram_bytes: int, supported_versions: Sequence[int]
) -> bytes | None:
    """
    Write the Version Negotiation packet that a header deserves, if any.

    Only a datagram that could begin a connection is answered, and a Version
    Negotiation packet never is: two servers would answer each other forever
    (RFC 9000, Sections 5.2.2 and 6.1).
    """
    if header.version == VERSION_NEGOTIATION or datagram_bytes < SMALLEST_INITIAL_DATAGRAM_BYTES:
        return None
    return encode_quic_version_negotiation(
        source_cid=header.destination_cid,
        destination_cid=header.source_cid,
        supported_versions=list(supported_versions),
    )


def may_begin(header: LongHeader, *, datagram_bytes: int) -> bool:
    """
    Whether a datagram of a known version may open a connection.

    Its first packet is looked at by aioquic; this keeps out what need not get there.
    """
    return (
        bool(header.first_byte & _FIXED_BIT)
        and datagram_bytes >= SMALLEST_INITIAL_DATAGRAM_BYTES
        and SMALLEST_FIRST_CONNECTION_ID_BYTES <= len(header.destination_cid) <= 20  # noqa: PLR2004 - RFC 9000, 17.2
    )
