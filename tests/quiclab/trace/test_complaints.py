"""bpftrace's stderr, with lines that real versions wrote."""

import pytest

from quiclab.trace.complaints import Complaint, parse_complaints

MEMLOCK = (
    "ERROR: Unknown error -1: couldn't set RLIMIT_MEMLOCK for bpftrace. If your program is "
    'not loading, you can try "ulimit -l 8192" to fix the problem\n'
)
MISSING_TRACEPOINT = """\
stdin:1:37-73: WARNING: tracepoint not found: syscalls:sys_enter_nonono
tracepoint:syscalls:sys_enter_write,tracepoint:syscalls:sys_enter_nonono { @=count() }
                                    ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
"""
MISSING_FILE = "/x/udp-syscall.bt:36-38: ERROR: usdt target file '/nowhere' does not exist\n"
STYLE = """\
/x/udp-syscall.bt:51:3-37: WARNING: Return value discarded.
\t\tdelete(@tx_start[pid, tid, arg0]);
\t\t~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
"""


@pytest.mark.parametrize("stderr", [MEMLOCK, MEMLOCK.replace("ERROR", "WARNING"), STYLE])
def test_noise_is_no_fault(stderr: str) -> None:
    """The memlock line and remarks on style never count against a run."""
    (complaint,) = parse_complaints(stderr)
    assert not complaint.is_fault


def test_a_missing_tracepoint_is_a_fault_though_only_warned_of() -> None:
    """0.17 and 0.23 count a missing tracepoint as attached and merely warn: it is a fault."""
    assert (
        Complaint("tracepoint not found: syscalls:sys_enter_nonono", is_fault=True),
    ) == parse_complaints(MISSING_TRACEPOINT)


def test_errors_are_faults_without_their_place() -> None:
    """An error is a fault; where in the script it stands is left out."""
    assert (
        Complaint("usdt target file '/nowhere' does not exist", is_fault=True),
    ) == parse_complaints(MISSING_FILE)


def test_equal_complaints_are_one() -> None:
    """The same words about four probes are one complaint."""
    assert 1 == len(parse_complaints(MISSING_FILE * 4))


def test_other_text_is_no_complaint() -> None:
    """Text that complains of nothing is left out."""
    assert () == parse_complaints("Attaching 6 probes...\n\n~~~~\nHINT: try this\n")
