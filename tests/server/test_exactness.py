"""
Real bpftrace on the real server: every probe fires exactly as often as the server counts.
"""

from pathlib import Path
from typing import Any

import pytest

from server import probes
from server.probes import PROBES
from tests.server.firing import tracing
from tests.server.process import ServerProcess
from tests.userland import require_userland


def _render_counting_script(provider_path: str) -> str:
    lines = ['BEGIN { printf("ready\\n"); }']
    lines += [
        f"usdt:{provider_path}:{probe.name} {{ @hits[{index}, pid] = count(); }}"
        for index, probe in enumerate(PROBES)
    ]
    return "\n".join(lines)


def _expected_firings(worker: dict[str, Any]) -> dict[int, int]:
    """
    How often each probe has fired, by what a worker counted.
    """
    tx, rx, buffer = worker["tx"], worker["rx"], worker["receive_buffer"]
    expected = {
        probes.IO_TX_ACQUIRE: tx["io_acquire_count"],
        probes.IO_TX_WRITE: tx["datagram_written_count"],
        probes.IO_TX_FINISH_WRITE: tx["message_written_count"],
        probes.IO_TX_RELEASE: tx["io_release_count"],
        probes.IO_RX_ACQUIRE: rx["io_acquire_count"],
        probes.IO_RX_READ: rx["datagram_read_count"],
        probes.IO_RX_FINISH_READ: rx["message_read_count"],
        probes.IO_RX_RELEASE: rx["io_release_count"],
        probes.RING_CONSUMER_ACQUIRE: tx["task_acquire_count"] + rx["io_acquire_count"],
        probes.RING_CONSUMER_RELEASE: tx["task_release_count"] + rx["io_release_count"],
        probes.RING_PRODUCER_ACQUIRE: tx["io_acquire_count"] + rx["task_acquire_count"],
        probes.RING_PRODUCER_RELEASE: tx["io_release_count"] + rx["task_release_count"],
        probes.TASK_TX_ACQUIRE: tx["task_acquire_count"],
        probes.TASK_TX_FINISH: tx["message_sent_count"],
        probes.TASK_TX_RELEASE: tx["task_release_count"],
        probes.TASK_RX_ACQUIRE: rx["task_acquire_count"],
        probes.TASK_RX_FINISH: rx["message_received_count"],
        probes.TASK_RX_RELEASE: rx["task_release_count"],
        probes.MMSG_START_SEND: tx["send_call_count"],
        probes.MMSG_FINISH_SEND: tx["send_call_count"],
        probes.MMSG_START_RECV: rx["receive_call_count"],
        probes.MMSG_FINISH_RECV: rx["receive_call_count"],
        probes.MSG_START_SEND: tx["single_send_call_count"],
        probes.MSG_FINISH_SEND: tx["single_send_call_count"],
        probes.MSG_START_RECV: rx["single_receive_call_count"],
        probes.MSG_FINISH_RECV: rx["single_receive_call_count"],
        probes.RECEIVE_BUFFER_ALLOC: buffer["alloc_count"],
        probes.RECEIVE_BUFFER_WRITE: buffer["write_count"],
        probes.RECEIVE_BUFFER_POP: buffer["pop_count"],
        probes.MESSAGE_SENT: tx["message_sent_count"],
    }
    return {index: count for index, count in expected.items() if count}


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(("suite", "workers"), [("bookworm", 1), ("trixie", 2)])
def test_every_probe_fires_as_often_as_the_server_counts(
    tmp_path: Path, suite: str, workers: int
) -> None:
    """Over a window that holds a load in both directions, traced equals counted, per worker."""
    userland = require_userland(suite)
    options = ("--workers", str(workers), "--queue-send-buffer-size", "8000000")
    with ServerProcess(tmp_path, *options) as server:
        script = _render_counting_script(server.description["probes"]["provider_path"])
        with tracing(userland, script, tmp_path) as tracer:
            tracer.wait_until_ready()
            seen = [worker["traced_probes"] for worker in server.ask("reset")["workers"]]
            assert [[probe.name for probe in PROBES]] * workers == seen
            server.load(
                *("--direction", "both", "--receive", "4000000", "--send", "2000000"),
                *("--connections", "6", "--verify-content"),
            )
            report = server.settle()
            hits = tracer.finish()
        traced: dict[int, dict[int, int]] = {}
        for (index, pid), count in hits.items():
            traced.setdefault(pid, {})[index] = count
        counted = {worker["pid"]: _expected_firings(worker) for worker in report["workers"]}
        assert {pid: counts for pid, counts in counted.items() if counts} == traced
        assert traced
