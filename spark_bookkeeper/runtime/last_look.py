"""A value of the cluster that was looked up a while ago, for all in one process who ask for it."""

from __future__ import annotations

from collections.abc import Callable

from spark_bookkeeper.runtime.runtime import Runtime
from spark_bookkeeper.runtime.throttle import LOOK_SECONDS


class LastLook:
    """Remembers a limit: it is looked up at most once in ``LOOK_SECONDS``, whoever asks.

    Any thread calls.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = runtime.condition()
        self._at: float | None = None
        self._is_known = False
        self._value: int | None = None

    def value(self, look: Callable[[], int | None], otherwise: int | None) -> int | None:
        """The value, which is looked up if it is older than ``LOOK_SECONDS``.

        Args:
            look: looks it up; what it raises is raised, to this caller alone.
            otherwise: while nobody has ever found it.
        """
        with self._lock:
            now = self._runtime.now()
            if self._at is not None and now - self._at < LOOK_SECONDS:
                return self._value if self._is_known else otherwise
            self._at = now
        value = look()  # without the lock: it may take a while
        with self._lock:
            self._value, self._is_known = value, True
        return value

    def told(self, value: int | None) -> None:
        """Somebody has looked it up just now, for a reason of his own."""
        with self._lock:
            self._at, self._value, self._is_known = self._runtime.now(), value, True
