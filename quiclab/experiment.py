"""
The main path: a scenario goes in, a run folder comes out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quiclab.artifacts import Manifest
from quiclab.errors import ExitCode, InterruptedRunError
from quiclab.verdict import Verdict


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
    traces: Mapping[str, Any]
    client: Mapping[str, Any] | None
    counters: Mapping[str, Any] | None


class RunInterruptedError(InterruptedRunError):
    """
    INT or TERM ended the run in order; what was measured by then is in `result`.
    """

    def __init__(self, signal_name: str, *, result: RunResult) -> None:
        super().__init__(signal_name)
        self.result = result
