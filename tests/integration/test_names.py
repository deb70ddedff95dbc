"""
Names that a shell would act on: of scripts, labels and folders, in a real run.
"""

from pathlib import Path

import pytest

from quiclab.artifacts import load_manifest
from quiclab.errors import ExitCode
from quiclab.trace.script import load_script
from tests.integration.test_trace import RUNNERS, explain, run

pytestmark = [pytest.mark.real, pytest.mark.slow]

SPITEFUL = "a b;$(touch owned)`touch owned`'\"&|>owned\n-x"


@RUNNERS
def test_names_that_a_shell_would_act_on_stay_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The run is ok, the names are kept, and nothing that they spell was done."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    script = tmp_path / f"{SPITEFUL}.bt"
    script.write_text(load_script("udp-syscall").text)
    output = tmp_path / SPITEFUL
    result = run(name, output, script=(str(script),), label=SPITEFUL, duration=0.3)
    assert ExitCode.OK == result.exit_code, explain(result)
    assert SPITEFUL == load_manifest(result.directory).label
    assert [] == [path for path in tmp_path.rglob("owned*") if path.name == "owned"]
