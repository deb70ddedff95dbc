"""
Builds the two C parts of the server, each by one compiler call, when they changed.

`python -m server.build` makes `server/udp/_native.*.so` (the system calls) and
`server/stapsdt/libstapsdt.so` (the probes' library). What was built is skipped
while a stamp beside it holds the hash of the sources, the interpreter and the
flags. Files are put in place atomically, so that a server that runs meanwhile
keeps the one it has.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from server.exits import ExitStatus

_HERE: Final = Path(__file__).resolve().parent
_FLAGS: Final = ("-O2", "-g", "-std=gnu11", "-Wall", "-Wextra", "-fPIC", "-shared")
COMPILE_TIMEOUT_S: Final = 120


class BuildError(Exception):
    """Something cannot be built here; one line says what is missing and what to do (exit 4)."""


@dataclass(frozen=True, slots=True)
class Part:
    """
    One shared object and what it is made of.

    Args:
        target: The file to make.
        sources: C files, compiled by one call.
        headers: Files that they include, so that a change of one counts.
        flags: Besides the common ones.
    """

    target: Path
    sources: tuple[Path, ...]
    headers: tuple[Path, ...]
    flags: tuple[str, ...]


def find_parts(directory: Path = _HERE) -> list[Part]:
    """
    List what there is to build under a server's folder.
    """
    native = directory / "udp" / "native"
    library = directory / "stapsdt"
    return [
        Part(
            target=directory / "udp" / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}",
            sources=tuple(sorted(native.glob("*.c"))),
            headers=tuple(sorted(native.glob("*.h"))),
            flags=("-fvisibility=hidden", "-I", sysconfig.get_path("include")),
        ),
        Part(
            target=library / "libstapsdt.so",
            sources=tuple(sorted(library.glob("*.c"))),
            headers=tuple(sorted(library.glob("*.h"))),
            # `import stapsdt` finds the library by this name once it is loaded.
            flags=("-Wl,-soname,libstapsdt.so",),
        ),
    ]


def find_compiler() -> str | None:
    """
    Find the C compiler: $CC, else cc, gcc or clang.
    """
    asked = os.environ.get("CC")
    names = [asked] if asked else ["cc", "gcc", "clang"]
    return next((path for name in names if (path := shutil.which(name))), None)


def build(part: Part) -> bool:
    """
    Build one part, unless what is there was built from the same.

    Returns:
        Whether anything was done.

    Raises:
        BuildError: There is no compiler, or it refused.
    """
    stamp_path = part.target.with_name(part.target.name + ".stamp")
    stamp = _hash(part)
    if part.target.exists() and _read(stamp_path) == stamp:
        return False
    compiler = find_compiler()
    if compiler is None:
        raise BuildError(
            f"no C compiler was found to build {part.target.name}; "
            "sudo apt-get install gcc libc6-dev python3-dev, or name one in CC"
        )
    made = part.target.with_name(f".{part.target.name}.{os.getpid()}")
    try:
        _compile([compiler, *_FLAGS, *part.flags, *map(str, part.sources), "-o", str(made)], part)
        made.replace(part.target)
    finally:
        made.unlink(missing_ok=True)
    made_stamp = stamp_path.with_name(f".{stamp_path.name}.{os.getpid()}")
    made_stamp.write_text(stamp)
    made_stamp.replace(stamp_path)
    return True


def _compile(command: Sequence[str], part: Part) -> None:
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=COMPILE_TIMEOUT_S,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} could not build {part.target.name}: {error}") from error
    if done.returncode != 0:
        raise BuildError(_explain(done.stderr, part))


def _explain(words: str, part: Part) -> str:
    """
    Say in one line why the compiler refused.
    """
    errors = [line for line in words.splitlines() if "error" in line] or [words.strip()]
    missing = {
        "Python.h": "sudo apt-get install python3-dev",
        "stdio.h": "sudo apt-get install libc6-dev",
        "errno.h": "sudo apt-get install libc6-dev",
        "linux/": "sudo apt-get install linux-libc-dev",
    }
    advice = next(
        (fix for header, fix in missing.items() if header in errors[0] and "No such" in errors[0]),
        "see the compiler's words",
    )
    return f"{part.target.name} could not be built: {errors[0]}; {advice}"


def _hash(part: Part) -> str:
    digest = hashlib.sha256()
    digest.update(f"{sys.version}\0{_FLAGS}\0{part.flags}\0{os.environ.get('CC')}".encode())
    for path in (*part.sources, *part.headers):
        digest.update(f"\0{path.name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> str | None:
    with contextlib.suppress(OSError):
        return path.read_text()
    return None


def main() -> ExitStatus:
    """
    Build everything; one line a part.
    """
    for part in find_parts():
        if not part.sources:
            print(f"{part.target.name}: no sources")
            continue
        try:
            done = build(part)
        except BuildError as error:
            print(f"server.build: {error}", file=sys.stderr)
            return ExitStatus.MACHINE_CANNOT
        print(f"{part.target.name}: {'built' if done else 'up to date'}")
    return ExitStatus.OK


if __name__ == "__main__":
    sys.exit(main())
