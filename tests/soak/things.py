"""
What is there on this machine that a run could leave behind, and what came or went.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from quiclab.containers.engine import Engine
from quiclab.runner.docker_place import RUN_LABEL
from tests.soak.kernel import find_holders, list_bpf

SOAK_MARK: Final = "QUICLAB_SOAK"
"""Environment variable that every local process of a soak inherits."""
_TEMPORARY: Final = ("/tmp", "/var/tmp", "/run", "/dev/shm")
_PATTERNS: Final = ("*quiclab*", "*bpftrace*", "*s2n_quic*")
_SYSCTLS: Final = (
    "net/core/*",
    "net/ipv4/udp*",
    "kernel/*bpf*",
    "kernel/perf_event*",
    "kernel/kptr_restrict",
    "kernel/yama/*",
)


@dataclass(frozen=True, slots=True, order=True)
class Thing:
    """
    One thing that is there; two are the same when kind and name are.

    Args:
        kind: "container", "mount", "BPF program" and so on.
        name: What tells it from others of its kind, with its value where it has one.
        is_ours: A run of this soak made it; None where that cannot be known.
    """

    kind: str
    name: str
    is_ours: bool | None = field(default=None, compare=False)

    def __str__(self) -> str:
        owner = {True: " (of this soak)", False: " (of somebody else)", None: ""}[self.is_ours]
        return f"{self.kind} {self.name}{owner}"


@dataclass(slots=True)
class Watch:
    """
    Where to look, and by what the soak's own things are known.

    Args:
        token: Value of SOAK_MARK.
        folders: Made for this soak alone; whatever lies there is its own.
        engine: Where containers are made, if any.
        run_ids: Its runs so far.
    """

    token: str
    folders: Iterable[Path]
    engine: Engine | None = None
    run_ids: set[str] = field(default_factory=set)

    def look(self) -> frozenset[Thing]:
        """
        List everything.
        """
        return frozenset(
            [
                *self._engine_things(),
                *_mounts(),
                *self._bpf(),
                *_sysctls(),
                *self._files(),
                *self._processes(),
                *_descriptors(),
            ]
        )

    def _owner(self, run_id: str | None) -> bool | None:
        return None if run_id is None else run_id in self.run_ids

    def _engine_things(self) -> Iterator[Thing]:
        if self.engine is None:
            return
        client = self.engine.client
        for container in client.containers.list(all=True, ignore_removed=True):
            owner = self._owner(container.labels.get(RUN_LABEL))
            yield Thing("container", f"{container.name} {container.id}", owner)
        for network in client.networks.list():
            labels = network.attrs.get("Labels") or {}
            yield Thing(
                "network", f"{network.name} {network.id}", self._owner(labels.get(RUN_LABEL))
            )
        for volume in client.volumes.list():
            yield Thing("volume", str(volume.name))
        for image in client.images.list(all=True):
            yield Thing("image", str(image.id))

    def _bpf(self) -> Iterator[Thing]:
        for kind in ("program", "map", "link"):
            ids = list(list_bpf(kind))
            holders = find_holders()
            for each in ids:
                holder = holders.get((kind, each))
                name = f"{each}" if holder is None else f"{each} held by process {holder}"
                yield Thing(f"BPF {kind}", name, None if holder is None else self._is_ours(holder))

    def _is_ours(self, pid: int) -> bool:
        try:
            return psutil.Process(pid).environ().get(SOAK_MARK) == self.token
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False

    def _files(self) -> Iterator[Thing]:
        for folder in self.folders:
            for path in folder.rglob("*"):
                if not path.is_dir() or not any(path.iterdir()):
                    yield Thing("file", str(path), is_ours=True)
        for base in _TEMPORARY:
            for pattern in _PATTERNS:
                for path in Path(base).glob(pattern):
                    run_id = path.name.removeprefix("quiclab-")
                    yield Thing("file", str(path), run_id in self.run_ids or None)

    def _processes(self) -> Iterator[Thing]:
        """Name processes that carry the soak's mark, and its children that nobody waited for."""
        for process in psutil.process_iter():
            try:
                is_child = process.ppid() == os.getpid()
                if process.pid == os.getpid() or not (is_child or self._is_ours(process.pid)):
                    continue
                yield Thing("process", f"{process.pid} {process.name()}", is_ours=True)
            except psutil.NoSuchProcess:
                continue


def _mounts() -> Iterator[Thing]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        yield Thing("mount", f"{before.split()[4]} {' '.join(after.split()[:2])}")


def _sysctls() -> Iterator[Thing]:
    for pattern in _SYSCTLS:
        for path in sorted(Path("/proc/sys").glob(pattern)):
            try:
                value = " ".join(path.read_text().split())
            except OSError:
                continue  # one that can only be written
            yield Thing("sysctl", f"{path.relative_to('/proc/sys')} = {value}")


def _descriptors() -> Iterator[Thing]:
    """Count this process's descriptors by what they lead to; their numbers tell nothing."""
    counts: dict[str, int] = {}
    for path in Path("/proc/self/fd").iterdir():
        try:
            target = str(path.readlink()).partition(":[")[0]
        except OSError:
            continue  # the one that lists the folder
        if target != f"/proc/{os.getpid()}/fd":
            counts[target] = counts.get(target, 0) + 1
    for target, count in counts.items():
        for index in range(count):
            yield Thing("descriptor", f"{target} {index + 1}", is_ours=True)


def compare(before: frozenset[Thing], after: frozenset[Thing]) -> list[str]:
    """Say what came and what went, one line each."""
    return [
        *(f"+ {thing}" for thing in sorted(after - before)),
        *(f"- {thing}" for thing in sorted(before - after)),
    ]
