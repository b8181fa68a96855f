"""A limit on bytes per second, and a cache for a limit that may change."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from spark_bookkeeper.runtime.runtime import Runtime

LOOK_SECONDS: Final = 2.5
"""Interval at which a limit that may change is read again, also by callers that it makes wait. The
value may be as old again (``CachedValue``), so a change takes effect within twice that."""


class Throttle:
    """Called with the bytes that were moved; waits as long as the limit requires.

    A token bucket that is empty at first and holds one second's bytes. A caller that moves few
    bytes, and then ends, waits for them too, because others like it follow. Any thread may call.

    Args:
        bytes_per_second: the limit; ``None``: no limit.
        again: returns the current limit, given the previous one; ``None``: it does not change.
            First called with the first bytes: most work ends before the first ``LOOK_SECONDS``.
    """

    def __init__(
        self,
        runtime: Runtime,
        bytes_per_second: int | None,
        again: Callable[[int | None], int | None] | None = None,
    ) -> None:
        self._runtime = runtime
        self._rate = bytes_per_second
        self._again = again
        self._tokens = 0.0
        self._at = runtime.now()
        self._looked_at: float | None = None
        self._lock = runtime.condition()

    def __call__(self, size_bytes: int) -> None:
        if self._rate is None and self._again is None:
            return
        self._look()
        with self._lock:
            self._earn()
            rate = self._rate
            if rate is None:
                return
            self._tokens -= size_bytes
            debt = -self._tokens
        while debt > 0 and rate is not None:
            whole = debt / rate
            seconds = whole if self._again is None else min(whole, LOOK_SECONDS)
            self._runtime.sleep(seconds)
            if seconds == whole:
                return
            debt -= seconds * rate
            self._look()
            rate = self._rate

    @property
    def rate(self) -> int | None:
        """The current limit in bytes per second; ``None``: no limit."""
        self._look()
        return self._rate

    def _look(self) -> None:
        """Read the current limit, if ``LOOK_SECONDS`` have passed."""
        if self._again is None:
            return
        with self._lock:
            now = self._runtime.now()
            if self._looked_at is not None and now - self._looked_at < LOOK_SECONDS:
                return
            self._looked_at = now
            before = self._rate
        found = self._again(before)  # without the lock: it may take a while
        with self._lock:
            self._earn()
            self._rate = found
            if found is None or before is None:
                self._tokens = 0.0  # without a limit no debt remains

    def _earn(self) -> None:
        """Add to the bucket what the limit has allowed since the last call."""
        now = self._runtime.now()
        if self._rate is not None:
            self._tokens = min(float(self._rate), self._tokens + (now - self._at) * self._rate)
        self._at = now


class CachedValue:
    """Caches a limit: all callers read it at most once in ``LOOK_SECONDS``.

    Any thread may call. Times are seconds of the callers' ``Runtime.now``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held only for assignments, so no caller waits long
        self._at: float | None = None
        self._is_known = False
        self._value: int | None = None

    def value(
        self, now: float, look: Callable[[], int | None], otherwise: int | None
    ) -> int | None:
        """Return the value; read it if it is older than ``LOOK_SECONDS``.

        Args:
            look: reads the value; its errors are raised, only to this caller.
            otherwise: returned until the value was read once.
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
        """Store a value that the caller has just read for another reason."""
        with self._lock:
            self._at, self._value, self._is_known = now, value, True
