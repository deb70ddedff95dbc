"""
A run's result in lines for people: pure, label first, units always, folder last.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quiclab.accounting import Accounts
from quiclab.answers import ClientResult
from quiclab.artifacts import Manifest
from quiclab.grants import Grant
from quiclab.histogram import LABEL_WIDTH, Histogram, render_bar, render_histogram
from quiclab.observer import Phase
from quiclab.scenario import Scenario
from quiclab.trace.events import MapSnapshot, Stats, Trace
from quiclab.trace.script import MapNote, Script
from quiclab.trace.text import render_maps
from quiclab.trace.witness import MapComparison, render_comparison
from quiclab.verdict import Verdict
from quiclab.wording import render_count, render_load

if TYPE_CHECKING:
    from quiclab.experiment import RunResult

LABEL_COLUMN: Final = 10
_BAR_WIDTH: Final = 36
_ROW_WIDTH: Final = 71  # columns of a bucket's row, under whose end a map's total stands
_LEAST_SHOWN_PERCENT: Final = 0.05  # what would be rounded to 0 reads "< 0.1"
_MOST_LINES: Final = 24  # of a map that is no histogram; the rest stands in trace.txt


_PHASE_WORDS: Final = {
    "start": "interpreter, imports; after the first run what the one before still printed",
    "set-up": "engine, image, packages",
    Phase.PREFLIGHT: "this machine's facts, what dead runs left",
    Phase.PLACE: "network and containers, or a folder",
    Phase.SERVER: "until it answers",
    Phase.CLIENT: "until it answers; the tracers attach beside it",
    Phase.TRACER: "what attaching takes longer",
    Phase.LOAD: "until the client has ended",
    Phase.SETTLE: "until connections are closed and rings empty",
    Phase.COLLECT: "bpftrace detaches and prints its maps; the rest beside it",
    Phase.REMOVE: "what the run made",
    Phase.WRITE: "the run folder",
}


@dataclass(frozen=True, slots=True)
class Line:
    """
    One fact.

    Args:
        label: First column; "" continues the line before.
        text: The fact.
        tone: "good", "doubtful" or "bad" colours the first word; "" does not.
        is_preformatted: A table row: never wrapped, and without a label column.
    """

    label: str
    text: str
    tone: str = ""
    is_preformatted: bool = False


def render_result(
    result: "RunResult", scenario: Scenario, scripts: Sequence[Script], *, is_verbose: bool
) -> Iterator[Line]:
    """
    Everything worth a look, in reading order; the verdict near the end, and first if it is bad.
    """
    is_measured = result.client is not None or any(each.maps for each in result.traces.values())
    if result.verdict.word != "ok" and is_measured:
        yield _verdict_line(result.verdict)  # of a run without figures it is all there is to say
    if result.client is not None:
        yield Line("load", render_load(scenario, ClientResult.read(result.client)))
    for script in scripts:
        trace = result.traces.get(script.name)
        # Before a load nothing could be counted: maps that do not exist say nothing then.
        if trace is not None and (trace.maps or result.client is not None):
            yield from render_trace(trace, script, direction=scenario.direction)
    yield Line("", "")
    yield from render_grants(result.manifest.granted, is_verbose=is_verbose)
    manifest = result.manifest
    if manifest.bottleneck is not None:
        yield Line("limit", manifest.bottleneck.text)
    if manifest.verify:
        text = render_comparison(
            [MapComparison(**each) for each in manifest.verify], result.recording
        )
        yield Line("verify", text)
    # Without a load there is nothing to balance: 0 = 0 would read like praise.
    if manifest.accounts is not None and result.client is not None:
        yield from render_accounts(manifest.accounts, is_verbose=is_verbose)
    if is_verbose:
        yield from render_times(manifest)
    yield from render_verdict(result.verdict)


def render_times(manifest: Manifest) -> Iterator[Line]:
    """
    Where the seconds went, phase by phase, and how many of them were not the load.
    """
    timing = manifest.timing
    if timing is None:
        return
    for name, took_s in manifest.durations_s.items():
        text = f"{name:<10} {took_s:7.3f} s  {_PHASE_WORDS.get(name, '')}".rstrip()
        if name == Phase.LOAD and timing.load_s is not None:
            text += f"; the load itself {timing.load_s:.3f} s"
        yield Line("time", text)
    yield Line("time", f"{'total':<10} {timing.total_s:7.3f} s  until the manifest was written")
    yield Line("time", f"{'beyond':<10} {timing.beyond_load_s:7.3f} s  the total less the load")


def render_logs(directory: Path) -> Iterator[Line]:
    """
    What server, client and tracers wrote to stderr, each line under its role.
    """
    for path in sorted((directory / "logs").glob("*.stderr")):
        for text in path.read_text(errors="replace").splitlines():
            if text.strip():
                yield Line(path.stem, text.rstrip())


def render_trace(trace: Trace, script: Script, *, direction: str) -> Iterator[Line]:
    """
    Every map of one tracer: first those the header explains, in its order.

    A map that must hold a fixed count and does is the verdict's affair.
    """
    maps = trace.maps
    notes = {note.name: note for note in script.maps}
    fixed = {check.map_name: check.expected_count for check in script.checks}
    for name in dict.fromkeys([*notes, *maps]):
        note = notes.get(name)
        snapshot = maps.get(name)
        if snapshot is not None and snapshot.kind == "hist" and not snapshot.event_count:
            snapshot = None  # its buckets were made, and nothing came into them
        if name in fixed and trace.event_count(name) == fixed[name]:
            continue
        if snapshot is not None:
            yield from render_map(snapshot, note)
        elif note is not None and note.is_filled_by(direction):
            yield from _heading(name, note, total="nothing recorded")


def render_map(snapshot: MapSnapshot, note: MapNote | None) -> Iterator[Line]:
    """
    One map: a heading with its meaning and its total, then its rows.
    """
    count = snapshot.event_count
    if not snapshot.is_keyed and not isinstance(snapshot.value, Histogram | Stats):
        total = f"{snapshot.value:,}" if isinstance(snapshot.value, int) else str(snapshot.value)
        yield from _heading(snapshot.name, note, total=total)
        return
    total = "" if count is None else render_count(count, "event")
    yield from _heading(snapshot.name, note, total=total)
    if not snapshot.is_keyed and isinstance(snapshot.value, Histogram):
        for text in render_rows(snapshot.value):
            yield _row(text)
        return
    lines = render_maps([snapshot]).rstrip().splitlines()
    for text in lines[:_MOST_LINES]:
        yield _row(text)
    if len(lines) > _MOST_LINES:
        yield _row(f"... and {len(lines) - _MOST_LINES} more lines in trace.txt")


def render_rows(histogram: Histogram) -> Iterator[str]:
    """
    Bucket, count, bar and share, a line each; labels as bpftrace writes them.
    """
    largest_count = max((bucket.count for bucket in histogram.buckets), default=0)
    count_width = max(8, len(f"{largest_count:,}"))
    labels = [line[:LABEL_WIDTH] for line in render_histogram(histogram).splitlines()]
    for label, bucket in zip(labels, histogram.buckets, strict=True):
        bar = render_bar(bucket.count, largest_count=largest_count, width=_BAR_WIDTH)
        share = 100 * bucket.count / histogram.total_count if histogram.total_count else 0.0
        # A bucket that is not empty never reads 0 %.
        shown = "< 1 %" if 0 < share < 1 else f"{share:3.0f} %"
        yield f"{label}{bucket.count:>{count_width},} |{bar}| {shown}"


def render_grants(grants: Sequence[Grant], *, is_verbose: bool) -> Iterator[Line]:
    """
    Asked and granted side by side; what fell short comes with its reason and its fix.

    What is simply as it was asked shares one line, unless verbose; so do plain facts.
    """
    as_asked, facts = [], []
    for grant in grants:
        if grant.is_short:
            because = f": {grant.reason}" if grant.reason else ""
            text = f"{grant.what}: {grant.granted} of {grant.asked} asked{because}"
            yield Line("short", text, tone="doubtful")
            if grant.fix:
                yield Line("", f"({grant.fix})")
        elif grant.is_fact and not is_verbose:
            facts.append(f"{grant.what} {grant.granted}")
        elif grant.is_fact:
            yield Line("in use", f"{grant.what}: {grant.granted}")
        elif grant.asked is None:
            yield Line("granted", f"{grant.what}: {grant.granted}, the default")
        elif grant.asked == grant.granted and not is_verbose:
            as_asked.append(f"{grant.what} {grant.granted}")
        else:
            yield Line("granted", f"{grant.what}: {grant.granted} for {grant.asked} asked")
    if as_asked:
        yield Line("granted", f"as asked: {', '.join(as_asked)}")
    if facts:
        yield Line("in use", "; ".join(facts))


def render_accounts(accounts: Accounts, *, is_verbose: bool) -> Iterator[Line]:
    """
    What tracing cost, and whether the accounts balance; each balance alone when verbose.
    """
    for name, script in accounts.scripts.items():
        if script.cost is not None and script.cost.hit_count:
            share = ""
            if accounts.server_cpu_s:
                percent = 100 * script.cost.cpu_s / accounts.server_cpu_s
                shown = f"{percent:.1f}" if percent >= _LEAST_SHOWN_PERCENT else "< 0.1"
                share = f", {shown} % of the server's {accounts.server_cpu_s:.2f} CPU-s"
            yield Line("probes", f"{name}: {script.cost.render()}{share}")
    if is_verbose:
        yield from _render_pairs(accounts)
        for balance in accounts.balances:
            yield Line("balance", balance.render())
    elif accounts.balances:
        kept_count = sum(balance.is_kept for balance in accounts.balances)
        count = render_count(len(accounts.balances), "balance")
        yield Line(
            "accounts", f"{kept_count:,} of {count} kept between {_render_parties(accounts)}"
        )


def _render_pairs(accounts: Accounts) -> Iterator[Line]:
    for name, script in accounts.scripts.items():
        for pair in script.pairs:
            text = (
                f"{name} {pair.starts}: {pair.start_count:,} starts, {pair.matched_count:,} ended, "
                f"{pair.outstanding_count:,} outstanding of at most {pair.key_limit:,}, "
                f"{render_count(pair.unmatched_count, 'end')} without a start"
            )
            yield Line("pairs", text)


def _render_parties(accounts: Accounts) -> str:
    """Name those whose figures are held against each other, as far as there are any."""
    words = {word for each in accounts.balances for word in (each.left, each.right)}
    parties = [
        party
        for party, word in (("tracer", "traced"), ("server", "server"), ("client", "client"))
        if any(each.startswith(word) for each in words)
    ]
    *others, last = parties
    return f"{', '.join(others)} and {last}" if others else last


def render_verdict(verdict: Verdict) -> Iterator[Line]:
    """
    The word and its reason, then every further finding, what can be done in brackets.
    """
    yield _verdict_line(verdict)
    told = {verdict.summary}
    for finding in verdict.findings:
        is_summed_up = verdict.summary.startswith(f"{finding.text} (and ")
        if finding.text not in told and not is_summed_up:
            yield Line("", f"{finding.severity}: {finding.text}")
        if finding.severity != "note" and finding.remedy and finding.remedy not in told:
            yield Line("", f"({finding.remedy})")
        told |= {finding.text, finding.remedy}


def _verdict_line(verdict: Verdict) -> Line:
    tone = {"ok": "good", "degraded": "doubtful", "invalid": "bad"}[verdict.word]
    return Line("verdict", f"{verdict.word}: {verdict.summary}", tone=tone)


def render_json(result: "RunResult") -> str:
    """
    One run as one line of JSON, for programs; ASCII alone, which every locale carries.
    """
    return json.dumps(
        {
            "folder": str(result.directory),
            "exit_code": int(result.exit_code),
            "manifest": result.manifest.model_dump(mode="json", by_alias=True),
            "client": result.client,
            "counters": result.counters,
        }
    )


def _heading(name: str, note: MapNote | None, *, total: str) -> Iterator[Line]:
    meaning = "" if note is None else note.label
    head = f"{name:<18} {meaning}".rstrip()
    yield Line("", "")
    yield _row(f"{head}  {total:>{max(0, _ROW_WIDTH - len(head) - 2)}}")


def _row(text: str) -> Line:
    return Line("", text.rstrip(), is_preformatted=True)
