"""The last space of a partition, which writers leave to fences, recovery and copies.

A bookie that is short of space is registered as read-only, and writers leave it (``Lanes``). That
takes them some seconds, and where no other bookie can take its place they stay. So whoever adds
new data looks at the free space now and then, and stops before the end of it: a ledger that can
neither be written nor fenced could not be closed either.
"""

from __future__ import annotations

from typing import Final

from spark_bookkeeper.bookie.storage.storage import Storage
from spark_bookkeeper.errors import BookieReadOnlyError, BookieUnavailableError

RESERVE_BYTES: Final = 64 << 20
"""Kept free on a large partition; a hundredth of a small one. A fence takes a few KiB."""

UNSEEN_BYTES: Final = 1 << 20
"""Added before the first look, so that whoever adds little never looks."""

_PATIENCE: Final = 8
"""Of what may still be added, one in so many is added before the next look: others add too."""


def reserve_bytes(total_bytes: int) -> int:
    """What is kept free on a partition of this size."""
    return min(RESERVE_BYTES, total_bytes // 100)


class Reserve:
    """Keeps the writers of one process away from the last space of one bookie. Any thread calls.

    Costs nothing for most adds: one look at the free space for each MiB at first, and for much
    more where much is free.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._bookie_id = storage.bookie_id
        self._unseen_bytes: float = UNSEEN_BYTES

    def spend(self, size_bytes: int) -> None:
        """Called before new data is put.

        Raises:
            BookieReadOnlyError: it would take of the last space. Nothing was written.
        """
        self._unseen_bytes -= size_bytes
        if self._unseen_bytes >= 0:
            return
        try:
            space = self._storage.space()
        except BookieUnavailableError:  # not known; whether anything can be put, the put finds out
            self._unseen_bytes = UNSEEN_BYTES
            return
        if space is None:  # storage without an end
            self._unseen_bytes = float("inf")
            return
        free_bytes, total_bytes = space
        kept = reserve_bytes(total_bytes)
        left = free_bytes - size_bytes - kept
        if left < 0:
            raise BookieReadOnlyError(
                f"bookie {self._bookie_id} has {free_bytes:,} bytes left of {total_bytes:,}, and "
                f"the last {kept:,} are for fences and recovery; nothing was written there",
                bookie_id=self._bookie_id,
            )
        self._unseen_bytes = left // _PATIENCE
