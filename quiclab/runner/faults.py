"""
What can go wrong in a fake run, on demand.
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from quiclab.observer import Phase

ATTACH_S: Final = 0.5  # a script of 10 probes takes 0.5 to 0.7 s in a container, measured


@dataclass(frozen=True, slots=True)
class Death:
    """
    A role that ends by itself.

    Args:
        role: Which one.
        phase: When: as this phase begins, at the earliest when the role runs.
        exit_status: Its status; 137 for a role that was killed.
        last_words: What it writes to stderr.
    """

    role: str
    phase: Phase
    exit_status: int = 1
    last_words: str = ""


@dataclass(frozen=True, slots=True)
class Strike:
    """
    A signal that reaches the lab.

    Args:
        number: SIGINT or SIGTERM.
        phase: In which phase.
        is_while_waiting: In its first wait; else as it begins, when nothing may break off.
    """

    number: signal.Signals
    phase: Phase
    is_while_waiting: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """
    What goes wrong. By default nothing does.

    Args:
        deaths: Roles that end by themselves.
        strikes: Signals that reach the lab.
        preflight: Why the machine cannot; "" when it can.
        attach_s: How long a tracer takes to attach; `float("inf")` for one that never does.
        missing_probe_count: Probes that are not attached.
        traced_after_s: How long after its start the server's probe sites show a tracer.
        lost_event_count: Events that a tracer reports as lost.
        uncounted_count: Events that the server counted and no probe showed.
        dropped_datagram_count: Drops at the server's socket.
        is_trace_cut: The tracer dies of its end and leaves half a line.
        never_ending: Roles that do not listen when asked to end.
        missing_interrupt: Roles that miss SIGINT, and listen to SIGTERM.
        is_client_mute: The client answers no question about its progress.
        is_client_incomplete: Not all bytes come; the client says so and exits 5.
        open_connection_count: Connections that never close.
        holdable_bytes: What the client's receive buffer holds; None as recorded.
    """

    deaths: Sequence[Death] = ()
    strikes: Sequence[Strike] = ()
    preflight: str = ""
    attach_s: float = ATTACH_S
    missing_probe_count: int = 0
    traced_after_s: float = 0.0
    lost_event_count: int = 0
    uncounted_count: int = 0
    dropped_datagram_count: int = 0
    is_trace_cut: bool = False
    never_ending: Sequence[str] = ()
    missing_interrupt: Sequence[str] = ()
    is_client_mute: bool = False
    is_client_incomplete: bool = False
    open_connection_count: int = 0
    holdable_bytes: int | None = None
