"""
What the kernel holds for tracers: BPF objects, and which process holds each.

bpf(2) counts objects of all processes; a process's fdinfo names those it holds.
"""

import ctypes
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

# bpf(2) by architecture; newer ones share a table (include/uapi/asm-generic/unistd.h).
_CALLS: Final = {"x86_64": 321, "i686": 357, "armv7l": 386, "ppc64le": 361, "s390x": 351}
_NEW_CALL: Final = 280
_NEXT_ID: Final = {"program": 11, "map": 12, "link": 31}
"""Commands of bpf(2) that give the next id: BPF_PROG_GET_NEXT_ID and its like."""
_FDINFO_KEYS: Final = {"prog_id": "program", "map_id": "map", "link_id": "link"}


class _Ids(ctypes.Structure):
    """The part of `union bpf_attr` that these commands use."""

    _fields_ = (
        ("start_id", ctypes.c_uint32),
        ("next_id", ctypes.c_uint32),
        ("open_flags", ctypes.c_uint32),
    )


def list_bpf(kind: str) -> Iterator[int]:
    """
    Ids of all objects of a kind: "program", "map" or "link". None where the kernel refuses.
    """
    call = _CALLS.get(platform.machine(), _NEW_CALL)
    libc = ctypes.CDLL(None, use_errno=True)
    ids = _Ids()
    while libc.syscall(call, _NEXT_ID[kind], ctypes.byref(ids), ctypes.sizeof(ids)) == 0:
        yield ids.next_id
        ids.start_id = ids.next_id


def find_holders() -> Mapping[tuple[str, int], int]:
    """
    The process that holds each BPF object, by kind and id.
    """
    holders = {}
    for path in Path("/proc").glob("[0-9]*/fdinfo/*"):
        try:
            text = path.read_text()
        except OSError:
            continue  # the process, or its descriptor, is gone
        for line in text.splitlines():
            key, _, value = line.partition(":")
            if key in _FDINFO_KEYS and value.strip().isdecimal():
                holders[_FDINFO_KEYS[key], int(value)] = int(path.parts[2])
    return holders
