"""
The command as a person runs it: words in, lines and an exit code out, a folder left.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.quiclab.runner.test_process import need_local_tracing

TASKS = Path(__file__).resolve().parents[2] / "tasks.py"
TIME_LIMIT_S = 60


def start(*words: str, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    """Start a command in a process group of its own, as a shell does."""
    return subprocess.Popen(
        [sys.executable, str(TASKS), *words],
        cwd=cwd,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def test_a_dead_engine_that_is_named_is_one_line(tmp_path: Path) -> None:
    """DOCKER_HOST without an engine behind it: exit 4, the address, and nothing made."""
    address = f"unix://{tmp_path}/none.sock"
    process = start("trace", cwd=tmp_path, DOCKER_HOST=address)
    out, err = process.communicate(timeout=TIME_LIMIT_S)
    assert process.returncode == 4
    assert out == ""
    assert err.startswith(f"trace: no Docker engine answers at {address} (from DOCKER_HOST)")
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("before", "behind", "status", "said"),
    [
        ("", "scripts >/dev/full", 4, "invoke: cannot write to stdout: No space left on device\n"),
        ("", "trace --plan --runner local >/dev/full", 0, "note      what is printed here is lost"),
        ("", "trace --plan --runner local >&-", 0, ""),
        ("", "trace --plan --runner local 2>&-", 0, ""),
        (
            "mkdir gone && cd gone && rmdir ../gone;",
            "trace --plan --runner local",
            2,
            "invoke: the current directory is gone; cd to one that exists\n",
        ),
    ],
    ids=["full", "full-trace", "no-stdout", "no-stderr", "no-directory"],
)
def test_a_shell_that_gives_little_gets_one_line(
    tmp_path: Path, before: str, behind: str, status: int, said: str
) -> None:
    """A full disk, a closed stream or a removed directory is no traceback."""
    command = f'{before} exec "$0" "$1" {behind}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, str(TASKS)],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr[: len(said)]) == (status, said), done.stderr
    assert len(done.stderr.splitlines()) <= 1


@pytest.mark.real
@pytest.mark.slow
def test_a_local_trace_fills_a_folder_below_the_callers_directory(tmp_path: Path) -> None:
    """From words to files: the JSON line names a folder whose figures hold."""
    need_local_tracing()
    words = ["trace", "--runner", "local", "--buffer", "8M", "--duration", "300ms", "--json"]
    process = start(*words, cwd=tmp_path)
    out, err = process.communicate(timeout=TIME_LIMIT_S)
    assert process.returncode == 0, err
    document = json.loads(out)
    folder = Path(document["folder"])
    assert folder.parent == tmp_path / "artifacts"
    assert (tmp_path / "artifacts" / "latest").resolve() == folder
    assert document["manifest"]["asked"]["buffer"] == 8_000_000
    assert document["manifest"]["verdict"]["word"] == "ok"
    assert json.loads((folder / "manifest.json").read_text()) == document["manifest"]
    assert "verdict   ok: " in err


@pytest.mark.real
@pytest.mark.slow
def test_interrupting_the_command_ends_the_run_in_order(tmp_path: Path) -> None:
    """Ctrl-C in the load: exit 130, the verdict, the folder, and one line that says why."""
    need_local_tracing()
    process = start("trace", "--runner", "local", "--duration", "50s", cwd=tmp_path)
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("load "):
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIME_LIMIT_S)
    assert process.returncode == 130, "".join(said) + out + err
    assert err == "trace: ended by SIGINT\n"
    lines = out.splitlines()
    assert any(line.startswith("verdict   invalid: ") for line in lines)
    manifest = json.loads((tmp_path / lines[-1] / "manifest.json").read_text())
    assert manifest["state"] == "interrupted"
