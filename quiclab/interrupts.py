"""
INT, TERM and HUP during a run: heard at once, acted on at safe points only.

A run makes things (containers, processes, files) and waits for things. Made
things must be known before they can be removed again, so a signal never breaks
into the making; waiting may be broken into at any instant. The main path marks
its waits with `with interrupts.allowed():`. Inside, a signal raises at once;
outside, it is remembered and raises when the next wait begins. One signal
raises once: the orderly end that follows has waits of its own, all bounded,
and is left alone.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption(BaseException):
    """
    INT, TERM or HUP asked the run to end.

    Not an `Exception`, like `KeyboardInterrupt` and for its reason: no library
    between the wait and the main path may mistake it for a failure of its own.
    """

    def __init__(self, signal_name: str) -> None:
        self.signal_name = signal_name
        super().__init__(signal_name)


class Interrupts:
    """
    Owns INT, TERM and HUP while its `with` block runs; gives them back afterwards.

    A HUP that is ignored (`nohup`) stays so. Outside the main thread Python cannot hear
    signals; then nothing is owned.
    """

    def __init__(self) -> None:
        self.signal_name: str | None = None
        self._is_raised = False
        self._allowed_depth = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue
                self._previous[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._previous.items():
            # None stands for a handler that was not set from Python and cannot be set again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """
        A wait that a signal may break into.

        Raises:
            Interruption: A signal came, now or since the last such wait.
        """
        self._allowed_depth += 1
        try:
            self._raise_once()
            yield
        finally:
            self._allowed_depth -= 1

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self.signal_name = self.signal_name or signal.Signals(number).name
        if self._allowed_depth:
            self._raise_once()

    def _raise_once(self) -> None:
        if self.signal_name is not None and not self._is_raised:
            self._is_raised = True
            raise Interruption(self.signal_name)
