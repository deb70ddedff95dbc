"""
Answers for all workers: asks each, and makes one answer of theirs.
"""

import contextlib
import threading
from collections.abc import Mapping
from typing import Any, Final

from server.control import Answer, ControlError, Link, Question
from server.counters import merge_reports
from server.recording import RecordingError, merge_recordings

# How long a worker may take to hear that it is to end: several of its longest turns.
STOP_TIMEOUT_S: Final = 3.0


class Hub:
    """
    Answers for all workers.

    Args:
        base: What `describe` says besides the workers' own parts.
        links: One to each worker.
    """

    def __init__(self, base: Mapping[str, Any], links: list[Link]) -> None:
        self._base = base
        self._links = links
        self._lock = threading.Lock()
        self._is_stopped = False

    def answer(self, question: Question) -> Answer:
        """
        Ask every worker and make one answer of theirs.

        Raises:
            ControlError: One of them does not answer, or there is no such question.
        """
        op = question.get("op")
        if op in ("stop", "count_closed"):
            raise ControlError(f"there is no question {op!r}; to stop a server, send it SIGINT")
        answers = self.ask(question)
        failed = next((answer for answer in answers if "error" in answer), None)
        if failed is not None:
            return failed
        if op == "describe":
            return describe(self._base, answers)
        if op == "report":
            return merge_reports([dict(answer) for answer in answers])
        if op in ("reset", "record"):
            return {"ok": True, "workers": answers}
        if op == "recorded":
            try:
                return merge_recordings(answers)
            except RecordingError as error:
                raise ControlError(str(error)) from error
        return answers[0]

    def ask(self, question: Question) -> list[Answer]:
        """
        Ask every worker the same.

        Raises:
            ControlError: One of them does not answer, or all were told to end.
        """
        with self._lock:
            # A worker that ends sends its last report unasked: nobody else may take it.
            if self._is_stopped:
                raise ControlError(f"{question.get('op')!r} was not answered: the server ends")
            return [link.request(question) for link in self._links]

    def stop(self) -> list[Answer]:
        """
        End every worker in order; the last reports of those that still gave one.
        """
        reports = []
        with self._lock:
            self._is_stopped = True
            for link in self._links:
                with contextlib.suppress(ControlError):
                    link.request({"op": "stop"}, timeout_s=STOP_TIMEOUT_S)
            for link in self._links:
                with contextlib.suppress(ControlError):
                    reports.append(link.receive("last report", timeout_s=STOP_TIMEOUT_S))
        return reports


def describe(base: Mapping[str, Any], workers: list[Answer]) -> dict[str, Any]:
    """
    Put the workers' descriptions into the server's.
    """
    degradations: list[Any] = []
    for worker in workers:
        degradations += [one for one in worker["degradations"] if one not in degradations]
    return {
        **base,
        "workers": [
            {name: worker[name] for name in ("index", "pid", "cpu_ids")} for worker in workers
        ],
        "granted": workers[0]["granted"],
        "degradations": degradations,
    }
