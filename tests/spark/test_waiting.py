"""The main thread only waits: whatever interrupts it ends the work, and nothing is torn."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from spark_bookkeeper.spark.waiting import wait_apart


class Work:
    """Goes on until it is cancelled; interrupts its caller once it is under way."""

    def __init__(self, orders_it_misses: int = 0) -> None:
        self.is_cancelled = threading.Event()
        self.has_ended = False
        self._missed = orders_it_misses

    def run(self) -> str:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return self._go_on()

    def _go_on(self) -> str:
        if not self.is_cancelled.wait(60):
            return "never cancelled"
        self.has_ended = True
        raise OSError("cancelled")

    def cancel(self) -> None:
        if self._missed:
            self._missed -= 1
            raise ConnectionError("there is nothing to cancel yet")
        self.is_cancelled.set()


@pytest.fixture(autouse=True)
def handler() -> Iterator[Callable[..., object]]:
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_what_the_work_returns_or_raises_is_the_callers() -> None:
    threads = []

    def fail() -> None:
        threads.append(threading.current_thread())
        raise OSError("no space left")

    assert wait_apart(lambda: 7) == 7
    with pytest.raises(OSError, match="no space left"):
        wait_apart(fail)
    assert threads[0] is not threading.main_thread()


def test_ctrl_c_cancels_the_work_and_comes_after_its_end() -> None:
    work = Work()

    with pytest.raises(KeyboardInterrupt):
        wait_apart(work.run, work.cancel)

    assert work.has_ended
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_work_that_misses_an_order_to_cancel_gets_another() -> None:
    work = Work(orders_it_misses=2)

    with pytest.raises(KeyboardInterrupt):
        wait_apart(work.run, work.cancel)

    assert work.has_ended


def test_a_second_ctrl_c_does_not_wait_for_work_that_cannot_be_cancelled() -> None:
    released = threading.Event()

    def run() -> bool:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return released.wait(60)

    def cancel() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    try:
        with pytest.raises(KeyboardInterrupt):
            wait_apart(run, cancel)
        assert not released.is_set()
    finally:
        released.set()


def test_ctrl_c_in_the_last_moment_of_the_work_is_not_lost() -> None:
    def run() -> int:
        signal.raise_signal(signal.SIGINT)  # in this thread: the main one hears of it later
        return 7

    with pytest.raises(KeyboardInterrupt):
        wait_apart(run)


def test_ctrl_c_that_the_system_gives_to_another_thread_is_heard_of_all_the_same() -> None:
    class Elsewhere(Work):
        def run(self) -> str:
            signal.raise_signal(signal.SIGINT)  # in this thread: nothing ends the main one's wait
            return self._go_on()

    work = Elsewhere()

    with pytest.raises(KeyboardInterrupt):
        wait_apart(work.run, work.cancel)

    assert work.has_ended


def test_an_own_handler_decides_what_ctrl_c_does() -> None:
    class Stopped(Exception):
        pass

    presses = 0

    def handle(*_: object) -> None:
        nonlocal presses
        presses += 1
        if presses == 2:
            raise Stopped

    signal.signal(signal.SIGINT, handle)
    patient = Work()
    patient.is_cancelled.set()
    with pytest.raises(OSError, match="cancelled"):
        wait_apart(patient.run)
    assert presses == 1

    work = Work()
    with pytest.raises(Stopped):
        wait_apart(work.run, work.cancel)
    assert work.has_ended
    assert signal.getsignal(signal.SIGINT) is handle


def test_a_thread_that_no_signal_reaches_does_the_work_itself() -> None:
    found = []

    def caller() -> None:
        found.append(wait_apart(threading.current_thread) is threading.current_thread())

    thread = threading.Thread(target=caller)
    thread.start()
    thread.join()

    assert found == [True]
