"""
What was really in effect during the load, read back from the processes that ran. Pure.

`grants` sets asked beside granted before the load; here stands what only the
load shows: offloads as they were used, CPUs, workers that were traced.
"""

from collections.abc import Iterator, Mapping, Sequence

from quiclab.accounting import find_figure
from quiclab.evidence import Evidence
from quiclab.grants import Grant
from quiclab.scenario import IPV4_OVERHEAD_BYTES, IPV6_OVERHEAD_BYTES
from quiclab.trace.script import find_counter
from quiclab.units import render_bytes


def list_readback(evidence: Evidence) -> list[Grant]:
    """
    List what was in effect, a row each; what nobody tells is no row.
    """
    return [
        *_workers(evidence),
        *_ring(evidence),
        *_offloads(evidence),
        *_path_mtu(evidence),
        *_congestion_control(evidence),
        *_certificate(evidence),
        *_affinity(evidence),
    ]


def _workers(evidence: Evidence) -> Iterator[Grant]:
    if evidence.server is None:
        return
    asked_count, count = evidence.scenario.worker_count, len(evidence.server.workers)
    yield Grant(
        what="workers",
        asked=str(asked_count),
        granted=str(count),
        is_short=count < asked_count,
        reason="the server started no more" if count < asked_count else "",
    )
    if evidence.is_load_started and evidence.tracer_kind == "bpftrace":
        # Each entry ends in the worker's number.
        untraced_count = len({text.rpartition(" ")[2] for text in evidence.untraced})
        yield Grant(
            what="workers traced",
            asked=str(count),
            granted=str(count - untraced_count),
            is_short=untraced_count > 0,
            reason=evidence.untraced[0] + " saw no tracer" if untraced_count else "",
        )


def _ring(evidence: Evidence) -> Iterator[Grant]:
    """How far the TX ring filled; a full one is flushed at once, so nobody waits for a slot."""
    if evidence.counters is None or evidence.server is None:
        return
    total, entries = evidence.counters.total, evidence.server.granted.tx_ring.entries
    most = find_counter(total, "tx.most_filled_count")
    full = find_counter(total, "tx.ring_full_count")
    if most is not None and full is not None:
        filled = f"at most {most:,} of {entries:,} filled, full {full:,} times"
        yield Grant(what="server TX ring", asked=None, granted=filled, is_fact=True)


def _offloads(evidence: Evidence) -> Iterator[Grant]:
    """Messages that carried more than one datagram, of all; asked and granted stand before."""
    if evidence.counters is None or evidence.server is None:
        return
    granted = evidence.server.granted
    rows = (
        ("GSO", granted.gso, "tx", "gso_message_count", "message_sent_count", "datagram_sent"),
        ("GRO", granted.gro, "rx", "gro_message_count", "message_received_count", "datagram_read"),
    )
    for name, is_on, ring, used_name, all_name, datagrams_name in rows:
        total = evidence.counters.total
        used, count, datagrams = (
            find_counter(total, f"{ring}.{each}")
            for each in (used_name, all_name, f"{datagrams_name}_count")
        )
        if is_on and used is not None and count:
            mean = f", {datagrams / count:.1f} datagrams a message" if datagrams else ""
            granted_text = f"in {used:,} of {count:,} messages{mean}"
            yield Grant(what=f"server {name}", asked=None, granted=granted_text, is_fact=True)


def _path_mtu(evidence: Evidence) -> Iterator[Grant]:
    server, client = evidence.server, evidence.client
    mtu_bytes = None if client is None else find_figure(client, "path_mtu_bytes")
    if server is None or mtu_bytes is None:
        return
    headers_bytes = IPV6_OVERHEAD_BYTES if ":" in server.address[0] else IPV4_OVERHEAD_BYTES
    needed_bytes = server.granted.datagram_bytes + headers_bytes
    is_short = mtu_bytes < needed_bytes
    yield Grant(
        what="path MTU",
        asked=render_bytes(needed_bytes) if is_short else None,
        granted=render_bytes(mtu_bytes),
        is_short=is_short,
        is_fact=not is_short,
        reason="a full datagram and its headers do not fit" if is_short else "",
        fix=f"--datagram {mtu_bytes - headers_bytes}" if is_short else "",
    )


def _congestion_control(evidence: Evidence) -> Iterator[Grant]:
    name = None if evidence.server is None else getattr(evidence.server.granted, "cc", None)
    if isinstance(name, str):
        yield Grant(what="congestion control", asked=None, granted=name, is_fact=True)


def _certificate(evidence: Evidence) -> Iterator[Grant]:
    facts = None if evidence.server is None else getattr(evidence.server, "certificate", None)
    if not isinstance(facts, Mapping):
        return
    parts = ["made for this run" if facts.get("is_own") else "of the user"]
    parts += [str(facts[name]) for name in ("key",) if facts.get(name)]
    if facts.get("not_after"):
        parts.append(f"valid until {facts['not_after']}")
    yield Grant(what="certificate", asked=None, granted=", ".join(parts), is_fact=True)


def _affinity(evidence: Evidence) -> Iterator[Grant]:
    """CPUs that each role may run on; roles that share them share a row."""
    by_cpus: dict[tuple[int, ...], list[str]] = {}
    # The client has ended by the second reading.
    readings = [each for each in (evidence.costs_before, evidence.costs_after) if each is not None]
    costs = {role: cost for reading in readings for role, cost in reading.roles.items()}
    for role, cost in costs.items():
        if cost.cpu_ids:
            by_cpus.setdefault(tuple(sorted(cost.cpu_ids)), []).append(role)
    for cpu_ids, roles in by_cpus.items():
        what = f"CPUs of {', '.join(roles)}"
        yield Grant(what=what, asked=None, granted=render_cpus(cpu_ids), is_fact=True)


def render_cpus(cpu_ids: Sequence[int]) -> str:
    """
    Write CPU numbers as the kernel does: `0-3,8`.
    """
    ranges: list[list[int]] = []
    for cpu_id in sorted(cpu_ids):
        if ranges and cpu_id == ranges[-1][1] + 1:
            ranges[-1][1] = cpu_id
        else:
            ranges.append([cpu_id, cpu_id])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
