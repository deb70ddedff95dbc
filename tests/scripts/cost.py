"""
Measure what a traced hit costs, for the Cost lines of the scripts' headers.

`python -m tests.scripts.cost` (root, the server built, the userlands prepared)
fires the server's probes from its native module, with and without each script
attached, and prints the CPU time that a hit adds. Medians on a busy machine
swing by a fifth; read them as an order of magnitude.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from quiclab.trace.script import load_script
from server.probes import PROBES, load_provider
from server.udp import _native
from tests.scripts.tracing import traced
from tests.userland import SUITES, find_userland

TURN_COUNT = 50_000
ROUND_COUNT = 5
SOCKET = "s2n_quic_platform__socket__"
MMSG = "s2n_quic_platform__syscall__mmsg__"
BUFFER = "s2n_quic_core__buffer__receive_buffer__"

Fire = tuple[str, tuple[int, ...]]
# What a hit is, by script: a name for people, and the probes that fire in a turn.
TURNS: dict[str, dict[str, Sequence[Fire]]] = {
    "udp-syscall": {
        "start or finish": [
            (f"{MMSG}start_send", (5, 4096, 40)),
            (f"{MMSG}finish_send", (5, 4096, 40, 0)),
        ],
    },
    "io-latencies": {
        "start or finish": [
            (f"{SOCKET}io__tx__write", (1, 3, 0, 1200)),
            (f"{SOCKET}task__tx__finish", (1, 3)),
        ],
        "further datagram of a message": [(f"{SOCKET}io__tx__write", (1, 3, 1, 1200))],
    },
    "generic-offload": {"message": [(f"{SOCKET}io__tx__finish_write", (1, 3, 7, 1200))]},
    "recv-buffers": {"alloc, write or pop": [(f"{BUFFER}write", (0, 1200))]},
}


def main() -> int:
    """Print a line per script, kind of hit and bpftrace version."""
    indexes = {probe.name: index for index, probe in enumerate(PROBES)}
    with tempfile.TemporaryDirectory(prefix="quiclab-cost-") as name:
        folder = Path(name)
        provider = load_provider(folder)
        if provider.path is None:
            sys.exit(provider.note)
        _native.set_sites(list(provider.site_addresses))
        for suite in SUITES.values():
            userland = find_userland(suite)
            if userland is None:
                continue
            for script_name, turns in TURNS.items():
                calls = {
                    what: [(indexes[probe], *arguments) for probe, arguments in fires]
                    for what, fires in turns.items()
                }
                untraced_ns = {what: _measure_turn_ns(turn) for what, turn in calls.items()}
                script = load_script(script_name)
                output = folder / "trace.jsonl"
                with traced(userland, script.path, provider.path, output=output):
                    for what, turn in calls.items():
                        hit_ns = (_measure_turn_ns(turn) - untraced_ns[what]) / len(turn)
                        print(f"{userland.bpftrace_version} {script_name}: {what} +{hit_ns:.0f} ns")
                output.unlink()
    return 0


def _measure_turn_ns(turn: Sequence[tuple[int, ...]]) -> float:
    return statistics.median(_run_turns(turn) for _ in range(ROUND_COUNT))


def _run_turns(turn: Sequence[tuple[int, ...]]) -> float:
    began_ns = time.process_time_ns()
    for _ in range(TURN_COUNT):
        for call in turn:
            _native.fire(*call)
    return (time.process_time_ns() - began_ns) / TURN_COUNT


if __name__ == "__main__":
    sys.exit(main())
