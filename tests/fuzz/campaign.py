"""
Harm done to a real server over loopback, batch by batch, with a look at it after each.
"""

import contextlib
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final

from tests.fuzz.datagrams import DatagramWriter
from tests.fuzz.drill import MOST_PAYLOADS, MOVE_SHARE, make_client, prepare_client
from tests.fuzz.failure import Failure, dump_failure
from tests.fuzz.hostile import HostileClient
from tests.fuzz.target import Target, TargetError

_SOCKET_COUNT: Final = 200
_CHEAP_BATCH: Final = 500  # datagrams; the server's socket has room for three times as many
_DEAR_BATCH: Final = 100  # each may cost the server a handshake, and good clients wait behind
_TALK_COUNT: Final = 50
_HANDSHAKE_ROUNDS: Final = 12
_MOST_FAILURES: Final = 20  # further ones are the same ones again
_LARGEST_DATAGRAM_BYTES: Final = 65_535
_MEBIBYTE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """
    How much harm of each kind is done.

    Args:
        garbage: Datagrams that get nowhere: noise, other versions, truncated Initials.
        damaged_initials: Changed after they were sealed.
        sealed_initials: Changed before.
        payloads: Changed before they were sealed, on connections that stand.
        newcomers: Well-formed Initials of clients that never say more.
    """

    garbage: int
    damaged_initials: int
    sealed_initials: int
    payloads: int
    newcomers: int


NOTHING: Final = Amounts(garbage=0, damaged_initials=0, sealed_initials=0, payloads=0, newcomers=0)


@dataclass
class Campaign:
    """
    One run against one server.

    Args:
        target: The server.
        seed: Decides what is sent.
        directory: Where failures are kept.
    """

    target: Target
    seed: int
    directory: Path
    sent_counts: Counter[str] = field(default_factory=Counter)
    elapsed_s: dict[str, float] = field(default_factory=dict)
    own_count: int = 0
    """Datagrams that hostile clients sent as any client does: handshakes, acknowledgements."""
    connection_count: int = 0
    failures: list[Path] = field(default_factory=list)

    def run(self, amounts: Amounts, *, say: Callable[[str], None] = lambda _: None) -> None:
        """
        Do all of it.

        Raises:
            TargetError: The server cannot take any more.
        """
        writer = DatagramWriter(Random(self.seed))
        steps: tuple[tuple[str, Callable[[], bytes], int, int], ...] = (
            ("garbage", writer.write_garbage, amounts.garbage, _CHEAP_BATCH),
            ("damaged", writer.write_damaged_initial, amounts.damaged_initials, _DEAR_BATCH),
            ("sealed", writer.write_sealed_initial, amounts.sealed_initials, _DEAR_BATCH),
            ("newcomers", writer.write_initial, amounts.newcomers, _DEAR_BATCH),
        )
        with _open_sockets(self.target.address) as sockets:
            for kind, write, count, batch_count in steps:
                if count:
                    with self._time(kind, say):
                        self._send(kind, write, count, batch_count=batch_count, sockets=sockets)
        if amounts.payloads:
            with self._time("payloads", say):
                self._converse(amounts.payloads)

    @contextlib.contextmanager
    def _time(self, kind: str, say: Callable[[str], None]) -> Iterator[None]:
        begun_s = monotonic()
        yield
        self.elapsed_s[kind] = elapsed_s = monotonic() - begun_s
        rss_mib = self.target.rss_bytes / _MEBIBYTE
        say(f"{kind}: {self.sent_counts[kind]:,} in {elapsed_s:.1f} s, RSS {rss_mib:.0f} MiB")

    # Datagrams -----------------------------------------------------------------------

    def _send(
        self,
        kind: str,
        write: Callable[[], bytes],
        count: int,
        *,
        batch_count: int,
        sockets: list[socket.socket],
    ) -> None:
        left_count = count
        while left_count:
            batch = tuple(write() for _ in range(min(batch_count, left_count)))
            left_count -= len(batch)
            for number, datagram in enumerate(batch):
                _send(sockets[number % len(sockets)], datagram)
            self.sent_counts[kind] += len(batch)
            self._check(partial(Failure, kind=kind, seed=self.seed, datagrams=batch))

    def _check(self, make_failure: Callable[[str], Failure]) -> None:
        """Wait for the server; keep what made it trip."""
        try:
            self.target.await_quiet()
        except TargetError as error:
            self.failures.append(dump_failure(make_failure(str(error)), self.directory))
            is_dead = self.target.server.process.poll() is not None
            if is_dead or len(self.failures) >= _MOST_FAILURES:
                raise

    # Conversations -------------------------------------------------------------------

    def _converse(self, payload_count: int) -> None:
        """Keep so many conversations going until so much was said."""
        seeds = iter(range(self.seed * 1_000_000, (self.seed + 1) * 1_000_000))
        talks: list[_Talk] = []
        try:
            while self.sent_counts["payloads"] < payload_count:
                newcomers = [
                    _Talk(Random(seed), self.target)
                    for seed in islice(seeds, _TALK_COUNT - len(talks))
                ]
                talks += self._shake_hands(newcomers)
                for talk in talks:
                    talk.say()
                self._settle(talks)
                self.sent_counts["payloads"] += sum(talk.take_said_count() for talk in talks)
                for talk in [talk for talk in talks if talk.is_over]:
                    self._part(talk)
                    talks.remove(talk)
        finally:
            for talk in talks:
                self._part(talk)

    def _shake_hands(self, talks: list["_Talk"]) -> list["_Talk"]:
        """Those of them whose connection stands."""
        for _ in range(_HANDSHAKE_ROUNDS):
            waiting = [talk for talk in talks if not talk.is_decided]
            if not waiting:
                break
            self._settle(waiting)
        for talk in talks:
            if not talk.begin():
                self._part(talk)
        standing = [talk for talk in talks if talk.client.is_established and not talk.is_over]
        self.connection_count += len(standing)
        return standing

    def _part(self, talk: "_Talk") -> None:
        talk.close()
        self.own_count += talk.own_count

    def _settle(self, talks: list["_Talk"]) -> None:
        """Let everybody say what is due, and the server answer."""
        for talk in talks:
            talk.exchange()
        said = tuple(tuple(talk.client.payloads) for talk in talks)
        self._check(partial(Failure, kind="payloads", seed=self.seed, conversations=said))
        for talk in talks:
            talk.exchange()


class _Talk:
    """
    A hostile client with a socket of its own.

    Args:
        rng: Where chance comes from.
        target: Whom it talks to.
    """

    def __init__(self, rng: Random, target: Target) -> None:
        self._rng = rng
        self._server = server = target.address
        self._sock = _open_socket(f"127.0.{rng.randrange(2, 250)}.{rng.randrange(2, 250)}", server)
        self._said_count = 0
        self.own_count = 0
        self.client: HostileClient = make_client(
            rng, server=server, now_s=monotonic(), trust_pem=target.trust_pem
        )

    @property
    def is_decided(self) -> bool:
        """Whether its handshake is over, one way or the other."""
        return self.client.is_established or self.client.is_over

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be said."""
        return self.client.is_over or len(self.client.payloads) >= MOST_PAYLOADS

    def begin(self) -> bool:
        """Start what is to be harmed; False: the connection does not stand."""
        if not self.client.is_established or self.client.is_over:
            return False
        prepare_client(self._rng, self.client)
        return True

    def say(self) -> None:
        """Send one hostile packet, now and then from another port."""
        datagram = self.client.write()
        if self._rng.random() < MOVE_SHARE:
            with _open_socket(self._sock.getsockname()[0], self._server) as elsewhere:
                _send(elsewhere, datagram)
        else:
            _send(self._sock, datagram)

    def exchange(self) -> None:
        """Take what has come, and send what is due."""
        with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
            while True:
                self.client.receive(self._sock.recv(_LARGEST_DATAGRAM_BYTES), monotonic())
        for datagram in self.client.build(monotonic()):
            _send(self._sock, datagram)
            self.own_count += 1

    def take_said_count(self) -> int:
        """How many hostile payloads were sent since the last call."""
        before, self._said_count = self._said_count, len(self.client.payloads)
        return self._said_count - before

    def close(self) -> None:
        """Go away: with a word in one case of two."""
        if self._rng.random() < 0.5 and not self.client.is_over:
            self.client.connection.close()
            self.exchange()
        self._sock.close()


def _send(sock: socket.socket, datagram: bytes) -> None:
    # A refusal is a dead server's, seen by the next look at it.
    with contextlib.suppress(ConnectionRefusedError):
        sock.send(datagram)


def _open_socket(ip: str, server: tuple[str, int]) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((ip, 0))
    sock.connect(server)
    sock.setblocking(False)
    return sock


@contextlib.contextmanager
def _open_sockets(server: tuple[str, int]) -> Iterator[list[socket.socket]]:
    """Sockets at many addresses of this machine, which nobody reads."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(_open_socket(f"127.0.1.{number + 1}", server))
            for number in range(_SOCKET_COUNT)
        ]
