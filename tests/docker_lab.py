"""
The real engine and the lab's image for tests, each found or made once for all of them.
"""

import functools
import os

from quiclab.containers.engine import Engine, connect_engine, find_engine_address
from quiclab.containers.image import Image, Recipe, ensure_image
from quiclab.errors import MachineError
from tests.conftest import need


@functools.cache
def _find_engine() -> Engine | None:
    try:
        return connect_engine(find_engine_address(os.environ))
    except MachineError:
        return None


def need_engine() -> Engine:
    """
    Give the engine that answers here, or skip.
    """
    engine = _find_engine()
    need(engine is not None, "a Docker engine that answers")
    assert engine is not None
    return engine


@functools.cache
def need_image(target: str = "lab") -> Image:
    """
    Give the image of this tree, built at most once; an unchanged tree finds it ready.
    """
    return ensure_image(
        need_engine(),
        Recipe(target=target),
        on_progress=lambda step, fraction: None,
        privilege=() if os.geteuid() == 0 else ("sudo", "-n"),
    )
