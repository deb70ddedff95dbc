"""
server/stapsdt, our libstapsdt: the provider file, its sharing, its checks, its handles.
"""

import ctypes
import os
import platform
import shutil
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import need
from tests.server.firing import REPOSITORY, require_library

EM_386, EM_X86_64, EM_AARCH64 = 3, 62, 183  # from elf.h
ARGUMENT_TYPES = (1, -1, 2, -2, 4, -4, 8, -8)
FIRE_OFFSET_BYTES = 32  # of the site in a probe's handle: a name, then six types of 4 bytes

POINTER, INT, TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "providerInit": (POINTER, [TEXT]),
    "providerAddProbe": (POINTER, [POINTER, TEXT, INT]),
    "providerUseMemfd": (INT, [POINTER, INT]),
    "providerLoad": (INT, [POINTER]),
    "providerUnload": (INT, [POINTER]),
    "providerDestroy": (None, [POINTER]),
    "probeFire": (None, [POINTER]),
    "probeIsEnabled": (INT, [POINTER]),
    "providerSetDirectory": (INT, [POINTER, TEXT]),
    "providerFile": (TEXT, [POINTER]),
    "providerError": (TEXT, [POINTER]),
    "probeSite": (POINTER, [POINTER]),
    "providerImage": (POINTER, [POINTER, INT, ctypes.POINTER(ctypes.c_ulong)]),
}


@pytest.fixture(scope="module")
def library() -> Any:
    """The library, with the signatures of its functions."""
    opened = ctypes.CDLL(str(require_library()))
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(opened, name)
        function.restype, function.argtypes = result, arguments
    return opened


@pytest.fixture
def provider(library: Any, tmp_path: Path) -> Iterator[int]:
    """A provider with two probes whose file goes to tmp_path."""
    yield (made := _make_provider(library, tmp_path))
    library.providerDestroy(made)


def _make_provider(library: Any, directory: Path, name: bytes = b"lab") -> int:
    made: int = library.providerInit(name)
    library.providerAddProbe(made, b"first", 1, -8)
    library.providerAddProbe(made, b"second", 6, -8, -8, -8, -8, -8, -8)
    assert library.providerSetDirectory(made, os.fsencode(directory)) == 0
    return made


def _image(library: Any, provider: int, machine: int) -> bytes | None:
    size = ctypes.c_ulong()
    address = library.providerImage(provider, machine, ctypes.byref(size))
    if address is None:
        return None
    image = ctypes.string_at(address, size.value)
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]
    libc.free(address)
    return image


def _host_machine() -> int:
    return {"x86_64": EM_X86_64, "aarch64": EM_AARCH64}[platform.machine()]


def _file(library: Any, provider: int) -> Path:
    return Path(os.fsdecode(library.providerFile(provider)))


def _error(library: Any, provider: int) -> str:
    words: bytes = library.providerError(provider)
    return words.decode()


def test_provider_file_holds_the_image_and_is_shared(
    library: Any, provider: int, tmp_path: Path
) -> None:
    """Loading again, here or in another process, maps the file that is there already."""
    assert library.providerLoad(provider) == 0
    path = _file(library, provider)
    assert path.parent == tmp_path
    assert path.read_bytes() == _image(library, provider, _host_machine())
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    inode = path.stat().st_ino
    same = _make_provider(library, tmp_path)
    assert library.providerLoad(same) == 0
    assert _file(library, same) == path
    other = _make_provider(library, tmp_path, b"another")
    assert library.providerLoad(other) == 0
    assert _file(library, other) != path
    for handle in (same, other):
        assert library.providerUnload(handle) == 0
        library.providerDestroy(handle)
    assert path.stat().st_ino == inode
    assert len(list(tmp_path.iterdir())) == 2


def test_processes_that_start_at_once_map_one_file(library: Any, tmp_path: Path) -> None:
    """Whoever loses the race to make the file takes the winner's: one inode for all."""
    directory = tmp_path / "provider"
    start_read, start_write = os.pipe()
    result_read, result_write = os.pipe()
    children = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            os.read(start_read, 1)
            made = _make_provider(library, directory)
            library.providerLoad(made)
            os.write(result_write, struct.pack("Q", _mapped_inode(directory)))
            os._exit(0)
        children.append(child)
    os.write(start_write, b"x" * len(children))
    statuses = [os.waitpid(child, 0)[1] for child in children]
    inodes = struct.unpack("8Q", os.read(result_read, 64))
    for fd in (start_read, start_write, result_read, result_write):
        os.close(fd)
    assert statuses == [0] * 8
    [path] = directory.iterdir()
    assert set(inodes) == {path.stat().st_ino}


def _mapped_inode(directory: Path) -> int:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(int(line.split()[4]) for line in lines if str(directory) in line)


@pytest.mark.parametrize("case", ["content", "length", "mode", "link", "fifo"])
def test_tampered_file_is_refused(library: Any, provider: int, tmp_path: Path, case: str) -> None:
    """A file that does not hold what belongs there, or that others could change, is not mapped."""
    assert library.providerLoad(provider) == 0
    path = _file(library, provider)
    assert library.providerUnload(provider) == 0
    content = path.read_bytes()
    path.unlink()
    if case == "link":
        (tmp_path / "real").write_bytes(content)
        path.symlink_to("real")
    elif case == "fifo":
        os.mkfifo(path, 0o755)
    else:
        changed = {"content": content[:-1] + b"?", "length": content + b"?"}.get(case, content)
        path.write_bytes(changed)
        path.chmod(0o775 if case == "mode" else 0o755)
    assert library.providerLoad(provider) == -1
    words = _error(library, provider)
    assert str(path) in words
    assert words.endswith("remove it")
    assert library.providerFile(provider) is None


def test_directory_that_others_can_write_to_is_refused(
    library: Any, provider: int, tmp_path: Path
) -> None:
    """Neither group nor others may be able to put code where it will be mapped from."""
    for mode in (0o777, 0o1777, 0o770):
        tmp_path.chmod(mode)
        assert library.providerLoad(provider) == -1
        assert f"has mode {mode:04o}, so others can put code there" in _error(library, provider)
    tmp_path.chmod(0o700)
    assert library.providerLoad(provider) == 0


@pytest.mark.real
@pytest.mark.parametrize("what", ["directory", "file"])
def test_what_belongs_to_someone_else_is_refused(
    library: Any, provider: int, tmp_path: Path, what: str
) -> None:
    """Another user's directory or file is never used, even by root."""
    need(os.geteuid() == 0, "root, to give a file away")
    assert library.providerLoad(provider) == 0
    path = _file(library, provider)
    assert library.providerUnload(provider) == 0
    os.chown(tmp_path if what == "directory" else path, 65534, -1)
    assert library.providerLoad(provider) == -1
    words = {"directory": "belongs to user 65534", "file": "is not a file of user 0"}[what]
    assert words in _error(library, provider)


@pytest.mark.real
def test_directory_mounted_noexec_is_named_as_the_reason(library: Any, tmp_path: Path) -> None:
    """Where code may not be mapped the error says so, and nothing crashes."""
    need(os.geteuid() == 0, "root, to mount a file system")
    code = (
        "import sys, pathlib, server.probes\n"
        "print(server.probes.load_provider(pathlib.Path(sys.argv[1])).note)"
    )
    mount = 'mount -t tmpfs -o noexec,mode=0700 tmpfs "$1" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "sh", tmp_path, sys.executable, code],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "is that file system mounted noexec?" in done.stdout


def test_default_directory_is_the_users_cache(
    library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a directory: $STAPSDT_DIRECTORY, then the cache, made for the user alone."""
    places = [
        ({"STAPSDT_DIRECTORY": f"{tmp_path}/own"}, "own"),
        ({"XDG_CACHE_HOME": f"{tmp_path}/cache"}, "cache/libstapsdt"),
        ({"XDG_CACHE_HOME": "relative", "HOME": str(tmp_path)}, ".cache/libstapsdt"),
        ({}, None),
    ]
    for variables, expected in places:
        for name in ("STAPSDT_DIRECTORY", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        made = library.providerInit(b"lab")
        assert library.providerLoad(made) == (-1 if expected is None else 0)
        if expected is None:
            assert "set STAPSDT_DIRECTORY" in _error(library, made)
        else:
            directory = tmp_path / expected
            assert _file(library, made).parent == directory
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        library.providerDestroy(made)


def test_anonymous_memory_leaves_no_file(library: Any, provider: int, tmp_path: Path) -> None:
    """With providerUseMemfd the provider is mapped from a memfd of this process alone."""
    assert library.providerUseMemfd(provider, 1) == 1
    assert library.providerLoad(provider) == 0
    assert list(tmp_path.iterdir()) == []
    assert "/memfd:lab (deleted)" in Path("/proc/self/maps").read_text()
    assert library.providerUnload(provider) == 0
    assert "/memfd:lab" not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize(
    ("name", "types", "words"),
    [
        (b"seven", (-8,) * 7, "probe seven has 7 arguments; 0 to 6 are possible"),
        ("größe".encode(), (), "a name that is not made of 1 to 200 ASCII letters"),
        (b"with space", (), "a name that is not made of"),
        (b"../up", (), "a name that is not made of"),
        (b"x" * 201, (), "a name that is not made of"),
        (b"first", (), "probe first is defined twice"),
        (b"odd", (8, 3, 8), "argument 1 of probe odd has type 3"),
        (b"none", (0,), "argument 0 of probe none has type 0"),
    ],
    ids=["seven", "not ASCII", "space", "path", "long", "twice", "3 bytes", "no bytes"],
)
def test_probe_that_cannot_work_is_refused_when_added(
    library: Any, provider: int, name: bytes, types: tuple[int, ...], words: str
) -> None:
    """A wrong definition gives no handle and a sentence; the provider stays usable."""
    assert library.providerAddProbe(provider, name, len(types), *types) is None
    assert words in _error(library, provider)
    assert library.providerLoad(provider) == 0
    assert _error(library, provider) == ""
    assert library.providerAddProbe(provider, b"late", 0) is None
    assert "is loaded; add probes before that" in _error(library, provider)


@pytest.mark.parametrize("name", [None, b"", b"a/b", b"..", "größe".encode(), b"x" * 201])
def test_provider_name_that_cannot_be_a_file_is_refused(library: Any, name: bytes | None) -> None:
    """A provider's name becomes a file name, so it holds neither slash nor anything odd."""
    assert library.providerInit(name) is None


def test_handles_outlive_their_provider(library: Any, tmp_path: Path) -> None:
    """Destroyed twice, unloaded, fired or asked after that: nothing happens, nothing crashes."""
    made = _make_provider(library, tmp_path)
    probe = library.providerAddProbe(made, b"third", 1, -8)
    library.probeFire(probe, 1)
    assert library.providerLoad(made) == 0
    assert library.providerLoad(made) == 0
    assert library.probeSite(probe) % 16 == 0
    library.probeFire(probe, 1)
    path = _file(library, made)
    for _ in range(2):
        library.providerDestroy(made)
        library.probeFire(probe, 1)
        assert library.probeIsEnabled(probe) == 0
        assert library.probeSite(probe) is None
        assert library.providerLoad(made) == -1
        assert library.providerUnload(made) == -1
        assert library.providerFile(made) is None
        assert library.providerAddProbe(made, b"fourth", 0) is None
    assert str(path) not in Path("/proc/self/maps").read_text()
    assert path.exists()


def test_absent_handles_do_nothing(library: Any) -> None:
    """NULL, which the wrapper passes on after any failure, is tolerated everywhere."""
    assert library.providerAddProbe(None, b"first", 0) is None
    assert library.providerLoad(None) == -1
    assert library.providerUnload(None) == -1
    assert library.probeIsEnabled(None) == 0
    library.probeFire(None, 1)
    library.providerDestroy(None)


@pytest.mark.parametrize("argument_type", ARGUMENT_TYPES)
def test_arguments_are_extended_by_their_type(
    library: Any, provider: int, argument_type: int
) -> None:
    """The site gets the low bytes of a value, extended by sign or zeros, in all six registers."""
    seen: list[tuple[int, ...]] = []

    def see(*values: int) -> None:
        seen.append(values)

    site = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)(see)
    probe = library.providerAddProbe(provider, b"third", 6, *[argument_type] * 6)
    address = ctypes.cast(site, ctypes.c_void_p)
    ctypes.memmove(probe + FIRE_OFFSET_BYTES, ctypes.byref(address), 8)
    given = (-1, 2**53 + 1, 2**63 - 1, -(2**63), 0x80, 0x8000_8000_8000)
    library.probeFire(probe, *map(ctypes.c_int64, given))
    ctypes.memset(probe + FIRE_OFFSET_BYTES, 0, 8)
    size = abs(argument_type)
    low = [value.to_bytes(8, "little", signed=True)[:size] for value in given]
    expected = tuple(int.from_bytes(part, "little", signed=argument_type < 0) for part in low)
    if argument_type == 8:  # eight unsigned bytes come back through a signed register
        expected = given
    assert seen == [expected]


@pytest.mark.parametrize(
    ("machine", "arguments"),
    [
        (EM_X86_64, "1@%dil -2@%si 4@%edx -8@%rcx 8@%r8 -1@%r9b"),
        (EM_AARCH64, "1@x0 -2@x1 4@x2 -8@x3 8@x4 -1@x5"),
    ],
    ids=["x86-64", "arm64"],
)
def test_image_is_a_sound_elf_file_with_notes(
    library: Any, provider: int, tmp_path: Path, machine: int, arguments: str
) -> None:
    """Both machines' files pass binutils without a warning and carry the notes of sys/sdt.h."""
    need(shutil.which("readelf") is not None, "readelf (apt-get install binutils)")
    library.providerAddProbe(provider, b"mixed", 6, 1, -2, 4, -8, 8, -1)
    image = _image(library, provider, machine)
    assert image is not None
    assert image == _image(library, provider, machine)
    path = tmp_path / "image.so"
    path.write_bytes(image)
    read = subprocess.run(
        ["readelf", "--all", "--wide", path],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    assert read.stderr == ""
    assert "Warning" not in read.stdout
    notes = read.stdout[read.stdout.index("Displaying notes") :]
    assert notes.count("NT_STAPSDT") == 3
    assert notes.count("Provider: lab") == 3
    assert f"Name: mixed\n    Location: 0x{_site_of(image, 2):016x}" in notes
    assert f"Arguments: {arguments}\n" in notes
    assert "Semaphore: 0x0000000000000000" in notes
    assert (
        "GNU_STACK      0x000000 0x0000000000000000 0x0000000000000000 0x000000 0x000000 RW "
        in (read.stdout)
    )


def _site_of(image: bytes, index: int) -> int:
    """Offset of a probe's site: the first after the entry, each 16 bytes on, by its code."""
    code = {
        EM_X86_64: bytes.fromhex("0f1f440000c3"),
        EM_AARCH64: bytes.fromhex("1f2003d5c0035fd6"),
    }[struct.unpack_from("<H", image, 18)[0]]
    site = image.index(code) + 16 * index
    assert image[site : site + len(code)] == code
    return site


def test_machine_without_sites_has_no_image(library: Any, provider: int) -> None:
    """Elsewhere there is no provider file, rather than one that cannot work."""
    assert _image(library, provider, EM_386) is None


@pytest.mark.parametrize("machine", [EM_X86_64, EM_AARCH64], ids=["x86-64", "arm64"])
def test_provider_file_runs_the_program_it_is_given(
    library: Any, provider: int, tmp_path: Path, machine: int
) -> None:
    """As a program it becomes its arguments, environment kept; without a usable one it says so."""
    emulator = [] if machine == _host_machine() else _find_emulator(machine)
    path = tmp_path / "image.so"
    path.write_bytes(_image(library, provider, machine) or b"")
    path.chmod(0o755)

    def run(*arguments: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [*emulator, path, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={"LAB": "kept"},
        )
        return done.returncode, done.stdout, done.stderr

    words = "probe provider: give the full path of a program that can run, then its arguments\n"
    assert run("/bin/sh", "-c", 'echo "$LAB $0 $1"; exit 7', "a b", "c") == (7, "kept a b c\n", "")
    assert run() == (2, "", words)
    assert run(f"{tmp_path}/absent", "a") == (127, "", words)


def _find_emulator(machine: int) -> list[str]:
    name = {EM_X86_64: "qemu-x86_64", EM_AARCH64: "qemu-aarch64"}[machine]
    path = shutil.which(name) or shutil.which(f"{name}-static")
    need(path is not None, f"{name} (apt-get install qemu-user)")
    assert path is not None
    return [path]
