"""
One reading of what a run costs, from the kernel's own files (proc(5)).

A place fetches the files where they lie, on this machine or in a container, by a
`Look`; what they mean is the same everywhere and is found here.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from glob import iglob
from pathlib import Path
from typing import Final

from quiclab.runner.base import SERVER, TRACER
from quiclab.runner.drops import (
    UdpSocket,
    parse_udp6_counters,
    parse_udp_counters,
    parse_udp_sockets,
)
from quiclab.runner.reading import MachineCost, ProgramCost, Reading, RoleCost

Look = Callable[[Sequence[str]], Mapping[str, str]]
"""
Fetches files by patterns (glob(7)): what each holds, or where it points to when it is a link.
What is not there, or vanishes, is absent.
"""

PROCESSES: Final = "/proc/[0-9]*/stat"
NETWORK: Final = ("/proc/net/udp", "/proc/net/udp6", "/proc/net/snmp", "/proc/net/snmp6")
MACHINE: Final = "/proc/stat"
# USER_HZ, in which the kernel counts times for its users: 100 on all that this lab runs on.
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
# A hold on the kernel's switch for timing BPF programs (BPF_ENABLE_STATS), and the switch itself.
STATISTICS: Final = "anon_inode:bpf-stats"
SWITCH: Final = "/proc/sys/kernel/bpf_stats_enabled"
_PROGRAM: Final = "anon_inode:bpf-prog"
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Watched:
    """
    A role as the kernel sees it.

    Args:
        look: Where its files are.
        pid: Its first process, as it is called there.
        is_timed: The kernel was asked to time its BPF programs.
    """

    look: Look
    pid: int
    is_timed: bool = False


def take_reading(
    watched: Mapping[str, Watched], *, at_s: float, is_namespace_shared: bool
) -> Reading:
    """
    Look at all roles of a run once; those that are gone are left out.

    Args:
        watched: The started roles.
        at_s: The moment, by the lab's own clock.
        is_namespace_shared: The server's network namespace is not its alone.
    """
    costs = {role: read_role(each, is_alone=_is_tracer(role)) for role, each in watched.items()}
    running = {role: cost for role, cost in costs.items() if cost is not None}
    programs = {role: read_programs(watched[role]) for role in running if _is_tracer(role)}
    notes = [
        f"the kernel was asked to time the programs of {role} and does not: it has no "
        "BPF_ENABLE_STATS (Linux 5.8), or refuses it"
        for role, held in programs.items()
        if watched[role].is_timed and any(each.run_count is None for each in held)
    ]
    sockets: list[UdpSocket] = []
    udp_counts: dict[str, int] = {}
    if SERVER in running:
        sockets, udp_counts = read_network(watched[SERVER])
        if not sockets:
            notes.append("the server's sockets were not found, so their drops are not known")
    return Reading(
        at_s=at_s,
        roles=running,
        programs=programs,
        machine=read_machine(watched[SERVER].look) if SERVER in watched else None,
        sockets=sockets,
        udp_counts=udp_counts,
        is_namespace_shared=is_namespace_shared,
        notes=notes,
    )


def _is_tracer(role: str) -> bool:
    return role.startswith(TRACER)


def look_here(patterns: Sequence[str]) -> dict[str, str]:
    """
    Fetch files of this machine; docker/courier does the same in a container.
    """
    found = {}
    for pattern in patterns:
        for name in iglob(pattern):  # noqa: PTH207  (it bears folders that vanish)
            path = Path(name)
            try:
                found[name] = (
                    str(path.readlink()) if path.is_symlink() else path.read_text(errors="replace")
                )
            except OSError:
                continue  # a process that ended meanwhile
    return found


# Processes -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    """
    One process and its children that it has waited for (proc_pid_stat(5)).
    """

    pid: int
    parent_pid: int
    user_s: float
    system_s: float


def parse_process(text: str) -> ProcessTimes:
    """
    Read `/proc/PID/stat`. The name may hold anything, so the fields count from behind it.
    """
    pid, _, _ = text.partition(" ")
    fields = text.rpartition(")")[2].split()
    user, system, children_user, children_system = (int(each) for each in fields[11:15])
    return ProcessTimes(
        int(pid),
        int(fields[1]),
        (user + children_user) / _TICKS_PER_S,
        (system + children_system) / _TICKS_PER_S,
    )


def find_family(processes: Iterable[ProcessTimes], root_pid: int) -> list[ProcessTimes]:
    """
    A process and all that descend from it; none when it is gone.
    """
    known = {each.pid: each for each in processes}
    family = [known[root_pid]] if root_pid in known else []
    for member in family:  # it grows meanwhile
        family += [each for each in known.values() if each.parent_pid == member.pid]
    return family


def parse_cpu_ids(status: str) -> set[int]:
    """
    On which CPUs a process may run, from the list in `/proc/PID/status` ("0-1,4").
    """
    found = re.search(r"^Cpus_allowed_list:\s*(\S+)", status, re.MULTILINE)
    cpu_ids: set[int] = set()
    for part in found[1].split(",") if found else ():
        first, _, last = part.partition("-")
        cpu_ids.update(range(int(first), int(last or first) + 1))
    return cpu_ids


def list_family(watched: Watched, *, is_alone: bool = False) -> list[ProcessTimes]:
    """
    The processes of a role; none when its first one is gone.
    """
    pattern = f"/proc/{watched.pid}/stat" if is_alone else PROCESSES
    return find_family(map(parse_process, watched.look([pattern]).values()), watched.pid)


def read_role(watched: Watched, *, is_alone: bool) -> RoleCost | None:
    """
    What a role has cost; None when its first process is gone.

    Args:
        watched: Whose.
        is_alone: It starts no others, so that these need not be looked for.
    """
    family = list_family(watched, is_alone=is_alone)
    if not family:
        return None
    statuses = watched.look([f"/proc/{each.pid}/status" for each in family]).values()
    return RoleCost(
        user_s=sum(each.user_s for each in family),
        system_s=sum(each.system_s for each in family),
        cpu_ids=sorted(set().union(*map(parse_cpu_ids, statuses))),
    )


# BPF programs --------------------------------------------------------------------


def read_programs(watched: Watched) -> Sequence[ProgramCost]:
    """
    The programs that a tracer holds; the kernel shows zeros where it does not time them.
    """
    files = watched.look([f"/proc/{watched.pid}/fd/*", SWITCH])
    is_timed = STATISTICS in files.values() or files.get(SWITCH, "").strip() == "1"
    numbers = [Path(path).name for path, target in files.items() if target == _PROGRAM]
    texts = watched.look([f"/proc/{watched.pid}/fdinfo/{number}" for number in numbers]).values()
    programs = {
        each.program_id: each
        for each in (parse_program(text, is_timed) for text in texts if "prog_id:" in text)
    }
    return [programs[number] for number in sorted(programs)]


def parse_program(fdinfo: str, is_timed: bool) -> ProgramCost:  # noqa: FBT001  a pure parser's
    """
    Read what `/proc/PID/fdinfo/FD` tells of a BPF program.
    """
    fields = dict(re.findall(r"^(\w+):\s*(\d+)$", fdinfo, re.MULTILINE))
    misses = fields.get("recursion_misses")  # Linux 5.12
    return ProgramCost(
        program_id=int(fields["prog_id"]),
        run_count=int(fields["run_cnt"]) if is_timed else None,
        run_time_ns=int(fields["run_time_ns"]) if is_timed else None,
        recursion_miss_count=None if misses is None else int(misses),
    )


# The machine and its network -----------------------------------------------------


def read_machine(look: Look) -> MachineCost | None:
    """
    What all CPUs did since boot; None where it cannot be read.
    """
    return parse_machine(look([MACHINE]).get(MACHINE, ""))


def parse_machine(text: str) -> MachineCost | None:
    """
    Read `/proc/stat`. What guests used is part of what their hosts' processes used.
    """
    lines = [line.split() for line in text.splitlines() if line.startswith("cpu")]
    if not lines:
        return None
    user, nice, system, _idle, _waiting, irq, softirq, steal = map(int, lines[0][1:9])
    return MachineCost(
        cpu_count=len(lines) - 1,
        busy_s=(user + nice + system + irq + softirq) / _TICKS_PER_S,
        steal_s=steal / _TICKS_PER_S,
    )


def read_network(watched: Watched) -> tuple[list[UdpSocket], dict[str, int]]:
    """
    The UDP sockets that a role holds open, and the counters of its network namespace.
    """
    files = watched.look([*NETWORK, *(f"/proc/{each.pid}/fd/*" for each in list_family(watched))])
    udp, udp6, snmp, snmp6 = (files.get(name, "") for name in NETWORK)
    found = map(_SOCKET.fullmatch, files.values())
    inodes = {int(match[1]) for match in found if match is not None}
    sockets = [
        each for each in parse_udp_sockets(udp) + parse_udp_sockets(udp6) if each.inode in inodes
    ]
    return sockets, parse_udp_counters(snmp) | parse_udp6_counters(snmp6)
