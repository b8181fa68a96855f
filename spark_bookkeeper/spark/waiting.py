"""Waiting for work so that Ctrl-C meets a thread that only waits, and never one in the middle.

PySpark's own handler asks the JVM to cancel everything, from whatever place the interrupt met:
in the middle of reading the JVM's last answer that fails, with stack traces, and the job runs on.
Other libraries turn an interrupt that meets them into an error of their own.
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
"""How long an interrupted caller waits for its work to end, unless there is a second Ctrl-C."""

AGAIN_SECONDS: Final = 0.2
"""Between two orders to cancel: the first may come before there is anything to cancel."""

LOOK_SECONDS: Final = 0.5
"""How long a signal can pass unnoticed that the system gave to another thread than the main one, or
just before that one began to wait: neither ends its wait."""

T = TypeVar("T")

Start = Callable[[Callable[[], None]], threading.Thread]
"""Makes the thread that runs a function; it is started later."""


def daemon_thread(run: Callable[[], None]) -> threading.Thread:
    """A thread that does not keep the process alive."""
    return threading.Thread(target=run, name="spark-bookkeeper-work", daemon=True)


def wait_apart(
    work: Callable[[], T], cancel: Callable[[], None] = lambda: None, thread: Start = daemon_thread
) -> T:
    """Do the work in another thread while the main thread waits; return or raise what it does.

    Ctrl-C cancels the work, waits for its end (a second one does not), and becomes a
    ``KeyboardInterrupt`` here. A program's own handler of Ctrl-C stays in place: what it raises
    cancels the work too. Threads other than the main one, which no signal interrupts, do the
    work themselves.

    Args:
        cancel: makes the work end soon; called until it has, and its errors mean nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    outcome: Future[T] = Future()
    # Its put() may interrupt its get(), which no lock or event allows a signal handler.
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
    if interrupts:  # it ended, and somebody wanted to stop all the same
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
    """Cancel from a thread that nothing interrupts, and wait a while."""

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
    """Meanwhile an interrupt raises nothing: it is noted, and ``told``.

    Only where it would have become a ``KeyboardInterrupt``, by Python's handler or by PySpark's.
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
