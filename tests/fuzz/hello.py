"""
A ClientHello as parts, so that damage reaches what lies behind its lengths.

Flipping bytes mostly breaks a length, and the parser stops there. Here extensions and
transport parameters are taken apart, changed, and written back with lengths that fit.
"""

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from aioquic._buffer import Buffer, BufferReadError

from tests.fuzz.mutate import encode_varint, mutate, pick_number

_RECORDED: Final = Path(__file__).parents[1] / "data" / "fuzz" / "client-hello.hex"
_TRANSPORT_PARAMETERS: Final = 57  # RFC 9001, Section 8.2
_KEY_SHARE: Final = 51  # RFC 8446, Section 4.2
_PRE_SHARED_KEY: Final = 41
_EARLY_DATA: Final = 42
_KNOWN_EXTENSIONS: Final = (0, 10, 13, 16, 27, 41, 42, 43, 44, 45, 50, 51, 57, 0x0A0A)
_KEY_EXCHANGE_GROUPS: Final = (0x17, 0x18, 0x19, 0x1D, 0x1E, 0x0A0A)
_MOST_PARAMETER: Final = 0x20


@dataclass(slots=True)
class Hello:
    """
    A ClientHello in parts.
    """

    version: bytes
    random: bytes
    session_id: bytes
    ciphers: bytes
    compression: bytes
    extensions: list[tuple[int, bytes]] = field(default_factory=list)

    def encode(self) -> bytes:
        """
        Write it with its handshake header.
        """
        extensions = b"".join(
            kind.to_bytes(2, "big") + len(data).to_bytes(2, "big") + data
            for kind, data in self.extensions
        )
        body = self.version + self.random + bytes([len(self.session_id)]) + self.session_id
        body += len(self.ciphers).to_bytes(2, "big") + self.ciphers
        body += bytes([len(self.compression)]) + self.compression
        body += len(extensions).to_bytes(2, "big") + extensions
        return b"\x01" + len(body).to_bytes(3, "big") + body


def load_recorded() -> tuple[bytes, bytes]:
    """
    Load a real client's source connection ID and ClientHello.
    """
    _, source_cid, hello = _RECORDED.read_text().splitlines()
    return bytes.fromhex(source_cid), bytes.fromhex(hello)


def parse_hello(data: bytes) -> Hello:
    """
    Take a well-formed ClientHello apart.
    """
    buffer = Buffer(data=data)
    buffer.pull_bytes(4)
    hello = Hello(
        version=buffer.pull_bytes(2),
        random=buffer.pull_bytes(32),
        session_id=buffer.pull_bytes(buffer.pull_uint8()),
        ciphers=buffer.pull_bytes(buffer.pull_uint16()),
        compression=buffer.pull_bytes(buffer.pull_uint8()),
    )
    buffer.pull_uint16()
    while not buffer.eof():
        kind = buffer.pull_uint16()
        hello.extensions.append((kind, buffer.pull_bytes(buffer.pull_uint16())))
    return hello


def write_hello(rng: Random, recorded: bytes) -> bytes:
    """
    Change a ClientHello in one to three places, then perhaps its bytes.
    """
    hello = parse_hello(recorded)
    for _ in range(rng.choice((1, 1, 2, 3))):
        _change(rng, hello)
    data = hello.encode()
    if rng.random() < 0.2:
        data = mutate(rng, data)
    return data


def _change(rng: Random, hello: Hello) -> None:
    luck = rng.random()
    if luck < 0.35:
        _change_extension(rng, hello, _TRANSPORT_PARAMETERS, _change_parameters)
    elif luck < 0.45:
        _change_extension(rng, hello, _KEY_SHARE, _write_key_share)
    elif luck < 0.7 and hello.extensions:
        kind, data = rng.choice(hello.extensions)
        _change_extension(rng, hello, kind, mutate if data else _random_bytes)
    elif luck < 0.85:
        _change_list(rng, hello)
    elif luck < 0.9:
        hello.session_id = rng.randbytes(rng.choice((1, 32, 33, 255)))
    elif luck < 0.95:
        hello.ciphers = rng.choice((b"", b"\x13\x01", b"\x13\x02", b"\x13\x03", rng.randbytes(7)))
    elif luck < 0.98:
        hello.compression = rng.choice((b"", b"\x01", b"\0\x01"))
    else:
        hello.version = rng.randbytes(2)


def _change_extension(rng: Random, hello: Hello, kind: int, change: object) -> None:
    assert callable(change)
    hello.extensions = [
        (one, change(rng, data) if one == kind else data) for one, data in hello.extensions
    ]


def _change_list(rng: Random, hello: Hello) -> None:
    """Drop, repeat, shuffle or add extensions."""
    luck = rng.random()
    if luck < 0.3 and hello.extensions:
        hello.extensions.remove(rng.choice(hello.extensions))
    elif luck < 0.5 and hello.extensions:
        hello.extensions.append(rng.choice(hello.extensions))
    elif luck < 0.6:
        rng.shuffle(hello.extensions)
    elif luck < 0.75:
        # Last, as RFC 8446, Section 4.2.11, asks of it.
        hello.extensions.append((_EARLY_DATA, b""))
        hello.extensions.append((_PRE_SHARED_KEY, _write_pre_shared_key(rng)))
    else:
        kind = rng.choice(_KNOWN_EXTENSIONS)
        hello.extensions.append((kind, rng.randbytes(rng.randrange(40))))


def _random_bytes(rng: Random, _: bytes) -> bytes:
    return rng.randbytes(rng.randrange(1, 20))


def _write_pre_shared_key(rng: Random) -> bytes:
    identity = rng.randbytes(rng.randrange(1, 60))
    identities = len(identity).to_bytes(2, "big") + identity + rng.randbytes(4)
    binder = rng.randbytes(rng.choice((32, 48, 31)))
    binders = bytes([len(binder)]) + binder
    return b"".join(len(part).to_bytes(2, "big") + part for part in (identities, binders))


def _write_key_share(rng: Random, data: bytes) -> bytes:
    """Shares of many groups: points not on their curve, all zeros, of a wrong length."""
    luck = rng.random()
    if luck < 0.2:
        return mutate(rng, data)
    entries = b""
    for _ in range(rng.choice((0, 1, 1, 2))):
        length = rng.choice((32, 65, 97, 56, 133, 0, 1, 31))
        key = rng.choice((bytes(length), b"\xff" * length, b"\x04" + rng.randbytes(64)))
        entries += rng.choice(_KEY_EXCHANGE_GROUPS).to_bytes(2, "big")
        entries += len(key).to_bytes(2, "big") + key
    return len(entries).to_bytes(2, "big") + entries


def _change_parameters(rng: Random, data: bytes) -> bytes:
    """Transport parameters: other values, wrong sizes, twice, or those a client may not send."""
    try:
        parameters = _parse_parameters(data)
    except BufferReadError:  # damaged already
        return mutate(rng, data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        kind = rng.randrange(_MOST_PARAMETER)
        if parameters and rng.random() < 0.3:
            kind = rng.choice(parameters)[0]
        value = encode_varint(pick_number(rng, likely=2**15))
        if rng.random() < 0.3:
            value = rng.randbytes(rng.randrange(60))
        if rng.random() < 0.8:
            parameters = [one for one in parameters if one[0] != kind]
        parameters.insert(rng.randrange(len(parameters) + 1), (kind, value))
    if parameters and rng.random() < 0.1:
        del parameters[rng.randrange(len(parameters))]
    return b"".join(
        encode_varint(kind) + encode_varint(len(value)) + value for kind, value in parameters
    )


def _parse_parameters(data: bytes) -> list[tuple[int, bytes]]:
    buffer = Buffer(data=data)
    parameters = []
    while not buffer.eof():
        kind = buffer.pull_uint_var()
        parameters.append((kind, buffer.pull_bytes(buffer.pull_uint_var())))
    return parameters
