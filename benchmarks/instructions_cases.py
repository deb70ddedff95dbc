"""
What is counted: values alone, known to who counts and to the process that is counted.
"""

import json
from dataclasses import dataclass, replace
from typing import Final, Literal, Self

Direction = Literal["download", "upload"]
Place = Literal["server", "floor", "memory"]
CodeName = tuple[str, int, str]
"""File, line and qualified name of a Python function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """
    What one process does.

    Args:
        place: "server": all of it over a real socket; "floor": aioquic's server connection
            alone, joined to the same peer in memory; "memory": aioquic at both ends.
        direction: Where the payload goes.
        datagram_bytes: Of a full datagram.
        segment_count: Datagrams a message may carry.
        answer_datagrams: After so many datagrams the peer of a download answers; so many
            an upload's peer sends before the server's turn.
        warm_up_count: Datagrams that are not counted.
        datagram_count: Datagrams that are, at least.
        is_followed: Name every Python call. It makes calls dearer.
    """

    place: Place = "server"
    direction: Direction = "download"
    datagram_bytes: int = 1200
    segment_count: int = 10
    answer_datagrams: int = 20
    warm_up_count: int = 4500  # the window has doubled to its cap of 2.5 MB by then
    datagram_count: int = 2000
    is_followed: bool = False

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.place}, {self.direction} {self.datagram_bytes}, {self.segment_count}"

    def at(self, place: Place) -> "Work":
        """The same elsewhere."""
        return replace(self, place=place)

    def followed(self) -> "Work":
        """The same with a name for every call."""
        return replace(self, is_followed=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """
    What was done while instructions were counted.

    Args:
        datagram_count: Sent (download) or received (upload) by the server.
        answer_count: Datagrams in the other direction.
        payload_bytes: Stream data in them.
        turn_count: Turns of the server's loop.
        arcs: Caller and called of each numbered call.
    """

    datagram_count: int
    answer_count: int
    payload_bytes: int
    turn_count: int
    arcs: tuple[tuple[CodeName | None, CodeName], ...] = ()

    @classmethod
    def load(cls, text: str) -> Self:
        """
        Read what the process printed.
        """
        fields = json.loads(text)
        arcs = tuple(
            (None if caller is None else tuple(caller), tuple(called))
            for caller, called in fields.pop("arcs")
        )
        return cls(**fields, arcs=arcs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A work under a name that is kept from one result to the next."""

    name: str
    work: Work


# How often the peer answers is what the load of `bench` was seen to do with this server:
# every 20 datagrams of 1,200 bytes (109 with 64 segments), every 14 of 8,900.
CASES: Final = (
    Case(name="download 1200, 10", work=Work()),
    Case(name="download 1200, 64", work=Work(segment_count=64, answer_datagrams=64)),
    Case(
        name="download 8972, 10",
        work=Work(datagram_bytes=8972, answer_datagrams=14, warm_up_count=700, datagram_count=1000),
    ),
    Case(name="upload 1200, 10", work=Work(direction="upload", answer_datagrams=40)),
)
REFERENCE: Final = Work(place="memory")
