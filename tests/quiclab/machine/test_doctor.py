"""
Each precondition is judged by what the machine answered, and comes with its fix.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from quiclab.errors import ExitCode
from quiclab.machine.doctor import (
    Check,
    EngineAnswer,
    Machine,
    Status,
    collect_machine,
    exit_code,
    judge,
    render_check,
    to_json,
)
from quiclab.machine.host import KernelFeatures, detect_features

NO_ENGINE = EngineAnswer(
    refusal="no Docker engine answers at unix:///var/run/docker.sock; start one"
)
DEAD_ENGINE = EngineAnswer(
    refusal="no Docker engine answers at unix:///nowhere; start one", is_chosen=True
)
FEATURES = KernelFeatures(
    has_btf=True, has_uprobes=True, has_kprobes=True, is_tracefs_mounted=True, lockdown="none"
)
GOOD = Machine(
    distribution="Debian GNU/Linux 13 (trixie)",
    kernel="6.12.4",
    architecture="x86_64",
    python="3.13.5",
    features=FEATURES,
    has_uprobes=True,
    has_kprobes=True,
    tracefs="/sys/kernel/tracing",
    capabilities=frozenset({"SYS_ADMIN", "SYS_PTRACE", "NET_ADMIN"}),
    sysctls={"net.core.rmem_max": "8388608", "net.core.wmem_max": "8388608"},
    bpftrace="0.23.2",
    self_test="",
    missing_build_needs=(),
    can_install=True,
    engine=EngineAnswer(summary="engine 28.2.2 answers", image="image quiclab:1f2e cached"),
    free_bytes=50_000_000_000,
)


def find(machine: Machine, name: str) -> Check:
    """The check of that name."""
    return next(check for check in judge(machine) if check.name == name)


def test_a_good_machine_passes_everywhere() -> None:
    """Nothing is warned about where nothing is missing, and the exit code is 0."""
    checks = judge(GOOD)
    assert {check.status for check in checks} == {Status.PASS}
    assert exit_code(checks) is ExitCode.OK
    assert checks[-1].text == "trace would take the docker runner"


def test_names_of_checks_are_unique() -> None:
    """A program can pick a check by its name."""
    names = [check.name for check in judge(GOOD)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("change", "name", "status", "words"),
    [
        ({"has_kprobes": False}, "kprobes", Status.WARN, "don't need them"),
        ({"has_uprobes": False}, "uprobes", Status.FAIL, "CONFIG_UPROBE_EVENTS"),
        ({"has_uprobes": None}, "uprobes", Status.WARN, "as root"),
        ({"architecture": "riscv64"}, "system", Status.FAIL, "riscv64"),
        ({"free_bytes": 1_000_000}, "disk", Status.WARN, "make room"),
        ({"bpftrace": ""}, "bpftrace", Status.WARN, "sudo apt-get install bpftrace"),
        (
            {"missing_build_needs": (("a C compiler", "gcc"), ("Python's headers", "python3-dev"))},
            "compiler",
            Status.WARN,
            "sudo apt-get install gcc python3-dev",
        ),
        ({"self_test": "tracepoint not found"}, "tracefs", Status.WARN, "tracepoint not found"),
        ({"tracefs": ""}, "tracefs", Status.PASS, "as tracers do"),
        (
            {"tracefs": "", "self_test": None},
            "tracefs",
            Status.WARN,
            "sudo mount -t tracefs tracefs /sys/kernel/tracing",
        ),
        ({"capabilities": frozenset()}, "privilege", Status.WARN, "CAP_SYS_ADMIN"),
        ({"engine": DEAD_ENGINE}, "engine", Status.FAIL, "start one"),
        ({"engine": NO_ENGINE}, "engine", Status.WARN, "start one"),
    ],
)
def test_what_is_missing_is_named_with_its_fix(
    change: dict[str, object], name: str, status: Status, words: str
) -> None:
    """One changed answer changes one check, and its line says what to do."""
    check = find(replace(GOOD, **change), name)  # type: ignore[arg-type]
    assert check.status is status
    assert words in render_check(check)


@pytest.mark.parametrize(
    ("text", "word", "status"),
    [
        ("[none] integrity confidentiality", "none", Status.PASS),
        ("none [integrity] confidentiality", "integrity", Status.PASS),
        ("none integrity [confidentiality]", "confidentiality", Status.FAIL),
        ("", None, Status.PASS),
        (None, None, Status.PASS),
    ],
    ids=["none", "integrity", "confidentiality", "empty", "absent"],
)
def test_lockdown_fails_only_for_the_bracketed_confidentiality(
    tmp_path: Path, text: str | None, word: str | None, status: Status
) -> None:
    """The word in brackets is the one in force; an absent file is unknown, no failure."""
    if text is not None:
        (tmp_path / "sys/kernel/security").mkdir(parents=True)
        (tmp_path / "sys/kernel/security/lockdown").write_text(text)
    features = detect_features(tmp_path)
    assert features.lockdown == word
    assert find(replace(GOOD, features=features), "lockdown").status is status


def test_without_an_engine_local_needs_become_failures() -> None:
    """A user without an engine and without rights cannot run at all: exit 4."""
    machine = replace(
        GOOD, engine=NO_ENGINE, bpftrace="", can_install=False, capabilities=frozenset()
    )
    failed = {check.name for check in judge(machine) if check.status is Status.FAIL}
    assert failed == {"privilege", "bpftrace"}
    assert exit_code(judge(machine)) is ExitCode.MACHINE_CANNOT


def test_without_an_engine_root_installs_what_is_missing() -> None:
    """What `trace` would install by itself is a warning."""
    machine = replace(GOOD, engine=NO_ENGINE, bpftrace="")
    assert exit_code(judge(machine)) is ExitCode.OK
    assert judge(machine)[-1].text == "trace would take the local runner"


def test_small_socket_limits_are_named_with_their_sysctl() -> None:
    """Where nobody can force the buffers the sysctl is the way, with the figure."""
    machine = replace(
        GOOD,
        engine=NO_ENGINE,
        capabilities=frozenset({"SYS_ADMIN", "SYS_PTRACE"}),
        sysctls={"net.core.rmem_max": "212992", "net.core.wmem_max": "8388608"},
    )
    check = find(machine, "net.core.rmem_max")
    assert check.status is Status.WARN
    assert render_check(check) == (
        "warn  net.core.rmem_max 212,992 B is less than the client's 8,388,608 B: "
        "sudo sysctl net.core.rmem_max=8388608"
    )


def test_a_check_can_be_written_as_json() -> None:
    """Every field is plain text."""
    assert to_json(Check("btf", Status.PASS, "BTF: yes")) == {
        "name": "btf",
        "status": "pass",
        "text": "BTF: yes",
        "fix": "",
    }


@pytest.mark.real
def test_an_output_that_cannot_exist_does_not_keep_doctor_from_answering(tmp_path: Path) -> None:
    """A name longer than names may be: the folder above it is looked at."""
    assert collect_machine(tmp_path / ("x" * 300) / "y").free_bytes > 0


def _kernel_mounts() -> list[str]:
    """Mounts of the kernel's own file systems; engines come and go with others meanwhile."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line for line in lines if line.split()[1].startswith(("/sys", "/proc"))]


def test_this_machine_answers(tmp_path: Path) -> None:
    """The questions work on the machine the tests run on, and nothing is changed by them."""
    mounts = _kernel_mounts()
    machine = collect_machine(tmp_path / "not" / "there" / "yet")
    assert machine.kernel
    assert judge(machine)
    assert _kernel_mounts() == mounts
    assert list(tmp_path.iterdir()) == []
