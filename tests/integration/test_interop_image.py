"""
picoquic against our server, in the image, where its Python is new enough.
"""

import contextlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quiclab.containers.engine import connect_engine, find_engine_address
from quiclab.containers.image import Recipe, find_image, render_tag
from quiclab.errors import LabError
from tests.conftest import need

SCRIPT = Path(__file__).resolve().parents[1] / "interop" / "aiopquic_client.py"
CONTROL = "/run/quiclab/server.sock"
RECEIVE_BYTES = 3_000_001
SEND_BYTES = 2_000_003

pytestmark = [pytest.mark.docker, pytest.mark.slow]


class Container:
    """A container of the image, with a server as its process and loopback as its network."""

    def __init__(self, container: Any) -> None:
        self._container = container

    def put(self, name: str, data: bytes) -> str:
        """
        Put a file into the container; its path there.
        """
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        assert self._container.put_archive("/var/lib/quiclab", packed.getvalue())
        return f"/var/lib/quiclab/{name}"

    def run(self, *argv: str) -> dict[str, Any]:
        """
        Run a program that prints JSON, and expect it to succeed.
        """
        result = self._container.exec_run(list(argv), demux=True)
        out, err = result.output
        assert result.exit_code == 0, (out, err)
        answer: dict[str, Any] = json.loads(out)
        return answer

    def ask(self, op: str) -> dict[str, Any]:
        """
        Ask the server over its control socket.
        """
        return self.run("python", "-m", "server.control", CONTROL, "--wait", "20", op)


@pytest.fixture
def container() -> Iterator[Container]:
    """
    The image that `invoke test` made, running a server that checks what is uploaded.
    """
    try:
        engine = connect_engine(find_engine_address(os.environ))
    except LabError as error:
        need(False, f"a Docker engine ({error})")
        raise
    with contextlib.closing(engine):
        tag = render_tag(Recipe(target="interop"))
        need(find_image(engine, tag) is not None, f"the image {tag}; ./invoke test makes it")
        # picoquic takes datagrams of 1,440 bytes and drops larger ones, as it says.
        server = ("python", "-m", "server", "--ip", "127.0.0.1", "--probes", "off")
        options = ("--verify-content", "--strict-peer-limit", "--control", CONTROL)
        made = engine.client.containers.create(
            tag, [*server, *options], network_mode="none", init=True
        )
        try:
            made.start()
            yield Container(made)
        finally:
            made.remove(force=True)


def test_picoquic_downloads_and_uploads_every_byte(container: Container) -> None:
    """
    Both kinds of stream, megabytes both ways, compared by picoquic's side and by the server.
    """
    description = container.ask("describe")
    ca_path = container.put("ca.pem", description["certificate_pem"].encode())
    script_path = container.put(SCRIPT.name, SCRIPT.read_bytes())

    result = container.run(
        *("python", script_path, "--ip", "127.0.0.1", "--port", str(description["address"][1])),
        *("--server-name", description["server_name"], "--ca-file", ca_path),
        *("--receive", str(RECEIVE_BYTES), "--send", str(SEND_BYTES)),
    )

    assert [(case["kind"], case["ok"]) for case in result["cases"]] == [
        ("bidi", True),
        ("uni", True),
    ]
    assert result["cases"][0]["received_bytes"] == RECEIVE_BYTES
    perf = container.ask("report")["total"]["perf"]
    assert perf["upload_byte_count"] == 2 * SEND_BYTES
    assert perf["content_error_count"] == 0
