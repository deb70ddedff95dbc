"""
What can go wrong, when, and what a run then comes to: faults × phases, as data.

`docs/faults.md` is written from this table (`python -m tests.faults.document`), and each
cell is one test (tests/faults/test_fake.py, tests/faults/test_real.py) or names the tests
elsewhere that show it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from quiclab.observer import Phase


class Part(StrEnum):
    """On what a cell is shown."""

    REAL = "real parts"
    FAKE = "the fake runner"
    ELSEWHERE = "a test of its own"


class Kept(StrEnum):
    """What the run's folder holds afterwards; each holds what stands before it, too."""

    NOTHING = "nothing"
    LABEL = "manifest"
    LOGS = "manifest, logs"
    MAPS = "manifest, logs, maps"
    ALL = "everything"


FILES: Final = {
    Kept.NOTHING: frozenset[str](),
    Kept.LABEL: frozenset({"manifest.json"}),
    Kept.LOGS: frozenset({"manifest.json", "logs/server.stderr"}),
    Kept.MAPS: frozenset({"manifest.json", "logs/server.stderr", "trace.jsonl", "histograms.json"}),
    Kept.ALL: frozenset(
        {
            "manifest.json",
            "logs/server.stderr",
            "trace.jsonl",
            "histograms.json",
            "trace.txt",
            "server.json",
            "client.json",
        }
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """
    One fault in one phase.

    Args:
        fault: What goes wrong; a key of FAULTS.
        phase: When; None where that makes no difference.
        part: On what it is shown.
        state: The manifest's; "" when there is no folder.
        verdict: Its word; "" when nobody was left to judge.
        exit_code: Of the command; None when it was killed.
        kept: What is there afterwards, at least.
        says: Part of the line that names the fault: the manifest's reason, the verdict or
            the error, as a regular expression.
        places: Where it is tried on real parts.
        shown_by: The tests, when `part` is ELSEWHERE.
    """

    fault: str
    phase: Phase | None
    part: Part
    state: str = "failed"
    verdict: str = "invalid"
    exit_code: int | None = 5
    kept: Kept = Kept.LOGS
    says: str = ""
    places: tuple[str, ...] = ()
    shown_by: tuple[str, ...] = ()

    def __str__(self) -> str:
        phase = "any" if self.phase is None else self.phase.value
        return f"{self.fault}-{phase}".replace(" ", "_")


FAULTS: Final = {
    "server killed": "SIGKILL to the server, as the kernel's out-of-memory killer sends it",
    "client killed": "SIGKILL to the client",
    "tracer killed": "SIGKILL to the tracer: its maps are lost",
    "INT": "Ctrl-C in the terminal",
    "TERM": "SIGTERM to the command",
    "second TERM": "another SIGTERM while the first one's clean-up is under way",
    "KILL": "SIGKILL to the command: nobody is left to clean up",
    "machine cannot": "the preflight fails: no root, no bpftrace, no tracefs",
    "image missing": "the image is removed between its making and the run",
    "engine gone": "the way to the engine is cut, with the run's containers on it, and comes back",
    "port taken": "somebody else has the server's port; a run's own server takes any free one",
    "output not writable": "a read-only file system under --output",
    "disk full": "no room is left under --output",
    "time limit": "the client does not end",
    "probes missing": "the probes' library cannot be loaded",
    "tracer never attaches": "bpftrace starts and writes no attach record",
    "worker not attached": "one of the expected probes is not attached",
    "map full": "more keys than a bpftrace map may hold",
    "lost events": "bpftrace reports lost events",
    "events uncounted": "the server counted an event that no probe showed",
    "trace cut": "the tracer dies of its end and leaves half a line",
    "buffer clamped": "the kernel grants less than was asked",
    "socket drops": "the kernel drops datagrams at the server's socket",
    "connections stay": "connections do not close after the load",
    "GSO refused": "the kernel refuses segmentation offload",
    "send in part": "sendmmsg takes some of the messages, or none (ENOBUFS, EAGAIN)",
    "message too large": "EMSGSIZE, for one datagram of many",
    "peer vanishes": "a client says nothing any more",
    "slow reader": "a client stops reading",
    "endless streams": "answers that end only when the client says so",
    "rubbish": "datagrams that are no QUIC, or hostile",
    "clock stepped": "the wall clock is set while a run lasts",
    "two at once": "two runs in the same second, beside unrelated traffic",
    "busy machine": "another program takes a core",
}

_BOTH: Final = ("local", "docker")
_LATER: Final = (Phase.TRACER, Phase.LOAD)


def _deaths() -> Iterator[Cell]:
    fake, real = Part.FAKE, Part.REAL
    # What a role is killed in before it has said anything is told by the fake alone: on real
    # parts there is no moment between its start and its first answer that a test could hit.
    for role, phase in (
        *(("server", each) for each in (Phase.SERVER, Phase.CLIENT, *_LATER, Phase.SETTLE)),
        *(("client", each) for each in (Phase.CLIENT, *_LATER)),
        *(("tracer", each) for each in _LATER),
    ):
        yield Cell(fault=f"{role} killed", phase=phase, part=fake, says=f"{role} exited 137")
        if phase is Phase.SERVER or (role, phase) == ("client", Phase.CLIENT):
            continue
        has_maps = phase in {Phase.LOAD, Phase.SETTLE} and role != "tracer"
        yield Cell(
            fault=f"{role} killed",
            phase=phase,
            part=real,
            kept=Kept.MAPS if has_maps else Kept.LOGS,
            says=f"{role} exited 137",
            places=_BOTH,
        )
    yield Cell(
        fault="tracer killed",
        phase=Phase.COLLECT,
        part=real,
        state="done",
        says="udp-syscall",
        places=_BOTH,
    )


def _signals() -> Iterator[Cell]:
    for fault, code in (("INT", 130), ("TERM", 143)):
        yield Cell(
            fault=fault,
            phase=Phase.PREFLIGHT,
            part=Part.FAKE,
            state="",
            verdict="",
            exit_code=code,
            kept=Kept.NOTHING,
            says="SIG",
        )
        for phase in (Phase.PLACE, Phase.SERVER, Phase.CLIENT, Phase.TRACER, Phase.LOAD):
            yield Cell(
                fault=fault,
                phase=phase,
                part=Part.FAKE,
                state="interrupted",
                exit_code=code,
                kept=Kept.MAPS if phase is Phase.LOAD else Kept.LABEL,
                says="SIG",
            )
        for phase in (Phase.SERVER, Phase.TRACER, Phase.LOAD):
            yield Cell(
                fault=fault,
                phase=phase,
                part=Part.REAL,
                state="interrupted",
                exit_code=code,
                kept=Kept.MAPS if phase is Phase.LOAD else Kept.LOGS,
                says="SIG",
                places=_BOTH,
            )
    yield Cell(
        fault="second TERM",
        phase=Phase.COLLECT,
        part=Part.REAL,
        state="interrupted",
        exit_code=143,
        kept=Kept.MAPS,
        says="SIGTERM",
        places=_BOTH,
    )
    for phase in (Phase.PLACE, Phase.SERVER, Phase.TRACER, Phase.LOAD, Phase.COLLECT):
        yield Cell(
            fault="KILL",
            phase=phase,
            part=Part.REAL,
            state="killed",
            verdict="",
            exit_code=None,
            kept=Kept.LABEL,
            says="process was killed",
            places=_BOTH,
        )


def _machine() -> Iterator[Cell]:
    refused = {"state": "", "verdict": "", "exit_code": 4, "kept": Kept.NOTHING}
    yield Cell(
        fault="machine cannot",
        phase=Phase.PREFLIGHT,
        part=Part.FAKE,
        says="tracing needs root",
        **refused,  # type: ignore[arg-type]
    )
    yield Cell(
        fault="image missing",
        phase=Phase.PLACE,
        part=Part.REAL,
        exit_code=4,
        kept=Kept.LABEL,
        says="image",
        places=("docker",),
    )
    for phase in (Phase.TRACER, Phase.LOAD, Phase.COLLECT):
        yield Cell(
            fault="engine gone",
            phase=phase,
            part=Part.REAL,
            kept=Kept.LABEL,
            says="engine",
            places=("docker",),
        )
    yield Cell(
        fault="output not writable",
        phase=Phase.PREFLIGHT,
        part=Part.REAL,
        says="Read-only file system; give another --output",
        places=("local",),
        **refused,  # type: ignore[arg-type]
    )
    yield Cell(
        fault="disk full",
        phase=Phase.PREFLIGHT,
        part=Part.REAL,
        says="No space left on device; make room there",
        places=("local",),
        **refused,  # type: ignore[arg-type]
    )
    yield Cell(
        fault="disk full",
        phase=Phase.LOAD,
        part=Part.REAL,
        exit_code=4,
        kept=Kept.LABEL,
        says="No space left on device; make room there",
        places=_BOTH,
    )
    yield Cell(
        fault="port taken",
        phase=Phase.SERVER,
        part=Part.FAKE,
        exit_code=4,
        says="server exited 4 .*in use",
    )
    yield Cell(
        fault="clock stepped",
        phase=None,
        part=Part.FAKE,
        state="done",
        verdict="ok",
        exit_code=0,
        kept=Kept.ALL,
    )


def _measuring() -> Iterator[Cell]:
    done = {"state": "done", "kept": Kept.ALL, "part": Part.FAKE}
    for fault, phase, says in (
        ("worker not attached", Phase.TRACER, "probes"),
        ("events uncounted", Phase.LOAD, "udp-syscall"),
    ):
        yield Cell(fault=fault, phase=phase, says=says, **done)  # type: ignore[arg-type]
    for fault, phase, says in (
        ("lost events", Phase.LOAD, "lost"),
        ("socket drops", Phase.LOAD, "drop"),
        ("connections stay", Phase.SETTLE, "connection"),
    ):
        yield Cell(
            fault=fault,
            phase=phase,
            says=says,
            verdict="degraded",
            exit_code=6,
            **done,  # type: ignore[arg-type]
        )
    yield Cell(
        fault="trace cut", phase=Phase.COLLECT, part=Part.FAKE, state="done", says="udp-syscall"
    )
    yield Cell(
        fault="tracer never attaches",
        phase=Phase.TRACER,
        part=Part.FAKE,
        says="did not attach within 30 s",
    )
    yield Cell(
        fault="time limit",
        phase=Phase.LOAD,
        part=Part.FAKE,
        kept=Kept.MAPS,
        says="did not end within",
    )
    yield Cell(
        fault="probes missing",
        phase=Phase.SERVER,
        part=Part.REAL,
        says="carries no probes",
        places=("local",),
    )
    yield Cell(
        fault="map full",
        phase=Phase.LOAD,
        part=Part.REAL,
        state="done",
        kept=Kept.ALL,
        says="was full",
        places=_BOTH,
    )


def _elsewhere() -> Iterator[Cell]:
    for fault, tests in (
        ("GSO refused", ("test_refused_gso_on_a_real_socket_delivers_the_same_bytes",)),
        (
            "send in part",
            (
                "test_a_full_socket_keeps_everything_for_later",
                "test_a_really_full_socket_says_eagain_and_goes_on",
            ),
        ),
        (
            "buffer clamped",  # root forces it here, in containers too: nothing is clamped
            (
                "test_a_socket_buffer_beyond_the_limit_is_forced_or_reported",
                "test_clamped_socket_buffer_names_the_sysctl_and_the_command",
            ),
        ),
        ("message too large", ("test_the_datagram_that_was_too_large_is_the_one_named",)),
        ("peer vanishes", ("test_a_peer_that_vanishes_is_forgotten_with_all_it_had",)),
        ("slow reader", ("test_a_reader_that_stops_keeps_nobody_else_waiting",)),
        ("endless streams", ("test_endless_streams_end_when_time_is_up",)),
        ("rubbish", ("test_rubbish_is_dropped_in_silence_and_counted",)),
    ):
        # These are about server and client alone: there is no run to judge.
        yield Cell(
            fault=fault,
            phase=Phase.LOAD,
            part=Part.ELSEWHERE,
            state="",
            verdict="",
            exit_code=None,
            kept=Kept.NOTHING,
            shown_by=tests,
        )
    for fault, test in (
        ("two at once", "test_two_traces_at_once_count_their_own_events"),
        ("busy machine", "test_clean_run_is_ok_each_time_beside_a_busy_core"),
    ):
        yield Cell(
            fault=fault,
            phase=None,
            part=Part.ELSEWHERE,
            state="done",
            verdict="ok",
            exit_code=0,
            kept=Kept.ALL,
            shown_by=(test,),
        )


CELLS: Final = (*_deaths(), *_signals(), *_machine(), *_measuring(), *_elsewhere())
