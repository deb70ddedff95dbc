"""
What tests need from the machine, said out loud when it is absent.
"""

import os

import pytest


def need(is_there: bool, what: str) -> None:
    """
    Skip with the name of what is missing; in CI absence is a failure.
    """
    if is_there:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must have {what}")
    pytest.skip(f"needs {what}")
