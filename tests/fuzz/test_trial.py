"""
The fuzzer against real servers over loopback: a little of it, and (marker fuzz) all of it.
"""

from pathlib import Path

import pytest

from tests.fuzz.__main__ import LONG, main, scale
from tests.fuzz.trial import try_all

SEED = 20_26


@pytest.mark.slow
def test_a_little_harm_leaves_a_server_as_it_was(tmp_path: Path) -> None:
    """No fault, good clients served, all of it received, nothing left of it."""
    amounts = scale(LONG, share=0.004)
    for findings in try_all(amounts, seed=SEED, directory=tmp_path, idle_timeout_s=2):
        print(*findings.describe(), sep="\n")
        assert [] == list(findings.judge())
        assert findings.sent_count > 300


@pytest.mark.fuzz
def test_a_million_hostile_datagrams_leave_a_server_as_it_was(tmp_path: Path) -> None:
    """The whole of `python -m tests.fuzz`, with a seed of its own each time."""
    assert 0 == main(["--directory", str(tmp_path)])
