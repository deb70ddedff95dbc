"""
The first process of a container waits, and then is the role and nothing else.
"""

import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

HELD = Path(__file__).resolve().parents[3] / "docker" / "held"
SHOW = "import os, sys; print(sys.argv[1:], os.getpid(), os.environ.get('SAID')); sys.exit(7)"


def start(folder: Path, *module: str) -> "subprocess.Popen[str]":
    """Start it in a folder."""
    return subprocess.Popen(
        [sys.executable, str(HELD), "--folder", str(folder), *module],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def words(*argv: str, **more: Any) -> str:
    """What it is told."""
    return json.dumps({"argv": argv, "environment": {}, "files": {}, **more}) + "\n"


def test_it_becomes_what_it_is_told(tmp_path: Path) -> None:
    """One process all along, with the role's words, environment, files and exit status."""
    with start(tmp_path) as held:
        told = words(
            *(sys.executable, "-c", SHOW, "word"),
            environment={"SAID": "yes"},
            files={"ca.pem": base64.b64encode(b"\x00\xff").decode()},
        )
        stdout, _ = held.communicate(told, timeout=30)
    assert (stdout, held.returncode) == (f"['word'] {held.pid} yes\n", 7)
    assert (tmp_path / "ca.pem").read_bytes() == b"\x00\xff"


def test_a_module_that_it_has_imported_runs_as_python_would_run_it(tmp_path: Path) -> None:
    """`python -m`: the package's main module, its words, and what it ends with."""
    package = tmp_path / "role"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "heavy.py").write_text("")
    (package / "__main__.py").write_text(
        "import sys\nprint(__name__, sys.argv[1:], 'role.heavy' in sys.modules)\nsys.exit(5)\n"
    )
    with start(tmp_path, "role.heavy") as held:
        stdout, _ = held.communicate(words(sys.executable, "-m", "role", "--x"), timeout=30)
    assert (stdout, held.returncode) == ("__main__ ['--x'] True\n", 5)


def test_it_ends_with_the_lab(tmp_path: Path) -> None:
    """An end of stdin without words: nothing is started, nothing is said."""
    with start(tmp_path) as held:
        assert held.communicate("", timeout=30) == ("", "")
    assert held.returncode == 0


def test_interrupt_ends_it_while_it_waits(tmp_path: Path) -> None:
    """Without a traceback."""
    (tmp_path / "slow.py").write_text("print('here', flush=True)\nimport time\ntime.sleep(60)\n")
    with start(tmp_path, "slow") as held:
        assert held.stdout is not None
        held.stdout.readline()
        os.kill(held.pid, signal.SIGINT)
        assert held.communicate(timeout=30) == ("", "")
    assert held.returncode == 130
