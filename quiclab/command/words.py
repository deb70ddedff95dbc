"""
The options of every task, as written on the command line; each is said once, here.

Values stay text: what they mean is read by `quiclab.command.plan`, so that a bad one
gets a line of its own. "" is: not given.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

DEFAULT_SCRIPT = "udp-syscall"


def option(help_text: str, *, default: Any = "", is_many: bool = False, if_bare: str = "") -> Any:
    """
    Describe one option of a task, as a field of a frozen dataclass.

    Args:
        help_text: What `--help` says.
        default: "" for an option with a value, False or True for a switch.
        is_many: The option may be given several times; its field is a tuple.
        if_bare: Its value when it is given without one; "" when it needs one.
    """
    metadata = {"help": help_text, "is_many": is_many, "if_bare": if_bare}
    return field(default=() if is_many else default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceWords:
    """
    The options of `trace` as written; `docs` and `--help` say the same words.
    """

    script: Sequence[str] = option(
        "a shipped name or the path of a .bt file; a,b is one run each, a+b one run with both "
        f"(default {DEFAULT_SCRIPT})",
        is_many=True,
    )
    buffer: Sequence[str] = option(
        "bytes of the server's TX ring: 8000000, 128k, 8M, 64KiB; several are one run each "
        "(default 128000)",
        is_many=True,
    )
    rx_buffer: str = option("bytes of the server's RX ring (default 8MiB)")
    socket_buffer: str = option(
        "SO_SNDBUF and SO_RCVBUF of the server's sockets (default: the kernel's)"
    )
    max_mtu: str = option("IP MTU, sizes the rings' slots (default 9000)")
    datagram: str = option("bytes of a full QUIC datagram (default: the MTU less its headers)")
    max_segments: str = option("datagrams a message may carry by GSO, 1 to 64 (default 10)")
    gso: bool = option("segmentation offload when sending (default on)", default=True)
    gro: bool = option("segmentation offload when receiving (default on)", default=True)
    direction: str = option("download, upload or both (default download)")
    duration: str = option("how long to load: 5s, 2.5, 500ms (default 5s)")
    bytes: str = option("exact total to move instead; with --duration, whichever is first")
    connections: str = option("connections in all (default 1)")
    streams: str = option("streams on each connection (default 1)")
    workers: str = option("server processes (default 1)")
    verify_content: bool = option("check every byte, not only the length", default=False)
    map_keys: str = option("most keys a bpftrace map may hold (default: bpftrace's own)")
    privileged: bool = option("a privileged tracer container, where the engine can", default=False)
    host_headers: bool = option(
        "show the tracer's container the kernel headers of the engine's host", default=False
    )
    tracer: str = option(
        "bpftrace, in-process (the server's own recorder), auto (in-process where bpftrace cannot "
        "be used) or none (default bpftrace)"
    )
    verify: bool = option(
        "let the in-process recorder fill the same maps, and compare them", default=False
    )
    time_programs: bool = option(
        "let the kernel time each BPF program; a hit then costs some 150 ns more", default=False
    )
    overhead: bool = option(
        "measure what tracing costs: untraced twins around traced runs", default=False
    )
    repeat: str = option("with --overhead: how many times untraced, traced, traced, untraced")
    runner: str = option("auto, docker or local (default auto)")
    output: str = option("parent folder of the run folders (default artifacts)")
    label: str = option("a name for people, kept in the manifest")
    plan: bool = option("print what would be done and touch nothing", default=False)
    install: bool = option("install the Debian packages that are missing", default=True)
    yes: bool = option("agree to installs", default=False)
    quiet: bool = option("print the verdict and the folder alone", default=False)
    verbose: bool = option("print every phase and what the tools said", default=False)
    json: bool = option("print one JSON object a run on stdout", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptsWords:
    """The options of `scripts`."""

    json: bool = option("print one JSON object a script", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorWords:
    """The options of `doctor`."""

    output: str = option("parent folder of the run folders (default artifacts)")
    json: bool = option("print one JSON object a check", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildWords:
    """The options of `build`."""

    install: bool = option("install the Debian packages that are missing", default=True)
    yes: bool = option("agree to installs", default=False)
    quiet: bool = option("print errors alone", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanWords:
    """The options of `clean`."""

    images: bool = option("remove the images that the lab built, too", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TestWords:
    """The options of `test`."""

    quick: bool = option("only what needs no root, engine or patience", default=False)
    endurance: bool = option("only the many runs in a row", default=False)
    faults: bool = option("only the faults of docs/faults.md, on real parts", default=False)
    fuzz: bool = option("only the fuzzer, its long form: a million datagrams", default=False)
    soak: str = option(
        "only short runs in a row for so long (10min, 1h; default 1h), and what they leave",
        if_bare="1h",
    )
    args: str = option("more words for pytest, such as '-k rings -x'")
    install: bool = option("install the Debian packages that are missing", default=True)
    yes: bool = option("agree to installs", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchWords:
    """The options of `bench`."""

    only: Sequence[str] = option(
        "comparisons by name, or by how their names begin: stock, floor-1200-64, connections "
        "(default: all; --plan lists them)",
        is_many=True,
    )
    quick: bool = option("the core comparisons alone, in about a minute", default=False)
    pairs: str = option(
        "pairs of runs of each comparison, twice as many where the effect is small "
        "(default 7, with --quick 3)"
    )
    datagram: str = option(
        "bytes of a full datagram in the comparisons that are not about one size (default 1200)"
    )
    buffer: str = option("bytes of our server's TX ring: 8000000, 128k, 8M (default 128000)")
    instructions: bool = option(
        "count instructions a datagram under valgrind instead of measuring time", default=False
    )
    output: str = option("parent folder of the result's folder (default artifacts)")
    label: str = option("a name for people, kept in the result")
    plan: bool = option("print what would be done and touch nothing", default=False)
    install: bool = option("install the Debian packages that are missing", default=True)
    yes: bool = option("agree to installs", default=False)
    json: bool = option("print the result as one JSON document on stdout", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileWords:
    """The options of `profile`."""

    direction: str = option("download or upload (default download)")
    datagram: str = option("bytes of a full QUIC datagram (default 1200)")
    streams: str = option("streams on each connection (default 1)")
    connections: str = option("connections in all (default 1)")
    duration: str = option("how long to sample, whole seconds (default 10s)")
    buffer: str = option("bytes of the server's TX ring: 8000000, 128k, 8M (default 128000)")
    output: str = option("parent folder of the result's folder (default artifacts)")
    label: str = option("a name for people, kept in the result")
    install: bool = option("install the Debian packages that are missing", default=True)
    yes: bool = option("agree to installs", default=False)
    json: bool = option("print the result as one JSON document on stdout", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckWords:
    """`check` has no options."""
