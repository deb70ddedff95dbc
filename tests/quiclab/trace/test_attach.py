"""Which probes a script attaches to, read from its text."""

import pytest

from quiclab.trace.attach import find_result_maps, parse_blocks


def points(text: str) -> list[str]:
    """Every attach point of a script, as it stands there."""
    return [point.text for block in parse_blocks(text) for point in block.attach_points]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BEGIN { } END { }", ["BEGIN", "END"]),
        ("begin { } end { }", ["begin", "end"]),
        ("usdt:$1:a { @x = 1 }", ["usdt:$1:a"]),
        ("usdt:$1:a, usdt:$1:b\n{ }", ["usdt:$1:a", "usdt:$1:b"]),
        ("t:a:b,\nt:a:c { }", ["t:a:b", "t:a:c"]),
        ("usdt:$1:a\n/arg2 == 0 && pid == $2/\n{ }", ["usdt:$1:a"]),
        ("uprobe:/usr/bin/bash:readline { }", ["uprobe:/usr/bin/bash:readline"]),
        ('usdt:"/a b/c":p:n { }', ['usdt:"/a b/c":p:n']),
        ("// usdt:$1:no { }\n/* BEGIN { } */ END { }", ["END"]),
        ("#include <linux/net.h>\n#define X 1\nBEGIN { }", ["BEGIN"]),
        ("struct s { int a; int b; };\nBEGIN { }", ["BEGIN"]),
        ("config = { missing_probes = error }\nBEGIN { }", ["BEGIN"]),
        ("fn add($a : int64): int64 { return $a; }\nBEGIN { }", ["BEGIN"]),
        ('BEGIN { if (1) { printf("}{\\""); } }\nEND { }', ["BEGIN", "END"]),
        ("interval:s:1 { exit(); }", ["interval:s:1"]),
        ("#!/usr/bin/env bpftrace\nBEGIN{}", ["BEGIN"]),
        ('BEGIN { printf("never closed', []),
        ("", []),
        ("root:x:0:0:root:/root:/bin/bash\n", []),
        ("int main(void) { return 0; }", []),
    ],
)
def test_attach_points_are_read_as_bpftrace_does(text: str, expected: list[str]) -> None:
    """Comments, strings, predicates, definitions and bodies are told from attach points."""
    assert expected == points(text)


@pytest.mark.parametrize(
    ("text", "provider"),
    [
        ("k:vfs_read { }", "kprobe"),
        ("kfunc:vfs_read { }", "fentry"),
        ("fr:vfs_read { }", "fexit"),
        ("U:$1:a { }", "usdt"),
        ("i:s:1 { }", "interval"),
        ("begin { }", "BEGIN"),
    ],
)
def test_short_forms_mean_their_long_ones(text: str, provider: str) -> None:
    """Abbreviations are read as the kinds of probes they stand for."""
    ((point,),) = [block.attach_points for block in parse_blocks(text)]
    assert provider == point.provider


@pytest.mark.parametrize("text", ["usdt:$1:* { }", "t:net:net_dev_?ueue { }", "k:vfs_[rw]* { }"])
def test_wildcards_stand_for_no_known_number(text: str) -> None:
    """A wildcard's probes cannot be counted from the text."""
    ((point,),) = [block.attach_points for block in parse_blocks(text)]
    assert not point.is_one_probe


def test_probe_name_is_the_last_part() -> None:
    """The probe's own name is what stands behind file and provider."""
    ((point,),) = [block.attach_points for block in parse_blocks('usdt:$1:s2n_quic:"a__b" { }')]
    assert "a__b" == point.probe_name


@pytest.mark.parametrize(
    ("body", "is_filled"),
    [
        ("@x = hist(arg0);", True),
        ("@x[pid, tid] = nsecs;", True),
        ("@x++;", True),
        ("@x += 2;", True),
        ("$y = @x;", False),
        ("if (@x == 1) { }", False),
        ("@xy = 1;", False),
        ('printf("@x = 1");', False),
        ("// @x = 1", False),
        ("delete(@x[pid]);", False),
    ],
)
def test_a_map_is_filled_by_what_assigns_to_it(body: str, is_filled: bool) -> None:
    """Only assignments fill a map: not reading, comparing, printing or deleting."""
    (block,) = parse_blocks(f"BEGIN {{ {body}\n }}")
    assert is_filled == block.fills("@x")


def test_result_maps_leave_scratch_out() -> None:
    """Maps that a script empties itself are its scratch; the others are its results."""
    text = """
    usdt:$1:a { @start[tid] = nsecs; @n = count(); @ = 1; }
    usdt:$1:b { @ns = hist(nsecs - @start[tid]); delete(@start[tid]); @old = 1; }
    END { clear(@old); }
    """
    assert ("@n", "@", "@ns") == find_result_maps(parse_blocks(text))
