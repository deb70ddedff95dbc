"""
Asked for and granted are two figures: one row for each, with the reason and the fix.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Final

from pydantic import BaseModel, ConfigDict

from quiclab.answers import ClientDescription, ServerDescription, SocketBuffer
from quiclab.scenario import LARGEST_BUFFER_BYTES, Scenario
from quiclab.units import render_bytes

# Of each byte of SO_RCVBUF as it reads back (twice what was set), the payload that
# undrained datagrams fill before the kernel drops: the least ever measured
# (client/holdable.py, Linux 6.18), for datagrams just larger than the kernel's block.
HOLDABLE_SHARE_OF_READBACK: Final = 0.4
LEAST_WINDOW_BYTES: Final = 16_384  # below two datagrams of the default MTU nothing moves


class Grant(BaseModel):
    """
    One thing that was asked of the machine, and what it gave.

    Args:
        what: Its name for people, such as "server SO_SNDBUF".
        asked: What was asked for; None when the default was left in place.
        granted: What is in effect.
        is_short: Less (or other) than what was asked is in effect.
        reason: Why, when it is short.
        fix: A command or an option that would change that, or "".
        is_fact: Nothing was asked; this is what was found in effect.
    """

    model_config = ConfigDict(frozen=True)

    what: str
    asked: str | None
    granted: str
    is_short: bool = False
    reason: str = ""
    fix: str = ""
    is_fact: bool = False


def list_grants(
    scenario: Scenario,
    server: ServerDescription,
    client: ClientDescription,
    *,
    sysctls: Mapping[str, str],
) -> list[Grant]:
    """
    Set what was asked beside what server and client say is in effect.

    Args:
        scenario: What was asked.
        server: The server's description.
        client: The client's description.
        sysctls: Limits of the machine, by name; they give reasons.
    """
    granted = server.granted
    return [
        *_rings(server),
        _socket_buffer(
            "server SO_SNDBUF", granted.socket_send_buffer, "net.core.wmem_max", sysctls
        ),
        _socket_buffer(
            "server SO_RCVBUF", granted.socket_receive_buffer, "net.core.rmem_max", sysctls
        ),
        _socket_buffer(
            "client SO_SNDBUF", client.granted.socket_send_buffer, "net.core.wmem_max", sysctls
        ),
        _socket_buffer(
            "client SO_RCVBUF", client.granted.socket_receive_buffer, "net.core.rmem_max", sysctls
        ),
        _switch("GSO", is_asked=scenario.is_gso_on, is_granted=granted.gso, server=server),
        _switch("GRO", is_asked=scenario.is_gro_on, is_granted=granted.gro, server=server),
        _switch("sendmmsg and recvmmsg", is_asked=True, is_granted=granted.mmsg, server=server),
        _datagram(scenario, server),
    ]


def fit_download_window(server: ServerDescription, client: ClientDescription) -> int:
    """
    Window cap of each connection: the server's, or what the client's receive buffer holds.

    Every connection of the client has a socket of its own.
    """
    return _fit(server.granted.window_cap_bytes, client.holdable_bytes)


def fit_upload_window(scenario: Scenario, server: ServerDescription) -> int:
    """
    Window cap of each connection: the usual one, or its share of the server's receive buffer.

    The connections share the sockets of the workers; which worker a connection
    meets is chance, so the worst case (all on one) is what must fit.
    """
    holdable_bytes = server.granted.holdable_bytes
    if holdable_bytes is None:
        buffer = server.granted.socket_receive_buffer
        holdable_bytes = int(2 * buffer.granted_bytes * HOLDABLE_SHARE_OF_READBACK)
    return _fit(server.granted.window_cap_bytes, holdable_bytes // scenario.connection_count)


def list_windows(
    scenario: Scenario, server: ServerDescription, client: ClientDescription
) -> list[Grant]:
    """
    The windows of QUIC that bound what is in flight, in each direction that is used.
    """
    asked_bytes = server.granted.window_cap_bytes
    rows = []
    if scenario.direction != "upload":
        asked = client.granted.socket_receive_buffer.asked_bytes
        fix = f"sudo sysctl net.core.rmem_max={asked}" if asked else ""
        granted_bytes = fit_download_window(server, client)
        rows.append(_window("download", asked_bytes, granted_bytes, holder="client", fix=fix))
        rows += _budget(scenario, server, granted_bytes)
    if scenario.direction != "download":
        buffer = server.granted.socket_receive_buffer
        is_clamped = (buffer.asked_bytes or 0) > buffer.granted_bytes
        fix = f"sudo sysctl net.core.rmem_max={buffer.asked_bytes}"
        fix = fix if is_clamped else _ask_for_enough(asked_bytes, scenario.connection_count)
        granted_bytes = fit_upload_window(scenario, server)
        rows.append(_window("upload", asked_bytes, granted_bytes, holder="server", fix=fix))
    flow_bytes = server.granted.connection_flow_control_bytes
    if scenario.direction != "download" and flow_bytes is not None:
        granted = f"{render_bytes(flow_bytes)} a connection"
        rows.append(Grant(what="server flow control", asked=None, granted=granted))
    return rows


def _budget(scenario: Scenario, server: ServerDescription, cap_bytes: int) -> list[Grant]:
    """What the connections of a worker share, told where that is less than a cap for each."""
    total_bytes, count = server.granted.window_budget_bytes, scenario.connection_count
    if not total_bytes or not cap_bytes:
        return []
    full_message_bytes = server.granted.datagrams_per_message * server.granted.datagram_bytes
    share_bytes = max(total_bytes // count, 2 * full_message_bytes)  # as server/window.py shares
    if share_bytes >= cap_bytes:
        return []
    least = "" if scenario.worker_count == 1 else "at least "
    share = f"{least}{render_bytes(share_bytes)} for each of {count} connections"
    granted = f"{render_bytes(total_bytes)} a worker, {share}"
    return [Grant(what="windows of all downloads", asked=None, granted=granted)]


def _ask_for_enough(window_bytes: int, connection_count: int) -> str:
    """The option that gives every connection its window, all of them on one worker's socket."""
    needed_bytes = window_bytes * connection_count / (2 * HOLDABLE_SHARE_OF_READBACK)
    megabytes = max(8, math.ceil(needed_bytes / 1e6))  # 8M: what the client asks for
    is_possible = megabytes * 1_000_000 <= LARGEST_BUFFER_BYTES
    return f"--socket-buffer {megabytes}M" if is_possible else "fewer --connections"


def _window(
    direction: str, asked_bytes: int, granted_bytes: int, *, holder: str, fix: str
) -> Grant:
    is_short = granted_bytes != asked_bytes
    reason = f"the {holder}'s receive buffer holds no more; what does not fit would be lost"
    return Grant(
        what=f"window cap of a{'n' if direction == 'upload' else ''} {direction}",
        asked=render_bytes(asked_bytes) if asked_bytes else "no cap",
        granted=render_bytes(granted_bytes) if granted_bytes else "no cap",
        is_short=is_short,
        reason=reason if is_short else "",
        fix=fix if is_short else "",
    )


def _fit(cap_bytes: int, holdable_bytes: int | None) -> int:
    """The cap (0: none), unless the buffer is known to hold less."""
    if holdable_bytes is None or (cap_bytes and holdable_bytes >= cap_bytes):
        return cap_bytes
    return max(LEAST_WINDOW_BYTES, holdable_bytes)


def _rings(server: ServerDescription) -> Iterator[Grant]:
    rings = (("TX ring", server.granted.tx_ring), ("RX ring", server.granted.rx_ring))
    for name, ring in rings:
        noun = "message" if ring.entries == 1 else "messages"
        yield Grant(
            what=f"server {name}",
            asked=render_bytes(ring.asked_bytes),
            granted=f"{ring.entries:,} {noun} × {render_bytes(ring.payload_bytes)}",
        )


def _socket_buffer(
    what: str, buffer: SocketBuffer, sysctl: str, sysctls: Mapping[str, str]
) -> Grant:
    asked_bytes, granted_bytes = buffer.asked_bytes, buffer.granted_bytes
    if asked_bytes is None:  # as net.core.[rw]mem_default has it, which is not doubled
        return Grant(what=what, asked=None, granted=render_bytes(buffer.readback_bytes))
    granted = render_bytes(granted_bytes) + (", forced" if buffer.is_forced else "")
    if granted_bytes >= asked_bytes:
        return Grant(what=what, asked=render_bytes(asked_bytes), granted=granted)
    limit = sysctls.get(sysctl, "")
    is_limit = limit.isdecimal() and int(limit) < asked_bytes
    return Grant(
        what=what,
        asked=render_bytes(asked_bytes),
        granted=granted,
        is_short=True,
        reason=f"{sysctl} is {limit}" if is_limit else "the kernel granted no more",
        fix=f"sudo sysctl {sysctl}={asked_bytes}",
    )


def _switch(what: str, *, is_asked: bool, is_granted: bool, server: ServerDescription) -> Grant:
    is_short = is_asked and not is_granted
    reasons = [d.reason for d in server.degradations if d.what.lower() in what.lower()]
    return Grant(
        what=f"server {what}",
        asked="on" if is_asked else "off",
        granted="on" if is_granted else "off",
        is_short=is_short,
        reason="; ".join(reasons) if is_short else "",
    )


def _datagram(scenario: Scenario, server: ServerDescription) -> Grant:
    asked_bytes, granted_bytes = scenario.datagram_bytes, server.granted.datagram_bytes
    return Grant(
        what="QUIC datagram",
        asked=render_bytes(asked_bytes),
        granted=render_bytes(granted_bytes),
        is_short=granted_bytes < asked_bytes,
    )
