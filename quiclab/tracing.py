"""
Who fills the maps of a run: bpftrace, the server's own recorder, both, or nobody.

bpftrace's readiness is its own attach record, then what the server sees at its probe
sites. The recorder needs neither: it is armed by a question and answers by its maps.
"""

import contextlib
from typing import Final

from quiclab.answers import ResetAnswer, ServerDescription
from quiclab.argv import TRACE, tracer_command, tracer_environment
from quiclab.clock import Clock
from quiclab.collect import ask_tracers_to_end, end_tracers
from quiclab.errors import LabError, RunError
from quiclab.evidence import Evidence, TracerEvidence
from quiclab.record import Record
from quiclab.roles import Roles
from quiclab.runner.base import SERVER
from quiclab.trace.events import Trace
from quiclab.trace.ndjson import TraceParser
from quiclab.trace.witness import recording_rules
from quiclab.wording import render_tracers

ATTACH_LIMIT_S: Final = 30.0  # 30 probes take 0.7 s; 5 s were seen on a busy machine
# bpftrace up to 0.23 announces its probes before it attaches them (20-60 ms, measured).
# What a BEGIN probe prints and what the server sees at its probe sites show that it has;
# a script with neither is given this long.
SILENT_ATTACH_S: Final = 3.0
# A look at a tracer's file or a question to the server takes 0.1 to 2 ms in every place.
POLL_S: Final = 0.02


class Tracing:
    """
    The tracers of one run, from their start to the moment the load may begin.

    Args:
        roles: The run's processes.
        evidence: Says what is asked; told what is attached.
        record: Told a line.
        clock: Time.
    """

    def __init__(self, roles: Roles, evidence: Evidence, record: Record, clock: Clock) -> None:
        self._roles = roles
        self._evidence = evidence
        self._record = record
        self._clock = clock
        self._started_s = clock.now_s()

    def start(self, server: ServerDescription) -> None:
        """
        Start the tracers, all at once; that they are attached is awaited later.

        Raises:
            RunError: One cannot be started.
        """
        self._started_s = self._clock.now_s()
        if self._evidence.tracer_kind != "bpftrace":
            return
        place, scenario = self._roles.place, self._evidence.scenario
        provider_path = place.provider_path_for_tracer(server.probes.provider_path or "")
        for tracer in self._evidence.tracers:
            file_name = f"{tracer.script.name}.bt"
            place.write(tracer.role, file_name, tracer.script.text.encode())
            argv = tracer_command(
                place,
                tracer.role,
                script_file=file_name,
                provider_path=provider_path,
                is_timed=scenario.are_programs_timed,
            )
            self._roles.start(tracer.role, argv, tracer_environment(scenario))

    def await_ready(self) -> None:
        """
        Wait until all probes are attached, and arm the recorder where it is wanted.

        Raises:
            RunError: A tracer did not attach. With `--tracer auto` the recorder takes over.
        """
        try:
            if self._evidence.tracer_kind == "bpftrace":
                self._await_attached()
        except LabError as error:
            # A tracer that no longer finds the server complains of its probes.
            self._roles.check_alive(SERVER)
            if self._evidence.scenario.tracer != "auto":
                raise
            self._fall_back(str(error))
        if self._evidence.is_recorded:
            self._arm()
        if self._evidence.tracers:
            took_s = self._clock.now_s() - self._started_s
            line = render_tracers(
                self._evidence.tracers,
                self._roles.place.facts,
                took_s=took_s,
                kind=self._evidence.tracer_kind,
                reason=self._evidence.tracer_reason,
            )
            self._record.note("tracer", line)

    def zero(self) -> None:
        """
        Begin both accounts at zero: the maps hold nothing yet, the server's counters are reset.

        The answer is also the last word on what is traced, or recorded.
        """
        names = [
            name for tracer in self._evidence.tracers for name in tracer.script.server_probe_names
        ]
        traced = names if self._evidence.tracer_kind == "bpftrace" else []
        recorded = names if self._evidence.is_recorded else []
        deadline_s = self._clock.now_s() + SILENT_ATTACH_S
        while True:
            answer = ResetAnswer.read(self._roles.ask(SERVER, "reset"))
            untraced = answer.find_untraced(traced, recorded=recorded)
            if not untraced or self._clock.now_s() > deadline_s:
                self._evidence.untraced = untraced
                return
            self._clock.sleep(POLL_S)

    def _arm(self) -> None:
        rules = recording_rules([tracer.script for tracer in self._evidence.tracers])
        self._roles.ask(SERVER, "record", rules=rules)
        if self._evidence.tracer_kind == "in-process":
            for tracer in self._evidence.tracers:
                # `zero` asks each worker for the names of those that it records.
                tracer.announced_probe_count = tracer.script.expected_probe_count

    def _fall_back(self, reason: str) -> None:
        """
        Go on without bpftrace, which cannot be used here; said everywhere.
        """
        ask_tracers_to_end(self._roles.place, self._evidence)
        end_tracers(self._roles.place, self._evidence)
        self._evidence.tracer_kind, self._evidence.tracer_reason = "in-process", reason

    def _await_attached(self) -> None:
        """
        Each one's own record says when it is attached, and to how many.
        """
        deadline_s = self._started_s + ATTACH_LIMIT_S
        for tracer in self._evidence.tracers:
            with self._roles.interrupts.allowed():
                self._await_one(tracer, deadline_s=deadline_s)

    def _await_one(self, tracer: TracerEvidence, *, deadline_s: float) -> None:
        announced_s: float | None = None
        while True:
            self._roles.check_alive(tracer.role)
            trace = self._peek(tracer.role)
            now_s = self._clock.now_s()
            if trace.announced_probe_count is not None:
                tracer.announced_probe_count = trace.announced_probe_count
                announced_s = now_s if announced_s is None else announced_s
                if trace.has_begun or now_s - announced_s >= _silence_s(tracer):
                    return
            if now_s > deadline_s:
                words = self._roles.last_words(tracer.role)
                raise RunError(
                    f"{tracer.script.name}: bpftrace did not attach within {ATTACH_LIMIT_S:.0f} s"
                    + (f": {words}" if words else "")
                )
            self._clock.sleep(POLL_S)

    def _peek(self, role: str) -> Trace:
        """What a tracer has written so far."""
        parser = TraceParser()
        with contextlib.suppress(FileNotFoundError):  # it has not opened its file yet
            parser.feed(self._roles.place.read(role, TRACE))
        return parser.snapshot()


def _silence_s(tracer: TracerEvidence) -> float:
    """How long a tracer that has announced its probes may say nothing more."""
    if tracer.script.prints_at_begin:
        return ATTACH_LIMIT_S
    return 0.0 if tracer.script.server_probe_names else SILENT_ATTACH_S
