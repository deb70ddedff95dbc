"""
Profiling: py-spy's stacks put into layers and drawn; one real profile.

tests/data/pyspy/stacks.txt is a recording of a download by py-spy 0.4.3, shortened to
two stacks of each layer.
"""

import json
import os
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks.profiling import (
    explain_refusal,
    find_py_spy,
    plan_profile,
    profile,
    sample_process,
)
from benchmarks.profiling_flame import render_flame_graph
from benchmarks.profiling_stacks import (
    Frame,
    Layer,
    find_layer,
    parse_stacks,
    share_functions,
    share_layers,
)
from quiclab.command.words import ProfileWords
from quiclab.errors import MachineError, RunError, UsageError
from tests.conftest import need, without_rights

TEXT = (Path(__file__).resolve().parents[1] / "data" / "pyspy" / "stacks.txt").read_text()
SAMPLES = parse_stacks(TEXT)

TURN = (Frame("main", "server/__main__.py"), Frame("Loop.turn", "server/loop.py"))
BUILD = Frame("QuicConnection.datagrams_to_send", "aioquic/quic/connection.py")
RECEIVE = Frame("QuicConnection.receive_datagram", "aioquic/quic/connection.py")


def test_parse_stacks_leaves_out_the_thread_that_waits() -> None:
    """No sample is lost: those of the serving thread and of others are all."""
    written = sum(int(line.rpartition(" ")[2]) for line in TEXT.splitlines())
    assert written == SAMPLES.count + SAMPLES.other_thread_count
    assert SAMPLES.other_thread_count > 0


@pytest.mark.parametrize("line", ["no count", " 20", "main (a.py) -1"])
def test_parse_stacks_refuses_what_is_no_stack(line: str) -> None:
    """A damaged recording is told with its line."""
    with pytest.raises(RunError, match="line 1"):
        parse_stacks(line)


@pytest.mark.parametrize(
    ("frames", "layer"),
    [
        ((*TURN, BUILD), Layer.BUILDING),
        ((*TURN, RECEIVE), Layer.RECEIVING),
        ((*TURN, Frame("QuicConnection.get_timer", BUILD.file)), Layer.AIOQUIC),
        ((*TURN, BUILD, Frame("Buffer_seek", "aioquic/_buffer.c")), Layer.BUILDING),
        ((*TURN, BUILD, Frame("?", "libc.so.6")), Layer.BUILDING),
        ((*TURN, BUILD, Frame("AEAD.encrypt", "aioquic/_crypto.py")), Layer.CRYPTO),
        (
            (*TURN, BUILD, Frame("e", "aioquic/quic/crypto.py"), Frame("gcm", "x/_rust.abi3.so")),
            Layer.CRYPTO,
        ),
        ((*TURN, RECEIVE, Frame("Context.handle_message", "aioquic/tls.py")), Layer.TLS),
        ((*TURN, BUILD, Frame("RingPacer.update", "server/internals.py")), Layer.CALLED),
        (TURN, Layer.ENDPOINT),
        ((*TURN, Frame("PerfServer.produce", "server/perf.py")), Layer.PERF),
        ((*TURN, Frame("TxPath.write", "server/udp/transmit.py")), Layer.TX),
        ((*TURN, Frame("RxPath.read", "server/udp/receive.py")), Layer.RX),
        ((*TURN, Frame("sender_send", "sender.c")), Layer.NATIVE),
        ((*TURN, Frame("sender_send", "sender.c"), Frame("sendmmsg", "libc.so.6")), Layer.SEND),
        ((*TURN, Frame("recvmmsg", "libc.so.6")), Layer.RECEIVE),
        ((*TURN, Frame("ppoll", "libc.so.6")), Layer.WAIT),
        ((Frame("_run_code", "<frozen runpy>"),), Layer.OTHER),
        ((), Layer.OTHER),
    ],
)
def test_find_layer_asks_the_innermost_frame_that_tells(
    frames: tuple[Frame, ...], layer: Layer
) -> None:
    """Libraries belong to who called them, the server's callbacks to themselves."""
    assert layer == find_layer(frames)


def test_share_layers_adds_up_to_all_samples() -> None:
    """Every sample of the recording is in one layer, and the largest comes first."""
    shares = share_layers(SAMPLES)

    assert SAMPLES.count == sum(each.sample_count for each in shares)
    assert sum(each.share for each in shares) == pytest.approx(1.0)
    assert shares == sorted(shares, key=lambda each: -each.sample_count)
    assert {Layer.BUILDING, Layer.CRYPTO, Layer.SEND, Layer.TX} <= {each.name for each in shares}


def test_share_functions_counts_own_time_once_and_inclusive_time_per_stack() -> None:
    """A recursive function is counted once a stack; a library without symbols, for its caller."""
    samples = parse_stacks("a (x.py:1);a (x.py:1);0x7f00 (libc.so.6) 3\na (x.py:1);b (x.py:9) 1\n")

    own = {each.name: each.share for each in share_functions(samples, is_inclusive=False)}
    inclusive = {each.name: each.share for each in share_functions(samples, is_inclusive=True)}

    assert {"a (x.py)": 0.75, "b (x.py)": 0.25} == own
    assert {"a (x.py)": 1.0, "b (x.py)": 0.25} == inclusive


def test_flame_graph_is_xml_whose_boxes_fit_into_those_below() -> None:
    """It can be read as XML, has all samples in its lowest box, and no box is too wide."""
    graph = ET.fromstring(render_flame_graph(SAMPLES, title='a "<title>" & more'))

    boxes = [each for each in graph.iter() if each.get("class") == "box"]
    assert f"all: {SAMPLES.count} samples, 100.0%" == boxes[0][0].text
    assert all(float(box.attrib["data-x"]) + float(box.attrib["data-w"]) < 1.001 for box in boxes)
    assert any("Loop.turn" in box.attrib["data-n"] for box in boxes)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (ProfileWords(direction="both"), "--direction"),
        (ProfileWords(duration="0.2"), "--duration"),
        (ProfileWords(duration="2h"), "--duration"),
        (ProfileWords(datagram="9000"), "--datagram"),
        (ProfileWords(streams="0"), "--streams"),
        (ProfileWords(buffer="8Q"), "--buffer"),
    ],
)
def test_plan_profile_names_the_option_that_makes_no_sense(
    words: ProfileWords, option: str
) -> None:
    """A wrong word is one line with its option, before anything is started."""
    with pytest.raises(UsageError, match=option):
        plan_profile(words)


def test_py_spy_without_rights_is_the_machines_fault() -> None:
    """What py-spy says without ptrace rights ends in exit code 4, another failure does not."""
    refused = "Permission Denied: Try running again with elevated permissions by going 'sudo env'"
    assert isinstance(explain_refusal(refused), MachineError)
    assert isinstance(explain_refusal("Error: Operation not permitted (os error 1)"), MachineError)
    gone = "Error: Failed to get process executable name. Check that the process is running."
    assert "Failed to get process" in str(explain_refusal(gone))
    assert isinstance(explain_refusal(gone), RunError)


@pytest.mark.real
def test_a_process_that_may_not_be_looked_into_ends_in_code_4(tmp_path: Path) -> None:
    """Without ptrace rights py-spy is refused, which is told as this machine's fault."""
    need(os.geteuid() == 0, "root, to have a process that another user may not look into")
    py_spy = find_py_spy()
    with without_rights():
        if not os.access(py_spy, os.X_OK, effective_ids=True):
            pytest.skip("needs a py-spy that any user may run")
        with pytest.raises(MachineError, match="CAP_SYS_PTRACE"):
            sample_process(py_spy, os.getpid(), tmp_path / "stacks.txt", duration_s=1.0)


@pytest.mark.real
@pytest.mark.slow
def test_profile_of_a_real_server_finds_where_its_time_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A short profile leaves stacks, picture and document, and aioquic has most of the time."""
    need(os.geteuid() == 0, "root, to look into another process")
    need(len(os.sched_getaffinity(0)) > 1, "2 cores")

    assert profile(ProfileWords(duration="2s", output=str(tmp_path))) == 0

    (folder,) = tmp_path.iterdir()
    assert {"flame.svg", "stacks.txt", "profile.json"} == {each.name for each in folder.iterdir()}
    document = json.loads((folder / "profile.json").read_text())
    assert document["schema"] == 1
    assert document["sample_count"] == parse_stacks((folder / "stacks.txt").read_text()).count
    shares = {each["name"]: each["share"] for each in document["layers"]}
    assert shares[Layer.BUILDING] + shares[Layer.CRYPTO] > 0.3
    assert re.search(r"py-spy stops the server", capsys.readouterr().out)
