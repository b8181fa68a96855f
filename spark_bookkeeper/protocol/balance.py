"""How many bytes each bookie should hold, and which shares should move.

A bookie's part of all bytes is proportional to its disk. A read-only bookie with less than its part
gets nothing, so its present bytes are its part, and the others share the rest. The bytes that a
bookie *holds* are counted from metadata and not from its disk, because copies that were moved stay
on the disk until they are collected: otherwise a second run would move as much again.

Pure. Every move reduces the sum of the squared distances from the goals, so moving ends, however
often it is begun again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spark_bookkeeper.protocol.ids import BookieId


def usable_bytes(space: tuple[int, int], inodes: tuple[int, int] | None) -> int:
    """Return the free bytes that small files can use. Each inode stands for its part of all bytes:
    if few are free, only their parts count.
    """
    free_bytes, total_bytes = space
    return min(free_bytes, total_bytes * inodes[0] // inodes[1]) if inodes else free_bytes


@dataclass(frozen=True, slots=True)
class Disk:
    """A live bookie, with the values that balancing needs."""

    total_bytes: int | None = None
    """``None``: unknown, as of a bucket; it counts like the largest that is known."""
    free_bytes: int | None = None
    """``None``: unknown, so it is no limit."""
    is_readonly: bool = False
    """Whether it gets no bytes; it may still have too many."""
    is_wanted: bool = True
    """Whether it may be a target."""


class Balance:
    """The bytes that each bookie holds and should hold; changed by ``move``.

    Args:
        disks: the bookies among which bytes are spread.
        held: the bytes that each holds; other bookies in it are ignored.
        tolerance_percent: a bookie may exceed its goal by this much.
        spare_bytes: the least free bytes that a move leaves on a target's disk.
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
        """Return the part of each bookie, by the size of its disk."""
        kept: dict[BookieId, int] = {}
        while True:
            # Each that keeps its bytes leaves more to the others; then one may have too little.
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
        """Return the bytes that a bookie holds, after all moves so far."""
        return self._held[bookie]

    def goal(self, bookie: BookieId) -> int:
        """Return the bytes that a bookie should hold."""
        return self._goals[bookie]

    @property
    def has_source(self) -> bool:
        """Whether any bookie holds too much."""
        return any(self.is_over(bookie) for bookie in self._disks)

    def may_leave(self, bookie: BookieId, size_bytes: int) -> bool:
        """Return whether a share should leave a bookie: it has too much, and enough afterwards."""
        return (
            bookie in self._disks
            and self.is_over(bookie)
            and 2 * (self._held[bookie] - self._goals[bookie]) > size_bytes > 0
        )

    def takers(self, size_bytes: int) -> Iterator[tuple[BookieId, int]]:
        """Yield the bookies that may take a share, with the bytes that each lacks, at least 1."""
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
        """Count a share as moved from one bookie to another."""
        self._held[source] -= size_bytes
        self._held[target] += size_bytes
        self._moved_in[target] += size_bytes

    def is_over(self, bookie: BookieId) -> bool:
        """Return whether a bookie holds too much."""
        goal = self._goals[bookie]
        return 100 * (self._held[bookie] - goal) > self._tolerance_percent * goal
