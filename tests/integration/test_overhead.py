"""
`--overhead` on this machine: twins are untraced, and the kernel's counts are the hits.
"""

import io
import json
from pathlib import Path

import pytest

from quiclab.command.plan import plan_quartets, plan_scenarios
from quiclab.command.session import run_all
from quiclab.command.terminal import Terminal
from quiclab.command.words import TraceWords
from quiclab.errors import ExitCode
from quiclab.runner.process import ProcessRunner
from quiclab.trace.script import load_script
from tests.quiclab.runner.test_process import need_local_tracing


@pytest.mark.real
@pytest.mark.slow
def test_twins_are_untraced_and_the_timed_run_counts_every_hit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each send and receive call has a hit at its start and one at its end, no more, no less."""
    need_local_tracing()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    words = TraceWords(overhead=True, duration="300ms", label="short", runner="local")
    out = io.StringIO()
    code = run_all(
        [(each, [load_script(name) for name in each.scripts]) for each in plan_scenarios(words)],
        runner=ProcessRunner(),
        terminal=Terminal(out=out),
        output=tmp_path / "runs",
        quartet_count=plan_quartets(words),
    )
    # A busy machine or a busy client makes figures doubtful, which is not the matter here.
    assert code in {ExitCode.OK, ExitCode.DEGRADED, ExitCode.INCONCLUSIVE}, out.getvalue()
    manifests = [json.loads(p.read_text()) for p in (tmp_path / "runs").glob("2*/manifest.json")]
    by_label = {each["label"]: each for each in manifests}
    assert 5 == len(manifests)
    assert {"server", "client"} == set(by_label["untraced twin of short"]["roles"])
    assert by_label["untraced twin of short"]["overhead"] is None
    timed = by_label["short, timed by the kernel"]
    before, after = (
        sum(each["run_count"] for each in timed["costs"][when]["programs"]["tracer"])
        for when in ("before", "after")
    )
    run = next(run for run in timed["overhead"]["runs"] if run["side"] == "timed")
    assert after - before == run["costs"]["udp-syscall"]["hit_count"]
    folder = next((tmp_path / "runs").glob(f"*-{timed['run_id'].rpartition('-')[2]}"))
    total = json.loads((folder / "server.json").read_text())["total"]
    calls = total["tx"]["send_call_count"] + total["rx"]["receive_call_count"]
    assert 2 * calls == after - before
