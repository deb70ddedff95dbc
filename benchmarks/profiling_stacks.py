"""
What py-spy's samples say: pure, from its collapsed stacks to layers and functions.

A line is a stack, outermost frame first, and how often it was seen:

    main (server/__main__.py:24);Loop.run (server/loop.py:133);sendmmsg (libc.so.6) 16

A frame of Python has the file as its package knows it; one of C has its source
file, or the library when that has no symbols for it.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from quiclab.errors import RunError

_FRAME: Final = re.compile(r"(?P<name>.*) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)")
_ADDRESS: Final = re.compile(r"0x[0-9a-f]+")


class Layer(StrEnum):
    """Who a sample belongs to."""

    BUILDING = "aioquic, building packets"
    RECEIVING = "aioquic, receiving and ACKs"
    AIOQUIC = "aioquic, other"
    CRYPTO = "crypto"
    TLS = "TLS"
    CALLED = "server, called by aioquic"
    ENDPOINT = "server, endpoint and loop"
    PERF = "server, perf"
    TX = "server, TX path"
    RX = "server, RX path"
    NATIVE = "server, C module"
    SEND = "kernel, send"
    RECEIVE = "kernel, receive"
    WAIT = "kernel, wait"
    OTHER = "Python and other"


_SYSCALLS: Final = {
    "sendmmsg": Layer.SEND,
    "sendmsg": Layer.SEND,
    "recvmmsg": Layer.RECEIVE,
    "recvmsg": Layer.RECEIVE,
    "ppoll": Layer.WAIT,
    "poll": Layer.WAIT,
}
_SERVER_FILES: Final = {
    "server/perf.py": Layer.PERF,
    "server/udp/transmit.py": Layer.TX,
    "server/udp/batch.py": Layer.TX,
    "server/udp/receive.py": Layer.RX,
}
# All that is done for these, in whatever library, is theirs.
_WHOLE_FILES: Final = {
    "aioquic/_crypto.py": Layer.CRYPTO,
    "aioquic/quic/crypto.py": Layer.CRYPTO,
    "aioquic/tls.py": Layer.TLS,
}
_NATIVE_SUFFIXES: Final = (".c", ".h")
_UNKNOWN: Final = "?"


@dataclass(frozen=True, slots=True)
class Frame:
    """
    One frame of a stack.

    Args:
        name: The function; "?" where there is no symbol.
        file: Its source, or the library it is in.
    """

    name: str
    file: str

    @property
    def is_named(self) -> bool:
        """Whether anything is known of it but the library it is in."""
        return self.name != _UNKNOWN

    def __str__(self) -> str:
        return f"{self.name} ({self.file})"


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack, outermost frame first, and how often it was seen."""

    frames: tuple[Frame, ...]
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """
    What was sampled.

    Args:
        stacks: Of the thread that serves.
        other_thread_count: Samples of threads that only wait, and are left out.
    """

    stacks: tuple[Stack, ...]
    other_thread_count: int

    @property
    def count(self) -> int:
        """Samples of the thread that serves."""
        return sum(stack.count for stack in self.stacks)


def parse_stacks(text: str) -> Samples:
    """
    Read collapsed stacks.

    Raises:
        RunError: A line is none.
    """
    stacks = []
    other_thread_count = 0
    for number, line in enumerate(text.splitlines(), start=1):
        written, _, count = line.rpartition(" ")
        if not written or not count.isdecimal():
            raise RunError(f"py-spy's output, line {number}: {line[:80]!r} is no stack")
        frames = tuple(_parse_frame(each) for each in written.split(";"))
        # The control socket's thread sleeps in accept(), which py-spy takes for work.
        if any(frame.file == "threading.py" for frame in frames):
            other_thread_count += int(count)
        else:
            stacks.append(Stack(frames, int(count)))
    return Samples(stacks=tuple(stacks), other_thread_count=other_thread_count)


def _parse_frame(text: str) -> Frame:
    match = _FRAME.fullmatch(text)
    if match is None:
        return Frame(text, "")
    return Frame(_UNKNOWN if _ADDRESS.fullmatch(match["name"]) else match["name"], match["file"])


def find_layer(frames: Sequence[Frame]) -> Layer:
    """
    Say who a stack's time belongs to; the innermost frame that tells decides.
    """
    files = [frame.file for frame in frames]
    if frames and frames[-1].name in _SYSCALLS:
        return _SYSCALLS[frames[-1].name]
    for file, layer in _WHOLE_FILES.items():
        if file in files:
            return layer
    depth = next((depth for depth in range(len(files), 0, -1) if _tells(files[depth - 1])), 0)
    if not depth:
        return Layer.OTHER
    file, outer_files = files[depth - 1], files[: depth - 1]
    if file.startswith("aioquic/"):
        return _find_aioquic_layer(frames)
    if file.startswith("server/") and any(each.startswith("aioquic/") for each in outer_files):
        return Layer.CALLED
    is_python = file.startswith("server/")
    return _SERVER_FILES.get(file, Layer.ENDPOINT) if is_python else Layer.NATIVE


def _tells(file: str) -> bool:
    """Whether a file is of the server, of its C module or of aioquic."""
    # aioquic's C files are named with their folder, the server's without.
    is_native = file.endswith(_NATIVE_SUFFIXES) and "/" not in file
    return is_native or file.startswith(("server/", "aioquic/"))


def _find_aioquic_layer(frames: Sequence[Frame]) -> Layer:
    names = {frame.name.rpartition(".")[2] for frame in frames if frame.file.startswith("aioquic/")}
    if "datagrams_to_send" in names:
        return Layer.BUILDING
    if "receive_datagram" in names:
        return Layer.RECEIVING
    return Layer.AIOQUIC


@dataclass(frozen=True, slots=True)
class Share:
    """Samples of one thing, and what part of all that is."""

    name: str
    sample_count: int
    share: float


def share_layers(samples: Samples) -> list[Share]:
    """
    How the samples are spread over layers, the largest first.
    """
    return _shares(samples, lambda stack: [find_layer(stack.frames).value])


def share_functions(samples: Samples, *, is_inclusive: bool) -> list[Share]:
    """
    How the samples are spread over functions, the largest first.

    What a library does in functions without a symbol counts for who called it.

    Args:
        samples: What was sampled.
        is_inclusive: Count a function wherever it is in the stack, once a stack.
    """

    def find(stack: Stack) -> Iterable[str]:
        if is_inclusive:
            return {str(frame) for frame in stack.frames if frame.is_named}
        return [next((str(each) for each in reversed(stack.frames) if each.is_named), _UNKNOWN)]

    return _shares(samples, find)


def _shares(samples: Samples, find: Callable[[Stack], Iterable[str]]) -> list[Share]:
    counts: Counter[str] = Counter()
    for stack in samples.stacks:
        for name in find(stack):
            counts[name] += stack.count
    whole = max(1, samples.count)
    return [Share(name, count, count / whole) for name, count in counts.most_common()]
