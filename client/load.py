"""
The load as it is talked to: described, started, asked how far it is, ended.
"""

import os
from dataclasses import asdict
from typing import Any

from client.exits import MachineError
from client.holdable import Holdable, measure_holdable
from client.progress import DEFAULT_LIMITS, Limits
from client.run import LONGEST_WAIT_S, Run, collect_versions
from client.settings import Settings
from client.sockets import describe_granted, find_path_mtu, make_configuration, open_endpoint
from server.endpoint import Endpoint
from server.loop import Loop


class Load:
    """
    One load. Its sockets exist from the beginning; nothing is sent before `start`.

    Args:
        settings: What was asked.
        loop: Who drives the sockets.
        limits: How patient it is.

    Raises:
        ClientError: A socket or the file of certificates cannot be opened.
    """

    def __init__(self, settings: Settings, loop: Loop, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._settings = settings
        self._loop = loop
        self._configuration = make_configuration(settings)
        self._endpoints: list[Endpoint] = []
        self._run: Run | None = None
        self._holdable: Holdable | None = None
        self._interrupted_by = ""
        try:
            for _ in range(settings.connection_count):
                self._endpoints.append(open_endpoint(settings, loop, self._configuration))
        except OSError as error:
            opened_count = len(self._endpoints)
            self.close()
            raise MachineError(
                f"socket {opened_count + 1} of {settings.connection_count} for {settings.ip} "
                f"cannot be opened: {error.strerror}"
            ) from error
        self._granted = describe_granted(settings, self._endpoints[0])

    def describe(self) -> dict[str, Any]:
        """
        What was granted and what the receive buffer holds; measured before the start, once.
        """
        if self._holdable is None and self._run is None:
            self._holdable = measure_holdable(
                socket_buffer_bytes=self._settings.socket_buffer_bytes,
                datagram_bytes=self._settings.datagram_bytes,
            )
        holdable = self._holdable
        return {
            "schema": 1,
            "granted": self._granted,
            "holdable_bytes": None if holdable is None else holdable.holdable_bytes,
            "path_mtu_bytes": find_path_mtu(self._settings),
            "cpu_ids": sorted(os.sched_getaffinity(0)),
            "is_holdable_measured": holdable is not None and holdable.is_measured,
            "versions": collect_versions(),
            "degradations": [
                asdict(degradation) for degradation in self._endpoints[0].udp.degradations
            ],
        }

    def report(self) -> dict[str, Any]:
        """
        How far it is.
        """
        if self._run is None:
            return {"is_started": False, "bytes_received": 0, "bytes_sent": 0, "elapsed_s": 0.0}
        return {"is_started": True, **self._run.report()}

    def start(self) -> None:
        """
        Connect. A load that was started goes on; it is not started again.
        """
        if self._run is None:
            self._run = Run(
                self._settings,
                self._configuration,
                loop=self._loop,
                endpoints=self._endpoints,
                limits=self._limits,
            )

    def interrupt(self, signal_name: str) -> None:
        """
        End it in order. A signal handler may call this.
        """
        self._interrupted_by = signal_name

    @property
    def interrupted_by(self) -> str:
        """
        The signal that ended it, or "".
        """
        return self._interrupted_by

    def turn(self) -> bool:
        """
        Let the loop turn once; False when everything is over.
        """
        if self._run is None:
            self._loop.turn(most_wait_s=LONGEST_WAIT_S)
            return not self._interrupted_by
        if self._interrupted_by:
            self._run.give_up(f"ended by {self._interrupted_by}")
        return self._run.turn()

    def result(self) -> dict[str, Any] | None:
        """
        How it went, once it is over; None when it was never started.
        """
        return None if self._run is None else self._run.result(self._granted)

    def close(self) -> None:
        """
        Give the ports back.
        """
        for endpoint in self._endpoints:
            endpoint.close()
        self._endpoints.clear()
