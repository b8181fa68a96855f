"""The last space of a partition, which is left to fences and to the ends of ledgers.

A bookie that is short of space is registered as read-only, and writers leave it
(``EnsembleChannels``). That takes them some seconds, and where no other bookie can take its place
they stay. Jobs that copy may have chosen it before. So whoever adds data looks at the free space
now and then, and stops before the end of it: a ledger that can neither be written nor fenced could
not be closed either.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from spark_bookkeeper.errors import BookieReadOnlyError, BookieUnavailableError
from spark_bookkeeper.protocol.balance import usable_bytes
from spark_bookkeeper.storage.storage import Storage

RESERVE_BYTES: Final = 64 << 20
"""Kept free on a large partition; a hundredth of a small one. A fence takes a few KiB."""

UNSEEN_BYTES: Final = 1 << 20
"""Added by a process between two looks while more than ``NEAR_BYTES`` may be added."""

NEAR_BYTES: Final = 1 << 30
"""Where less may be added, each look is for one put: others add too, and nobody knows how many."""

PROCESSES: Final = 16
"""So many processes with as much under way as this one have to find room: they have looked as well,
and none hears of the others' puts."""

TOGETHER_BYTES: Final = 1 << 30
"""They find room for no more than this, with what is kept. It is where an agent registers its
bookie as read-only (``readonly_below_free_bytes``): what writers are sent to before is taken."""

_SHARE: Final = 4
"""Nor for more than one in so many bytes of a partition, which may be small."""


def reserve_bytes(total_bytes: int) -> int:
    """What is kept free on a partition of this size."""
    return min(RESERVE_BYTES, total_bytes // 100)


def together_bytes(total_bytes: int) -> int:
    """What processes may have under way together, on a partition of this size, so that what is
    kept stays. More can be under way where more is free, and is then not certain to leave it.
    """
    return min(TOGETHER_BYTES - reserve_bytes(total_bytes), total_bytes // _SHARE)


class Reserve:
    """Keeps the writers of one process away from the last space of one bookie. Any thread calls.

    What this process has under way is counted. What others have is not known: what is kept stays
    beside ``PROCESSES`` of them that have ``together_bytes`` under way at once, and lacks at most
    ``UNSEEN_BYTES`` for each that looked while much was free.

    Costs nothing for most small adds: one look at the free space for each MiB.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._bookie_id = storage.bookie_id
        self._unseen_bytes: float = 0
        self.under_way: dict[object, int] = {}
        """Bytes of each put that has begun. Whoever put takes it out when the put has ended,
        however it did: its bytes are seen from then on."""

    def spend(
        self, put: object, size_bytes: int, *, is_new: bool = True, frees_inodes: bool = False
    ) -> None:
        """Called before data is put.

        Args:
            put: its key in ``under_way``, another one for each put. The caller's, who has to take
                it out also where an interrupt comes before this returns.
            is_new: ``False`` for what may have been put before, which is never refused.
            frees_inodes: more than it takes, so it may take of the last ones.

        Raises:
            BookieReadOnlyError: it would take of the last space. Nothing was written.
        """
        self.under_way[put] = size_bytes
        if is_new:
            self._unseen_bytes -= size_bytes
            if self._unseen_bytes < 0:
                try:
                    self._look(size_bytes, frees_inodes=frees_inodes)
                except BaseException:
                    del self.under_way[put]
                    raise

    @contextmanager
    def spent(
        self, size_bytes: int, *, is_new: bool = True, frees_inodes: bool = False
    ) -> Iterator[None]:
        """The time of a put of data; the rest is as in ``spend``."""
        put = object()
        try:
            self.spend(put, size_bytes, is_new=is_new, frees_inodes=frees_inodes)
            yield
        finally:
            self.under_way.pop(put, None)

    def _look(self, size_bytes: int, *, frees_inodes: bool) -> None:
        # Counted before the look: what ends in between is then counted twice, and never not at all.
        own = sum(self.under_way.copy().values())
        try:
            space = self._storage.space()
            inodes = None if frees_inodes else self._storage.inodes()
        except BookieUnavailableError:  # not known; whether anything can be put, the put finds out
            self._unseen_bytes = UNSEEN_BYTES
            return
        if space is None:  # storage without an end
            self._unseen_bytes = float("inf")
            return
        free_bytes, total_bytes = usable_bytes(space, inodes), space[1]
        kept = reserve_bytes(total_bytes)
        room = max(own, min(PROCESSES * own, together_bytes(total_bytes)))
        left = free_bytes - kept - room
        if left < 0:
            of_inodes = f", as {inodes[0]:,} of {inodes[1]:,} inodes are free" if inodes else ""
            raise BookieReadOnlyError(
                f"full: bookie {self._bookie_id} has {free_bytes:,} bytes left of {total_bytes:,}"
                f"{of_inodes if free_bytes < space[0] else ''}. "
                f"The last {kept:,} are for fences and recovery, {own - size_bytes:,} are being "
                f"put by this process, and others may be putting {room - own:,}; {size_bytes:,} "
                "were not written there",
                bookie_id=self._bookie_id,
            )
        is_much = left > NEAR_BYTES and not frees_inodes  # of inodes nothing was seen then
        self._unseen_bytes = UNSEEN_BYTES if is_much else 0
