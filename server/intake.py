"""
Where a datagram belongs: to a connection, to a new one, or nowhere.

What leads nowhere is dropped in silence and counted by cause. Only a first datagram
is answered: one in a version that is not spoken (RFC 9000, Section 6), one that is to
come again with a token (Section 8.1.2), and one whose token is wrong (the same section).
"""

from collections.abc import Callable
from typing import Protocol

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from server import internals, routing
from server.admission import Admission
from server.session import Session
from server.tokens import RetryTokens, read_initial_token
from server.udp.model import Address, AddressBook
from server.udp.sockets import UdpSocket
from server.window import ReceiveBudget


class Gate(Protocol):
    """
    What an intake asks of an endpoint that accepts connections.
    """

    admission: Admission
    receive_budget: ReceiveBudget

    @property
    def kept_count(self) -> int:
        """Connections that take room: open, or closed and still waiting for late packets."""

    def begin(self, connection: QuicConnection) -> Session:
        """Take in a connection that has accepted its first packet."""


class Intake:
    """
    Finds the connection of a datagram, and begins those that clients ask for.

    Args:
        udp: Where drops are counted and answers go.
        configuration: For new connections; may be replaced.
        addresses: Peers as the kernel writes them.
        gate: Decides who may begin; None: nobody may.
        on_fault: Told what aioquic tripped over.
    """

    def __init__(
        self,
        udp: UdpSocket,
        configuration: QuicConfiguration,
        *,
        addresses: AddressBook,
        gate: Gate | None,
        on_fault: Callable[[Exception], None],
    ) -> None:
        self.configuration = configuration
        self.sessions: dict[bytes, Session] = {}
        """Connections by each of their IDs."""
        self._udp = udp
        self._addresses = addresses
        self._gate = gate
        self._tokens = RetryTokens()
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
        gate = self._gate
        if gate is None:
            self._udp.rx.drop("unknown_connection")
        elif header.version not in self.configuration.supported_versions:
            self._answer_version(header, address, datagram_bytes=len(datagram))
        elif not routing.may_begin(header, datagram_bytes=len(datagram)):
            self._udp.rx.drop("unknown_connection")
        else:
            self._meet(gate, header, datagram, address, now_s)
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
        if answer is not None:
            self._answer(answer, address)

    def _answer(self, answer: bytes, address: Address) -> None:
        """
        Say something to whom nothing is kept of.
        """
        # A full socket is no place to queue answers to whoever floods it.
        if self._udp.tx.can_write():
            self._udp.tx.acquire()
            self._udp.tx.write(self._addresses.pack(address), [answer])

    def _meet(
        self,
        gate: Gate,
        header: routing.LongHeader,
        datagram: bytes,
        address: Address,
        now_s: float,
    ) -> None:
        """
        Accept a newcomer, ask it to show its address, or refuse it.
        """
        admission = gate.admission
        original_cid = None
        if admission.options.retry != "off":
            token = read_initial_token(datagram)
            if token is None:
                self._udp.rx.drop("not_initial")
                return
            if token:
                original_cid = self._tokens.find_original_cid(header, address, token, now_s=now_s)
                if original_cid is None:
                    admission.invalid_token_count += 1
                    self._udp.rx.drop("invalid_token")
                    self._answer(internals.encode_invalid_token_close(header), address)
                    return
        match admission.decide(kept_count=gate.kept_count, is_validated=original_cid is not None):
            case "accept":
                self._accept(gate, header, datagram, address, now_s, original_cid=original_cid)
            case "retry":
                admission.retry_sent_count += 1
                self._udp.rx.drop("retried")
                retry = self._tokens.make_retry(header, address, now_s=now_s)
                self._answer(retry, address)
            case "refuse":
                self._udp.rx.drop("refused")

    def _accept(
        self,
        gate: Gate,
        header: routing.LongHeader,
        datagram: bytes,
        address: Address,
        now_s: float,
        *,
        original_cid: bytes | None,
    ) -> None:
        """
        Begin a connection, if aioquic takes the datagram for its first.
        """
        connection = QuicConnection(
            configuration=self.configuration,
            original_destination_connection_id=original_cid or header.destination_cid,
            retry_source_connection_id=None if original_cid is None else header.destination_cid,
        )
        internals.bound_received(connection, gate.receive_budget)
        try:
            connection.receive_datagram(datagram, address, now_s)
        except Exception as error:  # noqa: BLE001 - whatever a peer sends, others go on
            self._on_fault(error)
        if internals.has_begun(connection):
            # The client uses the ID it chose until it has seen ours.
            self.add(gate.begin(connection), header.destination_cid)
        else:
            internals.give_back_received(connection)
            self._udp.rx.drop("not_initial")
