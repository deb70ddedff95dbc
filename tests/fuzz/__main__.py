"""
The fuzzer against a real server on loopback.

    python -m tests.fuzz [--seed N] [--share F] [--directory DIR] [--replay FILE]

The whole of it takes several minutes: over a million datagrams. Status 0: nothing
was found; 1: something was, and what was sent is kept for --replay.
"""

import argparse
import logging
import random
import sys
from dataclasses import fields
from pathlib import Path
from typing import Final

from tests.fuzz.campaign import Amounts
from tests.fuzz.drill import replay
from tests.fuzz.failure import load_failure
from tests.fuzz.memory import FuzzError
from tests.fuzz.trial import try_all

LONG: Final = Amounts(
    garbage=1_000_000,
    damaged_initials=75_000,
    sealed_initials=75_000,
    payloads=50_000,
    newcomers=100_000,
)
_DIRECTORY: Final = Path("artifacts") / "fuzz"


def main(argv: list[str] | None = None) -> int:
    """
    Run a trial, or replay what one has kept.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, help="decides what is sent (default: by chance)")
    parser.add_argument("--share", type=float, default=1.0, help="of the whole, such as 0.01")
    parser.add_argument("--directory", type=Path, default=_DIRECTORY, help="for what is kept")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="send a failure once more")
    arguments = parser.parse_args(argv)
    logging.getLogger("quic").addHandler(logging.NullHandler())  # of hostile clients
    if arguments.replay is not None:
        return _replay(arguments.replay)
    seed = random.randrange(1_000_000) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    amounts = scale(LONG, share=arguments.share)
    directory = arguments.directory.resolve() / str(seed)
    found = False
    for findings in try_all(amounts, seed=seed, directory=directory, say=_say):
        print(*findings.describe(), sep="\n", flush=True)
        for words in findings.judge():
            found = True
            print(f"  FOUND {words}", flush=True)
    print("found something" if found else "found nothing")
    return int(found)


def scale(amounts: Amounts, *, share: float) -> Amounts:
    """
    Take a share of each amount.
    """
    return Amounts(
        **{each.name: int(getattr(amounts, each.name) * share) for each in fields(Amounts)}
    )


def _say(words: str) -> None:
    print(f"  {words}", flush=True)


def _replay(path: Path) -> int:
    failure = load_failure(path)
    print(f"{path}: {failure.words}")
    try:
        for reason in replay(failure):
            print(f"  a connection ended: {reason}")
    except FuzzError as error:
        print(f"it trips again: {error}", *getattr(error, "__notes__", ()), sep="\n  ")
        return 1
    print("it does not trip")
    return 0


if __name__ == "__main__":
    sys.exit(main())
