"""A limit on bytes per second, and the last look at a limit that may change."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from spark_bookkeeper.runtime.runtime import Runtime

LOOK_SECONDS: Final = 2.5
"""A limit that may change is asked for again so often, also by who waits because of it. What he is
told may be as old again (``CachedValue``), so a change is obeyed within twice that."""


class Throttle:
    """Call it with bytes that are moved; it waits as long as the limit gives them.

    A token bucket that is empty at first and holds one second's worth: whoever moves little, and
    then ends, waits for that little too, because others like it follow. Any thread calls.

    Args:
        bytes_per_second: the limit; ``None`` is none.
        again: the limit as it is now, told what it was before; ``None``: it does not change. Asked
            first with the first bytes: most pieces of work have ended before it is time to look.
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
        """Bytes per second as they are now; ``None`` is no limit."""
        self._look()
        return self._rate

    def _look(self) -> None:
        """Ask for the limit as it is now, if it is time to."""
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
                self._tokens = 0.0  # nothing is owed to no limit

    def _earn(self) -> None:
        """Put into the bucket what the limit has given since."""
        now = self._runtime.now()
        if self._rate is not None:
            self._tokens = min(float(self._rate), self._tokens + (now - self._at) * self._rate)
        self._at = now


class CachedValue:
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
