"""Finding, reading and checking scripts."""

from pathlib import Path

import pytest

from quiclab.errors import MachineError, UsageError
from quiclab.trace.kernel import KernelProbes
from quiclab.trace.ndjson import parse_trace
from quiclab.trace.script import (
    Check,
    MapNote,
    Pair,
    Script,
    check_against_kernel,
    evaluate_checks,
    find_scripts,
    load_script,
    parse_script,
)

SHIPPED = ["generic-offload", "io-latencies", "message-wait", "recv-buffers", "udp-syscall"]
OWN = """#!/usr/bin/env bpftrace
// own.bt  Count what is of interest.
// Question:  how often
//            does it happen?
// Map:       @n events that happened
// Map:       @ns ns time it took
// Check:     @n = tx.send_call_count
// Check:     @missed = 0
// Direction: any
// Direction: upload @ns
// Output:    @n, and
//            @ns
// Sample:    @n: 5
//
//            Five of them.

BEGIN { printf("begun\\n"); }
usdt:$1:happened { @n = count(); @ns = hist(arg0); }
usdt:$1:missed { @missed = count(); }
END { }
"""


def own_script(folder: Path, text: str = OWN, name: str = "own.bt") -> Path:
    """Write a script of the user's."""
    path = folder / name
    path.write_text(text)
    return path


def test_the_four_shipped_scripts_are_found() -> None:
    """All scripts of the original are there, by name, in order."""
    assert SHIPPED == [script.name for script in find_scripts()]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_script_is_loaded_by_name(name: str) -> None:
    """A bare name means the shipped script."""
    script = load_script(name)
    assert (name, True) == (script.name, script.is_shipped)


def test_a_shipped_name_with_its_suffix_means_the_shipped_script(tmp_path: Path) -> None:
    """`udp-syscall.bt` is the shipped one when no such file lies in the caller's folder."""
    assert load_script("udp-syscall.bt", base=tmp_path).is_shipped


def test_a_file_of_that_name_in_the_callers_folder_comes_first(tmp_path: Path) -> None:
    """`udp-syscall.bt` is a path, so a file of that name is what is meant."""
    path = own_script(tmp_path, name="udp-syscall.bt")
    script = load_script("udp-syscall.bt", base=tmp_path)
    assert (path, False) == (script.path, script.is_shipped)


@pytest.mark.parametrize("asked", ["own.bt", "./own.bt", "../{folder}/own.bt"])
def test_a_path_starts_from_the_callers_folder(tmp_path: Path, asked: str) -> None:
    """Relative paths are the caller's."""
    own_script(tmp_path)
    assert "own" == load_script(asked.format(folder=tmp_path.name), base=tmp_path).name


def test_a_path_with_a_slash_needs_no_suffix(tmp_path: Path) -> None:
    """What holds a "/" is a path, whatever it ends in."""
    path = own_script(tmp_path, name="my script")
    assert "my-script" == load_script(str(path)).name


def test_an_unknown_name_lists_the_known_and_the_near(tmp_path: Path) -> None:
    """A typo is one line: what there is, and what was perhaps meant."""
    with pytest.raises(UsageError) as caught:
        load_script("udp-sycall", base=tmp_path)
    assert str(caught.value) == (
        'no script "udp-sycall"; there are generic-offload, io-latencies, message-wait, '
        "recv-buffers, udp-syscall (did you mean udp-syscall?), or give the path of a .bt file"
    )


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("zzz", 'no script "zzz"; there are generic-offload, '),
        ("zzz.bt", 'no file "zzz.bt"; there are generic-offload, '),
        ("no/such/udp-syscall.bt", 'no file "no/such/udp-syscall.bt"; there are'),
        ("./", '"./" is not a file'),
        ("../passwd", '"../passwd" holds no probe'),
        ("./binary", '"./binary" is no text'),
        ("./large.bt", '"./large.bt" has 1000001 bytes'),
        ("./empty.bt", '"./empty.bt" holds no probe'),
        ("", 'no script ""; there are'),
        ("x" * 300 + ".bt", "no file"),
        ("~nobody-of-that-name/a.bt", 'no file "~nobody-of-that-name/a.bt"; there are'),
    ],
)
def test_what_is_no_script_is_refused_in_one_line(tmp_path: Path, asked: str, words: str) -> None:
    """Paths to nothing, to folders and to other files are refused, and nothing is run."""
    base = tmp_path / "here"
    base.mkdir()
    (tmp_path / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (base / "binary").write_bytes(b"\x7fELF\xff\xfe")
    (base / "large.bt").write_bytes(b" " * 1_000_001)
    (base / "empty.bt").write_text("// nothing\n")
    with pytest.raises(UsageError) as caught:
        load_script(asked, base=base)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_header_is_read_key_by_key(tmp_path: Path) -> None:
    """Question, maps, checks, directions and notes come from the header's lines."""
    script = load_script(str(own_script(tmp_path)))
    assert "Count what is of interest." == script.summary
    assert "how often does it happen?" == script.question
    assert (
        MapNote("@n", "events", "that happened"),
        MapNote("@ns", "ns", "time it took", "upload"),
    ) == script.maps
    assert (Check("@n", "tx.send_call_count", None), Check("@missed", None, 0)) == script.checks
    assert {"output", "sample"} == set(script.notes)
    assert "Five of them." in script.notes["sample"]


def test_a_script_without_header_still_tells_its_maps_and_probes(tmp_path: Path) -> None:
    """What a header would say of maps and probes is read from the probes themselves."""
    text = "usdt:$1:a { @n = count(); @start[tid] = 1; }\nEND { clear(@start); }\n"
    script = load_script(str(own_script(tmp_path, text)))
    assert ("@n",) == tuple(note.name for note in script.maps)
    assert 2 == script.expected_probe_count
    assert not script.prints_at_begin
    assert ("a",) == script.usdt_names


def test_expected_probes_count_begin_and_end(tmp_path: Path) -> None:
    """BEGIN and END are announced like any probe, so they are expected."""
    script = load_script(str(own_script(tmp_path)))
    assert (4, True) == (script.expected_probe_count, script.prints_at_begin)


def test_wildcards_leave_the_probe_count_open(tmp_path: Path) -> None:
    """With a wildcard no number is expected, rather than a wrong one."""
    script = load_script(str(own_script(tmp_path, "usdt:$1:* { @n = count(); }")))
    assert script.expected_probe_count is None


def test_probes_of_a_map_are_named() -> None:
    """For a map that stayed empty the probes that fill it can be named."""
    script = load_script("io-latencies")
    assert ("usdt:$1:s2n_quic_platform__socket__task__tx__finish",) == script.probes_of(
        "@tx_latencies"
    )


@pytest.mark.parametrize(
    ("direction", "is_filled"), [("download", False), ("upload", True), ("both", True)]
)
def test_a_map_is_due_in_its_direction(direction: str, is_filled: bool) -> None:
    """A map of uploads is not missed in a download."""
    note = MapNote("@writes", "bytes", "of a frame", "upload")
    assert is_filled == note.is_filled_by(direction)
    assert MapNote("@n", "calls", "made").is_filled_by(direction)


@pytest.mark.parametrize(
    ("note", "label"),
    [
        (MapNote("@x", "ns", "time in sendmmsg"), "time in sendmmsg, ns"),
        (MapNote("@x", "messages", "asked of one sendmmsg"), "messages asked of one sendmmsg"),
        (MapNote("@x", "", ""), ""),
    ],
)
def test_a_label_names_unit_and_quantity(note: MapNote, label: str) -> None:
    """The line above a histogram says what is counted and in which unit."""
    assert label == note.label


@pytest.mark.parametrize(
    "line",
    ["Check: @n tx.send_call_count", "Map: n ns time", "Map: @n ns", "Direction: sideways"],
)
def test_a_header_line_that_is_not_understood_is_shown(line: str) -> None:
    """A header that cannot be read is an error with the line and the form it should have."""
    with pytest.raises(UsageError, match="is not understood; write"):
        parse_script(f"// {line}\nBEGIN {{ }}\n", path=Path("x.bt"))


COUNTERS = {"tx": {"send_call_count": 5}, "rx": {"receive_call_count": 2}}


def checked(map_record: str, check: str) -> str:
    """Evaluate one check against one map and the counters above."""
    script = parse_script(f"// Check: {check}\nBEGIN {{ }}\n", path=Path("x.bt"))
    (result,) = evaluate_checks(script, parse_trace(map_record), COUNTERS)
    return f"{'ok' if result.is_equal else 'not ok'}: {result.render()}"


@pytest.mark.parametrize(
    ("map_record", "check", "expected"),
    [
        (
            '{"type": "map", "data": {"@n": 5}}',
            "@n = tx.send_call_count",
            "ok: @n 5 = tx.send_call_count 5",
        ),
        (
            '{"type": "map", "data": {"@n": 4}}',
            "@n = tx.send_call_count",
            "not ok: @n 4 ≠ tx.send_call_count 5",
        ),
        (
            '{"type": "hist", "data": {"@n": [{"min": 1, "max": 1, "count": 2}]}}',
            "@n = rx.receive_call_count",
            "ok: @n 2 = rx.receive_call_count 2",
        ),
        ("", "@n = 0", "ok: @n 0 = expected 0"),
        ("", "@n = tx.send_call_count", "not ok: @n 0 ≠ tx.send_call_count 5"),
        ('{"type": "map", "data": {"@n": 1}}', "@n = 0", "not ok: @n 1 ≠ expected 0"),
        (
            '{"type": "map", "data": {"@n": 1}}',
            "@n = tx.no_such_count",
            "not ok: @n 1 ≠ tx.no_such_count unknown",
        ),
        (
            '{"type": "map", "data": {"@n": "x"}}',
            "@n = tx.send_call_count",
            "not ok: @n unknown ≠ tx.send_call_count 5",
        ),
    ],
)
def test_checks_hold_maps_against_counters(map_record: str, check: str, expected: str) -> None:
    """A map's events are compared with the named counter, and both figures are said."""
    assert expected == checked(map_record, check)


@pytest.mark.parametrize("provider", ["kprobe", "kretprobe", "k", "kr"])
def test_a_script_on_kprobes_is_refused_by_name_without_them(provider: str) -> None:
    """On a kernel without kprobes a script that needs them never starts."""
    script = parse_script(f"{provider}:vfs_read {{ @n = count(); }}", path=Path("reads.bt"))
    with pytest.raises(MachineError, match=rf"reads attaches to {provider}:vfs_read.*no kprobes"):
        check_against_kernel(script, KernelProbes(has_kprobes=False))


def test_a_script_on_fentry_is_refused_by_name_without_it() -> None:
    """The old name kfunc and the new one are the same need, and are named."""
    script = parse_script("kfunc:vfs_read { @n = count(); }", path=Path("reads.bt"))
    with pytest.raises(MachineError, match=r"kfunc:vfs_read.*no fentry"):
        check_against_kernel(script, KernelProbes(has_kprobes=True, has_fentry=False))


def test_what_is_unknown_of_the_kernel_refuses_nothing() -> None:
    """Where the kernel could not be asked a script may try."""
    script = parse_script("kprobe:vfs_read { @n = count(); }", path=Path("reads.bt"))
    check_against_kernel(script, KernelProbes())


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_scripts_need_uprobes_alone(name: str) -> None:
    """The shipped scripts run where neither kprobes nor fentry nor BTF exist."""
    uprobes_only = KernelProbes(
        has_kprobes=False, has_fentry=False, has_uprobes=True, has_btf=False
    )
    check_against_kernel(load_script(name), uprobes_only)


def test_pairs_of_maps_are_read_from_the_header() -> None:
    """Starts, ends with a start, ends without one, and the map that keeps starts."""
    script = parse_script(
        "// a.bt  A.\n// Pair: @begun @took @stray @scratch\nBEGIN { @a = 1; }\n", path=Path("a.bt")
    )
    assert (Pair("@begun", "@took", "@stray", "@scratch"),) == script.pairs


@pytest.mark.parametrize("entry", ["@a @b @c", "@a @b @c d", ""])
def test_a_pair_that_is_none_is_refused(entry: str) -> None:
    """Four maps, or a line that says so."""
    with pytest.raises(UsageError, match="write four maps"):
        parse_script(f"// a.bt  A.\n// Pair: {entry}\nBEGIN {{ @a = 1; }}\n", path=Path("a.bt"))


@pytest.mark.parametrize("script", find_scripts(), ids=lambda script: script.name)
def test_maps_of_a_pair_are_maps_of_the_script(script: Script) -> None:
    """The first three are explained; the fourth is scratch, which END clears."""
    for pair in script.pairs:
        assert {pair.starts, pair.matched, pair.unmatched} <= {note.name for note in script.maps}
        assert f"clear({pair.scratch})" in script.text
