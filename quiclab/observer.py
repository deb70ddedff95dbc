"""
What a run tells while it works. The terminal implements it; tests record it.
"""

from enum import StrEnum
from typing import Protocol


class Phase(StrEnum):
    """
    The steps of one run, in their order; also the keys of `durations_s` in the manifest.
    """

    PREFLIGHT = "preflight"
    PLACE = "place"
    SERVER = "server"
    CLIENT = "client"
    TRACER = "tracer"
    LOAD = "load"
    SETTLE = "settle"
    COLLECT = "collect"
    REMOVE = "remove"
    WRITE = "write"


class Observer(Protocol):
    """
    Hears about phases as they begin, about progress in long ones, and about facts.
    """

    def phase_started(self, phase: Phase) -> None:
        """Begin a phase; the one before has ended."""

    def progress(self, fraction: float, *, left_s: float | None) -> None:
        """Say how much of the running phase is done, 0 to 1, and the seconds left if known."""

    def note(self, label: str, text: str) -> None:
        """Give one fact for the reader, under a label such as "server", "tracer" or "note"."""


class SilentObserver:
    """Hears everything and says nothing."""

    def phase_started(self, phase: Phase) -> None:
        """Do nothing."""

    def progress(self, fraction: float, *, left_s: float | None) -> None:
        """Do nothing."""

    def note(self, label: str, text: str) -> None:
        """Do nothing."""
