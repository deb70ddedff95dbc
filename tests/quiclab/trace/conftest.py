"""Recordings of real bpftrace versions."""

from pathlib import Path

import pytest

from tests.userland import REPOSITORY

RECORDINGS = REPOSITORY / "tests/data/bpftrace"
VERSIONS = ("0.17.0", "0.23.2", "0.27.1")


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Each version that was recorded."""
    return str(request.param)


@pytest.fixture
def recording(version: str) -> Path:
    """The folder of a version's recordings."""
    return RECORDINGS / version
