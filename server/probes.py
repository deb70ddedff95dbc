"""
The probes of the server: their table, and the loader that makes them real.

Names and arguments are the original's, exactly (s2n-quic pull request 1866), so
that its scripts run on this server and ours run on the original. Every
argument is a signed 8-byte integer. The order of `PROBES` is a contract with
the native module, whose enum lists the same probes; a test keeps both equal.

Importing this module loads no library: quiclab reads the table from outside.
"""

from dataclasses import dataclass
from typing import Final

PROVIDER: Final = "s2n_quic"
MAX_ARGUMENT_COUNT: Final = 6  # a site takes its arguments in registers alone


class ProbeError(Exception):
    """A probe is defined or fired in a way that can never work."""


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """
    One probe: its name and what its integer arguments mean, in order.

    Raises:
        ProbeError: The name or the number of arguments cannot be a probe's.
    """

    name: str
    arguments: tuple[str, ...]

    def __post_init__(self) -> None:
        if not (self.name.isascii() and self.name.isidentifier()):
            raise ProbeError(
                f"probe name {self.name!r} is not usable; write ASCII letters, digits and _ alone"
            )
        if len(self.arguments) > MAX_ARGUMENT_COUNT:
            raise ProbeError(
                f"probe {self.name} has {len(self.arguments)} arguments; "
                f"at most {MAX_ARGUMENT_COUNT} fit in registers"
            )


_IO = "s2n_quic_platform__socket__io__"
_RING = "s2n_quic_platform__socket__ring__"
_TASK = "s2n_quic_platform__socket__task__"
_SYSCALL = "s2n_quic_platform__syscall__"
_RECEIVE_BUFFER = "s2n_quic_core__buffer__receive_buffer__"

_COUNT = ("channel", "count")
_SEGMENT = ("channel", "message", "segment_index", "segment_size")
_SEGMENTS = ("channel", "message", "segment_count", "segment_size")
_CURSOR = ("channel", "index", "count", "capacity")
_MESSAGE = ("channel", "message")
_MMSG_START = ("fd", "mmsghdr", "message_count")
_MMSG_FINISH = ("fd", "mmsghdr", "message_count", "error")
_MSG_START = ("fd", "msghdr")
_MSG_FINISH = ("fd", "msghdr", "error")
_STORED = ("offset", "len")

PROBES: Final[tuple[ProbeSpec, ...]] = (
    ProbeSpec(_IO + "tx__acquire", _COUNT),
    ProbeSpec(_IO + "tx__write", _SEGMENT),
    ProbeSpec(_IO + "tx__finish_write", _SEGMENTS),
    ProbeSpec(_IO + "tx__release", _COUNT),
    ProbeSpec(_IO + "rx__acquire", _COUNT),
    ProbeSpec(_IO + "rx__read", _SEGMENT),
    ProbeSpec(_IO + "rx__finish_read", _SEGMENTS),
    ProbeSpec(_IO + "rx__release", _COUNT),
    ProbeSpec(_RING + "consumer__acquire", _CURSOR),
    ProbeSpec(_RING + "consumer__release", _CURSOR),
    ProbeSpec(_RING + "producer__acquire", _CURSOR),
    ProbeSpec(_RING + "producer__release", _CURSOR),
    ProbeSpec(_TASK + "tx__acquire", _COUNT),
    ProbeSpec(_TASK + "tx__finish", _MESSAGE),
    ProbeSpec(_TASK + "tx__release", _COUNT),
    ProbeSpec(_TASK + "rx__acquire", _COUNT),
    ProbeSpec(_TASK + "rx__finish", _MESSAGE),
    ProbeSpec(_TASK + "rx__release", _COUNT),
    ProbeSpec(_SYSCALL + "mmsg__start_send", _MMSG_START),
    ProbeSpec(_SYSCALL + "mmsg__finish_send", _MMSG_FINISH),
    ProbeSpec(_SYSCALL + "mmsg__start_recv", _MMSG_START),
    ProbeSpec(_SYSCALL + "mmsg__finish_recv", _MMSG_FINISH),
    ProbeSpec(_SYSCALL + "msg__start_send", _MSG_START),
    ProbeSpec(_SYSCALL + "msg__finish_send", _MSG_FINISH),
    ProbeSpec(_SYSCALL + "msg__start_recv", _MSG_START),
    ProbeSpec(_SYSCALL + "msg__finish_recv", _MSG_FINISH),
    ProbeSpec(_RECEIVE_BUFFER + "alloc", ("offset", "capacity")),
    ProbeSpec(_RECEIVE_BUFFER + "write", _STORED),
    ProbeSpec(_RECEIVE_BUFFER + "pop", _STORED),
)

# Places of the probes in the table, for whoever fires one.
(
    IO_TX_ACQUIRE,
    IO_TX_WRITE,
    IO_TX_FINISH_WRITE,
    IO_TX_RELEASE,
    IO_RX_ACQUIRE,
    IO_RX_READ,
    IO_RX_FINISH_READ,
    IO_RX_RELEASE,
    RING_CONSUMER_ACQUIRE,
    RING_CONSUMER_RELEASE,
    RING_PRODUCER_ACQUIRE,
    RING_PRODUCER_RELEASE,
    TASK_TX_ACQUIRE,
    TASK_TX_FINISH,
    TASK_TX_RELEASE,
    TASK_RX_ACQUIRE,
    TASK_RX_FINISH,
    TASK_RX_RELEASE,
    MMSG_START_SEND,
    MMSG_FINISH_SEND,
    MMSG_START_RECV,
    MMSG_FINISH_RECV,
    MSG_START_SEND,
    MSG_FINISH_SEND,
    MSG_START_RECV,
    MSG_FINISH_RECV,
    RECEIVE_BUFFER_ALLOC,
    RECEIVE_BUFFER_WRITE,
    RECEIVE_BUFFER_POP,
) = range(29)
