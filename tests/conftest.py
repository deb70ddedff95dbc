"""
What tests need from the machine, said out loud when it is absent.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_NOBODY = 65534


def need(is_there: bool, what: str) -> None:
    """
    Skip with the name of what is missing; in CI absence is a failure.
    """
    if is_there:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must have {what}")
    pytest.skip(f"needs {what}")


@contextmanager
def without_rights() -> Iterator[None]:
    """
    Be a user whom root's files are closed to, for a while.
    """
    own_uid = os.geteuid()
    if own_uid == 0:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(own_uid)
