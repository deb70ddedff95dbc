"""
Every precondition of a run: what was asked, what the machine answered, what to do.

`collect_machine` asks; `judge` is pure and turns the answers into checks. What
only one of the two runners needs is a failure only when the other cannot run
either: `trace` would just take that one.
"""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from quiclab.containers.capabilities import parse_capability_mask
from quiclab.errors import ExitCode, MachineError
from quiclab.machine.host import KernelFeatures, collect_host, find_tracefs
from quiclab.machine.perf_event import detect_kprobes, detect_uprobes
from quiclab.machine.setup import BUILD_NEEDS, find_program
from quiclab.units import render_bytes

CLIENT_BUFFER_BYTES = 8 * 1024 * 1024  # what the client asks for (docs: --socket-buffer)
_ROOM_BYTES = 3_000_000_000  # the image with its base, and some runs
_ARCHITECTURES = ("x86_64", "aarch64")  # what libstapsdt places probes for
_LOCAL_CAPABILITIES = ("SYS_ADMIN", "SYS_PTRACE", "NET_ADMIN")
_SELF_TEST_DEADLINE_S = 20.0
_SELF_TEST = "tracepoint:sched:sched_process_exit { @exits = count(); }"
_MOUNT_FIX = "sudo mount -t tracefs tracefs /sys/kernel/tracing"


class Status(StrEnum):
    """What a check came to."""

    PASS = "pass"  # noqa: S105  (no password)
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """
    One precondition.

    Args:
        name: Stable, for programs.
        status: Whether it holds.
        text: What was asked and what the machine answered.
        fix: What to do, "" when there is nothing to do.
    """

    name: str
    status: Status
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAnswer:
    """
    What the Docker engine answered.

    Args:
        summary: Such as "engine 20.10.24 answers", "" when none answers.
        refusal: Why it cannot be used, one line, or "".
        is_chosen: The user named it (DOCKER_HOST or a context).
        image: Such as "image quiclab:1f2e cached", "" when there is none yet.
    """

    summary: str = ""
    refusal: str = ""
    is_chosen: bool = False
    image: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """
    Everything the checks look at.
    """

    distribution: str
    kernel: str
    architecture: str
    python: str
    features: KernelFeatures
    has_uprobes: bool | None
    has_kprobes: bool | None
    tracefs: str
    """Where it is mounted, or ""."""
    capabilities: frozenset[str]
    sysctls: Mapping[str, str]
    bpftrace: str
    """Its version, or ""."""
    self_test: str | None
    """"" when a real tracepoint fired, else bpftrace's words; None when nobody could try."""
    missing_build_needs: tuple[tuple[str, str], ...]
    """What building takes and is not there: name and Debian package."""
    can_install: bool
    engine: EngineAnswer
    free_bytes: int

    @property
    def can_force_buffers(self) -> bool:
        """Whether SO_RCVBUFFORCE passes the sysctl."""
        return "NET_ADMIN" in self.capabilities


def collect_machine(output: Path) -> Machine:
    """
    Ask the machine; takes a second or two, changes nothing.

    Args:
        output: Where run folders would go, for the room on its disk.
    """
    host = collect_host()
    tracefs = find_tracefs()
    program = find_program("bpftrace")
    capabilities = _collect_capabilities()
    while not _is_there(output):
        output = output.parent
    return Machine(
        distribution=host.distribution,
        kernel=host.kernel,
        architecture=host.architecture,
        python=platform.python_version(),
        features=host.features,
        has_uprobes=detect_uprobes(),
        has_kprobes=detect_kprobes(),
        tracefs=tracefs,
        capabilities=capabilities,
        sysctls=host.sysctls,
        bpftrace="" if program is None else _ask_version(program),
        self_test=_test_tracepoint(program, is_mounted=bool(tracefs)),
        missing_build_needs=tuple(
            (need.what, need.package) for need in BUILD_NEEDS if not need.is_there()
        ),
        can_install=os.geteuid() == 0 and find_program("apt-get") is not None,
        engine=_ask_engine(),
        free_bytes=shutil.disk_usage(output).free,
    )


def _is_there(path: Path) -> bool:
    """A path whose name is too long, or that this user may not look at, is not."""
    try:
        return path.exists()
    except OSError:
        return False


def _collect_capabilities() -> frozenset[str]:
    found = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return parse_capability_mask(found[1]) if found else frozenset()


def _ask_version(program: str) -> str:
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=5.0, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().removeprefix("bpftrace v").removeprefix("bpftrace ")


def _test_tracepoint(program: str | None, *, is_mounted: bool) -> str | None:
    """Fire a real tracepoint; without tracefs in a mount namespace of the test's own."""
    if program is None or os.geteuid() != 0:
        return None
    argv = [program, "-f", "json", "-c", shutil.which("true") or "/bin/true", "-e", _SELF_TEST]
    if not is_mounted:
        mount = 'mount -t tracefs tracefs /sys/kernel/tracing && exec "$@"'
        argv = ["unshare", "--mount", "sh", "-c", mount, "sh", *argv]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_SELF_TEST_DEADLINE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if re.search(r'"@exits":\s*[1-9]', done.stdout):
        return ""
    errors = [line for line in done.stderr.splitlines() if "RLIMIT_MEMLOCK" not in line]
    return errors[0].strip() if errors else "nothing was counted"


def _ask_engine() -> EngineAnswer:
    # Imported late: the SDK takes 0.2 s, and `--help` of doctor must not wait for it.
    from quiclab.containers.engine import (  # noqa: PLC0415
        check_engine_can_trace,
        connect_engine,
        find_engine_address,
    )
    from quiclab.containers.image import Recipe, find_image, render_tag  # noqa: PLC0415

    is_chosen = True  # of an address that cannot even be read
    try:
        address = find_engine_address(os.environ)
        is_chosen = address.is_chosen
        engine = connect_engine(address)
    except MachineError as error:
        return EngineAnswer(refusal=str(error), is_chosen=is_chosen)
    try:
        image = find_image(engine, render_tag(Recipe()))
        check_engine_can_trace(engine.facts)
    except MachineError as error:
        return EngineAnswer(refusal=str(error), is_chosen=is_chosen)
    finally:
        engine.close()
    return EngineAnswer(
        summary=f"{engine.facts.summary} at {address.url}",
        is_chosen=is_chosen,
        image="" if image is None else image.summary,
    )


def judge(machine: Machine) -> list[Check]:
    """
    Turn answers into checks, in the order a person would ask.
    """
    docker = _judge_engine(machine)
    can_docker = docker.status is Status.PASS
    # What only a local run needs matters less where a container would be taken.
    for_local = Status.WARN if can_docker else Status.FAIL
    checks = [
        *_judge_system(machine),
        *_judge_kernel(machine),
        docker,
        *_judge_local(machine, for_local),
        *_judge_limits(machine, can_docker=can_docker),
    ]
    if exit_code(checks) is ExitCode.OK:
        runner = "docker" if can_docker else "local"
        checks.append(Check("runner", Status.PASS, f"trace would take the {runner} runner"))
    return checks


def _judge_system(machine: Machine) -> Iterator[Check]:
    text = f"{machine.distribution}, kernel {machine.kernel}, Python {machine.python}"
    if machine.architecture in _ARCHITECTURES:
        yield Check("system", Status.PASS, f"{text}, {machine.architecture}")
    else:
        yield Check(
            "system",
            Status.FAIL,
            f"{text}, {machine.architecture}: the probe library knows {_or(_ARCHITECTURES)}",
            "use a machine of that kind; server and client run here, untraced",
        )


def _judge_kernel(machine: Machine) -> Iterator[Check]:
    if machine.features.has_btf:
        yield Check("btf", Status.PASS, "BTF: yes")
    else:
        yield Check("btf", Status.WARN, "BTF: no; the shipped scripts need only integers")
    if machine.has_uprobes:
        yield Check("uprobes", Status.PASS, "uprobes: the kernel opened one")
    elif machine.has_uprobes is None:
        yield Check(
            "uprobes", Status.WARN, "uprobes: this user may not ask the kernel", "run it as root"
        )
    else:
        yield Check(
            "uprobes",
            Status.FAIL,
            "no uprobes in this kernel, and every probe of the server is one",
            "boot a kernel with CONFIG_UPROBE_EVENTS",
        )
    if machine.has_kprobes is False:
        text = "no kprobes in this kernel: the shipped scripts don't need them"
        yield Check("kprobes", Status.WARN, text)
    elif machine.has_kprobes:
        yield Check("kprobes", Status.PASS, "kprobes: the kernel opened one")
    if machine.features.lockdown == "confidentiality":
        yield Check(
            "lockdown",
            Status.FAIL,
            "kernel lockdown is at confidentiality, so bpftrace may not read memory",
            "boot with lockdown=integrity or without",
        )
    else:
        word = machine.features.lockdown or "unknown (this kernel does not say)"
        yield Check("lockdown", Status.PASS, f"kernel lockdown: {word}")


def _judge_engine(machine: Machine) -> Check:
    engine = machine.engine
    if engine.summary:
        image = engine.image or "the image is made by the first run (about 3 min)"
        return Check("engine", Status.PASS, f"docker: {engine.summary}; {image}")
    text, _, fix = engine.refusal.partition("; ")
    # An engine that nobody chose may be absent: `trace` runs locally then.
    return Check("engine", Status.FAIL if engine.is_chosen else Status.WARN, text, fix)


def _judge_local(machine: Machine, weight: Status) -> Iterator[Check]:
    missing = [name for name in _LOCAL_CAPABILITIES if name not in machine.capabilities]
    if missing:
        text = f"local: this process lacks {_and([f'CAP_{name}' for name in missing])}"
        yield Check("privilege", weight, text, "run it as root (sudo ./invoke ...)")
    else:
        yield Check("privilege", Status.PASS, "local: this process may trace and set buffers")
    installs = Status.WARN if machine.can_install else weight
    if machine.bpftrace:
        yield Check("bpftrace", Status.PASS, f"local: bpftrace {machine.bpftrace}")
        yield from _judge_tracefs(machine, weight)
    else:
        fix = "sudo apt-get install bpftrace, or use --runner docker"
        note = " (a local run installs it)" if machine.can_install else ""
        yield Check("bpftrace", installs, f"local: bpftrace not found{note}", fix)
    if machine.missing_build_needs:
        names = _and([what for what, _ in machine.missing_build_needs])
        packages = " ".join(package for _, package in machine.missing_build_needs)
        note = " (a local run installs them)" if machine.can_install else ""
        text = f"local: {names} not found{note}"
        yield Check("compiler", installs, text, f"sudo apt-get install {packages}")
    else:
        yield Check("compiler", Status.PASS, "local: C compiler and headers are there")


def _judge_tracefs(machine: Machine, weight: Status) -> Iterator[Check]:
    where = f"tracefs at {machine.tracefs}" if machine.tracefs else "tracefs is not mounted"
    if machine.self_test is None:
        status = Status.PASS if machine.tracefs else Status.WARN
        fix = "" if machine.tracefs else _MOUNT_FIX
        yield Check("tracefs", status, f"local: {where}; a tracepoint was not tried (root)", fix)
    elif machine.self_test:
        text = f"local: {where}, and a real tracepoint did not fire: {machine.self_test}"
        yield Check("tracefs", weight, text, "" if machine.tracefs else _MOUNT_FIX)
    elif machine.tracefs:
        yield Check("tracefs", Status.PASS, f"local: {where}, a real tracepoint fired")
    else:
        text = f"local: {where}; mounted for the test alone, as tracers do, a tracepoint fired"
        yield Check("tracefs", Status.PASS, text)


def _judge_limits(machine: Machine, *, can_docker: bool) -> Iterator[Check]:
    for name in ("net.core.rmem_max", "net.core.wmem_max"):
        limit = machine.sysctls.get(name)
        if limit is None:
            yield Check(name, Status.WARN, f"{name} cannot be read here")
            continue
        text = f"{name} {render_bytes(int(limit))}"
        wanted = render_bytes(CLIENT_BUFFER_BYTES)
        if int(limit) >= CLIENT_BUFFER_BYTES:
            yield Check(name, Status.PASS, text)
        elif machine.can_force_buffers or can_docker:
            yield Check(name, Status.PASS, f"{text}; the {wanted} of the client pass it by force")
        else:
            fix = f"sudo sysctl {name}={CLIENT_BUFFER_BYTES}"
            yield Check(name, Status.WARN, f"{text} is less than the client's {wanted}", fix)
    room = f"{machine.free_bytes / 1e9:,.1f} GB free for the run folders"
    if machine.free_bytes >= _ROOM_BYTES:
        yield Check("disk", Status.PASS, room)
    else:
        wanted = f"image and runs may take {_ROOM_BYTES / 1e9:.0f} GB"
        fix = "make room, or give another --output"
        yield Check("disk", Status.WARN, f"{room}, and {wanted}", fix)


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _or(names: tuple[str, ...]) -> str:
    return " or ".join(names)


def render_check(check: Check) -> str:
    """
    `fail  bpftrace not found: sudo apt-get install bpftrace`
    """
    fix = f": {check.fix}" if check.fix else ""
    return f"{check.status}  {check.text}{fix}"


def to_json(check: Check) -> dict[str, str]:
    """
    The check as plain values.
    """
    return {key: str(value) for key, value in asdict(check).items()}


def exit_code(checks: list[Check]) -> ExitCode:
    """
    4 when a run cannot work here, else 0.
    """
    has_failed = any(check.status is Status.FAIL for check in checks)
    return ExitCode.MACHINE_CANNOT if has_failed else ExitCode.OK
