"""
server.probes: the table, the loader, and real bpftrace on real probes.
"""

import contextlib
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import server.probes
from server.probes import (
    MMSG_FINISH_SEND,
    PROBES,
    PROVIDER,
    LoadedProvider,
    ProbeError,
    ProbeSpec,
    load_provider,
)
from tests.server.firing import (
    REPOSITORY,
    firing,
    render_script,
    require_library,
    tracing,
    values_of,
    wait_until,
)
from tests.userland import require_userland

# The original's table, in its own words (s2n-quic pull request 1866).
ORIGINAL = """
s2n_quic_platform__socket__io__{tx,rx}__{acquire,release} channel count
s2n_quic_platform__socket__io__tx__write channel message segment_index segment_size
s2n_quic_platform__socket__io__rx__read channel message segment_index segment_size
s2n_quic_platform__socket__io__tx__finish_write channel message segment_count segment_size
s2n_quic_platform__socket__io__rx__finish_read channel message segment_count segment_size
s2n_quic_platform__socket__ring__{consumer,producer}__{acquire,release} channel index count capacity
s2n_quic_platform__socket__task__{tx,rx}__{acquire,release} channel count
s2n_quic_platform__socket__task__{tx,rx}__finish channel message
s2n_quic_platform__syscall__mmsg__{start_send,start_recv} fd mmsghdr message_count
s2n_quic_platform__syscall__mmsg__{finish_send,finish_recv} fd mmsghdr message_count error
s2n_quic_platform__syscall__msg__{start_send,start_recv} fd msghdr
s2n_quic_platform__syscall__msg__{finish_send,finish_recv} fd msghdr error
s2n_quic_core__buffer__receive_buffer__alloc offset capacity
s2n_quic_core__buffer__receive_buffer__{write,pop} offset len
"""
# This server's own: a past-tense fact, its time last.
OWN = {"message_sent": ("channel", "message", "wait_ns")}


def _expand(pattern: str) -> list[str]:
    found = re.search(r"\{([^}]*)\}", pattern)
    if found is None:
        return [pattern]
    head, tail = pattern[: found.start()], pattern[found.end() :]
    return [name for word in found[1].split(",") for name in _expand(head + word + tail)]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedProvider:
    """The probes, in this process."""
    require_library()
    return load_provider(tmp_path_factory.mktemp("provider"))


def test_table_is_the_originals() -> None:
    """Every probe has the original's name and arguments; our own stand behind them."""
    expected = {
        name: tuple(arguments)
        for pattern, *arguments in (line.split() for line in ORIGINAL.split("\n") if line)
        for name in _expand(pattern)
    }
    assert {spec.name: spec.arguments for spec in PROBES} == expected | OWN
    assert len(PROBES) == 29 + len(OWN)
    assert {spec.name for spec in PROBES[29:]} == set(OWN)
    assert all(spec.arguments[-1].endswith("_ns") for spec in PROBES[29:])


def test_index_constants_follow_the_table() -> None:
    """Each constant is the place of the probe it is named after."""
    prefix = r"s2n_quic_(platform__(socket__|syscall__)|core__buffer__)"
    for index, spec in enumerate(PROBES):
        constant = re.sub(prefix, "", spec.name).replace("__", "_").upper()
        assert getattr(server.probes, constant) == index


def test_native_module_has_the_same_order() -> None:
    """The C enum lists the same probes in the same order."""
    header = (REPOSITORY / "server/udp/native/probes.h").read_text()
    found = re.search(r"enum probe \{([^}]*)\}", header)
    assert found is not None
    *names, last = re.findall(r"\w+", found[1])
    assert [getattr(server.probes, name) for name in names] == list(range(len(PROBES)))
    assert last == "PROBE_COUNT"


@pytest.mark.parametrize(
    ("name", "argument_count"),
    [("tx__write", 7), ("größe", 1), ("", 0), ("a b", 0), ("2nd", 0)],
    ids=["seven arguments", "not ASCII", "empty", "a space", "a digit first"],
)
def test_probe_that_cannot_work_is_refused_when_defined(name: str, argument_count: int) -> None:
    """A wrong definition fails at start-up and not when a tracer attaches."""
    with pytest.raises(ProbeError, match=f"probe .*{name}"):
        ProbeSpec(name, ("value",) * argument_count)


@pytest.mark.parametrize(
    "values",
    [(1, 2, 3, 0.5), (1, 2, 3, "4"), (1, 2, 3, 2**63), (1, 2, 3, None), (1, 2, 3), (1, 2, 3, 4, 5)],
    ids=["float", "text", "too large", "None", "too few", "too many"],
)
def test_wrong_values_are_refused_whether_or_not_anyone_listens(
    loaded: LoadedProvider, values: tuple[int, ...]
) -> None:
    """What would fail under a tracer fails without one, and with the probes off, alike."""
    off = load_provider(None, library=Path("absent/libstapsdt.so"))
    for provider in (loaded, off):
        with pytest.raises(ProbeError, match="mmsg__finish_send"):
            provider.fire(MMSG_FINISH_SEND, *values)


def test_import_of_the_table_loads_no_library() -> None:
    """Reading the table from outside maps neither libstapsdt nor its wrapper."""
    code = (
        "import sys, server.probes\n"
        "maps = open('/proc/self/maps').read()\n"
        "sys.exit('stapsdt' in sys.modules or 'libstapsdt' in maps)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False)
    assert done.returncode == 0


def test_missing_library_turns_probes_off_with_one_line() -> None:
    """Without libstapsdt everything works un-instrumented, and one line says what to do."""
    provider = load_provider(None, library=Path("absent/libstapsdt.so"))
    assert not provider.is_on
    assert provider.path is None
    assert provider.site_addresses == (0,) * len(PROBES)
    assert not provider.is_traced(0)
    provider.fire(0, 1, 2)
    assert provider.note == (
        "no probe can fire: libstapsdt.so is not in absent; run python -m server.build, "
        "or pass --probes off"
    )


def test_unusable_library_turns_probes_off_with_one_line(tmp_path: Path) -> None:
    """A library of another machine, or half a file, is a line and not a crash."""
    library = tmp_path / "libstapsdt.so"
    library.write_bytes(b"\x7fELF")
    provider = load_provider(None, library=library)
    assert not provider.is_on
    assert f"{library} cannot be used" in provider.note
    assert "\n" not in provider.note


def test_refused_directory_turns_probes_off_with_one_line(tmp_path: Path) -> None:
    """A directory that others can write to is not used, and the line says why."""
    require_library()
    tmp_path.chmod(0o777)
    provider = load_provider(tmp_path)
    assert not provider.is_on
    assert f"{tmp_path} has mode 0777, so others can put code there" in provider.note
    assert list(tmp_path.iterdir()) == []


def test_provider_is_loaded_once_per_directory(loaded: LoadedProvider) -> None:
    """Asking again gives the same provider, whose sites native code may be firing."""
    assert loaded.path is not None
    assert load_provider(loaded.path.parent) is loaded
    assert loaded.note == ""
    assert len(set(loaded.site_addresses)) == len(PROBES)
    assert all(loaded.site_addresses)


def test_untraced_probes_fire_in_silence(loaded: LoadedProvider) -> None:
    """With nobody listening every probe can be fired and none says it is traced."""
    for index in range(len(PROBES)):
        loaded.fire(index, *values_of(index))
        assert not loaded.is_traced(index)


def test_end_of_the_interpreter_is_quiet(tmp_path: Path) -> None:
    """The wrapper's destructor, which unmaps sites, runs neither at the end nor by collection."""
    require_library()
    code = (
        "import gc, pathlib, sys, server.probes\n"
        "provider = server.probes.load_provider(pathlib.Path(sys.argv[1]))\n"
        "server.probes._LOADED.clear(); gc.collect(); sys.modules.clear(); gc.collect()\n"
        "maps = open('/proc/self/maps').read()\n"
        "provider.fire(0, 1, 2); print(maps.count(str(provider.path)) > 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=REPOSITORY,
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_another_libstapsdt_in_the_process_is_noticed(tmp_path: Path) -> None:
    """When the wrapper was imported with some other library, no probe is trusted to it."""
    other = tmp_path / "libstapsdt.so"
    shutil.copy(require_library(), other)
    code = (
        "import ctypes, pathlib, sys\n"
        "ctypes.CDLL(sys.argv[1]); import stapsdt, server.probes\n"
        "print(server.probes.load_provider(pathlib.Path(sys.argv[2])).note)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(other), str(tmp_path / "provider")],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "stapsdt was imported earlier with another libstapsdt" in done.stdout


def _each(pid: int, count: int) -> Counter[tuple[int, int]]:
    """Every probe hit so often by one process."""
    return Counter({(index, pid): count for index in range(len(PROBES))})


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("suite", ["bookworm", "trixie", "sid"])
def test_every_probe_arrives_with_exact_values(suite: str, tmp_path: Path) -> None:
    """Each bpftrace lists all probes, sees every value of 64 bits, and the process knows it."""
    userland = require_userland(suite)
    require_library()
    with firing(tmp_path / "provider") as [firer]:
        listed = userland.run(["bpftrace", "-l", f"usdt:{firer.path}:*"], timeout_s=30)
        expected = {f"usdt:{firer.path}:{PROVIDER}:{spec.name}" for spec in PROBES}
        assert set(listed.stdout.split()) == expected
        assert firer.traced_count() == 0
        with tracing(userland, render_script(firer.path), tmp_path) as tracer:
            tracer.wait_until_ready()
            assert firer.traced_count() == len(PROBES)
            firer.ask("fire", 1)
            firer.ask("call", 2)
            values = tracer.read_values(expected_count=3 * len(PROBES))
            counts = tracer.finish()
        wait_until(lambda: firer.traced_count() == 0)
        firer.ask("fire", 1)
    assert values == Counter([(index, *values_of(index)) for index in range(len(PROBES))] * 3)
    assert counts == _each(firer.pid, 3)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_one_attach_by_path_covers_every_process(suite: str, tmp_path: Path) -> None:
    """
    Two processes, one started after the attach, and workers forked after hits are all counted.
    """
    userland = require_userland(suite)
    require_library()
    directory = tmp_path / "provider"
    with contextlib.ExitStack() as stack:
        [early] = stack.enter_context(firing(directory))
        tracer = stack.enter_context(tracing(userland, render_script(early.path), tmp_path))
        tracer.wait_until_ready()
        [late] = stack.enter_context(firing(directory))
        assert late.path == early.path
        assert late.traced_count() == len(PROBES)
        early.ask("fire", 2)
        late.ask("fire", 3)
        forked = [_each(pid, 1) for pid in late.ask("fork", 2)]
        counts = tracer.finish()
    assert counts == sum(forked, _each(early.pid, 2) + _each(late.pid, 3))


@pytest.mark.real
@pytest.mark.slow
def test_attach_by_process_counts_that_process_alone(tmp_path: Path) -> None:
    """With -p PID the other process that maps the same file does not count."""
    userland = require_userland("bookworm")
    require_library()
    with firing(tmp_path / "provider", process_count=2) as [chosen, other]:
        script = render_script(chosen.path)
        with tracing(userland, script, tmp_path, arguments=["-p", str(chosen.pid)]) as tracer:
            tracer.wait_until_ready()
            chosen.ask("fire", 1)
            other.ask("fire", 1)
            counts = tracer.finish()
    assert counts == _each(chosen.pid, 1)


@pytest.mark.real
@pytest.mark.slow
def test_command_run_through_the_provider_file_is_traced_from_its_start(tmp_path: Path) -> None:
    """`bpftrace -c 'PROVIDER.so python ...'` sees every probe of the program it starts."""
    userland = require_userland("bookworm")
    require_library()
    directory = tmp_path / "provider"
    with firing(directory) as [firer]:
        path = firer.path
    command = f"{path} {sys.executable} -m tests.server.firing {directory} fire:2"
    script = render_script(path)
    with tracing(userland, script, tmp_path, arguments=["-c", command]) as tracer:
        counts = tracer.finish(interrupts=False)
    [pid] = {pid for _, pid in counts}
    assert counts == _each(pid, 2)
