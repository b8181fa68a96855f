"""Entries that a writer has taken and that may still have to be sent to some bookie."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa

from spark_bookkeeper.bookie.entry import PlacedPart
from spark_bookkeeper.protocol.ids import NO_ENTRY, BookieId, EntryId


@dataclass(slots=True, eq=False)
class BulkBlock:
    """The entries of one bulk append, whose bytes tasks have put into part files."""

    first: EntryId
    last: EntryId
    spans: Sequence[tuple[int, int]]
    """Runs of entries that one task wrote; readers cut their work there."""
    parts: Sequence[PlacedPart]
    classes: dict[str, int]
    """For each part's name: its stripe class (``entry_id mod E``; 0 when not striped)."""
    holders: dict[str, dict[BookieId, str]] = field(default_factory=dict)
    """For each part's name: the bookies known to store it, with their incarnation."""


class Run(NamedTuple):
    """Entries that follow each other and share a slot: payloads, or those of a bulk append."""

    first: EntryId
    last: EntryId
    payloads: Sequence[bytes | pa.RecordBatch | None]
    """``None`` for an entry of a bulk append: its bytes are in part files."""
    lengths_after: Sequence[int]
    """Length of the ledger up to and including each of them."""
    bulk: BulkBlock | None


class PendingEntries:
    """The entries from the first that a channel may still need up to the last one taken.

    Kept as columns: one object for each entry would be most of the cost of an append.
    """

    def __init__(self) -> None:
        self.length = 0
        """Length of the ledger up to and including the last entry taken."""
        self.size_bytes = 0
        """Bytes held, for back-pressure."""
        self._last: int = NO_ENTRY
        self._first = 0
        self._length_before = 0
        self._payloads: list[bytes | pa.RecordBatch | None] = []
        self._lengths_after: list[int] = []
        self._blocks: list[BulkBlock] = []

    @property
    def last(self) -> EntryId:
        """The last entry taken."""
        return EntryId(self._last)

    def push(self, payload: bytes | pa.RecordBatch, size_bytes: int) -> int:
        """Take the next entry; return its id."""
        length = self.length + size_bytes
        try:
            self._payloads.append(payload)
            self._lengths_after.append(length)
        except BaseException:  # Ctrl-C in between: the columns would differ for ever
            self._take_back()
            raise
        self.length = length
        self.size_bytes += size_bytes
        self._last += 1
        return self._last

    def push_block(self, block: BulkBlock, sizes: Sequence[int]) -> None:
        """Take the entries of a bulk append. Their bytes are not held in memory."""
        assert block.first == self._last + 1, "entry ids are dense"
        assert block.last == self._last + len(sizes), "every entry has a size"
        lengths = list(accumulate(sizes, initial=self.length))
        try:
            self._lengths_after += lengths[1:]
            self._payloads += [None] * len(sizes)
            self._blocks.append(block)
        except BaseException:  # as above
            self._take_back()
            raise
        self.length = lengths[-1]
        self._last = block.last

    def _take_back(self) -> None:
        """Drop entries behind the last one that were not taken completely."""
        count = self._last + 1 - self._first
        del self._payloads[count:], self._lengths_after[count:]
        self._blocks = [block for block in self._blocks if block.first <= self._last]

    def length_after(self, entry_id: int) -> int:
        """Return the length of the ledger up to and including an entry.

        Args:
            entry_id: an entry that is held here, or the one just before the first of these.
        """
        index = entry_id - self._first
        return self._lengths_after[index] if index >= 0 else self._length_before

    def run(self, first: int, max_entries: int, max_bytes: int) -> Run:
        """Return the entries from ``first`` that share a slot."""
        end = min(self._last + 1, first + max_entries)
        bulk: BulkBlock | None = None
        for block in self._blocks:
            if block.first <= first <= block.last:
                bulk, end = block, block.last + 1
                break
            if first < block.first:
                end = min(end, block.first)
                break
        start, stop = first - self._first, end - self._first
        if bulk is None:
            most = self.length_after(first - 1) + max_bytes
            stop = max(start + 1, bisect_right(self._lengths_after, most, start, stop))
        return Run(
            first=EntryId(first),
            last=EntryId(self._first + stop - 1),
            payloads=self._payloads[start:stop],
            lengths_after=self._lengths_after[start:stop],
            bulk=bulk,
        )

    def forget_below(self, entry_id: int) -> None:
        """Drop entries below this one, which no channel needs any more."""
        count = entry_id - self._first
        if count <= 0:
            return
        before = self.length_after(entry_id - 1)
        self.size_bytes -= before - self._length_before
        for block in self._blocks:  # these were not counted
            low, high = max(block.first, self._first), min(block.last + 1, entry_id)
            if low < high:
                self.size_bytes += self.length_after(high - 1) - self.length_after(low - 1)
        self._blocks = [block for block in self._blocks if block.last >= entry_id]
        del self._payloads[:count]
        del self._lengths_after[:count]
        self._first = entry_id
        self._length_before = before
