"""
`python -m benchmarks.hits`: what each shipped script costs, as absolute figures.

A hit is measured by firing a probe from the native module many times: once where a
script listens and once at a site of the same kind where none does, in turn, so that
what differs is the hit alone. How many hits a datagram causes is told by the
counters of the real server under a real load; what it feels of them by watching it
with and without, 20 ms each in turn. Needs root and bpftrace.
"""

import argparse
import itertools
import json
import os
import platform
import shlex
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final, get_args

from benchmarks import children
from benchmarks.hits_report import (
    ALL_FOUR,
    FOUR,
    KINDS,
    AddedCost,
    Firing,
    HitCost,
    HitKind,
    HitsReport,
    LoadHits,
    kinds_of,
    render_hits,
    weigh,
)
from benchmarks.hits_server import Task, measure_windows
from benchmarks.hits_tracing import (
    are_traced,
    ask_version,
    attached,
    find_tracer,
    probe_mask,
)
from benchmarks.sides import Direction, RunningServer, Side, Work, run_load, running_server
from quiclab.errors import LabError, MachineError
from quiclab.trace.script import load_script
from server.probes import PROBES, RING_PRODUCER_ACQUIRE, load_provider
from server.udp import _native

# A machine may be half as fast for some seconds: each script has its turn three times,
# and the least of the medians stands.
_TOUR_COUNT: Final = 3
_ROUND_COUNT: Final = 7
_CALL_COUNT: Final = 4_000  # some 2 ms a round: long against the clock, short against a slice
_SIZES: Final = (8972, 1200)  # the largest over an MTU of 9,000, and aioquic's default
_COUNTED_BYTES: Final = {8972: 60_000_000, 1200: 16_000_000}
_WATCHED_BYTES: Final = {8972: 240_000_000, 1200: 64_000_000}
# What is watched in the server: a script and the load that it is about.
_WATCHED: Final[tuple[tuple[str, Direction], ...]] = (
    (ALL_FOUR, "download"),
    ("io-latencies", "download"),
    ("message-wait", "download"),
    ("recv-buffers", "upload"),
)


def measure_hits(
    *,
    tracer_words: Sequence[str] = (),
    is_quick: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> HitsReport:
    """
    Measure hits, and what they come to in a load; a minute and a half.

    Args:
        tracer_words: The command that runs bpftrace; () finds this machine's.
        is_quick: Each script once, and in the server all four at once alone; half a minute.
        say: Told what is being done, a line a step.

    Raises:
        MachineError: This machine cannot trace; the line says what is missing.
        RunError: A process failed.
    """
    tracer = find_tracer(tracer_words)
    version = ask_version(tracer)
    say(f"hits      what one costs, by bpftrace {version}")
    costs = _measure_costs(tracer, tour_count=1 if is_quick else _TOUR_COUNT)
    loads: dict[tuple[str, Direction, int], LoadHits] = {}
    for direction, size in itertools.product(get_args(Direction), _SIZES):
        say(f"hits      how many in {direction}s by datagrams of {size:,} bytes")
        work = Work(direction=direction, total_bytes=_COUNTED_BYTES[size], datagram_bytes=size)
        for found in _count_hits(tracer, work, costs):
            loads[found.script, direction, size] = found
    added = []
    for (script, direction), size in itertools.product(_WATCHED, _SIZES):
        if is_quick and script != ALL_FOUR:
            continue
        say(f"hits      {script} in {direction}s by datagrams of {size:,} bytes")
        work = Work(direction=direction, total_bytes=_WATCHED_BYTES[size], datagram_bytes=size)
        added.append(_watch_server(tracer, script, loads[script, direction, size], work))
    return HitsReport(
        bpftrace_version=version,
        kernel=platform.release(),
        architecture=platform.machine(),
        costs=costs,
        loads=tuple(sorted(loads.values(), key=lambda load: load.script == ALL_FOUR)),
        added=tuple(added),
    )


# A hit -------------------------------------------------------------------------


def _measure_costs(tracer: Sequence[str], *, tour_count: int) -> tuple[HitCost, ...]:
    names = tuple(dict.fromkeys(kind.script for kind in KINDS))
    groups = (*((name, (name,)) for name in names), (ALL_FOUR, FOUR))
    least: dict[tuple[str, str], HitCost] = {}
    with children.own_folder("hits") as directory:
        provider = load_provider(directory / "provider")
        if provider.path is None:
            raise MachineError(provider.note)
        _native.set_sites(provider.site_addresses)
        for _, (label, scripts) in itertools.product(range(tour_count), groups):
            found = [load_script(script) for script in scripts]
            with attached(
                tracer,
                [script.path for script in found],
                provider.path,
                directory,
                is_on=partial(are_traced, probe_mask(found)),
                is_off=partial(are_traced, 0),
            ):
                for cost in map(partial(_measure_kind, label), kinds_of(label)):
                    key = label, cost.name
                    least[key] = min(least.get(key, cost), cost, key=lambda each: each.ns)
        _native.set_sites([0] * len(PROBES))
    return tuple(least.values())


def _measure_kind(script: str, kind: HitKind) -> HitCost:
    """
    What a hit adds, by several rounds.

    Calls of one untraced site take as long as of another, so a round compares the
    two within a few milliseconds, on a machine that may be slower in the next.
    """
    turn = (kind.after, kind.firing) if kind.after else (kind.firing,)
    rest = (kind.after, _unheard(kind.firing)) if kind.after else (_unheard(kind.firing),)
    _time_turns(turn)  # the first hit lets the kernel turn the trap into a call
    rounds_ns = [_time_turns(turn) - _time_turns(rest) for _ in range(_ROUND_COUNT)]
    return HitCost(
        script=script,
        name=kind.name,
        ns=statistics.median(rounds_ns),
        least_ns=min(rounds_ns),
    )


def _unheard(firing: Firing) -> Firing:
    return RING_PRODUCER_ACQUIRE, *firing[1:]


def _time_turns(turn: Sequence[Firing]) -> float:
    fire = _native.fire
    began_ns = time.thread_time_ns()
    for _ in range(_CALL_COUNT):
        for firing in turn:
            fire(*firing)
    return (time.thread_time_ns() - began_ns) / _CALL_COUNT


# A load ------------------------------------------------------------------------


def _count_hits(tracer: Sequence[str], work: Work, costs: Sequence[HitCost]) -> list[LoadHits]:
    """
    Move a load with all four scripts attached; some counters count only while one is.
    """
    with children.own_folder("hits") as directory:
        words = ("--probe-directory", str(directory / "provider"))
        side = Side(label="all four", kind="ours", words=words)
        with (
            running_server(side, work, directory) as server,
            _all_four(tracer, server, directory),
        ):
            counters = run_load(server, work).report
    return [
        weigh(
            script,
            costs,
            counters,
            direction=work.direction,
            datagram_bytes=work.datagram_bytes,
            total_bytes=work.total_bytes,
        )
        for script in dict.fromkeys(cost.script for cost in costs)
    ]


@contextmanager
def _all_four(tracer: Sequence[str], server: RunningServer, directory: Path) -> Iterator[None]:
    probes = server.description["probes"]
    if not probes["is_on"]:
        raise MachineError(str(probes["note"]))
    scripts = [load_script(name) for name in FOUR]
    wanted = {name for script in scripts for name in script.server_probe_names}

    def find_traced() -> set[str]:
        return {name for each in server.ask("reset")["workers"] for name in each["traced_probes"]}

    with attached(
        tracer,
        [script.path for script in scripts],
        Path(probes["provider_path"]),
        directory,
        is_on=lambda: wanted <= find_traced(),
        is_off=lambda: not find_traced(),
    ):
        yield


def _watch_server(tracer: Sequence[str], script: str, hits: LoadHits, work: Work) -> AddedCost:
    scripts = FOUR if script == ALL_FOUR else (script,)
    windows = measure_windows(Task(tracer=tuple(tracer), scripts=scripts, work=work))
    return AddedCost(
        script=script,
        direction=work.direction,
        datagram_bytes=work.datagram_bytes,
        payload_bytes=hits.total_bytes / hits.datagram_count,
        untraced_ns=windows.untraced_ns,
        added_ns=windows.median_ns,
        error_ns=windows.error_ns,
    )


def main() -> int:
    """
    Measure and print.
    """
    parser = argparse.ArgumentParser(prog="benchmarks.hits", allow_abbrev=False)
    parser.add_argument(
        "--quick", action="store_true", help="half a minute instead of one and a half"
    )
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument(
        "--bpftrace", default="", metavar="WORDS", help="the command that runs bpftrace"
    )
    words = parser.parse_args()
    try:
        report = measure_hits(
            tracer_words=shlex.split(words.bpftrace),
            is_quick=words.quick,
            say=lambda line: print(line, flush=True),
        )
    except LabError as error:
        print(error)
        return int(error.exit_code)
    print("\n".join(render_hits(report)))
    if words.json:
        words.json.write_text(json.dumps(asdict(report), indent=1) + "\n")
    return os.EX_OK


if __name__ == "__main__":
    raise SystemExit(main())
