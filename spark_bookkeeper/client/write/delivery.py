"""Resolve the futures of appends, in entry order and outside the writer's lock.

The writer notes certain results under its lock. The next thread that calls ``deliver`` delivers
them, one thread at a time. Callbacks may append. If one of them raises an error, the others are
called as well.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING

from spark_bookkeeper.client.write.promise import Promise, Promises
from spark_bookkeeper.errors import BookKeeperError
from spark_bookkeeper.protocol.ids import NO_ENTRY

if TYPE_CHECKING:
    from spark_bookkeeper.runtime.runtime import Condition, Runtime

_TELLING: ContextVar[tuple[Delivery, int] | None] = ContextVar("telling", default=None)
"""The delivery whose callbacks this thread calls, with the thread's number. In another thread, a
copy of the context has no meaning."""


class Delivery:
    """Passes the decisions of one writer to its futures and their callbacks.

    Args:
        lock: the writer's.
        runtime: starts another thread when a callback ended one.
    """

    def __init__(self, lock: Condition, runtime: Runtime) -> None:
        self.promises = Promises()
        self._lock = lock
        self._runtime = runtime
        self._through: int = NO_ENTRY
        self._error: BookKeeperError | None = None
        self._is_news = False
        self._is_telling = False
        self._due: deque[Promise] = deque()
        """Promises whose callbacks are due; only the delivering thread uses it."""

    def acknowledge(self, through: int) -> None:
        """Note that every entry up to this one is acknowledged. The lock is held."""
        self._through = through
        self._is_news = True

    def fail(self, error: BookKeeperError) -> None:
        """Acknowledge no further entry. The lock is held; the first error stays."""
        if self._error is None:
            self._error = error
            self._is_news = True

    def deliver_in_background(self) -> None:
        """Deliver in another thread, as a callback may end the thread. The lock is held."""
        if self._is_news:
            with suppress(RuntimeError):  # no more threads: the next delivery does this too
                self._runtime.spawn("delivery", self.deliver)

    def deliver(self) -> None:
        """Resolve futures, and call their callbacks. The lock is not held.

        An ``Exception`` of a callback is logged. Any other error, Ctrl-C for example, is raised
        here at once, because it should end this thread; another thread then delivers the rest.
        """
        is_telling = False
        try:
            while True:
                with self._lock:
                    if is_telling:
                        self._is_telling = is_telling = False
                    if self._is_telling or not (self._is_news or self._due):
                        return
                    self._is_telling = is_telling = True
                    self._is_news = False
                    through, error = self._through, self._error
                self.promises.keep(through, error, self._due)
                if self._due:
                    self._call()
        except BaseException:
            if is_telling:
                with self._lock:
                    self._is_telling = False
                    self._is_news = True  # perhaps not all of it was delivered
                self._runtime.spawn("delivery", self.deliver)
            raise

    def _call(self) -> None:
        here = _TELLING.set((self, threading.get_ident()))
        try:
            while self._due:
                self._due[0].call()
                self._due.popleft()
        finally:
            _TELLING.reset(here)

    def is_here(self) -> bool:
        """Whether the caller is a callback, where waiting for another append would never end."""
        return _TELLING.get() == (self, threading.get_ident())
