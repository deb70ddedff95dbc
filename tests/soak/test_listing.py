"""
The listing before and after a soak sees what a run could leave behind.
"""

import os
import tempfile
from pathlib import Path

from quiclab import leftovers
from tests.soak.listing import collect_listing, compare_listings


def test_same_machine_lists_the_same_twice() -> None:
    """Nothing came, nothing went."""
    before = collect_listing(None)
    assert {} == compare_listings(before, collect_listing(None))


def test_what_was_left_is_named() -> None:
    """A folder of a run, and a descriptor that is still open."""
    before = collect_listing(None)
    with tempfile.TemporaryDirectory(prefix=leftovers.DIRECTORY_PREFIX, dir="/tmp") as left:
        read_fd, write_fd = os.pipe()
        differences = compare_listings(before, collect_listing(None))
        os.close(read_fd)
        os.close(write_fd)
    assert {"temporary files", "descriptors"} == set(differences)
    assert [left] == differences["temporary files"]["came"]
    assert {} == compare_listings(before, collect_listing(None))
    assert not Path(left).exists()
