"""
The main path: a scenario goes in, a run folder comes out.

`run` is the frame (folder, lock, signals, verdict), `_Run.tell` the story. The
story speaks to roles through a `Place` and never knows whether these are
containers, processes or a script for tests. Whatever happens, what was
measured is collected, labelled and judged, and everything else is removed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from quiclab import leftovers
from quiclab.answers import ClientDescription, ClientProgress, ServerDescription
from quiclab.argv import (
    CLIENT_CA,
    client_command,
    server_command,
)
from quiclab.artifacts import Manifest, State, absolute
from quiclab.clock import Clock, SystemClock
from quiclab.collect import collect, settle
from quiclab.errors import (
    ExitCode,
    InterruptedRunError,
    LabError,
    MachineError,
    RoleExitedError,
    RunError,
    UsageError,
)
from quiclab.evidence import Evidence, TracerEvidence
from quiclab.grants import fit_download_window, fit_upload_window, list_grants, list_windows
from quiclab.interrupts import Interruption, Interrupts
from quiclab.killed import label_killed_runs
from quiclab.observer import Observer, Phase, SilentObserver
from quiclab.record import Record
from quiclab.roles import Roles
from quiclab.runner.base import CLIENT, SERVER, Place, Runner, tracer_roles
from quiclab.scenario import Scenario
from quiclab.trace.events import Trace
from quiclab.trace.kernel import detect_kernel_probes
from quiclab.trace.script import check_against_kernel, load_script
from quiclab.trace.witness import recording_rules
from quiclab.tracing import Tracing
from quiclab.verdict import Verdict, judge
from quiclab.wording import render_load, render_server

SETTLE_LIMIT_S: Final = 10.0  # closing takes three probe timeouts (RFC 9000, Section 10.2)
PROGRESS_S: Final = 0.25
# A client ends a load that stalls or takes too long by itself (client/plan.py, 30 s and
# the same rate); the lab's own limit is for a client that hangs.
LOAD_GRACE_S: Final = 45.0
SLOWEST_BYTES_PER_S: Final = 250_000
CLIENT_INCOMPLETE: Final = 5  # the client's exit status when not all that was asked came


@dataclass(frozen=True, slots=True)
class RunResult:
    """
    What a run gave, also when it failed half way: then the verdict says so.

    Args:
        directory: The run's folder.
        manifest: Its manifest, final.
        verdict: Whether the figures may be used.
        exit_code: What the process answers with for this run.
        traces: Parsed output of each tracer, by script name; those that left any.
        client: What the client measured (client.json), None when it left nothing.
        counters: The server's counters over the traced window (server.json), or None.
        recording: What the server's own recorder counted (recording.json), or None.
    """

    directory: Path
    manifest: Manifest
    verdict: Verdict
    exit_code: ExitCode
    traces: Mapping[str, Trace]
    client: Mapping[str, Any] | None
    counters: Mapping[str, Any] | None
    recording: Mapping[str, Any] | None = None


class RunInterruptedError(InterruptedRunError):
    """
    INT or TERM ended the run in order; what was measured by then is in `result`.
    """

    def __init__(self, signal_name: str, *, result: RunResult) -> None:
        super().__init__(signal_name)
        self.result = result


def run(
    scenario: Scenario,
    *,
    runner: Runner,
    output: Path,
    observer: Observer | None = None,
    clock: Clock | None = None,
    before_s: Mapping[str, float] | None = None,
) -> RunResult:
    """
    Make one run and judge it.

    A run that fails half way is a result too: its verdict is "invalid", and
    its folder holds what was measured.

    Args:
        scenario: What is asked.
        runner: Where it takes place.
        output: The folder in which the run's folder is made.
        observer: Hears about phases, progress and facts.
        clock: Time; the fake runner brings its own.
        before_s: What the command spent before, by what on; it is part of what the run cost.

    Raises:
        UsageError: What is asked makes no sense; nothing was made.
        MachineError: It cannot be done here; nothing was made.
        InterruptedRunError: INT or TERM came; a `RunInterruptedError` when a folder was made.
    """
    clock = clock or SystemClock()
    evidence = Evidence(scenario=scenario, tracers=_plan_tracers(scenario))
    if scenario.tracer in {"in-process", "none"}:
        evidence.tracer_kind = scenario.tracer
    record = Record(evidence, observer=observer or SilentObserver(), clock=clock, before_s=before_s)
    with Interrupts() as interrupts:
        story = _Run(evidence, record, runner, interrupts, clock)
        story.check_machine()
        with leftovers.register(record.run_id, runner_name=runner.name) as live:
            live.note_folder(absolute(output) / record.folder_name)
            record.open(output)
            failure: Exception | None = None
            try:
                story.tell()
            except Interruption:
                pass  # `interrupts` remembers which one; the record is labelled with it
            except Exception as error:  # noqa: BLE001 - a fault of ours is labelled, then raised
                failure = error
                evidence.failure = _name_failure(error)
            result = _conclude(evidence, record, failure, interrupts)
    if failure is not None and not isinstance(failure, LabError):
        raise failure
    if interrupts.signal_name is not None:
        raise RunInterruptedError(interrupts.signal_name, result=result)
    return result


class _Run:
    """
    One run, step by step. Evidence gathers in `evidence`, words go to `record`.
    """

    def __init__(
        self,
        evidence: Evidence,
        record: Record,
        runner: Runner,
        interrupts: Interrupts,
        clock: Clock,
    ) -> None:
        self._evidence = evidence
        self._scenario = evidence.scenario
        self._record = record
        self._runner = runner
        self._interrupts = interrupts
        self._clock = clock

    def check_machine(self) -> None:
        """
        Before anything exists: can it be done here, and did a dead run leave something?
        """
        self._record.begin(Phase.PREFLIGHT)
        try:
            with self._interrupts.allowed():
                self._check_tracer()
        except Interruption as interruption:
            raise InterruptedRunError(interruption.signal_name) from None
        try:
            for line in [*label_killed_runs(), *self._runner.remove_leftovers()]:
                self._record.note("clean", line)
        except LabError as error:  # a dead run's things must not keep a new one from living
            self._record.note("clean", str(error))

    def _check_tracer(self) -> None:
        """
        Who can fill the maps here: bpftrace, or with `--tracer auto` the recorder instead.

        Raises:
            UsageError: The recorder does not know a script.
            MachineError: What was asked for cannot be had here.
        """
        evidence = self._evidence
        if evidence.is_recorded or self._scenario.tracer == "auto":
            recording_rules([tracer.script for tracer in evidence.tracers])
        if evidence.tracer_kind != "bpftrace":
            self._runner.preflight(is_traced=False)
            return
        try:
            self._runner.preflight()
            for tracer in evidence.tracers:
                check_against_kernel(tracer.script, detect_kernel_probes())
        except MachineError as error:
            if self._scenario.tracer != "auto":
                raise
            evidence.tracer_kind, evidence.tracer_reason = "in-process", str(error)
            self._runner.preflight(is_traced=False)

    def tell(self) -> None:
        """
        The story of one run. Leaving a block undoes what entering it did.
        """
        self._record.begin(Phase.PLACE)
        with self._runner.open(
            self._record.run_id,
            max_mtu_bytes=self._scenario.max_mtu_bytes,
            tracer_count=len(self._evidence.bpftrace_roles),
        ) as place:
            self._note_place(place)
            try:
                roles = Roles(place, self._evidence, self._interrupts)
                tracing = Tracing(roles, self._evidence, self._record, self._clock)
                server = self._start_server(roles)
                self._start_client(roles, server)
                tracing.start(server)
                self._await_client_ready(roles, server)
                self._record.begin(Phase.TRACER)
                tracing.await_ready()
                self._drive_load(roles, tracing)
                self._settle(place)
            finally:
                self._record.begin(Phase.COLLECT)
                collect(place, self._evidence, self._clock)
                self._record.begin(Phase.REMOVE)

    def _note_place(self, place: Place) -> None:
        self._evidence.place = place.facts
        self._record.note("runner", place.facts.summary)
        for note in place.facts.notes:
            self._record.note("note", note)

    def _start_server(self, roles: Roles) -> ServerDescription:
        self._record.begin(Phase.SERVER)
        roles.start(SERVER, server_command(self._scenario, roles.place))
        server = ServerDescription.read(roles.ask(SERVER, "describe"))
        self._evidence.server = server
        self._record.note("server", render_server(server))
        if server.probes.provider_path is None and self._evidence.tracer_kind == "bpftrace":
            raise RunError(f"the server carries no probes: {server.probes.note}")
        return server

    def _start_client(self, roles: Roles, server: ServerDescription) -> None:
        """
        No packet is sent before it is told; it gets ready while the tracers attach.
        """
        self._record.begin(Phase.CLIENT)
        roles.place.write(CLIENT, CLIENT_CA, server.certificate_pem.encode())
        cap_bytes = server.granted.window_cap_bytes
        if self._scenario.direction != "download":
            cap_bytes = fit_upload_window(self._scenario, server)
        argv = client_command(self._scenario, roles.place, server, window_cap_bytes=cap_bytes)
        roles.start(CLIENT, argv)

    def _await_client_ready(self, roles: Roles, server: ServerDescription) -> None:
        """
        Its sockets are made now. A burst that its receiver cannot hold is lost on loopback:
        no window may be larger.
        """
        client = ClientDescription.read(roles.ask(CLIENT, "describe"))
        self._evidence.client = client
        cap_bytes = fit_download_window(server, client)
        if self._scenario.direction != "upload" and cap_bytes != server.granted.window_cap_bytes:
            roles.ask(SERVER, "configure", window_cap_bytes=cap_bytes)
        self._evidence.grants = [
            *list_grants(self._scenario, server, client, sysctls=self._record.sysctls),
            *list_windows(self._scenario, server, client),
        ]

    def _drive_load(self, roles: Roles, tracing: Tracing) -> None:
        """
        Both accounts begin at zero, the tracers' maps and the server's counters.
        """
        self._record.begin(Phase.LOAD)
        self._record.note("load", render_load(self._scenario))
        tracing.zero()
        self._evidence.costs_before = roles.place.read_costs()
        self._evidence.is_load_started = True
        roles.ask(CLIENT, "start")
        with self._interrupts.allowed():
            status = self._await_client(roles)
        self._record.progress(1.0, left_s=0.0)
        if status not in {0, CLIENT_INCOMPLETE}:
            raise roles.exited(CLIENT, status)
        self._evidence.is_load_complete = True

    def _await_client(self, roles: Roles) -> int:
        started_s = self._clock.now_s()
        limit_s = _load_limit_s(self._scenario)
        while True:
            elapsed_s = self._clock.now_s() - started_s
            self._say_progress(roles.place, elapsed_s=elapsed_s)
            try:
                return roles.place.wait(CLIENT, timeout_s=PROGRESS_S)
            except TimeoutError:
                pass  # it works on
            for role in (SERVER, *self._evidence.bpftrace_roles):
                roles.check_alive(role)
            if elapsed_s > limit_s:
                raise RunError(f"the client did not end within {limit_s:.0f} s and was stopped")

    def _say_progress(self, place: Place, *, elapsed_s: float) -> None:
        """
        By time where a duration was given; else by bytes, which the client must be asked for.
        """
        duration_s, total_bytes = self._scenario.duration_s, self._scenario.total_bytes
        by_time = 0.0 if duration_s is None else elapsed_s / duration_s
        by_bytes = 0.0 if total_bytes is None else self._moved_bytes(place) / total_bytes
        fraction = min(1.0, max(by_time, by_bytes))
        left_s = elapsed_s / fraction - elapsed_s if fraction > 0 else duration_s
        self._record.progress(fraction, left_s=left_s)

    def _moved_bytes(self, place: Place) -> float:
        try:
            moved = ClientProgress.read(place.request(CLIENT, "report"))
        except RunError:
            # It ends at this moment, or does not answer: the wait that follows will say
            # which. Progress is a courtesy and must not decide a run.
            return 0.0
        total_bytes = moved.bytes_received + moved.bytes_sent
        return total_bytes / 2 if self._scenario.direction == "both" else total_bytes

    def _settle(self, place: Place) -> None:
        """
        Wait until nothing moves any more, so that both accounts cover the same time.
        """
        self._record.begin(Phase.SETTLE)
        with self._interrupts.allowed():
            settle(place, self._evidence, self._clock, within_s=SETTLE_LIMIT_S)


def _plan_tracers(scenario: Scenario) -> list[TracerEvidence]:
    """
    One tracer for each script: `tracer`, `tracer-2` and so on; none where none is asked for.

    Raises:
        UsageError: There is no such script, or one is named twice.
    """
    scripts = [load_script(asked) for asked in scenario.scripts]
    names = [script.name for script in scripts]
    for asked, name in zip(scenario.scripts, names, strict=True):
        if names.count(name) > 1:
            raise UsageError(f"--script {asked} is given twice in one run; name each script once")
    if scenario.tracer == "none":
        return []
    return [
        TracerEvidence(role=role, script=script)
        for role, script in zip(tracer_roles(len(scripts)), scripts, strict=True)
    ]


def _load_limit_s(scenario: Scenario) -> float:
    if scenario.duration_s is not None:
        return scenario.duration_s + LOAD_GRACE_S
    both_ways = 2 if scenario.direction == "both" else 1
    return LOAD_GRACE_S + both_ways * (scenario.total_bytes or 0) / SLOWEST_BYTES_PER_S


def _name_failure(error: Exception) -> str:
    if isinstance(error, LabError):
        return str(error)
    return f"internal error: {type(error).__name__}: {error}"


def _find_exit_code(evidence: Evidence, failure: Exception | None, verdict: Verdict) -> ExitCode:
    if evidence.interruption:
        return InterruptedRunError(evidence.interruption).exit_code
    if isinstance(failure, RoleExitedError) and failure.exit_status == ExitCode.MACHINE_CANNOT:
        return ExitCode.MACHINE_CANNOT  # the role's own word for it
    if isinstance(failure, LabError):
        return failure.exit_code
    return ExitCode.INTERNAL if failure is not None else verdict.exit_code


def _conclude(
    evidence: Evidence, record: Record, failure: Exception | None, interrupts: Interrupts
) -> RunResult:
    """
    Judge what was measured and write it down.
    """
    record.begin(Phase.WRITE)
    evidence.interruption = interrupts.signal_name or ""
    verdict = judge(evidence)
    state: State = "done"
    if evidence.interruption:
        state = "interrupted"
    elif evidence.failure:
        state = "failed"
    manifest = record.close(state, verdict)
    counters, client = evidence.counters, evidence.client_result
    return RunResult(
        directory=record.folder.path,
        manifest=manifest,
        verdict=verdict,
        exit_code=_find_exit_code(evidence, failure, verdict),
        traces={t.script.name: t.trace for t in evidence.tracers if t.trace is not None},
        client=None if client is None else client.model_dump(mode="json"),
        counters=None if counters is None else counters.model_dump(mode="json"),
        recording=evidence.recording,
    )
