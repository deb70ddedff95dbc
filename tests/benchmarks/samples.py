"""
Runs, pairs and documents that were never measured.
"""

from datetime import UTC, datetime

from benchmarks.cases import Case, Wishes, make_cases
from benchmarks.hits_report import AddedCost, HitCost, HitsReport, LoadHits
from benchmarks.results import (
    CalibrationFacts,
    CaseResult,
    Document,
    PairResult,
    RunResult,
)
from benchmarks.sides import Outcome
from quiclab.machine.host import GitFacts, collect_host


def find_case(name: str) -> Case:
    """One of the comparisons."""
    return next(case for case in make_cases(Wishes()) if case.name == name)


def make_outcome(
    *, cpu_s_per_gb: float = 20.0, seconds: float = 2.0, foreign_ns: int = 0
) -> Outcome:
    """A run of 100 MB."""
    return Outcome(
        total_bytes=100_000_000,
        seconds=seconds,
        server_ns=int(cpu_s_per_gb * 1e8),
        worker_ns=(int(cpu_s_per_gb * 1e8),),
        load_ns=300_000_000,
        load_received_datagrams=84_000,
        load_sent_datagrams=4_200,
        load_dropped_datagrams=0,
        foreign_ns=foreign_ns,
        steal_ns=0,
        lasted_s=seconds,
        report={"perf": {"answer_byte_count": 100_000_000}},
    )


def make_pair(a: Outcome, b: Outcome, *, value: float) -> PairResult:
    """A pair with a figure."""
    return PairResult(order="AB", a=RunResult.of(a), b=RunResult.of(b), value=value)


def make_case_result(name: str = "stock-download-1200", *, foreign_ns: int = 0) -> CaseResult:
    """A comparison of three pairs: ×2, ×3, ×4."""
    pairs = [
        make_pair(
            make_outcome(cpu_s_per_gb=20.0 * ratio, seconds=20.0 * ratio / 10),
            make_outcome(foreign_ns=foreign_ns),
            value=ratio,
        )
        for ratio in (2.0, 4.0, 3.0)
    ]
    return CaseResult.of(find_case(name), pairs)


def make_document(*cases: CaseResult) -> Document:
    """A document of this machine."""
    return Document(
        state="done",
        started_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        ended_at=datetime(2026, 1, 2, 3, 5, 5, tzinfo=UTC),
        asked={"pairs": 3},
        host=collect_host(),
        git=GitFacts(commit=None, is_dirty=None),
        python_build="main GCC",
        versions={"aioquic": "1.7.2"},
        calibration_before=CalibrationFacts(loop_ns=75.0, aead_mb_per_s=1500.0),
        calibration_after=CalibrationFacts(loop_ns=80.0, aead_mb_per_s=1400.0),
        cases=cases,
    )


def make_hits_report() -> HitsReport:
    """One script, one load."""
    return HitsReport(
        bpftrace_version="0.17.0",
        kernel="6.18.0",
        architecture="x86_64",
        costs=(HitCost(script="udp-syscall", name="mmsg start_send", ns=800.0, least_ns=790.0),),
        loads=(
            LoadHits(
                script="udp-syscall",
                direction="download",
                datagram_bytes=1200,
                datagram_count=1000,
                hit_count=40,
                hit_ns=32_000.0,
                total_bytes=1_150_000,
            ),
        ),
        added=(
            AddedCost(
                script="udp-syscall",
                direction="download",
                datagram_bytes=1200,
                payload_bytes=1150.0,
                untraced_ns=20_000.0,
                added_ns=40.0,
                error_ns=5.0,
            ),
        ),
    )
