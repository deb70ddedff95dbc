"""
Facts of this machine that a result depends on: kernel, CPU, limits, features.

Asked of /proc, /sys and psutil; whatever cannot be known is None, never a guess.
"""

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

SYSCTLS = (
    "net.core.rmem_default",
    "net.core.rmem_max",
    "net.core.wmem_default",
    "net.core.wmem_max",
    "net.core.netdev_max_backlog",
    "net.ipv4.udp_mem",
    "net.ipv4.udp_rmem_min",
    "net.ipv4.udp_wmem_min",
    "kernel.perf_event_paranoid",
    "kernel.unprivileged_bpf_disabled",
    "kernel.bpf_stats_enabled",
)
_GIT_DEADLINE_S = 5.0


class KernelFeatures(BaseModel):
    """
    What tracing needs from the kernel; None where it cannot be told.
    """

    model_config = ConfigDict(frozen=True)

    has_btf: bool
    has_uprobes: bool
    has_kprobes: bool | None
    """Asked of the kernel's own probe sources: `bpftrace --info` says yes on kernels without."""
    is_tracefs_mounted: bool
    lockdown: str | None
    """The word in brackets of the lockdown file, None when the file is absent or has none."""


class Host(BaseModel):
    """
    The machine a run took place on.
    """

    model_config = ConfigDict(frozen=True)

    kernel: str
    kernel_build: str
    architecture: str
    distribution: str
    cpu_model: str | None
    cpu_count: int
    usable_cpu_count: int
    memory_bytes: int
    governor: str | None
    is_virtual: bool | None
    python: str
    sysctls: Mapping[str, str]
    features: KernelFeatures
    load_average_1min: float
    """How busy the machine was when the run began."""


class GitFacts(BaseModel):
    """
    Which state of the lab made a run; no commit when it does not run from a clone.
    """

    model_config = ConfigDict(frozen=True)

    commit: str | None
    is_dirty: bool | None


def collect_host(root: Path = Path("/")) -> Host:
    """
    Ask the machine.

    Args:
        root: Where /proc and /sys hang; tests show other machines.
    """
    cpuinfo = _read(root / "proc/cpuinfo") or ""
    return Host(
        kernel=platform.release(),
        kernel_build=platform.version(),
        architecture=platform.machine(),
        distribution=_distribution(root),
        cpu_model=_cpu_model(cpuinfo),
        cpu_count=psutil.cpu_count() or 1,
        usable_cpu_count=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        governor=_read(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        is_virtual=" hypervisor" in cpuinfo if "flags" in cpuinfo else None,
        python=platform.python_version(),
        sysctls=collect_sysctls(root),
        features=detect_features(root),
        load_average_1min=round(os.getloadavg()[0], 2),
    )


def collect_sysctls(root: Path = Path("/")) -> dict[str, str]:
    """
    Read those of `SYSCTLS` that this kernel has.
    """
    values = {name: _read(root / "proc/sys" / name.replace(".", "/")) for name in SYSCTLS}
    return {name: re.sub(r"\s+", " ", value) for name, value in values.items() if value is not None}


def detect_features(root: Path = Path("/")) -> KernelFeatures:
    """
    Ask the kernel what tracing can build on.
    """
    sources = root / "sys/bus/event_source/devices"
    return KernelFeatures(
        has_btf=(root / "sys/kernel/btf/vmlinux").exists(),
        has_uprobes=(sources / "uprobe").exists(),
        has_kprobes=(sources / "kprobe").exists() if sources.exists() else None,
        is_tracefs_mounted=find_tracefs(root) != "",
        lockdown=_lockdown(_read(root / "sys/kernel/security/lockdown")),
    )


def find_tracefs(root: Path = Path("/")) -> str:
    """
    Tell where tracefs is mounted, or "".

    It is open to root alone; another user's answer is in the list of mounts.
    """
    for place in ("sys/kernel/tracing", "sys/kernel/debug/tracing"):
        try:
            if (root / place / "events").is_dir():
                return f"/{place}"
        except PermissionError:
            if f" /{place} tracefs " in (_read(root / "proc/self/mounts") or ""):
                return f"/{place}"
    return ""


def collect_git(directory: Path) -> GitFacts:
    """
    Ask git about the clone that the lab runs from; no git or no clone is no error.
    """
    # Under sudo the clone belongs to somebody else, and git refuses to look at
    # it unless told on the command line that this is fine.
    git = ["git", "-c", "safe.directory=*", "-C", str(directory)]
    commit = _run([*git, "rev-parse", "HEAD"])
    if commit is None:
        return GitFacts(commit=None, is_dirty=None)
    changes = _run([*git, "status", "--porcelain", "--untracked-files=no"])
    return GitFacts(commit=commit.strip(), is_dirty=None if changes is None else bool(changes))


def _run(argv: list[str]) -> str | None:
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=_GIT_DEADLINE_S,
            check=False,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _distribution(root: Path) -> str:
    match = re.search(
        r'^PRETTY_NAME="?([^"\n]*)', _read(root / "etc/os-release") or "", re.MULTILINE
    )
    return match[1] if match else "unknown"


def _cpu_model(cpuinfo: str) -> str | None:
    match = re.search(r"^(?:model name|Model|CPU part)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return match[1].strip() if match else None


def _lockdown(text: str | None) -> str | None:
    match = re.search(r"\[(\w+)\]", text or "")
    return match[1] if match else None
