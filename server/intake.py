"""
Where a datagram belongs: to a connection, to a new one, or nowhere.

What leads nowhere is dropped in silence and counted by cause. Only a first
datagram in a version that is not spoken is answered (RFC 9000, Section 6).
"""

from collections.abc import Callable

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from server import internals, routing
from server.session import Session
from server.udp.model import Address, AddressBook
from server.udp.sockets import UdpSocket


class Intake:
    """
    Finds the connection of a datagram, and begins those that clients ask for.

    Args:
        udp: Where drops are counted and answers go.
        configuration: For new connections; may be replaced.
        addresses: Peers as the kernel writes them.
        begin: Called with a connection that has accepted its first packet; None: none may.
        on_fault: Told what aioquic tripped over.
    """

    def __init__(
        self,
        udp: UdpSocket,
        configuration: QuicConfiguration,
        *,
        addresses: AddressBook,
        begin: Callable[[QuicConnection], Session] | None,
        on_fault: Callable[[Exception], None],
    ) -> None:
        self.configuration = configuration
        self.sessions: dict[bytes, Session] = {}
        """Connections by each of their IDs."""
        self._udp = udp
        self._addresses = addresses
        self._begin = begin
        self._on_fault = on_fault

    def add(self, session: Session, cid: bytes) -> None:
        """
        Send datagrams with this ID to a connection.
        """
        session.cids.add(cid)
        self.sessions[cid] = session

    def remove(self, session: Session, cid: bytes) -> None:
        """
        An ID is not used any more.
        """
        session.cids.discard(cid)
        self.sessions.pop(cid, None)

    def forget(self, session: Session) -> None:
        """
        Drop all IDs of a connection.
        """
        for cid in session.cids:
            self.sessions.pop(cid, None)
        session.cids.clear()

    def find(self, datagram: bytes, address: Address, now_s: float) -> Session | None:
        """
        Find the connection that a datagram is to be fed to.

        A datagram that begins a connection was fed by then; None is returned for it.
        """
        if routing.has_long_header(datagram):
            return self._find_long(datagram, address, now_s)
        cid = routing.short_header_cid(datagram)
        session = self.sessions.get(cid) if cid is not None else None
        if session is None:
            self._udp.rx.drop("not_quic" if cid is None else "unknown_connection")
        return session

    def _find_long(self, datagram: bytes, address: Address, now_s: float) -> Session | None:
        header = routing.parse_long_header(datagram)
        if header is None:
            self._udp.rx.drop("not_quic")
            return None
        session = self.sessions.get(header.destination_cid)
        if session is not None:
            return session
        if self._begin is None:
            self._udp.rx.drop("unknown_connection")
        elif header.version not in self.configuration.supported_versions:
            self._answer_version(header, address, datagram_bytes=len(datagram))
        elif not routing.may_begin(header, datagram_bytes=len(datagram)):
            self._udp.rx.drop("unknown_connection")
        else:
            self._accept(self._begin, header, datagram, address, now_s)
        return None

    def _answer_version(
        self, header: routing.LongHeader, address: Address, *, datagram_bytes: int
    ) -> None:
        self._udp.rx.drop("unsupported_version")
        answer = routing.answer_version(
            header,
            datagram_bytes=datagram_bytes,
            supported_versions=self.configuration.supported_versions,
        )
        # A full socket is no place to queue answers to whoever floods it.
        if answer is not None and self._udp.tx.can_write():
            self._udp.tx.acquire()
            self._udp.tx.write(self._addresses.pack(address), [answer])

    def _accept(
        self,
        begin: Callable[[QuicConnection], Session],
        header: routing.LongHeader,
        datagram: bytes,
        address: Address,
        now_s: float,
    ) -> None:
        """
        Begin a connection, if aioquic takes the datagram for its first.
        """
        connection = QuicConnection(
            configuration=self.configuration,
            original_destination_connection_id=header.destination_cid,
        )
        try:
            connection.receive_datagram(datagram, address, now_s)
        except Exception as error:  # noqa: BLE001 - whatever a peer sends, others go on
            self._on_fault(error)
        if internals.has_begun(connection):
            # The client uses the ID it chose until it has seen ours.
            self.add(begin(connection), header.destination_cid)
        else:
            self._udp.rx.drop("not_initial")
