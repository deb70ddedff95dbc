"""
How long a command has been at work, by the kernel's account.
"""

import subprocess
import sys
import time

from quiclab.clock import process_age_s


def test_age_of_a_process_grows_with_time() -> None:
    """It is told in seconds."""
    age_s = process_age_s()
    time.sleep(0.05)
    assert process_age_s() - age_s > 0.04


def test_age_counts_the_shell_that_became_the_process() -> None:
    """The wrapper's own time is part of what a command takes."""
    code = "from quiclab.clock import process_age_s; print(process_age_s())"
    done = subprocess.run(
        ["sh", "-c", 'sleep 0.3; exec "$0" -c "$1"', sys.executable, code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) >= 0.29
