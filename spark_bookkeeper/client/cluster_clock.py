"""The time by the one clock that all processes of a cluster can ask: that of the metadata store.

Clocks of machines are apart by hours when one of them is set wrong, and jump when it is set right.
What one process notes and another compares with its own time is told by this one. No safety rests
on it all the same (SLOT-LOG rule R17).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from spark_bookkeeper.errors import BookKeeperError, MetadataUnavailableError
from spark_bookkeeper.metadata.store import MetadataStore
from spark_bookkeeper.runtime.runtime import Runtime

ASKED_SECONDS: Final = 60.0
"""So long this process counts on by itself, before it asks again."""


class ClusterClock:
    """Remembers how far that clock is from ``Runtime.now``, which never jumps. For any thread."""

    def __init__(self) -> None:
        self._told: tuple[float, int] | None = None
        """When it was asked, and what it said."""

    def now_ms(self, store: MetadataStore, runtime: Runtime, *, afresh: bool = False) -> int:
        """Milliseconds since 1970; by this machine's clock where the store's cannot be asked.

        Args:
            afresh: ask it now. What is remembered is late by as long as the answer took, so a time
                that was told by it may seem longer ago than it is.

        Raises:
            MetadataUnavailableError: the store does not answer.
        """
        if self._told is not None and not afresh:
            at, theirs = self._told
            since = runtime.now() - at
            if since < ASKED_SECONDS:
                return theirs + round(since * 1000)
        found = _asked(store.clock_ms)
        if found is None:
            return runtime.wall_ms()
        self._told = runtime.now(), found
        return found


def _asked(clock_ms: Callable[[], int | None]) -> int | None:
    try:
        return clock_ms()
    except MetadataUnavailableError:
        raise
    except BookKeeperError:  # who may only read is told nothing of clocks
        return None
