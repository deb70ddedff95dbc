"""
Words become scenarios: what was given is kept, what was not is the scenario's default.
"""

from pathlib import Path
from typing import Any

import pytest

from client import session
from quiclab.command.plan import plan_quartets, plan_scenarios, plan_scripts
from quiclab.command.words import TraceWords
from quiclab.errors import UsageError
from quiclab.scenario import (
    LARGEST_BUFFER_BYTES,
    LARGEST_WORKER_COUNT,
    OPEN_STREAM_LIMIT,
    Scenario,
)
from server.settings import parse_settings


def test_no_words_are_the_defaults() -> None:
    """`trace` alone traces the system calls with the small ring for five seconds."""
    assert plan_scenarios(TraceWords()) == [Scenario.model_validate({"script": ("udp-syscall",)})]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (TraceWords(), 0),
        (TraceWords(overhead=True), 1),
        (TraceWords(overhead=True, repeat="3"), 3),
    ],
    ids=["not-asked", "once", "three-times"],
)
def test_overhead_is_measured_as_often_as_asked(words: TraceWords, expected: int) -> None:
    """Once unless said otherwise."""
    assert expected == plan_quartets(words)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (TraceWords(repeat="3"), "--repeat says how often --overhead compares"),
        (TraceWords(overhead=True, tracer="none"), "--tracer none leaves nothing to compare"),
        (TraceWords(overhead=True, verify=True), "what the recorder of --verify costs"),
        (TraceWords(overhead=True, repeat="0"), "--repeat 0"),
    ],
    ids=["no-overhead", "no-tracer", "two-witnesses", "no-times"],
)
def test_overhead_that_makes_no_sense_is_refused(words: TraceWords, why: str) -> None:
    """One line says which of the words do not go together."""
    with pytest.raises(UsageError, match=why):
        plan_quartets(words)


def test_every_value_lands_in_its_field() -> None:
    """Each option is read and kept, in the spelling that the manifest uses."""
    words = TraceWords(
        script=("io-latencies",),
        buffer=("8M",),
        rx_buffer="1MiB",
        socket_buffer="64k",
        max_mtu="1500",
        datagram="1200",
        max_segments="1",
        gso=False,
        gro=False,
        direction="both",
        duration="500ms",
        bytes="1G",
        connections="2",
        streams="3",
        workers="4",
        verify_content=True,
        map_keys="8192",
        privileged=True,
        host_headers=True,
        tracer="auto",
        verify=True,
        time_programs=True,
        runner="local",
        label="a name",
    )
    assert plan_scenarios(words)[0].model_dump(by_alias=True) == {
        "script": ("io-latencies",),
        "buffer": 8_000_000,
        "rx-buffer": 1_048_576,
        "socket-buffer": 64_000,
        "max-mtu": 1500,
        "datagram": 1200,
        "max-segments": 1,
        "gso": False,
        "gro": False,
        "direction": "both",
        "duration": 0.5,
        "bytes": 1_000_000_000,
        "connections": 2,
        "streams": 3,
        "workers": 4,
        "verify-content": True,
        "map-keys": 8192,
        "privileged": True,
        "host-headers": True,
        "tracer": "auto",
        "verify": True,
        "time-programs": True,
        "runner": "local",
        "label": "a name",
    }


def test_bytes_alone_end_the_run_by_bytes() -> None:
    """`--bytes` asks for exact totals instead of a duration; both together count both."""
    assert plan_scenarios(TraceWords(bytes="1M"))[0].duration_s is None
    assert plan_scenarios(TraceWords(bytes="1M", duration="3s"))[0].duration_s == 3.0


def test_several_scripts_and_buffers_are_a_run_each() -> None:
    """Every script with every buffer, in the order written."""
    words = TraceWords(script=("a,b+c", "d"), buffer=("128k,8M",))
    assert [(each.scripts, each.tx_buffer_bytes) for each in plan_scenarios(words)] == [
        (("a",), 128_000),
        (("a",), 8_000_000),
        (("b", "c"), 128_000),
        (("b", "c"), 8_000_000),
        (("d",), 128_000),
        (("d",), 8_000_000),
    ]


def test_a_path_may_hold_commas_and_plus_signs(tmp_path: Path) -> None:
    """The path of a file that exists is one script, whatever it is called."""
    path = tmp_path / "a,b+c.bt"
    path.write_text("BEGIN { }")
    assert plan_scripts([str(path)]) == [(str(path),)]


def test_a_list_may_be_longer_than_a_file_name() -> None:
    """Eighty sizes are eighty runs."""
    assert len(plan_scenarios(TraceWords(buffer=(",".join(["128k"] * 80),)))) == 80


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            {"buffer": ("8Q",)},
            "--buffer 8Q is not a size; write bytes (8000000), 128k, 8M, 64KiB or 8MiB",
        ),
        ({"buffer": ("8M,",)}, "--buffer 8M, has an empty value; write a or a,b"),
        ({"script": ("a,,b",)}, "--script a,,b has an empty value; write a or a,b"),
        ({"script": ("a+",)}, "--script a+ has an empty name; write a, a,b or a+b"),
        ({"script": ("a+a",)}, "--script a+a names a script twice in one run; name it once"),
        (
            {"duration": "abc"},
            "--duration abc is not a duration; write seconds (2.5), 3s, 500ms, 10min or 1h",
        ),
        (
            {"direction": "downlaod"},
            (
                "--direction downlaod is unknown; there are both, download, upload "
                "(did you mean download?)"
            ),
        ),
        ({"runner": "podman"}, "--runner podman is unknown; there are auto, docker, local"),
        ({"workers": "0"}, "--workers 0 is out of range; write 1 or more"),
        ({"connections": "1.5"}, "--connections 1.5 is not a whole number; write 1 or more"),
        (
            {"buffer": ("2G",)},
            "--buffer 2000000000 must be less than or equal to 1073741824",
        ),
        (
            {"streams": "51", "direction": "both"},
            "--streams 51 without an end cannot all be open at once; write at most 50, or --bytes",
        ),
        (
            {"max_mtu": "64k"},
            "--max-mtu 64000 is more than aioquic can carry; give at most 16411",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_value_that_makes_no_sense_is_one_line(given: dict[str, Any], line: str) -> None:
    """The line names the option as it was written, and what would do."""
    with pytest.raises(UsageError) as caught:
        plan_scenarios(TraceWords(**given))
    assert str(caught.value) == line


@pytest.mark.parametrize(
    "given",
    [
        {"max_mtu": "1000"},
        {"max_segments": "65"},
        {"datagram": "100"},
        {"workers": "257"},
        {"rx_buffer": "2000000000"},
        {"socket_buffer": "2000000000"},
    ],
    ids=str,
)
def test_a_value_out_of_its_range_names_its_option(given: dict[str, Any]) -> None:
    """Limits that the scenario keeps come out as one line with the option's name."""
    with pytest.raises(UsageError) as caught:
        plan_scenarios(TraceWords(**given))
    (name,) = given
    assert str(caught.value).startswith(f"--{name.replace('_', '-')} {given[name]} ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "most"),
    [
        ("workers", LARGEST_WORKER_COUNT),
        ("queue-send-buffer-size", LARGEST_BUFFER_BYTES),
        ("queue-recv-buffer-size", LARGEST_BUFFER_BYTES),
        ("socket-send-buffer", LARGEST_BUFFER_BYTES),
    ],
)
def test_limits_are_the_servers_own(option: str, most: int) -> None:
    """What the server would refuse is refused before anything is started, and nothing else."""
    parse_settings([f"--{option}", str(most)])
    with pytest.raises(SystemExit):
        parse_settings([f"--{option}", str(most + 1)])


def test_open_streams_are_limited_as_the_client_does() -> None:
    """The same number, so that no run is begun which its client refuses."""
    assert session.OPEN_STREAM_LIMIT == OPEN_STREAM_LIMIT
