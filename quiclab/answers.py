"""
What server and client answer over their control sockets, as values.

Here the JSON of another process becomes ours. Only fields that the lab acts on
are named; the rest is kept and goes into the manifest as it came.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quiclab.errors import RunError

AnswerT = TypeVar("AnswerT", bound="Answer")


class Answer(BaseModel):
    """What all of them share: read-only, tolerant of fields the lab does not know."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Self:
        """
        Make a value of an answer.

        Raises:
            RunError: A field is missing or has another type; server and lab do not match.
        """
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise RunError(
                f"{cls.__name__}: {where}: {first['msg']}; server, client and lab must be of "
                "one version (with docker: rebuild the image by ./invoke build)"
            ) from error


class Ring(Answer):
    """A ring as it was made."""

    entries: int
    payload_bytes: int
    asked_bytes: int


class SocketBuffer(Answer):
    """A socket buffer, asked and granted; what reads back is twice what was set (socket(7))."""

    asked_bytes: int | None
    granted_bytes: int
    readback_bytes: int
    is_forced: bool = False


class Degradation(Answer):
    """What a role had to give up, once and for good."""

    what: str
    reason: str
    effect: str = ""


class ServerGranted(Answer):
    """What is in effect in the server."""

    tx_ring: Ring
    rx_ring: Ring
    socket_send_buffer: SocketBuffer
    socket_receive_buffer: SocketBuffer
    gso: bool
    gro: bool
    mmsg: bool
    datagram_bytes: int
    datagrams_per_message: int = 1
    window_cap_bytes: int
    window_budget_bytes: int | None = None
    holdable_bytes: int | None = None
    connection_flow_control_bytes: int | None = None


class ProbeState(Answer):
    """Whether the server carries probes, and where."""

    is_on: bool
    provider_path: str | None
    note: str = ""


class ServerDescription(Answer):
    """The server's answer to `describe`."""

    address: tuple[str, int]
    workers: Sequence[Mapping[str, Any]]
    probes: ProbeState
    granted: ServerGranted
    certificate_pem: str
    server_name: str
    versions: Mapping[str, str] = Field(default_factory=dict)
    degradations: Sequence[Degradation] = ()


class WatchedWorker(Answer):
    """One worker of the server: which of its probes somebody traces at this moment."""

    index: int
    traced_probes: Sequence[str]
    recorded_probes: Sequence[str] = ()


class ResetAnswer(Answer):
    """The server's answer to `reset`: its counters are zero, and so it is watched."""

    workers: Sequence[WatchedWorker]

    def find_untraced(self, expected: Sequence[str], *, recorded: Sequence[str] = ()) -> list[str]:
        """
        Name what is not traced and should be, worker by worker.

        Args:
            expected: Names of probes that every worker must have traced.
            recorded: Names of those that every worker must record itself.
        """
        return [
            f"{name} in worker {worker.index}"
            for worker in self.workers
            for names, seen in (
                (expected, worker.traced_probes),
                (recorded, worker.recorded_probes),
            )
            for name in names
            if name not in seen
        ]


class ClientGranted(Answer):
    """What is in effect in the client's sockets."""

    socket_send_buffer: SocketBuffer
    socket_receive_buffer: SocketBuffer


class ClientDescription(Answer):
    """The client's answer to `describe`, before it sent anything."""

    granted: ClientGranted
    holdable_bytes: int | None
    versions: Mapping[str, str] = Field(default_factory=dict)
    degradations: Sequence[Degradation] = ()


class ClientProgress(Answer):
    """The client's answer to `report` while it works."""

    bytes_received: int = 0
    bytes_sent: int = 0


class ClientResult(Answer):
    """What the client wrote when it ended (client.json)."""

    ok: bool
    reason: str = ""
    bytes_received: int
    bytes_sent: int
    load_s: float
    goodput_bytes_per_s: float
    cpu_user_s: float = 0.0
    cpu_system_s: float = 0.0
    socket_drop_count: int = 0
    is_bottleneck: bool = False
    bottleneck_note: str = ""
    degradations: Sequence[Degradation] = ()


class CounterReport(Answer):
    """The server's answer to `report`."""

    workers: Sequence[Mapping[str, Any]]
    total: Mapping[str, Mapping[str, Any]]
    rings_empty: bool

    @property
    def open_connection_count(self) -> int:
        """Connections that are not closed yet, in all workers."""
        return int(self.total["connections"]["open_count"])

    @property
    def is_settled(self) -> bool:
        """Nothing can be counted any more until somebody connects."""
        return self.rings_empty and self.open_connection_count == 0

    @property
    def degradations(self) -> list[Degradation]:
        """What any worker gave up, each cause once."""
        found: dict[str, Degradation] = {}
        for worker in self.workers:
            for raw in worker.get("degradations", ()):
                degradation = Degradation.model_validate(raw)
                found.setdefault(degradation.what, degradation)
        return list(found.values())
