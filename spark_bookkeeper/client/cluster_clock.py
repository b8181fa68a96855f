"""The cluster's time: the clock of the metadata store, which all processes of a cluster can read.

Clocks of machines differ by hours if one is set wrong, and jump when it is corrected. So this clock
gives every time that one process notes and another compares with its own. Nevertheless no safety
depends on it (SLOT-LOG rule R17).

It is the clock of the server that leads the others, so it jumps when a server with a different
clock is elected. A process that has read it before notices the jump and records it (``jumped_ms``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from spark_bookkeeper.errors import BookKeeperError, MetadataUnavailableError
from spark_bookkeeper.metadata.store import MetadataStore
from spark_bookkeeper.runtime.runtime import Runtime

ASKED_SECONDS: Final = 60.0
"""How long a process counts on by itself before it reads the clock again."""

SAME_CLOCK_SECONDS: Final = 60
"""Two clocks that differ by no more than this count as the same."""

_JUMP_MS: Final = 1000
"""If the clock is ahead by less than this between two answers, it only ran a little faster."""


class _Told(NamedTuple):
    ms: int
    before: float
    at: float
    """The answer is of a moment between these two, by ``Runtime.now``."""


class ClusterClock:
    """Remembers that clock's distance from ``Runtime.now``, which never jumps. For any thread."""

    def __init__(self, asked_seconds: float = ASKED_SECONDS) -> None:
        self._asked_seconds = asked_seconds  # applies after the first answer
        self._told: _Told | None = None
        """The last answer."""
        self._asked: float | None = None
        """When it was last read, even if there was no answer."""
        self.jumped_ms = 0
        """The cluster's time when the clock was found to have jumped ahead; 0 if it never was.
        Durations count from then on, because an earlier time is of another clock. The same happens
        when ``Runtime.now`` stood still, on a machine that was suspended."""

    def now_ms(self, store: MetadataStore, runtime: Runtime) -> int:
        """Return milliseconds since 1970; by this machine's clock if the store never gave a time.

        Raises:
            MetadataUnavailableError: the store does not answer.
        """
        patience = ASKED_SECONDS if self._told is None else self._asked_seconds
        if self._asked is None or runtime.now() - self._asked >= patience:
            self.asked_ms(store, runtime)
        if self._told is None:
            return runtime.wall_ms()
        return self._told.ms + round((runtime.now() - self._told.at) * 1000)

    def asked_ms(self, store: MetadataStore, runtime: Runtime) -> int | None:
        """Read the clock now, and return its time; ``None`` if the store gives none.

        The remembered time lags by the duration of the answer, so a time taken from it may seem
        longer ago than it is.
        """
        before = runtime.now()
        found = _asked(store.clock_ms)
        self._asked = now = runtime.now()
        if found is None:
            return None
        last = self._told
        if last is not None and found - last.ms > (now - last.before) * 1000 + _JUMP_MS:
            self.jumped_ms = found
        self.jumped_ms = min(self.jumped_ms, found)  # the clock was set back since
        self._told = _Told(found, before, now)
        return found


def _asked(clock_ms: Callable[[], int | None]) -> int | None:
    try:
        return clock_ms()
    except MetadataUnavailableError:
        raise
    except BookKeeperError:  # a client with read access only gets no time
        return None
