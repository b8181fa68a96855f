"""Tells callers what became of their appends: in entry order, and outside the writer's lock.

The writer notes under its lock what is certain. The next thread that calls ``deliver`` tells it,
one thread at a time. Callbacks may append; and whatever one of them raises, the others are called
as well.
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
"""The delivery whose callbacks this thread is calling, with the thread's number: a context may be
copied into another thread, and says nothing there."""


class Delivery:
    """The futures of one writer, from its decisions to their callers.

    Args:
        lock: the writer's.
        runtime: for a thread to go on with, when a callback ended one.
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
        """Whose callbacks are to be called; only the thread that tells looks at it."""

    def acknowledge(self, through: int) -> None:
        """Every entry up to this one is acknowledged. The lock is held."""
        self._through = through
        self._is_news = True

    def fail(self, error: BookKeeperError) -> None:
        """No further entry will be. The lock is held; the first error stays."""
        if self._error is None:
            self._error = error
            self._is_news = True

    def deliver_beside(self) -> None:
        """Have it delivered beside this thread, which no callback may end. The lock is held."""
        if self._is_news:
            with suppress(RuntimeError):  # no more threads: who delivers next tells this, too
                self._runtime.spawn("delivery", self.deliver)

    def deliver(self) -> None:
        """Resolve futures, and call who asked to be called. The lock is not held.

        An ``Exception`` that a callback raises is logged. Anything else, Ctrl-C for example, is
        raised here at once, as it is meant to end this thread; another thread then tells the rest.
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
                    self._is_news = True  # perhaps not all of it was told
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
        """Whether this is called by a callback, where waiting for another append never ends."""
        return _TELLING.get() == (self, threading.get_ident())
