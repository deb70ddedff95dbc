"""
The lines that a run tells while it works.
"""

from quiclab.evidence import TracerEvidence
from quiclab.runner.base import PlaceFacts
from quiclab.trace.script import load_script
from quiclab.wording import render_tracers

TRACER = TracerEvidence(role="tracer", script=load_script("message-wait"), announced_probe_count=3)
PLACE = PlaceFacts(runner_name="local", summary="here", details={}, versions={"bpftrace": "0.23.2"})


def test_tracers_are_told_with_version_and_probes() -> None:
    """Who traces, how many of the expected probes, and how long it took."""
    assert "bpftrace 0.23.2, message-wait: 3 of 3 probes in 217 ms" == render_tracers(
        [TRACER], PLACE, took_s=0.217
    )


def test_a_recorder_in_process_is_never_taken_for_bpftrace() -> None:
    """Its line says so and why, and names no version of what did not run."""
    line = render_tracers(
        [TRACER], PLACE, took_s=0.001, kind="in-process", reason="this kernel has no uprobes"
    )
    assert line.startswith("recorded in process, without bpftrace (this kernel has no uprobes), ")
    assert "0.23.2" not in line
