"""
The fake runner: a run that plays real recordings, in no time, with faults on demand.

It stands for docker and local runs where those cannot be had or take too long,
above all in tests of the main path. Time is its own (`FakeRunner.clock`): it
passes when somebody waits. What server, client and tracer say comes from one
real run (`recordings/`), so that traces and counters agree as they did there.
"""

import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from quiclab import leftovers
from quiclab.clock import FakeClock
from quiclab.errors import MachineError, RoleExitedError, RunError
from quiclab.observer import Phase
from quiclab.runner.base import CLIENT, SERVER, TRACER, PlaceFacts, find_started
from quiclab.runner.drops import UdpSocket
from quiclab.runner.faults import Faults
from quiclab.runner.reading import MachineCost, ProgramCost, Reading, RoleCost
from quiclab.runner.recorded import (
    MOVED_BYTES_PER_S,
    RECORDINGS,
    find_load_s,
    load_recording,
    make_ring,
    read_options,
    record_maps,
    zero,
)
from server.probes import PROBES

STARTUP_S: Final = 0.3
END_S: Final = 0.2
CLOSE_S: Final = 0.3  # connections drain for three probe timeouts
QUESTION_S: Final = 0.01
RUN_NS: Final = 300
CPU_SHARE: Final = 0.5  # of a core, whoever it is
_SIGNAL_STATUS: Final = 128
_USAGE_STATUS: Final = 2


class FakeRunner:
    """
    Opens places in which recordings are played.

    Args:
        faults: What goes wrong.
        recordings: Folder with `<script>.jsonl` for each script that may be asked for.
    """

    name = "fake"

    def __init__(self, faults: Faults | None = None, *, recordings: Path = RECORDINGS) -> None:
        self.faults = faults or Faults()
        self.clock = FakeClock()
        self.recordings = recordings
        self.places: list[FakePlace] = []
        self.record_maps: Callable[[Sequence[Mapping[str, Any]]], dict[str, Any]] = record_maps
        """What the server's recorder answers; by default what the recorded traces hold."""

    def preflight(self, *, is_traced: bool = True) -> None:
        """
        Say that it can, or fail as told.

        Raises:
            MachineError: It was told to fail.
        """
        self.strike(Phase.PREFLIGHT)
        if self.faults.preflight and is_traced:
            raise MachineError(self.faults.preflight)

    @contextmanager
    def open(self, run_id: str, *, max_mtu_bytes: int, tracer_count: int) -> Iterator["FakePlace"]:
        """Make a place; leaving it ends every role."""
        del max_mtu_bytes, tracer_count
        with leftovers.register(run_id, runner_name=self.name):
            place = FakePlace(self)
            self.places.append(place)
            self.strike(Phase.PLACE)
            try:
                yield place
            finally:
                self.strike(Phase.REMOVE)
                place.end_all()

    def remove_leftovers(self) -> list[str]:
        """Forget records of dead fake runs; they left nothing else."""
        return leftovers.remove_dead_runs(self.name)

    def strike(self, phase: Phase, *, is_waiting: bool = False) -> None:
        """Let signals of a phase reach this process, as real ones do."""
        for strike in self.faults.strikes:
            if strike.phase is phase and (is_waiting or not strike.is_while_waiting):
                signal.raise_signal(strike.number)


@dataclass(slots=True)
class _Role:
    """One scripted process."""

    options: Mapping[str, str]
    started_s: float
    ends_s: float = float("inf")
    exit_status: int = 0
    is_killed: bool = False
    is_timed: bool = False
    stderr: str = ""
    began_load_s: float = field(default=float("inf"))


class FakePlace:
    """
    One run's scripted roles, their files and what they answer.
    """

    def __init__(self, runner: FakeRunner) -> None:
        self._runner = runner
        self._clock = runner.clock
        self._faults = runner.faults
        self._roles: dict[str, _Role] = {}
        self._files: dict[tuple[str, str], bytes] = {}
        self._phase = Phase.PLACE
        self._struck: set[Phase] = set()
        self.is_open = True
        self._rules: Sequence[Mapping[str, Any]] = ()
        self.window_cap_bytes: int | None = None
        """What the server was told by `configure`."""
        self.facts = PlaceFacts(
            runner_name=FakeRunner.name,
            summary="fake (recordings of a real run)",
            versions={"bpftrace": "0.17.0"},
            details={},
        )

    def path(self, role: str, name: str) -> str:
        """Path of a file of the role, in nobody's file system."""
        return f"/fake/{role}/{name}"

    def probe_directory(self) -> str:
        """Where the provider file would lie."""
        return "/fake/probes"

    def provider_path_for_tracer(self, server_path: str) -> str:
        """All roles share one view."""
        return server_path

    def server_address(self) -> str:
        """An address that no packet will see."""
        return "127.0.0.1"

    def write(self, role: str, name: str, data: bytes) -> None:
        """Keep a file."""
        self._files[role, name] = data

    def read(self, role: str, name: str) -> bytes:
        """
        Fetch a file.

        Raises:
            FileNotFoundError: There is no such file.
        """
        if name == "trace.jsonl" and role in self._roles:
            if self._phase in {Phase.SERVER, Phase.CLIENT}:
                self._begin(Phase.TRACER)  # somebody waits for the attach
            self._pass_time()
            return self._trace(role)
        self._pass_time()
        try:
            return self._files[role, name]
        except KeyError:
            raise FileNotFoundError(f"{role} has no {name}") from None

    def start(self, role: str, argv: Sequence[str], *, environment: Mapping[str, str]) -> None:
        """
        Start a scripted role.

        Raises:
            RunError: It runs already, or no script plays this program.
        """
        del environment
        if role in self._roles:
            raise RunError(f"{role} was already started in this run")
        if argv[0] not in {"python", "bpftrace", "timed"}:
            raise RunError(f"{role} cannot be started: {argv[0]}: No such file or directory")
        self._roles[role] = _Role(
            options=read_options(argv),
            started_s=self._clock.now_s(),
            is_timed=argv[0] == "timed",
        )
        if "--frobnicate" in argv:
            self._end(role, _USAGE_STATUS, f"{role}: unrecognized arguments: --frobnicate")
        if role in {SERVER, CLIENT}:
            self._begin(Phase.SERVER if role == SERVER else Phase.CLIENT)

    def request(self, role: str, op: str, **arguments: Any) -> Mapping[str, Any]:
        """
        Answer as the recorded role did.

        Raises:
            RoleExitedError: The role is gone.
            RunError: The role does not know the question.
        """
        self._pass_time(0.01)
        if role == SERVER and op == "report" and self._phase is Phase.LOAD:
            self._begin(Phase.SETTLE)
        self._check_alive(role)
        answer = self._ask_server(op, arguments) if role == SERVER else self._ask_client(op)
        if answer is None:
            raise RunError(f"{role} answered {op!r} with an error: it cannot {op!r}")
        return answer

    def exit_status(self, role: str) -> int | None:
        """None while it runs."""
        self._pass_time()
        started = find_started(self._roles, role)
        return started.exit_status if self._clock.now_s() >= started.ends_s else None

    def wait(self, role: str, *, timeout_s: float) -> int:
        """
        Let time pass until its end.

        Raises:
            TimeoutError: It still runs.
        """
        started = find_started(self._roles, role)
        until_s = min(started.ends_s, self._clock.now_s() + timeout_s)
        self._pass_time(max(0.0, until_s - self._clock.now_s()))
        status = self.exit_status(role)
        if status is None:
            raise TimeoutError(f"{role} still runs after {timeout_s:.1f} s")
        if role == CLIENT:
            self._leave_result(started)
        return status

    def interrupt(self, role: str) -> None:
        """Ask it to end; it takes a moment."""
        if role not in self._faults.missing_interrupt:
            self.terminate(role)

    def terminate(self, role: str) -> None:
        """Ask it to end, by the word that is never missed."""
        started = find_started(self._roles, role)
        if role.startswith(TRACER):
            self._begin(Phase.COLLECT)
        if role in self._faults.never_ending or started.ends_s <= self._clock.now_s():
            return
        started.ends_s = self._clock.now_s() + END_S
        if role == CLIENT:
            started.exit_status = _SIGNAL_STATUS + signal.SIGINT

    def kill(self, role: str) -> None:
        """End it at once; a tracer's final maps are lost."""
        started = find_started(self._roles, role)
        if started.ends_s > self._clock.now_s():
            started.is_killed = True
            self._end(role, _SIGNAL_STATUS + signal.SIGKILL)

    def output(self, role: str) -> tuple[str, str]:
        """The server's first line, and what a role that died had to say."""
        started = find_started(self._roles, role)
        stdout = json.dumps(self._describe_server()) + "\n" if role == SERVER else ""
        return stdout, started.stderr

    def uptime_s(self, role: str) -> float:
        """Seconds of the fake clock."""
        started = find_started(self._roles, role)
        return min(self._clock.now_s(), started.ends_s) - started.started_s

    def read_costs(self) -> Reading:
        """
        What the roles cost follows from the time they had; drops come with the load.
        """
        has_begun = self._phase in {Phase.LOAD, Phase.SETTLE, Phase.COLLECT}
        drop_count = self._faults.dropped_datagram_count if has_begun else 0
        now_s = self._clock.now_s()
        running = {role: one for role, one in self._roles.items() if one.ends_s > now_s}
        roles = {
            role: RoleCost(user_s=used_s * 0.75, system_s=used_s * 0.25, cpu_ids=(0, 1))
            for role, used_s in ((role, self._used_s(one)) for role, one in running.items())
        }
        return Reading(
            at_s=now_s,
            roles=roles,
            programs={
                role: [self._program(is_timed=one.is_timed)]
                for role, one in running.items()
                if role.startswith(TRACER)
            },
            machine=MachineCost(
                cpu_count=2, busy_s=sum(cost.cpu_s for cost in roles.values()), steal_s=0.0
            ),
            sockets=[UdpSocket("127.0.0.1", 4433, drop_count)] if SERVER in running else [],
            udp_counts={"RcvbufErrors": drop_count, "InErrors": drop_count},
        )

    def _used_s(self, role: _Role) -> float:
        return (self._clock.now_s() - role.started_s) * CPU_SHARE

    def _program(self, *, is_timed: bool) -> ProgramCost:
        """One that runs at every send call."""
        run_count = self._report_counters()["total"]["tx"]["send_call_count"]
        return ProgramCost(
            program_id=1,
            run_count=run_count if is_timed else None,
            run_time_ns=RUN_NS * run_count if is_timed else None,
            recursion_miss_count=0,
        )

    def end_all(self) -> None:
        """End every role."""
        for role in self._roles:
            self.kill(role)
        self.is_open = False

    # What happens by itself ------------------------------------------------------

    def _begin(self, phase: Phase) -> None:
        """A phase begins, as far as the roles can tell; faults may be due."""
        if phase is self._phase:
            return
        self._phase = phase
        self._runner.strike(phase)
        self._die(phase)

    def _die(self, phase: Phase) -> None:
        for death in self._faults.deaths:
            if death.phase is phase and death.role in self._roles:
                self._end(death.role, death.exit_status, death.last_words)

    def _end(self, role: str, exit_status: int, last_words: str = "") -> None:
        started = self._roles[role]
        if started.ends_s > self._clock.now_s():
            started.ends_s, started.exit_status = self._clock.now_s(), exit_status
            started.stderr = f"{last_words}\n" if last_words else ""

    def _pass_time(self, duration_s: float = 0.0) -> None:
        if self._phase not in self._struck:
            self._struck.add(self._phase)
            self._runner.strike(self._phase, is_waiting=True)
        self._clock.sleep(duration_s)

    def _begin_load(self, client: _Role) -> None:
        client.began_load_s = self._clock.now_s()
        if CLIENT not in self._faults.never_ending:
            client.ends_s = client.began_load_s + find_load_s(client.options)
            client.exit_status = 5 if self._faults.is_client_incomplete else 0
        self._begin(Phase.LOAD)

    def _ask_server(self, op: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        match op:
            case "describe":
                ready_s = self._roles[SERVER].started_s + STARTUP_S
                self._clock.sleep(max(0.0, ready_s - self._clock.now_s()))
                return self._describe_server()
            case "report":
                return self._report_counters()
            case "configure":
                self.window_cap_bytes = arguments["window_cap_bytes"]
                return {"ok": True}
            case "reset":
                self._clock.sleep(QUESTION_S)
                worker = {
                    "index": 0,
                    "traced_probes": self._traced_probes(),
                    "recorded_probes": sorted({rule["probe"] for rule in self._rules}),
                }
                return {"ok": True, "workers": [worker]}
        return self._ask_recorder(op, arguments)

    def _ask_recorder(self, op: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        if op == "record":
            self._rules = arguments["rules"]
            return {"ok": True}
        return self._runner.record_maps(self._rules) if op == "recorded" else None

    def _ask_client(self, op: str) -> dict[str, Any] | None:
        client = self._roles[CLIENT]
        match op:
            case "describe":
                return self._describe_client()
            case "start":
                self._begin_load(client)
                return {"ok": True}
            case "report" if not self._faults.is_client_mute:
                return {"bytes_received": self._moved_bytes(client), "bytes_sent": 0}
        return None

    def _traced_probes(self) -> list[str]:
        """Those that the scripts of started tracers name, once they have had time to attach."""
        now_s = self._clock.now_s()
        scripts = [
            text.decode()
            for (role, name), text in self._files.items()
            if name.endswith(".bt")
            and role in self._roles
            and now_s >= self._roles[role].started_s + self._faults.traced_after_s
        ]
        return [probe.name for probe in PROBES if any(probe.name in text for text in scripts)]

    # What the roles say ----------------------------------------------------------

    def _trace(self, role: str) -> bytes:
        tracer = self._roles[role]
        if self._clock.now_s() < tracer.started_s + self._faults.attach_s:
            return b""
        script = Path(tracer.options["script"]).stem
        lines = (self._runner.recordings / f"{script}.jsonl").read_bytes().splitlines(True)
        announced = json.loads(lines[0])
        announced["data"]["probes"] -= self._faults.missing_probe_count
        head, maps = [json.dumps(announced).encode() + b"\n", *lines[1:2]], lines[2:]
        is_over = tracer.ends_s <= self._clock.now_s()
        if not is_over or tracer.is_killed or self._was_no_load():
            return b"".join(head)
        if self._faults.is_trace_cut:
            return b"".join([*head, *maps])[:-20]
        if self._faults.lost_event_count:
            lost = {"type": "lost_events", "data": {"events": self._faults.lost_event_count}}
            maps.append(json.dumps(lost).encode() + b"\n")
        return b"".join([*head, *maps])

    def _was_no_load(self) -> bool:
        client = self._roles.get(CLIENT)
        return client is None or client.began_load_s > self._clock.now_s()

    def _describe_server(self) -> dict[str, Any]:
        description = load_recording("server-describe")
        server = self._roles[SERVER].options
        description["probes"]["provider_path"] = f"{self.probe_directory()}/s2n_quic.so"
        description["granted"]["tx_ring"] = make_ring(
            asked_bytes=int(server.get("--queue-send-buffer-size", "131072")),
            payload_bytes=min(
                int(server.get("--max-mtu", "9000")) * int(server.get("--max-segments", "10")),
                65_535,
            ),
        )
        return description

    def _describe_client(self) -> dict[str, Any]:
        description = load_recording("client-describe")
        if self._faults.holdable_bytes is not None:
            description["holdable_bytes"] = self._faults.holdable_bytes
        return description

    def _report_counters(self) -> dict[str, Any]:
        client = self._roles.get(CLIENT)
        report = load_recording("server-report")
        if client is None or client.began_load_s > self._clock.now_s():
            return zero(report)
        is_draining = self._clock.now_s() < client.ends_s + CLOSE_S
        open_count = self._faults.open_connection_count or int(is_draining)
        report["total"]["connections"]["open_count"] = open_count
        report["total"]["tx"]["send_call_count"] += self._faults.uncounted_count
        report["rings_empty"] = not is_draining
        return report

    def _moved_bytes(self, client: _Role) -> int:
        if self._was_no_load():
            return 0
        return int((self._clock.now_s() - client.began_load_s) * MOVED_BYTES_PER_S)

    def _leave_result(self, client: _Role) -> None:
        if self._was_no_load() or client.is_killed or client.exit_status not in {0, 5, 130}:
            return
        result = load_recording("client-result")
        if client.exit_status:
            result |= {"ok": False, "reason": "stalled: nothing moved for 10.0 s"}
        self.write(CLIENT, "client.json", json.dumps(result).encode())

    def _check_alive(self, role: str) -> None:
        started = find_started(self._roles, role)
        if self._clock.now_s() >= started.ends_s:
            raise RoleExitedError(
                role,
                exit_status=started.exit_status,
                last_words=started.stderr.strip(),
                after_s=self.uptime_s(role),
            )
