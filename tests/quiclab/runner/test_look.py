"""
What a run costs is read from the kernel's own files; absent ones are no error.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch

import pytest

from quiclab.runner.base import CLIENT, SERVER, TRACER
from quiclab.runner.look import (
    ProcessTimes,
    Watched,
    find_family,
    look_here,
    parse_cpu_ids,
    parse_machine,
    parse_process,
    parse_program,
    take_reading,
)
from quiclab.runner.reading import MachineCost, ProgramCost, RoleCost

# As Linux 6.18 writes them.
STAT = (
    "42 (a) b) R 7 42 42 0 -1 4194304 100 0 0 0 150 50 30 20 20 0 1 0 1000 1000000 500 "
    "18446744073709551615\n"
)
MACHINE = """\
cpu  1000 100 500 90000 300 10 40 77 600 0
cpu0 500 50 250 45000 150 5 20 40 300 0
cpu1 500 50 250 45000 150 5 20 37 300 0
intr 1 2 3
"""
FDINFO = """\
pos:\t0
flags:\t02000002
prog_type:\t2
prog_jited:\t1
prog_tag:\tc0b1a85fb75dc74b
memlock:\t4096
prog_id:\t36
run_time_ns:\t7693
run_cnt:\t9
recursion_misses:\t1
verified_insns:\t21
"""
TIMED = ProgramCost(program_id=36, run_count=9, run_time_ns=7693, recursion_miss_count=1)
NOT_TIMED = ProgramCost(program_id=36, recursion_miss_count=1)
UDP = (
    "  sl  local_address rem_address st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode "
    "ref pointer drops\n"
    " 1: 0100007F:1151 00000000:0000 07 0:0 00:0 0 0 0 {inode} 2 0 42\n"
    " 2: 0100007F:1151 00000000:0000 07 0:0 00:0 0 0 0 999 2 0 5\n"
)


class Files:
    """Files that are not there, for a look at them."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files

    def __call__(self, patterns: Sequence[str]) -> Mapping[str, str]:
        """Fetch those that match."""
        return {
            path: text
            for path, text in self.files.items()
            if any(fnmatch(path, pattern) for pattern in patterns)
        }


def make_files(**more: str) -> dict[str, str]:
    """A server of PID 42 with one child, and a tracer of PID 50, on a machine of two CPUs."""
    return {
        "/proc/42/stat": STAT,
        "/proc/43/stat": STAT.replace("42 (a) b) R 7", "43 (worker) S 42"),
        "/proc/44/stat": STAT.replace("42 (a) b) R 7", "44 (other) S 1"),
        "/proc/50/stat": STAT.replace("42 (a) b) R 7", "50 (bpftrace) S 7"),
        "/proc/42/status": "Name:\ta\nCpus_allowed_list:\t0\n",
        "/proc/43/status": "Name:\tworker\nCpus_allowed_list:\t1,3-4\n",
        "/proc/50/status": "Name:\tbpftrace\nCpus_allowed_list:\t0-1\n",
        "/proc/43/fd/5": "socket:[77]",
        "/proc/43/fd/6": "/dev/null",
        "/proc/50/fd/1": "/dev/null",
        "/proc/50/fd/11": "anon_inode:bpf-prog",
        "/proc/50/fdinfo/1": "pos:\t0\n",
        "/proc/50/fdinfo/11": FDINFO,
        "/proc/stat": MACHINE,
        "/proc/net/udp": UDP.format(inode=77),
        "/proc/net/snmp": "Udp: InErrors RcvbufErrors\nUdp: 3 2\n",
        "/proc/net/snmp6": "Ip6InReceives 1\nUdp6RcvbufErrors 4\n",
        **more,
    }


def watch(files: Mapping[str, str]) -> dict[str, Watched]:
    """A server and a tracer, by these files."""
    return {role: Watched(Files(files), pid) for role, pid in ((SERVER, 42), (TRACER, 50))}


def test_process_with_brackets_in_its_name_is_read() -> None:
    """A process names itself, so only the last bracket counts; children waited for count too."""
    assert ProcessTimes(42, 7, user_s=1.8, system_s=0.7) == parse_process(STAT)


def test_family_is_all_that_descend_from_a_process() -> None:
    """Grandchildren belong to it, whatever their order; others do not."""
    parents = {9: 8, 8: 7, 7: 1, 6: 1, 5: 7}
    processes = [ProcessTimes(pid, parent, 0.0, 0.0) for pid, parent in parents.items()]
    assert {7, 8, 9, 5} == {each.pid for each in find_family(processes, 7)}
    assert [] == find_family(processes, 70)


def test_machine_is_read_without_counting_guests_twice() -> None:
    """Steal is told from what was done; CPUs are counted."""
    assert MachineCost(cpu_count=2, busy_s=16.5, steal_s=0.77) == parse_machine(MACHINE)
    assert parse_machine("") is None


def test_list_of_cpus_may_have_holes() -> None:
    """The kernel writes ranges and single ones."""
    assert {0, 1, 4} == parse_cpu_ids("Name:\tx\nCpus_allowed_list:\t0-1,4\n")


@pytest.mark.parametrize(
    ("is_timed", "expected"),
    [
        (True, TIMED),
        (
            False,
            NOT_TIMED,
        ),
    ],
    ids=["timed", "not-timed"],
)
def test_program_that_is_not_timed_has_no_figures(is_timed: bool, expected: ProgramCost) -> None:
    """The kernel's zeros are no measurement then."""
    assert expected == parse_program(FDINFO, is_timed)


def test_program_of_an_older_kernel_has_no_skipped_runs() -> None:
    """Before Linux 5.12 they were not counted."""
    assert parse_program(FDINFO.replace("recursion_misses", "x"), True).recursion_miss_count is None


def test_reading_holds_what_belongs_to_the_run() -> None:
    """Workers count for the server; sockets and processes of others are left out."""
    reading = take_reading(watch(make_files()), at_s=1.0, is_namespace_shared=True)
    assert RoleCost(user_s=3.6, system_s=1.4, cpu_ids=[0, 1, 3, 4]) == reading.roles[SERVER]
    assert RoleCost(user_s=1.8, system_s=0.7, cpu_ids=[0, 1]) == reading.roles[TRACER]
    assert [42] == [each.drop_count for each in reading.sockets]
    assert {"InErrors": 3, "RcvbufErrors": 2, "Udp6RcvbufErrors": 4} == reading.udp_counts


@pytest.mark.parametrize(
    "switch",
    [
        {"/proc/50/fd/9": "anon_inode:bpf-stats"},
        {"/proc/sys/kernel/bpf_stats_enabled": "1\n"},
    ],
    ids=["by-descriptor", "by-sysctl"],
)
def test_programs_are_timed_where_the_switch_is_on(switch: Mapping[str, str]) -> None:
    """Either way of switching it on is seen; without one there are no figures."""
    timed = take_reading(watch(make_files(**switch)), at_s=1.0, is_namespace_shared=True)
    assert [TIMED] == timed.programs[TRACER]
    plain = take_reading(watch(make_files()), at_s=1.0, is_namespace_shared=True)
    assert [NOT_TIMED] == plain.programs[TRACER]


def test_timing_that_was_asked_for_and_refused_is_noted() -> None:
    """No figures without a word: who asked for them is told why there are none."""
    watched = {TRACER: replace(watch(make_files())[TRACER], is_timed=True)}
    (note,) = take_reading(watched, at_s=1.0, is_namespace_shared=True).notes
    assert "asked to time the programs of tracer and does not" in note


def test_server_without_a_socket_to_be_seen_is_noted() -> None:
    """No socket means that drops are not known, not that there were none."""
    files = make_files() | {"/proc/net/udp": UDP.format(inode=1)}
    reading = take_reading({SERVER: watch(files)[SERVER]}, at_s=1.0, is_namespace_shared=True)
    assert ["the server's sockets were not found, so their drops are not known"] == reading.notes


def test_roles_that_are_gone_are_left_out() -> None:
    """A container that has ended has no files any more."""
    watched = {CLIENT: Watched(Files({}), 1), SERVER: Watched(Files({}), 1)}
    reading = take_reading(watched, at_s=1.0, is_namespace_shared=False)
    assert ({}, {}, [], None) == (
        reading.roles,
        reading.programs,
        reading.sockets,
        reading.machine,
    )


def test_this_machine_shows_a_process_with_its_ipv6_socket() -> None:
    """The kernel here writes what is read: CPU time, affinity, sockets of both families."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as opened:
        try:
            opened.bind(("::1", 0))
        except OSError:
            pytest.skip("IPv6 is off here")
        watched = {SERVER: Watched(look_here, os.getpid())}
        reading = take_reading(watched, at_s=1.0, is_namespace_shared=True)
        assert opened.getsockname()[1] in {each.port for each in reading.sockets}
    assert set(reading.roles[SERVER].cpu_ids) == os.sched_getaffinity(0)
    assert reading.roles[SERVER].cpu_s > 0


def test_child_of_a_process_is_found_here() -> None:
    """A look at this machine finds descendants by their parents."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        stats = look_here(["/proc/[0-9]*/stat"]).values()
        assert child.pid in {
            each.pid for each in find_family(map(parse_process, stats), os.getpid())
        }
        assert child.stdin is not None
        child.stdin.write(b"\n")


def test_link_is_told_by_where_it_points() -> None:
    """Of a link the target is the text; what is not there is left out."""
    found = look_here([f"/proc/{os.getpid()}/exe", "/proc/no-such-process/stat"])
    assert [os.readlink("/proc/self/exe")] == list(found.values())  # noqa: PTH115
