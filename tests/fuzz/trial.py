"""
A whole trial: two servers, harm of every kind, good clients meanwhile, and what is left after.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from server.exits import ExitStatus
from tests.fuzz.campaign import NOTHING, Amounts, Campaign
from tests.fuzz.target import (
    OPEN_TO_ALL,
    GoodClients,
    Health,
    Target,
    TargetError,
    count_faults,
    load,
    start_target,
)

# 156 MiB were measured, with 80,000 connections after one another. Nothing of these stays
# (tests/fuzz/test_drill.py); it is what the allocator keeps of the fullest moment.
MOST_GROWTH_BYTES: Final = 256 * 1024 * 1024
_MOST_IDLE_SHARE: Final = 0.02
_MEBIBYTE: Final = 1024 * 1024


@dataclass
class Findings:
    """
    What one server went through, and how it stood afterwards.
    """

    name: str
    campaign: Campaign
    good: GoodClients
    before: Health
    after: Health
    total: dict[str, Any] = field(default_factory=dict)
    dropped_count: int = 0
    idle_share: float = 0.0
    errors: str = ""
    status: int = 0
    complaints: list[str] = field(default_factory=list)

    @property
    def received_count(self) -> int:
        """Hostile datagrams that the server counted on receipt, at least."""
        read_count: int = self.total["rx"]["datagram_read_count"]
        return read_count - self.campaign.target.good_packet_count

    @property
    def sent_count(self) -> int:
        """Hostile datagrams that were sent."""
        return sum(self.campaign.sent_counts.values()) + self.campaign.own_count

    def judge(self) -> Iterator[str]:
        """
        Say what is wrong, one line each.
        """
        yield from self.complaints
        yield from (f"kept for replay: {path}" for path in self.campaign.failures)
        yield from (f"a good client: {words}" for words in self.good.complaints)
        if not self.good.served_count:
            yield "no good client was served"
        if fault_count := count_faults(self.total):
            yield f"{fault_count} faults"
        read_count = self.total["rx"]["datagram_read_count"]
        if read_count + self.dropped_count < self.sent_count:
            yield f"{self.sent_count:,} datagrams were sent, {read_count:,} were read"
        if self.errors:
            yield f"words on stderr: {self.errors}"
        if half_open_count := self.total["admission"]["half_open_count"]:
            yield f"{half_open_count} connections count as half open and none is open"
        if self.total["perf"]["content_error_count"] > 0 and not self.campaign.connection_count:
            yield "uploads of good clients arrived changed"
        if self.status != ExitStatus.OK:
            yield f"it ended with status {self.status}"
        yield from self._judge_process()

    def _judge_process(self) -> Iterator[str]:
        if self.before.descriptor_count != self.after.descriptor_count:
            yield (
                f"{self.before.descriptor_count} descriptors before, "
                f"{self.after.descriptor_count} after"
            )
        if self.before.thread_count != self.after.thread_count:
            yield f"{self.before.thread_count} threads before, {self.after.thread_count} after"
        if self.after.peak_rss_bytes - self.before.rss_bytes > MOST_GROWTH_BYTES:
            yield f"memory grew to {self.after.peak_rss_bytes / _MEBIBYTE:.0f} MiB"
        if self.idle_share > _MOST_IDLE_SHARE:
            yield f"an idle server takes {self.idle_share:.1%} of a core"

    def describe(self) -> Iterator[str]:
        """
        Tell the figures, one line each.
        """
        kinds = ", ".join(f"{kind} {n:,}" for kind, n in self.campaign.sent_counts.items())
        yield (
            f"{self.name}: {self.sent_count:,} datagrams of hostile peers ({kinds}; what their "
            f"connections needed besides {self.campaign.own_count:,})"
        )
        yield (
            f"  counted on receipt at least {self.received_count:,}; dropped by the kernel "
            f"{self.dropped_count:,}; handshakes of hostile clients "
            f"{self.campaign.connection_count:,}"
        )
        rejected = self.total["rx"]["datagram_dropped_counts"]
        yield "  rejected: " + ", ".join(f"{cause} {n:,}" for cause, n in sorted(rejected.items()))
        connections, admission = self.total["connections"], self.total["admission"]
        yield (
            f"  connections opened {connections['opened_count']:,}, "
            f"open {connections['open_count']}; faults {count_faults(self.total)}; {admission}"
        )
        yield (
            f"  good clients served {self.good.served_count:,}, slowest "
            f"{self.good.slowest_load_s:.2f} s; slowest answer of the control socket "
            f"{self.campaign.target.slowest_answer_s * 1000:.0f} ms"
        )
        yield (
            f"  RSS {self.before.rss_bytes / _MEBIBYTE:.0f} MiB before, "
            f"{self.after.rss_bytes / _MEBIBYTE:.0f} after, peak "
            f"{self.after.peak_rss_bytes / _MEBIBYTE:.0f}; descriptors "
            f"{self.before.descriptor_count} and {self.after.descriptor_count}; idle CPU "
            f"{self.idle_share:.2%}; status {self.status}"
        )


def try_server(
    name: str,
    options: tuple[str, ...],
    amounts: Amounts,
    *,
    seed: int,
    directory: Path,
    idle_timeout_s: int,
    say: Callable[[str], None] = lambda _: None,
) -> Findings:
    """
    Start a server, do harm to it, leave it alone, and look at what is left.
    """
    with start_target(directory / name, *options, idle_timeout_s=idle_timeout_s) as target:
        campaign = Campaign(target, seed, directory / "failures")
        before = target.health()
        good = GoodClients(target)
        findings = Findings(name, campaign, good, before, before)
        try:
            with good:
                campaign.run(amounts, say=say)
            _look_afterwards(target, findings)
        except TargetError as error:
            findings.complaints.append(str(error))
            findings.total = findings.total or _ZEROS
        findings.errors = target.errors
        findings.status = target.server.end()
    return findings


def _look_afterwards(target: Target, findings: Findings) -> None:
    target.await_empty()
    load(target)  # a newcomer is still welcome
    findings.total = target.await_empty()
    findings.dropped_count = target.look_at_socket().dropped_count
    findings.idle_share = target.idle_cpu_share()
    findings.after = target.health()


_ZEROS: Final[dict[str, Any]] = {
    "rx": {"datagram_read_count": 0, "datagram_dropped_counts": {}},
    "connections": {"opened_count": 0, "open_count": 0},
    "admission": {"half_open_count": 0},
    "perf": {"content_error_count": 0},
}


def try_all(
    amounts: Amounts,
    *,
    seed: int,
    directory: Path,
    idle_timeout_s: int = 5,
    say: Callable[[str], None] = lambda _: None,
) -> list[Findings]:
    """
    Try a server that lets everybody in as far as they get, and one as it is by default.

    The first shows that nothing a peer can write hurts; the second that its bounds hold
    when newcomers flood it.
    """
    inward = replace(amounts, newcomers=0)
    flood = replace(NOTHING, newcomers=amounts.newcomers)
    try_one = partial(
        try_server, seed=seed, directory=directory, idle_timeout_s=idle_timeout_s, say=say
    )
    return [try_one("open-to-all", OPEN_TO_ALL, inward), try_one("as-by-default", (), flood)]
