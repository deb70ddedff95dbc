"""Asking a kernel which probes it has, on file trees like those of real ones."""

import tempfile
from pathlib import Path

import pytest

from quiclab.trace.kernel import KernelProbes, detect_kernel_probes
from tests.conftest import without_rights


def kernel(root: Path, *, sources: list[str], has_btf: bool = True) -> Path:
    """Lay out what a kernel shows in sysfs."""
    for source in sources:
        (root / "sys/bus/event_source/devices" / source).mkdir(parents=True)
    if has_btf:
        (root / "sys/kernel/btf").mkdir(parents=True)
        (root / "sys/kernel/btf/vmlinux").write_bytes(b"\x9f\xeb")
    return root


def test_kprobes_are_told_by_their_event_source(tmp_path: Path) -> None:
    """A kernel without kprobes has no event source of that name, and says so."""
    with_them = detect_kernel_probes(kernel(tmp_path / "a", sources=["uprobe", "kprobe"]))
    without = detect_kernel_probes(kernel(tmp_path / "b", sources=["uprobe"]))
    assert (True, True) == (with_them.has_kprobes, with_them.has_uprobes)
    assert (False, True) == (without.has_kprobes, without.has_uprobes)


def test_without_sysfs_nothing_is_claimed(tmp_path: Path) -> None:
    """Where sysfs is not seen the answer is unknown, not no."""
    facts = detect_kernel_probes(tmp_path)
    assert (None, None) == (facts.has_kprobes, facts.has_uprobes)
    assert facts.has_btf is False


@pytest.mark.parametrize("place", ["sys/kernel/tracing", "sys/kernel/debug/tracing"])
@pytest.mark.parametrize(("functions", "has_fentry"), [("vfs_read\n", True), ("", False)])
def test_fentry_needs_functions_that_can_be_traced(
    tmp_path: Path, place: str, functions: str, has_fentry: bool
) -> None:
    """Either place of tracefs answers; an empty list of functions means no fentry."""
    root = kernel(tmp_path, sources=["uprobe"])
    (root / place).mkdir(parents=True)
    (root / place / "available_filter_functions").write_text(functions)
    assert has_fentry == detect_kernel_probes(root).has_fentry


def test_fentry_needs_btf(tmp_path: Path) -> None:
    """Without BTF there is no fentry, whatever else there is."""
    assert detect_kernel_probes(kernel(tmp_path, sources=["uprobe"], has_btf=False)) == (
        KernelProbes(has_kprobes=False, has_fentry=False, has_uprobes=True, has_btf=False)
    )


def test_fentry_is_unknown_while_tracefs_is_not_mounted(tmp_path: Path) -> None:
    """An empty mount point is no answer."""
    root = kernel(tmp_path, sources=["uprobe"])
    (root / "sys/kernel/tracing").mkdir(parents=True)
    assert detect_kernel_probes(root).has_fentry is None


def test_fentry_is_unknown_to_a_user_who_may_not_look() -> None:
    """A user of an engine is no root, and its tracer is: a closed door refuses nothing."""
    with tempfile.TemporaryDirectory() as folder:
        root = kernel(Path(folder), sources=["uprobe"])
        root.chmod(0o755)
        (root / "sys/kernel/tracing").mkdir(mode=0)
        with without_rights():
            assert detect_kernel_probes(root).has_fentry is None
