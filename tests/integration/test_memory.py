"""
Half a gigabyte through one connection, either way: what both processes hold stays bounded.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.server_process import run_server

TOTAL_BYTES = 500_000_000
MOST_RESIDENT_BYTES = 150_000_000
TIMEOUT_S = 120.0

pytestmark = pytest.mark.slow


def read_peak_bytes(pid: int) -> int:
    """
    The most memory a process has had resident at once.
    """
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


# The client is gone when its load is over, so its own peak is its last word. (ru_maxrss
# would not do: it remembers what the process was forked from.)
_CLIENT = """
import sys
from client.__main__ import main
status = main()
words = open("/proc/self/status").read().split()
print(1024 * int(words[words.index("VmHWM:") + 1]), file=sys.stderr)
sys.exit(status)
"""


@pytest.mark.parametrize("direction", ["download", "upload"])
def test_half_a_gigabyte_leaves_both_processes_small(tmp_path: Path, direction: str) -> None:
    """
    500 MB of the default datagrams with rings of 8 MB: neither side ever holds 150 MB.
    """
    rings = ("--queue-send-buffer-size", "8000000", "--queue-recv-buffer-size", "8000000")
    amount = ("--receive" if direction == "download" else "--send", str(TOTAL_BYTES))
    with run_server(tmp_path, *rings) as server:
        client = subprocess.run(
            [sys.executable, "-c", _CLIENT, *server.client_words(), *amount],
            check=False,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        server_bytes = read_peak_bytes(server.report()["workers"][0]["pid"])

    assert client.returncode == 0, client.stderr
    result = json.loads(client.stdout)
    assert result["bytes_received"] + result["bytes_sent"] == TOTAL_BYTES
    assert server_bytes < MOST_RESIDENT_BYTES
    assert int(client.stderr.split()[-1]) < MOST_RESIDENT_BYTES
