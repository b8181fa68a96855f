"""One read for many who ask at the same time, each as fresh as if it had been its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from spark_bookkeeper.errors import BookKeeperError

T = TypeVar("T")


class SharedRead(Generic[T]):
    """Calls ``read`` for all who wait for it together.

    Who asks while a read is under way gets the next one: an answer that was on its way already
    may be older than the question. So nobody is ever told what was true before it asked.
    """

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._lock = threading.Lock()
        """Taken by itself: Ctrl-C within the calls of a condition's ``with`` leaves it taken."""
        self._changed = threading.Condition(self._lock)
        self._begun = 0
        """How many reads began; one at a time is under way."""
        self._ended = 0
        self._value: T | None = None
        self._error: BookKeeperError | None = None
        """How the last read ended."""

    def get(self) -> T:
        """What a read finds that begins after this call. Raises what it raises."""
        mine: int | None = None
        try:
            with self._lock:
                enough = self._begun + 1
                while self._ended < enough and self._begun > self._ended:
                    self._changed.wait()
                if self._ended >= enough:
                    if self._error is not None:
                        raise self._error.again()
                    return self._value  # type: ignore[return-value]  # what the read returned
                mine = self._begun = self._begun + 1
            value = self._read()
            self._end(value, None)
        except BookKeeperError as error:
            if mine is not None:
                self._end(None, error)
            raise
        except BaseException:  # interrupted: whoever waits reads for itself
            with self._lock:
                if mine is not None and self._ended < mine:
                    self._begun -= 1
                    self._changed.notify_all()
            raise
        return value

    def _end(self, value: T | None, error: BookKeeperError | None) -> None:
        with self._lock:
            self._value, self._error = value, error
            self._ended = self._begun
            self._changed.notify_all()
