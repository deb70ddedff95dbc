"""
Starts a program whose sendmmsg and recvmmsg are refused, as some seccomp profiles do.

    python refuse_mmsg.py ENOSYS|EPERM PROGRAM ARGUMENTS...
"""

import ctypes
import errno
import os
import platform
import struct
import sys

_PR_SET_NO_NEW_PRIVS = 38  # linux/prctl.h
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_SECCOMP_RET_ALLOW = 0x7FFF0000  # linux/seccomp.h
_SECCOMP_RET_ERRNO = 0x00050000
_LOAD_NUMBER = 0x20  # BPF_LD | BPF_W | BPF_ABS, offset 0: struct seccomp_data.nr
_JUMP_IF_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K
# sendmmsg, recvmmsg: asm/unistd.h
_NUMBERS = {"x86_64": (307, 299), "aarch64": (269, 243)}


def main() -> None:
    """
    Install the filter, which survives exec, and become the program.
    """
    refusal = getattr(errno, sys.argv[1])
    send, receive = _NUMBERS[platform.machine()]
    instructions = [
        (_LOAD_NUMBER, 0, 0, 0),
        (_JUMP_IF_EQUAL, 2, 0, send),
        (_JUMP_IF_EQUAL, 1, 0, receive),
        (_RETURN, 0, 0, _SECCOMP_RET_ALLOW),
        (_RETURN, 0, 0, _SECCOMP_RET_ERRNO | refusal),
    ]
    code = b"".join(struct.pack("=HBBI", *one) for one in instructions)
    kept = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("=HxxxxxxQ", len(instructions), ctypes.addressof(kept))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0):
        sys.exit(f"refuse_mmsg: seccomp: {os.strerror(ctypes.get_errno())}")
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
