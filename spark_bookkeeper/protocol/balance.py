"""How much each bookie should hold, and who may take a share from one that holds too much.

A bookie's part of all bytes follows its disk: twice the disk, twice the bytes. One that is
read-only and has less than that gets nothing, so what it has is its part, and the others share the
rest. What a bookie *holds* is counted from metadata and not from its disk, for copies that were
moved stay there until they are collected: a second run would otherwise move as much again.

Pure. Every move makes the sum of the squared distances from the goals smaller, so that moving ends,
whoever begins it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spark_bookkeeper.protocol.ids import BookieId


def usable_bytes(space: tuple[int, int], inodes: tuple[int, int] | None) -> int:
    """Free bytes, of which small files can make use. Each inode stands for its share of all bytes:
    where few are left, the bytes beyond their shares do not count.
    """
    free_bytes, total_bytes = space
    return min(free_bytes, total_bytes * inodes[0] // inodes[1]) if inodes else free_bytes


@dataclass(frozen=True, slots=True)
class Disk:
    """A bookie that is alive, as balancing sees it."""

    total_bytes: int | None = None
    """``None``: not known, as of a bucket; it counts like the largest that is known."""
    free_bytes: int | None = None
    """``None``: not known, so it is no limit."""
    is_readonly: bool = False
    """It gets nothing, and may have too much."""
    is_wanted: bool = True
    """As a target."""


class Balance:
    """Who holds how much, and should; changed by ``move``.

    Args:
        disks: the bookies among which bytes are spread.
        held: what each holds, in bytes; of others it does not matter here.
        tolerance_percent: so much above its goal a bookie may hold, and is left alone.
        spare_bytes: what a move leaves free on a target's disk, at the least.
    """

    def __init__(
        self,
        disks: Mapping[BookieId, Disk],
        held: Mapping[BookieId, int],
        tolerance_percent: int = 10,
        spare_bytes: int = 0,
    ) -> None:
        self._disks = disks
        self._held = {bookie: held.get(bookie, 0) for bookie in disks}
        self._moved_in = dict.fromkeys(disks, 0)
        self._tolerance_percent = tolerance_percent
        self._spare_bytes = spare_bytes
        known = [d.total_bytes for d in disks.values() if d.total_bytes]
        largest = max(known, default=1)
        sizes = {bookie: disk.total_bytes or largest for bookie, disk in disks.items()}
        self._goals = self._spread(sizes)

    def _spread(self, sizes: Mapping[BookieId, int]) -> dict[BookieId, int]:
        """The part of each, by its size."""
        kept: dict[BookieId, int] = {}
        while True:
            # Each that keeps what it has leaves the others more, and one of them too little then.
            others = {bookie: size for bookie, size in sizes.items() if bookie not in kept}
            whole, every = sum(self._held[bookie] for bookie in others), sum(others.values())
            goals = {bookie: whole * size // every for bookie, size in others.items()}
            less = {b: self._held[b] for b in others if self._lacks_for_good(b, goals[b])}
            if not less:
                return {**goals, **kept}
            kept.update(less)

    def _lacks_for_good(self, bookie: BookieId, goal: int) -> bool:
        return self._disks[bookie].is_readonly and self._held[bookie] < goal

    def held(self, bookie: BookieId) -> int:
        """Bytes that it holds, after all moves so far."""
        return self._held[bookie]

    def goal(self, bookie: BookieId) -> int:
        """Bytes that it should hold."""
        return self._goals[bookie]

    @property
    def has_source(self) -> bool:
        """Whether any bookie holds too much."""
        return any(self.is_over(bookie) for bookie in self._disks)

    def may_leave(self, bookie: BookieId, size_bytes: int) -> bool:
        """Whether a share should leave a bookie: it has too much, and not too little without it."""
        return (
            bookie in self._disks
            and self.is_over(bookie)
            and 2 * (self._held[bookie] - self._goals[bookie]) > size_bytes > 0
        )

    def takers(self, size_bytes: int) -> Iterator[tuple[BookieId, int]]:
        """Bookies that a share may go to, each with how much it lacks; at least 1."""
        for bookie, disk in self._disks.items():
            lack = self._goals[bookie] - self._held[bookie]
            if disk.is_readonly or not disk.is_wanted or 2 * lack <= size_bytes:
                continue
            if disk.free_bytes is not None:
                left = disk.free_bytes - self._moved_in[bookie] - size_bytes
                if left < self._spare_bytes:
                    continue
            yield bookie, max(1, lack)

    def move(self, source: BookieId, target: BookieId, size_bytes: int) -> None:
        """A share goes from one bookie to another."""
        self._held[source] -= size_bytes
        self._held[target] += size_bytes
        self._moved_in[target] += size_bytes

    def is_over(self, bookie: BookieId) -> bool:
        """Whether it holds too much."""
        goal = self._goals[bookie]
        return 100 * (self._held[bookie] - goal) > self._tolerance_percent * goal
