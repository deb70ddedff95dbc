"""
What made the server trip, in a file that can be sent once more.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Failure:
    """
    What was on its way when something went wrong.

    Args:
        words: What went wrong.
        kind: Which kind of harm it was.
        seed: Of the run.
        datagrams: Those without a connection, in order.
        conversations: Payloads of 1-RTT packets, in order, one list for each connection.
            As they were before they were sealed: keys are new each time.
    """

    words: str
    kind: str
    seed: int
    datagrams: tuple[bytes, ...] = ()
    conversations: tuple[tuple[bytes, ...], ...] = ()


def dump_failure(failure: Failure, directory: Path) -> Path:
    """
    Write it into a folder, under a name of its own.
    """
    directory.mkdir(parents=True, exist_ok=True)
    number = len(list(directory.glob("*.json")))
    path = directory / f"{failure.kind}-{failure.seed}-{number:03}.json"
    fields = asdict(failure)
    fields["datagrams"] = [each.hex() for each in failure.datagrams]
    fields["conversations"] = [[each.hex() for each in one] for one in failure.conversations]
    path.write_text(json.dumps(fields, indent=1) + "\n")
    return path


def load_failure(path: Path) -> Failure:
    """
    Read what `dump_failure` wrote.
    """
    fields = json.loads(path.read_text())
    fields["datagrams"] = tuple(map(bytes.fromhex, fields["datagrams"]))
    fields["conversations"] = tuple(
        tuple(map(bytes.fromhex, one)) for one in fields["conversations"]
    )
    return Failure(**fields)
