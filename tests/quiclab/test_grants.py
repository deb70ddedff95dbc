"""
Asked and granted are two figures, with the reason and what would change it.
"""

from typing import Any

import pytest

from quiclab.answers import ClientDescription, ServerDescription
from quiclab.grants import (
    Grant,
    fit_download_window,
    fit_upload_window,
    list_grants,
    list_windows,
)
from quiclab.runner.recorded import load_recording
from quiclab.scenario import Scenario

SYSCTLS = {"net.core.wmem_max": "4194304", "net.core.rmem_max": "4194304"}


def make_server(**granted: Any) -> ServerDescription:
    """Take the recorded server and change what it was granted."""
    raw = load_recording("server-describe")
    raw["granted"] |= granted
    return ServerDescription.read(raw)


def make_client(**fields: Any) -> ClientDescription:
    """Take the recorded client and change its description."""
    return ClientDescription.read({**load_recording("client-describe"), **fields})


def make_scenario(**words: Any) -> Scenario:
    """Make a scenario of one script."""
    return Scenario.model_validate({"script": ("udp-syscall",), **words})


def buffer(asked_bytes: int | None, granted_bytes: int, *, is_forced: bool = False) -> Any:
    """Make a socket buffer as a description has it."""
    return {
        "asked_bytes": asked_bytes,
        "granted_bytes": granted_bytes,
        "readback_bytes": 2 * granted_bytes,
        "is_forced": is_forced,
    }


def row(what: str, server: ServerDescription, **words: Any) -> Grant:
    """Find one row."""
    rows = list_grants(make_scenario(**words), server, make_client(), sysctls=SYSCTLS)
    return next(grant for grant in rows if grant.what == what)


def test_ring_is_told_in_slots_beside_the_bytes_asked() -> None:
    """A ring of 128 slots stands beside the 8,000,000 bytes that asked for it."""
    ring = row("server TX ring", make_server())
    assert ("8,000,000 B", "128 messages × 65,535 B") == (ring.asked, ring.granted)
    assert not ring.is_short


def test_socket_buffer_left_alone_is_told_as_the_kernels_default_reads() -> None:
    """Nothing was set, so nothing was doubled: net.core.wmem_default is what users know."""
    server = make_server(socket_send_buffer=buffer(None, 106_496))
    assert Grant(what="server SO_SNDBUF", asked=None, granted="212,992 B") == row(
        "server SO_SNDBUF", server
    )


def test_clamped_socket_buffer_names_the_sysctl_and_the_command() -> None:
    """A kernel that grants 4 MiB of 8,000,000 bytes: the limit, its value, the fix."""
    server = make_server(socket_send_buffer=buffer(8_000_000, 4_194_304))
    assert Grant(
        what="server SO_SNDBUF",
        asked="8,000,000 B",
        granted="4,194,304 B",
        is_short=True,
        reason="net.core.wmem_max is 4194304",
        fix="sudo sysctl net.core.wmem_max=8000000",
    ) == row("server SO_SNDBUF", server)


def test_forced_socket_buffer_is_not_short() -> None:
    """With NET_ADMIN the whole buffer is granted, past the sysctl, and it is said."""
    server = make_server(socket_receive_buffer=buffer(8_000_000, 8_000_000, is_forced=True))
    grant = row("server SO_RCVBUF", server)
    assert (False, "8,000,000 B, forced") == (grant.is_short, grant.granted)


def test_default_socket_buffer_was_not_asked_for() -> None:
    """Nothing asked, nothing short: the kernel's default is shown as it is."""
    grant = row("server SO_SNDBUF", make_server(socket_send_buffer=buffer(None, 106_496)))
    assert (None, False) == (grant.asked, grant.is_short)


@pytest.mark.parametrize(
    ("is_asked", "is_granted", "is_short"),
    [(True, True, False), (True, False, True), (False, False, False)],
)
def test_offload_is_short_only_where_it_was_asked(
    is_asked: bool, is_granted: bool, is_short: bool
) -> None:
    """`--no-gso` is not a degradation; a missing GSO that was asked for is."""
    assert is_short == row("server GSO", make_server(gso=is_granted), gso=is_asked).is_short


def test_offload_that_was_lost_says_why() -> None:
    """The server's own words for what it gave up are the reason."""
    raw = load_recording("server-describe")
    raw["granted"]["gso"] = False
    raw["degradations"] = [{"what": "gso", "reason": "EIO on eth0"}]
    assert "EIO on eth0" == row("server GSO", ServerDescription.read(raw)).reason


@pytest.mark.parametrize(
    ("cap_bytes", "holdable_bytes", "fitted"),
    [
        pytest.param(2_500_000, 2_500_000, 2_500_000, id="fits"),
        pytest.param(2_500_000, 170_000, 170_000, id="does not fit"),
        pytest.param(0, 9_000_000, 9_000_000, id="no cap is the largest cap"),
        pytest.param(2_500_000, 100, 16_384, id="something must move"),
        pytest.param(2_500_000, None, 2_500_000, id="unknown"),
    ],
)
def test_download_window_follows_what_the_client_holds(
    cap_bytes: int, holdable_bytes: int | None, fitted: int
) -> None:
    """The cap is lowered only where the client's buffer holds less."""
    server, client = (
        make_server(window_cap_bytes=cap_bytes),
        make_client(holdable_bytes=holdable_bytes),
    )
    assert fitted == fit_download_window(server, client)


def test_upload_window_is_each_connections_share_of_the_servers_buffer() -> None:
    """Connections may all meet one worker, so its buffer is shared by all of them."""
    server = make_server(holdable_bytes=1_000_000)
    assert 250_000 == fit_upload_window(make_scenario(connections=4), server)


def test_upload_window_is_estimated_where_the_server_did_not_measure() -> None:
    """Without a measured figure the least share ever measured counts."""
    server = make_server(socket_receive_buffer=buffer(None, 106_496))
    assert 85_196 == fit_upload_window(make_scenario(), server)


def test_windows_are_told_for_each_direction_that_is_used() -> None:
    """A download has one window to bound, an upload another and the server's flow control."""
    server, client = make_server(holdable_bytes=3_000_000), make_client()
    told = {
        direction: [
            grant.what for grant in list_windows(make_scenario(direction=direction), server, client)
        ]
        for direction in ("download", "upload", "both")
    }
    assert {
        "download": ["window cap of a download"],
        "upload": ["window cap of an upload", "server flow control"],
        "both": ["window cap of a download", "window cap of an upload", "server flow control"],
    } == told


@pytest.mark.parametrize(
    ("connections", "workers", "told"),
    [
        (8, 1, None),
        (64, 1, "20,000,000 B a worker, 312,500 B for each of 64 connections"),
        (64, 2, "20,000,000 B a worker, at least 312,500 B for each of 64 connections"),
        (500, 1, "20,000,000 B a worker, 125,608 B for each of 500 connections"),
    ],
    ids=["a cap for each", "shared", "shared by workers", "two full messages at least"],
)
def test_windows_that_share_a_budget_are_told(
    connections: int, workers: int, told: str | None
) -> None:
    """Where connections have less than their cap, the figure of each stands beside the cap's."""
    server = make_server(
        window_cap_bytes=2_500_000,
        window_budget_bytes=20_000_000,
        datagrams_per_message=7,
        datagram_bytes=8972,
    )
    scenario = make_scenario(connections=connections, workers=workers)
    rows = {each.what: each.granted for each in list_windows(scenario, server, make_client())}
    assert rows.get("windows of all downloads") == told


def test_lowered_windows_say_how_to_get_more() -> None:
    """A download needs the sysctl, an upload the server's own option."""
    scenario = make_scenario(direction="both")
    download, upload, _ = list_windows(scenario, make_server(), make_client(holdable_bytes=170_000))
    assert ("2,500,000 B", "170,000 B") == (download.asked, download.granted)
    assert ("2,500,000 B", "85,196 B") == (upload.asked, upload.granted)
    assert ("sudo sysctl net.core.rmem_max=8388608", "--socket-buffer 8M") == (
        download.fix,
        upload.fix,
    )
    assert download.is_short
    assert upload.is_short


def test_advice_for_uploads_is_enough_for_all_connections() -> None:
    """What is said to be enough is: with it no window is lowered any more."""
    scenario = make_scenario(direction="upload", connections=4)
    asked = make_server(socket_receive_buffer=buffer(8_000_000, 8_000_000, is_forced=True))
    window, _ = list_windows(scenario, asked, make_client())
    assert window.fix == "--socket-buffer 13M"
    enough = make_server(socket_receive_buffer=buffer(13_000_000, 13_000_000, is_forced=True))
    window, _ = list_windows(scenario, enough, make_client())
    assert not window.is_short


def test_advice_that_no_buffer_can_follow_is_fewer_connections() -> None:
    """Beyond the largest buffer that the server takes another way out is named."""
    scenario = make_scenario(direction="upload", connections=1000)
    window, _ = list_windows(scenario, make_server(), make_client())
    assert window.fix == "fewer --connections"
