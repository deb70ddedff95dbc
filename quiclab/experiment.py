"""
The main path: a scenario goes in, a run folder comes out.

`run` is the frame (folder, lock, signals, verdict), `_Run.tell` the story. The
story speaks to roles through a `Place` and never knows whether these are
containers, processes or a script for tests. Whatever happens, what was
measured is collected, labelled and judged, and everything else is removed.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from quiclab import leftovers
from quiclab.answers import ClientDescription, ClientProgress, ResetAnswer, ServerDescription
from quiclab.argv import (
    CLIENT_CA,
    TRACE,
    client_command,
    server_command,
    tracer_command,
    tracer_environment,
)
from quiclab.artifacts import Manifest, State
from quiclab.clock import Clock, SystemClock
from quiclab.collect import collect, settle
from quiclab.errors import (
    ExitCode,
    InterruptedRunError,
    LabError,
    RoleExitedError,
    RunError,
    UsageError,
)
from quiclab.evidence import Evidence, RoleEvidence, TracerEvidence
from quiclab.grants import fit_download_window, fit_upload_window, list_grants, list_windows
from quiclab.interrupts import Interruption, Interrupts
from quiclab.observer import Observer, Phase, SilentObserver
from quiclab.record import Record
from quiclab.runner.base import CLIENT, SERVER, TRACER, Place, Runner, tracer_roles
from quiclab.runner.words import find_last_words
from quiclab.scenario import Scenario
from quiclab.trace.events import Trace
from quiclab.trace.kernel import detect_kernel_probes
from quiclab.trace.ndjson import TraceParser
from quiclab.trace.script import check_against_kernel, load_script
from quiclab.verdict import Verdict, judge
from quiclab.wording import render_load, render_server, render_tracers

ATTACH_LIMIT_S: Final = 30.0  # 30 probes take 0.7 s; 5 s were seen on a busy machine
# bpftrace up to 0.23 announces its probes before it attaches them (20-60 ms, measured).
# What a BEGIN probe prints and what the server sees at its probe sites show that it has;
# a script with neither is given this long.
SILENT_ATTACH_S: Final = 3.0
SETTLE_LIMIT_S: Final = 10.0  # closing takes three probe timeouts (RFC 9000, Section 10.2)
# A look at a tracer's file or a question to the server takes 0.1 to 2 ms in every place.
POLL_S: Final = 0.02
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
    """

    directory: Path
    manifest: Manifest
    verdict: Verdict
    exit_code: ExitCode
    traces: Mapping[str, Trace]
    client: Mapping[str, Any] | None
    counters: Mapping[str, Any] | None


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
    if scenario.tracer == "none":
        evidence.tracer_kind = "none"
    record = Record(evidence, observer=observer or SilentObserver(), clock=clock, before_s=before_s)
    with Interrupts() as interrupts:
        story = _Run(evidence, record, runner, interrupts, clock)
        story.check_machine()
        with leftovers.register(record.run_id, runner_name=runner.name):
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
        self._tracers_started_s = 0.0

    def check_machine(self) -> None:
        """
        Before anything exists: can it be done here, and did a dead run leave something?
        """
        self._record.begin(Phase.PREFLIGHT)
        try:
            with self._interrupts.allowed():
                self._runner.preflight()
                for tracer in self._evidence.tracers:
                    check_against_kernel(tracer.script, detect_kernel_probes())
        except Interruption as interruption:
            raise InterruptedRunError(interruption.signal_name) from None
        try:
            for line in self._runner.remove_leftovers():
                self._record.note("clean", line)
        except LabError as error:  # a dead run's things must not keep a new one from living
            self._record.note("clean", str(error))

    def tell(self) -> None:
        """
        The story of one run. Leaving a block undoes what entering it did.
        """
        self._record.begin(Phase.PLACE)
        with self._runner.open(
            self._record.run_id,
            max_mtu_bytes=self._scenario.max_mtu_bytes,
            tracer_count=len(self._evidence.tracers),
        ) as place:
            self._note_place(place)
            try:
                server = self._start_server(place)
                self._start_client(place, server)
                self._start_tracers(place, server)
                self._await_client_ready(place, server)
                self._await_tracers(place)
                self._drive_load(place)
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

    def _start_server(self, place: Place) -> ServerDescription:
        self._record.begin(Phase.SERVER)
        self._start(place, SERVER, server_command(self._scenario, place))
        server = ServerDescription.read(self._ask(place, SERVER, "describe"))
        self._evidence.server = server
        self._record.note("server", render_server(server))
        if server.probes.provider_path is None:
            raise RunError(f"the server carries no probes: {server.probes.note}")
        return server

    def _start_client(self, place: Place, server: ServerDescription) -> None:
        """
        No packet is sent before it is told; it gets ready while the tracers attach.
        """
        self._record.begin(Phase.CLIENT)
        place.write(CLIENT, CLIENT_CA, server.certificate_pem.encode())
        cap_bytes = server.granted.window_cap_bytes
        if self._scenario.direction != "download":
            cap_bytes = fit_upload_window(self._scenario, server)
        argv = client_command(self._scenario, place, server, window_cap_bytes=cap_bytes)
        self._start(place, CLIENT, argv)

    def _start_tracers(self, place: Place, server: ServerDescription) -> None:
        """
        All at once, beside the client; that they are attached is awaited later.
        """
        self._tracers_started_s = self._clock.now_s()
        provider_path = place.provider_path_for_tracer(server.probes.provider_path or "")
        environment = tracer_environment(self._scenario)
        for tracer in self._evidence.tracers:
            file_name = f"{tracer.script.name}.bt"
            place.write(tracer.role, file_name, tracer.script.text.encode())
            argv = tracer_command(
                place,
                tracer.role,
                script_file=file_name,
                provider_path=provider_path,
                is_timed=self._scenario.are_programs_timed,
            )
            self._start(place, tracer.role, argv, environment)

    def _await_client_ready(self, place: Place, server: ServerDescription) -> None:
        """
        Its sockets are made now. A burst that its receiver cannot hold is lost on loopback:
        no window may be larger.
        """
        client = ClientDescription.read(self._ask(place, CLIENT, "describe"))
        self._evidence.client = client
        cap_bytes = fit_download_window(server, client)
        if self._scenario.direction != "upload" and cap_bytes != server.granted.window_cap_bytes:
            self._ask(place, SERVER, "configure", window_cap_bytes=cap_bytes)
        self._evidence.grants = [
            *list_grants(self._scenario, server, client, sysctls=self._record.sysctls),
            *list_windows(self._scenario, server, client),
        ]

    def _await_tracers(self, place: Place) -> None:
        """
        Each one's own record says when it is attached, and to how many.
        """
        self._record.begin(Phase.TRACER)
        for tracer in self._evidence.tracers:
            with self._interrupts.allowed():
                deadline_s = self._tracers_started_s + ATTACH_LIMIT_S
                self._await_attached(place, tracer, deadline_s=deadline_s)
        took_s = self._clock.now_s() - self._tracers_started_s
        if self._evidence.tracers:
            line = render_tracers(self._evidence.tracers, place.facts, took_s=took_s)
            self._record.note("tracer", line)

    def _await_attached(self, place: Place, tracer: TracerEvidence, *, deadline_s: float) -> None:
        announced_s: float | None = None
        while True:
            self._check_alive(place, tracer.role)
            trace = _peek(place, tracer.role)
            now_s = self._clock.now_s()
            if trace.announced_probe_count is not None:
                tracer.announced_probe_count = trace.announced_probe_count
                announced_s = now_s if announced_s is None else announced_s
                if trace.has_begun or now_s - announced_s >= _silence_s(tracer):
                    return
            if now_s > deadline_s:
                words = _last_words(place, tracer.role)
                raise RunError(
                    f"{tracer.script.name}: bpftrace did not attach within {ATTACH_LIMIT_S:.0f} s"
                    + (f": {words}" if words else "")
                )
            self._clock.sleep(POLL_S)

    def _drive_load(self, place: Place) -> None:
        """
        Both accounts begin at zero, the tracers' maps and the server's counters.
        """
        self._record.begin(Phase.LOAD)
        self._record.note("load", render_load(self._scenario))
        self._evidence.untraced = self._zero_counters(place)
        self._evidence.costs_before = place.read_costs()
        self._evidence.is_load_started = True
        self._ask(place, CLIENT, "start")
        with self._interrupts.allowed():
            status = self._await_client(place)
        self._record.progress(1.0, left_s=0.0)
        if status not in {0, CLIENT_INCOMPLETE}:
            raise _exited(place, CLIENT, status)
        self._evidence.is_load_complete = True

    def _zero_counters(self, place: Place) -> Sequence[str]:
        """
        Zero the server's counters; its answer is also the last word on what is traced.
        """
        expected = [
            name for tracer in self._evidence.tracers for name in tracer.script.server_probe_names
        ]
        deadline_s = self._clock.now_s() + SILENT_ATTACH_S
        while True:
            answer = ResetAnswer.read(self._ask(place, SERVER, "reset"))
            untraced = answer.find_untraced(expected)
            if not untraced or self._clock.now_s() > deadline_s:
                return untraced
            self._clock.sleep(POLL_S)

    def _await_client(self, place: Place) -> int:
        started_s = self._clock.now_s()
        limit_s = _load_limit_s(self._scenario)
        while True:
            elapsed_s = self._clock.now_s() - started_s
            self._say_progress(place, elapsed_s=elapsed_s)
            try:
                return place.wait(CLIENT, timeout_s=PROGRESS_S)
            except TimeoutError:
                pass  # it works on
            for role in (SERVER, *(tracer.role for tracer in self._evidence.tracers)):
                self._check_alive(place, role)
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

    def _start(
        self, place: Place, role: str, argv: list[str], environment: Mapping[str, str] | None = None
    ) -> None:
        environment = environment or {}
        self._evidence.roles[role] = RoleEvidence(command=argv, environment=environment)
        place.start(role, argv, environment=environment)
        self._evidence.roles[role].is_started = True

    def _ask(self, place: Place, role: str, op: str, **arguments: Any) -> Mapping[str, Any]:
        with self._interrupts.allowed():
            return place.request(role, op, **arguments)

    def _check_alive(self, place: Place, role: str) -> None:
        status = place.exit_status(role)
        if status is not None:
            raise _exited(place, role, status)


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


def _peek(place: Place, role: str) -> Trace:
    """What a tracer has written so far."""
    parser = TraceParser()
    with contextlib.suppress(FileNotFoundError):  # it has not opened its file yet
        parser.feed(place.read(role, TRACE))
    return parser.snapshot()


def _silence_s(tracer: TracerEvidence) -> float:
    """How long a tracer that has announced its probes may say nothing more."""
    if tracer.script.prints_at_begin:
        return ATTACH_LIMIT_S
    return 0.0 if tracer.script.server_probe_names else SILENT_ATTACH_S


def _load_limit_s(scenario: Scenario) -> float:
    if scenario.duration_s is not None:
        return scenario.duration_s + LOAD_GRACE_S
    both_ways = 2 if scenario.direction == "both" else 1
    return LOAD_GRACE_S + both_ways * (scenario.total_bytes or 0) / SLOWEST_BYTES_PER_S


def _exited(place: Place, role: str, status: int) -> RoleExitedError:
    return RoleExitedError(
        role,
        exit_status=status,
        last_words=_last_words(place, role),
        after_s=place.uptime_s(role),
    )


def _last_words(place: Place, role: str) -> str:
    stdout, stderr = place.output(role)
    # bpftrace 0.17 says "No probes to attach" on stdout.
    return find_last_words(stderr) or (find_last_words(stdout) if role.startswith(TRACER) else "")


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
    )
