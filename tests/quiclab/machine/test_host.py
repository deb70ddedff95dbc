"""
Facts of the machine are read from its own files; what is not there is None.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from quiclab.machine.host import collect_git, collect_host, collect_sysctls, detect_features
from tests.conftest import need, without_rights


def write(root: Path, name: str, text: str) -> None:
    """Put a file into a made-up machine."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_host_of_this_machine_is_complete() -> None:
    """On a real machine the facts that matter most are there."""
    host = collect_host()
    assert host.kernel
    assert host.cpu_count >= host.usable_cpu_count >= 1
    assert host.memory_bytes > 0
    assert int(host.sysctls["net.core.rmem_max"]) > 0


def test_sysctls_that_a_kernel_lacks_are_left_out(tmp_path: Path) -> None:
    """Only what can be read is told, in one form of white space."""
    write(tmp_path, "proc/sys/net/core/rmem_max", "4194304\n")
    write(tmp_path, "proc/sys/net/ipv4/udp_mem", "1\t2\t3\n")
    assert {"net.core.rmem_max": "4194304", "net.ipv4.udp_mem": "1 2 3"} == collect_sysctls(
        tmp_path
    )


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("[none] integrity confidentiality\n", "none"),
        ("none [integrity] confidentiality\n", "integrity"),
        ("none integrity [confidentiality]\n", "confidentiality"),
        ("", None),
        (None, None),
    ],
)
def test_lockdown_is_the_word_in_brackets(
    tmp_path: Path, text: str | None, mode: str | None
) -> None:
    """An empty or absent file is unknown, not a refusal."""
    if text is not None:
        write(tmp_path, "sys/kernel/security/lockdown", text)
    assert mode == detect_features(tmp_path).lockdown


def test_kprobes_are_asked_of_the_kernel_itself(tmp_path: Path) -> None:
    """A kernel whose sources of events lack kprobe has none; without the list nobody knows."""
    assert detect_features(tmp_path).has_kprobes is None
    (tmp_path / "sys/bus/event_source/devices/uprobe").mkdir(parents=True)
    features = detect_features(tmp_path)
    assert (True, False) == (features.has_uprobes, features.has_kprobes)


@pytest.mark.parametrize("place", ["sys/kernel/tracing", "sys/kernel/debug/tracing"])
def test_tracefs_is_found_in_either_place(tmp_path: Path, place: str) -> None:
    """One of the two places is enough; an empty mount point is not."""
    (tmp_path / place).mkdir(parents=True)
    assert not detect_features(tmp_path).is_tracefs_mounted
    (tmp_path / place / "events").mkdir()
    assert detect_features(tmp_path).is_tracefs_mounted


def test_a_user_without_rights_gets_the_same_answers() -> None:
    """Tracefs is open to root alone; whether it is mounted stands in the list of mounts."""
    features = detect_features()
    with without_rights():
        assert detect_features() == features
        assert collect_host().kernel


def test_git_tells_commit_and_changes(tmp_path: Path) -> None:
    """A clone with a change in a tracked file is dirty; an untracked file is no change."""
    need(shutil.which("git") is not None, "git")

    def git(*words: str) -> None:
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True
        )

    git("init", "--initial-branch=main")
    write(tmp_path, "tracked", "1")
    git("add", "tracked")
    git("commit", "-m", "first")
    write(tmp_path, "untracked", "1")
    clean = collect_git(tmp_path)
    write(tmp_path, "tracked", "2")
    dirty = collect_git(tmp_path)
    assert (40, False, True) == (len(clean.commit or ""), clean.is_dirty, dirty.is_dirty)


def test_folder_without_a_clone_has_no_commit(tmp_path: Path) -> None:
    """A lab that was not cloned says that nothing is known."""
    facts = collect_git(tmp_path)
    assert (None, None) == (facts.commit, facts.is_dirty)
