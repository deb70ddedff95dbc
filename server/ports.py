"""
Who holds a UDP port, for the one error that everybody meets.
"""

from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_LOCAL_ADDRESS_COLUMN: Final = 1
_INODE_COLUMN: Final = 9


def find_holder(port: int, *, proc: Path = _PROC) -> str | None:
    """
    Name a process that has a UDP port bound: "PID 123 (iperf3)".

    None when it cannot be seen: another user's, or in another container.
    """
    inodes = _find_inodes(port, proc)
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for process in proc.iterdir():
        if not process.name.isdigit():
            continue
        try:
            if any(str(fd.readlink()) in wanted for fd in (process / "fd").iterdir()):
                name = (process / "comm").read_text().strip()
                return f"PID {process.name} ({name})"
        except OSError:
            continue  # it ended meanwhile, or is not ours to look at
    return None


def _find_inodes(port: int, proc: Path) -> set[str]:
    inodes = set()
    for name in ("udp", "udp6"):
        try:
            lines = (proc / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue  # IPv6 is off
        for line in lines:
            columns = line.split()
            if int(columns[_LOCAL_ADDRESS_COLUMN].rpartition(":")[2], 16) == port:
                inodes.add(columns[_INODE_COLUMN])
    return inodes
