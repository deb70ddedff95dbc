"""
What a machine holds that a run could leave behind, as lists that can be compared.
"""

import ctypes
import platform
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import psutil

from quiclab import leftovers
from quiclab.containers.engine import Engine

Listing = Mapping[str, list[str]]

# bpf(2) by architecture, and its commands that go through all there is (Linux 4.13; links 5.8).
_BPF_CALL: Final = {"x86_64": 321, "s390x": 351, "ppc64le": 361}.get(platform.machine(), 280)
_NEXT_ID: Final = {"programs": 11, "maps": 12, "links": 31}
_ATTRIBUTES: Final = struct.Struct("=3I")
_SYSCTLS: Final = (
    "kernel/bpf_stats_enabled",
    "kernel/perf_event_paranoid",
    "kernel/unprivileged_bpf_disabled",
    "net/ipv4/ip_forward",
    *(f"net/core/{way}mem_{what}" for way in "rw" for what in ("default", "max")),
    "net/core/netdev_max_backlog",
)
_TEMPORARY: Final = ("/tmp", "/var/tmp", "/run", "/dev/shm")


def collect_listing(engine: Engine | None) -> Listing:
    """
    List everything; what cannot be read here is an empty list.
    """
    listed: dict[str, Callable[[], Iterator[str]]] = {
        "processes": _list_processes,
        "descriptors": _list_descriptors,
        "temporary files": _list_temporary,
        "live runs": _list_live_runs,
        "mounts": _list_mounts,
        "network interfaces": lambda: iter(psutil.net_if_addrs()),
        "sysctls": _list_sysctls,
        "uprobe events": _list_uprobe_events,
        **{f"BPF {kind}": _bpf_lister(command) for kind, command in _NEXT_ID.items()},
    }
    if engine is not None:
        listed |= {
            "containers": lambda: _list_containers(engine),
            "networks": lambda: (str(each.name) for each in engine.client.networks.list()),
            "volumes": lambda: (str(each.name) for each in engine.client.volumes.list()),
            "images": lambda: (
                str(tag)
                for image in engine.client.images.list()
                for tag in image.tags or [image.id]
            ),
        }
    return {name: sorted(lister()) for name, lister in listed.items()}


def compare_listings(before: Listing, after: Listing) -> dict[str, dict[str, list[str]]]:
    """
    Name what came and what went, by kind; {} when both hold the same.
    """
    differences = {}
    for name in before:
        came = sorted(set(after[name]) - set(before[name]))
        gone = sorted(set(before[name]) - set(after[name]))
        if came or gone:
            differences[name] = {"came": came, "gone": gone}
    return differences


def _list_processes() -> Iterator[str]:
    """This process's own children, and whatever carries the mark of a run."""
    for child in psutil.Process().children(recursive=True):
        yield f"child {child.pid}"
    for process in psutil.process_iter():
        try:
            run_id = process.environ().get(leftovers.RUN_MARK)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if run_id:
            yield f"{process.pid} of run {run_id}"


def _list_descriptors() -> Iterator[str]:
    """What this process has open, by kind: numbers and inodes differ from time to time."""
    kinds: dict[str, int] = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue  # the one that this listing itself has open
        kind = target.partition(":")[0] if ":[" in target else target
        kinds[kind] = kinds.get(kind, 0) + 1
    yield from (f"{count} × {kind}" for kind, count in kinds.items())


def _list_temporary() -> Iterator[str]:
    for base in _TEMPORARY:
        yield from map(str, Path(base).glob(f"{leftovers.DIRECTORY_PREFIX}*"))


def _list_live_runs() -> Iterator[str]:
    yield from (path.name for path in leftovers.state_directory().glob("*"))


def _list_mounts() -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        yield f"{fields.split()[4]} ({kind.split()[0]})"


def _list_sysctls() -> Iterator[str]:
    for name in _SYSCTLS:
        path = Path("/proc/sys") / name
        if path.exists():
            yield f"{name.replace('/', '.')} = {path.read_text().strip()}"


def _list_uprobe_events() -> Iterator[str]:
    for base in ("/sys/kernel/tracing", "/sys/kernel/debug/tracing"):
        path = Path(base) / "uprobe_events"
        if path.exists():
            yield from path.read_text().splitlines()
            return


def _bpf_lister(command: int) -> Callable[[], Iterator[str]]:
    def walk() -> Iterator[str]:
        call = ctypes.CDLL(None, use_errno=True).syscall
        last = 0
        while True:
            attributes = ctypes.create_string_buffer(_ATTRIBUTES.pack(last, 0, 0))
            if call(_BPF_CALL, command, attributes, _ATTRIBUTES.size) < 0:
                return  # no further one, or not for this user
            last = _ATTRIBUTES.unpack(attributes.raw[: _ATTRIBUTES.size])[1]
            yield str(last)

    return walk


def _list_containers(engine: Engine) -> Iterator[str]:
    for container in engine.client.api.containers(all=True):
        yield f"{container['Names'][0]} ({container['State']})"
