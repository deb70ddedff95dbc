"""
Asks the kernel whether it can probe: opens a probe event, and closes it at once.

`bpftrace --info` says "kprobe: yes" on kernels that have none, and a listing of
/sys says nothing about rights. perf_event_open(2) is what bpftrace itself ends
up calling. Nothing is written to tracefs, and no running program is touched:
the user probe is asked for in a file that nobody maps.
"""

import ctypes
import errno
import os
import platform
import struct
import tempfile
from pathlib import Path

_SYSCALL_NUMBERS = {"x86_64": 298, "aarch64": 241}  # perf_event_open; asm/unistd_64.h, asm-generic
_ATTR_BYTES = 112  # PERF_ATTR_SIZE_VER5, linux/perf_event.h
_CONFIG_OFFSET = 56  # of config1 and config2 in struct perf_event_attr
_FLAG_CLOEXEC = 8  # PERF_FLAG_FD_CLOEXEC
_ANY_PROCESS, _FIRST_CPU, _NO_GROUP = -1, 0, -1
_SOURCES = Path("/sys/bus/event_source/devices")
_REFUSALS = {errno.EACCES, errno.EPERM}


def detect_uprobes() -> bool | None:
    """
    Whether a user probe can be opened; None when this user may not ask.
    """
    with tempfile.NamedTemporaryFile(prefix="quiclab-uprobe-") as file:
        file.write(bytes(4096))
        file.flush()
        return _can_open("uprobe", file.name, offset=16)


def detect_kprobes() -> bool | None:
    """
    Whether a kernel probe can be opened; None when this user may not ask.
    """
    return _can_open("kprobe", "vfs_read", offset=0)


def _can_open(source: str, where: str, *, offset: int) -> bool | None:
    try:
        kind = int((_SOURCES / source / "type").read_text())
    except (OSError, ValueError):
        return False if _SOURCES.is_dir() else None
    number = _SYSCALL_NUMBERS.get(platform.machine())
    if number is None:
        return True  # the kernel lists the source, and asking further is not known here
    text = ctypes.create_string_buffer(where.encode())
    attributes = bytearray(_ATTR_BYTES)
    struct.pack_into("=II", attributes, 0, kind, _ATTR_BYTES)
    struct.pack_into("=QQ", attributes, _CONFIG_OFFSET, ctypes.addressof(text), offset)
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(
        ctypes.c_long(number),
        (ctypes.c_char * _ATTR_BYTES).from_buffer(attributes),
        ctypes.c_int(_ANY_PROCESS),
        ctypes.c_int(_FIRST_CPU),
        ctypes.c_int(_NO_GROUP),
        ctypes.c_ulong(_FLAG_CLOEXEC),
    )
    if fd < 0:
        return None if ctypes.get_errno() in _REFUSALS else False
    os.close(fd)
    return True
