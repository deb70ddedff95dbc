"""
What every place promises, whatever it is made of. One suite for processes, containers, the fake.

A runner's own test file subclasses `PlaceContract`, gives it the fixture
`runner`, and says how to find what a run left behind.
"""

import json
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

from quiclab import leftovers
from quiclab.answers import ClientDescription, CounterReport, ServerDescription
from quiclab.argv import CLIENT_CA, TRACE, client_command, server_command, tracer_command
from quiclab.errors import RoleExitedError, RunError
from quiclab.runner.base import CLIENT, SERVER, TRACER, Place, Runner
from quiclab.runner.reading import Reading
from quiclab.scenario import Scenario
from quiclab.trace.ndjson import parse_trace
from quiclab.trace.script import load_script

RUN = "20261130T120000Z-test"
SCENARIO = Scenario.model_validate({"script": ("udp-syscall",), "duration": 0.5})
END_LIMIT_S = 20.0


def open_place(runner: Runner) -> AbstractContextManager[Place]:
    """Open a place for one tracer."""
    return runner.open(RUN, max_mtu_bytes=SCENARIO.max_mtu_bytes, tracer_count=1)


def start_server(place: Place) -> ServerDescription:
    """Start the server and wait until it answers."""
    place.start(SERVER, server_command(SCENARIO, place), environment={})
    return ServerDescription.read(place.request(SERVER, "describe"))


def count_runs(reading: Reading) -> int:
    """How often the tracer's programs ran, of which each must be timed."""
    programs = reading.programs[TRACER]
    assert all(each.run_count is not None and each.run_time_ns is not None for each in programs)
    return sum(each.run_count or 0 for each in programs)


class PlaceContract(ABC):
    """
    The promises. Each test opens a place of its own.
    """

    @pytest.fixture(autouse=True)
    def state_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let records of live runs lie in the test's own folder."""
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    @abstractmethod
    def find_remains(self, runner: Runner, run_id: str) -> list[str]:
        """
        Name everything that still exists of a run: folders, processes, containers, networks.
        """

    def test_place_says_what_it_is(self, runner: Runner) -> None:
        """The facts name the runner, fit on a line, and tell bpftrace's version."""
        runner.preflight()
        with open_place(runner) as place:
            facts = place.facts
        assert runner.name == facts.runner_name
        assert "\n" not in facts.summary
        assert "bpftrace" in facts.versions
        json.dumps(dict(facts.details))

    def test_files_are_kept_for_each_role(self, runner: Runner) -> None:
        """What is written for a role is read back byte by byte, and only there."""
        with open_place(runner) as place:
            place.write(CLIENT, "a file", b"\x00\xff\n")
            assert b"\x00\xff\n" == place.read(CLIENT, "a file")
            with pytest.raises(FileNotFoundError):
                place.read(CLIENT, "another")
            with pytest.raises(FileNotFoundError):
                place.read(SERVER, "a file")

    def test_server_lives_answers_and_ends_in_order(self, runner: Runner) -> None:
        """A role answers while it runs; after INT it ends with 0 and its files are still there."""
        with open_place(runner) as place:
            description = start_server(place)
            assert description.probes.is_on
            assert place.exit_status(SERVER) is None
            assert "listening" == json.loads(place.output(SERVER)[0].splitlines()[0])["event"]
            assert CounterReport.read(place.request(SERVER, "report")).is_settled
            assert 0 == place.read_costs().server_drop_count
            with pytest.raises(TimeoutError):
                place.wait(SERVER, timeout_s=0.1)
            place.write(SERVER, "late", b"1")
            place.interrupt(SERVER)
            assert 0 == place.wait(SERVER, timeout_s=END_LIMIT_S)
            assert 0 == place.exit_status(SERVER)
            assert b"1" == place.read(SERVER, "late")
            assert place.uptime_s(SERVER) == place.uptime_s(SERVER) > 0

    def test_question_that_is_not_known_is_an_error(self, runner: Runner) -> None:
        """A role's error answer arrives as one, with the question in it."""
        with open_place(runner) as place:
            start_server(place)
            with pytest.raises(RunError, match="frobnicate"):
                place.request(SERVER, "frobnicate")

    def test_role_that_is_gone_is_told_from_one_that_runs(self, runner: Runner) -> None:
        """A killed role has status 137; asking it names it, signalling it again is no error."""
        with open_place(runner) as place:
            start_server(place)
            place.kill(SERVER)
            assert 137 == place.wait(SERVER, timeout_s=END_LIMIT_S)
            with pytest.raises(RoleExitedError, match="server exited 137") as caught:
                place.request(SERVER, "report")
            assert (SERVER, 137) == (caught.value.role, caught.value.exit_status)
            place.interrupt(SERVER)
            place.kill(SERVER)

    def test_role_that_cannot_read_its_options_ends_with_the_reason(self, runner: Runner) -> None:
        """A role that ends at its start is told at the first question, with its last words."""
        with open_place(runner) as place:
            argv = [*server_command(SCENARIO, place), "--frobnicate"]
            place.start(SERVER, argv, environment={})
            with pytest.raises(RoleExitedError, match="frobnicate") as caught:
                place.request(SERVER, "describe")
            assert 2 == caught.value.exit_status
            assert "frobnicate" in place.output(SERVER)[1]

    def test_role_starts_once_and_only_as_a_program_that_exists(self, runner: Runner) -> None:
        """A second start, and a program that is not there, are errors of the run."""
        with open_place(runner) as place:
            with pytest.raises(RunError, match="no-such-program"):
                place.start(CLIENT, ["no-such-program"], environment={})
            start_server(place)
            with pytest.raises(RunError, match="already"):
                place.start(SERVER, server_command(SCENARIO, place), environment={})

    def test_tracer_attaches_and_sees_what_the_client_causes(self, runner: Runner) -> None:
        """Server, held client and tracer meet: what was traced is what the server counted."""
        script = load_script("udp-syscall")
        with open_place(runner) as place:
            server = start_server(place)
            place.write(CLIENT, CLIENT_CA, server.certificate_pem.encode())
            cap = server.granted.window_cap_bytes
            argv = client_command(SCENARIO, place, server, window_cap_bytes=cap)
            place.start(CLIENT, argv, environment={})
            ClientDescription.read(place.request(CLIENT, "describe"))
            place.write(TRACER, "udp-syscall.bt", script.text.encode())
            provider = place.provider_path_for_tracer(server.probes.provider_path or "")
            argv = tracer_command(
                place,
                TRACER,
                script_file="udp-syscall.bt",
                provider_path=provider,
                is_timed=True,
            )
            place.start(TRACER, argv, environment={})
            self._wait_for_attach(place)
            place.request(SERVER, "reset")
            before = place.read_costs()
            place.request(CLIENT, "start")
            assert 0 == place.wait(CLIENT, timeout_s=END_LIMIT_S)
            counters = self._settled_counters(place)
            after = place.read_costs()
            self._check_costs(before, after)
            run_count = count_runs(after) - count_runs(before)
            assert run_count >= counters.total["tx"]["send_call_count"]
            place.interrupt(TRACER)
            assert 0 == place.wait(TRACER, timeout_s=END_LIMIT_S)
            trace = parse_trace(place.read(TRACER, TRACE))
            assert counters.total["tx"]["send_call_count"] == trace.event_count("@tx_arg_counts")
            assert json.loads(place.read(CLIENT, "client.json"))["ok"]

    def test_place_without_a_tracer_tells_the_same(self, runner: Runner) -> None:
        """An untraced twin has the facts of its traced sibling, and a reading without programs."""
        with runner.open(RUN, max_mtu_bytes=SCENARIO.max_mtu_bytes, tracer_count=0) as place:
            assert "bpftrace" in place.facts.versions
            start_server(place)
            reading = place.read_costs()
        assert ({SERVER}, {}) == (set(reading.roles), reading.programs)
        assert reading.roles[SERVER].cpu_s > 0

    def test_reading_of_a_server_that_is_gone_is_empty(self, runner: Runner) -> None:
        """Its end in the middle of a run is told elsewhere; what can be read still is."""
        with open_place(runner) as place:
            start_server(place)
            place.kill(SERVER)
            place.wait(SERVER, timeout_s=END_LIMIT_S)
            reading = place.read_costs()
        assert ({}, [], 0) == (reading.roles, reading.sockets, reading.server_drop_count)

    def test_leaving_removes_everything_that_runs(self, runner: Runner) -> None:
        """Leaving by an exception ends every role and leaves nothing, not even a record."""

        def fail_half_way() -> None:
            with open_place(runner) as place:
                place.write(CLIENT, "file", b"1")
                start_server(place)
                assert leftovers.is_run_alive(RUN) is True
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail_half_way()
        assert [] == self.find_remains(runner, RUN)
        assert leftovers.is_run_alive(RUN) is None

    def _check_costs(self, before: Reading, after: Reading) -> None:
        """Who ran has used CPU time, and what ended is left out; nothing is guessed."""
        assert {SERVER, CLIENT, TRACER} == set(before.roles)
        assert {SERVER, TRACER} == set(after.roles)
        assert after.roles[SERVER].cpu_s > before.roles[SERVER].cpu_s
        assert all(cost.cpu_ids for cost in after.roles.values())
        assert after.machine is not None
        assert before.machine is not None
        assert after.machine.busy_s > before.machine.busy_s
        assert [each.port for each in before.sockets] == [each.port for each in after.sockets]
        assert before.sockets
        assert "RcvbufErrors" in after.udp_counts
        ids = [each.program_id for each in before.programs[TRACER]]
        assert ids == [each.program_id for each in after.programs[TRACER]]
        assert len(ids) > 0
        assert {0} == {each.recursion_miss_count for each in after.programs[TRACER]}

    def _wait_for_attach(self, place: Place) -> None:
        for _ in range(100):
            with suppress(FileNotFoundError):  # it has not opened its file yet
                if parse_trace(place.read(TRACER, TRACE)).has_begun:
                    return
            with pytest.raises(TimeoutError):  # the wait is the pause, and the role must live
                place.wait(TRACER, timeout_s=0.1)
        pytest.fail("the tracer did not attach")

    def _settled_counters(self, place: Place) -> CounterReport:
        for _ in range(100):
            report = CounterReport.read(place.request(SERVER, "report"))
            if report.is_settled:
                return report
            with pytest.raises(TimeoutError):
                place.wait(SERVER, timeout_s=0.1)
        pytest.fail("the server's connections did not close")
