"""Waiting for work in a thread that only waits, so that Ctrl-C never interrupts the work itself.

PySpark's own handler makes the JVM cancel everything, at whatever point the interrupt comes. While
the JVM's last answer is being read that fails, with stack traces, and the job runs on. Other
libraries turn an interrupt into an error of their own.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

CANCEL_SECONDS: Final = 10.0
"""How long an interrupted caller waits for its work to end; a second Ctrl-C ends the wait."""

AGAIN_SECONDS: Final = 0.2
"""Wait before ``cancel`` is called again: the first call may come before the job exists."""

LOOK_SECONDS: Final = 0.5
"""Longest time for which a signal can stay unnoticed. A signal does not end a wait if the system
delivers it to another thread than the main one, or just before the wait begins."""

T = TypeVar("T")

Start = Callable[[Callable[[], None]], threading.Thread]
"""Returns a thread, not yet started, that runs a function."""


def daemon_thread(run: Callable[[], None]) -> threading.Thread:
    """Return a thread that does not keep the process alive."""
    return threading.Thread(target=run, name="spark-bookkeeper-work", daemon=True)


def wait_apart(
    work: Callable[[], T], cancel: Callable[[], None] = lambda: None, thread: Start = daemon_thread
) -> T:
    """Do the work in another thread while the main thread waits; return or raise its outcome.

    Ctrl-C cancels the work, waits for its end (a second one does not), and then raises
    ``KeyboardInterrupt`` here. A program's own handler of Ctrl-C stays in place; an error that it
    raises cancels the work too. In other threads than the main one, which signals do not interrupt,
    the work runs in the calling thread.

    Args:
        cancel: makes the work end soon; called until it has ended. Its errors are ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    outcome: Future[T] = Future()
    # Its put() may interrupt its get(); no lock or event allows that to a signal handler.
    told: SimpleQueue[None] = SimpleQueue()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001  (raised in the thread that waits)
            outcome.set_exception(error)
        finally:
            told.put(None)

    with _interrupts(told) as interrupts:
        worker = thread(run)
        try:
            worker.start()
            _hear(told)
            if interrupts:
                raise KeyboardInterrupt
        except BaseException:
            _end(worker, outcome, cancel, told)
            raise
    if interrupts:  # it ended, but a Ctrl-C came meanwhile
        raise KeyboardInterrupt
    return outcome.result()


def _hear(told: SimpleQueue[None]) -> None:
    """Wait for the end of the work, or for an interrupt."""
    while True:
        with suppress(Empty):
            return told.get(timeout=LOOK_SECONDS)


def _end(
    worker: threading.Thread,
    outcome: Future[T],
    cancel: Callable[[], None],
    told: SimpleQueue[None],
) -> None:
    """Cancel the work from a thread that no signal interrupts, and wait a while for its end."""

    def cancel_until_it_ended() -> None:
        while worker.is_alive() and not outcome.done():
            with suppress(Exception):
                cancel()
            worker.join(AGAIN_SECONDS)

    threading.Thread(
        target=cancel_until_it_ended, name="spark-bookkeeper-cancel", daemon=True
    ).start()
    if worker.is_alive() and not outcome.done():
        with suppress(Empty):
            told.get(timeout=CANCEL_SECONDS)


@contextmanager
def _interrupts(told: SimpleQueue[None]) -> Iterator[list[int]]:
    """Note interrupts during the block, and put them into ``told``, instead of raising.

    Only where ``KeyboardInterrupt`` would be raised, by Python's handler or by PySpark's.
    """
    noted: list[int] = []

    def note(number: int, _: object) -> None:
        noted.append(number)
        told.put(None)

    before = signal.getsignal(signal.SIGINT)
    is_pysparks = str(getattr(before, "__module__", "")).startswith("pyspark.")
    if before is not signal.default_int_handler and not is_pysparks:
        yield noted
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
