"""
The C part of counting instructions, and how it is built.
"""

import sysconfig
from pathlib import Path
from typing import Final

from server.build import Part, build

_HERE: Final = Path(__file__).resolve().parent

PART: Final = Part(
    target=_HERE / f"_counting{sysconfig.get_config_var('EXT_SUFFIX')}",
    sources=(_HERE / "counting.c",),
    headers=(),
    flags=(
        "-fvisibility=hidden",
        "-fno-optimize-sibling-calls",
        "-fno-ipa-icf",
        "-I",
        sysconfig.get_path("include"),
    ),
)


def build_counting() -> None:
    """
    Build the module when its source changed.

    Raises:
        BuildError: There is no compiler, or a header is missing.
    """
    build(PART)
