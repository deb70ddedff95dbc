"""
server.udp.probing: which probes a path fires, by who listens.
"""

import ctypes
import os
from collections.abc import Iterator

import pytest

from server import probes
from server.probes import PROBES
from server.udp import _native
from server.udp.probing import Listening

# A nop and what a tracer writes over it.
UNTRACED, TRACED = (
    (b"\x1f\x20\x03\xd5", b"\x00\x00\x20\xd4")
    if os.uname().machine == "aarch64"
    else (b"\x0f\x1f\x44\x00\x00", b"\xcc\x1f\x44\x00\x00")
)
OWN_ATTRIBUTE = {
    probes.IO_TX_WRITE: "has_tx_write",
    probes.IO_TX_FINISH_WRITE: "has_tx_finish_write",
    probes.TASK_TX_FINISH: "has_task_tx_finish",
    probes.MESSAGE_SENT: "has_message_sent",
    probes.TASK_RX_FINISH: "has_task_rx_finish",
    probes.IO_RX_READ: "has_rx_read",
    probes.IO_RX_FINISH_READ: "has_rx_finish_read",
}


@pytest.fixture
def code() -> Iterator[ctypes.Array[ctypes.c_char]]:
    """A site of its own for the probe under test, which no tracer has touched."""
    yield ctypes.create_string_buffer(UNTRACED)
    _native.set_sites([0] * len(PROBES))


def listen_to(index: int, code: ctypes.Array[ctypes.c_char]) -> Listening:
    """Trace one probe, as a tracer does: by what it writes over the nop."""
    code.raw = TRACED + b"\0"
    _native.set_sites([ctypes.addressof(code) if at == index else 0 for at in range(len(PROBES))])
    listening = Listening()
    assert listening.refresh()
    return listening


@pytest.mark.parametrize("index", range(len(PROBES)), ids=[probe.name for probe in PROBES])
def test_only_the_probe_that_is_listened_to_is_fired(
    index: int, code: ctypes.Array[ctypes.c_char]
) -> None:
    """One script on one probe turns on the firing of that one; those of a call go together."""
    listening = listen_to(index, code)
    on = {name for name in Listening.__slots__ if name.startswith("has_")}
    on = {name for name in on if getattr(listening, name)}
    name = PROBES[index].name
    if index in OWN_ATTRIBUTE:
        assert on == {OWN_ATTRIBUTE[index]}
    elif "__socket__" in name:
        assert on == {"has_cursors"}
    else:
        assert on == set()  # fired where the call, or aioquic's own method, is
    assert listening.mask == 1 << index


def test_refresh_tells_whether_the_set_has_changed(code: ctypes.Array[ctypes.c_char]) -> None:
    """A turn in which nobody came or went does no work."""
    listening = listen_to(probes.IO_TX_WRITE, code)
    assert not listening.refresh()
    code.raw = UNTRACED + b"\0"
    assert listening.refresh()
    assert (0, False) == (listening.mask, listening.has_tx_write)
