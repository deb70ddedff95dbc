"""
Our libstapsdt: where its sources and the built library stand, and how it is compiled.
"""

from pathlib import Path
from typing import Final

DIRECTORY: Final = Path(__file__).resolve().parent
LIBRARY: Final = DIRECTORY / "libstapsdt.so"
SONAME: Final = "libstapsdt.so"  # the name under which `import stapsdt` opens it


def find_sources() -> list[Path]:
    """
    All files that the library is made of, headers included, in a stable order.
    """
    return sorted([*DIRECTORY.glob("*.c"), *DIRECTORY.glob("*.h")])


def compile_command(compiler: str, output: Path) -> list[str]:
    """
    The one compiler call that makes the library.

    Args:
        compiler: Such as "cc".
        output: Where the shared object goes.
    """
    sources = [str(path) for path in find_sources() if path.suffix == ".c"]
    flags = ["-O2", "-Wall", "-Wextra", "-shared", "-fPIC", f"-Wl,-soname,{SONAME}"]
    return [compiler, *flags, "-o", str(output), *sources]
