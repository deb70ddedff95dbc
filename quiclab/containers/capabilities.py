"""
Linux capabilities: their names, and which of the wanted ones can be had. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from quiclab.errors import MachineError

# include/uapi/linux/capability.h, in the order of their bits (Linux 5.9 and later).
CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID",
    "SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW",
    "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT",
    "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD",
    "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG",
    "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE",
)  # fmt: skip

# What held these rights before they had a name of their own (Linux 5.8 and 5.9).
OLDER_NAMES = {"BPF": "SYS_ADMIN", "PERFMON": "SYS_ADMIN", "CHECKPOINT_RESTORE": "SYS_ADMIN"}


@dataclass(frozen=True, slots=True)
class CapabilityPlan:
    """
    What to ask the engine for, and what a reader must know about it.
    """

    granted: tuple[str, ...]
    notes: tuple[str, ...] = ()


def parse_capability_mask(text: str) -> frozenset[str]:
    """
    Read a mask as `/proc/PID/status` prints it; bits without a name here stay unnamed.

    Raises:
        ValueError: It is no hexadecimal number.
    """
    mask = int(text, 16)
    return frozenset(name for bit, name in enumerate(CAPABILITIES) if mask >> bit & 1)


def plan_capabilities(
    role: str,
    wanted: Sequence[str],
    *,
    optional: Sequence[str] = (),
    unknown: frozenset[str] = frozenset(),
    bounding_set: frozenset[str] | None = None,
) -> CapabilityPlan:
    """
    Choose the capabilities to ask for, so that the engine cannot refuse them without a name.

    Args:
        role: Whose they are, for the words.
        wanted: Names without `CAP_`.
        optional: Those of them that the role can work without.
        unknown: Names the engine does not know.
        bounding_set: What the engine can hand on; None when that is not known.

    Raises:
        MachineError: One that is needed cannot be had, and nothing stands in for it.
    """
    granted: list[str] = []
    notes: list[str] = []
    for name in wanted:
        is_unknown = name in unknown
        if not is_unknown and (bounding_set is None or name in bounding_set):
            granted.append(name)
            continue
        why = "the engine does not know it" if is_unknown else "the engine does not have it"
        older = OLDER_NAMES.get(name)
        if older is not None and (bounding_set is None or older in bounding_set):
            granted.append(older)
            notes.append(f"{role}: CAP_{older} in place of CAP_{name} ({why})")
        elif name in optional:
            notes.append(f"{role}: works without CAP_{name} ({why})")
        else:
            raise MachineError(
                f"the {role} needs CAP_{name} and {why}; give the engine that capability, "
                "or use --runner local"
            )
    return CapabilityPlan(tuple(dict.fromkeys(granted)), tuple(notes))


def find_missing_for_privileged(bounding_set: frozenset[str] | None) -> list[str]:
    """
    Name what keeps the engine from starting a privileged container; none when it is not known.
    """
    if bounding_set is None:
        return []
    return [name for name in CAPABILITIES if name not in bounding_set]
