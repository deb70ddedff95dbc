"""What every shipped script must say of itself, held against its own probes."""

import re

import pytest

from quiclab.trace.script import Script, find_scripts
from quiclab.trace.text import parse_text, render_maps
from server.probes import PROBES

SCRIPTS = find_scripts()
each_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
KNOWN_PROBES = {probe.name: ", ".join(probe.arguments) for probe in PROBES}
# The original's results (its tables) and our own; they keep their names and have no keys.
PUBLISHED_MAPS = {
    "generic-offload": {"@gso_count", "@gso_size", "@gro_count", "@gro_size"},
    "io-latencies": {"@tx_latencies", "@rx_latencies"},
    "message-wait": {"@wait_ns"},  # the lab's own
    "recv-buffers": {"@allocs", "@writes", "@pops"},
    "udp-syscall": {
        "@tx_arg_counts",
        "@tx_ret_counts",
        "@tx_latencies",
        "@rx_arg_counts",
        "@rx_ret_counts",
        "@rx_latencies",
    },
}


@each_script
def test_a_header_has_every_part(script: Script) -> None:
    """A reader finds the question, what is not seen, what it costs and a real sample."""
    assert script.summary.endswith(".")
    assert script.question.endswith("?")
    parts = ("probe", "arguments", "output", "not seen", "cost", "needs", "sample")
    assert set(parts) == set(script.notes)
    assert all(script.notes.values())


@each_script
def test_the_header_names_the_probes_that_are_attached(script: Script) -> None:
    """The Probe lines list exactly the probes of the body, with their arguments."""
    listed = dict(re.findall(r"^\s*(\w+)\(([\w, ]*)\)$", script.notes["probe"], flags=re.MULTILINE))
    assert {name: KNOWN_PROBES[name] for name in script.usdt_names} == listed


@each_script
def test_the_header_explains_every_result_map(script: Script) -> None:
    """Each map a reader will see is explained, and none that does not exist."""
    filled = {note.name for note in script.maps if script.probes_of(note.name)}
    assert {note.name for note in script.maps} == filled
    assert PUBLISHED_MAPS[script.name] <= filled
    extra = filled - PUBLISHED_MAPS[script.name]
    assert all(re.fullmatch(r"@([rt]x_starts|([rt]x_)?unmatched)", name) for name in extra)


@each_script
def test_published_maps_are_plain_histograms(script: Script) -> None:
    """The original's maps stay hist() of one value, without keys."""
    fired = "".join(
        block.body
        for block in script.blocks
        if all(point.provider == "usdt" for point in block.attach_points)
    )
    for name in PUBLISHED_MAPS[script.name]:
        assignments = re.findall(rf"{name}(\[.*?\])? = (\w+)\(([^,]*)\);", fired)
        assert [("", "hist")] == [(key, kind) for key, kind, _ in assignments]


@each_script
def test_every_histogram_has_its_buckets_before_anything_fires(script: Script) -> None:
    """Two CPUs that make one at once lose an event on bpftrace 0.23 (its issue 4068)."""
    (begin,) = (b.body for b in script.blocks if b.attach_points[0].provider == "BEGIN")
    for note in script.maps:
        is_hist = f"{note.name} = hist(" in script.text
        made = [f"{note.name} = hist(0);", f"{note.name} = hist($value);"]
        for words in [*(made if is_hist else [f"{note.name} = count();"]), f"zero({note.name});"]:
            assert words in begin, words
    assert begin.rindex("zero(") < begin.index("printf(")


@each_script
def test_every_result_map_is_checked(script: Script) -> None:
    """Each map has a counter or a fixed count that it must equal."""
    assert {note.name for note in script.maps} == {check.map_name for check in script.checks}


@each_script
def test_begin_prints_one_line_and_end_clears_all_scratch(script: Script) -> None:
    """The first text proves that the probes are on, and no scratch map is printed at the end."""
    assert script.prints_at_begin
    begin, *_, end = script.blocks
    assert ("BEGIN", "END") == (begin.attach_points[0].text, end.attach_points[0].text)
    assert 1 == begin.body.count("printf")
    scratch = set(re.findall(r"(@\w+)\[", script.text))
    assert scratch == set(re.findall(r"clear\((@\w+)\)", end.body))


@each_script
def test_scratch_is_kept_per_process_and_removed_when_used(script: Script) -> None:
    """Start times carry the PID, so that workers never mix, and are deleted when matched."""
    for name, key in set(re.findall(r"(@\w+)\[([^\]]*)\] = nsecs", script.text)):
        assert key.startswith("pid, ")
        assert f"delete({name}[{key}]);" in script.text


@each_script
def test_the_file_with_the_probes_is_the_first_argument(script: Script) -> None:
    """Each probe is attached in the file given as $1, so any program with them can be traced."""
    usdt = [point.text for point in script.attach_points if point.provider == "usdt"]
    assert all(text.startswith("usdt:$1:") for text in usdt)
    assert "$1" in script.notes["arguments"]


@each_script
def test_the_sample_is_a_table_of_the_scripts_own(script: Script) -> None:
    """The sample is bpftrace's own form of one of the script's maps, and reads as such."""
    sample = "\n".join(line.strip() for line in script.notes["sample"].splitlines())
    (table,) = parse_text(sample).maps
    assert table.name in PUBLISHED_MAPS[script.name]
    assert table.event_count
    assert render_maps([table]) in sample + "\n"
