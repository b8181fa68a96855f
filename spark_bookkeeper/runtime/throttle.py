"""A limit on bytes per second."""

from __future__ import annotations

from spark_bookkeeper.runtime.runtime import Runtime


class Throttle:
    """Call it with bytes that are moved; it waits as long as the limit gives them.

    A token bucket that is empty at first and holds one second's worth: whoever moves little, and
    then ends, waits for that little too, because others like it follow. Any thread calls.
    """

    def __init__(self, runtime: Runtime, bytes_per_second: int | None) -> None:
        self._runtime = runtime
        self._rate = bytes_per_second
        self._tokens = 0.0
        self._at = runtime.now()
        self._lock = runtime.condition()

    def __call__(self, size_bytes: int) -> None:
        if self._rate is None:
            return
        with self._lock:
            now = self._runtime.now()
            self._tokens = min(float(self._rate), self._tokens + (now - self._at) * self._rate)
            self._at = now
            self._tokens -= size_bytes
            debt = -self._tokens
        if debt > 0:
            self._runtime.sleep(debt / self._rate)
