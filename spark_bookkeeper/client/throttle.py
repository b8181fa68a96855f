"""A limit on bytes per second."""

from __future__ import annotations

from spark_bookkeeper.client.runtime import Runtime


class Throttle:
    """Call it with bytes about to be moved; it waits until they fit under the limit.

    A token bucket that holds one second's worth and may go into debt for one large file, so
    that a file larger than the limit is still copied, just not followed at once. Any thread calls.
    """

    def __init__(self, runtime: Runtime, bytes_per_second: int | None) -> None:
        self._runtime = runtime
        self._rate = bytes_per_second
        self._tokens = float(bytes_per_second or 0)
        self._at = runtime.now()
        self._lock = runtime.condition()

    def __call__(self, size_bytes: int) -> None:
        if self._rate is None:
            return
        with self._lock:
            now = self._runtime.now()
            self._tokens = min(float(self._rate), self._tokens + (now - self._at) * self._rate)
            self._at = now
            debt = -self._tokens
            self._tokens -= size_bytes
        if debt > 0:
            self._runtime.sleep(debt / self._rate)
