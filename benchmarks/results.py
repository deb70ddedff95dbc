"""
What a measurement leaves: a document with a schema number.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from benchmarks.cases import Case
from benchmarks.hits_report import HitsReport
from benchmarks.measure import Calibration
from benchmarks.pairs import Figure, Order, Spread, Verdict, is_disturbed
from benchmarks.sides import Outcome, Side, Work
from quiclab.artifacts import ArtifactError
from quiclab.comparison import choose_quiet
from quiclab.machine.host import GitFacts, Host

SCHEMA: Final = 1
SCHEMA_HISTORY: Final[Mapping[int, str]] = {
    1: "first form",
}
"""What changed with each schema number; a reader of old documents starts here."""

DOCUMENT: Final = "bench.json"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RunResult(_Model):
    """
    One run of one side.
    """

    cpu_s_per_gb: float
    """CPU-seconds of the server for 10^9 bytes of stream payload."""
    mb_per_s: float
    """Goodput, 10^6 bytes a second; 0 for the floor, which no clock times."""
    load_cpu_s_per_gb: float
    seconds: float
    server_busy: float
    """Parts of one core that the server's processes used; 2 workers may use 2."""
    load_busy: float
    worker_shares: tuple[float, ...]
    """How the server's CPU was spread over its processes."""
    received_datagrams: int
    """By the load; of an upload, acknowledgements."""
    sent_datagrams: int
    """By the load; of a download, acknowledgements."""
    dropped_datagrams: int
    """By the load's sockets, which had no room."""
    steal: float
    foreign: float
    counters: Mapping[str, Any] = Field(default_factory=dict)
    """The server's own, over the same time."""

    @classmethod
    def of(cls, outcome: Outcome) -> Self:
        """Turn times into rates."""
        seconds = outcome.seconds or outcome.server_ns / 1e9
        whole_ns = max(1, outcome.server_ns)
        return cls(
            cpu_s_per_gb=outcome.cpu_s_per_gb,
            mb_per_s=outcome.mb_per_s,
            load_cpu_s_per_gb=outcome.load_ns / outcome.total_bytes,
            seconds=outcome.seconds,
            server_busy=outcome.server_ns / 1e9 / seconds,
            load_busy=outcome.load_ns / 1e9 / seconds,
            worker_shares=tuple(each / whole_ns for each in outcome.worker_ns),
            received_datagrams=outcome.load_received_datagrams,
            sent_datagrams=outcome.load_sent_datagrams,
            dropped_datagrams=outcome.load_dropped_datagrams,
            steal=outcome.steal,
            foreign=outcome.foreign,
            counters=outcome.report,
        )


class PairResult(_Model):
    """
    A run of each side, one right after the other.
    """

    order: Order
    a: RunResult
    b: RunResult
    value: float
    """The comparison's figure for this pair."""
    discarded_a: tuple[RunResult, ...] = ()
    discarded_b: tuple[RunResult, ...] = ()
    """Runs in whose place another was made, since they were disturbed."""

    @property
    def is_disturbed(self) -> bool:
        """Whether one of the runs stayed disturbed."""
        return is_disturbed(self.a) or is_disturbed(self.b)


class SideFacts(_Model):
    """What stood on a side, and what it moved."""

    label: str
    kind: str
    words: tuple[str, ...]
    is_pinned: bool
    is_traced: bool
    direction: str
    total_bytes: int
    datagram_bytes: int
    connection_count: int
    stream_count: int
    answer_every: int

    @classmethod
    def of(cls, side: Side, work: Work) -> Self:
        """Keep both."""
        return cls(**asdict(side), **asdict(work))


class SpreadResult(_Model):
    """Many values as five (`Spread`, kept)."""

    least: float
    lower_quartile: float
    median: float
    upper_quartile: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Sum values up."""
        return cls(**asdict(Spread.of(values)))


class CaseResult(_Model):
    """
    A comparison that was made, or could not be.
    """

    name: str
    question: str
    figure: Figure
    a: SideFacts
    b: SideFacts
    pairs: tuple[PairResult, ...] = ()
    value: SpreadResult | None = None
    """Of the pairs that count."""
    counted_pair_count: int = 0
    is_reliable: bool = False
    """False when more than half of the pairs stayed disturbed."""
    at_least: float | None = None
    aim: float | None = None
    verdict: Verdict = ""
    failure: str = ""
    """Why there is no figure; pairs that were measured before are kept."""

    @classmethod
    def of(cls, case: Case, pairs: Sequence[PairResult], *, failure: str = "") -> Self:
        """Sum up what was measured."""
        facts: dict[str, Any] = {
            "name": case.name,
            "question": case.question,
            "figure": case.figure,
            "a": SideFacts.of(case.a, case.a_work),
            "b": SideFacts.of(case.b, case.b_work),
            "pairs": tuple(pairs),
            "at_least": case.goal.at_least,
            "aim": case.goal.aim,
            "failure": failure,
        }
        if failure or not pairs:
            return cls(**facts)
        counted, is_reliable = choose_quiet([pair.is_disturbed for pair in pairs])
        value = SpreadResult.of([pairs[index].value for index in counted])
        return cls(
            **facts,
            value=value,
            counted_pair_count=len(counted),
            is_reliable=is_reliable,
            verdict=case.goal.judge(value.median, is_more_better=case.figure.is_more_better),
        )

    @property
    def counted_pairs(self) -> list[PairResult]:
        """Those that the figure is made of."""
        counted, _ = choose_quiet([pair.is_disturbed for pair in self.pairs])
        return [self.pairs[index] for index in counted]


class CalibrationFacts(_Model):
    """How fast the machine is, whatever the servers do (`Calibration`, kept)."""

    loop_ns: float
    aead_mb_per_s: float

    @classmethod
    def of(cls, calibration: Calibration) -> Self:
        """Keep it."""
        return cls(**asdict(calibration))


class Document(_Model):
    """
    One call of `invoke bench`.
    """

    schema_number: int = Field(
        default=SCHEMA,
        serialization_alias="schema",
        validation_alias=AliasChoices("schema", "schema_number"),
    )
    state: Literal["done", "interrupted"]
    label: str = ""
    started_at: datetime
    ended_at: datetime
    asked: Mapping[str, Any]
    host: Host
    git: GitFacts
    python_build: str
    versions: Mapping[str, str]
    calibration_before: CalibrationFacts
    calibration_after: CalibrationFacts | None
    """None when the measurement was interrupted, or has not ended yet."""
    cases: tuple[CaseResult, ...]
    hits: HitsReport | None = None
    """What traced hits cost, when that was asked for."""


def render_document(document: Document) -> dict[str, Any]:
    """
    A document as JSON's own types.
    """
    return document.model_dump(mode="json", by_alias=True)


def load_document(path: Path) -> Document:
    """
    Read what a measurement left.

    Raises:
        ArtifactError: It is damaged, or newer than this code.
    """
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}") from error
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if not isinstance(schema, int) or not 1 <= schema <= SCHEMA:
        raise ArtifactError(f"{path} has schema {schema}, and this quiclab reads up to {SCHEMA}")
    try:
        return Document.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ArtifactError(f"{path}: {where}: {first['msg']}; measure again") from error
