"""
What bpftrace wrote to stderr: which lines are noise, and which say that something is missing.

Up to 0.23 a tracepoint that does not exist is only warned of: it is counted
among the attached probes and the exit status is 0. So stderr must be read.
"""

import re
from dataclasses import dataclass
from typing import Final

_LINE: Final = re.compile(
    r"(?:(?P<place>\S+:\d+(?::\d+)?-\d+): )?(?P<word>ERROR|WARNING|FATAL|BUG): (?P<text>.*)"
)
# Of no consequence: the lock limit is moot since kernel 5.11 counts BPF memory by cgroup
# (bpftrace asks anyway, and without CAP_SYS_RESOURCE is refused); the rest is about style.
_HARMLESS: Final = (
    "couldn't set RLIMIT_MEMLOCK",
    "Could not read functions from",
    "Return value discarded",
    "expanded from",
    "unstable feature",
    "is deprecated",
    "are deprecated",
    "Addrspace is not set",
    "Unnecessary cast",
    "being cast to type",
)
# Warnings that say a probe is missing.
_ATTACH_FAULTS: Final = (
    "not found",
    "No matches for",
    "not traceable",
    "ould not attach",
    "ouldn't attach",
    "Could not resolve symbol",
    "does not exist",
    "lost event count",
)


@dataclass(frozen=True, slots=True)
class Complaint:
    """
    One thing bpftrace complained of.

    Args:
        text: Its words, without the place in the script.
        is_fault: The trace lacks something because of it; otherwise worth a note at most.
    """

    text: str
    is_fault: bool


def parse_complaints(stderr: str) -> tuple[Complaint, ...]:
    """
    Read what bpftrace wrote to stderr; quoted lines of the script are left out.
    """
    complaints: dict[str, Complaint] = {}
    for line in stderr.splitlines():
        found = _LINE.search(line.strip())
        if found is None:
            continue
        text = found["text"].strip()
        is_warning = found["word"] == "WARNING"
        if any(words in text for words in _HARMLESS):
            is_fault = False
        else:
            is_fault = not is_warning or any(words in text for words in _ATTACH_FAULTS)
        complaints.setdefault(text, Complaint(text, is_fault))
    return tuple(complaints.values())
