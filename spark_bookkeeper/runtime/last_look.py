"""A value of the cluster that was looked up a while ago, for all in one process who ask for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from spark_bookkeeper.runtime.throttle import LOOK_SECONDS


class LastLook:
    """Remembers a limit: it is looked up at most once in ``LOOK_SECONDS``, whoever asks.

    Any thread calls. Times are seconds of the callers' ``Runtime.now``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held for an assignment, so nobody ever waits for it
        self._at: float | None = None
        self._is_known = False
        self._value: int | None = None

    def value(
        self, now: float, look: Callable[[], int | None], otherwise: int | None
    ) -> int | None:
        """The value, which is looked up if it is older than ``LOOK_SECONDS``.

        Args:
            look: looks it up; what it raises is raised, to this caller alone.
            otherwise: while nobody has ever found it.
        """
        with self._lock:
            if self._at is not None and now - self._at < LOOK_SECONDS:
                return self._value if self._is_known else otherwise
            self._at = now
        value = look()  # without the lock: it may take a while
        with self._lock:
            self._value, self._is_known = value, True
        return value

    def told(self, now: float, value: int | None) -> None:
        """Somebody has looked it up just now, for a reason of his own."""
        with self._lock:
            self._at, self._value, self._is_known = now, value, True
