"""
Two traces at the same time see nothing of each other, nor of anybody else's traffic.
"""

import shutil
from pathlib import Path

import pytest

from quiclab.artifacts import Manifest, load_manifest
from tests.integration.chatter import unrelated_traffic
from tests.integration.lab import find_remains, running_lab

pytestmark = [pytest.mark.real, pytest.mark.docker, pytest.mark.slow]

LOAD_S = 1.5
END_LIMIT_S = 60.0
DOCKER = ("docker", "docker")
LOCAL = ("local", "local")
MIXED = ("docker", "local")


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both labs keep their records of live runs in one place, as two shells of one user do."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def run_both(names: tuple[str, str], output: Path) -> list[Manifest]:
    """Start two labs at once into one output folder, beside other traffic; their manifests."""
    with (
        unrelated_traffic() as others,
        running_lab(names[0], output, duration_s=LOAD_S) as first,
        running_lab(names[1], output, duration_s=LOAD_S) as second,
    ):
        codes = [first.wait(END_LIMIT_S), second.wait(END_LIMIT_S)]
        assert others.poll() is None
    manifests = [load_manifest(path.parent) for path in output.glob("2*/manifest.json")]
    assert [0, 0] == codes, [m.verdict and m.verdict.summary for m in manifests]
    return manifests


@pytest.mark.parametrize("names", [DOCKER, LOCAL, MIXED], ids="+".join)
def test_two_traces_at_once_count_their_own_events(tmp_path: Path, names: tuple[str, str]) -> None:
    """Either is ok, which takes traced counts that equal its own server's, and nothing stays."""
    output = tmp_path / "runs"
    manifests = run_both(names, output)
    verdicts = [m.verdict.word for m in manifests if m.verdict is not None]
    assert (2, ["ok", "ok"]) == (len({m.run_id for m in manifests}), verdicts)
    spans = sorted((m.started_at, m.ended_at) for m in manifests if m.ended_at is not None)
    assert spans[1][0] < spans[0][1]  # they did overlap
    for name in set(names):
        assert [] == find_remains(name, output)


def test_the_first_to_end_removes_nothing_of_the_other(tmp_path: Path) -> None:
    """A short run begins, ends and cleans up while a longer one traces on."""
    with (
        running_lab("docker", tmp_path / "long", duration_s=4 * LOAD_S) as long_one,
        running_lab("docker", tmp_path / "short", duration_s=0.2) as short_one,
    ):
        assert 0 == short_one.wait(END_LIMIT_S)
        assert long_one.poll() is None
        assert 0 == long_one.wait(END_LIMIT_S)
    for name in ("long", "short"):
        assert [] == find_remains("docker", tmp_path / name)
        shutil.rmtree(tmp_path / name)
