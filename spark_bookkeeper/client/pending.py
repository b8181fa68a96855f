"""Entries that a writer has taken and that some bookie may still have to be sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from spark_bookkeeper.bookie.entry import PlacedPart
from spark_bookkeeper.client.promise import Promise
from spark_bookkeeper.protocol.ids import BookieId, EntryId


@dataclass(slots=True, eq=False)
class PendingEntry:
    """One entry between append and the last bookie's answer."""

    entry_id: EntryId
    size_bytes: int
    length_after: int
    """Length of the ledger up to and including this entry."""
    pushed_at: float
    payload: bytes | pa.RecordBatch | None
    """``None`` for an entry of a bulk append: its bytes are in part files."""
    bulk: BulkBlock | None = None
    future: Promise | None = None
    """Where the caller waits; only the last entry of an append has one."""


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
    """For each part's name: the bookies that were seen to store it, with their incarnation."""


class PendingEntries:
    """The entries from the first that a lane may still need up to the last one taken."""

    def __init__(self) -> None:
        self._entries: list[PendingEntry] = []
        self._first = 0
        self._answered = 0
        self.size_bytes = 0
        """Bytes held, for back-pressure."""

    def push(self, entry: PendingEntry) -> None:
        """Take the next entry."""
        self._entries.append(entry)
        self.size_bytes += entry.size_bytes

    def get(self, entry_id: int) -> PendingEntry:
        """One entry that is still held."""
        return self._entries[entry_id - self._first]

    def group(self, first: int, last: int, max_entries: int, max_bytes: int) -> list[PendingEntry]:
        """The entries from ``first`` that share a slot: a run of inline ones, or a bulk block."""
        start = first - self._first
        head = self._entries[start]
        if head.bulk is not None:
            stop = head.bulk.last + 1 - self._first
            return self._entries[start:stop]
        size = 0
        group = self._entries[start : min(last + 1 - self._first, start + max_entries)]
        for count, entry in enumerate(group):
            size += entry.size_bytes
            if count and (size > max_bytes or entry.bulk is not None):
                return group[:count]
        return group

    def unanswered(self, through: int) -> list[PendingEntry]:
        """Entries up to ``through`` that were not asked for here before; each is given once."""
        start, self._answered = self._answered, through + 1
        return self._entries[start - self._first : through + 1 - self._first]

    def forget_below(self, entry_id: int) -> None:
        """No lane needs the entries below this one any more."""
        count = entry_id - self._first
        if count <= 0:
            return
        self.size_bytes -= sum(entry.size_bytes for entry in self._entries[:count])
        del self._entries[:count]
        self._first = entry_id
