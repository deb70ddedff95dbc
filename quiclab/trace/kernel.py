"""
Ask the kernel which kinds of probes it has.

`bpftrace --info` lists features of its build and of the kernel's BTF; it says
"kprobe: yes" on kernels without kprobes. The kernel's own files tell.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TRACEFS_PLACES: Final = ("sys/kernel/tracing", "sys/kernel/debug/tracing")


@dataclass(frozen=True, slots=True)
class KernelProbes:
    """
    Kinds of probes that a kernel has; None where it could not be asked.

    Args:
        has_kprobes: It can put a probe on its own functions.
        has_fentry: It can attach to functions by BTF and trampolines (fentry, fexit).
        has_uprobes: It can put a probe on programs' functions, which USDT needs.
        has_btf: It describes its own types.
    """

    has_kprobes: bool | None = None
    has_fentry: bool | None = None
    has_uprobes: bool | None = None
    has_btf: bool | None = None

    def has(self, provider: str) -> bool | None:
        """Tell whether a bpftrace provider works here; None when unknown."""
        return {
            "kprobe": self.has_kprobes,
            "kretprobe": self.has_kprobes,
            "fentry": self.has_fentry,
            "fexit": self.has_fentry,
            "uprobe": self.has_uprobes,
            "uretprobe": self.has_uprobes,
            "usdt": self.has_uprobes,
        }.get(provider)


def detect_kernel_probes(root: Path = Path("/")) -> KernelProbes:
    """
    Ask the running kernel.

    kprobes and uprobes register a source of events each when they are built in
    (Documentation/ABI/testing/sysfs-bus-event_source-devices). fentry needs BTF
    and functions that can be traced, whose list must be readable.

    Args:
        root: Where the kernel's file systems are seen, for tests.
    """
    sources = root / "sys/bus/event_source/devices"
    has_btf = (root / "sys/kernel/btf/vmlinux").exists()
    is_answering = sources.is_dir()
    return KernelProbes(
        has_kprobes=(sources / "kprobe").exists() if is_answering else None,
        has_uprobes=(sources / "uprobe").exists() if is_answering else None,
        has_fentry=_detect_fentry(root) if has_btf else False,
        has_btf=has_btf,
    )


def _detect_fentry(root: Path) -> bool | None:
    for place in _TRACEFS_PLACES:
        folder = root / place
        try:
            if not folder.is_dir() or not any(folder.iterdir()):
                continue  # tracefs is not mounted here
            with (folder / "available_filter_functions").open("rb") as handle:
                return bool(handle.read(1))
        except PermissionError:
            return None  # open to root alone; the tracer may be root where this user is not
        except OSError:
            return False
    return None
