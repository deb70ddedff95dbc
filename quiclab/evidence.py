"""
What a run has measured so far. The main path fills it, the verdict reads it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from quiclab.answers import ClientDescription, ClientResult, CounterReport, ServerDescription
from quiclab.grants import Grant
from quiclab.runner.base import PlaceFacts
from quiclab.runner.reading import Reading
from quiclab.scenario import Scenario
from quiclab.trace.events import DEFAULT_MAP_KEY_LIMIT, Trace
from quiclab.trace.script import CheckResult, Script, evaluate_checks
from quiclab.trace.witness import MapComparison

TracerKind = Literal["bpftrace", "in-process", "none"]


@dataclass(slots=True)
class RoleEvidence:
    """
    One process of the run: how it was started, how it ended, what it said.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    is_started: bool = False
    exit_status: int | None = None
    uptime_s: float | None = None
    is_killed_by_lab: bool = False
    stdout: str = ""
    stderr: str = ""


@dataclass(slots=True)
class TracerEvidence:
    """
    One tracer: the script it ran, what it announced and what it left.
    """

    role: str
    script: Script
    announced_probe_count: int | None = None
    raw_trace: bytes | None = None
    trace: Trace | None = None


@dataclass(slots=True)
class Evidence:
    """
    All of it. None and empty mean: the run did not come that far.
    """

    scenario: Scenario
    tracers: Sequence[TracerEvidence]
    tracer_kind: TracerKind = "bpftrace"
    """Who filled the maps in the end."""
    tracer_reason: str = ""
    """Why it is not bpftrace, one line; "" when that was asked for."""
    place: PlaceFacts | None = None
    server: ServerDescription | None = None
    client: ClientDescription | None = None
    grants: Sequence[Grant] = ()
    untraced: Sequence[str] = ()
    """Probes that a worker itself saw nobody trace when the load began."""
    counters: CounterReport | None = None
    client_result: ClientResult | None = None
    costs_before: Reading | None = None
    """What the kernel said when the load was about to begin."""
    costs_after: Reading | None = None
    """The same when nothing moved any more."""
    roles: dict[str, RoleEvidence] = field(default_factory=dict)
    is_load_started: bool = False
    is_load_complete: bool = False
    failure: str = ""
    """Why the run ended before its time, one line."""
    interruption: str = ""
    """The signal that ended it, or ""."""
    recording: Mapping[str, Any] | None = None
    """What the server's own recorder counted over the traced window."""
    comparisons: Sequence[MapComparison] = ()
    """The recorder's maps beside bpftrace's (`--verify`)."""
    missing: list[str] = field(default_factory=list)
    """What could not be collected, one line each."""

    @property
    def is_recorded(self) -> bool:
        """Whether the server's own recorder fills the maps: alone, or beside bpftrace."""
        return self.tracer_kind == "in-process" or self.scenario.is_verified

    @property
    def bpftrace_roles(self) -> list[str]:
        """Roles of the tracers that are processes."""
        is_bpftrace = self.tracer_kind == "bpftrace"
        return [tracer.role for tracer in self.tracers] if is_bpftrace else []

    @property
    def server_drop_count(self) -> int:
        """Datagrams that the kernel dropped at the server's full sockets during the load."""
        before, after = self.costs_before, self.costs_after
        if after is None:
            return 0
        grown = after.server_drop_count - (0 if before is None else before.server_drop_count)
        return max(0, grown)  # sockets that could not be found the second time tell nothing

    @property
    def key_limit(self) -> int:
        """Keys that a map of the tracers holds; further ones are dropped without a word."""
        return self.scenario.map_key_limit or DEFAULT_MAP_KEY_LIMIT

    def is_cut_off(self, tracer: TracerEvidence) -> bool:
        """
        Tell whether a trace lacks its final maps: it proves nothing of what fired, or did not.
        """
        # A bpftrace that the recorder stands in for has left nothing that could be cut off.
        role = self.roles.get(tracer.role) if self.bpftrace_roles else None
        is_truncated = tracer.trace is not None and tracer.trace.is_truncated
        return is_truncated or (role is not None and role.is_killed_by_lab)

    def check_trace(self, tracer: TracerEvidence) -> Sequence[CheckResult]:
        """
        Hold each promise of a script against the server's counters; () without either.
        """
        if tracer.trace is None or self.counters is None or self.is_cut_off(tracer):
            return ()
        return evaluate_checks(tracer.script, tracer.trace, self.counters.total)
