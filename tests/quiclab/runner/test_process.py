"""
The local runner: the promises of every place, and what processes add to them.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from quiclab import leftovers
from quiclab.errors import MachineError
from quiclab.runner.base import CLIENT, SERVER, Runner
from quiclab.runner.process import OWN_MOUNTS, ProcessRunner
from tests.conftest import need
from tests.quiclab.runner.contract import RUN, PlaceContract, open_place, start_server

PROJECT = Path(__file__).resolve().parents[3]

# A lab that opens a place, starts a server of two workers, says so and is then killed.
LAB = """
import sys, time
from quiclab.argv import server_command
from quiclab.runner.process import ProcessRunner
from quiclab.scenario import Scenario

scenario = Scenario.model_validate({"script": ("udp-syscall",), "workers": 2})
with ProcessRunner().open(sys.argv[1], max_mtu_bytes=9000, tracer_count=1) as place:
    place.start("server", server_command(scenario, place), environment={})
    description = place.request("server", "describe")
    print(description["pid"], place.facts.details["directory"], flush=True)
    time.sleep(60)
"""


def find_marked(run_id: str) -> list[psutil.Process]:
    """Find processes that carry the run's mark and are not merely waiting to be reaped."""
    marked = []
    for process in psutil.process_iter(["environ", "status"]):
        environment = process.info["environ"] or {}
        if environment.get(leftovers.RUN_MARK) == run_id:
            marked.append(process)
    return [process for process in marked if process.info["status"] != psutil.STATUS_ZOMBIE]


def need_local_tracing() -> None:
    """Skip where the local runner cannot work."""
    need(os.geteuid() == 0, "root, for tracing")
    need(shutil.which("bpftrace") is not None, "bpftrace")
    need(bool(list((PROJECT / "server/udp").glob("_native*.so"))), "the native module, built")


@pytest.mark.real
class TestProcessPlace(PlaceContract):
    """The contract, on processes of this machine."""

    @pytest.fixture
    def runner(self) -> ProcessRunner:
        """Use the bpftrace of PATH."""
        need_local_tracing()
        return ProcessRunner()

    def find_remains(self, runner: Runner, run_id: str) -> list[str]:
        """Name processes with the run's mark, and its folder."""
        del runner
        folders = [
            str(path)
            for base in ("/tmp", "/var/tmp", "/run", "/dev/shm")
            for path in Path(base).glob(f"quiclab-{run_id}")
        ]
        return [*folders, *(str(process) for process in find_marked(run_id))]


@pytest.fixture
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let records of live runs lie in the test's own folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.real
@pytest.mark.usefixtures("own_state")
def test_roles_sit_in_process_groups_of_their_own() -> None:
    """Ctrl-C in the terminal reaches the lab alone; the lab ends its roles in order."""
    need_local_tracing()
    with open_place(ProcessRunner()) as place:
        start_server(place)
        pid = place.request(SERVER, "describe")["pid"]
        assert pid == os.getpgid(pid) != os.getpgid(0)


@pytest.mark.real
@pytest.mark.usefixtures("own_state")
def test_role_that_misses_an_interrupt_is_reached_by_terminate() -> None:
    """SIGINT and SIGTERM are two words: who ignores the one still hears the other."""
    need_local_tracing()
    with open_place(ProcessRunner()) as place:
        deaf = "trap '' INT; echo deaf; while :; do sleep 0.05; done"
        place.start(CLIENT, ["sh", "-c", deaf], environment={})
        for _ in range(200):
            if "deaf" in place.output(CLIENT)[0]:
                break
            time.sleep(0.02)
        place.interrupt(CLIENT)
        with pytest.raises(TimeoutError):
            place.wait(CLIENT, timeout_s=0.3)
        place.terminate(CLIENT)
        assert 128 + signal.SIGTERM == place.wait(CLIENT, timeout_s=3.0)


@pytest.mark.real
@pytest.mark.usefixtures("own_state")
def test_killed_lab_takes_its_roles_along_and_the_next_run_removes_the_rest() -> None:
    """After SIGKILL of the lab its server dies with it, and the folder goes at the next look."""
    need_local_tracing()
    lab = subprocess.Popen(
        [sys.executable, "-c", LAB, RUN], stdout=subprocess.PIPE, text=True, cwd=PROJECT
    )
    assert lab.stdout is not None
    try:
        pid, directory = lab.stdout.readline().split(maxsplit=1)
        assert psutil.pid_exists(int(pid))
        assert [] == ProcessRunner().remove_leftovers()  # a live run is left alone
    finally:
        lab.send_signal(signal.SIGKILL)
        lab.wait()
        lab.stdout.close()
    deadline_s = time.monotonic() + 5.0
    while time.monotonic() < deadline_s and int(pid) in {p.pid for p in find_marked(RUN)}:
        time.sleep(0.02)
    assert int(pid) not in {process.pid for process in find_marked(RUN)}
    said = ProcessRunner().remove_leftovers()
    assert f"removed {directory.strip()} of dead run {RUN}" in said
    assert ([], False) == (find_marked(RUN), Path(directory.strip()).exists())


# A root folder that is no mount point, below mounts that are shared: what is mounted in one
# of their copies appears in all, unless that copy is private.
CHROOT = """
set -eu
root=$1; shift
mount --make-rshared /
for folder in usr bin sbin lib lib64; do
  [ ! -e /$folder ] || { mkdir -p $root/$folder; mount --rbind /$folder $root/$folder; }
done
mkdir -p $root/sys $root/proc
mount -t sysfs sysfs $root/sys
mount -t proc proc $root/proc
mount --make-shared $root/sys
status=0
chroot $root "$@" || status=$?
grep $root/sys/ /proc/self/mountinfo || true
exit $status
"""


def run_in_chroot(root: Path, *argv: str) -> "subprocess.CompletedProcess[str]":
    """Run a command there; what it left mounted outside ends its stdout."""
    need(os.geteuid() == 0, "root, for mounts of its own")
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", CHROOT, "sh", str(root), *argv],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.real
def test_tracer_in_a_chroot_mounts_tracefs_for_itself_alone(tmp_path: Path) -> None:
    """Where the root is no mount point, unshare's own way fails; nothing reaches the host."""
    mounts = "mount -t tracefs tracefs /sys/kernel/tracing && ls /sys/kernel/tracing/events/header*"
    done = run_in_chroot(tmp_path, *OWN_MOUNTS, "sh", "-c", mounts)
    assert (done.returncode, done.stderr) == (0, "")
    assert "header_page" in done.stdout
    assert str(tmp_path) not in done.stdout


@pytest.mark.real
def test_tracer_that_cannot_be_alone_with_tracefs_says_what_to_do(tmp_path: Path) -> None:
    """A /sys that is no mount point: status 4, and nothing was mounted."""
    done = run_in_chroot(tmp_path, "sh", "-c", f"umount /sys && exec {shlex.join(OWN_MOUNTS)} true")
    assert done.returncode == 4
    assert "mount -t tracefs tracefs /sys/kernel/tracing" in done.stderr.splitlines()[-1]
    assert done.stdout == ""


def test_machine_without_bpftrace_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """No bpftrace on PATH: one line with the package and the other way."""
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MachineError, match=r"apt-get install bpftrace, or use --runner docker"):
        ProcessRunner().preflight()


@pytest.mark.usefixtures("own_state")
def test_mtu_beyond_the_loopback_device_is_refused_before_anything_exists() -> None:
    """Datagrams that the device cannot carry are refused, with the command that helps."""
    with (
        pytest.raises(MachineError, match=r"sudo ip link set lo mtu"),
        ProcessRunner().open(RUN, max_mtu_bytes=1_000_000, tracer_count=1),
    ):
        pass
    assert [] == list(leftovers.state_directory().iterdir())


@pytest.mark.real
def test_temporary_folder_with_a_long_name_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Unix socket's path has room for 107 bytes; a long TMPDIR would not leave enough."""
    need_local_tracing()
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with open_place(ProcessRunner()) as place:
        assert len(place.path(SERVER, "control.sock")) < 107
