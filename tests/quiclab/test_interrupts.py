"""
INT and TERM break into waits, and into nothing else.
"""

import os
import signal
import threading
import time

import pytest

from quiclab.interrupts import Interruption, Interrupts


def test_signal_while_making_is_heard_at_the_next_wait() -> None:
    """What is being made is made to its end; the wait that follows does not begin."""
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        steps = ["made"]
        with pytest.raises(Interruption, match="SIGINT"), interrupts.allowed():
            steps.append("waited")
    assert ["made"] == steps


def test_signal_while_waiting_ends_the_wait_at_once() -> None:
    """A wait of a minute ends when the signal comes."""
    began_s = time.monotonic()
    with Interrupts() as interrupts:
        timer = threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGTERM])
        timer.start()
        with pytest.raises(Interruption, match="SIGTERM"), interrupts.allowed():
            time.sleep(60)
        timer.join()
    assert time.monotonic() - began_s < 30


def test_orderly_end_after_a_signal_is_left_alone() -> None:
    """One signal raises once; more of them, and the waits of the end, raise no more."""
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Interruption), interrupts.allowed():
            pass
        with interrupts.allowed():
            signal.raise_signal(signal.SIGTERM)
        assert "SIGINT" == interrupts.signal_name


def test_handlers_are_given_back() -> None:
    """After the block INT and TERM mean what they meant before."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts():
        assert before != [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def test_closed_terminal_ends_a_run_in_order_unless_that_is_ignored() -> None:
    """HUP is heard like TERM; under `nohup` it means nothing before, during and after."""
    before = signal.getsignal(signal.SIGHUP)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGHUP)
            assert "SIGHUP" == interrupts.signal_name
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGHUP)
            assert interrupts.signal_name is None
        assert signal.SIG_IGN == signal.getsignal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_interruption_is_not_taken_for_an_error() -> None:
    """A library's `except Exception` between the wait and the main path does not swallow it."""
    assert not issubclass(Interruption, Exception)


def test_other_threads_own_no_signals() -> None:
    """Outside the main thread nothing is owned, and nothing fails."""
    failures: list[BaseException] = []

    def use() -> None:
        try:
            with Interrupts() as interrupts, interrupts.allowed():
                pass
        except BaseException as error:  # noqa: BLE001 - shown by the main thread
            failures.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert [] == failures
