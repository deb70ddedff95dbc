"""
Close reasons are told in words that need no table.
"""

import pytest

from client.closing import Close


@pytest.mark.parametrize(
    ("error_code", "frame_type", "name"),
    [
        pytest.param(0, None, "no_error", id="application-none"),
        pytest.param(0, 6, "no_error", id="transport-none"),
        pytest.param(5, None, "application error 5", id="application"),
        pytest.param(3, 8, "flow_control_error", id="transport"),
        pytest.param(0x12A, 6, "TLS alert 42 (bad_certificate)", id="alert"),
        pytest.param(0x1FE, 6, "TLS alert 254 (code 254)", id="unknown-alert"),
        pytest.param(0x7777, 6, "code 30583", id="unknown"),
    ],
)
def test_close_names_its_error(error_code: int, frame_type: int | None, name: str) -> None:
    """
    Transport errors, TLS alerts and the application's own codes are told apart.
    """
    close = Close(
        connection=0, error_code=error_code, frame_type=frame_type, reason="", by="server"
    )

    assert close.error_name == name


def test_close_renders_who_and_why() -> None:
    """
    One sentence holds connection, side, error and the peer's own words.
    """
    close = Close(
        connection=3, error_code=0x12A, frame_type=6, reason="hostname doesn't match", by="client"
    )

    assert close.render() == (
        "connection 3 was closed by the client (TLS alert 42 (bad_certificate)): "
        "hostname doesn't match"
    )


def test_close_by_silence_blames_neither_side() -> None:
    """
    An idle timeout is told as silence.
    """
    close = Close(connection=0, error_code=1, frame_type=0, reason="Idle timeout", by="idle")

    assert close.render() == "connection 0 ended because neither side was heard: Idle timeout"
