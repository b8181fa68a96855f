"""The time by the one clock that all processes of a cluster can ask: that of the metadata store.

Clocks of machines are apart by hours when one of them is set wrong, and jump when it is set right.
What one process notes and another compares with its own time is told by this one. No safety rests
on it all the same (SLOT-LOG rule R17).

It is the clock of the server that leads the others, so it jumps where another one is elected whose
clock differs. A process that has asked before notices that, and says so (``jumped_ms``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from spark_bookkeeper.errors import BookKeeperError, MetadataUnavailableError
from spark_bookkeeper.metadata.store import MetadataStore
from spark_bookkeeper.runtime.runtime import Runtime

ASKED_SECONDS: Final = 60.0
"""So long this process counts on by itself, before it asks again."""

SAME_CLOCK_SECONDS: Final = 60
"""Two clocks that are apart by no more are the same."""

_JUMP_MS: Final = 1000
"""What goes ahead by less than this between two answers has only run a little faster."""


class _Told(NamedTuple):
    ms: int
    before: float
    at: float
    """It was so between these two, by ``Runtime.now``."""


class ClusterClock:
    """Remembers how far that clock is from ``Runtime.now``, which never jumps. For any thread."""

    def __init__(self, asked_seconds: float = ASKED_SECONDS) -> None:
        self._asked_seconds = asked_seconds  # once it was told
        self._told: _Told | None = None
        """What it said last."""
        self._asked: float | None = None
        """When it was asked last, also where it said nothing."""
        self.jumped_ms = 0
        """What it said when it was found to have gone ahead by itself; 0: it never was. What is
        counted by it is counted from then on: a time that it told before is of another clock.
        Where ``Runtime.now`` stands still, on a machine that was suspended, it is the same."""

    def now_ms(self, store: MetadataStore, runtime: Runtime) -> int:
        """Milliseconds since 1970; by this machine's clock where the store never told its own.

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
        """The same, asked for just now; ``None`` where the store does not tell.

        What is remembered is late by as long as the answer took, so a time that was told by it may
        seem longer ago than it is.
        """
        before = runtime.now()
        found = _asked(store.clock_ms)
        self._asked = now = runtime.now()
        if found is None:
            return None
        last = self._told
        if last is not None and found - last.ms > (now - last.before) * 1000 + _JUMP_MS:
            self.jumped_ms = found
        self.jumped_ms = min(self.jumped_ms, found)  # it was set back since
        self._told = _Told(found, before, now)
        return found


def _asked(clock_ms: Callable[[], int | None]) -> int | None:
    try:
        return clock_ms()
    except MetadataUnavailableError:
        raise
    except BookKeeperError:  # who may only read is told nothing of clocks
        return None
