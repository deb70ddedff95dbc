"""
One look at what a run costs and loses, by the kernel's own account.

A place takes it twice: when the load is about to begin, and when nothing moves
any more. What happened in between is the difference. What cannot be read is
absent and named in `notes`; nothing is guessed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quiclab.runner.drops import UdpSocket


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCost:
    """
    CPU time of a role and all its processes since they started.

    Args:
        user_s: In user space.
        system_s: In the kernel; a traced probe's time counts where it fired.
        cpu_ids: CPUs it may run on (sched_getaffinity(2)); empty when not known.
    """

    user_s: float
    system_s: float
    cpu_ids: Sequence[int] = ()

    @property
    def cpu_s(self) -> float:
        """Both together."""
        return self.user_s + self.system_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCost:
    """
    One BPF program of a tracer (`fdinfo` of its descriptor, bpf(2)).

    Args:
        program_id: The kernel's number for it.
        name: As the kernel shows it, cut at 15 characters; "" where only `fdinfo` was read.
        run_count: Times it ran; None while the kernel does not time programs.
        run_time_ns: Time in it, without the way into it and out of it; None likewise.
        recursion_miss_count: Events at which the kernel skipped it (Linux 5.12 and later).
    """

    program_id: int
    name: str = ""
    run_count: int | None = None
    run_time_ns: int | None = None
    recursion_miss_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCost:
    """
    What all CPUs did since boot (`/proc/stat`), in seconds of one CPU.

    Args:
        cpu_count: CPUs online.
        busy_s: Spent on anything but idling and waiting for disks.
        steal_s: Wanted, and taken by the hypervisor.
    """

    cpu_count: int
    busy_s: float
    steal_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """
    Everything that a place can read at one moment.

    Args:
        at_s: When, by the lab's own clock.
        roles: By role; those that run. The client's own result tells more of it than this.
        programs: By tracer role.
        machine: None when `/proc/stat` cannot be read.
        sockets: The server's own sockets, with the drops of each since it was made.
        udp_counts: Counters of the server's network namespace, by the kernel's names: as in
            `/proc/net/snmp` for IPv4 ("RcvbufErrors"), in `snmp6` for IPv6 ("Udp6RcvbufErrors").
        is_namespace_shared: Others use that namespace, too, so its counters are not the run's.
        notes: What could not be read, and why; one line each.
    """

    at_s: float
    roles: Mapping[str, RoleCost] = field(default_factory=dict)
    programs: Mapping[str, Sequence[ProgramCost]] = field(default_factory=dict)
    machine: MachineCost | None = None
    sockets: Sequence[UdpSocket] = ()
    udp_counts: Mapping[str, int] = field(default_factory=dict)
    is_namespace_shared: bool = False
    notes: Sequence[str] = ()

    @property
    def server_drop_count(self) -> int:
        """Datagrams that found the server's sockets full since these were made."""
        return sum(entry.drop_count for entry in self.sockets)
