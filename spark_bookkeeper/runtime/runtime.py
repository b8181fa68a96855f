"""The only access to time, randomness and threads.

Everything above ``protocol/`` takes a ``Runtime``. ``ThreadRuntime`` is the real one.
``tests/simulator`` has one whose clock, dice and scheduler follow a seed, so that the same code can
be replayed step by step. This is the one module that may import ``threading``, ``time`` and
``random``.
"""

from __future__ import annotations

import os
import queue
import random
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol, TypeVar

from spark_bookkeeper.runtime import process, unclosed

T = TypeVar("T")


class Condition(AbstractContextManager[Any], Protocol):
    """A lock with waiting, as ``threading.Condition``. Always used with ``with``."""

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock, wait, take it again. False after ``timeout`` seconds."""

    def notify_all(self) -> None:
        """Wake all tasks that wait; the lock is held."""


class Task(Protocol):
    """A function that runs in the background."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until it ended, at most ``timeout`` seconds. Never raises the function's error."""

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""


class Runtime(Protocol):
    """Clock, dice and threads."""

    def now(self) -> float:
        """Return seconds of a clock that never goes back, from an arbitrary start."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970, for people to read; never for a decision (rule R17)."""

    def sleep(self, seconds: float) -> None:
        """Pause."""

    def condition(self) -> Condition:
        """Return a new lock with waiting."""

    def spawn(self, name: str, run: Callable[[], None]) -> Task:
        """Run a function in the background. It must handle its own errors."""

    def employ(self, name: str, run: Callable[[], None]) -> None:
        """Run a function as ``spawn`` does, on a thread that may be reused, so it begins sooner.

        It cannot be waited for. It must handle its own errors.
        """

    def token(self) -> str:
        """Return a new unique name (32 hexadecimal digits): writer tokens, nonces, attempts."""

    def shuffle(self, items: list[T]) -> None:
        """Put a list into random order, in place."""

    def wait(self, future: Future[T], timeout: float | None = None) -> T:
        """Wait for a future's result; raise ``TimeoutError`` after ``timeout`` seconds."""

    def look_after(self, owner: object, work: unclosed.PendingWork) -> Callable[[], None]:
        """Finish work when its owner is dropped, or the process ends; see ``unclosed.py``.

        Returns:
            a function that the owner calls when it has ended the work itself.
        """

    def map(
        self,
        function: Callable[[Any], T],
        items: list[Any],
        width: int = 16,
        on_interrupt: Callable[[], None] = lambda: None,
    ) -> list[T]:
        """Return ``[function(item) for item in items]``; make up to ``width`` calls at once. After
        all calls have ended, raise the first error in the order of the items.

        Args:
            on_interrupt: called on Ctrl-C, before the wait for running calls.
        """


class ThreadCondition(threading.Condition):
    """``threading.Condition`` whose ``with`` enters and leaves the lock itself.

    The inherited methods are two more calls in Python, a quarter of an append's cost; and Ctrl-C at
    the end of the first one leaves the lock taken for ever. ``with`` looks up both names in the
    class, where these slots lead it to the lock's own methods.
    """

    __slots__ = ("__enter__", "__exit__")

    def __init__(self, *, is_reentrant: bool = False) -> None:
        lock = threading.RLock() if is_reentrant else threading.Lock()
        super().__init__(lock)
        self.__enter__ = lock.__enter__  # type: ignore[method-assign]  # a slot of that name
        self.__exit__ = lock.__exit__  # type: ignore[method-assign]  # a slot of that name


class _ThreadTask:
    """A thread that itself records its end.

    After Ctrl-C has interrupted a ``join``, Python regards the thread as ended although it runs on:
    a later ``join`` would not wait.
    """

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        self._process = process.here
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=[run], name=name, daemon=True)
        self._thread.start()

    def _run(self, run: Callable[[], None]) -> None:
        try:
            run()
        finally:
            self._ended.set()

    def join(self, timeout: float | None = None) -> None:
        if self._process is not process.here:
            return
        if timeout is not None:
            self._ended.wait(timeout)
        else:
            while not self._ended.wait(_HEARD_SECONDS):
                pass
        if self._ended.is_set():
            self._thread.join()  # it has nothing left to do

    @property
    def is_alive(self) -> bool:
        # A forked child has no threads of its parent, so nothing there would record their end.
        return self._process is process.here and not self._ended.is_set()


_HEARD_SECONDS = 0.5
"""A signal just before a wait is handled only at its end, so endless waits are cut."""

_dice = random.Random()
"""Seeded by the operating system. Reading each number from there would release Python's global lock
each time, and so wake other threads."""

os.register_at_fork(after_in_child=_dice.seed)

IDLE_SECONDS = 10.0
"""Time after which an employed thread that has nothing to do ends."""


class _Worker:
    """A daemon thread that runs one function after the other, until it is idle for too long."""

    def __init__(self, idle: list[_Worker]) -> None:
        self._idle = idle
        self.todo: queue.SimpleQueue[tuple[str, Callable[[], None]]] = queue.SimpleQueue()

    def run(self) -> None:
        thread = threading.current_thread()
        while True:
            try:
                thread.name, run = self.todo.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                try:
                    self._idle.remove(self)
                except ValueError:  # taken at this moment: a function comes
                    continue
                return
            run()
            del run  # or the function's objects would be kept until the next one
            self._idle.append(self)


class ThreadRuntime:
    """The real clock, randomness from the operating system, daemon threads.

    Args:
        map_width: limits how many calls ``map`` runs at once, whatever its ``width``.
    """

    def __init__(self, map_width: int | None = None) -> None:
        self._map_width = map_width
        self._idle: list[_Worker] = []

    now = staticmethod(time.monotonic)  # called a dozen times for one append

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def condition(self) -> Condition:
        return ThreadCondition()

    def spawn(self, name: str, run: Callable[[], None]) -> Task:
        return _ThreadTask(name, run)

    def employ(self, name: str, run: Callable[[], None]) -> None:
        try:
            worker = self._idle.pop()  # the one that worked last, so that the others can end
        except IndexError:
            worker = _Worker(self._idle)
            threading.Thread(target=worker.run, name=name, daemon=True).start()
        worker.todo.put((name, run))

    def token(self) -> str:
        return secrets.token_hex(16)

    def shuffle(self, items: list[T]) -> None:
        _dice.shuffle(items)

    def wait(self, future: Future[T], timeout: float | None = None) -> T:
        return future.result(timeout)

    def look_after(self, owner: object, work: unclosed.PendingWork) -> Callable[[], None]:
        return unclosed.look_after(self, owner, work)

    def map(
        self,
        function: Callable[[Any], T],
        items: list[Any],
        width: int = 16,
        on_interrupt: Callable[[], None] = lambda: None,
    ) -> list[T]:
        at_once = min(width, self._map_width or width)
        return parallel_map(self, function, items, at_once, on_interrupt)


def parallel_map(
    runtime: Runtime,
    function: Callable[[Any], T],
    items: list[Any],
    width: int,
    on_interrupt: Callable[[], None],
) -> list[T]:
    """Implement ``Runtime.map`` with ``spawn``; the caller itself is the last worker."""
    if len(items) <= 1 or width <= 1:
        return [function(item) for item in items]
    results: list[T | None] = [None] * len(items)
    errors: dict[int, BaseException] = {}
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(items)):
        todo.put(index)

    def begin_no_more() -> None:
        on_interrupt()
        with suppress(queue.Empty):
            while True:
                todo.get_nowait()

    def work() -> None:
        while True:
            try:
                index = todo.get_nowait()
            except queue.Empty:
                return
            try:
                results[index] = function(items[index])
            except BaseException as error:  # noqa: BLE001  (handed to the caller below)
                errors[index] = error
                if not isinstance(error, Exception):  # Ctrl-C
                    begin_no_more()

    helpers: list[Task] = []
    try:
        for n in range(min(width, len(items)) - 1):
            helpers.append(runtime.spawn(f"map-{n}", work))
        work()
        for helper in helpers:
            helper.join()
    except BaseException:  # Ctrl-C between two items or in a wait, or no more threads
        begin_no_more()
        for helper in helpers:
            helper.join()
        raise
    if errors:
        raise errors[min(errors, key=lambda index: (isinstance(errors[index], Exception), index))]
    return results  # type: ignore[return-value]  # every slot was filled, or we raised


def begin(runtime: Runtime, name: str, call: Callable[[], T]) -> Future[T]:
    """Run a call in the background; return its future. If cancelled first, it never runs."""
    future: Future[T] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001  (whoever waits is told)
            future.set_exception(error)
        else:
            future.set_result(result)

    runtime.employ(name, run)
    return future
