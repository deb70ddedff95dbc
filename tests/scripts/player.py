"""
A program whose probes fire on command, so that a script's figures can be known beforehand.
"""

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("probe_player.c")
PLAY_LIMIT_S = 30
SOCKET = "s2n_quic_platform__socket__"
MMSG = "s2n_quic_platform__syscall__mmsg__"
BUFFER = "s2n_quic_core__buffer__receive_buffer__"

Event = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Player:
    """
    The built program; its own file holds the probes.

    Args:
        path: What a tracer attaches to.
    """

    path: Path

    @classmethod
    def build(cls, folder: Path) -> "Player":
        """Compile it into a folder."""
        path = folder / "probe-player"
        compiler = find_compiler()
        assert compiler is not None
        subprocess.run(
            [compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(path), str(SOURCE)],
            check=True,
            timeout=60,
        )
        return cls(path)

    def play(self, events: Iterable[Event]) -> int:
        """Fire the events in order, in a process of their own; how many were fired."""
        lines = [" ".join([name, *map(str, arguments)]) for name, arguments in events]
        result = subprocess.run(
            [str(self.path)],
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            check=True,
            timeout=PLAY_LIMIT_S,
        )
        return int(result.stdout)


def find_compiler() -> str | None:
    """Find a C compiler."""
    return shutil.which("cc") or shutil.which("gcc")


def send_call(
    *, asked: int, sent: int, fd: int = 5, error: int = 0, address: int = 4096
) -> list[Event]:
    """One sendmmsg, from start to finish."""
    return [
        (f"{MMSG}start_send", (fd, address, asked)),
        (f"{MMSG}finish_send", (fd, address, sent, error)),
    ]


def receive_call(*, asked: int, received: int, fd: int = 5, error: int = 0) -> list[Event]:
    """One recvmmsg, from start to finish."""
    return [
        (f"{MMSG}start_recv", (fd, 4096, asked)),
        (f"{MMSG}finish_recv", (fd, 4096, received, error)),
    ]


def written_message(message: int, *, sizes: Sequence[int], channel: int = 1) -> list[Event]:
    """One message written into the send ring, a datagram per size."""
    writes = [
        (f"{SOCKET}io__tx__write", (channel, message, index, size))
        for index, size in enumerate(sizes)
    ]
    return [*writes, (f"{SOCKET}io__tx__finish_write", (channel, message, len(sizes), sizes[0]))]


def sent_message(message: int, *, channel: int = 1) -> Event:
    """The socket task is done with a message of the send ring."""
    return (f"{SOCKET}task__tx__finish", (channel, message))


def told_message(message: int, *, wait_ns: int, channel: int = 1) -> Event:
    """The server tells how long a message of the send ring waited; 0: nobody saw it begin."""
    return ("message_sent", (channel, message, wait_ns))


def received_message(message: int, *, channel: int = 2) -> Event:
    """The socket task received a message into the receive ring."""
    return (f"{SOCKET}task__rx__finish", (channel, message))


def read_message(message: int, *, count: int, size: int, channel: int = 2) -> Event:
    """The endpoint is done with a message of the receive ring."""
    return (f"{SOCKET}io__rx__finish_read", (channel, message, count, size))


def buffered(*, capacity: int, written: int, popped: int) -> list[Event]:
    """A receive buffer that grows, is written and read once."""
    return [
        (f"{BUFFER}alloc", (0, capacity)),
        (f"{BUFFER}write", (0, written)),
        (f"{BUFFER}pop", (0, popped)),
    ]


def events_of_one_download(turn_count: int = 20, *, batch: int = 40) -> list[Event]:
    """
    Play turns of a download: a full batch is sent, one small ACK comes back.
    """
    events: list[Event] = []
    for _ in range(turn_count):
        for message in range(batch):
            events += written_message(message, sizes=[8972] * 7)
        events += send_call(asked=batch, sent=batch)
        events += [told_message(message, wait_ns=300_000) for message in range(batch)]
        events += [sent_message(message) for message in range(batch)]
        events += receive_call(asked=128, received=1)
        events += [received_message(0), read_message(0, count=1, size=45)]
        events += receive_call(asked=128, received=0, error=11)
        events += buffered(capacity=4096, written=8, popped=8)
    return events
