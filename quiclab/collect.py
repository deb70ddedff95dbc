"""
The end of a run, whichever way it came: roles ended in order, everything fetched.

Nothing here breaks off. What cannot be had is named in `Evidence.missing`, and
the next thing is tried; every wait is bounded. The order matters: the client
first, then the server's counters, then the tracers (their final maps cover the
same window as the counters), the server last (its probes must not end before).
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from quiclab.answers import ClientResult, CounterReport
from quiclab.argv import CLIENT_RESULT, SERVER_STATS, TRACE
from quiclab.clock import Clock
from quiclab.errors import LabError, RunError
from quiclab.evidence import Evidence
from quiclab.runner.base import CLIENT, SERVER, Place
from quiclab.trace.ndjson import parse_trace
from quiclab.trace.witness import compare_maps, render_trace

CLIENT_END_S: Final = 3.0
# bpftrace prints its final maps within 1.2 s of INT (0.17 and 0.23, measured). 0.17 heeds a
# signal only while it waits for events, and misses one that comes between two waits (seen
# twice in some hundred runs). Then it is asked again, by TERM: INT would end it at once if it
# was printing already.
TRACER_ASK_AGAIN_S: Final = 3.0
TRACER_END_S: Final = 12.0
SERVER_END_S: Final = 5.0
KILLED_END_S: Final = 3.0
# A container's first process gets no INT before it has said that it listens for one.
UNREADY_END_S: Final = 1.0
SETTLE_POLL_S: Final = 0.02  # a question takes 0.1 to 2 ms, and connections close within 0.1 s
EARLY_SETTLE_S: Final = 2.0


def collect(place: Place, evidence: Evidence, clock: Clock) -> None:
    """
    End what still runs and fetch what there is.
    """
    is_ready = evidence.client is not None
    ask_to_end(place, evidence, CLIENT)
    end_role(place, evidence, CLIENT, within_s=CLIENT_END_S if is_ready else UNREADY_END_S)
    is_settled = evidence.counters is not None and evidence.counters.is_settled
    if evidence.is_load_started and not is_settled:
        with attempt(evidence, "the server's counters"):
            settle(place, evidence, clock, within_s=EARLY_SETTLE_S)
    if evidence.is_load_started:
        with attempt(evidence, "what the run cost"):
            evidence.costs_after = place.read_costs()
        _fetch_recording(place, evidence)
    ask_tracers_to_end(place, evidence)
    # bpftrace takes half a second and more to detach; what the client left is fetched meanwhile.
    _fetch_client_result(place, evidence)
    _fetch_words(place, evidence, CLIENT)
    end_tracers(place, evidence)
    is_ready = evidence.server is not None
    ask_to_end(place, evidence, SERVER)
    _fetch_traces(place, evidence)
    _use_recording(evidence)
    for tracer in evidence.tracers:
        _fetch_words(place, evidence, tracer.role)
    end_role(place, evidence, SERVER, within_s=SERVER_END_S if is_ready else UNREADY_END_S)
    _fetch_counters(place, evidence)
    _fetch_words(place, evidence, SERVER)


def settle(place: Place, evidence: Evidence, clock: Clock, *, within_s: float) -> None:
    """
    Read the server's counters until nothing can be counted any more.

    The last reading is kept, settled or not.

    Raises:
        RunError: The server does not answer.
    """
    deadline_s = clock.now_s() + within_s
    while True:
        evidence.counters = CounterReport.read(place.request(SERVER, "report"))
        if evidence.counters.is_settled or clock.now_s() > deadline_s:
            return
        clock.sleep(SETTLE_POLL_S)


@contextmanager
def attempt(evidence: Evidence, what: str) -> Iterator[None]:
    """
    Try to get one thing; when it cannot be had, say so and go on.
    """
    try:
        yield
    except (LabError, OSError) as error:
        evidence.missing.append(f"{what}: {error}")


def ask_tracers_to_end(place: Place, evidence: Evidence) -> None:
    """
    Ask all tracers to end, at once.
    """
    for tracer in evidence.tracers:
        ask_to_end(place, evidence, tracer.role)


def end_tracers(place: Place, evidence: Evidence) -> None:
    """
    Wait for the tracers' end, each of which was asked for.
    """
    for tracer in evidence.tracers:
        is_attached = tracer.announced_probe_count is not None
        if is_attached and _is_started(evidence, tracer.role):
            with attempt(evidence, f"an orderly end of {tracer.role}"):
                _ask_again(place, tracer.role)
        within_s = TRACER_END_S if is_attached else UNREADY_END_S
        end_role(place, evidence, tracer.role, within_s=within_s)


def _ask_again(place: Place, role: str) -> None:
    """Repeat a request to end that was missed."""
    try:
        place.wait(role, timeout_s=TRACER_ASK_AGAIN_S)
    except TimeoutError:
        place.terminate(role)


def ask_to_end(place: Place, evidence: Evidence, role: str) -> None:
    """
    Ask one role to end, without waiting for it.
    """
    if _is_started(evidence, role):
        with attempt(evidence, f"an orderly end of {role}"):
            if place.exit_status(role) is None:
                place.interrupt(role)


def end_role(place: Place, evidence: Evidence, role: str, *, within_s: float) -> None:
    """
    Wait for the end of a role that was asked to, end it by force when it does not listen.
    """
    if not _is_started(evidence, role):
        return
    facts = evidence.roles[role]
    with attempt(evidence, f"an orderly end of {role}"):
        try:
            facts.exit_status = place.wait(role, timeout_s=within_s)
        except TimeoutError:
            facts.is_killed_by_lab = True
            place.kill(role)
            facts.exit_status = place.wait(role, timeout_s=KILLED_END_S)


def _is_started(evidence: Evidence, role: str) -> bool:
    return role in evidence.roles and evidence.roles[role].is_started


def _fetch_client_result(place: Place, evidence: Evidence) -> None:
    if evidence.is_load_started:
        with attempt(evidence, "the client's result"):
            evidence.client_result = ClientResult.read(_read_json(place, CLIENT, CLIENT_RESULT))


def _fetch_traces(place: Place, evidence: Evidence) -> None:
    for tracer in evidence.tracers:
        if evidence.tracer_kind == "bpftrace" and _is_started(evidence, tracer.role):
            with attempt(evidence, f"the trace of {tracer.script.name}"):
                tracer.raw_trace = place.read(tracer.role, TRACE)
                tracer.trace = parse_trace(tracer.raw_trace.decode(errors="replace"))


def _fetch_recording(place: Place, evidence: Evidence) -> None:
    """What the server's recorder counted; nothing moves any more, and bpftrace still listens."""
    if evidence.is_recorded:
        with attempt(evidence, "the server's own recording"):
            evidence.recording = place.request(SERVER, "recorded")


def _use_recording(evidence: Evidence) -> None:
    """The recorder's maps stand for bpftrace's, or beside them."""
    recording = evidence.recording
    if recording is None:
        return
    for tracer in evidence.tracers:
        if evidence.tracer_kind == "in-process":
            tracer.raw_trace = render_trace(tracer.script, recording)
            tracer.trace = parse_trace(tracer.raw_trace)
    if evidence.tracer_kind == "bpftrace":
        evidence.comparisons = [
            comparison
            for tracer in evidence.tracers
            if tracer.trace is not None and not evidence.is_cut_off(tracer)
            for comparison in compare_maps(tracer.script, tracer.trace, recording)
        ]


def _fetch_counters(place: Place, evidence: Evidence) -> None:
    """It stopped answering, and may still have written what it counted as it ended."""
    if evidence.counters is None and evidence.is_load_started:
        with attempt(evidence, "the server's own statistics"):
            evidence.counters = CounterReport.read(_read_json(place, SERVER, SERVER_STATS))


def _read_json(place: Place, role: str, name: str) -> dict[str, Any]:
    try:
        value = json.loads(place.read(role, name))
    except FileNotFoundError as error:
        raise RunError(f"{role} left no {name}") from error
    except ValueError as error:
        raise RunError(f"{name} of {role} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RunError(f"{name} of {role} holds no JSON object")
    return value


def _fetch_words(place: Place, evidence: Evidence, role: str) -> None:
    if not _is_started(evidence, role):
        return
    facts = evidence.roles[role]
    with attempt(evidence, f"the output of {role}"):
        facts.stdout, facts.stderr = place.output(role)
        facts.uptime_s = round(place.uptime_s(role), 3)
