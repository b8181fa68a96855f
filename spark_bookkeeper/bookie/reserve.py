"""The last space of a partition, which is reserved for fences and for the ends of ledgers.

A bookie that is short of space is registered as read-only, and writers leave it
(``EnsembleChannels``). That takes some seconds, and without another bookie they stay. Copying jobs
may have chosen the bookie before. So each process that adds data regularly checks the free space,
and stops before the last space: a ledger that can neither be written nor fenced could never be
closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from spark_bookkeeper.errors import BookieReadOnlyError, BookieUnavailableError
from spark_bookkeeper.protocol.balance import usable_bytes
from spark_bookkeeper.storage.storage import Storage

RESERVE_BYTES: Final = 64 << 20
"""The reserve of a large partition; of a small one, a hundredth. A fence takes a few KiB."""

UNSEEN_BYTES: Final = 1 << 20
"""The bytes that a process adds between two checks, while more than ``NEAR_BYTES`` are left."""

NEAR_BYTES: Final = 1 << 30
"""With less space than this left, every put has a check, as other processes add data as well."""

PROCESSES: Final = 16
"""The number of processes, each with as many bytes under way as this one, for which a check finds
room: each has checked too, and none knows the puts of the others."""

TOGETHER_BYTES: Final = 1 << 30
"""The upper limit of that room, with the reserve. Below this free space an agent registers its
bookie as read-only (``readonly_below_free_bytes``); with more, a bookie must accept writers."""

_SHARE: Final = 4
"""That room is also at most this part (1/n) of a partition, which may be small."""


def reserve_bytes(total_bytes: int) -> int:
    """Return the reserve of a partition of this size."""
    return min(RESERVE_BYTES, total_bytes // 100)


def together_bytes(total_bytes: int) -> int:
    """Return the bytes that all processes may have under way on a partition of this size without
    using the reserve. With more free space more can be under way, but may then use the reserve.
    """
    return min(TOGETHER_BYTES - reserve_bytes(total_bytes), total_bytes // _SHARE)


class Reserve:
    """Keeps the writers of one process from the last space of a bookie. Any thread may call.

    This process counts its own bytes under way. It does not know those of others. The reserve
    stays free while ``PROCESSES`` processes have ``together_bytes`` under way in all. But each
    process whose last check found much space may take up to ``UNSEEN_BYTES`` of it.

    Most small adds cost nothing: there is one check of the free space for each MiB.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._bookie_id = storage.bookie_id
        self._unseen_bytes: float = 0
        self.under_way: dict[object, int] = {}
        """The bytes of each put that has begun. The caller removes a put when it has ended, even
        with an error: from then on the free space shows its bytes."""

    def spend(
        self, put: object, size_bytes: int, *, is_new: bool = True, frees_inodes: bool = False
    ) -> None:
        """Note that a put begins, and check the space for it.

        Args:
            put: its key in ``under_way``, a different one for each put. The caller makes it, and
                must remove it even if an interrupt comes before this returns.
            is_new: ``False`` for a put that may have succeeded before, which is never refused.
            frees_inodes: whether it frees more inodes than it takes, so it may take the last ones.

        Raises:
            BookieReadOnlyError: it would use the last space. Nothing was written.
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
        """Call ``spend`` for a put that lasts as long as the context."""
        put = object()
        try:
            self.spend(put, size_bytes, is_new=is_new, frees_inodes=frees_inodes)
            yield
        finally:
            self.under_way.pop(put, None)

    def _look(self, size_bytes: int, *, frees_inodes: bool) -> None:
        # Counted before the check: a put that ends in between is counted twice, never left out.
        own = sum(self.under_way.copy().values())
        try:
            space = self._storage.space()
            inodes = None if frees_inodes else self._storage.inodes()
        except BookieUnavailableError:  # the free space is unknown; the put itself may still fail
            self._unseen_bytes = UNSEEN_BYTES
            return
        if space is None:  # storage without a limit
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
        is_much = left > NEAR_BYTES and not frees_inodes  # then the inodes were not checked
        self._unseen_bytes = UNSEEN_BYTES if is_much else 0
