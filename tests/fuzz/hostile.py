"""
A client that completes its handshake, or nearly, and then says what no client should.

aioquic's own client keeps the connection alive: it acknowledges, it knows the keys. What
is hostile is put in beside it, sealed with the connection's keys, or is the client's own
frames, damaged between its builder and its AEAD.
"""

from collections.abc import Callable
from random import Random
from typing import Final

from aioquic import tls
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import END_STATES, QuicConnection
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.events import HandshakeCompleted

from tests.fuzz.frames import Peer, write_payload
from tests.fuzz.mutate import mutate, resize

_SHORT_HEADER: Final = 0x40
_KEY_PHASE_SHIFT: Final = 2
_SMALLEST_PAYLOAD_BYTES: Final = 2  # so that header protection has its sample
_PACKET_NUMBER_BYTES: Final = 2
_KNOWN_STREAMS: Final = 20

Seal = Callable[[bytes, bytes, int], bytes]


class HostileClient:
    """
    One connection of a hostile client. Does no I/O: datagrams in, datagrams out.

    Args:
        rng: Where chance comes from.
        configuration: The client's.
        server: Where the server is.
        handshake_damage: Chance that a packet of the handshake is damaged before it is sealed.
    """

    def __init__(
        self,
        rng: Random,
        configuration: QuicConfiguration,
        *,
        server: tuple[str, int],
        now_s: float,
        handshake_damage: float = 0.0,
    ) -> None:
        self.connection = QuicConnection(configuration=configuration)
        self.is_established = False
        self.payloads: list[bytes] = []
        """What 1-RTT packets held that was not aioquic's own, in order."""
        self._rng = rng
        self._peer = Peer()
        self._server = server
        self._damage = {
            tls.Epoch.INITIAL: handshake_damage / 4,
            tls.Epoch.HANDSHAKE: handshake_damage,
            tls.Epoch.ONE_RTT: 0.0,
        }
        self.connection.connect(server, now=now_s)
        for epoch, damage in self._damage.items():
            if damage:
                self._damage_epoch(epoch)

    @property
    def is_over(self) -> bool:
        """Whether the connection has ended, as far as this end knows."""
        return self.connection._state in END_STATES

    def receive(self, datagram: bytes, now_s: float) -> None:
        """
        Take what the server sent.
        """
        connection = self.connection
        connection.receive_datagram(datagram, self._server, now_s)
        while (event := connection.next_event()) is not None:
            if isinstance(event, HandshakeCompleted):
                self.is_established = True
                # Answers on streams that only hostile frames have opened must not end it.
                for index in range(_KNOWN_STREAMS):
                    connection._get_or_create_stream_for_send(4 * index)
        path = connection._network_paths[0]
        if path.remote_challenges:
            self._peer.challenge = path.remote_challenges[-1]
        space = connection._spaces[tls.Epoch.ONE_RTT]
        self._peer.largest_received_packet = max(0, space.largest_received_packet)

    def build(self, now_s: float) -> list[bytes]:
        """
        Build what aioquic's client has to say on its own.
        """
        connection = self.connection
        timer_s = connection.get_timer()
        if not self.is_over and timer_s is not None and timer_s <= now_s:
            connection.handle_timer(now_s)
        return [datagram for datagram, _ in connection.datagrams_to_send(now_s)]

    def write(self) -> bytes:
        """
        Seal a payload that is hostile, made up or the client's own, damaged.
        """
        return self.seal(write_payload(self._rng, self._peer))

    def seal(self, payload: bytes) -> bytes:
        """
        Put a payload into a 1-RTT packet with the next number; now and then with new keys.
        """
        connection = self.connection
        self.payloads.append(payload)
        pair = connection._cryptos[tls.Epoch.ONE_RTT]
        if self._rng.random() < 0.01 and connection._handshake_confirmed:
            pair.update_key()
        number = connection._packet_number
        connection._packet_number += 1
        first_byte = _SHORT_HEADER | pair.key_phase << _KEY_PHASE_SHIFT | _PACKET_NUMBER_BYTES - 1
        if self._rng.random() < 0.002:
            first_byte |= 0x18  # reserved bits (RFC 9000, Section 17.3.1)
        header = bytes([first_byte]) + connection._peer_cid.cid
        header += (number & 0xFFFF).to_bytes(_PACKET_NUMBER_BYTES, "big")
        payload = resize(payload, max(len(payload), _SMALLEST_PAYLOAD_BYTES))
        return pair.encrypt_packet(header, payload, number)

    def damage_own_frames(self, chance: float) -> None:
        """
        From now on, damage the client's own 1-RTT packets before they are sealed.
        """
        self._damage[tls.Epoch.ONE_RTT] = chance
        self._damage_epoch(tls.Epoch.ONE_RTT)

    def _damage_epoch(self, epoch: tls.Epoch) -> None:
        pair: CryptoPair = self.connection._cryptos[epoch]
        seal: Seal = pair.encrypt_packet

        def damage_and_seal(plain_header: bytes, plain_payload: bytes, packet_number: int) -> bytes:
            payload = plain_payload
            if self._rng.random() < self._damage[epoch]:
                # The header has told the length already.
                payload = resize(mutate(self._rng, payload), len(payload))
                if epoch is tls.Epoch.ONE_RTT:
                    self.payloads.append(payload)
            return seal(plain_header, payload, packet_number)

        pair.encrypt_packet = damage_and_seal  # type: ignore[method-assign]
