"""
Who held the load back? One fact with its figures, from what was measured. Pure.

Looked at in this order, and the first that is plain is named: the hypervisor,
the CPU of an end, the machine's CPUs together, a receiver that dropped, QUIC's
window, the socket's queue. It is a fact, not a reservation: a run that asks
nothing about speed is as good with a busy client as with a busy server.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from quiclab.evidence import Evidence
from quiclab.runner.base import TRACER
from quiclab.runner.reading import Reading
from quiclab.trace.script import find_counter

Limit = Literal[
    "hypervisor",
    "both",
    "server",
    "client",
    "machine",
    "receiver",
    "window",
    "socket",
    "unclear",
]

BUSY_SHARE: Final = 0.9  # of one core, from which on a process is called the limit
FULL_SHARE: Final = 0.95  # of all cores, from which on the machine is
# Taken away, a tenth of a core is more than what runs on a quiet machine differ by (2 %).
STEAL_SHARE: Final = 0.1
WAITING_SHARE: Final = 0.5  # of the load's time asleep behind a full window
BLOCKED_SHARE: Final = 0.1  # of the send calls that found the socket's queue full
LATE_SHARE: Final = 0.1  # of the timers whose call came 1 ms late and more
FEWEST_TIMERS: Final = 100  # of which a share says something


class Bottleneck(BaseModel):
    """
    What limited a load.

    Args:
        limit: Who or what, for programs.
        text: The same for people, with the figures that say so.
        server_shares: Cores that each worker used.
        client_share: Cores that the client used.
        tracer_share: Cores that all tracers used; None when it was not read.
        machine_share: Cores that everything on the machine used.
        steal_share: Cores that the hypervisor took.
        cpu_count: Cores of the machine.
    """

    model_config = ConfigDict(frozen=True)

    limit: Limit
    text: str
    server_shares: tuple[float, ...]
    client_share: float
    tracer_share: float | None = None
    machine_share: float | None = None
    steal_share: float | None = None
    cpu_count: int | None = None

    @property
    def is_server(self) -> bool:
        """Tell whether goodput says something about the server: it was what limited."""
        return self.limit in {"server", "window", "socket"}


def find_bottleneck(evidence: Evidence) -> Bottleneck | None:
    """
    Name what limited the load; None for a load that is not complete, or measured nothing.
    """
    result, counters = evidence.client_result, evidence.counters
    if result is None or counters is None or not result.load_s:
        return None
    servers = tuple(round(_cpu_s(worker) / result.load_s, 2) for worker in counters.workers)
    client = round((result.cpu_user_s + result.cpu_system_s) / result.load_s, 2)
    if not any(servers):
        return None
    before, after = evidence.costs_before, evidence.costs_after
    shares = _machine_shares(before, after)
    found = Bottleneck(
        limit="unclear",
        text="",
        server_shares=servers,
        client_share=client,
        tracer_share=_tracer_share(before, after),
        **shares,
    )
    limit, words = next(_candidates(evidence, found))
    text = f"{words} ({_render_cores(found)})"
    return found.model_copy(update={"limit": limit, "text": text})


def _candidates(evidence: Evidence, found: Bottleneck) -> Iterator[tuple[Limit, str]]:
    """Name everything that may have been the limit, the plainest first."""
    steal, machine = found.steal_share, found.machine_share
    if steal is not None and steal >= STEAL_SHARE:
        yield "hypervisor", f"the hypervisor, which took {steal:.2f} cores away"
    is_server_busy = max(found.server_shares) >= BUSY_SHARE
    is_client_busy = found.client_share >= BUSY_SHARE
    if is_server_busy and is_client_busy:
        yield "both", "the CPU of both ends"
    if is_server_busy:
        yield "server", "the server's CPU"
    result = evidence.client_result
    if is_client_busy or (result is not None and result.is_bottleneck):
        note = "" if result is None else result.bottleneck_note
        yield "client", f"the client: {note or 'its CPU'}"
    if machine is not None and found.cpu_count and machine >= FULL_SHARE * found.cpu_count:
        yield "machine", "this machine's CPUs, which all parts share"
    yield from _network_candidates(evidence)
    yield "unclear", "nothing that stands out"


def _network_candidates(evidence: Evidence) -> Iterator[tuple[Limit, str]]:
    counters, result = evidence.counters, evidence.client_result
    if counters is None or result is None:
        return
    if evidence.server_drop_count:
        dropped = f"{evidence.server_drop_count:,} datagrams dropped"
        yield "receiver", f"the server's receive buffer, {dropped}"
    waited_ns = find_counter(counters.total, "loop.window_wait_ns") or 0
    share = waited_ns / 1e9 / (result.load_s * max(1, len(counters.workers)))
    if share >= WAITING_SHARE:
        slept = f"the server slept {100 * share:.0f} % of the time behind a full one"
        yield "window", f"QUIC's window: {slept}"
    calls = find_counter(counters.total, "tx.send_call_count") or 0
    blocked = find_counter(counters.total, "tx.blocked_count") or 0
    if calls and blocked / calls >= BLOCKED_SHARE:
        yield "socket", f"the server's socket, full at {blocked:,} of {calls:,} send calls"
    late = find_counter(counters.total, "loop.late_timer_count") or 0
    timers = find_counter(counters.total, "loop.timer_count") or 0
    if timers >= FEWEST_TIMERS and late / timers >= LATE_SHARE:
        yield "machine", f"late wake-ups: {late:,} of {timers:,} timers came 1 ms late and more"


def _machine_shares(before: Reading | None, after: Reading | None) -> dict[str, Any]:
    """Cores busy and cores taken between two readings; {} when one of them is missing."""
    if before is None or after is None or before.machine is None or after.machine is None:
        return {}
    elapsed_s = after.at_s - before.at_s
    if elapsed_s <= 0:
        return {}
    busy_s = after.machine.busy_s - before.machine.busy_s
    steal_s = after.machine.steal_s - before.machine.steal_s
    return {
        "machine_share": round(busy_s / elapsed_s, 2),
        "steal_share": round(steal_s / elapsed_s, 2),
        "cpu_count": after.machine.cpu_count,
    }


def _tracer_share(before: Reading | None, after: Reading | None) -> float | None:
    """Cores that all tracers used between two readings."""
    if before is None or after is None or after.at_s <= before.at_s:
        return None
    roles = [role for role in after.roles if role.startswith(TRACER) and role in before.roles]
    if not roles:
        return None
    used_s = sum(after.roles[role].cpu_s - before.roles[role].cpu_s for role in roles)
    return round(used_s / (after.at_s - before.at_s), 2)


def _render_cores(found: Bottleneck) -> str:
    shares = " + ".join(f"{share:.2f}" for share in found.server_shares)
    count = len(found.server_shares)
    parts = [
        f"server {shares} of {count} core{'' if count == 1 else 's'}",
        f"client {found.client_share:.2f} of 1",
    ]
    if found.tracer_share is not None:
        parts.append(f"tracer {found.tracer_share:.2f}")
    if found.machine_share is not None:
        parts.append(f"machine {found.machine_share:.2f} of {found.cpu_count}")
    if found.steal_share:
        parts.append(f"stolen {found.steal_share:.2f}")
    return ", ".join(parts)


def _cpu_s(process: Mapping[str, Any]) -> float:
    return float(process.get("cpu_user_s", 0.0)) + float(process.get("cpu_system_s", 0.0))
