"""
The wrapper: from a clone to a running task, whatever the directory and whoever else is at it.

The clone here is small (the wrapper, a lock of one package, a task that says what
it was given), so that the environment is made for real within seconds.
"""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIME_LIMIT_S = 120
TASKS = """
import json, os, sys
print(json.dumps({"words": sys.argv[1:], "directory": os.getcwd(), "python": sys.executable}))
sys.exit(6 if "degraded" in sys.argv else 0)
"""


def make_clone(directory: Path) -> Path:
    """A clone with the real wrapper, a lock of setuptools alone, and one task."""
    directory.mkdir(parents=True)
    shutil.copy2(ROOT / "invoke", directory / "invoke")
    (directory / "tasks.py").write_text(TASKS)
    lock = (ROOT / "requirements.lock").read_text()
    found = re.search(r"^setuptools==.*?[^\\]\n", lock, re.MULTILINE | re.DOTALL)
    assert found is not None
    (directory / "requirements.lock").write_text(found[0])
    return directory


def call(
    clone: Path, *words: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the wrapper to its end."""
    return subprocess.run(
        [str(clone / "invoke"), *words],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A clone below a folder with a space, its environment made."""
    clone = make_clone(tmp_path_factory.mktemp("a folder") / "the clone")
    done = call(clone)
    assert done.returncode == 0, done.stderr
    assert "packages by hash from requirements.lock" in done.stderr
    yield clone
    shutil.rmtree(clone)


@pytest.mark.slow
def test_words_directory_and_exit_code_pass_through(clone: Path, tmp_path: Path) -> None:
    """From another directory the task gets every word as it was, and its code comes back."""
    words = ["trace", "--label", "two words", "it's", "$HOME", "*", "", "degraded"]
    done = call(clone, *words, cwd=tmp_path)
    assert done.returncode == 6
    assert done.stderr == ""
    assert json.loads(done.stdout) == {
        "words": words,
        "directory": str(tmp_path),
        "python": str(clone / ".venv/bin/python"),
    }


@pytest.mark.slow
def test_a_link_to_the_wrapper_finds_its_clone(clone: Path, tmp_path: Path) -> None:
    """A symbolic link elsewhere runs the clone's tasks in the clone's environment."""
    (tmp_path / "lab").symlink_to(clone / "invoke")
    done = subprocess.run(
        [str(tmp_path / "lab")], capture_output=True, text=True, timeout=TIME_LIMIT_S, check=True
    )
    assert json.loads(done.stdout)["python"] == str(clone / ".venv/bin/python")


@pytest.mark.slow
def test_scripts_of_the_environment_know_where_they_are(clone: Path) -> None:
    """What was made under another name and renamed keeps no trace of that name."""
    done = subprocess.run(
        [str(clone / ".venv/bin/pip"), "--version"],
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=True,
    )
    assert str(clone / ".venv") in done.stdout
    for path in (clone / ".venv/bin").iterdir():
        assert b".venv.new-" not in path.read_bytes(), path


@pytest.mark.slow
def test_a_changed_lock_is_made_once_by_two_at_a_time(clone: Path) -> None:
    """Of two callers after a change of the lock one makes the environment, both run."""
    made_before = (clone / ".venv/quiclab-made-from").read_text()
    with (clone / "requirements.lock").open("a") as lock:
        lock.write("# changed\n")
    both = [
        subprocess.Popen(
            [str(clone / "invoke")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=TIME_LIMIT_S) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sum("packages by hash" in stderr for _, stderr in said) == 1
    assert (clone / ".venv/quiclab-made-from").read_text() != made_before
    assert sorted(path.name for path in clone.glob(".venv*")) == [".venv", ".venv.lock"]


@pytest.mark.slow
def test_an_end_in_the_middle_leaves_no_half_environment(tmp_path: Path) -> None:
    """TERM while the environment is made: exit 143, and no folder that looks like one."""
    clone = make_clone(tmp_path / "clone")
    process = subprocess.Popen(
        [str(clone / "invoke")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process.stderr:
        assert "packages by hash" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIME_LIMIT_S) == 143
    assert [path.name for path in clone.glob(".venv*")] == [".venv.lock"]


def test_an_interpreter_that_is_named_and_absent_is_one_line(tmp_path: Path) -> None:
    """QUICLAB_PYTHON is taken at its word: exit 4 when it does not run."""
    clone = make_clone(tmp_path / "clone")
    done = call(clone, QUICLAB_PYTHON="/nowhere/python3")
    assert done.returncode == 4
    assert re.fullmatch(r"invoke: QUICLAB_PYTHON=/nowhere/python3 does not run .*\n", done.stderr)
    assert not (clone / ".venv").exists()


def test_an_interpreter_that_is_too_old_is_one_line(tmp_path: Path) -> None:
    """The line says which version was found and which is needed."""
    clone = make_clone(tmp_path / "clone")
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\necho 3.9.2\nexit 1\n")
    old.chmod(0o755)
    done = call(clone, QUICLAB_PYTHON=str(old))
    assert done.returncode == 4
    assert done.stderr == (
        f"invoke: QUICLAB_PYTHON={old} does not run as Python 3.11 or newer: 3.9.2\n"
    )


def test_an_interpreter_without_the_venv_module_is_one_line(tmp_path: Path) -> None:
    """Where no Debian package belongs to it, the line says what to set instead."""
    clone = make_clone(tmp_path / "clone")
    poor = tmp_path / "python3"
    poor.write_text(
        '#!/bin/sh\ncase "$*" in *ensurepip*) exit 1 ;; esac\nexec /usr/bin/python3 "$@"\n'
    )
    poor.chmod(0o755)
    done = call(clone, QUICLAB_PYTHON=str(poor))
    assert done.returncode == 4
    assert done.stderr == (
        f"invoke: {poor} has no venv module; set QUICLAB_PYTHON to a Python that has it\n"
    )
