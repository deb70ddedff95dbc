"""
Writing a run down: from evidence to the files of its folder.
"""

import hashlib
import secrets
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from quiclab import VERSION
from quiclab.accounting import account
from quiclab.answers import Answer
from quiclab.artifacts import (
    Manifest,
    RoleFacts,
    RunFolder,
    RunnerFacts,
    State,
    Timing,
    render_folder_name,
    render_json,
)
from quiclab.bottleneck import find_bottleneck
from quiclab.clock import Clock
from quiclab.errors import MachineError
from quiclab.evidence import Evidence, TracerEvidence
from quiclab.machine.host import collect_git, collect_host
from quiclab.observer import Observer, Phase
from quiclab.readback import list_readback
from quiclab.trace.document import trace_to_json
from quiclab.trace.text import render_maps
from quiclab.units import render_size
from quiclab.verdict import Verdict, judge

_ID_LETTERS: Final = string.ascii_lowercase + string.digits
_ID_LENGTH: Final = 4
HISTOGRAMS_SCHEMA: Final = 1


class Record:
    """
    One run on paper: its name, its folder, how long each phase took.
    """

    def __init__(
        self,
        evidence: Evidence,
        *,
        observer: Observer,
        clock: Clock,
        before_s: Mapping[str, float] | None = None,
    ) -> None:
        self.started_at = clock.utc()
        self.short_id = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
        self.run_id = f"{self.started_at:%Y%m%dT%H%M%SZ}-{self.short_id}"
        self.durations_s: dict[str, float] = dict(before_s or {})
        self._evidence = evidence
        self._observer = observer
        self._clock = clock
        # The first phase is announced later, when there is somebody to tell.
        self._phase: Phase | None = Phase.PREFLIGHT
        self._began_s = self._phase_started_s = clock.now_s()
        self._before_s = sum(self.durations_s.values())
        self._folder: RunFolder | None = None
        # Asked before the load, so that the load average is not the run's own.
        self._host = collect_host()
        self._git = collect_git(Path(__file__).parent)

    @property
    def sysctls(self) -> Mapping[str, str]:
        """Limits of this machine as they were when the run began."""
        return self._host.sysctls

    @property
    def folder_name(self) -> str:
        """What the run's folder is called, or will be."""
        return render_folder_name(
            started_at=self.started_at,
            scripts=[tracer.script.name for tracer in self._evidence.tracers],
            buffer=render_size(self._evidence.scenario.tx_buffer_bytes),
            short_id=self.short_id,
        )

    @property
    def folder(self) -> RunFolder:
        """The run's folder; `open` was called."""
        if self._folder is None:
            raise RuntimeError("the record has no folder before it is opened")
        return self._folder

    @property
    def phase(self) -> str:
        """The running phase."""
        return "" if self._phase is None else self._phase.value

    def begin(self, phase: Phase) -> None:
        """The phase before has ended; this one begins."""
        self._end_phase()
        self._phase, self._phase_started_s = phase, self._clock.now_s()
        self._observer.phase_started(phase)

    def note(self, label: str, text: str) -> None:
        """One fact for the reader."""
        self._observer.note(label, text)

    def progress(self, fraction: float, *, left_s: float | None) -> None:
        """How far the running phase is."""
        self._observer.progress(fraction, left_s=left_s)

    def open(self, output: Path) -> None:
        """
        Make the folder, with a manifest that says "running".

        Raises:
            UsageError: The output is a file.
            MachineError: The folder cannot be made; then there is none.
        """
        self._folder = RunFolder.create(output, self.folder_name)
        try:
            self.folder.write_manifest(self._manifest("running", verdict=None))
            self.folder.reserve()
        except MachineError:
            self.folder.remove()
            raise

    def close(self, state: State, verdict: Verdict) -> Manifest:
        """
        Write everything that was measured, the final manifest last.

        Raises:
            MachineError: Something could not be written. Everything else was, and the
                manifest, where there is room for it, says "failed" and why.
        """
        error = self._write_all()
        self._end_phase()
        if error is not None:
            state = "failed" if state == "done" else state
            self._evidence.failure = self._evidence.failure or str(error)
            verdict = judge(self._evidence)  # what was said before knew nothing of it
        manifest = self._manifest(state, verdict=verdict)
        self.folder.release()
        self.folder.write_manifest(manifest)
        if error is not None:
            raise error
        if not self.folder.point_latest():
            self.note("note", f"{self.folder.path.parent}/latest is not ours and was left alone")
        return manifest

    def _write_all(self) -> MachineError | None:
        """Write each file that there is; the first that could not be written is the answer."""
        first: MachineError | None = None
        for name, data in self._files():
            try:
                self.folder.write(name, data)
            except MachineError as error:
                first = first or error
        return first

    def _files(self) -> Iterator[tuple[str, bytes | str]]:
        yield from self._trace_files()
        for name, answer in (
            ("server.json", self._evidence.counters),
            ("client.json", self._evidence.client_result),
        ):
            if answer is not None:
                yield name, render_json(answer.model_dump(mode="json", exclude_unset=True))
        if self._evidence.recording is not None:
            yield "recording.json", render_json({"schema": 1, **self._evidence.recording})
        for role, facts in self._evidence.roles.items():
            yield f"logs/{role}.stdout", facts.stdout
            yield f"logs/{role}.stderr", facts.stderr

    def _end_phase(self) -> None:
        if self._phase is not None:
            took_s = self._clock.now_s() - self._phase_started_s
            so_far_s = self.durations_s.get(self._phase.value, 0.0)
            self.durations_s[self._phase.value] = round(so_far_s + took_s, 4)
            self._phase = None

    def _ended_at(self) -> datetime:
        """The wall clock may have been set meanwhile: what the run took is added to its start."""
        return self.started_at + timedelta(seconds=self._clock.now_s() - self._began_s)

    def _time(self) -> Timing:
        result = self._evidence.client_result
        total_s = self._before_s + self._clock.now_s() - self._began_s
        load_s = None if result is None else result.load_s
        return Timing(
            total_s=round(total_s, 4),
            load_asked_s=self._evidence.scenario.duration_s,
            load_s=load_s,
            beyond_load_s=round(total_s - (load_s or 0.0), 4),
        )

    def _trace_files(self) -> Iterator[tuple[str, bytes | str]]:
        tracers = self._evidence.tracers
        for tracer in tracers:
            if tracer.raw_trace is not None:
                is_alone = len(tracers) == 1
                name = "trace.jsonl" if is_alone else f"trace-{tracer.script.name}.jsonl"
                yield name, tracer.raw_trace
            if not tracer.script.is_shipped:
                yield f"{tracer.script.name}.bt", tracer.script.text
        parsed = [tracer for tracer in tracers if tracer.trace is not None]
        if parsed:
            yield "histograms.json", render_json(_parsed_maps(parsed))
            yield "trace.txt", _maps_as_text(parsed)

    def _manifest(self, state: State, *, verdict: Verdict | None) -> Manifest:
        evidence = self._evidence
        place = evidence.place
        versions = _lab_versions() | ({} if place is None else dict(place.versions))
        for answer in (evidence.server, evidence.client):
            versions |= {} if answer is None else answer.versions
        details = {} if place is None else dict(place.details)
        return Manifest(
            run_id=self.run_id,
            state=state,
            reason=evidence.failure or evidence.interruption,
            label=evidence.scenario.label,
            started_at=self.started_at,
            ended_at=None if state == "running" else self._ended_at(),
            asked=evidence.scenario.model_dump(mode="json", by_alias=True),
            granted=(*evidence.grants, *(() if state == "running" else list_readback(evidence))),
            server=_described(evidence.server),
            client=_described(evidence.client),
            runner=None if place is None else RunnerFacts.of(place),
            roles={role: RoleFacts.of(facts) for role, facts in evidence.roles.items()},
            tracer={
                "asked": evidence.scenario.tracer,
                "kind": evidence.tracer_kind,
                "reason": evidence.tracer_reason,
            },
            verify=[asdict(comparison) for comparison in evidence.comparisons],
            scripts={
                tracer.script.name: hashlib.sha256(tracer.script.text.encode()).hexdigest()
                for tracer in evidence.tracers
            },
            versions=versions,
            host=self._host,
            image_digest=details.get("image_id"),
            git=self._git,
            durations_s=self.durations_s,
            timing=None if state == "running" else self._time(),
            costs={
                name: None if reading is None else asdict(reading)
                for name, reading in (
                    ("before", evidence.costs_before),
                    ("after", evidence.costs_after),
                )
            },
            accounts=None if state == "running" else account(evidence),
            bottleneck=None if state == "running" else find_bottleneck(evidence),
            verdict=verdict,
        )


def _described(answer: Answer | None) -> Mapping[str, Any] | None:
    """A description as it came, without the certificate: it is long and of one run only."""
    if answer is None:
        return None
    return answer.model_dump(mode="json", exclude={"certificate_pem"}, exclude_unset=True)


def _parsed_maps(tracers: Sequence[TracerEvidence]) -> dict[str, Any]:
    return {
        "schema": HISTOGRAMS_SCHEMA,
        "scripts": {
            tracer.script.name: trace_to_json(tracer.trace)
            for tracer in tracers
            if tracer.trace is not None
        },
    }


def _maps_as_text(tracers: Sequence[TracerEvidence]) -> str:
    """The maps as bpftrace prints them; of several scripts each under its name."""
    parts = []
    for tracer in tracers:
        if tracer.trace is not None:
            head = f"{tracer.script.name}:\n" if len(tracers) > 1 else ""
            parts.append(head + render_maps(tracer.trace.maps.values()))
    return "\n".join(parts)


def _lab_versions() -> dict[str, str]:
    """Name the lab's own side: itself and what it drives engines and commands with."""
    return {
        "quiclab": VERSION,
        "docker-sdk": metadata.version("docker"),
        "invoke": metadata.version("invoke"),
    }
