"""
The probes of the server: their table, and the loader that makes them real.

Names and arguments are the original's, exactly (s2n-quic pull request 1866), so
that its scripts run on this server and ours run on the original. What stands
behind them is this server's own: a past-tense fact, its time last. Every
argument is a signed 8-byte integer. The order of `PROBES` is a contract with
the native module, whose enum lists the same probes; a test keeps both equal.

Importing this module loads no library: quiclab reads the table from outside.
`load_provider` does, through PyPI's `stapsdt`, and keeps that wrapper's faults
in here: its load() is true on failure and false on success; it passes plain
integers as 32-bit ones; floats, text and a seventh argument fail late or overrun;
and its destructor unmaps sites that native code may still be firing.
"""

import ctypes
import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

PROVIDER: Final = "s2n_quic"
MAX_ARGUMENT_COUNT: Final = 6  # a site takes its arguments in registers alone


class ProbeError(Exception):
    """A probe is defined or fired in a way that can never work."""


class _ProbesOffError(Exception):
    """No probe can fire in this process; the message is the reason and what to do."""


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


@dataclass(frozen=True, slots=True)
class LoadedProvider:
    """
    The probes of this process: on, or off with the reason.

    Args:
        path: The provider file, which tracers attach to; None when off.
        site_addresses: Where the probes' sites lie, in the order of `PROBES`; 0 when off.
        library_version: Of libstapsdt, or "" when off.
        note: Why no probe can fire and what to do, one line; "" when on.
    """

    path: Path | None
    site_addresses: tuple[int, ...]
    library_version: str
    note: str
    _library: Any = field(default=None, repr=False, compare=False)
    _handles: tuple[int, ...] = field(default=(), repr=False, compare=False)

    @property
    def is_on(self) -> bool:
        """
        Whether the probes can fire.
        """
        return self.path is not None

    def is_traced(self, index: int) -> bool:
        """
        Whether a tracer listens to a probe just now.
        """
        return self.is_on and bool(self._library.probeIsEnabled(self._handles[index]))

    def fire(self, index: int, *values: int) -> None:
        """
        Fire a probe from Python; the hot path does so from the native module.

        Arguments are checked whether or not anyone listens, so that attaching a
        tracer cannot make a program fail that ran well before.

        Raises:
            ProbeError: The values are not what the probe takes.
        """
        spec = PROBES[index]
        if len(values) != len(spec.arguments):
            raise ProbeError(
                f"probe {spec.name} was fired with {len(values)} values; "
                f"it takes {len(spec.arguments)}: {', '.join(spec.arguments)}"
            )
        for name, value in zip(spec.arguments, values, strict=True):
            if not isinstance(value, int) or not -(2**63) <= value < 2**63:
                raise ProbeError(
                    f"probe {spec.name}: {name} is {value!r}; expected a signed 8-byte integer"
                )
        if self.is_on:
            padding = (0,) * (MAX_ARGUMENT_COUNT - len(values))
            self._library.probeFire(self._handles[index], *values, *padding)


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
    # Our own: once a message, where the original's tx write fires once a datagram. wait_ns
    # is from its first datagram to the end of its call; 0: nobody listened when it began.
    ProbeSpec("message_sent", ("channel", "message", "wait_ns")),
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
    MESSAGE_SENT,
) = range(30)


LIBRARY: Final = Path(__file__).resolve().parent / "stapsdt" / "libstapsdt.so"

# Providers live as long as the process: native code fires their sites unasked.
_LOADED: dict[Path | None, LoadedProvider] = {}


def load_provider(directory: Path | None, *, library: Path = LIBRARY) -> LoadedProvider:
    """
    Define all probes and map the provider file, once per process and directory.

    Never fails: where no probe can fire, the result is off and its note says why.

    Args:
        directory: Folder of the provider file, made when absent; only this user may
            be able to write to it. None: $STAPSDT_DIRECTORY or the user's cache.
        library: The built libstapsdt.
    """
    key = directory.absolute() if directory else None
    if key not in _LOADED:
        try:
            _LOADED[key] = _load(_open_library(library), key)
        except _ProbesOffError as reason:
            note = f"no probe can fire: {reason}, or pass --probes off"
            return LoadedProvider(None, (0,) * len(PROBES), "", note)
    return _LOADED[key]


def _open_library(path: Path) -> Any:
    """
    Open our libstapsdt, so that `import stapsdt` finds it by its SONAME, and declare it.
    """
    if not path.exists():
        raise _ProbesOffError(f"{path.name} is not in {path.parent}; run python -m server.build")
    try:
        # PyDLL keeps the GIL: giving it up costs 68 to 189 us while another thread is busy.
        library = ctypes.PyDLL(str(path))
        functions: dict[str, tuple[Any, list[Any]]] = {
            "providerSetDirectory": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p]),
            "providerFile": (ctypes.c_char_p, [ctypes.c_void_p]),
            "providerError": (ctypes.c_char_p, [ctypes.c_void_p]),
            "probeSite": (ctypes.c_void_p, [ctypes.c_void_p]),
            "probeIsEnabled": (ctypes.c_int, [ctypes.c_void_p]),
            # Variadic in C; both machines pass further integers as they pass named ones.
            "probeFire": (None, [ctypes.c_void_p] + [ctypes.c_int64] * MAX_ARGUMENT_COUNT),
            "stapsdtVersion": (ctypes.c_char_p, []),
        }
        for name, (result, arguments) in functions.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise _ProbesOffError(
            f"{path} cannot be used ({error}); remove it and run python -m server.build"
        ) from error
    return library


def _import_stapsdt(library: Any) -> Any:
    """
    Import the package, and make sure that it found the library which is open already.
    """
    try:
        stapsdt = importlib.import_module("stapsdt")
    except (ImportError, OSError) as error:
        raise _ProbesOffError(
            f"Python's stapsdt package cannot be imported ({error}); install requirements.lock"
        ) from error
    found, ours = (
        ctypes.cast(opened.providerInit, ctypes.c_void_p).value for opened in (stapsdt, library)
    )
    if found != ours:
        raise _ProbesOffError(
            "stapsdt was imported earlier with another libstapsdt; "
            "call load_provider before that import"
        )
    return stapsdt


def _load(library: Any, directory: Path | None) -> LoadedProvider:
    stapsdt = _import_stapsdt(library)
    provider = stapsdt.Provider(PROVIDER)
    # One reference too many, on purpose: the wrapper's destructor never runs, neither
    # at the interpreter's end nor by the cycle that provider and probes form.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(provider))
    if directory is not None:
        library.providerSetDirectory(provider._provider, os.fsencode(directory))  # noqa: SLF001 - the wrapper has no other way to it
    handles = tuple(_define(stapsdt, provider))
    provider.load()  # judged by what is mapped: the result is inverted in stapsdt 0.1.1
    sites = tuple(library.probeSite(handle) or 0 for handle in handles)
    file = library.providerFile(provider._provider)  # noqa: SLF001
    error = library.providerError(provider._provider).decode(errors="replace")  # noqa: SLF001
    if not file or not all(sites):
        raise _ProbesOffError(error or "libstapsdt mapped no provider file and gave no reason")
    path = Path(os.fsdecode(file))
    if not all(any(site in code for code in _find_mapped_code(path)) for site in sites):
        raise _ProbesOffError(f"{path} was replaced while it was being mapped; start again")
    version = library.stapsdtVersion().decode()
    return LoadedProvider(path, sites, version, "", library, handles)


def _define(stapsdt: Any, provider: Any) -> Iterator[int]:
    for spec in PROBES:
        types = [stapsdt.ArgTypes.int64] * len(spec.arguments)
        handle = provider.add_probe(spec.name, *types)._probe  # noqa: SLF001
        if handle is None:
            raise _ProbesOffError(f"libstapsdt refused to define {spec.name}")
        yield handle


def _find_mapped_code(path: Path) -> list[range]:
    """
    Where this process has a file mapped for execution; a deleted file is not that file.
    """
    found = []
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        addresses, permissions, *_, name = line.split(maxsplit=5)
        if "x" in permissions and name == str(path):
            start, end = (int(address, 16) for address in addresses.split("-"))
            found.append(range(start, end))
    return found
